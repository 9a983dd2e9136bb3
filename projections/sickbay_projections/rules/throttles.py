"""Throttles: rate limits and spent allowances -> throttle -> ramp (Rule 4.2)."""

from __future__ import annotations

from typing import Any, Final
from zlib import crc32

from sickbay_events.names import untoken
from sickbay_events.outcome import RETRY_AFTER_S_MAX

from ..state.limits import RuleLimits, grown_ms
from ..state.model import Hold, Node, ScopeState, Throttling, Witnesses
from . import holds, ramp, scopes, witnesses
from .context import FoldContext
from .rule import Rule

NAME: Final = "throttle"


def fold(case: FoldContext) -> None:
    """Fold one outcome: `state.throttling` and the holds `throttle` of a model and of its credential."""
    if case.queued_ms > case.limits.good_answer_ms:
        return
    for node in (case.node, case.node.credential):
        if node is None:
            continue
        if case.row.throttle == "ends":
            _answered(case, node)
        elif case.group != "neutral" and node.state.holds is not None:
            _tried(case, node)
    if case.row.throttle == "holds":
        _throttled(case, scopes.spoken_of(case))


def counted(state: ScopeState, at_ms: int, limits: RuleLimits) -> int:
    """Throttles in the window with no answer since."""
    slot = state.throttling
    return sum(1 for each_ms in slot.at_ms if at_ms < each_ms + limits.throttle_window_ms) if slot else 0


def trial_every_ms(hold: Hold, limits: RuleLimits) -> int:
    """How often a leased trial is wanted before the end of a long throttle; 0: never."""
    if hold.rule != NAME or hold.end_ms - hold.began_ms <= limits.throttle_trial_ms:
        return 0
    return limits.quota_trial_ms if hold.kind == "quota" else limits.throttle_trial_ms


def trial_from_ms(hold: Hold, limits: RuleLimits) -> int:
    """Log time from which the next one is wanted; 0: never."""
    every_ms = trial_every_ms(hold, limits)
    return (hold.trial_ms or hold.began_ms) + every_ms if every_ms else 0


def is_settled(state: ScopeState) -> bool:
    """Whether an answer that knows of the last throttle has nothing to clear, to end or to forget here."""
    past = (state.past or {}).get(NAME)
    return state.throttling is None and (past is None or not past.nth)


def _answered(case: FoldContext, node: Node) -> None:
    """An answer clears the count; one after the hold ends that, and with it the doubling."""
    state, slot = node.state, node.state.throttling
    if slot is not None:
        case.store.touch(node)
        if case.queued_ms <= case.limits.throttle_window_ms:
            slot.at_ms, slot.by = [], []
        if case.group == "success":
            witnesses.forget_like(slot.rate, case.replica)
            witnesses.forget_like(slot.quota, case.replica)
        _age(state, slot, case.now_ms, node.limits)
    hold, past = (state.holds or {}).get(NAME), (state.past or {}).get(NAME)
    if (hold is None and (past is None or not past.nth)) or not holds.is_after(case, NAME, state):
        return
    case.store.touch(node)
    if hold is not None:
        hold.nth = 0
        if case.now_ms < hold.end_ms:
            ramp.begin_ramp(case, node, NAME, hold.began_seq)
            holds.lift(case, node, hold)
    elif past is not None:
        past.nth = 0


def _tried(case: FoldContext, node: Node) -> None:
    """An early trial that was no answer: the next one is wanted a while later."""
    hold = (node.state.holds or {}).get(NAME)
    if hold is not None and holds.is_early_trial(case, node.state, hold):
        hold.trial_ms = case.now_ms
        case.changed(node)


def _throttled(case: FoldContext, node: Node) -> None:
    state, limits = node.state, node.limits
    hold = (state.holds or {}).get(NAME)
    if hold is not None and case.now_ms < hold.end_ms:
        hold.later += 1
        case.store.touch(node)
    if not holds.is_after(case, NAME, state):
        return
    if case.overlay:
        _hold(case, node, _own_ms(case, limits), {"throttles": 1, "replicas": 1})
        return
    is_quota = case.kind == "quota"
    if not is_quota and case.queued_ms > limits.throttle_window_ms:
        return
    slot = _count(case, node)
    seen = slot.quota if is_quota else slot.rate
    if hold is not None and case.now_ms < hold.end_ms:
        if _is_backed(case, node, seen):
            _hold(case, node, _fleet_ms(case, limits, max(1, hold.nth)), {"throttles": hold.count, "later": hold.later})
    elif _is_everyones(case, node, slot, seen):
        numbers = _numbers(slot, seen)
        _hold(case, node, _fleet_ms(case, limits, _nth(state)), numbers)
        # What one replica had alone is everyone's now; who has seen the like stays a witness of what comes.
        slot.at_ms, slot.by = [], []
        slot.rate, slot.quota = Witnesses(likes=slot.rate.likes), Witnesses(likes=slot.quota.likes)


def _count(case: FoldContext, node: Node) -> Throttling:
    """Take note of one throttle of this scope."""
    state, limits = node.state, node.limits
    if state.throttling is None:
        state.throttling = Throttling()
        case.store.invalidate_fast_path(node)
    slot = state.throttling
    case.store.touch(node)
    _age(state, slot, case.now_ms, limits)
    state.throttling = slot
    if case.queued_ms <= limits.throttle_window_ms:
        slot.at_ms.append(case.now_ms)
        slot.by.append(case.replica)
        kept = max(limits.throttle_answers, limits.throttle_answers_small)
        if len(slot.at_ms) > kept:
            slot.at_ms, slot.by = slot.at_ms[-kept:], slot.by[-kept:]
    witnesses.note_like(slot.quota if case.kind == "quota" else slot.rate, case.replica, case.now_ms)
    return slot


def _age(state: ScopeState, slot: Throttling, now_ms: int, limits: RuleLimits) -> None:
    """Drop what is too old to count, and the slot with the last of it."""
    late = 0
    for at_ms in slot.at_ms:  # the oldest in front
        if now_ms < at_ms + limits.throttle_window_ms:
            break
        late += 1
    if late:
        slot.at_ms, slot.by = slot.at_ms[late:], slot.by[late:]
    rate, quota = slot.rate, slot.quota
    if not witnesses.is_empty(rate):
        witnesses.age(rate, now_ms, limits)
    if not witnesses.is_empty(quota):
        witnesses.age(quota, now_ms, limits)
    if not slot.at_ms and witnesses.is_empty(rate) and witnesses.is_empty(quota):
        state.throttling = None


def _is_everyones(case: FoldContext, node: Node, slot: Throttling, seen: Witnesses) -> bool:
    """Whether the evidence holds the whole fleet; if it holds its one replica only, tells that."""
    second, names = witnesses.is_second(seen, case.replica), {case.replica}
    if case.kind != "quota":
        limits, count = node.limits, len(slot.at_ms)
        if not second and count < max(limits.throttle_answers, limits.throttle_answers_small):
            # Replicas are counted only where it depends on them.
            if count < min(limits.throttle_answers, limits.throttle_answers_small):
                return False
            small = case.store.heard(case.now_ms) < case.limits.ramp_replicas
            if count < (limits.throttle_answers_small if small else limits.throttle_answers):
                return False
        names = set(slot.by)
        # An answer in the window says that some calls pass, whoever confirms the limit.
        if scopes.has_good(case, node, node.limits.throttle_window_ms):
            return False
    if second or len(names) > 1 or _is_backed(case, node, seen):
        return True
    length_ms = _own_ms(case, node.limits)
    if witnesses.note_alone(seen, case.replica, case.now_ms, length_ms):
        case.held_alone(node, NAME, case.now_ms + length_ms, _numbers(slot, seen), case.replica, proof=False)
    return False


def _is_backed(case: FoldContext, node: Node, seen: Witnesses) -> bool:
    """Whether this replica's word counts for all: another saw the like, or none had a good answer lately."""
    return witnesses.has_second(seen, case.replica) or not scopes.any_other_good(case, node)


def _numbers(slot: Throttling, seen: Witnesses) -> dict[str, int]:
    return {"throttles": max(1, len(slot.at_ms)), "replicas": len(seen.likes.keys() | set(slot.by))}


def _nth(state: ScopeState) -> int:
    """Throttles double while nothing was answered in between, however long that is."""
    before = (state.holds or {}).get(NAME) or (state.past or {}).get(NAME)
    return before.nth + 1 if before is not None else 1


def _hint_ms(case: FoldContext, limits: RuleLimits) -> int:
    retry_s = case.event.retry_after_s
    if retry_s is not None and retry_s > 0:
        return max(1, round(min(retry_s, RETRY_AFTER_S_MAX) * 1000))
    return limits.quota_hint_ms if case.kind == "quota" else limits.hint_ms


def _cap_ms(case: FoldContext, limits: RuleLimits) -> int:
    return limits.quota_cap_ms if case.kind == "quota" else limits.throttle_cap_ms


def _own_ms(case: FoldContext, limits: RuleLimits) -> int:
    """How long it holds the replica that got it: a rate limit a little longer, so that replicas do not come as one."""
    length_ms = _hint_ms(case, limits)
    if case.kind != "quota":
        place = crc32(f"{case.replica_name} {case.seq}".encode("utf-8", "surrogatepass")) % 1001
        length_ms += length_ms * limits.hint_spread_percent * place // 100_000
    return min(length_ms, _cap_ms(case, limits))


def _fleet_ms(case: FoldContext, limits: RuleLimits, nth: int) -> int:
    return grown_ms(_hint_ms(case, limits), limits.throttle_growth_milli, nth, _cap_ms(case, limits))


def _hold(case: FoldContext, node: Node, length_ms: int, numbers: dict[str, int]) -> None:
    """A hold begins, or the end of the one that stands moves out; a shorter hint never shortens."""
    limits, end_ms = node.limits, case.now_ms + length_ms
    hold = (node.state.holds or {}).get(NAME)
    if hold is not None and case.now_ms < hold.end_ms:
        if end_ms > hold.end_ms:
            old_end_ms, hold.end_ms, hold.length_ms = hold.end_ms, end_ms, length_ms
            hold.kind, hold.status = case.kind, case.status
            hold.shown_over_ms = holds.over_ms(hold, limits)
            case.held(node, hold, numbers, old_end_ms)
        return
    holds.begin(
        case,
        node,
        NAME,
        length_ms,
        numbers,
        count=numbers["throttles"],
        nth=1 if case.overlay else _nth(node.state),
        proof=False,
        # A gate's own fold has no ramp: it is one replica.
        ramp_ms=0 if case.overlay else limits.ramp_step_ms * len(limits.ramp_percents),
    )


def _clear(state: ScopeState) -> None:
    state.throttling = None


def _step_back(node: Node, now_ms: int) -> None:
    slot = node.state.throttling
    if slot is not None:
        slot.at_ms = [min(at_ms, now_ms) for at_ms in slot.at_ms]
        for seen in (slot.rate, slot.quota):
            witnesses.step_back(seen, now_ms, _longest_ms(node.limits))


def _document(node: Node, state: ScopeState, at_ms: int) -> dict[str, Any]:
    slot = state.throttling
    alone = [
        untoken(seen.alone)
        for seen in ((slot.rate, slot.quota) if slot is not None else ())
        if seen.alone is not None and at_ms < seen.alone_end_ms
    ]
    return {"throttles": counted(state, at_ms, node.limits), "throttle_held_alone": alone}


def _longest_ms(limits: RuleLimits) -> int:
    return max(limits.throttle_cap_ms, limits.quota_cap_ms)


def _is_owed(case: FoldContext) -> bool:
    """Whether an answer has something to clear, to end or to forget."""
    wide = case.node.credential
    return not (is_settled(case.state) and (wide is None or is_settled(wide.state)))


def _concerns(case: FoldContext) -> bool:
    return case.group == "throttle" or (case.row.throttle == "ends" and _is_owed(case))


def _take_back(case: FoldContext) -> None:
    if _is_owed(case):
        fold(case)


RULE: Final = Rule(
    name=NAME,
    clear=_clear,
    step_back=_step_back,
    document=_document,
    cap_ms=_longest_ms,
    concerns=_concerns,
    fold=fold,
    take_back=_take_back,
)
