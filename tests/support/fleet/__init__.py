"""A fleet of routers in virtual time, to be measured against the same routers each for itself.

What decides is the product's own: the cluster's fold, the gate with its overlay, leases and their services, the
classifier. What is modelled is the world around it: providers, the load, the log and the network's delays.
"""
