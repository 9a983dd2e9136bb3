"""Probes of what nobody calls: what they ask, how they are set, the prober that sends them.

May import the ground, `bus`, `view`, `control`, `router` and `projections`.
"""
