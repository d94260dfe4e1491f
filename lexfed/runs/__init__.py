"""A run from its beginning to its directory: starting, resuming, checkpoints, records, the
summary.
"""
