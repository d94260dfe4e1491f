"""An organisation's own process: it owns texts, secrets and private tables, and answers for them.

A server's requests reach it over a Unix socket, through a relay that it does not trust. It answers
what its policy allows, writes down what it sent, and keeps its own account.
"""
