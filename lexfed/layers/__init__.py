"""What is put around clients: layers on their handlers and on their local updates."""
