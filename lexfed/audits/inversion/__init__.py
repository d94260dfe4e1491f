"""Gradient inversion: the texts whose gradient an upload is."""
