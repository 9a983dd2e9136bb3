"""Refused credentials -> strikes -> a hold of the credential -> probation, to the millisecond (Rule 4.1)."""

from __future__ import annotations

from typing import Any

import pytest

from rules import alone
from sickbay_events import KINDS, CallsRefused, Kind, Lease, Policy, ProbeResult, Scope, Target
from sickbay_projections import Fleet
from sickbay_projections.rules.columns import TABLE
from sickbay_projections.testing import Log, Story, given, held, released

TARGET = Target("openrouter.ai#team-a", "z-ai/glm-5.3")
OTHER = Target("openrouter.ai#team-a", "other/model")
CREDENTIAL = Scope("openrouter.ai", "team-a")
HOUR_S = 3600.0
MS = 0.001
ALONE = Policy.from_data(alone("credential"))
"""Other rules are folded and told, and change no decision."""


@pytest.fixture
def log() -> Log:
    return Log(TARGET)


def refused(log: Log, policy: Policy | None = None) -> Story:
    """Three refusals of two replicas at 0, 1 and 2 s: the credential is held by sequence 3 until 302 s."""
    found = [log.outcome("auth", at_s=n, replica=f"r{n % 2}", status=401) for n in range(3)]
    return given(*found, policy=policy)


def strikes(story: Story, log: Log, at_s: float, key: str = CREDENTIAL.key) -> int:
    document = story.fleet.document(key, log.ms(at_s))
    assert document is not None
    found: int = document["credential_strikes"]
    return found


def only(story: Story) -> Story:
    """Look at what this rule told, whatever other folds said of the same outcome."""
    story.derived = [event for event in story.derived if event.rule == "credential"]
    return story


def test_three_refusals_of_two_replicas_hold_the_credential_for_five_minutes(log: Log) -> None:
    story = given(log.outcome("auth", at_s=0, replica="r1"), log.outcome("auth", at_s=1, replica="r1")).then()
    story.then_decision(TARGET, log.ms(1), allowed=True, reason="ok")
    story.when(log.outcome("auth", at_s=2, replica="r2", status=401, target=OTHER)).then(
        held(
            "credential",
            began_seq=3,
            scope=CREDENTIAL,
            end_ms=log.ms(302),
            proof=True,
            kind="auth",
            status=401,
            enforced=True,
            numbers={"strikes": 3, "replicas": 2},
        )
    )
    for target in (TARGET, OTHER, Target(TARGET.provider, "never/called")):
        story.then_decision(target, log.ms(2), allowed=False, reason="credential", scope=CREDENTIAL.key)
    story.then_decision(Target("openrouter.ai#team-b", "m"), log.ms(2), allowed=True)
    story.then_decision(TARGET, log.ms(302 - MS), allowed=False, retry_in_s=0.001, trial=False)
    story.then_decision(TARGET, log.ms(302), allowed=True, reason="ok", trial=True, began_seq=3)


def test_one_replica_alone_holds_nobody_however_often_it_is_refused(log: Log) -> None:
    story = given(log.event(CallsRefused(count=1, rule="x"), at_s=0, replica="r2"))
    for n in range(30):
        story.when(log.outcome("auth", at_s=n, replica="r1")).then()
    story.when(log.outcome("auth", at_s=31, replica="r2")).then(
        held("credential", numbers={"strikes": 31, "replicas": 2})
    )


@pytest.mark.parametrize(("at_s", "holds"), [(-600 + 2 + MS, False), (-600 + 2, True)])
def test_the_only_replica_of_the_last_ten_minutes_is_enough(log: Log, at_s: float, holds: bool) -> None:
    story = given(log.event(CallsRefused(count=1, rule="x"), at_s=at_s, replica="r2"))
    story.when(*(log.outcome("auth", at_s=n, replica="r1") for n in range(3)))
    story.then(*([held("credential")] if holds else []))


def test_an_overlay_needs_one_witness(log: Log) -> None:
    given(*(log.outcome("auth", at_s=n) for n in range(3)), overlay=True).then(held("credential", end_ms=log.ms(302)))


def test_strikes_live_for_ten_minutes_after_the_newest(log: Log) -> None:
    story = given(*(log.outcome("auth", at_s=at_s, replica="r1") for at_s in (0, 600 - MS)))
    assert strikes(story, log, 1200 - 2 * MS) == 2
    assert strikes(story, log, 1200 - MS) == 0
    story.when(log.outcome("auth", at_s=1200 - 2 * MS, replica="r2")).then(held("credential"))
    log.seq = 0
    story = given(*(log.outcome("auth", at_s=at_s, replica="r1") for at_s in (0, 0, 600)))
    assert strikes(story, log, 600) == 1
    story.when(log.outcome("bad_request", at_s=1200))
    assert story.fleet.store.nodes[CREDENTIAL.key].state.refusals is None


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_each_kind_does_to_strikes_of_the_credential(log: Log, kind: Kind) -> None:
    """The column `credential`, cell by cell, by an outcome of another model of it."""
    found = [log.outcome("auth", at_s=n, replica="r1") for n in range(2)]
    story = only(given(*found, policy=ALONE).when(log.outcome(kind, at_s=2, replica="r2", target=OTHER)))
    cell = TABLE[KINDS[kind].group].credential
    story.then(*([held("credential")] if cell == "failure" else []))
    assert strikes(story, log, 2) == (0 if cell != "none" else 2)


def test_a_good_answer_between_and_the_credential_is_well(log: Log) -> None:
    story = given(*(log.outcome("auth", at_s=n, replica=f"r{n}") for n in range(2)))
    story.when(log.answered(at_s=2, target=OTHER, replica="r3")).then()
    story.when(*(log.outcome("auth", at_s=3 + n, replica=f"r{n}") for n in range(2))).then()
    story.when(log.outcome("ok", at_s=5, target=OTHER, queued_ms=600_001))
    assert strikes(story, log, 5) == 2, "what waited longer than the window is statistics"
    story.when(log.outcome("auth", at_s=6, queued_ms=600_001)).then()
    story.when(log.outcome("auth", at_s=7, forced=True), log.outcome("auth", at_s=8, scope="none")).then()
    story.when(log.outcome("auth", at_s=9)).then(held("credential"))


@pytest.mark.parametrize(
    ("provider", "scope", "single", "holds"),
    [
        ("openrouter.ai#team-a", None, False, "credential"),
        ("openrouter.ai#team-a", "model", False, "model"),
        ("openrouter.ai#team-a", "host", False, "credential"),
        ("openrouter.ai", None, False, "model"),
        ("openrouter.ai", None, True, "credential"),
    ],
)
def test_without_an_alias_it_holds_the_model_unless_the_host_has_one_credential(
    log: Log, provider: str, scope: Any, single: bool, holds: str
) -> None:
    policy = Policy.from_data({"single_credential": ["openrouter.ai"] if single else []})
    target = Target(provider, "m")
    found = [log.outcome("auth", at_s=n, replica=f"r{n % 2}", target=target, scope=scope) for n in range(3)]
    story = given(*found, policy=policy)
    assert [event.scope.name for event in only(story).derived] == [holds]
    story.then_decision(target, log.ms(3), allowed=False, reason="credential")
    story.then_decision(Target(provider, "n"), log.ms(3), allowed=holds == "model")


def test_refusals_of_different_models_without_an_alias_do_not_add_up(log: Log) -> None:
    found = [log.outcome("auth", at_s=n, replica=f"r{n}", target=Target("openrouter.ai", f"m{n}")) for n in range(9)]
    given(*found).then()


@pytest.mark.parametrize("leased", [True, False])
@pytest.mark.parametrize("at_s", [100.0, 302.0, 2000.0])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_each_kind_does_as_a_call_after_the_hold(log: Log, kind: Kind, at_s: float, leased: bool) -> None:
    trial = [Lease("credential", 3)] if leased else None
    story = refused(log, ALONE)
    assert story.fleet.digest()
    only(story.when(log.outcome(kind, at_s=at_s, seen_seq=3, trial=trial, target=OTHER)))
    if TABLE[KINDS[kind].group].credential == "answer":
        story.then(released("credential", began_seq=3, end_ms=log.ms(302), by="success", cause_seq=4))
        story.then_decision(TARGET, log.ms(at_s), allowed=True, reason="ok", trial=False)
    else:
        story.then().then_decision(TARGET, log.ms(at_s), allowed=at_s >= 302, trial=at_s >= 302, began_seq=3)
    assert story.fleet.digest() == Fleet.decode(story.fleet.encode()).digest()


def test_on_probation_again_three_strikes_are_needed_and_it_doubles_to_an_hour(log: Log) -> None:
    story, at_s = refused(log), 302.0
    for length_s in (600, 1200, 2400, 3600, 3600):
        name = log.seq
        for n in range(2):
            lease = [Lease("credential", name)]
            story.when(log.outcome("auth", at_s=at_s, replica=f"r{n}", seen_seq=name, trial=lease)).then()
            story.then_decision(TARGET, log.ms(at_s), allowed=True, trial=True)
        story.when(log.outcome("auth", at_s=at_s, replica="r1", seen_seq=name))
        story.then(held("credential", end_ms=log.ms(at_s + length_s), numbers={"strikes": 3, "replicas": 2}))
        at_s += length_s


def test_the_growth_is_forgotten_after_ten_minutes_without_a_hold(log: Log) -> None:
    for gap_s, length_s in ((600 - MS, 600), (600, 300)):
        log.seq = 0
        story = refused(log).when(log.outcome("ok", at_s=400, seen_seq=3)).then(released("credential"))
        again = [log.outcome("auth", at_s=400 + gap_s, replica=f"r{n}", seen_seq=4) for n in range(3)]
        story.when(*again).then(held("credential", end_ms=log.ms(400 + gap_s + length_s)))


def test_what_began_before_the_hold_lifts_and_strikes_nothing(log: Log) -> None:
    story = refused(log).when(log.outcome("ok", at_s=3, seen_seq=2)).then()
    story.when(*(log.outcome("auth", at_s=400, replica=f"r{n}", seen_seq=2) for n in range(5))).then()
    assert strikes(story, log, 400) == 0
    story.when(log.outcome("ok", at_s=401, seen_seq=3)).then(released("credential"))


def test_refusals_before_the_end_are_counted_and_do_not_move_it(log: Log) -> None:
    story = refused(log)
    story.when(*(log.outcome("auth", at_s=10 + n, replica=f"r{n}", seen_seq=3) for n in range(6))).then()
    document = story.fleet.document(CREDENTIAL.key, log.ms(20))
    assert document is not None
    hold = document["holds"][0]
    assert (hold["count"], hold["later"], hold["end_ms"], hold["phase"]) == (3, 6, log.ms(302), "held")


def test_probation_ends_after_an_hour_without_an_outcome_of_any_of_its_models(log: Log) -> None:
    story = refused(log).when(log.outcome("server_error", at_s=1000, target=OTHER))
    story.then_decision(TARGET, log.ms(1000 + HOUR_S - MS), trial=True)
    story.then_decision(TARGET, log.ms(1000 + HOUR_S), trial=False, reason="ok")


def test_three_leased_trials_that_tell_nothing_begin_it_again_without_growth(log: Log) -> None:
    story, lease = refused(log), [Lease("credential", 3)]
    for n in range(2):
        story.when(log.outcome("bad_request", at_s=310 + n, trial=lease)).then()
    story.when(log.outcome("unknown", at_s=312, trial=lease, target=OTHER)).then(
        held("credential", began_seq=6, end_ms=log.ms(612), scope=CREDENTIAL)
    )


def test_a_trial_that_is_refused_tells_something(log: Log) -> None:
    story, lease = refused(log), [Lease("credential", 3)]
    kinds: tuple[Kind, ...] = ("bad_request", "unknown", "auth", "bad_request", "unknown")
    story.when(*(log.outcome(kind, at_s=310 + n, trial=lease) for n, kind in enumerate(kinds))).then()
    story.when(log.outcome("cancelled", at_s=320, trial=lease)).then(held("credential", began_seq=log.seq))
    story.then_decision(TARGET, log.ms(620), allowed=True, trial=True)
    again = [log.outcome("auth", at_s=620 + n, seen_seq=9, replica=f"r{n}") for n in range(2)]
    story.when(*again).then()
    assert strikes(story, log, 622) == 2, "strikes from before it began again are gone"


def test_an_ordinary_success_of_an_ordinary_model_clears_strikes(log: Log) -> None:
    story = given(*(log.outcome("ok", at_s=n, target=OTHER, seen_seq=n) for n in range(3)))
    story.when(*(log.outcome("auth", at_s=3 + n, replica="r2") for n in range(2)))
    story.when(log.outcome("ok", at_s=6, target=OTHER, seen_seq=5))
    assert strikes(story, log, 6) == 0


def test_a_leased_probe_proves_it(log: Log) -> None:
    story = refused(log)
    probe = ProbeResult(level="readiness", ok=True, kind="ok", trial=[Lease("credential", 3)])
    story.when(log.event(probe, at_s=310, target=OTHER)).then(released("credential"))


def test_a_clear_of_the_host_empties_it(log: Log) -> None:
    story = given(*(log.outcome("auth", at_s=n, replica="r1") for n in range(2)))
    story.when(log.override("clear", at_s=2, scope=Scope("openrouter.ai")))
    story.when(log.outcome("auth", at_s=3, replica="r2", seen_seq=3)).then()
    assert strikes(story, log, 3) == 1
    assert story.fleet.digest() == Fleet.decode(story.fleet.encode()).digest()


def test_a_bad_credential_is_no_strike_and_no_fault_of_the_model(log: Log) -> None:
    story = refused(log)
    document = story.fleet.document(TARGET.key, log.ms(3))
    assert document is not None
    assert (document["evidence"], document["holds"]) == ({}, [])
