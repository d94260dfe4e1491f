"""What a run looks like to people."""
