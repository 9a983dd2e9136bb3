"""All that runs inside a router: the gate, attempts, chains, the reporter with its outbox, trials, the overlay.

May import the ground, `bus`, `view` and `projections`; nats-py, msgspec and no other library.
"""
