"""What lexfed is about, told in a few minutes."""
