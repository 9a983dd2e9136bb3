"""Holds of the breaker, of a model or wider: how long they are, how they close (Rule 4.3)."""

from __future__ import annotations

from typing import Final
from zlib import crc32

from ..state.limits import grown_ms
from ..state.model import Hold, Node
from . import scoring
from .context import FoldContext
from .scoring import Evidence

NAME: Final = "breaker"


class _Faults(Evidence):
    is_ramped = True

    def length_ms(self, case: FoldContext, node: Node, nth: int) -> int:
        """Length of the `nth` hold that begins at this event; a longer Retry-After wins."""
        limits = node.limits
        length = grown_ms(limits.breaker_ms, limits.breaker_growth_milli, nth, limits.breaker_cap_ms)
        place = crc32(f"{node.key} {case.seq}".encode()) % 2001 - 1000
        length += length * place * limits.jitter_percent // 100_000
        return max(1, length, min(scoring.retry_after_ms(case), limits.retry_after_cap_ms))


FAULTS: Final = _Faults("faults", NAME, lambda limits: limits.faults)
SLOW: Final = _Faults("slow", NAME, lambda limits: limits.slow)


def breaker_hold(node: Node | None) -> Hold | None:
    """The breaker's hold of a scope, before its end or on probation."""
    return (node.state.holds or {}).get(NAME) if node is not None else None


def evidence_of(hold: Hold | None) -> Evidence:
    """What a hold rests on; faults where none stands."""
    return SLOW if hold is not None and hold.evidence == SLOW.name else FAULTS


def close(case: FoldContext, node: Node, hold: Hold, *, by: str = "success", ring_seq: int = 0) -> None:
    """A success after the hold closes it into a ramp."""
    node.state.fault_ms = 0
    scoring.end_hold(case, node, hold, evidence_of(hold), by=by, ring_seq=ring_seq)
