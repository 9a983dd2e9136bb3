"""Degraded output -> a hold of the model, or of the host for damaged encoding -> probation (Rule 4.4).

Held like a breaker: 30 s doubling to 10 min, to the millisecond (a hold of one fleet needs no jitter: what keeps
its end from being a herd are the leases of its trials).
"""

from __future__ import annotations

from typing import Any, Final

from sickbay_events.names import untoken

from ..state import buckets
from ..state.limits import grown_ms
from ..state.model import Bad, Hold, Node, ScopeState, Witnesses
from . import holds, samples, witnesses
from .context import FoldContext
from .rule import Rule
from .samples import SEVERAL, SampleShare, Says

NAME: Final = "degraded"


def fold(case: FoldContext) -> None:
    """Fold one outcome: the samples of its target, and the holds `degraded` of model and host."""
    if not case.is_attempt or case.queued_ms > case.limits.samples_ms:
        return
    node, host, says = case.node, case.node.host, samples.says(case)
    for bad in (node.state.bad, node.state.damage, host.state.damage if host is not None else None):
        if bad is not None and not witnesses.is_empty(bad.witnesses):
            witnesses.age(bad.witnesses, case.now_ms, case.limits)
    # The model's own output says nothing of its host.
    is_hosts = (
        host is not None
        and host.state.holds is not None
        and _on_hold(case, host, "unchecked" if says == "bad" else says)
    )
    if node.state.holds is not None and _on_hold(case, node, says):
        return
    if says == "clean":
        _clean(case)
    elif says == "bad" or (says == "damage" and not is_hosts):
        _bad(case, says)


def degraded_hold(scope: Node) -> Hold | None:
    """The hold of this rule, before its end or on probation."""
    return (scope.state.holds or {}).get(NAME)


def take_back(case: FoldContext) -> None:
    """What a success does to bad samples that are remembered, where nothing is held: as `fold`, but for its count."""
    state = case.state
    for bad in (state.bad, state.damage):
        if bad is not None and not witnesses.is_empty(bad.witnesses):
            witnesses.age(bad.witnesses, case.now_ms, case.limits)
            if case.event.checkable:
                witnesses.forget_like(bad.witnesses, case.replica)


# -- while a hold stands ---------------------------------------------------------------------------------


def _on_hold(case: FoldContext, scope: Node, says: Says) -> bool:
    """What the outcome does to the hold of this scope; whether it is used up with that, and is no sample."""
    hold, is_bad = degraded_hold(scope), says in ("bad", "damage")
    if hold is None:
        return False
    case.store.touch(scope)
    if case.now_ms < hold.end_ms:
        hold.later += is_bad
        return True
    if says == "nothing":
        holds.begins_again(case, scope, hold)
        return True
    if not holds.is_after(case, NAME, scope.state):
        return False
    # An overlay's calls are all its one replica's: there is nobody to lease a trial against.
    is_trial = case.overlay or holds.is_leased(case, NAME, hold.began_seq)
    if is_trial:
        hold.neutral = 0
    if says == "unchecked":
        hold.uncheckable += 1
        return hold.uncheckable >= scope.limits.uncheckable and _release(case, scope, hold, "uncheckable")
    if not is_trial:
        return False
    if case.row.degraded == "begins_again":
        _begin(case, scope, SampleShare({case.replica: 1}, 1), {"bad": 1, "checkable": 1}, is_encoding=says == "damage")
        return True
    hold.clean += 1
    return hold.clean >= scope.limits.clean_trials and _release(case, scope, hold, "success")


def _release(case: FoldContext, scope: Node, hold: Hold, by: str) -> bool:
    samples.spend(case, scope)
    holds.lift(case, scope, hold, by)
    return True


# -- samples ---------------------------------------------------------------------------------------------


def _clean(case: FoldContext) -> None:
    """A clean sample is counted, and takes its replica's own word back."""
    state, host = case.state, case.node.host
    if not holds.is_after(case, NAME, state):
        return
    samples.count_clean(state, case.event, case.now_ms, case.limits)
    for bad in (state.bad, state.damage):
        if bad is not None:
            witnesses.forget_like(bad.witnesses, case.replica)
    if host is not None and host.state.damage is not None:
        seen = host.state.damage.witnesses
        witnesses.forget_like(seen, case.replica)
        if witnesses.is_empty(seen):
            host.state.damage = None
        case.store.touch(host)


def _bad(case: FoldContext, says: Says) -> None:
    node, host, limits = case.node, case.node.host, case.limits
    if not holds.is_after(case, NAME, case.state):
        return
    if says == "damage":
        if host is not None and not holds.is_after(case, NAME, host.state):
            return
        noted, of = samples.note_bad(case, says), case.state.attributed
        if host is not None and _host_begins(case, host):
            return
    else:
        noted, of = samples.note_bad(case, says), case.state.checked
    seen = noted.witnesses
    if not witnesses.is_second(seen, case.replica) and not samples.are_enough(of, case.now_ms, limits):
        return  # no threshold can be reached: most bad samples end here
    evidence_of = samples.encoding if says == "damage" else samples.plain
    found = evidence_of(case.state, case.now_ms, limits)
    numbers = {"bad": found.bad, "checkable": found.of, "replicas": len(found.by)}
    _weigh(case, node, seen, found, numbers, is_enough=found.is_enough(limits), is_encoding=says == "damage")


def _host_begins(case: FoldContext, host: Node) -> bool:
    """Damaged encoding of several models of a host is the host's, if it is a share of the whole host's answers too."""
    found, models = samples.of_host(host, case.now_ms)
    is_enough = models >= host.limits.host_models and found.is_enough(host.limits)
    if not is_enough and host.state.damage is None:
        return False
    damage = host.state.damage
    if damage is None:
        damage = host.state.damage = Bad()
        case.store.invalidate_fast_path(host)
    case.store.touch(host)
    witnesses.note_like(damage.witnesses, case.replica, case.now_ms)
    numbers = {"bad": found.bad, "checkable": found.of, "replicas": len(found.by), "models": models}
    return _weigh(case, host, damage.witnesses, found, numbers, is_enough=is_enough, is_encoding=True)


def _weigh(
    case: FoldContext,
    scope: Node,
    seen: Witnesses,
    found: SampleShare,
    numbers: dict[str, int],
    *,
    is_enough: bool,
    is_encoding: bool,
) -> bool:
    """Hold if the threshold is reached and it is not one replica's word against others (Rule 4, Two witnesses)."""
    confirms = witnesses.is_second(seen, case.replica)
    if not is_enough and not confirms:
        return False
    suspect = _suspect(case, scope, found)
    word = suspect or (next(iter(found.by)) if len(found.by) == 1 else SEVERAL)
    is_everyones = (
        word == SEVERAL
        or case.overlay
        or confirms
        or witnesses.has_second(seen, word)
        or not samples.has_other_clean(case, scope, word)
    )
    if is_everyones:
        _warn(case, scope, suspect, numbers)
        _begin(case, scope, found, numbers, is_encoding=is_encoding)
    elif witnesses.note_alone(seen, word, case.now_ms, scope.limits.degraded_ms):
        _warn(case, scope, suspect, numbers)
        case.held_alone(scope, NAME, case.now_ms + scope.limits.degraded_ms, numbers, word)
    return is_everyones


def _suspect(case: FoldContext, scope: Node, found: SampleShare) -> str | None:
    """The replica that has nearly all of the bad samples while the rest is under half the limit."""
    most = max(found.by, key=lambda name: (found.by[name], name), default=SEVERAL)
    if most == SEVERAL or case.overlay or not samples.has_other_clean(case, scope, most):
        return None
    own = found.by[most]
    # Clean samples are counted with the rest: the suspect has next to none.
    rest = SampleShare({SEVERAL: found.bad - own}, found.of - own)
    is_under = not rest.bad or rest.bad * 200 < scope.limits.bad_percent * rest.of
    return most if is_under and own * 100 >= case.limits.suspect_percent * found.bad else None


def _warn(case: FoldContext, scope: Node, suspect: str | None, numbers: dict[str, int]) -> None:
    if suspect is not None:
        case.warned(scope.scope, "replica_suspect", numbers, replica=suspect)


def _begin(case: FoldContext, scope: Node, found: SampleShare, numbers: dict[str, int], *, is_encoding: bool) -> None:
    limits = scope.limits
    nth = holds.nth(scope.state, NAME, case.now_ms, limits)
    length_ms = grown_ms(limits.degraded_ms, limits.degraded_growth_milli, nth, limits.degraded_cap_ms)
    samples.spend(case, scope)
    by = next(iter(found.by)) if len(found.by) == 1 else SEVERAL
    holds.begin(
        case, scope, NAME, length_ms, numbers, count=found.bad, of=found.of, encoding=is_encoding, by=by, nth=nth
    )


def _clear(state: ScopeState) -> None:
    state.checked = state.bad = state.attributed = state.damage = None


def _step_back(node: Node, now_ms: int) -> None:
    state, bucket = node.state, now_ms // node.limits.sample_ms
    for counts in (state.checked, state.attributed):
        if counts is not None:
            buckets.step_back(counts, bucket)
    for bad in (state.bad, state.damage):
        if bad is not None:
            for counts in bad.by.values():
                buckets.step_back(counts, bucket)
            witnesses.step_back(bad.witnesses, now_ms, node.limits.degraded_cap_ms)


def _document(node: Node, state: ScopeState, at_ms: int) -> dict[str, Any]:
    plain, encoding = (share(state, at_ms, node.limits) for share in (samples.plain, samples.encoding))
    alone = [
        bad.witnesses.alone
        for bad in (state.bad, state.damage)
        if bad is not None and bad.witnesses.alone is not None and at_ms < bad.witnesses.alone_end_ms
    ]
    return {
        "bad": plain.bad,
        "checkable": plain.of,
        "bad_by": {untoken(name) if name else "(others)": plain.by[name] for name in sorted(plain.by)},
        "damaged": encoding.bad,
        "attributable": encoding.of,
        "degraded_held_alone": untoken(alone[0]) if alone else None,
    }


def _concerns(case: FoldContext) -> bool:
    state, host = case.state, case.node.host
    return (
        case.row.sample != "none"
        or state.bad is not None
        or state.damage is not None
        or (host is not None and host.state.damage is not None)
    )


RULE: Final = Rule(
    name=NAME,
    clear=_clear,
    step_back=_step_back,
    document=_document,
    cap_ms=lambda limits: limits.degraded_cap_ms,
    concerns=_concerns,
    fold=fold,
    take_back=take_back,
)
