"""Rejections -> strikes -> quarantine -> probation, to the millisecond (Rule 4.1 and the rules of 4)."""

from __future__ import annotations

import pytest

from rules import alone
from sickbay_events import KINDS, CallOutcome, Kind, Lease, Policy, ProbeResult, Target
from sickbay_projections.rules.columns import TABLE
from sickbay_projections.testing import Log, Story, given, held, released

TARGET = Target("openrouter.ai#team-a", "z-ai/glm-5.3")
GONE: Kind = "model_unavailable"
HOUR_S = 3600.0
MS = 0.001
ALONE = Policy.from_data(alone("quarantine"))
"""Other rules are folded and told, and change no decision."""


@pytest.fixture
def log() -> Log:
    return Log(TARGET)


def quarantined(log: Log, policy: Policy | None = None) -> Story:
    """Two rejections at 0 s and 1 s: quarantined by sequence 2 until 601 s."""
    return given(log.outcome(GONE, at_s=0), log.outcome(GONE, at_s=1), policy=policy)


def reason(story: Story, log: Log, at_s: float) -> str:
    return story.fleet.decide(TARGET, log.ms(at_s)).reason


def strikes(story: Story, log: Log, at_s: float) -> int:
    document = story.fleet.document(TARGET.key, log.ms(at_s))
    assert document is not None
    found: int = document["evidence"].get("strikes", {}).get("points", 0)
    return found


def test_two_rejections_quarantine_for_ten_minutes_and_one_does_not(log: Log) -> None:
    story = given(log.outcome(GONE, at_s=0, status=404)).then()
    story.then_decision(TARGET, log.ms(0), allowed=True, reason="ok", trial=False)
    story.when(log.outcome(GONE, at_s=1, status=404)).then(
        held(
            "quarantine",
            began_seq=2,
            cause_seq=2,
            time_ms=log.ms(1),
            end_ms=log.ms(601),
            old_end_ms=None,
            proof=True,
            kind=GONE,
            status=404,
            enforced=True,
            replica=None,
            numbers={
                "points": 2,
                "needed": 2,
                "record": 0,
                "failures": 2,
                "answers": 0,
                "replicas": 1,
                "since_ms": log.ms(0),
                "n": 1,
            },
        )
    )
    story.then_decision(
        TARGET, log.ms(1), allowed=False, reason="quarantined", rule="quarantine", scope=TARGET.key, retry_in_s=1.0
    )
    story.then_decision(TARGET, log.ms(1), began_seq=2, seq=2, trial=False)


def test_the_quarantine_ends_to_the_millisecond_and_goes_on_as_probation(log: Log) -> None:
    story = quarantined(log)
    story.then_decision(TARGET, log.ms(601 - MS), allowed=False, retry_in_s=0.001)
    story.then_decision(TARGET, log.ms(601), allowed=True, reason="ok", trial=True, began_seq=2, retry_in_s=0.0)


def test_probation_ends_after_one_hour_without_evidence_to_the_millisecond(log: Log) -> None:
    story = quarantined(log)
    story.then_decision(TARGET, log.ms(601 + HOUR_S - MS), allowed=True, trial=True)
    story.then_decision(TARGET, log.ms(601 + HOUR_S), allowed=True, reason="ok", trial=False, rule=None)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_probation_lasts_an_hour_from_the_newest_outcome_that_is_not_neutral(log: Log, kind: Kind) -> None:
    scope = "none" if kind == "quota" else None  # it would hold the credential at once
    story = quarantined(log).when(log.outcome(kind, at_s=2000, seen_seq=2, scope=scope))
    ends_by_proof = TABLE[KINDS[kind].group].strikes == "answer"
    from_s = 601.0 if KINDS[kind].group == "neutral" or scope else 2000.0
    story.then_decision(TARGET, log.ms(from_s + HOUR_S - MS), trial=not ends_by_proof)
    story.then_decision(TARGET, log.ms(from_s + HOUR_S), trial=False)


def test_a_strike_lives_for_ten_minutes_and_a_new_one_renews_all(log: Log) -> None:
    policy = Policy.from_data({"rejections": {"threshold": 3}})
    story = given(log.outcome(GONE, at_s=0), log.outcome(GONE, at_s=599.999), policy=policy).then()
    assert strikes(story, log, 1199.998) == 2
    story.when(log.outcome(GONE, at_s=1199.998)).then(held("quarantine", began_seq=3))


def test_a_second_rejection_exactly_ten_minutes_later_is_a_first_one_again(log: Log) -> None:
    story = given(log.outcome(GONE, at_s=0), log.outcome(GONE, at_s=600)).then()
    assert strikes(story, log, 600) == 1
    story.when(log.outcome(GONE, at_s=1200 - MS)).then(held("quarantine"))


def test_a_lone_strike_that_ages_out_leaves_nothing_behind(log: Log) -> None:
    story = given(log.outcome(GONE, at_s=0), log.outcome("ok", at_s=600))
    state = story.fleet.store.nodes[TARGET.key].state
    assert (state.points, state.holds, state.past) == (None, None, None)
    assert strikes(story, log, 600) == 0


def test_further_rejections_before_the_end_are_counted_and_do_not_move_it(log: Log) -> None:
    story = quarantined(log)
    for at_s in (2.0, 300.0, 600.999):
        story.when(log.outcome(GONE, at_s=at_s, seen_seq=2)).then()
    story.then_decision(TARGET, log.ms(601 - MS), allowed=False)
    story.then_decision(TARGET, log.ms(601), allowed=True)
    document = story.fleet.document(TARGET.key, log.ms(601))
    assert document is not None
    assert document["holds"][0]["later"] == 3
    assert document["holds"][0]["count"] == 2


def test_on_probation_the_full_budget_of_two_is_back(log: Log) -> None:
    story = quarantined(log).when(log.outcome(GONE, at_s=601, seen_seq=2)).then()
    story.then_decision(TARGET, log.ms(601), allowed=True, trial=True)
    story.when(log.outcome(GONE, at_s=700, seen_seq=2)).then(held("quarantine", began_seq=4, end_ms=log.ms(1300)))
    story.then_decision(TARGET, log.ms(700), allowed=False, began_seq=4)


def test_growth_counts_failed_trials_and_is_forgotten_with_the_answer_that_ends_it(log: Log) -> None:
    policy = Policy.from_data({"rejections": {"growth": 2.0, "cap_s": 1500.0}})
    story = given(log.outcome(GONE, at_s=0), log.outcome(GONE, at_s=0), policy=policy)
    story.then(held("quarantine", end_ms=log.ms(600)))
    story.when(log.outcome(GONE, at_s=600, seen_seq=2), log.outcome(GONE, at_s=600, seen_seq=2))
    story.then(held("quarantine", end_ms=log.ms(600 + 1200)))
    story.when(log.outcome(GONE, at_s=700, trial=[Lease("quarantine", 4)]))
    story.then(held("quarantine", end_ms=log.ms(700 + 1500)))
    story.when(log.outcome("ok", at_s=800, seen_seq=5), log.outcome("ok", at_s=800)).then(released("quarantine"))
    story.when(log.outcome(GONE, at_s=801, seen_seq=6), log.outcome(GONE, at_s=802, seen_seq=6))
    story.then(held("quarantine", end_ms=log.ms(1402)))


# -- the table, column by column -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_each_kind_does_to_a_lone_strike(log: Log, kind: Kind) -> None:
    story = given(log.outcome(GONE, at_s=0, replica="r1"), log.outcome(kind, at_s=1, replica="r2"), policy=ALONE)
    cell = TABLE[KINDS[kind].group].strikes
    expected = {"answer": 0, "none": 1, "failure": 0}[cell]
    assert strikes(story, log, 1) == expected
    assert reason(story, log, 1) == ("quarantined" if cell == "failure" else "ok")


@pytest.mark.parametrize("at_s", [300.0, 601.0, 3000.0])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_each_kind_does_as_a_call_after_the_hold(log: Log, kind: Kind, at_s: float) -> None:
    story = quarantined(log, ALONE).when(log.outcome(kind, at_s=at_s, seen_seq=2))
    story.derived = [event for event in story.derived if event.rule == "quarantine"]
    if TABLE[KINDS[kind].group].strikes == "answer":
        story.then(released("quarantine", began_seq=2, end_ms=log.ms(601), by="success", cause_seq=3))
        story.then_decision(TARGET, log.ms(at_s), allowed=True, reason="ok", trial=False)
    else:
        story.then().then_decision(TARGET, log.ms(at_s), trial=True, allowed=at_s >= 601)


def test_the_table_has_a_row_for_every_group_of_kinds() -> None:
    assert set(TABLE) == {row.group for row in KINDS.values()}


# -- After ---------------------------------------------------------------------------------------------


def test_a_success_that_began_before_the_hold_does_not_lift_it(log: Log) -> None:
    story = quarantined(log).when(log.outcome("ok", at_s=2, seen_seq=1)).then()
    story.then_decision(TARGET, log.ms(2), allowed=False)
    story.when(log.outcome("ok", at_s=3, seen_seq=2)).then(released("quarantine"))


def test_a_seen_seq_not_below_the_events_own_sequence_is_void(log: Log) -> None:
    quarantined(log).when(log.outcome("ok", at_s=2, seen_seq=3)).then()
    quarantined(log).when(log.outcome("ok", at_s=2, seen_seq=10**30)).then()


def test_a_trial_that_names_the_hold_is_after_it_whatever_it_had_seen(log: Log) -> None:
    lease = Lease("quarantine", 2)
    quarantined(log).when(log.outcome("ok", at_s=2, seen_seq=0, trial=[lease])).then(released("quarantine"))
    log.seq = 0
    other = [Lease("breaker", 2), Lease("quarantine", 1)]
    quarantined(log).when(log.outcome("ok", at_s=2, seen_seq=0, trial=other)).then()


@pytest.mark.parametrize(
    ("took_ms", "at_s", "after"),
    [
        (5000, 606 - MS, False),
        (5000, 606, True),
        (None, 721 - MS, False),
        (None, 721, True),
        (0, 601, True),
        (0.5, 601, False),
    ],
)
def test_without_seen_seq_it_is_after_only_if_it_began_past_the_end(
    log: Log, took_ms: float | None, at_s: float, after: bool
) -> None:
    story = quarantined(log).when(log.outcome("ok", at_s=at_s, took_ms=took_ms))
    story.then(*([released("quarantine")] if after else []))


def test_a_late_rejection_reopens_nothing(log: Log) -> None:
    story = quarantined(log).when(log.outcome("ok", at_s=602, seen_seq=2), log.outcome("ok", at_s=602))
    for at_s in (603, 604, 605):
        story.when(log.outcome(GONE, at_s=at_s, seen_seq=1)).then()
    assert strikes(story, log, 605) == 0
    story.when(log.outcome(GONE, at_s=606, seen_seq=2)).then()
    assert strikes(story, log, 606) == 1


def test_a_success_from_before_the_hold_says_nothing_on_its_probation(log: Log) -> None:
    story = quarantined(log).when(log.outcome(GONE, at_s=700, seen_seq=2))
    assert strikes(story, log, 700) == 1
    story.when(log.outcome("ok", at_s=701, seen_seq=1)).then()
    assert strikes(story, log, 701) == 1
    story.then_decision(TARGET, log.ms(701), trial=True)


# -- Fresh, forced, whose doing ------------------------------------------------------------------------


def test_a_bad_outcome_of_a_forced_call_is_statistics(log: Log) -> None:
    story = given(log.outcome(GONE, at_s=0), log.outcome(GONE, at_s=1, forced=True)).then()
    assert strikes(story, log, 1) == 1
    story.when(log.outcome("ok", at_s=2, forced=True))
    assert strikes(story, log, 2) == 0


def test_a_rejection_that_holds_for_nobody_is_the_callers_own(log: Log) -> None:
    given(*(log.outcome(GONE, at_s=n, scope="none") for n in range(5))).then()


def test_the_same_request_over_again_neither_lifts_nor_clears_by_an_empty_answer(log: Log) -> None:
    story = given(
        log.outcome("empty_output", at_s=0, request_hash="a"),
        log.outcome(GONE, at_s=1),
        log.outcome("empty_output", at_s=59.999, request_hash="a"),
    )
    assert strikes(story, log, 60) == 1
    story.when(log.outcome("empty_output", at_s=119.998, request_hash="a"))
    assert strikes(story, log, 119.998) == 1, "the repeat counts as the latest"
    story.when(log.outcome("empty_output", at_s=179.998, request_hash="a"))
    assert strikes(story, log, 179.998) == 0, "60 s after the latest it is a new request"
    story.when(log.outcome(GONE, at_s=180), log.outcome("empty_output", at_s=181, request_hash="b"))
    assert strikes(story, log, 181) == 0


def test_three_leased_trials_in_a_row_that_tell_nothing_begin_the_hold_again(log: Log) -> None:
    trial = [Lease("quarantine", 2)]
    story = quarantined(log).when(
        log.outcome("bad_request", at_s=300, trial=trial),  # before the end: moves the next trial only
        log.outcome("unknown", at_s=601, trial=trial),
        log.outcome("cancelled", at_s=602, trial=trial),
        log.outcome("bad_request", at_s=603),  # not leased: no part of the row
        log.outcome("server_error", at_s=604, trial=trial, seen_seq=2),  # tells something: the row is broken
        log.outcome("unknown", at_s=605, trial=trial),
        log.outcome("unknown", at_s=606, trial=trial),
    )
    story.then()
    story.when(log.outcome("content_filter", at_s=607, trial=trial)).then(
        held("quarantine", began_seq=10, end_ms=log.ms(1207), numbers={"neutral_trials": 3})
    )
    story.then_decision(TARGET, log.ms(607), allowed=False, began_seq=10)
    story.when(log.outcome("ok", at_s=608, seen_seq=9)).then()
    story.when(log.outcome("ok", at_s=609, seen_seq=10)).then(released("quarantine", began_seq=10))


def test_a_hold_that_begins_again_has_no_strikes(log: Log) -> None:
    story = quarantined(log).when(log.outcome(GONE, at_s=601, seen_seq=2))
    assert strikes(story, log, 601) == 1
    story.when(*(log.outcome("unknown", at_s=602, trial=[Lease("quarantine", 2)]) for _ in range(3)))
    story.then(held("quarantine", began_seq=6))
    assert strikes(story, log, 602) == 0


# -- what is no outcome --------------------------------------------------------------------------------


def test_a_first_content_is_proof_at_once(log: Log) -> None:
    story = quarantined(log).when(log.answered(at_s=602, trial=[Lease("quarantine", 2)]))
    story.then(released("quarantine", by="success"))
    log.seq = 0
    story = given(log.outcome(GONE, at_s=0), log.answered(at_s=1))
    assert strikes(story, log, 1) == 0


def test_a_probe_counts_only_as_a_leased_trial(log: Log) -> None:
    leased = ProbeResult(level="readiness", ok=True, kind="ok", trial=[Lease("quarantine", 2)])
    unleased = ProbeResult(level="readiness", ok=True, kind="ok", seen_seq=2)
    rejected = ProbeResult(level="readiness", ok=False, kind=GONE)
    story = quarantined(log).when(log.event(unleased, at_s=602)).then()
    story.when(log.event(leased, at_s=603)).then(released("quarantine"))
    story.when(*(log.event(rejected, at_s=604 + n) for n in range(5))).then()


def test_refused_calls_are_no_events_of_their_target(log: Log) -> None:
    from sickbay_events import CallsRefused

    story = quarantined(log).when(log.event(CallsRefused(count=7, rule="quarantine"), at_s=700)).then()
    document = story.fleet.document(TARGET.key, log.ms(700))
    assert document is not None
    assert document["last_event_seq"] == 2


# -- shadow and the gate's entry -----------------------------------------------------------------------


def test_in_shadow_a_hold_is_told_and_lets_pass(log: Log) -> None:
    policy = Policy.from_data({"shadow": {"rules": ["quarantine"]}})
    story = given(log.outcome(GONE, at_s=0), log.outcome(GONE, at_s=1), policy=policy)
    story.then(held("quarantine", enforced=False))
    story.then_decision(TARGET, log.ms(2), allowed=True, reason="ok", trial=False)
    entry = story.fleet.entry(TARGET.key)
    assert entry is not None
    assert not entry.holds[0].enforced


def test_the_gate_entry_follows_the_hold(log: Log) -> None:
    story = given(log.outcome(GONE, at_s=0))
    assert story.fleet.take_changed() == []
    assert story.fleet.entry(TARGET.key) is None
    story.when(log.outcome(GONE, at_s=1, status=404))
    assert story.fleet.take_changed() == [TARGET.key]
    entry = story.fleet.entry(TARGET.key)
    assert entry is not None
    assert (entry.provider, entry.model, entry.reason, entry.seq) == (TARGET.provider, TARGET.model, "quarantined", 2)
    assert (entry.holds[0].end_ms, entry.holds[0].over_ms, entry.holds[0].count) == (log.ms(601), log.ms(4201), 2)
    assert entry.expires_ms == log.ms(4201)
    story.when(log.outcome(GONE, at_s=2, seen_seq=2))
    assert story.fleet.take_changed() == [], "a count in the hold is no change for a gate"
    story.when(log.outcome("ok", at_s=3, seen_seq=2))
    assert story.fleet.take_changed() == [TARGET.key]
    entry = story.fleet.entry(TARGET.key)
    assert entry is not None
    assert (entry.holds, entry.by, entry.reason, entry.expires_ms) == ([], "success", "released", log.ms(63))
    story.when(log.outcome("ok", at_s=63, seen_seq=2))
    assert story.fleet.entry(TARGET.key) is None


def test_evidence_on_probation_moves_the_entry_once_a_minute_at_most(log: Log) -> None:
    story = quarantined(log, Policy.from_data({"throttles": {"needed": 1000}}))
    story.fleet.take_changed()
    changes = 0
    for n in range(600):
        story.when(log.outcome("rate_limited", at_s=700 + n, seen_seq=2)).then()
        changes += len(story.fleet.take_changed())
        entry = story.fleet.entry(TARGET.key)
        assert entry is not None
        exact_s = 700 + n + HOUR_S
        assert log.ms(exact_s) <= entry.holds[0].over_ms <= log.ms(exact_s + 60)
    assert 1 <= changes <= 11
    story.then_decision(TARGET, log.ms(700 + 599 + HOUR_S - MS), trial=True)
    story.then_decision(TARGET, log.ms(700 + 599 + HOUR_S), trial=False)


def test_an_impatient_timeout_is_the_callers_own_but_in_its_own_overlay(log: Log) -> None:
    trial = [Lease("quarantine", 2)]
    outcomes = [CallOutcome(kind="timeout", limit_ms=9_999, trial=trial) for _ in range(3)]
    story = quarantined(log).when(*(log.event(event, at_s=601 + n) for n, event in enumerate(outcomes)))
    story.then(held("quarantine", numbers={"neutral_trials": 3}))
    log.seq = 0
    overlay = given(log.outcome(GONE, at_s=0), log.outcome(GONE, at_s=1), overlay=True)
    overlay.when(*(log.event(event, at_s=601 + n) for n, event in enumerate(outcomes))).then()
