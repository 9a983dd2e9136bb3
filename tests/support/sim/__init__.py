"""The deterministic simulator: log, publishers, projectors, gates and clocks in one process, from one seed.

`virtual.py` is the event loop with virtual time and the clocks; `server.py` a JetStream-like server; `client.py` what
stands in nats-py's place on a node; `world.py` the providers, routers and projectors; `faults.py` what goes wrong;
`watch.py`, `walk.py`, `ends.py` the checker; `history.py` runs one seed. All parts of the product that take part are
the real ones.
"""
