"""Word vectors between organisations: passes over text, replicas of tables, rules for rows, how
good they are.
"""
