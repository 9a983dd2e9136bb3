"""What must be so once all is at rest: the view and the derived events are those of a replay (Rule 7)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from sickbay.bus.topology import GATE_PREFIX, GATE_STREAM
from sickbay_events import (
    GateEntry,
)
from sickbay_projections import Fleet

from .server import Server, Stream
from .walk import Walk

if TYPE_CHECKING:
    pass


class Broken(AssertionError):
    """A rule does not hold."""


def view_fault(server: Server, fleet: Fleet, now_ms: int) -> str:
    """How the bucket differs from what a replay of the log says, in what counts still; "" if it does not."""
    standing = server.standing(GATE_STREAM, GATE_PREFIX) if GATE_STREAM in server.streams else {}
    found = {k: msgspec.json.decode(m.payload, type=GateEntry) for k, m in standing.items() if not k.startswith("=.")}
    said, wanted = _what_counts(found, now_ms), _what_counts(dict(fleet.entries()), now_ms)
    for key in said.keys() | wanted.keys():
        if said.get(key) != wanted.get(key):
            return f"{key} stands as {said.get(key)!r}, a replay says {wanted.get(key)!r}"
    return ""


def _what_counts(entries: dict[str, GateEntry], now_ms: int) -> dict[str, tuple[Any, ...]]:
    """What a gate makes of these now: what has ended says nothing, however it is written."""
    at_ms = now_ms + 1_000
    told = {}
    for key, entry in entries.items():
        if entry.expires_ms > at_ms:
            holds = [hold for hold in entry.holds if max(hold.end_ms, hold.over_ms) > at_ms]
            allow = entry.allow if entry.allow is not None and entry.allow.end_ms > at_ms else None
            ramp = entry.ramp if entry.ramp is not None and entry.ramp.end_ms > at_ms else None
            if holds or allow or ramp or entry.cleared_seq:
                told[key] = (holds, allow, ramp, entry.cleared_seq)
    return told


def derived_fault(told: Stream, walk: Walk, *, log_changed: bool) -> str:
    """How the derived events differ from what a replay of the log derives; "" if they do not.

    What was caused by lost events is told apart from what their sequences caused later by time alone, so with a clock
    that stepped back as well nothing is said of those.
    """
    bodies = [msgspec.json.decode(message.payload) for message in told.messages.values()]
    # After a loss sequences are given again, and with them names; the times differ.
    ids = [body["id"] for body in bodies]
    twice = Counter((body["id"], body["time_ms"] if log_changed else 0) for body in bodies)
    if max(twice.values(), default=1) > 1:
        return f"derived events stand twice: {[one for one, count in twice.items() if count > 1][:3]}"
    if not log_changed:
        if ids != walk.derived:
            missing, more = [i for i in walk.derived if i not in ids], [i for i in ids if i not in walk.derived]
            return f"derived events are not those of a replay: missing {missing[:3]}, more {more[:3]}, or the order"
        return ""
    missing = [one for one in walk.derived if one not in set(ids)]
    return f"derived events are missing: {missing[:3]}" if missing and not walk.stepped_back else ""
