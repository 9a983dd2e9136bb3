"""The HTTP interface: for edge runtimes without a NATS connection, for people's pages, for anything that speaks HTTP.

It is a client of NATS like any other and never reads a projector's memory. The same code runs in processes of its own
and inside `sickbay serve`. Imports Litestar; nothing on the router side imports it. May import the ground, `bus`,
`view`, `router`, `log`, `control`, `historian`, `metrics`, `service` and `projections`.
"""
