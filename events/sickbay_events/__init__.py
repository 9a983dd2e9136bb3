"""What happened, as it looks on the wire: names, events, kinds, policy. Pure."""
