"""Looking back, pure: two policies compared on one history, traffic and latency of a log, a history in words.

May import the events, `state`, `rules` and the fold.
"""
