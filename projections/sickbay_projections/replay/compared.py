"""What a comparison of two policies finds, as values: for the terminal, for JSON and for the page."""

from __future__ import annotations

from typing import Final

import msgspec

from .estimate import Share, Unanswered

SPELLS_SHOWN: Final = 500
"""Holds of one scope and side that a result lists; all are counted."""


class ComparedHold(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One hold as a result shows it, times in milliseconds; `to_ms` is cut at the last event."""

    rule: str
    began_seq: int
    from_ms: int
    to_ms: int
    kind: str | None = None
    numbers: dict[str, int] = {}
    by: str | None = None
    """What ended it before its end."""


class ComparedCalls(msgspec.Struct, kw_only=True):
    """Calls of the history that a world would have kept back, by what came of them."""

    dead: int = 0
    """They failed: spared."""
    good: int = 0
    """They were answered: the cost."""
    neutral: int = 0
    """They say nothing of the target: the caller's own fault."""
    unsure: int = 0
    """Of all of them: their length is unknown, so they may have begun before the hold."""

    @property
    def all(self) -> int:
        """Every one."""
        return self.dead + self.good + self.neutral

    def add(self, group: str, *, unsure: bool) -> None:
        """One more."""
        if group == "success":
            self.good += 1
        elif group == "neutral":
            self.neutral += 1
        else:
            self.dead += 1
        self.unsure += unsure


class Part(msgspec.Struct, kw_only=True):
    """One world's part in a scope, or in everything."""

    name: str
    holds: int = 0
    held_ms: int = 0
    """Time under at least one hold; summed over scopes where it is everything's."""
    rules: dict[str, int] = {}
    """Holds by rule."""
    calls: ComparedCalls
    kept_back: Share
    """Good ones among the calls that tell good from dead: the rate at which this policy errs."""
    also_refused: int = 0
    """Calls that the recorded history refused, and this world too."""
    let_through: Unanswered
    """Calls that the recorded history refused and this world would have made: they have no outcome."""


class ComparedScope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A scope where at least one world held something or kept something back."""

    scope: str
    provider: str
    model: str | None
    parts: tuple[Part, Part]
    holds: tuple[list[ComparedHold], list[ComparedHold]]
    """At most 500 a side."""
    traffic: list[tuple[int, int, int, int]] = []
    """Bucket (its beginning in milliseconds), good, dead and neutral calls; empty for a wider scope."""


class FirstDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The first event from which the worlds conclude different things."""

    seq: int
    time_ms: int
    event: str
    """Its kind, or its type."""
    status: int | None
    replica: str
    scope: str
    provider: str
    model: str | None
    says: tuple[list[str], list[str]]
    """What each concludes from it."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a comparison found."""

    events: int
    calls: int
    first_seq: int
    last_seq: int
    from_ms: int
    to_ms: int
    refused: int
    """Calls that the history itself says were refused."""
    parts: tuple[Part, Part]
    first_difference: FirstDifference | None
    rows: list[ComparedScope]
    bucket_ms: int
