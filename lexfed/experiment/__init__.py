"""An experiment: its configuration, and what is built from it."""
