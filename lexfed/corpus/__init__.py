"""Text and who holds it: corpora, where they are loaded from, and how they are parted among
clients.
"""
