"""What single replicas keep themselves from: their own holds, of which the fleet has none (Rule 5.3).

A gate says each minute how many calls it kept away, and until when if the hold is its own. That is no evidence: it
changes no rule and is no part of the state, its digest or its snapshots. A fold that begins anew hears it again.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sickbay_events.names import untoken
from sickbay_events.outcome import CallsRefused
from sickbay_events.times import rfc3339

SAID_MS: Final = 150_000
"""Who still keeps calls away says so each minute; what was said longer ago is over."""
ALONE_MAX: Final = 2_000
"""Holds that are remembered; of more the one that was not spoken of for the longest time is forgotten."""


class AloneHold(NamedTuple):
    """One replica's own hold of a target, by one rule."""

    scope: str
    """Scope key of the target."""
    replica: str
    rule: str
    end_ms: int
    calls: int
    """Calls that it kept away in the minute it told of last."""
    said_ms: int
    """Log time of that word."""
    seq: int


class HeldAlone:
    """The holds of all replicas that are their own."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str, str], AloneHold] = {}

    def note(self, scope: str, replica: str, event: CallsRefused, seq: int, now_ms: int) -> None:
        """A replica said that it kept calls away. `replica` is its token."""
        name = scope, replica, event.rule
        self._held.pop(name, None)
        if event.alone_until_ms is None:
            return
        self._held[name] = AloneHold(
            scope, untoken(replica), event.rule, event.alone_until_ms, event.count, now_ms, seq
        )
        if len(self._held) > ALONE_MAX:
            del self._held[next(iter(self._held))]

    def standing(self, at_ms: int) -> list[AloneHold]:
        """All that stand at a log time as their replicas said, in the order in which they were last spoken of."""
        return [one for one in self._held.values() if at_ms < min(one.end_ms, one.said_ms + SAID_MS)]


def alone_fact(one: AloneHold, at_ms: int) -> dict[str, Any]:
    """One of them as plain data, at a log time."""
    return {
        "replica": one.replica,
        "rule": one.rule,
        "end_ms": one.end_ms,
        "until": rfc3339(one.end_ms),
        "left_s": (one.end_ms - at_ms) / 1000,
        "calls": one.calls,
        "said_ms": one.said_ms,
        "seq": one.seq,
    }
