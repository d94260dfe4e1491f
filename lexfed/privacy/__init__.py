"""Who takes part, and what is done to updates so that they say less."""
