"""What is measured, as pure functions of what was observed."""
