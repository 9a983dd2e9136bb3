"""What a router's side raises. On a request path that is only `Held`, and `Exhausted` at the end of a chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from sickbay_events import Decision, Skipped, Target

Reason: TypeAlias = Literal[
    "no_chain", "failed", "nothing_allowed", "out_of_time", "budget_spent", "truncated", "error", "at_hand"
]
"""Why no candidate gave the value, in this order: the chain is empty; all attempts failed; all candidates are held; the
chain's time is over; a budget around it is spent; a stream was cut after its first content; the call itself was wrong;
the caller had the value at hand."""


class SickbayError(Exception):
    """Base of the exceptions that a router's side defines."""


class Held(SickbayError):
    """The target may not be called now.

    Attributes: `target`, `decision` (why, by which rule and scope), `retry_in_s` (seconds left).
    """

    def __init__(self, target: Target, decision: Decision) -> None:
        self.target, self.decision = target, decision
        self.retry_in_s = decision.retry_in_s
        super().__init__(
            f"{target.provider} / {target.model} is held ({decision.reason}, {decision.scope}), "
            f"{decision.retry_in_s:.1f} s left"
        )


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a chain that gave no answer, or the one that did."""

    target: Target
    rank: int
    """Which choice it was, 0 = first."""
    kind: str
    """As an outcome's."""
    status: int | None = None
    """HTTP status, None if there was no answer."""
    text: str = ""
    """What the provider or the client library said of the failure: redacted, at most 200 characters."""
    took_s: float = 0.0
    limit_s: float = 0.0
    """The time it was given."""
    forced: bool = False

    def __str__(self) -> str:
        """As one line of a list of attempts."""
        status = "no status" if self.status is None else str(self.status)
        said = f": {self.text}" if self.text else ""
        how = ", forced" if self.forced else ""
        return f"{self.target.provider} / {self.target.model} {status} {self.kind} in {self.took_s:.1f} s{how}{said}"


class Exhausted(SickbayError):
    """No candidate of a chain gave an answer.

    Attributes: `reason` (a word of `Reason`), `attempts` (a `Tried` each, in order), `last` (the last of them, or
    None), `skipped` (candidates that were not called, with why), `retry_in_s` (until the soonest release; None if none
    is held).
    The exception of the last attempt, if it raised one, is its cause.
    """

    def __init__(
        self, reason: Reason, attempts: Sequence[Tried], skipped: Sequence[Skipped], retry_in_s: float | None = None
    ) -> None:
        self.reason: Reason = reason
        self.attempts, self.skipped, self.retry_in_s = tuple(attempts), tuple(skipped), retry_in_s
        self.last = self.attempts[-1] if self.attempts else None
        parts = [f"no candidate answered ({reason})"]
        parts += [f"{n}. {tried}" for n, tried in enumerate(self.attempts, 1)]
        parts += [f"skipped {one.provider} / {one.model}: {one.reason}" for one in self.skipped]
        if self.last is not None:
            parts.append(f"last was {self.last.target.provider} / {self.last.target.model}")
        if retry_in_s is not None:
            parts.append(f"the soonest release is in {retry_in_s:.1f} s")
        super().__init__("; ".join(parts))
