"""Made up names fill the state: those that were answered still find room, and what is dropped is said (Rule 4.8)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sickbay_events import Policy, Target
from sickbay_projections import Fleet
from sickbay_projections.state.limits import NEW_TARGETS_ALL
from sickbay_projections.testing import Log, Story, given, held

GONE: Any = "model_unavailable"
REAL = Target("real.example", "important")
HOUR_S = 3600.0


def invented(n: int) -> Target:
    return Target("h", f"made-up-{n}")


@pytest.fixture
def log() -> Log:
    return Log(REAL, start_ms=1_700_000_400_000 // 3_600_000 * 3_600_000)


def flooded(log: Log, count: int, replicas: int = 1, **bounds: float) -> Story:
    policy = Policy.from_data({"bounds": bounds})
    events = (log.outcome(GONE, at_s=0, target=invented(n), replica=f"x{n % replicas}") for n in range(count))
    return given(*events, policy=policy)


@pytest.mark.parametrize("refusals_each", [1, 3])
@pytest.mark.parametrize("kind", [GONE, "server_error", "ok", "timeout"])
def test_a_full_state_of_made_up_names_takes_a_real_one(log: Log, kind: Any, refusals_each: int) -> None:
    """Also where the made up ones are held."""
    story = flooded(log, 40, 5, targets=20)
    for n in range(20, 40):
        story.when(*(log.outcome(GONE, at_s=0, target=invented(n), replica="x9") for _ in range(refusals_each - 1)))
    story.when(*(log.outcome(kind, at_s=1, replica=f"r{n}", limit_ms=60_000) for n in range(6)))
    assert story.fleet.store.targets == 20
    assert REAL.key in story.fleet.store.nodes
    assert story.fleet.decide(REAL, log.ms(2)).allowed == (kind == "ok")


def test_the_name_that_was_refused_longest_ago_gives_way_first(log: Log) -> None:
    story = flooded(log, 5, targets=5)
    story.when(log.outcome(GONE, at_s=1, target=invented(0)))
    story.when(log.outcome("ok", at_s=2))
    stand = {node.key for node in story.fleet.store.nodes.values() if node.scope.model is not None}
    assert stand == {REAL.key, *(invented(n).key for n in (0, 2, 3, 4))}


def test_an_entry_of_one_that_gives_way_is_taken_back(log: Log) -> None:
    story = flooded(log, 1, targets=1)
    story.when(log.outcome(GONE, at_s=1, target=invented(0), replica="r2")).then(held("quarantine"))
    story.fleet.take_changed()
    story.when(log.outcome("ok", at_s=2))
    assert invented(0).key in story.fleet.take_changed()
    assert story.fleet.entry(invented(0).key) is None
    assert story.fleet.decide(invented(0), log.ms(3)).allowed


@pytest.mark.parametrize("answered", ["ok", "server_error", "empty_output"])
def test_what_was_answered_or_failed_otherwise_gives_way_to_nobody(log: Log, answered: Any) -> None:
    story = given(
        *(log.outcome(answered, at_s=0, target=invented(n)) for n in range(3)),
        log.override("hold", at_s=0, until_s=90, scope=invented(3).scope),
        policy=Policy.from_data({"bounds": {"targets": 4}}),
    )
    story.when(log.outcome(GONE, at_s=1, target=invented(3)), log.outcome("ok", at_s=2))
    assert REAL.key not in story.fleet.store.nodes
    assert [(one.replica, one.events, one.since_ms) for one in story.fleet.dropped(log.ms(3))] == [("r1", 1, log.ms(2))]


def test_beyond_the_hours_limit_a_refused_name_takes_nobodys_place(log: Log) -> None:
    """Else a client could have one name after the other taken in, for ever."""
    story = flooded(log, 8, new_targets_per_hour=5)
    assert (story.fleet.store.targets, story.fleet.store.other) == (5, 3)
    story.when(*(log.outcome("server_error", at_s=1, replica="x0") for _ in range(5)))
    story.when(log.outcome("server_error", at_s=2, replica="r2")).then_decision(REAL, log.ms(3), allowed=False)
    assert story.fleet.store.targets == 5


@pytest.mark.parametrize("replicas", [25, 400])
def test_all_replicas_together_have_a_limit_for_an_hour(log: Log, replicas: int) -> None:
    """One credential may report under many names."""
    limit = 4 * NEW_TARGETS_ALL
    story = flooded(log, 5 * limit, replicas, new_targets_per_hour=4)
    assert story.fleet.store.targets == limit
    story.when(log.outcome("ok", at_s=1))
    assert REAL.key in story.fleet.store.nodes
    story.when(log.outcome(GONE, at_s=HOUR_S, target=invented(99_999)))
    assert story.fleet.store.targets == limit + 1


def test_who_drops_is_told_by_most_and_for_an_hour(log: Log) -> None:
    story = flooded(log, 5, new_targets_per_hour=1)
    story.when(*(log.outcome(GONE, at_s=5, target=invented(n), replica="r 2") for n in range(10, 13)))
    told = story.fleet.dropped(log.ms(6))
    assert [(one.replica, one.events, one.since_ms) for one in told] == [("x0", 4, log.ms(0)), ("r 2", 2, log.ms(5))]
    assert [one.replica for one in story.fleet.dropped(log.ms(HOUR_S + 1))] == ["r 2"]
    assert story.fleet.dropped(log.ms(HOUR_S + 5)) == []


@pytest.mark.parametrize("seed", range(6))
def test_who_gives_way_is_a_function_of_the_state(log: Log, seed: int) -> None:
    """A fleet read back at any point goes on as the one that lived on."""
    draw = random.Random(seed)
    policy = Policy.from_data({"bounds": {"targets": 12, "new_targets_per_hour": 9, "idle_s": 4000.0}})
    story, at_s = given(policy=policy), 0.0
    for n in range(500):
        at_s += draw.choice([0, 0.1, 30, 900])
        who, replica = invented(draw.randrange(60)), f"r{draw.randrange(4)}"
        kind = draw.choice([GONE, GONE, GONE, "ok", "server_error", "permission_model"])
        if draw.random() < 0.05:
            action = draw.choice(["hold", "clear"])
            event = log.override(action, at_s=at_s, scope=who.scope, until_s=at_s + 50, id=str(n))
        else:
            event = log.outcome(kind, at_s=at_s, target=who, replica=replica)
        copy = Fleet.decode(story.fleet.encode())
        story.when(event)
        copy.apply(event)
        assert copy.encode() == story.fleet.encode(), (seed, n)
        assert copy.digest() == story.fleet.digest()
    assert story.fleet.store.other > 0
