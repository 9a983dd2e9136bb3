"""How throttles grow, end, want early trials and let replicas back in (Rule 4.2, with 5.1 and 5.2)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from rules import HOUR_S, LIMITED, MS, OTHER, TARGET, alone, crowd, only, throttled
from sickbay_events import KINDS, Kind, Lease, ProbeResult, Released, Scope, Target, TargetHeld
from sickbay_projections import Fleet
from sickbay_projections.rules.columns import TABLE
from sickbay_projections.rules.ramp import in_from_ms
from sickbay_projections.testing import Log, Story, given, held, released

ALONE = alone("throttle")
only_throttle = partial(only, rule="throttle")


@pytest.fixture
def log() -> Log:
    return Log(TARGET)


# -- growth and ends -----------------------------------------------------------------------------------


def test_holds_double_while_nothing_is_answered_and_that_is_not_forgotten_by_time(log: Log) -> None:
    story, at_s = throttled(log, 4), 2.0
    story.then(held("throttle", end_ms=log.ms(6)))
    for length_s in (8, 16, 32):
        at_s += HOUR_S
        name = log.seq
        again = [log.outcome(LIMITED, at_s=at_s, replica=f"r{n}", retry_after_s=4, seen_seq=name) for n in range(3)]
        story.when(*again).then(held("throttle", end_ms=log.ms(at_s + length_s)))
    story.when(log.outcome("ok", at_s=at_s + 40, seen_seq=log.seq)).then()
    at_s += 60
    name = log.seq
    story.when(*(log.outcome(LIMITED, at_s=at_s, replica=f"r{n}", seen_seq=name) for n in range(3)))
    story.then(held("throttle", end_ms=log.ms(at_s + 5)))


def test_any_answer_after_it_ends_the_doubling_also_when_nothing_else_is_left_of_it(log: Log) -> None:
    story = throttled(log).when(log.outcome("ok", at_s=700, seen_seq=2), log.outcome("ok", at_s=701, seen_seq=3))
    again = [log.outcome(LIMITED, at_s=720 + n, replica=f"r{n}", seen_seq=5) for n in range(3)]
    story.when(*again).then(held("throttle", end_ms=log.ms(722 + 5)))


def test_doubling_stops_at_the_cap(log: Log) -> None:
    story, at_s, found = given(), 0.0, list[float]()
    for _ in range(6):
        story.when(log.outcome("quota", at_s=at_s, retry_after_s=5400, seen_seq=log.seq))
        found.append((getattr(only_throttle(story).derived[0], "end_ms", 0) - log.ms(at_s)) / 1000)
        at_s += 30_000
    assert found == [5400, 10_800, 21_600, 21_600, 21_600, 21_600]


def test_an_answer_that_began_before_the_hold_does_not_end_the_doubling(log: Log) -> None:
    story = throttled(log).when(log.outcome("ok", at_s=8, seen_seq=2)).then()
    again = [log.outcome(LIMITED, at_s=20 + n, replica=f"r{n}", seen_seq=3) for n in range(3)]
    story.when(*again).then(held("throttle", end_ms=log.ms(22 + 10)))


def test_a_shorter_later_hint_never_shortens_and_a_longer_one_moves_the_end_out(log: Log) -> None:
    story = throttled(log, 60).then(held("throttle", end_ms=log.ms(62)))
    story.when(log.outcome(LIMITED, at_s=10, seen_seq=3, retry_after_s=1)).then()
    story.when(log.outcome(LIMITED, at_s=11, seen_seq=3, retry_after_s=51)).then()
    story.then_decision(TARGET, log.ms(62 - MS), allowed=False)
    story.when(log.outcome(LIMITED, at_s=12, seen_seq=3, retry_after_s=50 + MS)).then(
        held("throttle", began_seq=3, cause_seq=6, end_ms=log.ms(62 + MS), old_end_ms=log.ms(62))
    )
    story.then_decision(TARGET, log.ms(62), allowed=False, retry_in_s=0.001, began_seq=3)
    story.then_decision(TARGET, log.ms(62 + MS), allowed=True)
    document = story.fleet.document(TARGET.key, log.ms(62))
    assert document is not None
    assert document["holds"][0]["later"] == 3
    entry = story.fleet.entry(TARGET.key)
    assert entry is not None
    assert entry.expires_ms == log.ms(92 + MS), "the entry stands to the end of the ramp"


def test_what_began_before_the_hold_extends_nothing(log: Log) -> None:
    story = throttled(log).when(log.outcome(LIMITED, at_s=3, seen_seq=2, retry_after_s=600)).then()
    story.when(log.outcome(LIMITED, at_s=4, retry_after_s=600)).then()
    story.when(log.outcome(LIMITED, at_s=5, seen_seq=99, retry_after_s=600)).then()
    story.then_decision(TARGET, log.ms(7), allowed=True)


def test_one_replicas_word_alone_extends_nothing_while_others_had_good_answers(log: Log) -> None:
    """A limit that two replicas met is not made an hour by a third of which nobody else knows."""
    story = given(log.outcome("ok", at_s=0, replica="r3"))
    story.when(*(log.outcome(LIMITED, at_s=20 + n, replica="r1") for n in range(3))).then(
        held("throttle", replica="r1")
    )
    story.when(log.outcome(LIMITED, at_s=40, replica="r2", retry_after_s=300)).then(held("throttle", replica=None))
    story.when(
        log.outcome("ok", at_s=50, replica="r1", seen_seq=4), log.outcome("ok", at_s=51, replica="r2", seen_seq=4)
    )
    story.when(log.outcome(LIMITED, at_s=60, replica="r4", seen_seq=5, retry_after_s=3600)).then()
    story.when(log.outcome(LIMITED, at_s=61, replica="r2", seen_seq=5, retry_after_s=900)).then(
        held("throttle", began_seq=5, end_ms=log.ms(961))
    )


def test_a_rate_limit_becomes_a_spent_allowance_when_that_moves_its_end(log: Log) -> None:
    story = throttled(log, 60, target=TARGET)
    story.when(log.outcome("quota", at_s=10, seen_seq=3, scope="model", retry_after_s=7200)).then(
        held("throttle", kind="quota", end_ms=log.ms(7210), old_end_ms=log.ms(62))
    )


def test_it_ends_to_the_millisecond_and_leaves_no_probation(log: Log) -> None:
    story = throttled(log)
    story.then_decision(TARGET, log.ms(7 - MS), allowed=False, reason="throttled", retry_in_s=0.001)
    story.then_decision(TARGET, log.ms(7), allowed=True, reason="ok", trial=False, rule=None)


@pytest.mark.parametrize("at_s", [3.0, 20.0])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_each_kind_does_as_a_call_after_the_hold(log: Log, kind: Kind, at_s: float) -> None:
    """The column `throttle` cell by cell, before the end and in the ramp after it."""
    story = throttled(log, 10, **ALONE)
    only_throttle(
        story.when(log.outcome(kind, at_s=at_s, seen_seq=3, replica="r1", scope=_scope(kind), retry_after_s=10))
    )
    cell, before_end = TABLE[KINDS[kind].group].throttle, at_s < 12
    if cell == "ends" and before_end:
        story.then(released("throttle", began_seq=3, end_ms=log.ms(12), by="success", cause_seq=4))
    elif cell == "holds" and before_end:
        story.then(held("throttle", began_seq=3, end_ms=log.ms(13), old_end_ms=log.ms(12)))
    elif kind == "quota":
        story.then(held("throttle", began_seq=4, end_ms=log.ms(40), old_end_ms=None))
    else:
        story.then()
    # Only an answer ends the doubling; three more throttles say which number the next hold has.
    if cell != "holds" or not before_end:
        later = [log.outcome(LIMITED, at_s=100 + n, replica="r1", seen_seq=4, retry_after_s=10) for n in range(3)]
        only_throttle(story.when(*later))
        nth = {"ends": 0, "none": 1, "holds": 2 if kind == "quota" else 1}[cell]
        story.then(held("throttle", end_ms=log.ms(102 + 10 * 2**nth)))


def _scope(kind: Kind) -> Any:
    return "model" if KINDS[kind].group == "throttle" else None


@pytest.mark.parametrize("kind", [LIMITED, "quota"])
def test_other_holds_give_their_trial_back_and_the_throttle_takes_over(log: Log, kind: Kind) -> None:
    """A quarantine and a breaker."""
    story = given(*(log.outcome("model_unavailable", at_s=n) for n in range(2)))
    story.when(*(log.outcome("server_error", at_s=3 + n / 10) for n in range(5)))
    lease = [Lease("quarantine", 2), Lease("breaker", log.seq)]
    asked = [log.outcome(kind, at_s=700 + n, seen_seq=log.seq, trial=lease, scope="model") for n in range(3)]
    story.when(*asked)
    assert {event.rule for event in story.derived if isinstance(event, TargetHeld | Released)} == {"throttle"}
    held_by = story.fleet.decide(TARGET, log.ms(702.5))
    assert (held_by.reason, held_by.trial) == ("throttled", False)
    document = story.fleet.document(TARGET.key, log.ms(703))
    assert document is not None
    phases = {hold["rule"]: hold["phase"] for hold in document["holds"]}
    assert phases == {"quarantine": "probation", "breaker": "probation", "throttle": "held"}


def test_a_first_content_ends_it_and_a_clear_leaves_nothing(log: Log) -> None:
    story = throttled(log, 60)
    story.when(log.answered(at_s=4, seen_seq=3)).then(released("throttle", by="success"))
    log.seq = 0
    story = throttled(log, 60).when(log.override("clear", at_s=4, scope=Scope("openrouter.ai")))
    story.when(log.outcome("bad_request", at_s=5)).then(released("throttle", by="clear"))
    again = [log.outcome(LIMITED, at_s=6 + n, seen_seq=4, replica=f"r{n}") for n in range(3)]
    story.when(*again).then(held("throttle", end_ms=log.ms(13)))


def test_a_clear_empties_the_count_of_a_credential_too(log: Log) -> None:
    story = given(*(log.outcome(LIMITED, at_s=n, scope="credential") for n in range(2)))
    story.when(log.override("clear", at_s=2, scope=Scope("openrouter.ai")))
    story.when(log.outcome(LIMITED, at_s=3, scope="credential", seen_seq=3)).then()
    assert story.fleet.digest() == Fleet.decode(story.fleet.encode()).digest()


def test_a_clear_in_the_ramp_ends_it_and_releases_nothing(log: Log) -> None:
    story, _name = fleet_throttled(log)
    story.when(log.override("clear", at_s=20)).then()
    assert all(story.fleet.decide(TARGET, log.ms(20), f"box-{n}").allowed for n in range(50))


def test_in_shadow_it_is_told_and_lets_pass_with_no_ramp_after_it(log: Log) -> None:
    story = throttled(log, 60, shadow={"rules": ["throttle"]}).then(held("throttle", enforced=False))
    story.then_decision(TARGET, log.ms(3), allowed=True, reason="ok")
    entry = story.fleet.entry(TARGET.key)
    assert entry is not None
    assert (entry.ramp, entry.holds[0].enforced) == (None, False)


def test_a_clock_that_steps_back_leaves_no_end_further_ahead_than_the_cap(log: Log) -> None:
    story = given(log.outcome("quota", at_s=90_000, retry_after_s=21_600))
    story.when(log.outcome("bad_request", at_s=0, target=OTHER))
    story.then_decision(TARGET, log.ms(21_600 - MS), allowed=False)
    story.then_decision(TARGET, log.ms(21_600), allowed=True)


# -- early trials --------------------------------------------------------------------------------------


def wanted(story: Story, log: Log, *at_s: float, target: Target = TARGET) -> list[bool]:
    found = [story.fleet.decide(target, log.ms(each)) for each in at_s]
    assert not any(decision.allowed for decision in found), "an early trial is no admission"
    return [decision.trial for decision in found]


def test_a_hold_longer_than_two_minutes_wants_one_leased_trial_every_two_minutes(log: Log) -> None:
    story = throttled(log, 600)
    assert wanted(story, log, 2, 122 - MS, 122, 300) == [False, False, True, True]
    lease = [Lease("throttle", 3)]
    story.when(log.outcome(LIMITED, at_s=130, seen_seq=0, trial=lease)).then()
    assert wanted(story, log, 130, 250 - MS, 250) == [False, False, True]
    entry = story.fleet.entry(TARGET.key)
    assert entry is not None
    assert (entry.holds[0].trial_every_ms, entry.holds[0].trial_from_ms) == (120_000, log.ms(250))
    story.when(log.outcome("ok", at_s=251, seen_seq=0, trial=lease)).then(released("throttle", by="success"))


@pytest.mark.parametrize(("hint_s", "early"), [(120, False), (120 + MS, True)])
def test_a_shorter_hold_wants_none(log: Log, hint_s: float, early: bool) -> None:
    assert wanted(throttled(log, hint_s), log, 122 - MS) == [False]
    entry = throttled(Log(TARGET), hint_s).fleet.entry(TARGET.key)
    assert entry is not None
    assert (entry.holds[0].trial_every_ms > 0) is early


def test_a_spent_allowance_wants_one_every_ten_minutes(log: Log) -> None:
    story = given(log.outcome("quota", at_s=0, retry_after_s=7200))
    assert wanted(story, log, 0, 600 - MS, 600, 7199, target=OTHER) == [False, False, True, True]
    story.when(log.outcome("quota", at_s=700, trial=[Lease("throttle", 1)], target=OTHER)).then()
    assert wanted(story, log, 1300 - MS, 1300) == [False, True]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_trial_that_told_something_is_the_last_for_a_while(log: Log, kind: Kind) -> None:
    """A neutral one gives its lease back."""
    story = throttled(log, 600, **ALONE)
    lease = [Lease("throttle", 3)]
    story.when(log.outcome(kind, at_s=200, trial=lease, scope=_scope(kind)))
    group = KINDS[kind].group
    if group in ("success", "degraded"):
        story.then_decision(TARGET, log.ms(200), allowed=True)
    else:
        # What a spent allowance made longer is one itself, and asks less often.
        next_s = 800 if kind == "quota" else 320
        told = [True] * 3 if group == "neutral" else [False, False, True]
        assert wanted(story, log, 201, next_s - MS, next_s) == told


def test_a_leased_probe_acts_as_the_outcome_of_its_kind_and_another_does_nothing(log: Log) -> None:
    story = throttled(log, 600)
    story.when(log.event(ProbeResult(level="readiness", ok=True, kind="ok", seen_seq=3), at_s=10)).then()
    probe = ProbeResult(level="readiness", ok=True, kind="ok", seen_seq=3, trial=[Lease("throttle", 3)])
    story.when(log.event(probe, at_s=11)).then(released("throttle"))


def test_a_trial_is_wanted_only_if_every_denying_hold_wants_one_now(log: Log) -> None:
    story = throttled(log, 600)
    story.when(log.outcome("quota", at_s=3, replica="r1", retry_after_s=3000))
    assert wanted(story, log, 130, 602 - MS) == [False, False], "the allowance wants none before ten minutes"
    assert wanted(story, log, 603 + MS) == [True], "the rate limit is over, the allowance wants one"
    story.when(log.override("hold", at_s=610, until_s=5000))
    assert wanted(story, log, 650) == [False], "an operator's hold wants none"


def test_an_overlay_knows_its_own_trials_whatever_their_leases_name(log: Log) -> None:
    """Leases name the cluster's hold; the local one of a spent allowance takes note of the call all the same."""
    story = given(log.outcome("quota", at_s=0, retry_after_s=7200), overlay=True)
    assert wanted(story, log, 599, 600) == [False, True]
    story.when(log.outcome("quota", at_s=700, seen_seq=1, trial=[Lease("throttle", 4711)]))
    assert wanted(story, log, 701, 1299, 1300) == [False, False, True]


# -- the ramp ------------------------------------------------------------------------------------------


def fleet_throttled(log: Log, hint_s: float = 5) -> tuple[Story, int]:
    """Eight replicas are heard of; twenty throttles within two seconds, the last at 2 s."""
    story = given(*crowd(log, 5))
    story.when(*(log.outcome(LIMITED, at_s=n / 10, replica=f"r{n % 3}") for n in range(1, 20))).then()
    story.when(log.outcome(LIMITED, at_s=2, replica="r0", retry_after_s=hint_s)).then(held("throttle"))
    return story, log.seq


def test_replicas_come_back_staggered_in_thirty_seconds_after_the_end(log: Log) -> None:
    story, name = fleet_throttled(log)
    names = [f"box-{n}" for n in range(400)]

    def back(at_s: float) -> int:
        return sum(story.fleet.decide(TARGET, log.ms(at_s), box).allowed for box in names)

    entry = story.fleet.entry(TARGET.key)
    assert entry is not None
    assert entry.ramp is not None
    assert (entry.ramp.began_seq, entry.ramp.from_ms, entry.ramp.end_ms) == (name, log.ms(7), log.ms(37))
    assert entry.expires_ms == log.ms(37)
    shares = [back(at_s) / 400 for at_s in (7 - MS, 7, 17 - MS, 17, 27, 37 - MS, 37)]
    assert shares[0] == 0
    assert shares[-1] == 1
    assert all(
        abs(share - wanted) < 0.05 for share, wanted in zip(shares[1:6], (0.1, 0.1, 0.25, 0.5, 0.5), strict=True)
    )
    late = next(box for box in names if in_from_ms(entry.ramp, box) == log.ms(37))
    story.then_decision(TARGET, log.ms(7 - MS), replica=late, reason="throttled", retry_in_s=0.001)
    story.then_decision(TARGET, log.ms(7), replica=late, reason="ramp", rule="throttle", retry_in_s=30.0)


def test_what_happens_in_the_ramp_does_not_change_it(log: Log) -> None:
    """A success of a replica that is in proves nothing for the herd; the state may be asked without an event too."""
    story, name = fleet_throttled(log)
    before = story.fleet.entry(TARGET.key)
    story.when(log.outcome("ok", at_s=8, seen_seq=name), log.outcome("server_error", at_s=9, seen_seq=name)).then()
    story.fleet.take_changed()
    assert story.fleet.entry(TARGET.key) == before
    story.when(log.outcome("server_error", at_s=37, seen_seq=name)).then()
    assert story.fleet.entry(TARGET.key) is None


def test_a_success_before_the_end_begins_the_ramp_at_once(log: Log) -> None:
    story, name = fleet_throttled(log, 600)
    story.when(log.outcome("ok", at_s=200, trial=[Lease("throttle", name)])).then(released("throttle"))
    entry = story.fleet.entry(TARGET.key)
    assert entry is not None
    assert entry.ramp is not None
    assert (entry.ramp.rule, entry.ramp.from_ms, entry.ramp.end_ms) == ("throttle", log.ms(200), log.ms(230))
    denied = [story.fleet.decide(TARGET, log.ms(201), f"box-{n}").allowed for n in range(200)]
    assert 0.03 < sum(denied) / 200 < 0.2


def test_a_small_fleet_has_no_ramp(log: Log) -> None:
    story = throttled(log)
    assert all(story.fleet.decide(TARGET, log.ms(7), f"box-{n}").allowed for n in range(50))
