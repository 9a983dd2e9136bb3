"""The HTTP interface: for edge runtimes that hold no NATS connection, for people's pages, for whatever speaks HTTP.

It is a client of NATS like any other and never reads a projector's memory, so that it runs in a process of its own,
several of them, or inside `sickbay serve`, as the same code. Imports Litestar; nothing of a router's side imports it.
"""
