"""Holds of the breaker, of a model or wider: how long they are, how they open and close (Rule 4.3)."""

from __future__ import annotations

from zlib import crc32

from ..state.limits import grown_ms
from ..state.model import Hold, Node
from . import holds, ramp
from .context import FoldContext

NAME = "breaker"


def breaker_hold(node: Node | None) -> Hold | None:
    """The breaker's hold of a scope, before its end or on probation."""
    return (node.state.holds or {}).get(NAME) if node is not None else None


def is_trial(case: FoldContext, hold: Hold) -> bool:
    """Whether a fault now is one of this hold's trial: after its end, under its lease.

    An overlay's calls are all its one replica's: there is nobody to lease a trial against.
    """
    return case.now_ms >= hold.end_ms and (case.overlay or holds.is_leased(case, NAME, hold.began_seq))


def open_ms(case: FoldContext, node: Node, nth: int) -> int:
    """Length of the `nth` hold in a row that begins at this event; a longer Retry-After wins."""
    limits, retry_s = node.limits, case.event.retry_after_s
    length = grown_ms(limits.breaker_ms, limits.breaker_growth_milli, nth, limits.breaker_cap_ms)
    place = crc32(f"{node.key} {case.seq}".encode()) % 2001 - 1000
    length += length * place * limits.jitter_percent // 100_000
    if retry_s is not None and retry_s > 0:
        length = max(length, round(min(retry_s * 1000, limits.retry_after_cap_ms)))
    return max(1, length)


def begin_open(case: FoldContext, node: Node, count: int, numbers: dict[str, int]) -> None:
    """The breaker of this scope opens, or opens again. What it rests on is used up."""
    state = node.state
    nth = holds.nth(state, NAME, case.now_ms, node.limits)
    long_ms = open_ms(case, node, nth)
    state.window = state.faults = state.ramp = None
    holds.begin(case, node, NAME, long_ms, numbers, count=count, nth=nth)


def close(case: FoldContext, node: Node, hold: Hold, *, ring_seq: int, by: str = "success") -> None:
    """A success after the hold closes it into a ramp, and the window begins anew."""
    node.state.window = node.state.faults = None
    ramp.begin_ramp(case, node, NAME, ring_seq)
    holds.lift(case, node, hold, by)
