"""One word list for several organisations: what they propose, what is chosen, and what that
tells.
"""
