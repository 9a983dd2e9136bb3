"""The options of a call along a chain of targets, and its result (Rule 5.4)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, Generic, Literal, TypedDict, TypeVar

import msgspec

from sickbay_events import Decision, Skipped, Target

from ..invalid import InvalidValue
from .budget import check_seconds
from .errors import Reason, Tried

T_co = TypeVar("T_co", covariant=True)

NO_FALLBACK: Final[Any] = object()
"""No fallback was given: the answer is required."""


class CallOptions(TypedDict, total=False):
    """The options of a call, beside its targets, its function and a fallback."""

    budget_s: float
    """Seconds for the whole chain, waiting included; default 120."""
    attempt_s: float
    """Seconds for one attempt at most; default 60. An attempt never gets more than an equal share of the time left."""
    wait_s: float
    """Seconds to wait for the soonest release if nothing is allowed; default 0."""
    forced: Literal["never", "one"]
    """`one`: if nothing is allowed, call the least bad target all the same, within the bounds of Rule 5.4."""
    route: str | None
    """Which chain this is, for the outcomes and the log."""
    at_hand: Any
    """A value from a cache: it is the answer, and nothing is called or counted."""
    prompt_ascii: bool | None
    client_capped: bool | None
    request_hash: str | None
    """These three as `Sickbay.attempt` takes them."""


class ChainLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`CallOptions`, checked. Raises a `ValueError` that names the field and the accepted form."""

    budget_s: float = 120.0
    attempt_s: float = 60.0
    wait_s: float = 0.0
    forced: str = "never"
    route: str | None = None
    at_hand: Any = None
    prompt_ascii: bool | None = None
    client_capped: bool | None = None
    request_hash: str | None = None

    def __post_init__(self) -> None:
        """Check."""
        check_seconds("budget_s", self.budget_s, least_s=0.001)
        check_seconds("attempt_s", self.attempt_s, least_s=0.001)
        check_seconds("wait_s", self.wait_s, least_s=0.0)
        if self.forced not in ("never", "one"):
            raise InvalidValue("forced", self.forced, "'never' or 'one'")


class CallResult(msgspec.Struct, Generic[T_co], frozen=True, kw_only=True):
    """The value that a call gave, the target that gave it, and what happened on the way.

    value      the answer, or the fallback
    target     the target that answered; None for a fallback and for a value at hand
    rank       which choice that was, 0 = first
    degraded   whether the value is the fallback
    reason     why it is: a word of `Reason`, empty for an answer
    skipped    candidates that were not called, with why
    attempts   a `Tried` for each call; if there is an answer, the last one gave it
    """

    value: T_co
    target: Target | None = None
    rank: int = 0
    degraded: bool = False
    reason: Reason | Literal[""] = ""
    forced: bool = False
    skipped: tuple[Skipped, ...] = ()
    attempts: tuple[Tried, ...] = ()

    @property
    def provider(self) -> str:
        """Which provider answered; empty for a fallback."""
        return self.target.provider if self.target is not None else ""

    @property
    def model(self) -> str:
        """Which model answered; empty for a fallback."""
        return self.target.model if self.target is not None else ""

    @property
    def failed_over(self) -> bool:
        """Whether it was not the first choice that answered."""
        return self.target is not None and self.rank > 0


class Usable(list[Target]):
    """The targets that may be called now, in the order they were given.

    skipped      the others, with why
    retry_in_s   seconds until the soonest release of one of those; None if none is held
    """

    def __init__(self, decided: Iterable[tuple[Target, Decision]]) -> None:
        self.skipped: list[Skipped] = []
        self.retry_in_s: float | None = None
        for target, decision in decided:
            if decision.allowed:
                self.append(target)
            else:
                self.skipped.append(Skipped(target.provider, target.model, decision.reason))
                self.retry_in_s = min(self.retry_in_s or math.inf, decision.retry_in_s)
