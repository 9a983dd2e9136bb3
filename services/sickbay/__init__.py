"""Which (provider, model) may be called: one lesson for the whole fleet. What a router imports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sickbay_events import CallOutcome, Decision, Policy, Target, Verdict, classify, judge_output, provider_of

from .router.attempt import Attempt
from .router.bodies import read_error_body
from .router.budget import Budget, budget
from .router.chain import CallResult
from .router.client import Sickbay, connect
from .router.errors import Exhausted, Held, SickbayError
from .router.hooks import Hook

__version__: str
"""The version of the installed distribution; read when it is first asked for."""

__all__ = [
    "Attempt",
    "Budget",
    "CallOutcome",
    "CallResult",
    "Decision",
    "Exhausted",
    "Held",
    "Hook",
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


if not TYPE_CHECKING:  # a type checker would take any attribute for granted

    def __getattr__(name: str) -> Any:
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import version

        globals()[name] = found = version("sickbay")
        return found
