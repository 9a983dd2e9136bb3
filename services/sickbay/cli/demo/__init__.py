"""The demonstration: real processes on one machine, and a table measured in that run."""
