"""Faults -> breaker -> probation -> ramp, to the millisecond (Rule 4.3 and the rules of 4)."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest

from sickbay_events import KINDS, Kind, Lease, Policy, ProbeResult, Scope, Target
from sickbay_projections.rules.columns import TABLE
from sickbay_projections.testing import Log, Story, given, held, released, warned

TARGET = Target("openrouter.ai#team-a", "z-ai/glm-5.3")
FAULT: Kind = "server_error"
FAULTS: tuple[Kind, ...] = ("overloaded", "server_error", "timeout", "network", "truncated")
MS = 0.001
PLAIN: dict[str, Any] = {"breaker": {"jitter_percent": 0}}
"""Whole seconds: for the tests that are not about jitter."""


@pytest.fixture
def log() -> Log:
    return Log(TARGET)


def jittered(first_ms: int, seq: int, key: str = TARGET.key) -> int:
    """The formula of Rule 4.3, as it is written there."""
    return first_ms + first_ms * (crc32(f"{key} {seq}".encode()) % 2001 - 1000) // 10000


def opened(log: Log, **policy: Any) -> Story:
    """Five faults in the first second: open by sequence 5 until 31 s."""
    rules = Policy.from_data({**PLAIN, **policy})
    return given(*(log.outcome(FAULT, at_s=n / 4) for n in range(5)), policy=rules)


def document(story: Story, log: Log, at_s: float) -> dict[str, Any]:
    found = story.fleet.document(TARGET.key, log.ms(at_s))
    assert found is not None
    return found


def points(story: Story, log: Log, at_s: float, name: str = "faults") -> int:
    found: int = document(story, log, at_s)["evidence"].get(name, {}).get("points", 0)
    return found


# -- the run -------------------------------------------------------------------------------------------


def test_five_consecutive_faults_open_and_four_do_not(log: Log) -> None:
    story = given(*(log.outcome(FAULT, at_s=n) for n in range(4))).then()
    story.then_decision(TARGET, log.ms(3), allowed=True, reason="ok", trial=False)
    end_ms = log.ms(4) + jittered(30_000, 5)
    story.when(log.outcome(FAULT, at_s=4, status=502)).then(
        held(
            "breaker",
            began_seq=5,
            cause_seq=5,
            end_ms=end_ms,
            old_end_ms=None,
            proof=True,
            kind=FAULT,
            status=502,
            enforced=True,
            replica=None,
        )
    )
    story.then_decision(
        TARGET, log.ms(4), allowed=False, reason="breaker_open", rule="breaker", scope=TARGET.key, began_seq=5
    )
    story.then_decision(TARGET, end_ms - 1, allowed=False, retry_in_s=0.001)
    story.then_decision(TARGET, end_ms, allowed=True, reason="ok", trial=True, began_seq=5)


@pytest.mark.parametrize("kind", FAULTS)
def test_every_kind_of_fault_counts(log: Log, kind: Kind) -> None:
    given(*(log.outcome(kind, at_s=n) for n in range(5))).then(held("breaker", kind=kind))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_each_kind_does_to_a_run_of_four(log: Log, kind: Kind) -> None:
    story = given(*(log.outcome(FAULT, at_s=n) for n in range(4)), log.outcome(kind, at_s=4))
    cell = TABLE[KINDS[kind].group].faults
    held_by = {hold["rule"] for hold in document(story, log, 4)["holds"]}
    assert ("breaker" in held_by) == (cell == "failure")
    if cell != "failure":
        assert points(story, log, 4) == (7 if cell == "answer" else 8)


def test_a_first_content_takes_a_point_off(log: Log) -> None:
    story = given(*(log.outcome(FAULT, at_s=n) for n in range(4)), log.answered(at_s=4))
    assert points(story, log, 4) == 7


# -- whose doing, fresh, repeated ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["timeout", "truncated"])
def test_the_same_request_over_again_is_no_fault_twice(log: Log, kind: Kind) -> None:
    story = given(*(log.outcome(kind, at_s=n, request_hash="h") for n in range(8))).then()
    assert points(story, log, 8) == 2
    story.when(*(log.outcome(FAULT, at_s=9 + n, request_hash="h") for n in range(4))).then(held("breaker"))


def test_an_impatient_timeout_counts_for_its_own_replica_only(log: Log) -> None:
    impatient = [log.outcome("timeout", at_s=n, limit_ms=9_999, took_ms=9_999) for n in range(9)]
    given(*impatient).then()
    assert held("breaker", began_seq=5).differs(given(*impatient[:5], overlay=True).derived[0]) is None
    log.seq = 0
    given(*(log.outcome("timeout", at_s=n, limit_ms=10_000) for n in range(5))).then(held("breaker"))


def test_a_call_given_up_after_ten_seconds_without_content_is_a_timeout(log: Log) -> None:
    given(*(log.outcome("cancelled", at_s=n, took_ms=10_000) for n in range(5))).then(held("breaker", kind="timeout"))
    log.seq = 0
    given(*(log.outcome("cancelled", at_s=n, took_ms=10_000, ttft_ms=9) for n in range(5))).then()


def test_a_bad_outcome_of_a_forced_call_is_statistics_and_a_good_one_closes(log: Log) -> None:
    given(*(log.outcome(FAULT, at_s=n, forced=True) for n in range(9))).then()
    log.seq = 0
    opened(log).when(log.outcome("ok", at_s=2, forced=True, seen_seq=5)).then(released("breaker", by="success"))


def test_what_holds_for_nobody_is_no_fault(log: Log) -> None:
    given(*(log.outcome(FAULT, at_s=n, scope="none") for n in range(9))).then()


# -- how long ------------------------------------------------------------------------------------------


def test_each_further_hold_is_twice_as_long_up_to_ten_minutes(log: Log) -> None:
    story = given(*(log.outcome(FAULT, at_s=0) for _ in range(5)))
    began_seq, at_ms = 5, log.ms(0)
    for seconds in (30, 60, 120, 240, 480, 600, 600):
        end_ms = at_ms + jittered(seconds * 1000, began_seq)
        story.then(held("breaker", began_seq=began_seq, end_ms=end_ms))
        at_ms = end_ms
        event = log.outcome(FAULT, at_s=(at_ms - log.start_ms) / 1000, seen_seq=began_seq, trial=[lease(began_seq)])
        began_seq = log.seq
        story.when(event)


def lease(began_seq: int) -> Lease:
    return Lease("breaker", began_seq)


def test_the_growth_is_forgotten_with_the_answer_that_closes(log: Log) -> None:
    story = opened(log).when(log.outcome(FAULT, at_s=3, trial=[lease(5)])).then(held("breaker", end_ms=log.ms(63)))
    story.when(log.outcome("ok", at_s=5, seen_seq=6), *(log.outcome("ok", at_s=5) for _ in range(9)))
    story.when(*(log.outcome(FAULT, at_s=6, seen_seq=7) for _ in range(5))).then(held("breaker", end_ms=log.ms(36)))


@pytest.mark.parametrize("percent", [0, 10, 25, 50])
def test_the_jitter_follows_the_policy(log: Log, percent: int) -> None:
    story = opened(log, breaker={"jitter_percent": percent})
    place = crc32(f"{TARGET.key} 5".encode()) % 2001 - 1000
    story.then(held("breaker", end_ms=log.ms(1) + 30_000 + 30_000 * place * percent // 100_000))


@pytest.mark.parametrize(
    ("retry_after_s", "seconds"), [(29, 30), (30.5, 30.5), (3600, 3600), (1e308, 3600), (-5, 30), (0, 30)]
)
def test_a_longer_retry_after_wins_up_to_an_hour(log: Log, retry_after_s: float, seconds: float) -> None:
    faults = [log.outcome(FAULT, at_s=0) for _ in range(4)]
    story = given(*faults, log.outcome(FAULT, at_s=0, retry_after_s=retry_after_s), policy=Policy.from_data(PLAIN))
    story.then(held("breaker", end_ms=log.ms(seconds)))


# -- after the hold ------------------------------------------------------------------------------------


@pytest.mark.parametrize("leased", [True, False])
@pytest.mark.parametrize("at_s", [5.0, 31.0, 300.0])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_each_kind_does_as_a_call_after_the_hold(log: Log, kind: Kind, at_s: float, leased: bool) -> None:
    trial = [lease(5)] if leased else None
    story = opened(log, shadow={"rules": ["throttle", "credential"]})
    story.when(log.outcome(kind, at_s=at_s, seen_seq=5, trial=trial))
    story.derived = [event for event in story.derived if event.rule == "breaker"]
    cell = TABLE[KINDS[kind].group].faults
    if cell in ("answer", "closes"):
        story.then(released("breaker", began_seq=5, end_ms=log.ms(31), by="success"))
        story.then_decision(TARGET, log.ms(at_s), allowed=True, trial=False)
    elif cell == "failure" and leased:
        story.then(held("breaker", began_seq=6, end_ms=log.ms(at_s + 60)))
    else:
        story.then().then_decision(TARGET, log.ms(at_s), allowed=at_s >= 31, trial=not leased or at_s != 5, began_seq=5)


def test_a_fault_without_a_lease_on_probation_counts_as_any_fault_does(log: Log) -> None:
    story = opened(log)
    for n in range(4):
        story.when(log.outcome(FAULT, at_s=40 + n, seen_seq=5)).then()
    story.when(log.outcome(FAULT, at_s=44, seen_seq=5)).then(held("breaker", began_seq=10, end_ms=log.ms(104)))


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("at_s", [5.0, 40.0, 100.0])
def test_what_is_not_after_the_hold_changes_no_state(log: Log, kind: Kind, at_s: float) -> None:
    if KINDS[kind].group in ("rejection", "throttle", "auth", "degraded") or kind == "wrong_endpoint":
        return  # other folds' evidence
    for closed in (False, True):
        log.seq = 0
        story = opened(log)
        if closed:
            story.when(log.outcome("ok", at_s=4, seen_seq=5))
        seen = [10**9, 4, 0, None]
        for n, seen_seq in enumerate(seen * 10):
            story.when(log.outcome(kind, at_s=at_s + n / 100, seen_seq=seen_seq, took_ms=200_000)).then()
        assert points(story, log, at_s + 1) == (4 if closed and kind != "ok" else 0)
        assert [hold["began_seq"] for hold in document(story, log, at_s + 1)["holds"]] == ([] if closed else [5])


def test_a_first_content_closes(log: Log) -> None:
    opened(log).when(log.answered(at_s=32, seen_seq=5, trial=[lease(5)])).then(released("breaker"))


@pytest.mark.parametrize("kind", ["bad_request", "unknown"])
def test_three_leased_neutral_trials_in_a_row_begin_it_again_at_the_same_length(log: Log, kind: Kind) -> None:
    story = opened(log)
    for n in range(2):
        story.when(log.outcome(kind, at_s=40 + n, seen_seq=5, trial=[lease(5)])).then()
    story.when(log.outcome("auth", at_s=43, seen_seq=5, trial=[lease(5)]))
    for n in range(2):
        story.when(log.outcome(kind, at_s=44 + n, seen_seq=5, trial=[lease(5)])).then()
    story.when(log.outcome(kind, at_s=50, seen_seq=5, trial=[lease(5)]))
    story.then(held("breaker", began_seq=11, end_ms=log.ms(80)))
    story.when(log.outcome(FAULT, at_s=80, seen_seq=11, trial=[lease(11)]))
    story.then(held("breaker", end_ms=log.ms(140)))


def test_a_leased_probe_acts_as_its_kind_and_another_does_not(log: Log) -> None:
    for trial in (None, [lease(5)]):
        log.seq = 0
        probe = ProbeResult(level="readiness", ok=True, kind="ok", trial=trial, seen_seq=5)
        story = opened(log).when(log.event(probe, at_s=40))
        story.then(*([released("breaker")] if trial else []))


def test_an_hour_on_probation_without_evidence_ends_it(log: Log) -> None:
    story = opened(log)
    story.then_decision(TARGET, log.ms(31 + 3600 - MS), trial=True)
    story.then_decision(TARGET, log.ms(31 + 3600), trial=False, rule=None)


# -- slow calls ----------------------------------------------------------------------------------------


def test_slow_calls_are_off_by_default_and_open_at_twenty_in_a_row_when_on(log: Log) -> None:
    slow = [log.outcome("ok", at_s=0, ttft_ms=5001) for _ in range(30)]
    given(*slow).then()
    policy = Policy.from_data({"breaker": {"slow_ttft_ms": 5000, "jitter_percent": 0}})
    story = given(*slow[:19], policy=policy).then()
    assert points(story, log, 0, "slow") == 19
    story.when(slow[19]).then(held("breaker", end_ms=log.ms(30), kind="ok"))
    story.when(log.outcome("ok", at_s=1, ttft_ms=9000, seen_seq=20)).then(released("breaker"))
    assert points(story, log, 1, "slow") == 10


def test_a_fast_first_content_takes_a_point_of_the_slow_ones_off(log: Log) -> None:
    policy = Policy.from_data({"breaker": {"slow_ttft_ms": 5000}})
    slow = [log.outcome("ok", at_s=0, ttft_ms=5001 if n % 2 else 5000) for n in range(200)]
    given(*slow, policy=policy).then()


def test_one_replicas_slow_calls_hold_nobody_else_while_others_are_answered(log: Log) -> None:
    policy = Policy.from_data({"breaker": {"slow_ttft_ms": 5000}})
    story = given(log.outcome("ok", at_s=0, replica="r2", ttft_ms=1), policy=policy)
    story.when(*(log.outcome("ok", at_s=0, ttft_ms=5001) for _ in range(30)))
    story.then(held("breaker", replica="r1"), warned("replica_suspect", replica="r1"))


# -- clears, clocks, policies --------------------------------------------------------------------------


@pytest.mark.parametrize("scope", [TARGET.scope, Scope("openrouter.ai"), Scope("openrouter.ai", "team-a")], ids=str)
def test_a_clear_empties_points_and_growth(log: Log, scope: Scope) -> None:
    story = opened(log).when(log.override("clear", at_s=2, scope=scope))
    story.then_decision(TARGET, log.ms(2), allowed=True, trial=False)
    story.when(*(log.outcome(FAULT, at_s=3, seen_seq=5) for _ in range(9))).then(
        *([released("breaker", by="clear")] if scope != TARGET.scope else [])
    )
    story.when(*(log.outcome(FAULT, at_s=4, seen_seq=6) for _ in range(4))).then()
    story.when(log.outcome(FAULT, at_s=4, seen_seq=6)).then(held("breaker", end_ms=log.ms(34)))


def test_a_wide_clear_empties_the_points_of_a_target_before_its_next_success(log: Log) -> None:
    story = given(*(log.outcome(FAULT, at_s=0) for _ in range(4)))
    story.when(log.override("clear", at_s=1, scope=Scope("openrouter.ai")), log.outcome("ok", at_s=2, seen_seq=5))
    assert points(story, log, 2) == 0
    assert story.fleet.store.nodes[TARGET.key].state.points is None


def test_a_clock_that_steps_back_leaves_no_end_ahead_of_the_cap(log: Log) -> None:
    story = given(*(log.outcome(FAULT, at_s=9000, retry_after_s=3000) for _ in range(5)))
    story.when(log.outcome("bad_request", at_s=0))
    story.then_decision(TARGET, log.ms(120), allowed=False, trial=True, retry_in_s=3480.0)


def test_in_shadow_it_is_told_and_lets_pass(log: Log) -> None:
    story = opened(log, shadow={"rules": ["breaker"]}).then(held("breaker", enforced=False))
    story.then_decision(TARGET, log.ms(2), allowed=True, trial=False)
