"""A copy of the cluster's gate entries in memory: entries, log time, the mirror that follows them, their digest.

May import the ground and `bus`.
"""
