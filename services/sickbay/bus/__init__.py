"""The bus: how Sickbay talks to NATS. It knows nothing of rules.

May import the ground except config; nats-py, msgspec and no other library.
"""
