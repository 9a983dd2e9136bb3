"""Looking back: a past moment, what a replica knew then, two policies compared, reports, verify.

May import the ground, `bus`, `log`, `control`, `router` and `projections`.
"""
