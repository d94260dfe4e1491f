"""Secure aggregation: the server learns the sum of what clients send, and nothing of any one of
them.
"""
