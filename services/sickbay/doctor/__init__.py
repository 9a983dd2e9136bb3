"""What is wrong with an installation, and what to do about it: for `sickbay doctor`, and `sickbay serve` as it starts.

finding.py   what a check finds, and what it looks at
servers.py   the NATS servers: version, TLS, copies, disk, clocks
streams.py   the streams and what their limits drop
services.py  the process that folds and writes, and its health
rights.py    what a NATS user may do
machine.py   files and the HTTP port of this machine
checks.py    the table of checks

May import the ground, `bus`, `log`, `control` and `projections`.
"""
