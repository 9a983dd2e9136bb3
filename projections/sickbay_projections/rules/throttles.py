"""Throttles: rate limits and spent allowances -> throttle -> ramp (Rule 4.2)."""

from __future__ import annotations

from typing import Final
from zlib import crc32

from ..state import points
from ..state.limits import RuleLimits, grown_ms
from ..state.model import Hold, Node
from . import holds, scopes, scoring
from .context import FoldContext
from .rule import Rule
from .scoring import Evidence

NAME: Final = "throttle"


class _Throttles(Evidence):
    is_ramped = True
    is_shared = True  # a limit that one replica meets is its own pace, and no fault of its machine

    def length_ms(self, case: FoldContext, node: Node, nth: int) -> int:
        limits = node.limits
        wait_ms = _stated_ms(case, limits) or limits.hint_ms
        return grown_ms(wait_ms, limits.throttle_growth_milli, nth, _cap_ms(case, limits))

    def wait_ms(self, case: FoldContext, node: Node, nth: int, distance_ms: int) -> int:
        limits = node.limits
        most_ms = limits.quota_trial_ms if case.kind == "quota" else limits.throttle_trial_ms
        stated_ms = min(_stated_ms(case, limits), most_ms)
        return stated_ms if nth == 1 and stated_ms else max(stated_ms, distance_ms)

    def settle(self, case: FoldContext, node: Node, hold: Hold) -> None:
        """It was paced, not ill: what was a mistake is remembered at once, and nothing else is left of it."""
        points.drop(node.state, self.name)
        if hold.nth == 1 and hold.score and hold.kind != "quota":
            failures = hold.score // self.scoring(node.limits).weight
            points.remember(scoring.slot_of(node.state, self.name), failures, case.now_ms, node.limits)


THROTTLES: Final = _Throttles("throttles", NAME, lambda limits: limits.throttles)


def fold(case: FoldContext) -> None:
    """Fold one outcome: it speaks of the model or of its credential, and an answer of both."""
    spoken_of = scopes.spoken_of(case) if case.row.throttles == "failure" else None
    for node in (case.node, case.node.credential):
        if node is None:
            continue
        if case.row.throttles == "answer":
            scoring.answered(case, node, THROTTLES)
        elif node is spoken_of:
            _throttled(case, node)
        else:
            scoring.told_nothing(case, node, THROTTLES)


def _throttled(case: FoldContext, node: Node) -> None:
    if case.overlay:
        _hold_own(case, node)
        return
    limits, is_quota = node.limits, case.kind == "quota"
    stated_ms = _stated_ms(case, limits)
    is_named = bool(stated_ms) and case.event.scope == "credential" and node.scope.model is None
    scoring.failed(
        case,
        node,
        THROTTLES,
        least=limits.needed_named if is_named else 0,
        most=1 if is_quota else 0,
        life_ms=max(limits.throttle_window_ms, stated_ms),
        is_everyones=is_named and not is_quota,
    )


def _hold_own(case: FoldContext, node: Node) -> None:
    """A replica that got one waits by itself: a rate limit a little longer, so that replicas do not come as one."""
    limits, hold = node.limits, (node.state.holds or {}).get(NAME)
    if not holds.is_after(case, NAME, node.state):
        return
    if hold is not None and case.now_ms < hold.end_ms:
        hold.later += 1
        case.store.touch(node)
        return
    length_ms = _stated_ms(case, limits) or limits.hint_ms
    if case.kind != "quota":
        place = crc32(f"{case.replica_name} {case.seq}".encode("utf-8", "surrogatepass")) % 1001
        length_ms += length_ms * limits.hint_spread_percent * place // 100_000
    length_ms = min(length_ms, _cap_ms(case, limits))
    holds.begin(case, node, NAME, length_ms, {"failures": 1, "replicas": 1, "n": 1}, count=1, proof=False)


def _stated_ms(case: FoldContext, limits: RuleLimits) -> int:
    """How long the answer says to wait; 0: it does not say. A spent allowance that does not has a time of its own."""
    stated_ms = min(scoring.retry_after_ms(case), _cap_ms(case, limits))
    return stated_ms or (limits.quota_hint_ms if case.kind == "quota" else 0)


def _cap_ms(case: FoldContext, limits: RuleLimits) -> int:
    return limits.quota_cap_ms if case.kind == "quota" else limits.throttle_cap_ms


def _take_back(case: FoldContext) -> None:
    scoring.take_off(case, case.node, THROTTLES)
    if case.node.credential is not None:
        scoring.take_off(case, case.node.credential, THROTTLES)


RULE: Final = Rule(
    name=NAME,
    evidence=(THROTTLES,),
    cap_ms=lambda limits: max(limits.throttle_cap_ms, limits.quota_cap_ms),
    concerns=lambda case: case.row.throttles != "none",
    fold=fold,
    take_back=_take_back,
)
