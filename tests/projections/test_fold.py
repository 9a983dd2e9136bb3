"""The loop: position, log time, the rule Once, poison, policy (Rules 4, 6 and 7)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sickbay_events import CallOutcome, CallsRefused, NameRefused, Poison, Policy, PolicyChanged, Scope, Target
from sickbay_events.codec import outcome_subject
from sickbay_projections import Fleet, Recorded
from sickbay_projections.state.dedup import is_first
from sickbay_projections.state.model import Replica
from sickbay_projections.testing import Log, given, held

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")
GONE: Any = "model_unavailable"
BOOT = "0123456789abcdef"
HOUR_MS = 3_600_000
MS = 0.001


@pytest.fixture
def log() -> Log:
    return Log(TARGET)


# -- position and log time -----------------------------------------------------------------------------


def test_an_event_at_or_below_the_position_changes_nothing_at_all(log: Log) -> None:
    story = given(log.outcome(GONE, at_s=0))
    before = story.fleet.encode()
    again = Recorded(CallOutcome(kind=GONE), target=TARGET, replica="r2", seq=1, time_ms=log.ms(9))
    story.when(again, again).then()
    story.fleet.passed(1, log.ms(10), "gap")
    assert story.fleet.encode() == before


def test_poison_and_gaps_move_the_position_and_are_counted_in_the_state(log: Log) -> None:
    fleet = Fleet()
    fleet.passed(1, log.ms(1), "gap")
    fleet.apply_many(
        ["sickbay.outcome.r1.a.=.m", "sickbay.outcome.broken", "sickbay.nonsense"],
        [Poison("kind", "no kind"), CallOutcome(kind="ok"), CallOutcome(kind="ok")],
        [2, 3, 4],
        [log.ms(2)] * 3,
    )
    assert fleet.skipped == {"gap": 1, "kind": 1, "subject": 2}
    assert (fleet.seq, fleet.time_ms) == (4, log.ms(2))
    assert Fleet.decode(fleet.encode()).skipped == fleet.skipped
    for n in range(100):
        fleet.passed(5 + n, log.ms(3), f"reason {n}")
    assert len(fleet.skipped) <= 33
    assert sum(fleet.skipped.values()) == 104


def test_the_log_clock_does_not_step_back_by_less_than_two_seconds(log: Log) -> None:
    story = given(log.outcome(GONE, at_s=10), log.outcome(GONE, at_s=8 + MS))
    story.then(held("quarantine", time_ms=log.ms(10), end_ms=log.ms(610)))
    assert story.fleet.time_ms == log.ms(10)


def test_a_larger_step_back_is_believed_and_no_end_lies_further_ahead_than_the_cap(log: Log) -> None:
    day_s = 86_400.0
    story = given(
        log.outcome("ok", at_s=day_s, replica="r2", target=Target("other.example", "m")),
        log.override("hold", at_s=day_s, scope=Scope("other.example"), until_s=40 * day_s),
        log.outcome(GONE, at_s=day_s),
        log.outcome(GONE, at_s=day_s),
    ).then(held("operator"), held("quarantine", end_ms=log.ms(day_s + 600)))
    story.fleet.take_changed()
    story.when(log.outcome("bad_request", at_s=100))
    assert story.fleet.time_ms == log.ms(100)
    story.then_decision(TARGET, log.ms(102), allowed=False, replica="r1", retry_in_s=598.0)
    story.then_decision(TARGET, log.ms(700), allowed=True, trial=True)
    story.then_decision(TARGET, log.ms(700 + 3600), trial=False)
    story.then_decision(Target("other.example", "m"), log.ms(100), retry_in_s=30 * day_s)
    assert sorted(story.fleet.take_changed()) == sorted([TARGET.key, "other=2Eexample"])


def test_a_step_back_of_two_seconds_moves_stored_times_with_it(log: Log) -> None:
    story = given(log.outcome(GONE, at_s=100), log.outcome("bad_request", at_s=98))
    assert story.fleet.time_ms == log.ms(98)
    document = story.fleet.document(TARGET.key, log.ms(98))
    assert document is not None
    strikes = document["evidence"]["strikes"]
    assert (strikes["points"], strikes["until_ms"]) == (1, log.ms(698))


def test_a_sequence_of_zero_is_the_next_one(log: Log) -> None:
    fleet = Fleet()
    for _ in range(2):
        fleet.apply(Recorded(CallOutcome(kind=GONE), target=TARGET, time_ms=log.ms(0)))
    assert fleet.seq == 2
    assert fleet.decide(TARGET, log.ms(0)).began_seq == 2


# -- Once ----------------------------------------------------------------------------------------------


def test_an_event_seen_before_changes_nothing_and_is_counted(log: Log) -> None:
    story = given(log.outcome(GONE, at_s=0, id=f"{BOOT}-1"))
    story.when(*(log.outcome(GONE, at_s=n, id=f"{BOOT}-1") for n in range(5))).then()
    assert story.fleet.repeated == 5
    story.when(log.outcome(GONE, at_s=6, id=f"{BOOT}-2")).then(held("quarantine"))


def test_replicas_and_boots_count_for_themselves(log: Log) -> None:
    ids = [("r1", f"{BOOT}-1"), ("r2", f"{BOOT}-1"), ("r1", "fedcba9876543210-1")]
    story = given(*(log.outcome("ok", at_s=n, replica=name, id=event_id) for n, (name, event_id) in enumerate(ids)))
    assert story.fleet.repeated == 0


@pytest.mark.parametrize(
    "event_id", [None, "", "x", "msg-1", f"{BOOT}-0", f"{BOOT}-01", f"{BOOT}-", f"{BOOT}_1", f"{BOOT}-1x", f"{BOOT}-+1"]
)
def test_ids_of_another_form_have_no_window(log: Log, event_id: str | None) -> None:
    known = log.outcome("ok", at_s=0, id=f"{BOOT}-7")
    story = given(known, *(log.outcome("ok", at_s=1, id=event_id) for _ in range(3)))
    assert story.fleet.repeated == 0


def test_the_window_is_1024_wide() -> None:
    replica = Replica("r1")
    assert is_first(replica, f"{BOOT}-5000", 0)
    assert is_first(replica, f"{BOOT}-3977", 0), "1,023 below the highest is in the window"
    assert not is_first(replica, f"{BOOT}-3977", 0)
    assert not is_first(replica, f"{BOOT}-3976", 0), "1,024 below lies below it"


def test_a_number_far_off_costs_no_memory() -> None:
    replica = Replica("r1")
    assert is_first(replica, f"{BOOT}-1", 0)
    assert is_first(replica, f"{BOOT}-{10**17}", 0)
    assert not is_first(replica, f"{BOOT}-2", 0)
    assert is_first(replica, f"{BOOT}-{10**17 - 1}", 0)
    assert replica.boots[BOOT].missing.bit_length() <= 1024


def test_once_agrees_with_a_set_over_random_orders() -> None:
    """Within the window each number is folded once, whatever the order and however often it comes."""
    for seed in range(20):
        rng = random.Random(seed)
        replica, seen = Replica("r1"), set[int]()
        highest = base = 0
        for _ in range(3000):
            base += rng.choice((0, 0, 1, 1, 1, 2, 700, 5000) if rng.random() < 0.02 else (0, 1))
            n = max(1, base - rng.choice((0, 0, 1, 5, 100, 990, 1500)))
            highest_before, highest = highest, max(highest, n)
            expected = n not in seen and (n > highest_before or highest_before - n < 1024)
            assert is_first(replica, f"{BOOT}-{n}", 0) == expected, (seed, n)
            seen.add(n)


def test_a_replica_keeps_its_last_64_boots_those_heard_of_last() -> None:
    replica = Replica("r1")
    for n in range(64):
        assert is_first(replica, f"{n:016x}-1", n)
    assert is_first(replica, f"{0:016x}-2", 100)
    assert is_first(replica, f"{64:016x}-1", 101)
    assert len(replica.boots) == 64
    assert not is_first(replica, f"{0:016x}-1", 102), "the oldest boot was heard of again and stayed"
    assert is_first(replica, f"{1:016x}-1", 103), "the one heard of longest ago left"


def test_what_was_unheard_of_for_48_hours_is_dropped(log: Log) -> None:
    story = given(log.outcome("ok", at_s=0, id=f"{BOOT}-1"), log.outcome("ok", at_s=0, replica="r2", id=f"{BOOT}-1"))
    story.when(log.outcome("ok", at_s=48 * 3600 - MS, id=f"{BOOT}-1"))
    assert story.fleet.repeated == 1
    story.when(log.outcome("ok", at_s=48 * 3600, id=f"{BOOT}-1"))
    assert story.fleet.repeated == 1
    story.when(log.outcome("ok", at_s=50 * 3600))
    assert list(story.fleet.store.replicas) == ["r1"]
    story.when(log.outcome("ok", at_s=50 * 3600, replica="r2", id=f"{BOOT}-1"))
    assert story.fleet.repeated == 1


def test_all_events_of_a_replica_share_its_counter(log: Log) -> None:
    refused = CallsRefused(count=1, rule="quarantine", id=f"{BOOT}-1")
    story = given(log.event(refused, at_s=0), log.answered(at_s=1, id=f"{BOOT}-1"))
    story.when(log.outcome(GONE, at_s=2, id=f"{BOOT}-1"))
    assert story.fleet.repeated == 2
    assert list(story.fleet.keys()) == []


# -- many at once --------------------------------------------------------------------------------------


def test_apply_many_is_apply_one_by_one(log: Log) -> None:
    rng = random.Random(4)
    targets = [Target(f"host-{n % 3}", f"model-{n}") for n in range(20)]
    recorded = [
        log.outcome(
            rng.choice(["ok", "ok", GONE, "timeout", "empty_output"]),
            at_s=n * rng.random() * 3,
            replica=f"r{rng.randrange(3)}",
            target=rng.choice(targets),
            seen_seq=rng.randrange(n + 1),
            id=f"{BOOT}-{rng.randrange(1, n + 2)}",
        )
        for n in range(3000)
    ]
    one, many, routed = Fleet(), Fleet(), Fleet()
    derived = [event for each in recorded for event in one.apply(each)]
    columns = (
        [outcome_subject(each.replica, each.target or TARGET) for each in recorded],
        [each.event for each in recorded],
        [each.seq for each in recorded],
        [each.time_ms for each in recorded],
    )
    assert many.apply_many(*columns) == derived
    assert derived
    parts = [routed.apply_many(*(column[at : at + 7] for column in columns)) for at in range(0, 3000, 7)]  # type: ignore[arg-type]
    assert [event for part in parts for event in part] == derived
    assert one.encode() == many.encode() == routed.encode()
    assert one.digest() == many.digest() == routed.digest()


def test_a_name_too_long_for_the_log_is_refused_and_moves_nothing() -> None:
    fleet = Fleet()
    before = fleet.encode()
    with pytest.raises(NameRefused):
        fleet.apply(Recorded(CallOutcome(kind="ok"), target=Target("h", "x" * 257), replica="r1", seq=1, time_ms=1))
    assert fleet.encode() == before


# -- policy --------------------------------------------------------------------------------------------


def test_a_policy_change_is_an_event_that_holds_from_there_on(log: Log) -> None:
    story = given(log.outcome(GONE, at_s=0))
    story.when(log.policy({"rejections": {"threshold": 4, "hold_s": 60.0}}, at_s=1))
    assert (story.fleet.policy_seq, story.fleet.policy.rejections.threshold) == (2, 4)
    story.when(log.outcome(GONE, at_s=2), log.outcome(GONE, at_s=3)).then()
    story.when(log.outcome(GONE, at_s=4)).then(held("quarantine", end_ms=log.ms(64)))
    copy = Fleet.decode(story.fleet.encode())
    assert copy.policy == story.fleet.policy


def test_a_host_and_a_model_override_single_values_and_the_model_wins(log: Log) -> None:
    policy = Policy.from_data(
        {
            "rejections": {"hold_s": 100.0},
            "host": {"openrouter.ai": {"rejections": {"threshold": 1, "hold_s": 50.0}}},
            "model": {"special": {"rejections": {"hold_s": 7.0}}},
        }
    )
    story = given(policy=policy)
    story.when(log.outcome(GONE, at_s=0)).then(held("quarantine", end_ms=log.ms(50)))
    story.when(log.outcome(GONE, at_s=0, target=Target("openrouter.ai#a", "special")))
    story.then(held("quarantine", end_ms=log.ms(7)))
    story.when(log.outcome(GONE, at_s=0, target=Target("other", "special"))).then()
    story.when(log.outcome(GONE, at_s=0, target=Target("other", "special")))
    story.then(held("quarantine", end_ms=log.ms(7)))


def test_a_policy_that_is_refused_changes_nothing_and_is_counted(log: Log) -> None:
    story = given(log.policy({"rejections": {"threshold": -1}}, at_s=0))
    story.when(Recorded(PolicyChanged(policy={"nonsense": {}}), seq=2, time_ms=log.ms(1)))
    assert story.fleet.policy == Policy()
    assert (story.fleet.policy_seq, story.fleet.skipped) == (0, {"policy": 2})


def test_a_policy_change_keeps_the_ends_and_tells_gates_what_it_enforces(log: Log) -> None:
    story = given(log.outcome(GONE, at_s=0), log.outcome(GONE, at_s=1))
    story.fleet.take_changed()
    story.when(log.policy({"shadow": {"all": True}, "rejections": {"hold_s": 5.0}}, at_s=2)).then()
    assert story.fleet.take_changed() == [TARGET.key]
    story.then_decision(TARGET, log.ms(3), allowed=True)
    story.when(log.policy({}, at_s=4))
    story.then_decision(TARGET, log.ms(5), allowed=False, retry_in_s=596.0)


def test_a_changed_probation_shows_in_the_entry(log: Log) -> None:
    story = given(log.outcome(GONE, at_s=0), log.outcome(GONE, at_s=1))
    story.when(log.policy({"evidence": {"probation_s": 60.0}}, at_s=2))
    entry = story.fleet.entry(TARGET.key)
    assert entry is not None
    assert entry.holds[0].over_ms == log.ms(661)
    story.then_decision(TARGET, log.ms(661 - MS), trial=True)
    story.then_decision(TARGET, log.ms(661), trial=False)
