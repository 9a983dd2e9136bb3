"""After a hold replicas come back by shares of a ring, so that nothing recovers in a herd (SPEC 5.2)."""

from __future__ import annotations

from zlib import crc32

from sickbay_events.view import RampView

from ..state.model import Node, Ramp, ScopeState
from .context import FoldContext


def begin_ramp(case: FoldContext, node: Node, rule: str, began_seq: int) -> None:
    """A ramp of this scope begins now. An overlay has none: it is one replica."""
    if not case.overlay:
        length_ms = node.limits.ramp_step_ms * len(node.limits.ramp_percents)
        node.state.ramp = Ramp(rule=rule, began_seq=began_seq, from_ms=case.now_ms, end_ms=case.now_ms + length_ms)


def is_on(case: FoldContext, state: ScopeState, rule: str) -> bool:
    """Whether the scope is in the ramp after a hold of this rule: small fleets have none."""
    ramp = state.ramp
    if ramp is None or ramp.rule != rule or not ramp.from_ms <= case.now_ms < ramp.end_ms:
        return False
    return case.store.heard(case.now_ms) >= case.limits.ramp_replicas


def view(node: Node) -> RampView | None:
    """The ramp as a gate needs it; none where its rule is in shadow.

    A hold that ends into a ramp by time alone says so from its beginning.
    """
    ramps = [node.state.ramp] if node.state.ramp is not None else []
    for hold in (node.state.holds or {}).values():
        if hold.ramp_ms:
            end_ms = hold.end_ms + hold.ramp_ms
            ramps.append(Ramp(rule=hold.rule, began_seq=hold.began_seq, from_ms=hold.end_ms, end_ms=end_ms))
    ramps = [ramp for ramp in ramps if ramp.rule not in node.limits.shadowed]
    if not ramps:
        return None
    ramp = max(ramps, key=lambda ramp: ramp.end_ms)
    return RampView(
        began_seq=ramp.began_seq,
        from_ms=ramp.from_ms,
        end_ms=ramp.end_ms,
        rule=ramp.rule,
        percents=node.limits.ramp_percents,
        replicas=node.limits.ramp_replicas,
    )


def in_from_ms(ramp: RampView, replica: str) -> int:
    """Log time from which this replica is in: the first step that reaches its place in the ring, or the end."""
    place = crc32(f"{replica} {ramp.began_seq}".encode("utf-8", "surrogatepass"))
    step_ms = (ramp.end_ms - ramp.from_ms) // max(1, len(ramp.percents))
    for step, percent in enumerate(ramp.percents):
        if place * 100 < percent << 32:
            return ramp.from_ms + step * step_ms
    return ramp.end_ms
