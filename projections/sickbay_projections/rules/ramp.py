"""After a hold replicas come back by shares of a ring, so that nothing recovers in a herd (Rule 5.2)."""

from __future__ import annotations

from zlib import crc32

from sickbay_events.names import untoken
from sickbay_events.view import RampView

from ..state.model import Hold, Node, Ramp
from .context import FoldContext


def begin_ramp(case: FoldContext, node: Node, hold: Hold, ring_seq: int) -> None:
    """The ramp after this hold begins now: a part of the time the scope was held. An overlay has none: it is one
    replica."""
    limits = node.limits
    length_ms = min(limits.ramp_max_ms, (case.now_ms - hold.first_ms) // limits.ramp_part)
    if not case.overlay and length_ms:
        node.state.ramp = Ramp(
            rule=hold.rule,
            began_seq=ring_seq,
            from_ms=case.now_ms,
            end_ms=case.now_ms + length_ms,
            prover=case.replica,
        )


def view(node: Node) -> RampView | None:
    """The ramp as a gate needs it; none where its rule is in shadow."""
    ramp = node.state.ramp
    if ramp is None or ramp.rule in node.limits.shadowed:
        return None
    return RampView(
        began_seq=ramp.began_seq,
        from_ms=ramp.from_ms,
        end_ms=ramp.end_ms,
        rule=ramp.rule,
        percents=node.limits.ramp_percents,
        replicas=node.limits.ramp_replicas,
        prover=untoken(ramp.prover),
    )


def in_from_ms(ramp: RampView, replica: str) -> int:
    """Log time from which this replica is in: the first step that reaches its place in the ring, or the end."""
    if replica == ramp.prover:
        return ramp.from_ms
    place = crc32(f"{replica} {ramp.began_seq}".encode("utf-8", "surrogatepass"))
    step_ms = (ramp.end_ms - ramp.from_ms) // max(1, len(ramp.percents))
    for step, percent in enumerate(ramp.percents):
        if place * 100 < percent << 32:
            return ramp.from_ms + step * step_ms
    return ramp.end_ms
