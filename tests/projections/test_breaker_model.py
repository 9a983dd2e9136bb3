"""The breaker against a naive reading of SPEC 4.3 over random histories, and the same state by every way to it.

The model keeps every event of its one target and counts anew each time; it shares no code with the fold.
"""

from __future__ import annotations

import random
from typing import Any
from zlib import crc32

import pytest

from sickbay_events import CallOutcome, Kind, Lease, Override, Policy, PolicyChanged, Scope, Target
from sickbay_events.codec import outcome_subject
from sickbay_events.derived import TargetHeld
from sickbay_projections import Fleet, Recorded

START_MS = 1_700_000_000_000
TARGET = Target("h#a", "m")
FAULTS = ("server_error", "timeout", "overloaded", "network", "truncated")
OTHER = ("empty_output", "malformed_output", "mangled_output")
NEUTRAL = ("bad_request", "unknown", "content_filter")
TEN_MIN_MS = 600_000


class Past:
    """One event that counted since the breaker last opened, closed or was cleared."""

    def __init__(self, at_ms: int, replica: str, fault: bool, queued_ms: float) -> None:
        self.at_ms, self.replica, self.fault, self.queued_ms = at_ms, replica, fault, queued_ms


class Naive:
    """SPEC 4.3 for one target whose credential has no other model, word by word."""

    def __init__(self) -> None:
        self.events: list[Past] = []
        self.good: list[tuple[int, str]] = []
        self.heard: dict[str, int] = {}
        self.hold: dict[str, Any] | None = None
        self.name_seq, self.name_end_ms = 0, 0
        self.nth, self.over_ms = 0, 0
        self.clear_seq, self.clear_ms = 0, 0
        self.ramp = (0, 0)
        self.alone: tuple[str, int, int] | None = None
        self.told: list[tuple[Any, ...]] = []

    def clear(self, seq: int, now_ms: int) -> None:
        if self.hold is not None and now_ms < self.probation_end_ms():
            self.told.append(("released", self.hold["seq"], "clear"))
        self.forget()
        self.hold, self.ramp, self.nth = None, (0, 0), 0
        self.name_seq, self.name_end_ms = 0, 0
        self.good = [(at_ms, name) for at_ms, name in self.good if at_ms > now_ms]
        self.clear_seq, self.clear_ms = seq, now_ms

    def forget(self) -> None:
        self.events, self.alone = [], None

    def probation_end_ms(self) -> int:
        assert self.hold is not None
        return int(max(self.hold["end_ms"], self.hold["evidence_ms"]) + 3_600_000)

    def fold(self, event: CallOutcome, replica: str, seq: int, now_ms: int) -> None:
        self.heard[replica] = now_ms
        queued_ms = event.queued_ms or 0
        if self.hold is not None and now_ms >= self.probation_end_ms():
            over_ms = self.probation_end_ms()
            self.end_hold(over_ms)
        if event.kind == "ok" and queued_ms <= TEN_MIN_MS:
            self.good.append((now_ms, replica))
        fault = event.kind in FAULTS
        if queued_ms <= TEN_MIN_MS and not (event.forced and event.kind != "ok"):
            if event.kind == "ok" or event.kind in OTHER:
                self.came_through(event, replica, seq, now_ms)
            elif fault:
                self.fault(event, replica, seq, now_ms)
            else:
                self.gave_back(event, seq, now_ms)
        if self.hold is not None and event.kind not in NEUTRAL and now_ms >= self.hold["end_ms"]:
            self.hold["evidence_ms"] = now_ms

    def is_leased(self, event: CallOutcome) -> bool:
        return any(lease.rule == "breaker" and lease.began_seq == self.name_seq for lease in event.trial or ())

    def is_after(self, event: CallOutcome, seq: int, now_ms: int) -> bool:
        name_seq, end_ms = self.name_seq, self.name_end_ms
        if self.clear_seq > name_seq:
            name_seq, end_ms = self.clear_seq, self.clear_ms
        elif not name_seq or self.is_leased(event):
            return True
        if event.seen_seq is not None and event.seen_seq < seq:
            return event.seen_seq >= name_seq
        return now_ms - (120_000 if event.took_ms is None else event.took_ms) >= end_ms

    def end_hold(self, at_ms: int) -> None:
        assert self.hold is not None
        self.nth, self.over_ms = self.hold["nth"], at_ms
        self.name_end_ms = min(self.hold["end_ms"], at_ms)
        self.hold = None

    def came_through(self, event: CallOutcome, replica: str, seq: int, now_ms: int) -> None:
        if not self.is_after(event, seq, now_ms):
            return
        if self.hold is not None:
            self.told.append(("released", self.hold["seq"], "success"))
            self.end_hold(now_ms)
            self.forget()
            self.ramp = (now_ms, now_ms + 30_000)
        if event.kind == "ok":
            self.events.append(Past(now_ms, replica, False, event.queued_ms or 0))
            if self.alone and self.alone[0] == replica:
                self.alone = None

    def gave_back(self, event: CallOutcome, seq: int, now_ms: int) -> None:
        hold = self.hold
        if hold is None or now_ms < hold["end_ms"] or not self.is_leased(event):
            return
        hold["neutral"] = hold["neutral"] + 1 if event.kind in NEUTRAL else 0
        if hold["neutral"] == 3:
            self.begin(seq, now_ms, hold["length_ms"], hold["nth"])

    def begin(self, seq: int, now_ms: int, length_ms: int, nth: int) -> None:
        end_ms = now_ms + length_ms
        self.hold = {"seq": seq, "end_ms": end_ms, "length_ms": length_ms, "nth": nth, "evidence_ms": 0, "neutral": 0}
        self.name_seq, self.name_end_ms = seq, end_ms
        self.told.append(("held", seq, end_ms, None))

    def open(self, event: CallOutcome, seq: int, now_ms: int) -> None:
        if self.hold is not None:
            nth = self.hold["nth"] + 1
        else:
            nth = self.nth + 1 if self.nth and now_ms < self.over_ms + TEN_MIN_MS else 1
        self.forget()
        self.ramp = (0, 0)
        self.begin(seq, now_ms, self.length_ms(event, seq, nth), nth)

    def length_ms(self, event: CallOutcome, seq: int, nth: int) -> int:
        length_ms = 30_000 << min(nth - 1, 10)
        length_ms = min(length_ms, TEN_MIN_MS)
        length_ms += length_ms * (crc32(f"{TARGET.key} {seq}".encode()) % 2001 - 1000) // 10_000
        return max(length_ms, int(min(event.retry_after_s or 0, 3600) * 1000))

    def fault(self, event: CallOutcome, replica: str, seq: int, now_ms: int) -> None:
        if self.hold is not None and now_ms < self.hold["end_ms"]:
            return
        if not self.is_after(event, seq, now_ms):
            return
        replicas = sum(1 for at_ms in self.heard.values() if now_ms < at_ms + TEN_MIN_MS)
        in_ramp = self.ramp[0] <= now_ms < self.ramp[1] and replicas >= 4
        if self.is_leased(event) if self.hold is not None else in_ramp:
            self.open(event, seq, now_ms)
        elif (event.queued_ms or 0) <= 60_000:
            self.events.append(Past(now_ms, replica, True, event.queued_ms or 0))
            self.weigh(event, replica, seq, now_ms)

    def others_good(self, replica: str, now_ms: int) -> bool:
        return any(name != replica and at_ms <= now_ms < at_ms + TEN_MIN_MS for at_ms, name in self.good)

    def likes(self, now_ms: int) -> set[str]:
        """Replicas with a fault in ten minutes and no good answer of theirs after it."""
        found: set[str] = set()
        for past in self.events:
            if past.fault and now_ms < past.at_ms + TEN_MIN_MS:
                found.add(past.replica)
            elif not past.fault:
                found.discard(past.replica)
        return found

    def weigh(self, event: CallOutcome, replica: str, seq: int, now_ms: int) -> None:
        bucket = now_ms // 10_000
        window = [p for p in self.events if p.at_ms // 10_000 > bucket - 6 and p.queued_ms <= 60_000]
        run: list[Past] = []
        for past in self.events:
            if past.queued_ms <= 5000:
                run = [*run, past] if past.fault else []
        run = [past for past in run if now_ms < past.at_ms + TEN_MIN_MS][-5:]
        attempts, faults = len(window), [past.replica for past in window if past.fault]
        words: list[set[str]] = []
        if len(run) == 5 and attempts <= 100:
            words.append({past.replica for past in run})
        limit = 30 if attempts >= 200 else 50
        if attempts >= 20 and len(faults) * 100 >= limit * attempts:
            by = {name: faults.count(name) for name in faults}
            most = max(by, key=lambda name: (by[name], name))
            rest, rest_attempts = len(faults) - by[most], attempts - by[most]
            under = not rest or rest * 200 < limit * rest_attempts
            suspect = under and by[most] * 100 >= 80 * len(faults) and self.others_good(most, now_ms)
            words.append({most} if suspect else set(by))
        if self.alone and now_ms >= self.alone[1] + TEN_MIN_MS:
            self.alone = None
        confirms = self.alone is not None and self.alone[0] != replica
        if not words and not confirms:
            return
        alone = next(iter(words[0])) if words and all(len(word) == 1 for word in words) and not confirms else None
        if alone is None or self.likes(now_ms) - {alone} or not self.others_good(alone, now_ms):
            self.open(event, seq, now_ms)
            return
        begins = self.alone is None or self.alone[0] != alone or now_ms >= self.alone[2]
        end_ms = now_ms + self.length_ms(event, seq, 1)
        if begins:
            self.told.append(("held", seq, end_ms, alone))
        self.alone = (alone, now_ms, end_ms if begins else self.alone[2])  # type: ignore[index]


class Life:
    """A target that is up or down for everybody, replicas with broken uplinks, calls that overlap holds."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms, self.seq = START_MS, 0
        self.replicas = [f"r{n}" for n in range(self.rng.choice((1, 2, 4, 5)))]
        self.gap_ms = self.rng.choice((60, 400, 3000, 30_000))
        self.down, self.broken = 0.0, ""

    def next(self, name_seq: int) -> tuple[CallOutcome, str]:
        rng = self.rng
        self.seq += 1
        self.now_ms += round(rng.expovariate(1 / self.gap_ms)) if rng.random() < 0.98 else rng.randrange(900_000)
        if rng.random() < 0.02:
            self.down = rng.choice((0.0, 0.0, 0.03, 0.4, 0.6, 1.0))
            self.broken = rng.choice(("", "", *self.replicas))
            self.gap_ms = rng.choice((60, 400, 3000, 30_000))
        replica = rng.choice(self.replicas)
        kind: Any = "ok"
        if rng.random() < (1.0 if replica == self.broken else self.down):
            kind = rng.choice(FAULTS)
        elif rng.random() < 0.1:
            kind = rng.choice((*OTHER, *NEUTRAL, "auth"))
        seen = rng.random()
        seen_seq = None if seen < 0.1 else self.seq + rng.randrange(3) if seen < 0.13 else 0
        if seen_seq == 0:
            seen_seq = max(0, self.seq - 1 - (rng.randrange(12) if rng.random() < 0.5 else 0))
        trial = [Lease("breaker", name_seq - (rng.random() < 0.1))] if name_seq and rng.random() < 0.3 else None
        event = CallOutcome(
            kind=kind,
            seen_seq=seen_seq,
            took_ms=rng.choice((None, 50, 20_000, 200_000)),
            queued_ms=rng.choice((None, 0, 1, 4, 5000, 5001, 60_001, 700_000)) if rng.random() < 0.3 else 0,
            trial=trial,
            forced=rng.random() < 0.05,
            retry_after_s=rng.choice((2, 45, 400, 99_999)) if rng.random() < 0.05 else None,
        )
        return event, replica


@pytest.mark.parametrize("seed", range(40))
def test_the_fold_says_what_a_naive_reading_of_the_rules_says(seed: int) -> None:
    life, naive, fleet = Life(seed), Naive(), Fleet()
    told: list[tuple[Any, ...]] = []
    for _ in range(1500):
        event, replica = life.next(naive.name_seq)
        if life.rng.random() < 0.003:
            recorded = clear(life.seq, life.now_ms, TARGET.scope)
            naive.clear(life.seq, life.now_ms)
        else:
            recorded = Recorded(event, target=TARGET, replica=replica, seq=life.seq, time_ms=life.now_ms)
            naive.fold(event, replica, life.seq, life.now_ms)
        derived = [event for event in fleet.apply(recorded) if event.scope == TARGET.scope]
        told += [short(event) for event in derived if event.rule == "breaker"]
        assert told == naive.told, f"seed {seed}, sequence {life.seq}"
        decision = fleet.decide(TARGET, life.now_ms)
        hold = naive.hold
        if hold is not None and life.now_ms < naive.probation_end_ms():
            denied = life.now_ms < hold["end_ms"]
            assert (decision.began_seq, decision.allowed, decision.trial) == (hold["seq"], not denied, not denied)
        else:
            assert decision.reason in ("ok", "ramp")
    assert fleet.seq == life.seq


def short(derived: Any) -> tuple[Any, ...]:
    if type(derived).__name__ == "Held":
        return ("held", derived.began_seq, derived.end_ms, derived.replica)
    return ("released", derived.began_seq, derived.by)


def clear(seq: int, time_ms: int, scope: Scope) -> Recorded:
    return Recorded(Override(action="clear", reason="test", actor="test"), scope=scope, seq=seq, time_ms=time_ms)


def test_the_histories_are_worth_something() -> None:
    """Every sort of turn is taken in them, often."""
    seen: dict[Any, int] = {}
    for seed in range(30):
        life, naive = Life(seed), Naive()
        for _ in range(1500):
            event, replica = life.next(naive.name_seq)
            naive.fold(event, replica, life.seq, life.now_ms)
        for told in naive.told:
            sort = ("alone" if told[3] else "held") if told[0] == "held" else told[2]
            seen[sort] = seen.get(sort, 0) + 1
    assert min(seen.get(sort, 0) for sort in ("held", "alone", "success")) > 40, seen


# -- the same state by every way -----------------------------------------------------------------------

TARGETS = [Target(provider, f"m{n}") for provider in ("h0#a", "h0#b", "h1") for n in range(4)]
OUTAGES: tuple[tuple[Kind, ...], ...] = ((), ("network",), ("network", "timeout", "server_error"))
BOOT = "0123456789abcdef"


def wide_history(seed: int) -> list[Recorded]:
    """Many targets under two hosts, all kinds, clears of every scope, policies, a clock that steps back."""
    rng, life = random.Random(seed), Life(seed)
    kinds: list[Kind] = ["ok", "model_unavailable", "rate_limited", "auth", *FAULTS, *OTHER, *NEUTRAL]  # type: ignore[list-item]
    found, fleet = list[Recorded](), Fleet()
    names: list[int] = [0]
    outage: tuple[Kind, ...] = ()
    for n in range(2500):
        if n % 300 == 0:
            outage = OUTAGES[n // 300 % 3]
        life.gap_ms = 5000 if outage else life.gap_ms
        event, replica = life.next(rng.choice(names[-6:]))
        target = rng.choice(TARGETS)
        if outage and rng.random() < 0.999:
            event = CallOutcome(kind=rng.choice(outage), seen_seq=event.seen_seq, trial=event.trial)
        elif rng.random() < 0.5:
            event = CallOutcome(
                kind=rng.choice(kinds) if rng.random() < 0.3 else event.kind,
                id=f"{BOOT}-{n + 1}",
                seen_seq=event.seen_seq,
                trial=event.trial,
                request_hash=rng.choice((None, None, "x", "y")),
                ttft_ms=rng.choice((None, 10, 9000)),
            )
        if rng.random() < 0.004:
            life.now_ms -= rng.choice((500, 5000, 70_000))
        at: Any = {"seq": life.seq, "time_ms": life.now_ms}
        chance = rng.random()
        if chance < 0.006:
            host, alias = target.scope.host, target.scope.alias
            scope = rng.choice((Scope(host), Scope(host, alias), target.scope))
            recorded = clear(life.seq, life.now_ms, scope)
        elif chance < 0.009:
            breaker = {"slow_ttft_ms": rng.choice((0, 5000)), "bucket_s": rng.choice((10.0, 7.0)), "consecutive": 2}
            policy = Policy.from_data({"breaker": breaker, "ramp": {"replicas": 2}})
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
        if rng.random() < 0.3:
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
            [outcome_subject(one.replica, one.target or TARGET) for one in part],
            [one.event for one in part],
            [one.seq for one in part],
            [one.time_ms for one in part],
        )
    assert told_many == derived
    assert many.encode() == live.encode()
