"""Throttles, to the millisecond (Rule 4.2 and the rules of 4)."""

from __future__ import annotations

from functools import partial
from typing import Any
from zlib import crc32

import pytest

from rules import CREDENTIAL, LIMITED, MS, OTHER, TARGET, alone, crowd, limited, only, throttled
from sickbay_events import KINDS, Kind, Lease, Policy, ProbeResult, Released, Scope, Target, TargetHeld
from sickbay_projections import Fleet
from sickbay_projections.rules.columns import TABLE
from sickbay_projections.testing import Log, Story, given, held, released

ALONE = alone("throttle")
only_throttle = partial(only, rule="throttle")


@pytest.fixture
def log() -> Log:
    return Log(TARGET)


def own_ms(hint_ms: int, replica: str, seq: int) -> int:
    """The rule as it is written: the hint times 1 to 1.5, by a hash of replica and sequence."""
    return hint_ms + hint_ms * 50 * (crc32(f"{replica} {seq}".encode()) % 1001) // 100_000


def points(story: Story, scope: Scope = TARGET.scope) -> int:
    slots = story.fleet.store.nodes[scope.key].state.points or {}
    return slots["throttles"].points if "throttles" in slots else 0


def trial_s(story: Story, log: Log, scope: Scope = TARGET.scope) -> float:
    entry = story.fleet.entry(scope.key)
    assert entry is not None
    (hold,) = [hold for hold in entry.holds if hold.rule == "throttle"]
    return (hold.trial_from_ms - log.ms(0)) / 1000


# -- a replica's own overlay ---------------------------------------------------------------------------


@pytest.mark.parametrize(("hint_s", "hint_ms"), [(None, 5000), (12, 12_000), (0.25, 250), (3500, 3_500_000)])
def test_one_rate_limit_holds_the_overlay_for_the_hint_times_one_to_one_and_a_half(
    log: Log, hint_s: float | None, hint_ms: int
) -> None:
    story = given(log.outcome(LIMITED, at_s=0, retry_after_s=hint_s, replica="box"), overlay=True)
    end_ms = log.ms(0) + min(own_ms(hint_ms, "box", 1), 3_600_000)
    story.then(
        held("throttle", began_seq=1, end_ms=end_ms, proof=False, numbers={"failures": 1, "replicas": 1, "n": 1})
    )
    story.then_decision(TARGET, end_ms - 1, allowed=False, reason="throttled", trial=False)
    story.then_decision(TARGET, end_ms, allowed=True, trial=False)


def test_replicas_do_not_come_back_at_one_moment() -> None:
    """Over many sequences the factor covers one to one and a half, both ends included."""
    ends = set[int]()
    for n in range(4000):
        log = Log(TARGET)
        log.seq = n
        fleet = Fleet(overlay=True)
        fleet.apply(log.outcome(LIMITED, at_s=0, replica=f"box-{n % 7}"))
        entry = fleet.entry(TARGET.key)
        assert entry is not None
        ends.add(entry.holds[0].end_ms - log.ms(0))
    assert (min(ends), max(ends)) == (5000, 7500)
    assert len(ends) > 900


def test_an_overlay_does_not_double_has_no_trial_and_no_points(log: Log) -> None:
    fleet = Fleet(overlay=True)
    for at_s in (0.0, 100.0, 200.0):
        seq = log.seq + 1
        (event,) = fleet.apply(log.outcome(LIMITED, at_s=at_s, seen_seq=seq - 1))
        assert getattr(event, "end_ms", 0) == log.ms(at_s) + own_ms(5000, "r1", seq)
    assert fleet.apply(log.outcome(LIMITED, at_s=201, seen_seq=3, retry_after_s=900)) == []
    state = fleet.store.nodes[TARGET.key].state
    assert (state.points, state.ramp) == (None, None)
    assert state.holds is not None and (state.holds["throttle"].trial_from_ms, state.holds["throttle"].later) == (0, 1)


def test_a_spent_allowance_holds_an_overlay_to_its_reset_without_the_factor(log: Log) -> None:
    given(log.outcome("quota", at_s=0), overlay=True).then(held("throttle", end_ms=log.ms(900), scope=CREDENTIAL))
    given(log.outcome("quota", at_s=0, retry_after_s=100), overlay=True).then(held("throttle", end_ms=log.ms(100)))


def test_an_overlay_ends_by_a_success_after_it_and_not_by_one_before(log: Log) -> None:
    story = given(log.outcome(LIMITED, at_s=0, retry_after_s=60), overlay=True)
    story.when(log.outcome("ok", at_s=1, seen_seq=0)).then()
    story.when(log.outcome("ok", at_s=2, seen_seq=1)).then(released("throttle", began_seq=1, by="success"))


# -- the stated wait -----------------------------------------------------------------------------------


@pytest.mark.parametrize("hint_s", [None, 0, -1, -1e300, float("nan"), float("-inf")])
def test_a_hint_that_says_nothing_is_none(log: Log, hint_s: float | None) -> None:
    throttled(log, hint_s).then(held("throttle", end_ms=log.ms(7)))


@pytest.mark.parametrize(
    ("hint_s", "length_s"), [(0.0001, MS), (1.2345, 1.234), (59, 59), (3600, 3600), (3600.5, 3600), (1e300, 3600)]
)
def test_a_hint_is_whole_milliseconds_and_a_rate_limit_at_most_an_hour(
    log: Log, hint_s: float, length_s: float
) -> None:
    throttled(log, hint_s).then(held("throttle", end_ms=log.ms(2 + length_s)))


@pytest.mark.parametrize(
    ("hint_s", "length_s"), [(None, 900), (0, 900), (60, 60), (21_600, 21_600), (86_400, 21_600), (10**40, 21_600)]
)
def test_a_spent_allowance_holds_to_its_reset_or_a_quarter_hour_at_most_six(
    log: Log, hint_s: float | None, length_s: float
) -> None:
    story = given(log.outcome("quota", at_s=0, retry_after_s=hint_s))
    story.then(held("throttle", end_ms=log.ms(length_s), scope=CREDENTIAL, kind="quota", began_seq=1, replica=None))


# -- what holds the fleet ------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 2, 4, 20])
def test_two_throttles_in_a_row_hold_a_fleet_of_every_size(log: Log, replicas: int) -> None:
    story = given(*crowd(log, replicas - 1)).when(*limited(log, 1)).then()
    story.when(*limited(log, 1, 10 - MS, replica="r2" if replicas > 1 else "r1", status=429, retry_after_s=7)).then(
        held("throttle", scope=TARGET.scope, end_ms=log.ms(17 - MS), proof=True, status=429, replica=None, by=None)
    )
    story.then_decision(TARGET, log.ms(10), allowed=False, reason="throttled", scope=TARGET.key, retry_in_s=6.999)
    story.then_decision(OTHER, log.ms(10), allowed=True, reason="ok")


@pytest.mark.parametrize(("hint_s", "lives_s"), [(None, 10), (3, 10), (60, 60)])
def test_a_throttle_counts_for_ten_seconds_or_the_wait_of_the_newest(
    log: Log, hint_s: float | None, lives_s: float
) -> None:
    for at_s, holds in ((lives_s - MS, True), (lives_s, False)):
        log.seq = 0
        story = given(*limited(log, 1, retry_after_s=hint_s)).when(*limited(log, 1, at_s))
        story.then(*([held("throttle")] if holds else []))


def test_an_answer_between_and_nobody_is_held(log: Log) -> None:
    story = given()
    for _ in range(50):
        story.when(*limited(log, 1), log.outcome("ok", at_s=0)).then()


def test_where_others_are_answered_each_replica_paces_itself(log: Log) -> None:
    """What a partly limited target got over raises what is needed, up to 32."""
    story = given(log.outcome("ok", at_s=0, replica="r2"))
    for most in (1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31):
        story.when(
            *limited(log, most, replica="r1"), *(log.outcome("ok", at_s=0, seen_seq=log.seq) for _ in range(most))
        )
    assert story.fleet.store.nodes[TARGET.key].state.holds is None


def test_a_hold_whose_first_trial_is_answered_is_remembered_at_once(log: Log) -> None:
    story = throttled(log).when(log.outcome("ok", at_s=4, seen_seq=2)).then(released("throttle"))
    assert points(story) == 0
    story.when(*limited(log, 4, 5)).then()
    story.when(*limited(log, 1, 5, replica="r2")).then(held("throttle"))
    story.when(log.outcome(LIMITED, at_s=9, trial=[Lease("throttle", log.seq)]))
    story.when(log.outcome("ok", at_s=20, seen_seq=log.seq))
    slots = story.fleet.store.nodes[TARGET.key].state.points
    assert slots is not None and slots["throttles"].record[1] == 2, "a trial had failed: nothing new is learnt"


def test_one_that_states_its_wait_and_names_its_credential_holds_the_fleet_at_once(log: Log) -> None:
    story = given(log.outcome("ok", at_s=0, replica="r2"))
    story.when(*limited(log, 1, scope="credential", retry_after_s=30)).then(
        held("throttle", scope=CREDENTIAL, replica=None, by=None, end_ms=log.ms(30))
    )
    for fields in ({"scope": "credential"}, {"retry_after_s": 30}, {"scope": "model", "retry_after_s": 30}):
        log.seq = 0
        story = given(log.outcome("ok", at_s=0, replica="r2"), *limited(log, 1, **fields)).then()
    log.seq = 0
    lone = Target("openrouter.ai", "m")
    given(*limited(log, 1, scope="credential", retry_after_s=30, target=lone)).then()


def test_a_spent_allowance_needs_one_whatever_the_record_and_is_not_remembered(log: Log) -> None:
    story = given()
    for _ in range(3):
        story.when(log.outcome("quota", at_s=0, seen_seq=log.seq)).then(
            held("throttle", kind="quota", scope=CREDENTIAL)
        )
        story.when(log.outcome("ok", at_s=1, seen_seq=log.seq)).then(released("throttle"))
    assert story.fleet.store.nodes[CREDENTIAL.key].state.points is None


def test_one_replica_alone_is_held_where_others_had_good_answers(log: Log) -> None:
    story = given(log.outcome("ok", at_s=0, replica="r2"))
    story.when(*limited(log, 2, 20, retry_after_s=60)).then(held("throttle", replica="r1", scope=TARGET.scope))
    story.then_decision(TARGET, log.ms(22), allowed=True, reason="ok")
    story.when(*limited(log, 5, 21)).then()
    story.when(*limited(log, 1, 21, replica="r2")).then(held("throttle", replica=None))
    log.seq = 0
    story = given(log.outcome("ok", at_s=0, replica="r2", target=OTHER))
    story.when(log.outcome("quota", at_s=1)).then(held("throttle", replica="r1", end_ms=log.ms(901)))


def test_where_nobody_else_was_answered_it_is_one_word(log: Log) -> None:
    story = given(*crowd(log, 3), *limited(log, 2, retry_after_s=30)).then(held("throttle", by="r1", replica=None))
    story.then_decision(TARGET, log.ms(1), replica="r1", allowed=False)
    story.then_decision(TARGET, log.ms(1), replica="crowd-1", allowed=True, trial=True)
    story.when(log.outcome(LIMITED, at_s=2, replica="crowd-1", trial=[Lease("throttle", log.seq)]))
    story.then(held("throttle", by=None))


def test_a_good_answer_before_a_clear_is_void(log: Log) -> None:
    story = given(log.outcome("ok", at_s=0, replica="r2", target=OTHER))
    story.when(log.override("clear", at_s=1, scope=Scope("openrouter.ai")))
    story.when(log.outcome("quota", at_s=2, seen_seq=2)).then(held("throttle", replica=None, scope=CREDENTIAL))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_each_kind_does_to_a_pending_throttle(log: Log, kind: Kind) -> None:
    """The column `throttles`, cell by cell."""
    scope = "model" if kind in (LIMITED, "quota") else None
    story = given(*limited(log, 1), policy=Policy.from_data(ALONE))
    only_throttle(story.when(log.outcome(kind, at_s=2, replica="r2", scope=scope)))
    cell = TABLE[KINDS[kind].group].throttles
    story.then(*([held("throttle", scope=TARGET.scope, kind=kind)] if cell == "failure" else []))
    assert points(story) == {"answer": 0, "none": 1, "failure": 0}[cell]


def test_what_waited_and_what_is_forced_or_nobodys_is_statistics(log: Log) -> None:
    given(*limited(log, 5, queued_ms=5_001), log.outcome("quota", at_s=0, queued_ms=5_001)).then()
    given(*limited(log, 4, forced=True), *limited(log, 4, scope="none")).then()
    given(log.outcome("quota", at_s=0, forced=True)).then()


def test_throttles_are_never_faults(log: Log) -> None:
    story = given(*(log.outcome(LIMITED, at_s=n * 20) for n in range(40))).then()
    slots = story.fleet.store.nodes[TARGET.key].state.points
    assert slots is not None and set(slots) == {"throttles"}


# -- whose scope ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "scope", "alias", "single", "holds"),
    [
        (LIMITED, None, True, False, "model"),
        (LIMITED, "model", True, False, "model"),
        (LIMITED, "credential", True, False, "credential"),
        (LIMITED, "credential", False, False, "model"),
        (LIMITED, "credential", False, True, "credential"),
        ("quota", None, True, False, "credential"),
        ("quota", "model", True, False, "model"),
        ("quota", None, False, False, "model"),
        ("quota", None, False, True, "credential"),
        ("quota", "host", True, False, "credential"),
        ("quota", "host", False, False, "model"),
    ],
)
def test_the_scope_is_as_classified_and_a_provider_without_alias_has_no_credential(
    log: Log, kind: Kind, scope: Any, alias: bool, single: bool, holds: str
) -> None:
    provider = "openrouter.ai#team-a" if alias else "openrouter.ai"
    target, sibling = Target(provider, "a"), Target(provider, "b")
    policy = Policy.from_data({"single_credential": ["openrouter.ai"] if single else []})
    story = given(
        *(log.outcome(kind, at_s=n, scope=scope, target=target, replica=f"r{n % 2}") for n in range(2)), policy=policy
    )
    assert {event.scope.name for event in only_throttle(story).derived} == {holds}
    story.then_decision(target, log.ms(2), allowed=False, reason="throttled")
    story.then_decision(sibling, log.ms(2), allowed=holds == "model")
    story.then_decision(Target("openrouter.ai#team-b", "a"), log.ms(2), allowed=True)


def test_models_of_one_credential_count_together_and_an_answer_of_any_is_one_of_it(log: Log) -> None:
    first = limited(log, 1, scope="credential", target=OTHER)
    story = given(*first, log.outcome("ok", at_s=1, target=Target(TARGET.provider, "m3")))
    story.when(*limited(log, 1, 2, scope="credential")).then()
    story.when(*limited(log, 1, 3, scope="credential", target=OTHER)).then(held("throttle", scope=CREDENTIAL))
    story.when(log.outcome("ok", at_s=4, target=OTHER, seen_seq=log.seq)).then(released("throttle", scope=CREDENTIAL))


def test_a_model_that_is_limited_is_not_its_credential(log: Log) -> None:
    story = throttled(log, 60).when(log.outcome("ok", at_s=3, target=OTHER, seen_seq=2)).then()
    story.then_decision(TARGET, log.ms(4), allowed=False)


# -- trials and ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("hint_s", "expected"), [(None, 4), (1, 3), (40, 42), (120, 122), (600, 122)])
def test_the_first_trial_comes_when_it_was_told_to_two_minutes_at_most(
    log: Log, hint_s: float | None, expected: float
) -> None:
    assert trial_s(throttled(log, hint_s), log) == expected


@pytest.mark.parametrize(("hint_s", "expected"), [(None, 600), (7200, 600), (60, 60)])
def test_a_spent_allowance_is_tried_after_ten_minutes_at_most(log: Log, hint_s: float | None, expected: float) -> None:
    story = given(log.outcome("quota", at_s=0, retry_after_s=hint_s))
    assert trial_s(story, log, CREDENTIAL) == expected


def test_a_failed_trial_doubles_the_hold_and_waits_for_what_it_says(log: Log) -> None:
    story = throttled(log, 4).then(held("throttle", end_ms=log.ms(6)))
    story.when(log.outcome(LIMITED, at_s=6, replica="r1", retry_after_s=4, trial=[Lease("throttle", 2)]))
    story.then(held("throttle", began_seq=3, end_ms=log.ms(14)))
    assert trial_s(story, log) == 10
    story.when(log.outcome(LIMITED, at_s=10, replica="r1", trial=[Lease("throttle", 3)], took_ms=500))
    story.then(held("throttle", end_ms=log.ms(30)))
    assert trial_s(story, log) == 11.5
    story.when(log.outcome("ok", at_s=12, seen_seq=4)).then(released("throttle"))
    story.when(*limited(log, 2, 13)).then(held("throttle", end_ms=log.ms(18)))


def test_doubling_stops_at_the_cap(log: Log) -> None:
    story, at_s, found = given(), 0.0, list[float]()
    for _ in range(6):
        trial = [Lease("throttle", log.seq)]
        story.when(log.outcome("quota", at_s=at_s, retry_after_s=5400, trial=trial))
        found.append((getattr(only_throttle(story).derived[0], "end_ms", 0) - log.ms(at_s)) / 1000)
        at_s += 3000
    assert found[:3] == [5400, 10_800, 21_600] and found[-1] == 21_600


def test_before_the_end_a_throttle_without_the_lease_moves_nothing(log: Log) -> None:
    story = throttled(log, 60)
    for seen_seq in (2, 1, None, 99):
        story.when(*limited(log, 1, 10, seen_seq=seen_seq, retry_after_s=600)).then()
    story.then_decision(TARGET, log.ms(62), allowed=True, trial=True)


def test_at_its_end_it_is_on_probation(log: Log) -> None:
    story = throttled(log)
    story.then_decision(TARGET, log.ms(7 - MS), allowed=False, reason="throttled", trial=True, retry_in_s=0.001)
    story.then_decision(TARGET, log.ms(7), allowed=True, reason="ok", trial=True, rule="throttle")
    story.when(*limited(log, 2, 8)).then(held("throttle", end_ms=log.ms(18)))


@pytest.mark.parametrize("kind", [LIMITED, "quota"])
def test_as_a_trial_of_another_rule_a_throttle_tells_nothing_there_and_scores_here(log: Log, kind: Kind) -> None:
    story = given(*(log.outcome("model_unavailable", at_s=n) for n in range(2)))
    story.when(*(log.outcome("server_error", at_s=3 + n / 10) for n in range(5)))
    lease = [Lease("quarantine", 2), Lease("breaker", log.seq)]
    asked = [log.outcome(kind, at_s=700 + n, seen_seq=log.seq, trial=lease, scope="model") for n in range(2)]
    story.when(*asked)
    assert {event.rule for event in story.derived if isinstance(event, TargetHeld | Released)} == {"throttle"}
    document = story.fleet.document(TARGET.key, log.ms(703))
    assert document is not None
    phases = {hold["rule"]: hold["phase"] for hold in document["holds"]}
    assert phases == {"quarantine": "probation", "breaker": "probation", "throttle": "held"}


def test_a_first_content_ends_it_and_a_clear_leaves_nothing(log: Log) -> None:
    story = throttled(log, 60).when(log.answered(at_s=4, seen_seq=2)).then(released("throttle", by="success"))
    log.seq = 0
    story = throttled(log, 60).when(log.override("clear", at_s=4, scope=Scope("openrouter.ai")))
    story.when(log.outcome("bad_request", at_s=5)).then(released("throttle", by="clear"))
    story.when(*limited(log, 2, 6)).then(held("throttle", end_ms=log.ms(11)))


def test_a_clear_empties_the_points_of_a_credential_too(log: Log) -> None:
    story = given(*limited(log, 1, scope="credential"), log.override("clear", at_s=2, scope=Scope("openrouter.ai")))
    story.when(*limited(log, 1, 3, scope="credential")).then()
    assert points(story, CREDENTIAL) == 1
    assert story.fleet.digest() == Fleet.decode(story.fleet.encode()).digest()


def test_in_shadow_it_is_told_and_lets_pass(log: Log) -> None:
    story = throttled(log, 60, shadow={"rules": ["throttle"]}).then(held("throttle", enforced=False))
    story.then_decision(TARGET, log.ms(3), allowed=True, reason="ok", trial=False)


def test_a_clock_that_steps_back_leaves_no_end_further_ahead_than_the_cap(log: Log) -> None:
    story = given(log.outcome("quota", at_s=90_000, retry_after_s=21_600))
    story.when(log.outcome("bad_request", at_s=0, target=OTHER))
    story.then_decision(TARGET, log.ms(21_600 - MS), allowed=False)
    story.then_decision(TARGET, log.ms(21_600), allowed=True)


def test_a_trial_is_wanted_only_if_every_denying_hold_wants_one_now(log: Log) -> None:
    story = throttled(log, 600)
    story.when(log.outcome("quota", at_s=3, replica="r1", retry_after_s=3000))
    for at_s, trial, retry_in_s in ((130, False, 473.0), (602, False, 1.0), (603, True, 2400.0)):
        story.then_decision(TARGET, log.ms(at_s), replica="r1", allowed=False, trial=trial, retry_in_s=retry_in_s)
    story.when(log.override("hold", at_s=610, until_s=5000))
    story.then_decision(TARGET, log.ms(650), replica="r1", allowed=False, trial=False, retry_in_s=4350.0)


def test_a_leased_probe_acts_as_the_outcome_of_its_kind_and_another_does_nothing(log: Log) -> None:
    story = throttled(log, 600)
    story.when(log.event(ProbeResult(level="readiness", ok=True, kind="ok", seen_seq=2), at_s=10)).then()
    probe = ProbeResult(level="readiness", ok=True, kind="ok", seen_seq=2, trial=[Lease("throttle", 2)])
    story.when(log.event(probe, at_s=11)).then(released("throttle"))


def test_an_answer_begins_a_ramp_of_a_part_of_the_time_held(log: Log) -> None:
    story = given(*crowd(log, 5), *limited(log, 2, replica="r1", retry_after_s=600))
    story.when(log.outcome("ok", at_s=60, replica="r2", seen_seq=log.seq)).then(released("throttle"))
    entry = story.fleet.entry(TARGET.key)
    assert entry is not None and entry.ramp is not None
    ramp = entry.ramp
    assert (ramp.rule, ramp.from_ms, ramp.end_ms, ramp.prover) == ("throttle", log.ms(60), log.ms(63), "r2")
