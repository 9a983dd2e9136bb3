"""What follows from the events. Pure."""
