"""Files for NATS: accounts and their rights, certificates, server configuration, a compose file.

May import the ground and `bus`.
"""
