"""The fold of SPEC 4.4 against a naive reading of its rules; every way to a state is the same."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from sickbay_events import (
    CallAnswered,
    CallOutcome,
    Lease,
    Override,
    Policy,
    ProbeResult,
    Released,
    Scope,
    Target,
    TargetHeld,
)
from sickbay_projections import Fleet, Recorded

MINUTE_MS = 60_000
START_MS = 28_332_000 * MINUTE_MS
TARGETS = [Target("h#a", "m0"), Target("h#a", "m1"), Target("h#b", "m0"), Target("h", "m2")]
HOST = "h"
REPLICAS = ["r1", "r2", "r3"]


@dataclass
class Sample:
    time_ms: int
    replica: str
    is_bad: bool
    is_encoding: bool
    attributable: bool = False


@dataclass
class NaiveHold:
    began_seq: int
    begins_ms: int
    end_ms: int
    nth: int
    length_ms: int
    is_encoding: bool = False
    bad: int = 0
    of: int = 0
    by: str | None = None
    clean: int = 0
    uncheckable: int = 0
    neutral: int = 0


@dataclass
class NaiveScope:
    hold: NaiveHold | None = None
    name_seq: int = 0
    name_end_ms: int = 0
    over_ms: int = -(10**15)
    nth: int = 0
    likes: dict[bool, dict[str, int]] = field(default_factory=lambda: {False: {}, True: {}})
    alone: dict[bool, tuple[str, int, int] | None] = field(default_factory=lambda: {False: None, True: None})


class Naive:
    """Keeps everything that ever happened and looks through all of it at every event."""

    def __init__(self) -> None:
        self.scopes: dict[str, NaiveScope] = {key: NaiveScope() for key in [HOST, *(t.key for t in TARGETS)]}
        self.samples: dict[str, list[Sample]] = {t.key: [] for t in TARGETS}
        self.clean: dict[str, list[tuple[int, str]]] = {t.key: [] for t in TARGETS}
        self.told: list[tuple[str, str, int, int, str | None]] = []

    def expire(self, key: str, now_ms: int) -> None:
        scope = self.scopes[key]
        if scope.hold is not None and now_ms >= scope.hold.end_ms + 3_600_000:
            self.retire(key, scope.hold.end_ms + 3_600_000)
        for sort in (False, True):
            scope.likes[sort] = {r: at for r, at in scope.likes[sort].items() if now_ms < at + 600_000}
            alone = scope.alone[sort]
            if alone is not None and now_ms >= alone[1] + 600_000:
                scope.alone[sort] = None

    def retire(self, key: str, at_ms: int) -> None:
        scope = self.scopes[key]
        assert scope.hold is not None
        scope.name_seq, scope.name_end_ms = scope.hold.began_seq, min(scope.hold.end_ms, at_ms)
        scope.over_ms, scope.nth, scope.hold = at_ms, scope.hold.nth, None

    def is_after(self, key: str, event: Any, seq: int, now_ms: int) -> bool:
        scope = self.scopes[key]
        name, end_ms = scope.name_seq, scope.name_end_ms
        if scope.hold is not None:
            name, end_ms = scope.hold.began_seq, scope.hold.end_ms
        if not name or any(lease.began_seq == name for lease in event.trial or ()):
            return True
        if event.seen_seq is not None and event.seen_seq < seq:
            return bool(event.seen_seq >= name)
        return now_ms - (120_000 if event.took_ms is None else event.took_ms) >= end_ms

    def window(self, key: str, is_encoding: bool, now_ms: int) -> tuple[dict[str, int], int]:
        by: dict[str, int] = {}
        of = 0
        for sample in self.samples[key]:
            counts = sample.attributable if is_encoding else not (sample.is_bad and sample.is_encoding)
            if not counts or not 0 <= now_ms // MINUTE_MS - sample.time_ms // MINUTE_MS < 30:
                continue
            of += 1
            if sample.is_bad and sample.is_encoding == is_encoding:
                by[sample.replica] = by.get(sample.replica, 0) + 1
        return by, of

    def other_clean(self, key: str, replica: str, now_ms: int) -> bool:
        keys = list(self.clean) if key == HOST else [key]
        return any(r != replica and now_ms < at + 600_000 for each in keys for at, r in self.clean[each])

    def empty(self, key: str) -> None:
        for each in self.samples if key == HOST else [key]:
            if key == HOST:
                kept = []
                for sample in self.samples[each]:
                    if sample.is_encoding and sample.is_bad:
                        continue
                    sample.attributable = False
                    kept.append(sample)
                self.samples[each] = kept
                self.scopes[each].likes[True], self.scopes[each].alone[True] = {}, None
            else:
                self.samples[each] = []
        for sort in (False, True):
            self.scopes[key].likes[sort], self.scopes[key].alone[sort] = {}, None

    def begin(self, key: str, seq: int, now_ms: int, by: dict[str, int], of: int, is_encoding: bool) -> None:
        scope = self.scopes[key]
        nth = scope.hold.nth + 1 if scope.hold else scope.nth + 1 if now_ms < scope.over_ms + 600_000 else 1
        length_ms = min(600_000, 30_000 * 2 ** (nth - 1))
        self.empty(key)
        only = next(iter(by)) if len(by) == 1 else None
        scope.hold = NaiveHold(seq, now_ms, now_ms + length_ms, nth, length_ms, is_encoding, sum(by.values()), of, only)
        self.told.append(("held", key, seq, now_ms + length_ms, None))

    def on_hold(self, key: str, event: Any, replica: str, seq: int, now_ms: int, says: str) -> bool:
        scope = self.scopes[key]
        hold = scope.hold
        if hold is None:
            return False
        if now_ms < hold.end_ms:
            return True
        leased = any(lease.rule == "degraded" and lease.began_seq == hold.began_seq for lease in event.trial or ())
        if says in ("neutral", "other"):
            if leased:
                hold.neutral = hold.neutral + 1 if says == "neutral" else 0
                if hold.neutral == 3:
                    scope.hold = NaiveHold(
                        seq, now_ms, now_ms + hold.length_ms, hold.nth, hold.length_ms,
                        hold.is_encoding, hold.bad, hold.of, hold.by,
                    )  # fmt: skip
                    self.told.append(("held", key, seq, now_ms + hold.length_ms, None))
            return True
        if not self.is_after(key, event, seq, now_ms):
            return False
        if leased:
            hold.neutral = 0
        if says == "unchecked":
            hold.uncheckable += 1
            return hold.uncheckable == 20 and self.release(key, now_ms)
        if not leased:
            return False
        if says in ("bad", "damage"):
            self.begin(key, seq, now_ms, {replica: 1}, 1, says == "damage")
            return True
        hold.clean += 1
        return hold.clean == 3 and self.release(key, now_ms)

    def release(self, key: str, now_ms: int) -> bool:
        hold = self.scopes[key].hold
        assert hold is not None
        self.empty(key)
        self.told.append(("released", key, hold.began_seq, hold.end_ms, None))
        self.retire(key, now_ms)
        return True

    def says(self, event: Any) -> str:
        kind = event.kind
        if kind == "ok":
            return "clean" if event.checkable else "unchecked"
        if kind in ("empty_output", "malformed_output", "mangled_output"):
            if not event.checkable:
                return "unchecked"
            if kind == "mangled_output" and event.signature == "replacement_char":
                return "damage" if event.attributable else "unchecked"
            return "bad"
        return "neutral" if kind in ("unknown", "content_filter", "bad_request") else "other"

    def outcome(self, target: Target, event: Any, replica: str, seq: int, now_ms: int) -> None:
        key, says = target.key, self.says(event)
        for each in (HOST, key):
            self.expire(each, now_ms)
        if says == "clean":
            self.clean[key].append((now_ms, replica))
        hosts = self.on_hold(HOST, event, replica, seq, now_ms, "unchecked" if says == "bad" else says)
        if self.on_hold(key, event, replica, seq, now_ms, says) or not self.is_after(key, event, seq, now_ms):
            return
        if says == "clean":
            self.samples[key].append(Sample(now_ms, replica, False, False, event.attributable))
            for each in (HOST, key):
                for sort in (False, True):
                    self.scopes[each].likes[sort].pop(replica, None)
                    alone = self.scopes[each].alone[sort]
                    if alone is not None and alone[0] == replica:
                        self.scopes[each].alone[sort] = None
        elif says == "bad":
            self.samples[key].append(Sample(now_ms, replica, True, False))
            self.weigh(key, False, replica, seq, now_ms)
        elif says == "damage" and not hosts and self.is_after(HOST, event, seq, now_ms):
            self.samples[key].append(Sample(now_ms, replica, True, True, True))
            self.scopes[key].likes[True][replica] = now_ms
            if not self.weigh_host(replica, seq, now_ms):
                self.weigh(key, True, replica, seq, now_ms)

    def weigh_host(self, replica: str, seq: int, now_ms: int) -> bool:
        by: dict[str, int] = {}
        of = models = 0
        for key in self.samples:
            own_by, own_of = self.window(key, True, now_ms)
            hold = self.scopes[key].hold
            if hold is not None and hold.is_encoding:
                own_by[hold.by or ""] = own_by.get(hold.by or "", 0) + hold.bad
                own_of += hold.of
            own = sum(own_by.values())
            of += own_of
            models += own >= 3 and own * 100 >= 30 * own_of
            for name, count in own_by.items():
                by[name] = by.get(name, 0) + count
        bad = sum(by.values())
        reached = models >= 2 and bad >= 5 and of >= 12 and bad * 100 >= 30 * of
        if not reached and not self.scopes[HOST].likes[True] and self.scopes[HOST].alone[True] is None:
            return False
        self.scopes[HOST].likes[True][replica] = now_ms
        return self.judge(HOST, True, replica, seq, now_ms, by, of, reached)

    def weigh(self, key: str, is_encoding: bool, replica: str, seq: int, now_ms: int) -> None:
        self.scopes[key].likes[is_encoding][replica] = now_ms
        by, of = self.window(key, is_encoding, now_ms)
        bad = sum(by.values())
        reached = bad >= 5 and of >= 12 and bad * 100 >= 30 * of
        self.judge(key, is_encoding, replica, seq, now_ms, by, of, reached)

    def judge(
        self, key: str, sort: bool, replica: str, seq: int, now_ms: int, by: dict[str, int], of: int, reached: bool
    ) -> bool:
        scope = self.scopes[key]
        alone = scope.alone[sort]
        confirms = alone is not None and alone[0] != replica
        if not reached and not confirms:
            return False
        word = next(iter(by)) if len(by) == 1 else ""
        most = max(by, key=lambda name: (by[name], name))
        rest, rest_of = sum(by.values()) - by[most], of - by[most]
        if most and self.other_clean(key, most, now_ms) and (rest == 0 or rest * 100 * 2 < 30 * rest_of):
            word = most if by[most] * 100 >= 80 * sum(by.values()) else word
        second = any(name != word for name in scope.likes[sort])
        if not word or confirms or second or not self.other_clean(key, word, now_ms):
            self.begin(key, seq, now_ms, by, of, sort)
            return True
        if alone is None or alone[0] != word or now_ms >= alone[2]:
            self.told.append(("held", key, seq, now_ms + 30_000, word))
            scope.alone[sort] = (word, now_ms, now_ms + 30_000)
        else:
            scope.alone[sort] = (word, now_ms, alone[2])
        return False


def calls(seed: int, count: int) -> list[Recorded]:
    """Calls with bad phases, leases of holds that stand, late knowledge and long pauses; no faults that hold."""
    rng = random.Random(seed)
    found: list[Recorded] = []
    time_ms, watcher, ill, dull, checkable = START_MS, Fleet(), 0.1, 0.1, 0.8
    for seq in range(1, count + 1):
        time_ms += rng.choice([0, 1, 500, 4000, 4000, 20_000]) if rng.random() < 0.97 else rng.choice([30_000, 700_000])
        if rng.random() < 0.02:
            ill, dull, checkable = rng.choice([0.1, 0.4, 0.9]), rng.choice([0.05, 0.05, 0.9]), rng.choice([0.2, 0.8, 1])
        target = rng.choice(TARGETS[: 1 + seed % 4])
        names = [
            hold.began_seq
            for key in (HOST, target.key)
            for hold in ((watcher.store.nodes[key].state.holds or {}) if key in watcher.store.nodes else {}).values()
        ]
        kind = rng.choice(["empty_output", *["mangled_output"] * 3]) if rng.random() < ill else "ok"
        if rng.random() < dull:
            kind = rng.choice(["unknown", "content_filter", "bad_request"])
        event = CallOutcome(
            kind=kind,  # type: ignore[arg-type]
            signature=rng.choice([*["replacement_char"] * 2, "loop"]) if kind == "mangled_output" else None,
            checkable=rng.random() < checkable,
            attributable=rng.random() < 0.8,
            took_ms=rng.choice([None, 10, 50_000]),
            seen_seq=rng.choice([None, seq - 1, seq - 1, seq - 1, max(0, seq - 20), seq + 5]),
            trial=[Lease("degraded", name) for name in names] if names and rng.random() < 0.5 else None,
        )
        one = Recorded(event, target=target, replica=rng.choice(REPLICAS[: 1 + seed % 3]), seq=seq, time_ms=time_ms)
        found.append(one)
        watcher.apply(one)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_a_naive_reading_of_the_rules_says_the_same_at_every_event(seed: int) -> None:
    fleet, naive = Fleet(), Naive()
    for one in calls(seed, 700):
        event, target = one.event, one.target
        assert target is not None
        told = [
            ("held", each.scope.key, each.began_seq, each.end_ms, each.replica)
            if isinstance(each, TargetHeld)
            else ("released", each.scope.key, each.began_seq, each.end_ms, None)
            for each in fleet.apply(one)
            if isinstance(each, TargetHeld | Released) and each.rule == "degraded"
        ]
        naive.told = []
        naive.outcome(target, event, one.replica, one.seq, one.time_ms)
        assert told == naive.told, one.seq
        for key in (HOST, target.key):
            hold, node = naive.scopes[key].hold, fleet.store.nodes[key]
            mine = (node.state.holds or {}).get("degraded")
            if hold is None or mine is None:
                assert hold is None or one.time_ms >= hold.end_ms + 3_600_000, one.seq
                assert mine is None or one.time_ms >= mine.end_ms + 3_600_000, one.seq
            else:
                assert (mine.began_seq, mine.end_ms, mine.nth) == (hold.began_seq, hold.end_ms, hold.nth)
        by, of = naive.window(target.key, False, one.time_ms)
        found = fleet.document(target.key, one.time_ms)
        assert found is not None
        assert (found["bad_by"], found["checkable"]) == (by, of), one.seq
        by, of = naive.window(target.key, True, one.time_ms)
        assert (found["damaged"], found["attributable"]) == (sum(by.values()), of), one.seq


def test_the_histories_exercise_every_way_in_and_out() -> None:
    happened = dict.fromkeys(("host", "alone", "again", "success", "uncheckable"), 0)
    for seed in range(20):
        fleet = Fleet()
        for one in calls(seed, 700):
            for each in fleet.apply(one):
                if isinstance(each, TargetHeld):
                    happened["host"] += each.scope.model is None
                    happened["alone"] += each.replica is not None
                    happened["again"] += each.numbers.get("neutral_trials", 0) > 0
                elif isinstance(each, Released):
                    happened[each.by] = happened.get(each.by, 0) + 1
    assert all(happened.values()), happened


@pytest.mark.parametrize("seed", range(12))
def test_every_way_to_a_state_gives_the_same_bytes(seed: int) -> None:
    """One by one, in batches, and decoded anew in the middle: what the quick exit counts the slow way counts too."""
    rng = random.Random(seed)
    log = [one for one in calls(seed, 500) if one.target is not None]
    one_by_one, batched, reborn = Fleet(), Fleet(), Fleet()
    at = 0
    while at < len(log):
        part = log[at : at + rng.randrange(1, 40)]
        at += len(part)
        subjects = [f"sickbay.outcome.{one.replica}.{one.target.key}" for one in part if one.target is not None]
        told = batched.apply_many(subjects, [o.event for o in part], [o.seq for o in part], [o.time_ms for o in part])
        assert told == [each for one in part for each in one_by_one.apply(one)]
        again = []
        for one in part:
            if rng.random() < 0.5:
                reborn = Fleet.decode(reborn.encode())
            again += reborn.apply(one)
        assert again == told
    assert one_by_one.encode() == batched.encode() == reborn.encode()
    assert one_by_one.digest() == batched.digest() == reborn.digest()


def test_a_clock_that_steps_back_leaves_no_sample_ahead_of_it() -> None:
    fleet = Fleet()
    for n in range(6):
        event = CallOutcome(kind="ok" if n < 3 else "empty_output")
        fleet.apply(Recorded(event, target=TARGETS[0], replica="r1", seq=n + 1, time_ms=START_MS + n * MINUTE_MS))
    back_ms = START_MS + 90_000
    fleet.apply(Recorded(CallAnswered(), target=TARGETS[0], replica="r1", seq=7, time_ms=back_ms))
    found = fleet.document(TARGETS[0].key, back_ms)
    assert found is not None
    assert (found["bad"], found["checkable"]) == (3, 6)
    state = fleet.store.nodes[TARGETS[0].key].state
    assert state.checked == [START_MS // MINUTE_MS, 1, START_MS // MINUTE_MS + 1, 5]


def test_overrides_probes_and_policies_in_between_keep_every_way_equal() -> None:
    rng = random.Random(7)
    log: list[Recorded] = []
    for one in calls(3, 600):
        log.append(one)
        if rng.random() < 0.05:
            scope = rng.choice([Scope("h"), Scope("h", "a"), TARGETS[0].scope])
            log.append(Recorded(Override(action="clear", reason="x", actor="y"), scope=scope))
        if rng.random() < 0.05:
            probe = ProbeResult(level=rng.choice(["liveness", "readiness"]), ok=rng.random() < 0.5, kind="ok")
            log.append(Recorded(probe, target=rng.choice(TARGETS), replica="r1"))
    live, reborn = Fleet(Policy()), Fleet(Policy())
    for n, one in enumerate(log, 1):
        placed = Recorded(one.event, one.target, one.scope, one.replica, n, one.time_ms or live.time_ms)
        if n % 3 == 0:
            reborn = Fleet.decode(reborn.encode())
        assert live.apply(placed) == reborn.apply(placed), n
    assert live.encode() == reborn.encode()
