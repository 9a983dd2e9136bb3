"""The same state by every way: folded live, decoded on the way, or many events at a time (Rules 4 and 7)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sickbay_events import CallOutcome, Kind, Lease, Override, Policy, PolicyChanged, Scope, Target
from sickbay_events.codec import outcome_subject
from sickbay_events.derived import TargetHeld
from sickbay_projections import Fleet, Recorded

START_MS = 1_700_000_000_000
RULES = ("breaker", "breaker", "breaker", "quarantine", "degraded", "throttle")
KINDS: list[Kind] = ["ok"] * 20
KINDS += ["server_error", "timeout", "network", "model_unavailable", "rate_limited", "quota", "auth"]
KINDS += ["empty_output", "mangled_output", "bad_request", "unknown"]
TARGETS = [Target(provider, f"m{n}") for provider in ("h0#a", "h0#b", "h1") for n in range(4)]
OUTAGES: tuple[tuple[Kind, ...], ...] = ((), ("network",), ("network", "timeout", "server_error"))
BOOT = "0123456789abcdef"


def wide_history(seed: int) -> list[Recorded]:
    """Many targets under two hosts, all kinds, clears of every scope, policies, a clock that steps back."""
    rng = random.Random(seed)
    found, fleet = list[Recorded](), Fleet()
    names, now_ms, gap_ms, broken = [0], START_MS, 400, ""
    outage: tuple[Kind, ...] = ()
    for n in range(1500):
        if n % 200 == 0:
            outage = OUTAGES[n // 200 % 3]
            gap_ms, broken = 5000 if outage else rng.choice((60, 400, 3000)), rng.choice(("", "r0", "r1"))
        now_ms += round(rng.expovariate(1 / gap_ms)) if rng.random() < 0.98 else rng.randrange(900_000)
        replica, target = f"r{rng.randrange(5)}", rng.choice(TARGETS)
        seen_seq = max(0, n - rng.randrange(12)) if rng.random() < 0.3 else n if rng.random() < 0.9 else None
        trial = [Lease(rng.choice(RULES), rng.choice(names[-6:]))] if rng.random() < 0.3 else None
        kind = rng.choice(outage) if outage and rng.random() < 0.995 else rng.choice(KINDS)
        event = CallOutcome(
            kind="server_error" if replica == broken else kind,
            id=f"{BOOT}-{n + 1}" if rng.random() < 0.8 else None,
            seen_seq=seen_seq,
            trial=trial,
            took_ms=rng.choice((None, 50, 20_000)),
            queued_ms=rng.choice((None, 5_000, 5_001, 700_000)) if rng.random() < 0.1 else 0,
            request_hash=rng.choice((None, None, "x", "y")),
            ttft_ms=rng.choice((None, 10, 9000)),
            retry_after_s=rng.choice((None, None, 2, 45, 400)),
            scope="credential" if kind == "rate_limited" and rng.random() < 0.5 else None,
            signature="double_encoded" if kind == "mangled_output" and rng.random() < 0.5 else None,
            checkable=rng.random() < 0.8,
            attributable=rng.random() < 0.5,
        )
        if rng.random() < 0.004:
            now_ms -= rng.choice((500, 5000, 70_000))
        at: Any = {"seq": n + 1, "time_ms": now_ms}
        chance = rng.random()
        if chance < 0.006:
            host, alias = target.scope.host, target.scope.alias
            scope = rng.choice((Scope(host), Scope(host, alias), target.scope))
            act = Override(action="clear", reason="test", actor="test")
            recorded = Recorded(act, scope=scope, **at)
        elif chance < 0.009:
            breaker = {"slow_ttft_ms": rng.choice((0, 5000)), "consecutive": 2}
            policy = Policy.from_data({"breaker": breaker, "ramp": {"replicas": 2}, "degraded": {"consecutive": 3}})
            recorded = Recorded(PolicyChanged(policy=policy.to_data()), **at)
        else:
            recorded = Recorded(event, target=target, replica=replica, **at)
        found.append(recorded)
        names += [derived.began_seq for derived in fleet.apply(recorded) if isinstance(derived, TargetHeld)]
    return found


@pytest.mark.parametrize(("overlay", "seed"), [(False, 0), (True, 1), (False, 2)])
def test_every_way_to_a_state_gives_the_same_bytes_and_the_same_derived_events(overlay: bool, seed: int) -> None:
    history, rng = wide_history(seed), random.Random(seed)
    live, reborn, many = Fleet(overlay=overlay), Fleet(overlay=overlay), Fleet(overlay=overlay)
    derived, derived_reborn = [], []
    scopes = set()
    for n, recorded in enumerate(history):
        told = live.apply(recorded)
        derived += told
        scopes |= {event.scope.name for event in told if event.rule == "breaker"}
        if n % 97 == 0:
            live.digest()
        # A fleet that is decoded anew knows nothing of what the live one keeps beside its state.
        if rng.random() < 0.15:
            reborn = Fleet.decode(reborn.encode())
        derived_reborn += reborn.apply(recorded)
        if n % 50 == 0:
            assert reborn.encode() == live.encode(), f"seed {seed}, event {n}"
    assert derived == derived_reborn
    assert scopes == {"host", "credential", "model"}
    assert live.encode() == reborn.encode()
    assert live.digest() == reborn.digest() == Fleet.decode(live.encode()).digest()
    told_many = []
    at = 0
    while at < len(history):
        recorded = history[at]
        if not isinstance(recorded.event, CallOutcome):
            told_many += many.apply(recorded)
            at += 1
            continue
        part: list[Recorded] = []
        while at < len(history) and isinstance(history[at].event, CallOutcome) and len(part) < 40:
            part.append(history[at])
            at += 1
        told_many += many.apply_many(
            [outcome_subject(one.replica, one.target or TARGETS[0]) for one in part],
            [one.event for one in part],
            [one.seq for one in part],
            [one.time_ms for one in part],
        )
    assert told_many == derived
    assert many.encode() == live.encode()
