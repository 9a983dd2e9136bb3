"""The services' process: its life cycle, questions over NATS, leases, samples for metrics, the event contract.

May import the ground, `bus`, `log`, `control`, `projector`, `historian`, `alerts`, `prober`, `doctor` and `metrics`.
"""
