"""Rule 4.0 Points: what holds, what is got over, whose word it is, and when a hold is tried."""

from __future__ import annotations

from typing import Any

import pytest

from sickbay_events import Kind, Lease, Policy, Target
from sickbay_projections import Fleet, decide_entries
from sickbay_projections.state.model import Points
from sickbay_projections.testing import Log, Story, given, held, released, warned

TARGET = Target("openrouter.ai#team-a", "z-ai/glm-5.3")
FAULT: Kind = "server_error"
GONE: Kind = "model_unavailable"
HOUR_S, MS = 3600.0, 0.001
MIDNIGHT_MS = 19_675 * 86_400_000
"""Log time of a test's second 0: the beginning of a half-day."""
PLAIN = Policy.from_data({"breaker": {"jitter_percent": 0}})


@pytest.fixture
def log() -> Log:
    return Log(TARGET, start_ms=MIDNIGHT_MS)


def faults(log: Log, count: int, at_s: float = 0, *, replica: str = "r1", gap_s: float = 0, **fields: Any) -> list[Any]:
    """Each knew all that was before it."""
    return [
        log.outcome(FAULT, at_s=at_s + n * gap_s, replica=replica, **{"seen_seq": log.seq, **fields})
        for n in range(count)
    ]


def answers(log: Log, count: int, at_s: float = 0, **fields: Any) -> list[Any]:
    return [log.outcome("ok", at_s=at_s, **fields) for _ in range(count)]


def opened(log: Log, at_s: float = 0, policy: Policy = PLAIN) -> Story:
    """Five faults of the only replica at one moment."""
    return given(*faults(log, 5, at_s), policy=policy).then(held("breaker", began_seq=log.seq))


def slot(story: Story, name: str = "faults") -> Points:
    points = story.fleet.store.nodes[TARGET.key].state.points or {}
    return points.get(name) or Points()


def trial_s(story: Story, log: Log, rule: str = "breaker") -> float:
    """From when the hold wants a leased trial, seconds since the beginning."""
    entry = story.fleet.entry(TARGET.key)
    assert entry is not None
    (hold,) = [hold for hold in entry.holds if hold.rule == rule]
    return (hold.trial_from_ms - log.ms(0)) / 1000


def fail(log: Log, at_s: float, kind: Kind = FAULT, rule: str = "breaker", seq: int = 0, **fields: Any) -> Any:
    """A leased trial of the hold that began with the last event, or with `seq`."""
    return log.outcome(kind, at_s=at_s, trial=[Lease(rule, seq or log.seq)], **fields)


# -- what holds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gap_s", [0, 0.01, 1, 100, 600 - MS])
def test_five_faults_in_a_row_hold_at_every_rate_and_four_do_not(log: Log, gap_s: float) -> None:
    story = given(*answers(log, 500), *faults(log, 4, 1, gap_s=gap_s)).then()
    story.when(*faults(log, 1, 1 + 4 * gap_s)).then(held("breaker", began_seq=505))
    numbers = story.derived[0].numbers
    assert numbers == {
        "points": 10,
        "needed": 5,
        "record": 0,
        "failures": 5,
        "answers": 0,
        "replicas": 1,
        "since_ms": log.ms(1),
        "n": 1,
    }


def test_an_answer_takes_one_point_off_whenever_its_call_began(log: Log) -> None:
    story = given(*faults(log, 4), *answers(log, 1, seen_seq=0)).then()
    assert slot(story).points == 7
    story.when(*faults(log, 1)).then()
    story.when(*faults(log, 1)).then(held("breaker"))
    numbers = story.derived[0].numbers
    assert (numbers["points"], numbers["failures"], numbers["answers"]) == (10, 6, 1)


def test_faults_hold_at_shares_above_a_third_and_not_at_a_third(log: Log) -> None:
    story = given()
    for _ in range(500):
        story.when(*faults(log, 1), *answers(log, 2)).then()
    story = given()
    told = [story.when(*faults(log, 1), *answers(log, 1)).derived for _ in range(20)]
    assert any(told)


def test_points_are_dropped_ten_minutes_after_the_newest_failure_and_teach_nothing(log: Log) -> None:
    for at_s, left in ((600 - MS, 8), (600, 2)):
        log.seq = 0
        story = given(*faults(log, 3), *faults(log, 1, at_s))
        assert slot(story).top == left
        assert slot(story).record == []
    log.seq = 0
    story = given(*faults(log, 4), *answers(log, 1, 600))
    assert slot(story) == Points()
    assert story.fleet.store.nodes[TARGET.key].state.points is None


@pytest.mark.parametrize(("queued_ms", "counts"), [(5_000, True), (5_001, False), (600_001, False)])
def test_what_waited_longer_than_five_seconds_changes_no_points(log: Log, queued_ms: int, counts: bool) -> None:
    story = given(*faults(log, 4, queued_ms=queued_ms))
    assert slot(story).points == (8 if counts else 0)
    story.when(*faults(log, 2), *answers(log, 1, queued_ms=queued_ms))
    assert slot(story).points == (0 if counts else 4)


@pytest.mark.parametrize("queued_ms", [5_001, 600_000])
def test_what_waited_still_ends_a_hold_and_is_its_trial(log: Log, queued_ms: int) -> None:
    story = opened(log).when(fail(log, 3, queued_ms=queued_ms)).then(held("breaker", began_seq=6))
    story.when(log.outcome("ok", at_s=4, seen_seq=6, queued_ms=queued_ms)).then(released("breaker"))


# -- what it got over by itself ------------------------------------------------------------------------


def test_what_it_got_over_by_itself_it_may_do_again(log: Log) -> None:
    story = given(*faults(log, 3), *answers(log, 6)).then()
    assert slot(story).record == [MIDNIGHT_MS // 43_200_000, 3, 0]
    story.when(*faults(log, 5, 1)).then()
    story.when(*faults(log, 1, 1)).then(held("breaker"))
    assert {**story.derived[0].numbers, "since_ms": 0} == {
        "points": 12,
        "needed": 6,
        "record": 3,
        "failures": 6,
        "answers": 0,
        "replicas": 1,
        "since_ms": 0,
        "n": 1,
    }


def test_a_lone_failure_is_no_record(log: Log) -> None:
    story = given(*faults(log, 1), *answers(log, 2), *(log.outcome(GONE, at_s=0), *answers(log, 1)))
    assert story.fleet.store.nodes[TARGET.key].state.points is None


@pytest.mark.parametrize(("at_s", "needed"), [(0, 6), (43_199, 6), (43_200, 6), (86_399, 6), (86_400, 5)])
def test_a_record_counts_for_its_half_day_and_the_next(log: Log, at_s: float, needed: int) -> None:
    story = given(*faults(log, 3), *answers(log, 6))
    story.when(*faults(log, needed - 1, at_s)).then()
    story.when(*faults(log, 1, at_s)).then(held("breaker"))


def test_the_larger_of_two_half_days_counts(log: Log) -> None:
    story = given(*faults(log, 4), *answers(log, 8), *faults(log, 2, 43_200), *answers(log, 4, 43_200))
    assert slot(story).record == [MIDNIGHT_MS // 43_200_000 + 1, 2, 4]
    story.when(*faults(log, 6, 86_399)).then()
    story.when(*answers(log, 20, 86_399), *faults(log, 2, 86_400), *answers(log, 4, 86_400))
    assert slot(story).record[1:] == [2, 6]


def test_a_record_raises_what_is_needed_by_so_much_at_most(log: Log) -> None:
    story = given()
    for most in (4, 6, 8, 10, 12, 14, 16, 18, 19):
        story.when(*faults(log, most), *answers(log, 2 * most)).then()
    story.when(*faults(log, 19)).then()
    story.when(*faults(log, 1)).then(held("breaker"))
    assert (story.derived[0].numbers["needed"], story.derived[0].numbers["record"]) == (20, 19)


def test_a_clear_forgets_points_and_record(log: Log) -> None:
    story = given(*faults(log, 4), *answers(log, 8), *faults(log, 4), log.override("clear", at_s=0))
    assert story.fleet.store.nodes[TARGET.key].state.points is None
    story.when(*faults(log, 5, 1, seen_seq=log.seq)).then(held("breaker"))


# -- whose word it is ----------------------------------------------------------------------------------


def test_two_replicas_that_fail_as_often_as_others_are_answered_are_everyones_word(log: Log) -> None:
    story = given(*answers(log, 3, replica="r3"), *faults(log, 4, 1), *faults(log, 1, 1, replica="r2"))
    story.then(held("breaker", replica=None, by=None, numbers=story.derived[0].numbers))
    assert story.derived[0].numbers["replicas"] == 2


def test_where_others_are_answered_one_replica_alone_is_held_and_named_once(log: Log) -> None:
    story = given(*answers(log, 1, replica="r2"), *faults(log, 4, 1)).then()
    story.when(*faults(log, 1, 2)).then(
        held("breaker", replica="r1", began_seq=6), warned("replica_suspect", replica="r1")
    )
    story.then_decision(TARGET, log.ms(2), allowed=True, trial=False, replica="r1")
    story.when(*faults(log, 20, 3), *answers(log, 3, 4, replica="r2"), *faults(log, 3, 5)).then()
    story.when(*faults(log, 1, 5, replica="r2")).then()
    assert slot(story).points == 10
    story.when(*answers(log, 20, 6))
    assert slot(story) == Points(), "one replica's trouble teaches nothing of the target"


def test_an_answer_of_another_since_the_first_failure_speaks_against_one_word(log: Log) -> None:
    late = answers(log, 1, replica="r2", queued_ms=5_000)
    story = given(*late, *faults(log, 3, 1000), *answers(log, 1, 1000, replica="r2"))
    story.when(*faults(log, 3, 1001)).then(held("breaker", replica="r1"), warned("replica_suspect"))
    assert slot(story).told


@pytest.mark.parametrize(("at_s", "by"), [(600 - MS, None), (600, "r1")])
def test_where_nobody_else_was_answered_in_ten_minutes_it_is_held_on_one_word(
    log: Log, at_s: float, by: str | None
) -> None:
    others = [*answers(log, 1, 0, replica="r2"), log.outcome("bad_request", at_s=500, replica="r2")]
    story = given(*others, *faults(log, 4, 500)).when(*faults(log, 1, at_s))
    assert [
        (event.rule, getattr(event, "by", None)) for event in story.derived if type(event).__name__ == "TargetHeld"
    ] == [("breaker", by)]


def on_one_word(log: Log) -> Story:
    """r1 holds the target on its word alone by sequence 6; r2 is heard of."""
    story = given(log.outcome("bad_request", at_s=0, replica="r2"), *faults(log, 5), policy=PLAIN)
    return story.then(held("breaker", by="r1", replica=None, began_seq=6))


def test_one_word_denies_its_replica_and_is_on_probation_for_the_others(log: Log) -> None:
    story = on_one_word(log)
    story.then_decision(TARGET, log.ms(1), replica="r1", allowed=False, trial=False, retry_in_s=1.0)
    story.then_decision(TARGET, log.ms(1), replica="r2", allowed=True, reason="ok", trial=True, began_seq=6)
    story.then_decision(TARGET, log.ms(1), replica="", allowed=True, trial=True)
    entry = story.fleet.entry(TARGET.key)
    assert entry is not None and entry.holds[0].by == "r1"
    for replica in ("r1", "r2"):
        gate = decide_entries((None, None, entry), log.ms(1), replica, replicas=2, seq=6)
        assert gate == story.fleet.decide(TARGET, log.ms(1), replica)


@pytest.mark.parametrize("leased", [False, True])
def test_the_first_failure_of_another_makes_it_everyones(log: Log, leased: bool) -> None:
    story = on_one_word(log)
    story.fleet.take_changed()
    trial = [Lease("breaker", 6)] if leased else None
    story.when(log.outcome(FAULT, at_s=1, replica="r2", seen_seq=6, trial=trial))
    story.then(*([held("breaker", began_seq=7, by=None)] if leased else []))
    assert story.fleet.take_changed() == [TARGET.key]
    story.then_decision(TARGET, log.ms(1), replica="r3", allowed=False, began_seq=7 if leased else 6)


def test_what_another_one_saw_before_the_hold_does_not_make_it_everyones(log: Log) -> None:
    story = on_one_word(log).when(*faults(log, 3, 1, replica="r2", seen_seq=5)).then()
    story.then_decision(TARGET, log.ms(1), replica="r3", allowed=True)


def test_a_fleet_of_one_and_an_overlay_need_one_word(log: Log) -> None:
    given(*answers(log, 1), *faults(log, 5)).then(held("breaker", by=None, replica=None))
    log.seq = 0
    story = given(*answers(log, 1, replica="r2"), *faults(log, 5), overlay=True)
    story.then(held("breaker", by=None, replica=None))


def test_permission_alone_is_never_enough_for_one_word(log: Log) -> None:
    heard = [log.outcome("bad_request", at_s=0, replica="r2")]
    denied = [log.outcome("permission_model", at_s=0) for _ in range(3)]
    story = given(*heard, *denied)
    assert [getattr(event, "replica", None) for event in story.derived if event.rule == "quarantine"] == ["r1"]
    story.when(log.outcome(GONE, at_s=1)).then(held("quarantine", by="r1"))


def test_more_than_sixteen_replicas_are_counted_together(log: Log) -> None:
    many = given(policy=Policy.from_data({"breaker": {"consecutive": 50, "jitter_percent": 0}}))
    many.when(*(log.outcome(FAULT, at_s=0, replica=f"q{n}") for n in range(40)))
    assert len(slot(many).by) == 17 and slot(many).by[""][0] == 24


# -- trials --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "rule", "count", "expected"),
    [
        (FAULT, "breaker", 5, [2, 4, 6, 10, 18, 26, 34]),
        (GONE, "quarantine", 2, [1, 2, 3, 5, 9, 17, 29]),
        ("empty_output", "degraded", 12, [2, 4, 6, 10, 18, 26, 34]),
        ("rate_limited", "throttle", 2, [2, 4, 6, 10, 15, 20, 25]),
    ],
)
def test_trials_come_early_and_ever_more_rarely(
    log: Log, kind: Kind, rule: str, count: int, expected: list[float]
) -> None:
    story = given(*(log.outcome(kind, at_s=0) for _ in range(count)), policy=PLAIN)
    found = []
    for _ in expected:
        at_s = trial_s(story, log, rule)
        found.append(at_s)
        story.then_decision(TARGET, log.ms(at_s) - 1, allowed=False, trial=False, retry_in_s=MS)
        story.then_decision(TARGET, log.ms(at_s), allowed=False, trial=True)
        story.when(fail(log, at_s, kind, rule)).then(held(rule, began_seq=log.seq))
    assert found == expected


def test_trials_are_one_of_five_calls_at_most_on_a_quiet_target(log: Log) -> None:
    story = given(*faults(log, 5, gap_s=100), policy=PLAIN)
    assert trial_s(story, log) == 402
    for n in range(12):
        story.when(fail(log, 1000 + 600 * n))
    hold = story.fleet.store.nodes[TARGET.key].state.holds
    assert hold is not None and hold["breaker"].every_ms == 500_000
    assert trial_s(story, log) == 1000 + 600 * 11 + 500


def test_after_a_long_outage_they_are_an_eightieth_of_the_time_held_apart(log: Log) -> None:
    story = opened(log)
    for n in range(8):
        story.when(fail(log, 10 * (n + 1)))
    story.when(fail(log, 1200))
    assert trial_s(story, log) == 1215
    for at_s in (4000, 7300, 10_000):
        story.when(fail(log, at_s))
    assert trial_s(story, log) == 10_120


def test_a_replicas_own_hold_is_tried_a_twentieth_of_the_time_held_apart(log: Log) -> None:
    story = given(*faults(log, 5), overlay=True, policy=PLAIN)
    for n in range(8):
        story.when(fail(log, 10 * (n + 1)))
    story.when(fail(log, 1200))
    assert trial_s(story, log) == 1260


def test_the_distance_counts_from_the_beginning_of_the_trial(log: Log) -> None:
    story = opened(log).when(fail(log, 3, took_ms=500))
    assert trial_s(story, log) == 4.5
    story.when(fail(log, 20, took_ms=12_000))
    assert trial_s(story, log) == 20, "it has waited long enough while the trial hung"


@pytest.mark.parametrize(("retry_after_s", "expected"), [(1, 2), (30, 30), (119, 119), (3000, 120)])
def test_a_retry_after_moves_the_next_trial_by_two_minutes_at_most(
    log: Log, retry_after_s: float, expected: float
) -> None:
    story = given(*faults(log, 4), *faults(log, 1, retry_after_s=retry_after_s), policy=PLAIN)
    assert trial_s(story, log) == expected


def test_whose_trial_failed_last_waits_five_seconds_longer_than_the_others(log: Log) -> None:
    story = given(*(log.outcome(FAULT, at_s=0, replica=f"r{n % 2}") for n in range(5)), policy=PLAIN)
    story.when(fail(log, 2, replica="r0"))
    assert trial_s(story, log) == 4
    story.then_decision(TARGET, log.ms(4), replica="r1", allowed=False, trial=True)
    story.then_decision(TARGET, log.ms(4), replica="r0", allowed=False, trial=False, retry_in_s=5.0)
    story.then_decision(TARGET, log.ms(9), replica="r0", allowed=False, trial=True)
    alone = given(*faults(Log(TARGET, start_ms=MIDNIGHT_MS), 5), policy=PLAIN)
    alone.when(Log.outcome(log, FAULT, at_s=2, trial=[Lease("breaker", 5)]))
    alone.then_decision(TARGET, log.ms(4), replica="r1", allowed=False, trial=True)


def test_a_failed_trial_is_everyones_if_another_failed_in_ten_minutes(log: Log) -> None:
    story = on_one_word(log).when(fail(log, 2, replica="r1")).then(held("breaker", by="r1"))
    story.when(fail(log, 4, replica="r2")).then(held("breaker", by=None))
    for at_s in (300, 604 - MS):
        story.when(fail(log, at_s, replica="r2")).then(held("breaker", by=None))
    heard = log.outcome("bad_request", at_s=604, replica="r1")
    story.when(heard, fail(log, 604, seq=log.seq - 1, replica="r2")).then(held("breaker", by="r2"))


@pytest.mark.parametrize("kind", ["bad_request", "rate_limited", "model_unavailable", "auth"])
def test_a_trial_that_tells_nothing_of_its_rule_moves_the_next_one(log: Log, kind: Kind) -> None:
    story = opened(log)
    story.fleet.take_changed()
    story.when(log.outcome(kind, at_s=3, trial=[Lease("breaker", 5)], took_ms=500))
    assert trial_s(story, log) == 4.5
    assert TARGET.key in story.fleet.take_changed()
    story.when(log.outcome(kind, at_s=3.5, seen_seq=5))
    assert trial_s(story, log) == 4.5, "without a lease it was no trial"
    story.when(log.outcome(FAULT, at_s=5, trial=[Lease("breaker", 5)], forced=True))
    assert trial_s(story, log) == 7, "a trial whose outcome does not count was one all the same"


def test_without_a_lease_a_failure_before_the_end_is_only_counted(log: Log) -> None:
    story = opened(log).when(*faults(log, 9, 3, seen_seq=5, retry_after_s=3000)).then()
    hold = (story.fleet.document(TARGET.key, log.ms(4)) or {})["holds"][0]
    assert (hold["later"], hold["count"], hold["end_ms"], hold["trial_from_ms"]) == (9, 5, log.ms(30), log.ms(2))


def test_on_probation_failures_without_a_lease_score_anew_and_begin_the_next_hold(log: Log) -> None:
    story = opened(log).when(*faults(log, 4, 31, seen_seq=5)).then()
    story.when(*faults(log, 1, 32, seen_seq=5)).then(held("breaker", began_seq=10, end_ms=log.ms(92)))
    assert story.derived[0].numbers["n"] == 2


def test_in_an_overlay_every_own_call_that_began_when_one_was_wanted_is_its_trial(log: Log) -> None:
    story = given(*faults(log, 5), overlay=True, policy=PLAIN)
    story.when(log.outcome(FAULT, at_s=2, seen_seq=5, took_ms=1)).then()
    story.when(log.outcome(FAULT, at_s=2.5, seen_seq=4, took_ms=400)).then()
    story.when(log.outcome(FAULT, at_s=2.5, seen_seq=5, took_ms=400)).then(held("breaker", began_seq=8))


def test_the_ends_of_a_hold_never_come_sooner(log: Log) -> None:
    story = given(*faults(log, 4), *faults(log, 1, retry_after_s=3600), policy=PLAIN)
    story.when(fail(log, 150)).then(held("breaker", end_ms=log.ms(3600)))


# -- the end -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leased", [False, True])
def test_an_answer_after_it_ends_a_hold_and_leaves_half_of_the_points(log: Log, leased: bool) -> None:
    trial = [Lease("breaker", 5)] if leased else None
    story = opened(log).when(log.outcome("ok", at_s=2, seen_seq=4 if leased else 5, trial=trial))
    story.then(released("breaker", by="success"))
    assert slot(story).points == 4
    story.when(*faults(log, 2, 3)).then()
    story.when(*faults(log, 1, 3)).then(held("breaker", began_seq=9))


def test_a_hold_whose_first_trial_is_answered_was_a_mistake_and_teaches_the_same(log: Log) -> None:
    story = opened(log).when(log.outcome("ok", at_s=2, seen_seq=5), *answers(log, 4, 3))
    assert slot(story).record[1] == 5
    story.when(*faults(log, 7, 4)).then()
    story.when(*faults(log, 1, 4)).then(held("breaker"))


def test_a_hold_that_failed_a_trial_teaches_only_the_rest(log: Log) -> None:
    story = opened(log).when(fail(log, 2)).when(log.outcome("ok", at_s=4, seen_seq=6), *answers(log, 4, 5))
    assert slot(story).record[1] == 2


def test_an_hour_on_probation_without_evidence_ends_it_and_drops_the_points(log: Log) -> None:
    story = opened(log)
    story.then_decision(TARGET, log.ms(30 + HOUR_S - MS), allowed=True, trial=True)
    story.when(log.outcome("bad_request", at_s=30 + HOUR_S)).then()
    assert story.fleet.store.nodes[TARGET.key].state.points is None
    story.then_decision(TARGET, log.ms(30 + HOUR_S), allowed=True, trial=False)


def test_what_explain_says_of_points(log: Log) -> None:
    story = given(*faults(log, 3), *answers(log, 6), *faults(log, 2, 1), *answers(log, 1, 1, replica="r2"))
    found = (story.fleet.document(TARGET.key, log.ms(2)) or {})["evidence"]["faults"]
    assert found == {
        "points": 3,
        "weight": 2,
        "needed": 6,
        "record": 3,
        "failures": 2,
        "answers": 1,
        "by": {"r1": [2, 0], "r2": [0, 1]},
        "since_ms": log.ms(1),
        "until_ms": log.ms(601),
        "alone": None,
    }
    later = (story.fleet.document(TARGET.key, log.ms(601)) or {})["evidence"]["faults"]
    assert (later["points"], later["by"], later["record"]) == (0, {}, 3)


def test_a_clock_that_steps_back_leaves_nothing_ahead_of_it(log: Log) -> None:
    story = given(*faults(log, 2, 9000), *faults(log, 2, 9000, replica="r2"), log.outcome("bad_request", at_s=10))
    found = slot(story)
    assert (found.since_ms, found.newest_ms) == (log.ms(10), log.ms(10))
    assert {counts[2] for counts in found.by.values()} == {log.ms(10)}
    story = given(*faults(log, 5, 9000), policy=PLAIN).when(log.outcome("bad_request", at_s=10))
    assert trial_s(story, log) == 12
    assert Fleet.decode(story.fleet.encode()).encode() == story.fleet.encode()
