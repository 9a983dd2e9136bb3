"""Faults -> breaker -> probation -> ramp, to the millisecond (Rule 4.3 and the rules of 4)."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest

from sickbay_events import KINDS, Kind, Lease, Policy, ProbeResult, Scope, Target
from sickbay_projections import Fleet
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
            numbers={"run": 5, "faults": 5, "attempts": 5, "replicas": 1},
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
    cell = TABLE[KINDS[kind].group].run
    found = document(story, log, 4)
    assert bool(found["holds"]) == (cell == "fault")
    if cell != "fault":
        assert found["fault_run"] == (0 if cell == "success" else 4)
        assert found["window_attempts"] == (5 if cell == "success" else 4)
        story.when(log.outcome(FAULT, at_s=5))
        assert bool(story.derived) == (cell != "success")


def test_a_first_content_ends_the_run_and_is_no_attempt(log: Log) -> None:
    story = given(*(log.outcome(FAULT, at_s=n) for n in range(4)), log.answered(at_s=4))
    found = document(story, log, 4)
    assert (found["fault_run"], found["window_attempts"]) == (0, 4)


@pytest.mark.parametrize(("last_s", "opens"), [(600 - MS, True), (600, False)])
def test_the_run_lies_within_ten_minutes(log: Log, last_s: float, opens: bool) -> None:
    story = given(*(log.outcome(FAULT, at_s=at_s) for at_s in (0, 200, 400, 500, last_s)))
    story.then(*([held("breaker", numbers={"run": 5, "faults": 1, "attempts": 1, "replicas": 1})] if opens else []))
    story.when(log.outcome(FAULT, at_s=601))
    assert bool(story.derived) == (not opens), "without the first one there are five again"


def test_above_a_hundred_attempts_in_the_window_only_shares_open(log: Log) -> None:
    def run_after(answers: int) -> Story:
        log.seq = 0
        return given(
            *(log.outcome("ok", at_s=n / 10) for n in range(answers)),
            *(log.outcome(FAULT, at_s=15 + n) for n in range(5)),
        )

    run_after(95).then(held("breaker", numbers={"run": 5, "faults": 5, "attempts": 100, "replicas": 1}))
    run_after(96).then()
    assert document(run_after(96), log, 20)["fault_run"] == 5


# -- shares of the window ------------------------------------------------------------------------------


def test_half_of_twenty_attempts_open(log: Log) -> None:
    given(
        *(log.outcome(kind, at_s=0) for _ in range(9) for kind in ("ok", FAULT)),
        log.outcome(FAULT, at_s=0),
    ).then()
    log.seq = 0
    story = given(*(log.outcome(kind, at_s=0) for _ in range(10) for kind in ("ok", FAULT)))
    story.then(held("breaker", began_seq=20, numbers={"run": 1, "faults": 10, "attempts": 20, "replicas": 1}))


def test_less_than_half_of_many_do_not_open(log: Log) -> None:
    kinds: tuple[Kind, ...] = ("ok", FAULT) * 60
    given(log.outcome("ok", at_s=0), *(log.outcome(kind, at_s=0) for kind in kinds)).then()


def test_thirty_percent_of_two_hundred_open_and_of_fewer_do_not(log: Log) -> None:
    kinds: tuple[Kind, ...] = ("ok", "ok", FAULT, "ok", "ok", FAULT, "ok", "ok", "ok", FAULT) * 20
    given(*(log.outcome(kind, at_s=0) for kind in kinds[:199])).then()
    log.seq = 0
    story = given(*(log.outcome(kind, at_s=0) for kind in kinds))
    story.then(held("breaker", began_seq=200, numbers={"run": 1, "faults": 60, "attempts": 200, "replicas": 1}))
    log.seq = 0
    given(log.outcome("ok", at_s=0), *(log.outcome(kind, at_s=0) for kind in kinds)).then()


@pytest.mark.parametrize(("last_s", "opens"), [(10, True), (59.999, True), (60, False), (300, False)])
def test_the_window_is_the_current_bucket_and_the_five_before(last_s: float, opens: bool) -> None:
    log = Log(TARGET, start_ms=1_700_000_000_000)  # the beginning of a bucket
    assert log.start_ms % 10_000 == 0
    first = [log.outcome(kind, at_s=9.999) for _ in range(9) for kind in ("ok", FAULT)]
    story = given(*first, log.outcome("ok", at_s=last_s), log.outcome(FAULT, at_s=last_s))
    story.then(*([held("breaker")] if opens else []))
    assert document(story, log, 69.999 if opens else last_s)["window_attempts"] == (0 if opens else 2)


def test_the_window_ages_by_whole_buckets_without_an_event(log: Log) -> None:
    story = given(log.outcome("ok", at_s=9.999), log.outcome(FAULT, at_s=10), log.outcome("ok", at_s=35))
    seen = {at_s: document(story, log, at_s) for at_s in (35, 59.999, 60, 69.999, 70, 95)}
    assert [found["window_attempts"] for found in seen.values()] == [3, 3, 2, 2, 1, 0]
    assert [found["window_faults"] for found in seen.values()] == [1, 1, 1, 1, 0, 0]


# -- whose doing, fresh, repeated ----------------------------------------------------------------------


@pytest.mark.parametrize(("queued_ms", "run", "attempts"), [(5000, 1, 1), (5001, 0, 1), (60_000, 0, 1), (60_001, 0, 0)])
def test_what_waited_is_in_no_run(log: Log, queued_ms: int, run: int, attempts: int) -> None:
    """What waited longer than the window is statistics."""
    story = given(log.outcome(FAULT, at_s=0, queued_ms=queued_ms))
    found = document(story, log, 0)
    assert (found["fault_run"], found["window_faults"], found["window_attempts"]) == (run, attempts, attempts)
    assert found["outcomes"] == 1


@pytest.mark.parametrize(("queued_ms", "attempts"), [(60_000, 2), (60_001, 1)])
@pytest.mark.parametrize("run", [0, 1])
def test_a_success_that_waited_too_long_is_no_attempt(log: Log, queued_ms: int, attempts: int, run: int) -> None:
    first = log.outcome(FAULT if run else "ok", at_s=0)
    story = given(first, log.outcome("ok", at_s=1, queued_ms=queued_ms))
    assert document(story, log, 1)["window_attempts"] == attempts
    assert document(story, log, 1)["fault_run"] == run, "its place in the order is not known"


@pytest.mark.parametrize("kind", ["timeout", "truncated"])
def test_the_same_request_over_again_is_no_fault_twice(log: Log, kind: Kind) -> None:
    story = given(*(log.outcome(kind, at_s=n, request_hash="h") for n in range(8))).then()
    assert document(story, log, 8)["fault_run"] == 1
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


def test_the_growth_is_forgotten_after_ten_minutes_closed(log: Log) -> None:
    for closed_s, seconds in ((600 - MS, 60), (600, 30)):
        log.seq = 0
        story = opened(log).when(log.outcome("ok", at_s=40, seen_seq=5)).then(released("breaker"))
        story.when(*(log.outcome(FAULT, at_s=40 + closed_s, seen_seq=6) for _ in range(5)))
        story.then(held("breaker", end_ms=log.ms(40 + closed_s + seconds)))


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
    cell = TABLE[KINDS[kind].group].breaker
    if cell == "closes":
        story.then(released("breaker", began_seq=5, end_ms=log.ms(31), by="success"))
        story.then_decision(TARGET, log.ms(at_s), allowed=True, trial=False)
    elif cell == "begins_again" and leased and at_s >= 31:
        story.then(held("breaker", began_seq=6, end_ms=log.ms(at_s + 60), numbers={"faults": 1}))
    else:
        story.then().then_decision(TARGET, log.ms(at_s), allowed=at_s >= 31, trial=at_s >= 31, began_seq=5)


def test_a_fault_without_a_lease_on_probation_counts_as_any_fault_does(log: Log) -> None:
    story = opened(log)
    for n in range(4):
        story.when(log.outcome(FAULT, at_s=40 + n, seen_seq=5)).then()
    story.when(log.outcome(FAULT, at_s=44, seen_seq=5)).then(held("breaker", began_seq=10, end_ms=log.ms(104)))


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("at_s", [5.0, 40.0, 100.0])
def test_what_is_not_after_the_hold_changes_no_state_ever(log: Log, kind: Kind, at_s: float) -> None:
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
        found = document(story, log, at_s + 1)
        assert (found["fault_run"], found["window_faults"]) == (0, 0)
        assert found["window_attempts"] == (1 if closed and at_s < 60 else 0)
        assert [hold["began_seq"] for hold in found["holds"]] == ([] if closed else [5])


def test_faults_before_the_end_are_counted_and_move_nothing(log: Log) -> None:
    story = opened(log)
    for n in range(9):
        story.when(log.outcome(FAULT, at_s=2 + n, seen_seq=5, retry_after_s=3000)).then()
    hold = document(story, log, 20)["holds"][0]
    assert (hold["later"], hold["count"], hold["end_ms"]) == (9, 5, log.ms(31))


def test_a_success_closes_and_the_window_begins_anew(log: Log) -> None:
    story = opened(log).when(log.outcome("ok", at_s=2, seen_seq=5))
    found = document(story, log, 2)
    assert (found["window_attempts"], found["window_faults"], found["fault_run"]) == (1, 0, 0)


def test_a_first_content_closes(log: Log) -> None:
    opened(log).when(log.answered(at_s=32, seen_seq=5, trial=[lease(5)])).then(released("breaker"))


@pytest.mark.parametrize("kind", ["bad_request", "unknown"])
def test_three_leased_neutral_trials_in_a_row_begin_it_again_at_the_same_length(log: Log, kind: Kind) -> None:
    story = opened(log)
    for n in range(2):
        story.when(log.outcome(kind, at_s=40 + n, seen_seq=5, trial=[lease(5)])).then()
    story.when(log.outcome("rate_limited", at_s=43, seen_seq=5, trial=[lease(5)]))
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


# -- two witnesses -------------------------------------------------------------------------------------


def test_one_replicas_run_does_not_hold_a_fleet_in_which_another_had_a_good_answer(log: Log) -> None:
    story = given(log.outcome("ok", at_s=0, replica="r2"), *(log.outcome(FAULT, at_s=1 + n) for n in range(4))).then()
    story.when(log.outcome(FAULT, at_s=6)).then(
        warned("replica_suspect", replica="r1", cause_seq=6),
        held("breaker", replica="r1", began_seq=6, end_ms=log.ms(6) + jittered(30_000, 6)),
    )
    story.then_decision(TARGET, log.ms(6), allowed=True, trial=False)
    assert document(story, log, 6)["breaker_held_alone"] == "r1"
    story.when(*(log.outcome(FAULT, at_s=7 + n) for n in range(3))).then()


@pytest.mark.parametrize(("at_s", "fleet"), [(600 - MS, False), (600, True)])
def test_a_good_answer_of_another_speaks_for_ten_minutes(log: Log, at_s: float, fleet: bool) -> None:
    story = given(log.outcome("ok", at_s=0, replica="r2"), *(log.outcome(FAULT, at_s=500) for n in range(4)))
    story.when(log.outcome(FAULT, at_s=at_s))
    assert story.derived[-1].numbers["run"] == 5
    story.then_decision(TARGET, log.ms(at_s), allowed=not fleet)


def test_one_like_fault_of_a_second_replica_makes_it_everyones(log: Log) -> None:
    alone = [log.outcome("ok", at_s=0, replica="r2"), *(log.outcome(FAULT, at_s=1) for _ in range(5))]
    given(*alone).when(log.outcome("timeout", at_s=600, replica="r2")).then(held("breaker", kind="timeout"))
    log.seq = 6
    given(*alone).when(log.outcome("timeout", at_s=601, replica="r2")).then()
    log.seq = 6
    given(*alone).when(log.outcome("model_unavailable", at_s=2, replica="r2")).then()
    log.seq = 6
    story = given(*alone).when(log.outcome("ok", at_s=2), log.outcome(FAULT, at_s=3, replica="r2")).then()
    story.then_decision(TARGET, log.ms(3), allowed=True)


def test_an_earlier_fault_of_a_second_replica_confirms(log: Log) -> None:
    """Where no good answer came after it."""
    for answered in (False, True):
        log.seq = 0
        story = given(
            log.outcome("ok", at_s=0, replica="r3"),
            log.outcome(FAULT, at_s=1, replica="r2"),
            log.outcome("ok", at_s=2, replica="r2" if answered else "r3"),
            *(log.outcome(FAULT, at_s=3) for _ in range(5)),
        )
        story.then_decision(TARGET, log.ms(3), allowed=answered)


def test_a_run_of_two_replicas_holds_whatever_others_had(log: Log) -> None:
    given(
        log.outcome("ok", at_s=0, replica="r3"),
        *(log.outcome(FAULT, at_s=1 + n, replica=f"r{1 + n % 2}") for n in range(5)),
    ).then(held("breaker", replica=None))


def test_a_replica_with_nearly_all_of_the_faults_is_named_and_holds_nobody_else(log: Log) -> None:
    """Broken uplink of r1 among answers: the noise of r2 and r3, answered since, is no second witness."""
    events = [log.outcome(FAULT, at_s=0, replica=name) for name in ("r2", "r3")]
    events += [log.outcome("ok", at_s=0, replica=name) for name in ("r2", "r3") * 5]
    story = given(*events)
    told = []
    for _ in range(15):
        faults = [log.outcome(FAULT, at_s=1) for _ in range(2)]
        told += story.when(*faults, log.outcome("ok", at_s=1, replica="r2")).derived
    assert [(type(event).__name__, getattr(event, "replica", None)) for event in told] == [
        ("WarningRaised", "r1"),
        ("TargetHeld", "r1"),
    ]
    story.then_decision(TARGET, log.ms(1), allowed=True)


def test_a_fleet_of_one_and_an_overlay_need_one_witness(log: Log) -> None:
    given(log.outcome("ok", at_s=0), *(log.outcome(FAULT, at_s=1) for _ in range(5))).then(
        held("breaker", replica=None)
    )
    log.seq = 0
    story = given(
        log.outcome("ok", at_s=0, replica="r2"), *(log.outcome(FAULT, at_s=1) for _ in range(5)), overlay=True
    )
    story.then(held("breaker", replica=None))


def test_in_an_overlay_every_own_call_after_the_end_is_the_trial(log: Log) -> None:
    story = given(*(log.outcome(FAULT, at_s=0) for _ in range(5)), overlay=True, policy=Policy.from_data(PLAIN))
    story.when(log.outcome(FAULT, at_s=30, seen_seq=4)).then()
    story.when(log.outcome(FAULT, at_s=30, seen_seq=5)).then(held("breaker", began_seq=7, end_ms=log.ms(90)))
    story.when(log.outcome(FAULT, at_s=31, seen_seq=5)).then()


# -- slow calls ----------------------------------------------------------------------------------------


def test_slow_calls_are_off_by_default_and_open_by_their_share_when_on(log: Log) -> None:
    slow = [log.outcome("ok", at_s=0, ttft_ms=5001) for _ in range(16)]
    fine = [log.outcome("ok", at_s=0, ttft_ms=5000) for _ in range(4)]
    given(*slow, *fine).then()
    policy = Policy.from_data({"breaker": {"slow_ttft_ms": 5000, "jitter_percent": 0}})
    story = given(*fine_first(log, slow, fine), policy=policy)
    story.then(held("breaker", end_ms=log.ms(30), kind="ok", numbers={"slow": 16, "attempts": 20, "replicas": 1}))
    log.seq = 0
    fewer = [log.outcome("ok", at_s=0, ttft_ms=5001 if n >= 5 else None) for n in range(20)]
    given(*fewer, policy=policy).then()


def fine_first(log: Log, slow: list[Any], fine: list[Any]) -> list[Any]:
    log.seq = 0
    return [log.outcome("ok", at_s=0, ttft_ms=event.event.ttft_ms) for event in (*fine, *slow)]


def test_one_replicas_slow_calls_hold_nobody_else_while_others_are_answered(log: Log) -> None:
    policy = Policy.from_data({"breaker": {"slow_ttft_ms": 5000}})
    story = given(log.outcome("ok", at_s=0, replica="r2", ttft_ms=1), policy=policy)
    story.when(*(log.outcome("ok", at_s=0, ttft_ms=5001) for _ in range(30))).then()
    story.when(log.outcome("ok", at_s=0, replica="r2", ttft_ms=5001)).then(held("breaker"))


# -- clears, clocks, policies --------------------------------------------------------------------------


@pytest.mark.parametrize("scope", [TARGET.scope, Scope("openrouter.ai"), Scope("openrouter.ai", "team-a")], ids=str)
def test_a_clear_empties_run_window_and_growth(log: Log, scope: Scope) -> None:
    story = opened(log).when(log.override("clear", at_s=2, scope=scope))
    story.then_decision(TARGET, log.ms(2), allowed=True, trial=False)
    story.when(*(log.outcome(FAULT, at_s=3, seen_seq=5) for _ in range(9))).then(
        *([released("breaker", by="clear")] if scope != TARGET.scope else [])
    )
    story.when(*(log.outcome(FAULT, at_s=4, seen_seq=6) for _ in range(4))).then()
    story.when(log.outcome(FAULT, at_s=4, seen_seq=6)).then(held("breaker", end_ms=log.ms(34)))


def test_a_wide_clear_empties_the_window_before_the_next_success(log: Log) -> None:
    """The window of an ordinary target."""
    story = given(*(log.outcome("ok", at_s=0) for _ in range(5)))
    story.when(log.override("clear", at_s=1, scope=Scope("openrouter.ai")), log.outcome("ok", at_s=2, seen_seq=6))
    story.when(log.outcome("ok", at_s=2, seen_seq=5), log.outcome("ok", at_s=2, seen_seq=7))
    assert document(story, log, 2)["window_attempts"] == 2


def test_a_clock_that_steps_back_takes_run_and_window_with_it(log: Log) -> None:
    story = given(
        log.outcome("ok", at_s=51), log.outcome(FAULT, at_s=62), log.outcome(FAULT, at_s=73), log.outcome("ok", at_s=75)
    )
    story.when(log.outcome("bad_request", at_s=55))
    found = document(story, log, 55)
    assert (found["window_attempts"], found["window_faults"]) == (4, 2)
    assert document(story, log, 109.999)["window_attempts"] == 4, "all of them are of the bucket of 50 s now"
    assert document(story, log, 110)["window_attempts"] == 0


def test_a_clock_that_steps_back_leaves_no_end_ahead_of_the_cap(log: Log) -> None:
    story = given(*(log.outcome(FAULT, at_s=9000, retry_after_s=3000) for _ in range(5)))
    story.when(log.outcome("bad_request", at_s=0))
    story.then_decision(TARGET, log.ms(0), allowed=False, retry_in_s=3600.0)


def test_another_size_of_bucket_begins_the_window_anew(log: Log) -> None:
    story = given(*(log.outcome(kind, at_s=0) for kind in ("ok", FAULT)))
    story.when(log.policy({"breaker": {"bucket_s": 7.0}}, at_s=1), log.outcome("ok", at_s=2))
    found = document(story, log, 2)
    assert (found["window_attempts"], found["window_faults"]) == (1, 0)


def test_in_shadow_it_is_told_and_lets_pass(log: Log) -> None:
    story = opened(log, shadow={"rules": ["breaker"]}).then(held("breaker", enforced=False))
    story.then_decision(TARGET, log.ms(2), allowed=True, trial=False)


def test_more_than_sixteen_replicas_are_counted_together(log: Log) -> None:
    story = given()
    for n in range(40):
        story.when(log.outcome("ok", at_s=0, replica="r"), log.outcome("ok", at_s=0, replica="r"))
        story.when(log.outcome("timeout", at_s=0, replica=f"r{n}")).then()
    found = document(story, log, 0)
    assert found["window_faults"] == 40
    assert (len(found["window_faults_by"]), found["window_faults_by"]["(others)"]) == (17, 24)
    copy = Fleet.decode(story.fleet.encode())
    assert copy.document(TARGET.key, log.ms(0)) == found
