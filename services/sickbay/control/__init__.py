"""What is stored once and acknowledged: operators' acts (hold, allow, clear) and policies on the control stream, plain
publishers' outcomes and probe results on the log; and how far the log's copy of the control stream lags behind.

acts.py       an act, an outcome or a probe result, and whether an act is in force
policies.py   the policy: read, compared and set
lag.py        acts that NATS has not passed on to the log

May import the ground and `bus`.
"""
