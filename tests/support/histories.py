"""Random logs from a seed: what a fleet under stress writes, with everything that can go wrong on the way."""

from __future__ import annotations

import random
from typing import Any

from sickbay_events import (
    CallAnswered,
    CallOutcome,
    CallsRefused,
    Kind,
    Lease,
    Override,
    PolicyChanged,
    ProbeResult,
    Scope,
    Target,
)
from sickbay_events.times import rfc3339
from sickbay_projections import Recorded

START_MS = 1_700_000_000_000
KINDS: list[Kind] = [
    "ok",
    "ok",
    "ok",
    "model_unavailable",
    "model_unavailable",
    "permission_model",
    "timeout",
    "empty_output",
]
RULES = ["quarantine", "quarantine", "throttle", "breaker", "credential"]
KINDS += ["rate_limited", "auth", "cancelled", "bad_request", "server_error", "mangled_output", "quota"]


def history(seed: int, count: int, *, targets: int = 12, replicas: int = 3, pace: int = 4) -> list[Recorded]:
    """`count` events of every type: duplicates, late ones, raw ones, clock steps, overrides, policies.

    With a pace of 0 log time stands still.
    """
    rng = random.Random(seed)
    names = [Target(rng.choice(["h1", "h1#a", "h2#ü"]), f"m/{n}") for n in range(targets)]
    written: list[Recorded] = []
    time_ms, counters = START_MS, dict[str, int]()
    for seq in range(1, count + 1):
        time_ms += rng.choice([0, 1, 50, 1000, 10_000, 60_000]) * rng.randrange(pace + 1) // 2
        if pace and rng.random() < 0.01:
            time_ms += rng.choice([-1999, -2000, -3_600_000, 700_000, 7_200_000])
        replica = f"r{rng.randrange(replicas)}"
        roll = rng.random()
        if roll < 0.15 and written:
            again = rng.choice(written[-200:])  # redelivered: the same bytes at a later sequence
            written.append(Recorded(again.event, again.target, again.scope, again.replica, seq, time_ms))
        elif roll < 0.18:
            written.append(Recorded(_override(rng, time_ms), scope=_scope(rng, names), seq=seq, time_ms=time_ms))
        elif roll < 0.185:
            written.append(Recorded(_policy(rng), seq=seq, time_ms=time_ms))
        else:
            target = rng.choice(names)
            counters[replica] = counters.get(replica, 0) + 1
            event = _of_replica(rng, seq, f"{len(replica):016x}-{counters[replica]}")
            written.append(Recorded(event, target=target, replica=replica, seq=seq, time_ms=time_ms))
    return written


def _of_replica(rng: random.Random, seq: int, event_id: str) -> Any:
    common: dict[str, Any] = {
        "id": event_id if rng.random() < 0.9 else None,
        "seen_seq": None if rng.random() < 0.2 else max(0, seq - rng.randrange(60) + rng.choice([0, 0, 0, 70])),
        "trial": [Lease(rng.choice(RULES), max(1, seq - rng.randrange(30)))] if rng.random() < 0.2 else None,
        "queued_ms": rng.choice([None, 0, 6000, 700_000]) if rng.random() < 0.1 else 1,
    }
    roll = rng.random()
    if roll < 0.03:
        return CallsRefused(count=3, rule="quarantine", id=common["id"])
    if roll < 0.08:
        return CallAnswered(**common)
    if roll < 0.12:
        level: Any = rng.choice(["liveness", "readiness"])
        return ProbeResult(level=level, ok=rng.random() < 0.5, kind=rng.choice(KINDS), **common)
    return CallOutcome(
        kind=rng.choice(KINDS),
        status=rng.choice([None, 200, 404, 10**30]),
        took_ms=rng.choice([None, 0, 1200.5, 90_000]),
        limit_ms=rng.choice([None, 5000, 60_000]),
        forced=rng.random() < 0.05,
        scope=rng.choice([None, None, None, "none", "model", "credential"]),
        retry_after_s=rng.choice([None, None, None, 0, -5, 0.5, 30, 700, 10**30]),
        request_hash=rng.choice([None, None, "a", "b"]),
        signature=rng.choice([None, None, None, "tool_calls", "double_encoded", "loop", "own_decoding", "ü" * 99]),
        checkable=rng.random() < 0.7,
        attributable=rng.random() < 0.5,
        charset=rng.choice([None, "utf-8", "absent"]),
        route=rng.choice([None, None, "brief", "chat"]),
        rank=rng.choice([0, 1, 2]),
        **common,
    )


def _scope(rng: random.Random, names: list[Target]) -> Scope:
    scope = rng.choice(names).scope
    return rng.choice([scope, Scope(scope.host), Scope(scope.host, scope.alias)])


def _override(rng: random.Random, time_ms: int) -> Override:
    until = rfc3339(time_ms + rng.choice([-5, 1000, 600_000, 90 * 86_400_000]))
    action: Any = rng.choice(["hold", "allow", "clear"])
    return Override(action=action, reason="grund ü", actor="op", until=None if action == "clear" else until)


def _policy(rng: random.Random) -> PolicyChanged:
    policy: dict[str, Any] = {
        "rejections": {"threshold": rng.choice([1, 2, 3]), "growth": rng.choice([1.0, 1.5]), "hold_s": 300.25},
        "shadow": {"rules": rng.choice([[], ["quarantine"]])},
        "bounds": {"idle_s": rng.choice([3600.0, 172_800.0])},
        "single_credential": rng.choice([[], ["h1"]]),
        "throttles": {"needed": rng.choice([1, 2, 5]), "cap_s": rng.choice([60.0, 3600.0])},
        "credential": {"threshold": rng.choice([1, 3])},
        "degraded": {"consecutive": rng.choice([1, 3]), "host_points": rng.choice([6, 36])},
        "breaker": {
            "consecutive": rng.choice([2, 5]),
            "fault_points": rng.choice([1, 2]),
            "slow_ttft_ms": rng.choice([0, 0, 1]),
        },
        "warnings": {"fallback_answers": rng.choice([2, 20])},
        "host": rng.choice([{}, {"h1": {"rejections": {"threshold": 1}}}]),
    }
    return PolicyChanged(policy=rng.choice([policy, policy, {"nonsense": 1}]))
