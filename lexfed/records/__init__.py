"""What a run leaves on disk: its directory, and the checkpoints from which it goes on."""
