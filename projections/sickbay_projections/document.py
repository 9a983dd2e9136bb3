"""All counters of one scope, for `status` and `explain`."""

from __future__ import annotations

from typing import Any

from sickbay_events.names import untoken
from sickbay_events.times import rfc3339

from .entries import REASONS
from .rules import breaker, credential, health, holds, rejections, samples, throttles
from .state.model import Hold, Node, ScopeState


def target_document(node: Node, seq: int, at_ms: int) -> dict[str, Any]:
    """What is known of a scope at a log time, as plain data.

    Times are milliseconds of log time with `_ms`, RFC 3339 beside them where a person reads; None: never.
    """
    state = node.state
    cleared_seq = max([0, *(wider.state.cleared_seq for wider in (node.host, node.credential) if wider)])
    void = cleared_seq > state.cleared_seq
    found: dict[str, Any] = {
        "provider": node.scope.provider,
        "model": node.scope.model,
        "scope": node.scope.name,
        "seq": seq,
        "at_ms": at_ms,
        "outcomes": state.outcomes,
        "answers": state.answers,
        "rejections": state.rejections,
        "strikes": 0 if void else rejections.live_strikes(state, at_ms, node.limits),
        "threshold": node.limits.strikes,
        **({} if void else _strikes(node, state, at_ms)),
        **_faults(node, ScopeState() if void else state, at_ms),
        **_throttling(node, ScopeState() if void else state, at_ms),
        **_samples(node, ScopeState() if void else state, at_ms),
        **(_health(node, at_ms) if node.scope.model is not None else {}),
        "last_event_ms": state.last_ms or None,
        "last_event_seq": state.last_seq or None,
        "last_answer_ms": state.good_ms or None,
        "last_answer_by": untoken(state.good_by) if state.good_by else None,
        "last_bad_kind": state.bad_kind,
        "last_bad_status": state.bad_status,
        "last_bad_ms": state.bad_ms or None,
        "holds": [],
        "operator": None,
        "cleared_seq": max(cleared_seq, state.cleared_seq) or None,
    }
    if not void:
        live = [hold for hold in (state.holds or {}).values() if at_ms < holds.over_ms(hold, node.limits)]
        found["holds"] = [_hold(node, hold, at_ms) for hold in sorted(live, key=lambda hold: hold.rule)]
        found["operator"] = _operator(state, at_ms)
        found["past"] = {rule: {"began_seq": past.began_seq, "end_ms": past.end_ms} for rule, past in _past(state)}
    return found


def _past(state: ScopeState) -> list[tuple[str, Any]]:
    return sorted((state.past or {}).items())


def _strikes(node: Node, state: ScopeState, at_ms: int) -> dict[str, Any]:
    strikes = state.strikes
    if strikes is None or not rejections.live_strikes(state, at_ms, node.limits):
        return {}
    replicas = sorted(strikes.plain.keys() | strikes.permission.keys())
    seen = strikes.witnesses
    return {
        "strikes_by": {
            untoken(name): strikes.plain.get(name, 0) + strikes.permission.get(name, 0) for name in replicas
        },
        "strikes_until_ms": strikes.newest_ms + node.limits.strikes_window_ms,
        "held_alone": untoken(seen.alone) if seen.alone is not None and at_ms < seen.alone_end_ms else None,
    }


def _faults(node: Node, state: ScopeState, at_ms: int) -> dict[str, Any]:
    found, faults, ramp = breaker.evidence(state, at_ms, node.limits), state.faults, state.ramp
    seen = faults.witnesses if faults is not None else None
    alone = seen.alone if seen is not None and at_ms < seen.alone_end_ms else None
    return {
        "fault_run": found.run,
        "window_attempts": found.attempts,
        "window_faults": found.faults,
        "window_faults_by": {untoken(name) if name else "(others)": found.by[name] for name in sorted(found.by)},
        "breaker_held_alone": untoken(alone) if alone is not None else None,
        "ramp_until_ms": ramp.end_ms if ramp is not None and at_ms < ramp.end_ms else None,
    }


def _throttling(node: Node, state: ScopeState, at_ms: int) -> dict[str, Any]:
    slot = state.throttling
    alone = [
        untoken(seen.alone)
        for seen in ((slot.rate, slot.quota) if slot is not None else ())
        if seen.alone is not None and at_ms < seen.alone_end_ms
    ]
    return {
        "throttles": throttles.counted(state, at_ms, node.limits),
        "throttle_held_alone": alone,
        "credential_strikes": credential.strikes(state, at_ms, node.limits),
    }


def _samples(node: Node, state: ScopeState, at_ms: int) -> dict[str, Any]:
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


def _health(node: Node, at_ms: int) -> dict[str, Any]:
    found, probes = health.health(node, at_ms), node.state.probes
    return {
        "health": found.word,
        "health_why": found.why,
        "health_age_s": found.age_s,
        "health_since_ms": found.since_ms,
        "readiness_failures": probes.failures if probes is not None else 0,
        "last_ready_ms": (probes.ready_ms if probes is not None else 0) or None,
        "last_live_ms": (probes.live_ms if probes is not None else 0) or None,
    }


def _hold(node: Node, hold: Hold, at_ms: int) -> dict[str, Any]:
    return {
        "rule": hold.rule,
        "reason": REASONS[hold.rule],
        "phase": "held" if at_ms < hold.end_ms else "probation" if hold.proof else "ramp",
        "began_seq": hold.began_seq,
        "began_ms": hold.began_ms,
        "end_ms": hold.end_ms,
        "until": rfc3339(hold.end_ms),
        "over_ms": holds.over_ms(hold, node.limits),
        "left_s": max(0, hold.end_ms - at_ms) / 1000,
        "kind": hold.kind,
        "status": hold.status,
        "count": hold.count,
        "of": hold.of,
        "clean_trials": hold.clean,
        "uncheckable": hold.uncheckable,
        "later": hold.later,
        "nth": hold.nth,
        "enforced": hold.rule not in node.limits.shadowed,
    }


def _operator(state: ScopeState, at_ms: int) -> dict[str, Any] | None:
    operator = state.operator
    if operator is None or at_ms >= operator.end_ms:
        return None
    return {
        "action": "allow" if operator.allow else "hold",
        "seq": operator.seq,
        "end_ms": operator.end_ms,
        "until": rfc3339(operator.end_ms),
        "left_s": (operator.end_ms - at_ms) / 1000,
        "reason": operator.reason,
        "actor": operator.actor,
    }
