"""The rules: each file says what one rule folds, when it holds and when it lets go.

May import the events and `state`.
"""
