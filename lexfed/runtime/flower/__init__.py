"""Flower as the carrier of letters: SuperLink and SuperNodes bring them, and know nothing more."""
