"""The methods, one file each: what differs between them, and nothing else."""
