"""The bus: how Sickbay talks to NATS. Router side modules import nats-py, msgspec and the standard library only."""
