"""Rules 4.0 to 4.4 against a naive reading of them over random histories (`points_model`), and the same state by
every way to it."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from points_model import BAD, FAULTS, NEUTRAL, PLACES, REJECTIONS, SCORED, TARGET, THROTTLES, Naive
from sickbay_events import CallAnswered, CallOutcome, Lease, Override
from sickbay_events.derived import Released, TargetHeld, WarningRaised
from sickbay_events.names import untoken
from sickbay_projections import Fleet, Recorded

START_MS = 1_700_000_000_000
EVENTS = 900
MOODS: tuple[dict[str, float], ...] = (
    {"ok": 1.0},
    {"ok": 0.95, "fault": 0.05},
    {"ok": 0.9, "rejection": 0.1},
    {"ok": 0.5, "fault": 0.5},
    {"ok": 0.6, "bad": 0.4},
    {"fault": 1.0},
    {"rejection": 1.0},
    {"bad": 1.0},
    {"throttle": 1.0},
    {"ok": 0.5, "throttle": 0.5},
    {"ok": 0.3, "fault": 0.2, "rejection": 0.1, "bad": 0.2, "throttle": 0.1, "neutral": 0.1},
)
KINDS = {"ok": ("ok",), "fault": FAULTS, "rejection": REJECTIONS, "bad": BAD, "throttle": THROTTLES, "neutral": NEUTRAL}


class Life:
    """A target whose mood changes, replicas with broken uplinks, calls that overlap holds, leases right and wrong."""

    def __init__(self, seed: int, naive: Naive) -> None:
        self.rng, self.naive = random.Random(seed), naive
        self.now_ms, self.seq = START_MS, 0
        count = 1 if naive.overlay else self.rng.choice((1, 2, 4, 6))
        self.replicas = [f"r{number}" for number in range(count)]
        self.turn()

    def turn(self) -> None:
        rng = self.rng
        self.mood, self.broken = rng.choice(MOODS), rng.choice(("", "", *self.replicas))
        self.broken_by = rng.choice(("fault", "rejection", "bad", "throttle"))
        self.gap_ms, self.hint_s = rng.choice((20, 400, 3_000, 30_000)), rng.choice((None, None, 0, 0.5, 30, 700))
        self.named, self.leases = rng.choice((None, None, "credential", "model")), rng.choice((0.1, 0.5, 0.9))
        shy = 0.6 if ("model", "degraded") in self.naive.holds else 0.2
        self.sorts: dict[str, Any] = {"checkable": rng.random() >= shy, "attributable": rng.random() < 0.5}

    def next(self) -> tuple[CallOutcome | CallAnswered, str]:
        rng = self.rng
        self.seq += 1
        if rng.random() < 0.015:
            self.turn()
        self.now_ms += round(rng.expovariate(1 / self.gap_ms))
        if rng.random() < 0.01:
            self.now_ms += rng.choice((10_000, 599_999, 600_000, 3_700_000, 43_200_000))
        replica = rng.choice(self.replicas)
        sort = rng.choices(list(self.mood), list(self.mood.values()))[0]
        kind: Any = rng.choice(KINDS[sort if replica != self.broken else self.broken_by])
        seen = rng.random()
        seen_seq = None if seen < 0.05 else self.seq + rng.randrange(3) if seen < 0.07 else max(0, self.seq - 1)
        if seen > 0.8:
            seen_seq = max(0, self.seq - rng.randrange(1, 12))
        trial = [
            Lease(rule, hold["seq"] - (rng.random() < 0.05))
            for (_, rule), hold in self.naive.holds.items()
            if rng.random() < self.leases
        ]
        common: dict[str, Any] = {"seen_seq": seen_seq, "trial": trial or None}
        common["queued_ms"] = rng.choice((None, 5_000, 5_001, 599_999, 700_000)) if rng.random() < 0.1 else 1
        if kind == "ok" and rng.random() < 0.1:
            return CallAnswered(**common), replica
        return CallOutcome(
            kind=kind,
            scope=self.named if kind in THROTTLES else None,  # type: ignore[arg-type]
            took_ms=rng.choice((None, 50, 1_200.5, 20_000, 200_000)),
            forced=rng.random() < 0.03,
            retry_after_s=self.hint_s if kind in THROTTLES or rng.random() < 0.1 else None,
            signature=rng.choice((None, "double_encoded")) if kind == "mangled_output" else None,
            **self.sorts,
            **common,
        ), replica


def told_by(fleet: Fleet, recorded: Recorded) -> list[tuple[Any, ...]]:
    """What followed, in the model's words."""
    found: list[tuple[Any, ...]] = []
    for event in fleet.apply(recorded):
        place = {"model": "model", "credential": "credential"}.get(event.scope.name, "host")
        if isinstance(event, WarningRaised) and event.rule == "replica_suspect":
            found.append(("suspect", place, event.replica))
        elif isinstance(event, Released):
            found.append(("released", place, event.rule, event.began_seq, event.by))
        elif isinstance(event, TargetHeld) and event.replica is not None:
            found.append(("alone", place, event.rule, event.replica))
        elif isinstance(event, TargetHeld):
            found.append(("held", place, event.rule, event.began_seq, event.end_ms))
    return [told for told in found if told[1] != "host"]


def check(fleet: Fleet, naive: Naive, now_ms: int) -> None:
    """State and entries are what the model has."""
    for place, key in zip(("credential", "model"), TARGET.keys[1:], strict=True):
        node = fleet.store.nodes[key]
        holds = {rule: hold for (at, rule), hold in naive.holds.items() if at == place and now_ms < naive.over_ms(hold)}
        shown = {hold.rule: hold for hold in (fleet.entry(key).holds if fleet.entry(key) else ())}  # type: ignore[union-attr]
        assert shown.keys() == holds.keys()
        for rule, hold in holds.items():
            view = shown[rule]
            found = (view.began_seq, view.n, view.end_ms, view.trial_from_ms, view.by, view.last)
            assert found == (hold["seq"], hold["n"], hold["end_ms"], hold["trial_ms"], hold["by"], hold["last"]), rule
        for name in SCORED:
            slot, score = (node.state.points or {}).get(name), naive.scores[place, name]
            assert (slot.points if slot else 0, slot.top if slot else 0) == (score.points, score.top), name
            if slot is not None:
                by = {untoken(replica): tuple(counts) for replica, counts in slot.by.items()}
                assert by == score.by(), name
        ramp = node.state.ramp
        expected = naive.ramp.get(place)
        if ramp is not None and now_ms < ramp.end_ms:
            assert (ramp.began_seq, ramp.from_ms, ramp.end_ms, untoken(ramp.prover)) == expected
        else:
            assert expected is None or now_ms >= expected[2]


@pytest.mark.parametrize("seed", range(40))
def test_the_fold_says_what_a_naive_reading_of_the_rules_says(seed: int) -> None:
    """Every fourth history is an overlay's."""
    naive, fleet = Naive(overlay=seed % 4 == 3), Fleet(overlay=seed % 4 == 3)
    life = Life(seed, naive)
    for _ in range(EVENTS):
        event, replica = life.next()
        began = len(naive.told)
        if life.rng.random() < 0.003 and not naive.overlay:
            act = Override(action="clear", reason="test", actor="test")
            recorded = Recorded(act, scope=TARGET.scope, seq=life.seq, time_ms=life.now_ms)
            naive.clear(life.seq, life.now_ms)
        else:
            recorded = Recorded(event, target=TARGET, replica=replica, seq=life.seq, time_ms=life.now_ms)
            naive.fold(event, replica, life.seq, life.now_ms)
        found = told_by(fleet, recorded)
        assert found == naive.told[began:], f"seed {seed}, sequence {life.seq}"
        if TARGET.key in fleet.store.nodes:
            check(fleet, naive, life.now_ms)


def test_the_histories_take_every_turn_often() -> None:
    """A model that never holds would agree with everything."""
    seen: Counter[Any] = Counter()
    for seed in range(40):
        naive = Naive(overlay=seed % 4 == 3)
        life = Life(seed, naive)
        for _ in range(EVENTS):
            event, replica = life.next()
            naive.fold(event, replica, life.seq, life.now_ms)
            seen.update(("n above 3", rule) for (_, rule), hold in naive.holds.items() if hold["n"] == 4)
            seen.update(("by", rule) for (_, rule), hold in naive.holds.items() if hold["by"])
            seen.update(("record", name) for (_, name), score in naive.scores.items() if score.record(life.now_ms))
        seen.update((told[0], told[2]) for told in naive.told if told[0] != "suspect")
        seen.update(("released", told[4]) for told in naive.told if told[0] == "released")
        seen.update(("place", told[1]) for told in naive.told)
    rules = ("quarantine", "throttle", "breaker", "degraded")
    wanted = [(what, rule) for what in ("held", "alone", "released", "by") for rule in rules]
    wanted += [("record", name) for name in ("strikes", "throttles", "faults", "bad")]
    wanted += [("released", "uncheckable"), ("place", "credential"), *(("n above 3", rule) for rule in rules)]
    assert [turn for turn in wanted if seen[turn] < 5] == []
    assert PLACES == ("model", "credential")
