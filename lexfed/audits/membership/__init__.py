"""Was this text trained on? Asked of the released model, with shadow models."""
