"""All that runs inside a router: the gate, attempts, chains, the reporter with its outbox, trials, the overlay.

May import the ground, `bus` and `view`; nats-py and msgspec, and no other library.
"""
