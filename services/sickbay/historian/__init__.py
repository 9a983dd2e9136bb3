"""The history: the log's own projection into SQLite, which other programs read as it is (docs/history.md).

May import the ground, `bus`, `log` and `projections`.
"""
