"""The event log: as a file, decoding and folding it, snapshots of what it says, its transitions.

May import the ground, `bus` and `projections`.
"""
