"""What operators store: acts (hold, allow, clear) and policies, on the control stream.

May import the ground and `bus`.
"""
