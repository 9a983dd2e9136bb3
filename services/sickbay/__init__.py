"""Which (provider, model) may be called: one lesson for the whole fleet. What a router imports."""

from __future__ import annotations

from sickbay_events import CallOutcome, Decision, Policy, Target, Verdict, classify, judge_output, provider_of

from .attempt import Attempt
from .bodies import read_error_body
from .budget import Budget, budget
from .chain import Answer
from .client import Sickbay, connect
from .errors import Exhausted, Held, SickbayError

__all__ = [
    "Answer",
    "Attempt",
    "Budget",
    "CallOutcome",
    "Decision",
    "Exhausted",
    "Held",
    "Policy",
    "Sickbay",
    "SickbayError",
    "Target",
    "Verdict",
    "budget",
    "classify",
    "connect",
    "judge_output",
    "provider_of",
    "read_error_body",
]
