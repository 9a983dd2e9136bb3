"""What operators store: acts (hold, allow, clear) and policies, on the control stream; and its lag behind the log.

May import the ground and `bus`.
"""
