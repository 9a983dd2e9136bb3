"""A log that brings operators' acts again, as after a restore, does not repeat what they did (Rule 4, Once)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from sickbay_events import Override, Policy, Scope, Target, rfc3339
from sickbay_projections import Fleet, Recorded
from sickbay_projections.state.dedup import ACTS_MAX
from sickbay_projections.testing import Log

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")
HOST = Scope("openrouter.ai")
Maker = Callable[[Log, float], dict[str, Any]]


def by_id(log: Log, at_s: float) -> dict[str, Any]:
    return {"id": f"act-{at_s}"}


def by_time(log: Log, at_s: float) -> dict[str, Any]:
    """As acts were stored before they had ids."""
    return {"at": rfc3339(log.ms(at_s))}


def by_both(log: Log, at_s: float) -> dict[str, Any]:
    return by_id(log, at_s) | by_time(log, at_s)


def fold(*recorded: Recorded) -> Fleet:
    fleet = Fleet()
    for one in recorded:
        fleet.apply(one)
    return fleet


def again(log: Log, *acts: Recorded, at_s: float) -> list[Recorded]:
    """The same acts once more, later in the log."""
    found = []
    for act in acts:
        log.seq += 1
        found.append(msgspec.structs.replace(act, seq=log.seq, time_ms=log.ms(at_s)))
    return found


@pytest.mark.parametrize("says", [by_id, by_time, by_both])
@pytest.mark.parametrize("scope", [TARGET.scope, HOST])
@pytest.mark.parametrize("idle_s", [300.0, 4 * 86_400.0])
def test_an_old_clear_that_comes_again_releases_nothing(says: Maker, scope: Scope, idle_s: float) -> None:
    """Also where the target had left the state in between."""
    log = Log(TARGET)
    clear = log.override("clear", at_s=0, scope=scope, **says(log, 0))
    strikes = [log.outcome("model_unavailable", at_s=idle_s + n, replica=f"r{n}") for n in (1, 2)]
    fleet = fold(clear, *strikes)
    assert fleet.decide(TARGET, log.ms(idle_s + 3)).reason == "quarantined"
    told = [event for one in again(log, clear, at_s=idle_s + 3) for event in fleet.apply(one)]
    assert fleet.decide(TARGET, log.ms(idle_s + 4)).reason == "quarantined"
    assert told == [] and fleet.repeated == 1
    assert fleet.passed_over == {log.seq: "repeated"}


@pytest.mark.parametrize("says", [by_id, by_time, by_both])
@pytest.mark.parametrize("action", ["hold", "allow"])
def test_an_act_that_was_cleared_does_not_come_back(says: Maker, action: str) -> None:
    log = Log(TARGET)
    acts = [
        log.override(action, at_s=0, until_s=9_000, **says(log, 0)),
        log.override("clear", at_s=10, **says(log, 10)),
    ]
    fleet = fold(*acts)
    for one in again(log, acts[0], at_s=20):
        assert fleet.apply(one) == []
    assert fleet.decide(TARGET, log.ms(21)).reason == "ok"


@pytest.mark.parametrize("says", [by_id, by_time])
def test_the_same_words_said_later_are_another_act(says: Maker) -> None:
    log = Log(TARGET)
    fleet = fold(
        log.override("hold", at_s=0, until_s=9_000, **says(log, 0)),
        log.override("clear", at_s=10, **says(log, 10)),
        log.override("hold", at_s=20, until_s=9_000, **says(log, 20)),
    )
    assert fleet.decide(TARGET, log.ms(21)).reason == "held_by_operator"
    assert fleet.repeated == 0


def test_acts_with_neither_id_nor_time_count_each_time() -> None:
    log = Log(TARGET)
    fleet = fold(*(log.override("hold", at_s=0, until_s=90) for _ in range(2)))
    assert fleet.repeated == 0


def test_one_id_on_two_scopes_is_two_acts() -> None:
    log = Log(TARGET)
    fleet = fold(
        log.override("hold", at_s=0, until_s=90, id="x"), log.override("hold", at_s=0, until_s=90, scope=HOST, id="x")
    )
    assert fleet.repeated == 0


def test_a_policy_that_comes_again_is_not_in_force_again() -> None:
    log = Log(TARGET)
    first, second = (log.policy(Policy.from_data({"rejections": {"threshold": n}}), at_s=n) for n in (5, 7))
    first, second = (
        msgspec.structs.replace(one, event=msgspec.structs.replace(one.event, id=str(one.seq)))
        for one in (first, second)
    )
    fleet = fold(first, second, *again(log, first, at_s=9))
    assert (fleet.policy.rejections.threshold, fleet.policy_seq) == (7, 2)


@pytest.mark.parametrize("count", [ACTS_MAX + 1, 3 * ACTS_MAX])
def test_a_long_list_of_acts_brought_again_in_order_changes_nothing(count: int) -> None:
    """More of them than are known one by one: a restored control stream begins with its oldest."""
    log, draw = Log(TARGET), random.Random(count)
    scopes = [TARGET.scope, HOST, Scope("openrouter.ai", "", "other"), Scope("b.example")]
    acts = []
    for n in range(count):
        until_s = None if (action := draw.choice(["hold", "allow", "clear"])) == "clear" else n + 90_000.0
        acts.append(log.override(action, at_s=n, scope=draw.choice(scopes), until_s=until_s, **by_both(log, n)))
    fleet = fold(*acts)
    before = list(fleet.entries())
    for one in again(log, *acts, at_s=count):
        assert fleet.apply(one) == []
    assert list(fleet.entries()) == before
    assert fleet.repeated == count
    assert Fleet.decode(fleet.encode()).digest() == fleet.digest()
    new = log.override("clear", at_s=count + 1, scope=HOST, **by_both(log, count + 1))
    fleet.apply(new)
    assert fleet.repeated == count


def test_a_time_far_ahead_makes_no_later_act_an_old_one() -> None:
    """What a raw publisher says about its clock is never later than the log's."""
    log = Log(TARGET)
    fleet = fold(*(log.override("clear", at_s=n, at="2999-01-01T00:00:00Z", id=str(n)) for n in range(ACTS_MAX + 9)))
    fleet.apply(log.override("hold", at_s=1_000, until_s=9_000, **by_both(log, 1_000)))
    assert fleet.decide(TARGET, log.ms(1_001)).reason == "held_by_operator"


def test_after_a_log_clock_that_steps_back_acts_count() -> None:
    log = Log(TARGET)
    fleet = fold(*(log.override("clear", at_s=50_000 + n, **by_both(log, 50_000 + n)) for n in range(ACTS_MAX + 9)))
    fleet.apply(log.override("hold", at_s=100, until_s=9_000, **by_both(log, 100)))
    assert fleet.decide(TARGET, log.ms(101)).reason == "held_by_operator"


def test_a_time_that_is_none_is_as_if_it_were_not_said() -> None:
    log = Log(TARGET)
    event = Override(action="hold", reason="r", actor="a", until=rfc3339(log.ms(90)), at="yesterday")
    fleet = fold(*(Recorded(event, scope=HOST, seq=n, time_ms=log.ms(n)) for n in (1, 2)))
    assert fleet.repeated == 0
