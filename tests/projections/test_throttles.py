"""Throttles, to the millisecond (Rule 4.2 and the rules of 4)."""

from __future__ import annotations

from functools import partial
from typing import Any
from zlib import crc32

import pytest

from rules import CREDENTIAL, LIMITED, MS, OTHER, TARGET, alone, crowd, only, throttled
from sickbay_events import KINDS, Kind, Policy, Scope, Target
from sickbay_projections import Fleet
from sickbay_projections.rules.columns import TABLE
from sickbay_projections.testing import Log, given, held, released

ALONE = alone("throttle")
only_throttle = partial(only, rule="throttle")


@pytest.fixture
def log() -> Log:
    return Log(TARGET)


def own_ms(hint_ms: int, replica: str, seq: int) -> int:
    """The rule as it is written: the hint times 1 to 1.5, by a hash of replica and sequence."""
    return hint_ms + hint_ms * 50 * (crc32(f"{replica} {seq}".encode()) % 1001) // 100_000


# -- a replica's own overlay ---------------------------------------------------------------------------


@pytest.mark.parametrize(("hint_s", "hint_ms"), [(None, 5000), (12, 12_000), (0.25, 250), (3500, 3_500_000)])
def test_one_rate_limit_holds_the_overlay_for_the_hint_times_one_to_one_and_a_half(
    log: Log, hint_s: float | None, hint_ms: int
) -> None:
    end_ms = log.ms(0) + min(own_ms(hint_ms, "r1", 1), 3_600_000)
    story = given(log.outcome(LIMITED, at_s=0, retry_after_s=hint_s), overlay=True)
    story.then(held("throttle", end_ms=end_ms, scope=TARGET.scope, proof=False, kind=LIMITED))
    story.then_decision(TARGET, end_ms - 1, allowed=False, reason="throttled", retry_in_s=0.001)
    story.then_decision(TARGET, end_ms, allowed=True, reason="ok", trial=False)


def test_replicas_do_not_come_back_at_one_moment() -> None:
    """Over many names and sequences the factor covers one to one and a half, both ends included."""
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


def test_an_overlay_does_not_double_and_has_no_ramp(log: Log) -> None:
    fleet = Fleet(overlay=True)
    for at_s in (0.0, 100.0, 200.0):
        seq = log.seq + 1
        (event,) = fleet.apply(log.outcome(LIMITED, at_s=at_s, seen_seq=seq - 1))
        assert getattr(event, "end_ms", 0) == log.ms(at_s) + own_ms(5000, "r1", seq)
    entry = fleet.entry(TARGET.key)
    assert entry is not None
    assert entry.ramp is None
    assert entry.expires_ms == entry.holds[0].end_ms


def test_a_spent_allowance_holds_an_overlay_to_its_reset_without_the_factor(log: Log) -> None:
    given(log.outcome("quota", at_s=0), overlay=True).then(held("throttle", end_ms=log.ms(900), scope=CREDENTIAL))
    given(log.outcome("quota", at_s=0, retry_after_s=100), overlay=True).then(held("throttle", end_ms=log.ms(100)))


def test_an_overlay_ends_by_a_success_after_it_and_not_by_one_before(log: Log) -> None:
    story = given(log.outcome(LIMITED, at_s=0, retry_after_s=60), overlay=True)
    story.when(log.outcome("ok", at_s=1, seen_seq=0)).then()
    story.when(log.outcome("ok", at_s=2, seen_seq=1)).then(released("throttle", began_seq=1, by="success"))
    story.then_decision(TARGET, log.ms(2), allowed=True, reason="ok")


# -- the hint ------------------------------------------------------------------------------------------


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


def test_three_throttles_in_ten_seconds_hold_a_small_fleet_and_two_do_not(log: Log) -> None:
    story = given(log.outcome(LIMITED, at_s=0), log.outcome(LIMITED, at_s=5, replica="r2")).then()
    story.then_decision(TARGET, log.ms(5), allowed=True, reason="ok")
    story.when(log.outcome(LIMITED, at_s=10 - MS, status=429, retry_after_s=7)).then(
        held(
            "throttle",
            began_seq=3,
            cause_seq=3,
            scope=TARGET.scope,
            end_ms=log.ms(17 - MS),
            old_end_ms=None,
            proof=False,
            kind=LIMITED,
            status=429,
            enforced=True,
            replica=None,
            numbers={"throttles": 3, "replicas": 2},
        )
    )
    story.then_decision(
        TARGET, log.ms(10), allowed=False, reason="throttled", rule="throttle", scope=TARGET.key, retry_in_s=6.999
    )
    story.then_decision(OTHER, log.ms(10), allowed=True, reason="ok")


def test_a_throttle_counts_for_ten_seconds_to_the_millisecond(log: Log) -> None:
    given(*(log.outcome(LIMITED, at_s=at_s) for at_s in (0, 5, 10 - MS))).then(held("throttle"))
    log.seq = 0
    story = given(*(log.outcome(LIMITED, at_s=at_s) for at_s in (0, 5, 10))).then()
    document = story.fleet.document(TARGET.key, log.ms(10))
    assert document is not None
    assert document["throttles"] == 2
    story.when(log.outcome(LIMITED, at_s=10)).then(held("throttle"))


@pytest.mark.parametrize(("replicas", "needed"), [(1, 3), (3, 3), (4, 20), (9, 20)])
def test_from_four_replicas_on_twenty_are_needed(log: Log, replicas: int, needed: int) -> None:
    story = given(*crowd(log, replicas - 1))
    for n in range(needed - 1):
        story.when(log.outcome(LIMITED, at_s=n / 10)).then()
    story.when(log.outcome(LIMITED, at_s=2)).then(held("throttle", numbers={"throttles": needed, "replicas": 1}))


def test_a_replica_unheard_of_for_ten_minutes_is_none(log: Log) -> None:
    for at_s, wanted in ((-600 + 2 + MS, []), (-600 + 2, [held("throttle")])):
        log.seq = 0
        story = given(*crowd(log, 3, at_s=at_s))
        story.when(*(log.outcome(LIMITED, at_s=n) for n in range(3))).then(*wanted)


def test_one_answer_among_them_and_the_fleet_is_not_held_for_ten_seconds(log: Log) -> None:
    story = given(log.outcome("ok", at_s=0, replica="r2"))
    story.when(*(log.outcome(LIMITED, at_s=at_s) for at_s in (1, 2, 3, 9, 10 - MS))).then()
    story.when(log.outcome(LIMITED, at_s=10, replica="r2")).then(held("throttle", began_seq=log.seq))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_each_kind_does_to_a_pending_count(log: Log, kind: Kind) -> None:
    """The cells of the column `throttle`: what ends a hold clears the count, what holds adds to it."""
    target = TARGET if kind != "quota" else None
    scope = "model" if kind in (LIMITED, "quota") else None
    story = given(log.outcome(LIMITED, at_s=0), log.outcome(LIMITED, at_s=1), policy=Policy.from_data(ALONE))
    only_throttle(story.when(log.outcome(kind, at_s=2, replica="r2", target=target, scope=scope)))
    cell = TABLE[KINDS[kind].group].throttle
    if cell == "holds":
        story.then(held("throttle", scope=TARGET.scope, kind=kind))
        return
    story.then()
    document = story.fleet.document(TARGET.key, log.ms(2))
    assert document is not None
    assert document["throttles"] == {"ends": 0, "none": 2}[cell]
    # An answer counts for ten seconds more: only a damaged one is cleared and forgotten.
    expected = [held("throttle")] if cell == "none" else []
    only_throttle(story.when(log.outcome(LIMITED, at_s=3, replica="r1"))).then(*expected)


def test_what_waited_longer_than_the_window_is_statistics(log: Log) -> None:
    story = given(*(log.outcome(LIMITED, at_s=n) for n in range(2)))
    story.when(*(log.outcome(LIMITED, at_s=3, queued_ms=10_001) for n in range(5))).then()
    story.when(log.outcome(LIMITED, at_s=4, queued_ms=10_000)).then(held("throttle"))
    given(log.outcome("quota", at_s=0, queued_ms=600_001)).then()
    given(log.outcome("quota", at_s=0, queued_ms=600_000)).then(held("throttle"))


def test_a_forced_call_and_a_callers_own_doing_are_statistics(log: Log) -> None:
    given(*(log.outcome(LIMITED, at_s=n, forced=True) for n in range(4))).then()
    given(*(log.outcome(LIMITED, at_s=n, scope="none") for n in range(4))).then()
    given(log.outcome("quota", at_s=0, forced=True)).then()


def test_throttles_are_never_faults(log: Log) -> None:
    story = given(*(log.outcome(LIMITED, at_s=n * 20) for n in range(40))).then()
    document = story.fleet.document(TARGET.key, log.ms(780))
    assert document is not None
    assert (document["fault_run"], document["window_faults"], document["window_attempts"]) == (0, 0, 0)


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
        *(log.outcome(kind, at_s=n, scope=scope, target=target, replica=f"r{n % 2}") for n in range(3)), policy=policy
    )
    assert {event.scope.name for event in only_throttle(story).derived} == {holds}
    story.then_decision(target, log.ms(3), allowed=False, reason="throttled")
    story.then_decision(sibling, log.ms(3), allowed=holds == "model")
    story.then_decision(Target("openrouter.ai#team-b", "a"), log.ms(3), allowed=True)


def test_models_of_one_credential_count_together_where_the_credential_is_limited(log: Log) -> None:
    found = [
        log.outcome(LIMITED, at_s=n, scope="credential", target=Target(TARGET.provider, f"m{n}")) for n in range(3)
    ]
    given(*found).then(held("throttle", scope=CREDENTIAL, began_seq=3))


def test_an_answer_of_any_model_is_an_answer_of_its_credential(log: Log) -> None:
    limited = [log.outcome(LIMITED, at_s=n, scope="credential") for n in range(2)]
    story = given(*limited, log.outcome("ok", at_s=2, target=OTHER)).then()
    story.when(log.outcome(LIMITED, at_s=3, scope="credential")).then()
    story.when(*(log.outcome(LIMITED, at_s=at_s, scope="credential") for at_s in (11, 11.5))).then()
    story.when(log.outcome(LIMITED, at_s=12, scope="credential")).then(held("throttle", scope=CREDENTIAL))
    story.when(log.outcome("ok", at_s=13, target=OTHER, seen_seq=log.seq)).then(
        released("throttle", scope=CREDENTIAL, by="success")
    )
    story.then_decision(TARGET, log.ms(13), allowed=True)


def test_a_model_that_is_limited_is_not_its_credential(log: Log) -> None:
    story = throttled(log, 60).when(log.outcome("ok", at_s=3, target=OTHER, seen_seq=3)).then()
    story.then_decision(TARGET, log.ms(4), allowed=False)


# -- two witnesses -------------------------------------------------------------------------------------


def test_one_replicas_word_holds_nobody_else_while_others_had_good_answers(log: Log) -> None:
    story = given(log.outcome("ok", at_s=0, replica="r2"))
    story.when(*(log.outcome(LIMITED, at_s=20 + n, retry_after_s=60) for n in range(3))).then(
        held(
            "throttle",
            replica="r1",
            scope=TARGET.scope,
            end_ms=log.ms(22) + own_ms(60_000, "r1", 4),
            numbers={"throttles": 3, "replicas": 1},
        )
    )
    story.then_decision(TARGET, log.ms(22), allowed=True, reason="ok")
    document = story.fleet.document(TARGET.key, log.ms(22))
    assert document is not None
    assert document["throttle_held_alone"] == ["r1"]
    story.when(log.outcome(LIMITED, at_s=200, replica="r2", retry_after_s=9)).then(
        held("throttle", replica=None, end_ms=log.ms(209))
    )


def test_a_spent_allowance_needs_a_second_witness_too(log: Log) -> None:
    story = given(log.outcome("ok", at_s=0, replica="r2", target=OTHER))
    story.when(log.outcome("quota", at_s=1)).then(held("throttle", replica="r1", end_ms=log.ms(901)))
    story.when(log.outcome("quota", at_s=2)).then()
    story.then_decision(TARGET, log.ms(2), allowed=True)
    story.when(log.outcome(LIMITED, at_s=3, replica="r2")).then()
    story.when(log.outcome("quota", at_s=4, replica="r2")).then(
        held("throttle", replica=None, scope=CREDENTIAL, end_ms=log.ms(904))
    )


@pytest.mark.parametrize(("at_s", "holds"), [(600 - MS, False), (600, True)])
def test_a_good_answer_of_another_counts_for_ten_minutes(log: Log, at_s: float, holds: bool) -> None:
    story = given(log.outcome("ok", at_s=0, replica="r2")).when(log.outcome("quota", at_s=at_s))
    story.then(held("throttle", replica=None if holds else "r1"))


@pytest.mark.parametrize(("at_s", "holds"), [(601 - MS, True), (601, False)])
def test_a_word_can_be_confirmed_for_ten_minutes(log: Log, at_s: float, holds: bool) -> None:
    story = given(log.outcome("ok", at_s=0, replica="r2"), log.outcome("quota", at_s=1))
    story.when(log.outcome("ok", at_s=590, replica="r3"))
    story.when(log.outcome("quota", at_s=at_s, replica="r2")).then(held("throttle", replica=None if holds else "r2"))


def test_a_good_answer_of_its_own_takes_a_replicas_word_back(log: Log) -> None:
    story = given(log.outcome("ok", at_s=0, replica="r2"), log.outcome("quota", at_s=1))
    story.when(log.outcome("ok", at_s=2, target=OTHER))
    story.when(log.outcome("quota", at_s=3, replica="r2")).then(held("throttle", replica="r2"))


def test_a_good_answer_before_a_clear_is_void(log: Log) -> None:
    story = given(log.outcome("ok", at_s=0, replica="r2", target=OTHER))
    story.when(log.override("clear", at_s=1, scope=Scope("openrouter.ai")))
    story.when(log.outcome("quota", at_s=2, seen_seq=2)).then(held("throttle", replica=None, scope=CREDENTIAL))


def test_throttles_of_both_kinds_are_no_one_replicas_word_together(log: Log) -> None:
    story = given(log.outcome("ok", at_s=0, replica="r3"))
    story.when(log.outcome("quota", at_s=20, replica="r2", scope="model")).then(held("throttle", replica="r2"))
    story.when(log.outcome(LIMITED, at_s=21), log.outcome(LIMITED, at_s=22)).then(
        held("throttle", replica=None, kind=LIMITED, numbers={"throttles": 3, "replicas": 2})
    )


def test_what_was_confirmed_is_not_confirmed_again(log: Log) -> None:
    story = given(log.outcome("ok", at_s=0, replica="r3"))
    story.when(*(log.outcome(LIMITED, at_s=20 + n) for n in range(3))).then(held("throttle", replica="r1"))
    story.when(log.outcome(LIMITED, at_s=30, replica="r2")).then(held("throttle", replica=None, end_ms=log.ms(35)))
    story.when(log.outcome(LIMITED, at_s=60, replica="r2", seen_seq=5)).then()


def test_a_limit_that_some_calls_pass_is_nobodys_hold_whoever_confirms_it(log: Log) -> None:
    """A fleet hold needs ten seconds without an answer, also by a second witness."""
    story = given(log.outcome("ok", at_s=0, replica="r2"))
    story.when(*(log.outcome(LIMITED, at_s=20 + n / 10) for n in range(3))).then(held("throttle", replica="r1"))
    story.when(log.outcome("ok", at_s=25, replica="r3"), log.outcome(LIMITED, at_s=30, replica="r2")).then()
    story.when(log.outcome(LIMITED, at_s=35, replica="r2")).then(held("throttle", replica=None))
