"""Alerts out: holds, releases and warnings to webhooks, chat rooms and commands. May import the ground and `bus`.

settings.py   the file that names receivers
grouping.py   which alerts become which message, and when: pure
message.py    a message as JSON and as text: pure
send.py       one message to one receiver
relay.py      from the log of transitions to the receivers, kept going
"""
