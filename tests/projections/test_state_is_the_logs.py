"""State is what the log says: kept along, read back at any event, in chunks or one by one, it is the same state."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from histories import history
from sickbay_events import Policy, Scope, Target
from sickbay_events.codec import outcome_subject, override_subject, probe_subject
from sickbay_events.outcome import Override, PolicyChanged, ProbeResult
from sickbay_projections import Fleet, Recorded
from sickbay_projections.testing import Log, given

HOST = "h.example"
A, B, C = (Target(HOST, name) for name in "abc")
EXTREME: list[dict[str, Any]] = [
    {"evidence": {"window_s": 0.001, "record_s": 1, "probation_s": 0.5}, "bounds": {"idle_s": 3}},
    {"bounds": {"targets": 3, "new_targets_per_hour": 2}},
    {"witnesses": {"heard_s": 1, "good_answer_s": 0.5}, "ramp": {"replicas": 1}},
    {"rejections": {"threshold": 1}, "breaker": {"consecutive": 1}, "degraded": {"consecutive": 1}},
]


def subject_of(recorded: Recorded) -> str:
    if isinstance(recorded.event, PolicyChanged):
        return "sickbay.policy"
    if isinstance(recorded.event, Override):
        scope = recorded.scope or (recorded.target.scope if recorded.target else None)
        assert scope is not None
        return override_subject(scope)
    assert recorded.target is not None
    make = probe_subject if isinstance(recorded.event, ProbeResult) else outcome_subject
    return make(recorded.replica, recorded.target)


@pytest.mark.parametrize("seed", range(12))
def test_the_digest_kept_along_is_that_of_the_state_read_back(seed: int) -> None:
    """And who goes on from the state read back goes on alike."""
    policy = Policy.from_data(EXTREME[seed % 5]) if seed % 5 < len(EXTREME) else Policy()
    live = Fleet(policy)
    for recorded in history(1_000 + seed, 300):
        back = Fleet.decode(live.encode())
        told = live.apply(recorded)
        assert back.apply(recorded) == told, recorded
        assert back.encode() == live.encode(), recorded
        digest = live.digest()
        assert digest == Fleet.decode(live.encode()).digest() == back.digest(), recorded


@pytest.mark.parametrize("seed", range(6))
def test_chunks_of_any_size_give_the_state_of_one_by_one(seed: int) -> None:
    draw, one, many = random.Random(seed), Fleet(), Fleet()
    events = [each for each in history(2_000 + seed, 900) if each.target is not None or each.scope is not None]
    at = 0
    while at < len(events):
        chunk = events[at : at + draw.choice([1, 2, 7, 100])]
        at += len(chunk)
        told = [event for each in chunk for event in one.apply(each)]
        columns = [each.event for each in chunk], [each.seq for each in chunk], [each.time_ms for each in chunk]
        assert many.apply_many([subject_of(each) for each in chunk], *columns) == told
        assert many.digest() == one.digest()
    assert many.encode() == one.encode()


@pytest.fixture
def log() -> Log:
    return Log(A)


def times(log: Log, count: int, kind: Any, at_s: float, target: Target, replica: str, **fields: Any) -> list[Recorded]:
    return [log.outcome(kind, at_s=at_s, target=target, replica=replica, **fields) for _ in range(count)]


DAMAGED: Any = {"signature": "double_encoded", "attributable": True, "scope": "host"}


def test_damage_that_grows_old_leaves_the_digest_that_of_the_state(log: Log) -> None:
    events = [*times(log, 3, "ok", 0, A, "r2", attributable=True), *times(log, 3, "ok", 0, B, "r2", attributable=True)]
    for target in (A, B):
        events += times(log, 3, "mangled_output", 1, target, "r1", **DAMAGED)
    fleet = given(*events).fleet
    fleet.digest()
    for one in times(log, 3, "timeout", 701, C, "r1", limit_ms=60_000):
        fleet.apply(one)
        assert fleet.digest() == Fleet.decode(fleet.encode()).digest()


@pytest.mark.parametrize("later_s", [1, 7_200])
def test_damage_of_hours_ago_does_not_hold_the_host(log: Log, later_s: int) -> None:
    story = given(*times(log, 12, "mangled_output", 0, A, "r1", **DAMAGED))
    story.when(*times(log, 3, "mangled_output", later_s, B, "r1", **DAMAGED))
    assert story.fleet.decide(C, log.ms(later_s + 1)).allowed == (later_s > 1)


def test_what_is_not_after_a_hold_does_not_reopen_it(log: Log) -> None:
    story = given(*times(log, 5, "server_error", 0, A, "r1"))
    hold = next(iter((story.fleet.store.nodes[A.key].state.holds or {}).values()))
    late = times(log, 6, "server_error", (hold.end_ms - log.ms(0)) / 1000 + 1, A, "r1", took_ms=3_600_000)
    told = [event for one in late for event in story.fleet.apply(one)]
    assert {type(event).__name__ for event in told} <= {"HealthChanged"}
    assert next(iter((story.fleet.store.nodes[A.key].state.holds or {}).values())).nth == hold.nth


@pytest.mark.parametrize("scope", [Scope(HOST), Scope(HOST, ""), A.scope])
@pytest.mark.parametrize("order", ["clear, ok", "ok, clear"])
def test_an_answer_after_a_clear_in_its_millisecond_speaks_for_the_others(log: Log, order: str, scope: Scope) -> None:
    """One that came before a wide clear in the same millisecond does so too: a model takes note of it late."""
    log_of = {
        "clear": lambda: log.override("clear", at_s=10, scope=scope),
        "ok": lambda: log.outcome("ok", at_s=10, replica="r2", target=A),
    }
    seen = [log.outcome("ok", at_s=0, replica="r2", target=B), log.outcome("ok", at_s=0, replica="r1", target=A)]
    story = given(*seen, *(log_of[one]() for one in order.split(", ")))
    story.when(*times(log, 2, "model_unavailable", 12, A, "r1", took_ms=1_000))
    held = story.fleet.store.nodes[A.key].state.holds
    assert bool(held) == (order == "ok, clear" and scope == A.scope), held


@pytest.mark.parametrize("cleared", ["nothing", "the model", "the credential"])
def test_a_clear_of_one_model_takes_no_good_answer_from_its_credential(log: Log, cleared: str) -> None:
    """Else one replica's word could throttle the whole credential."""
    named, other = Target(f"{HOST}#team", "a"), Target(f"{HOST}#team", "b")
    events = [log.outcome("ok", at_s=0, target=named, replica="r2")]
    if cleared != "nothing":
        scope = named.scope if cleared == "the model" else Scope(HOST, "team")
        events.append(log.override("clear", at_s=1, scope=scope))
    events.append(log.outcome("quota", at_s=4, target=named, replica="r1", took_ms=1_000))
    fleet = given(*events).fleet
    assert bool(fleet.store.nodes[Scope(HOST, "team").key].state.holds) == (cleared == "the credential")
    assert fleet.decide(other, log.ms(5), replica="r2").allowed


def test_a_state_is_a_copy_and_not_a_view_of_its_events(log: Log) -> None:
    recorded = log.outcome("server_error", at_s=0)
    fleet = given(recorded).fleet
    before = fleet.encode()
    assert fleet.apply(msgspec.structs.replace(recorded, seq=recorded.seq)) == []
    assert fleet.encode() == before
