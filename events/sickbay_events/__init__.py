"""What happened, as it looks on the wire: names, events, kinds, policy. Pure."""

from __future__ import annotations

from .classify import classify, judge_output
from .codec import decode, derived_subject, encode, outcome_subject, override_subject, probe_subject, read_subject
from .derived import DerivedEvent, HealthChanged, Released, TargetHeld, WarningRaised
from .errors import EventError, NameRefused, Poison, PolicyRefused, TokenRefused
from .kinds import KINDS, Kind, ScopeName
from .names import Scope, Target, provider_of, token, untoken
from .outcome import (
    CallAnswered,
    CallOutcome,
    CallsRefused,
    Event,
    Lease,
    Override,
    PolicyChanged,
    ProbeResult,
    Skipped,
)
from .policy import Policy
from .times import parse_rfc3339, rfc3339
from .verdict import Verdict
from .view import Checkpoint, Decision, GateEntry

__all__ = [
    "KINDS",
    "CallAnswered",
    "CallOutcome",
    "CallsRefused",
    "Checkpoint",
    "Decision",
    "DerivedEvent",
    "Event",
    "EventError",
    "GateEntry",
    "HealthChanged",
    "Kind",
    "Lease",
    "NameRefused",
    "Override",
    "Poison",
    "Policy",
    "PolicyChanged",
    "PolicyRefused",
    "ProbeResult",
    "Released",
    "Scope",
    "ScopeName",
    "Skipped",
    "Target",
    "TargetHeld",
    "TokenRefused",
    "Verdict",
    "WarningRaised",
    "classify",
    "decode",
    "derived_subject",
    "encode",
    "judge_output",
    "outcome_subject",
    "override_subject",
    "parse_rfc3339",
    "probe_subject",
    "provider_of",
    "read_subject",
    "rfc3339",
    "token",
    "untoken",
]
