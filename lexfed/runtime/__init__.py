"""Where handlers run: in this process, in worker processes, on other people's machines."""
