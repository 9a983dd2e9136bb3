"""A fleet of routers in virtual time, measured against each router for itself and against what others do.

What decides is the product's own: the cluster's fold, the gate with its overlay, leases and their services, the
classifier. What is modelled is the world around it: providers, the load, the log and the network's delays; and rivals.
"""
