"""What keeps the state small (Rule 4.8)."""

from __future__ import annotations

import random
from typing import Any

from sickbay_events import Policy, Target
from sickbay_projections import Fleet
from sickbay_projections.testing import Log, Story, given, held

GONE: Any = "model_unavailable"
IDLE_S = 48 * 3600.0
MS = 0.001


def targets_in(fleet: Fleet) -> list[str]:
    return [key for key in list(fleet.keys()) if key.count(".") == 2]


def target(n: int) -> Target:
    return Target("h", f"m{n}")


def test_a_target_without_events_for_48_hours_leaves() -> None:
    """Two leave with each event, the oldest first."""
    log = Log(target(0))
    story = given(*(log.outcome("ok", at_s=n, target=target(n)) for n in range(5)))
    story.when(log.outcome("ok", at_s=IDLE_S - MS, target=target(9)))
    assert len(targets_in(story.fleet)) == 6
    story.when(log.outcome("ok", at_s=IDLE_S + 3, target=target(9)))
    assert targets_in(story.fleet) == ["h.=.m2", "h.=.m3", "h.=.m4", "h.=.m9"]
    story.fleet.passed(100, log.ms(IDLE_S + 3), "gap")
    assert targets_in(story.fleet) == ["h.=.m4", "h.=.m9"]
    assert story.fleet.store.targets == 2


def test_a_later_event_keeps_a_target() -> None:
    log = Log(target(0))
    story = given(log.outcome("ok", at_s=0), log.outcome("ok", at_s=0, target=target(1)), log.outcome("ok", at_s=1000))
    story.when(log.outcome("ok", at_s=IDLE_S + 1000 - MS, target=target(2)))
    assert targets_in(story.fleet) == ["h.=.m0", "h.=.m2"]
    story.when(log.outcome("ok", at_s=IDLE_S + 1000, target=target(2)))
    assert targets_in(story.fleet) == ["h.=.m2"]


def test_a_target_with_a_hold_stays_until_it_is_over() -> None:
    log = Log(target(0))
    story = given(log.override("hold", at_s=0, until_s=20 * 86_400.0), log.outcome("ok", at_s=0, target=target(1)))
    story.when(log.outcome("ok", at_s=10 * 86_400.0, target=target(2)))
    assert targets_in(story.fleet) == ["h.=.m0", "h.=.m2"]
    story.when(log.outcome("ok", at_s=20 * 86_400.0, target=target(2)))
    assert targets_in(story.fleet) == ["h.=.m2"]


def test_a_target_whose_hold_was_cleared_leaves_48_hours_after_that() -> None:
    log = Log(target(0))
    story = given(log.override("hold", at_s=0, until_s=20 * 86_400.0), log.override("clear", at_s=10))
    copy = Story(Fleet.decode(story.fleet.encode()))
    later = log.outcome("ok", at_s=10 + IDLE_S, target=target(2))
    for each in (story, copy):
        each.when(later)
        assert targets_in(each.fleet) == ["h.=.m2"]


def test_a_scope_without_targets_leaves_with_its_last_one() -> None:
    log = Log(Target("a#team", "m"))
    story = given(log.outcome("ok", at_s=0))
    assert list(story.fleet.keys()) == ["a", "a.team", "a.team.m"]
    story.when(log.outcome("ok", at_s=IDLE_S, target=Target("b", "m")))
    assert list(story.fleet.keys()) == ["b", "b.=", "b.=.m"]


def test_at_most_so_many_targets_more_are_counted_as_other() -> None:
    policy = Policy.from_data({"bounds": {"targets": 10}})
    log = Log(target(0))
    story = given(*(log.outcome("ok", at_s=0, target=target(n)) for n in range(15)), policy=policy)
    assert (story.fleet.store.targets, story.fleet.store.other) == (10, 5)
    story.when(log.outcome(GONE, at_s=1, target=target(3)), log.outcome(GONE, at_s=2, target=target(3)))
    story.then(held("quarantine"))
    story.when(*(log.outcome(GONE, at_s=3, target=target(12)) for _ in range(3))).then()
    assert story.fleet.counts == {"targets": 10, "replicas": 1, "repeated": 0, "other": 8}
    story.when(log.override("hold", at_s=4, scope=target(13).scope, until_s=60)).then(held("operator"))


def test_one_replica_may_bring_2000_new_targets_an_hour() -> None:
    log = Log(target(0), start_ms=1_700_000_400_000 // 3_600_000 * 3_600_000)
    story = given(*(log.outcome("ok", at_s=0, target=target(n)) for n in range(2100)))
    assert (story.fleet.store.targets, story.fleet.store.other) == (2000, 100)
    story.when(log.outcome("ok", at_s=1, target=target(2050), replica="r2"))
    assert story.fleet.store.targets == 2001
    story.when(log.outcome("ok", at_s=3600 - MS, target=target(2060)))
    assert story.fleet.store.other == 101
    story.when(log.outcome("ok", at_s=3600, target=target(2060)))
    assert (story.fleet.store.targets, story.fleet.store.other) == (2002, 101)


def test_eviction_is_a_function_of_the_state() -> None:
    """A fleet decoded at any point evicts the same targets at the same events as the one that lived on."""
    policy = Policy.from_data(
        {"bounds": {"idle_s": 30.0}, "rejections": {"hold_s": 20.0}, "evidence": {"probation_s": 5.0}}
    )
    for seed in range(3):
        rng = random.Random(seed)
        log, live, at_s = Log(target(0)), given(policy=policy), 0.0
        for n in range(600):
            at_s += rng.choice([0, 0.1, 1, 10])
            who = target(rng.randrange(40))
            if rng.random() < 0.1:
                action = rng.choice(["hold", "allow", "clear"])
                event = log.override(action, at_s=at_s, scope=who.scope, until_s=at_s + rng.choice([5, 500]))
            else:
                event = log.outcome(rng.choice(["ok", GONE]), at_s=at_s, target=who, seen_seq=n)
            copy = Fleet.decode(live.fleet.encode()) if n % 5 == 0 else None
            live.when(event)
            if copy is not None:
                copy.apply(event)
                assert copy.encode() == live.fleet.encode(), (seed, n)
                assert copy.digest() == live.fleet.digest()
        assert len(targets_in(live.fleet)) < 40
