"""The services' process: its life cycle, questions over NATS, leases, samples for metrics, the event contract.

May import the ground, `bus`, `router`, `log`, `control`, `metrics`, `projector`, `historian`, `alerts`, `doctor`,
`prober` and `projections`.
"""
