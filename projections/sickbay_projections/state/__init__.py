"""The state that the fold keeps, with its bounds: nodes, the store, windows of counts, snapshots.

May import the events and nothing else of this package.
"""
