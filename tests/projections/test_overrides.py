"""Operators' acts: hold, allow, clear of a host, a credential or a model (Rule 4.7)."""

from __future__ import annotations

import pytest

from sickbay_events import Scope, Target
from sickbay_projections import Fleet, Recorded
from sickbay_projections.testing import Log, Story, given, held, released

TARGET = Target("openrouter.ai#team-a", "z-ai/glm-5.3")
OTHER = Target("openrouter.ai", "other")
HOST = Scope("openrouter.ai")
CREDENTIAL = Scope("openrouter.ai", "team-a")
MODEL = TARGET.scope
SCOPES = [HOST, CREDENTIAL, MODEL]
DAY_S = 86_400.0
MS = 0.001


@pytest.fixture
def log() -> Log:
    return Log(TARGET)


def rejected_twice(log: Log, at_s: float = 0, **fields: int) -> list[Recorded]:
    return [log.outcome("model_unavailable", at_s=at_s + n, **fields) for n in (0, 1)]  # type: ignore[arg-type]


@pytest.mark.parametrize("scope", SCOPES, ids=lambda scope: scope.name)
def test_a_hold_denies_its_scope_and_what_lies_below_until_it_expires_by_itself(log: Log, scope: Scope) -> None:
    story = given().when(log.override("hold", at_s=0, scope=scope, until_s=60))
    story.then(
        held(
            "operator",
            scope=scope,
            began_seq=1,
            end_ms=log.ms(60),
            proof=False,
            reason="a test",
            actor="a tester",
            old_end_ms=None,
        )
    )
    story.then_decision(
        TARGET, log.ms(60 - MS), allowed=False, reason="held_by_operator", scope=scope.key, rule="operator"
    )
    story.then_decision(TARGET, log.ms(60 - MS), retry_in_s=0.001, trial=False, began_seq=1)
    story.then_decision(TARGET, log.ms(60), allowed=True, reason="ok", trial=False)
    story.then_decision(OTHER, log.ms(1), allowed=scope != HOST)


def test_an_allow_admits_whatever_the_folds_say_and_says_so(log: Log) -> None:
    story = given(*rejected_twice(log)).when(log.override("allow", at_s=2, until_s=60)).then()
    story.then_decision(
        TARGET, log.ms(3), allowed=True, reason="allowed_by_operator", rule="operator", began_seq=3, trial=False
    )
    story.then_decision(TARGET, log.ms(60 - MS), allowed=True)
    story.then_decision(TARGET, log.ms(60), allowed=False, reason="quarantined", retry_in_s=541.0)


@pytest.mark.parametrize(("allowed", "held_scope"), [(HOST, MODEL), (MODEL, HOST), (CREDENTIAL, HOST)])
def test_across_scopes_hold_wins_over_allow(log: Log, allowed: Scope, held_scope: Scope) -> None:
    story = given(
        log.override("allow", at_s=0, scope=allowed, until_s=100),
        log.override("hold", at_s=1, scope=held_scope, until_s=50),
    )
    story.then_decision(TARGET, log.ms(2), allowed=False, reason="held_by_operator", scope=held_scope.key)
    story.then_decision(TARGET, log.ms(50), allowed=True, reason="allowed_by_operator", scope=allowed.key)


def test_a_hold_that_wins_over_an_allow_denies_until_its_own_end(log: Log) -> None:
    """Not until that of the folds."""
    story = given(*rejected_twice(log)).when(
        log.override("allow", at_s=2, scope=HOST, until_s=1000), log.override("hold", at_s=2, until_s=50)
    )
    story.then_decision(TARGET, log.ms(2), allowed=False, reason="held_by_operator", retry_in_s=48.0)
    story.then_decision(TARGET, log.ms(50), allowed=True, reason="allowed_by_operator")


def test_the_newest_override_of_a_scope_replaces_the_one_before(log: Log) -> None:
    story = given(log.override("hold", at_s=0, until_s=1000))
    story.when(log.override("hold", at_s=1, until_s=100)).then(
        released("operator", began_seq=1, end_ms=log.ms(1000), by="replaced", actor="a tester"),
        held("operator", began_seq=2, end_ms=log.ms(100), old_end_ms=None),
    )
    story.then_decision(TARGET, log.ms(100), allowed=True)
    story.when(log.override("allow", at_s=2, until_s=10)).then(
        released("operator", began_seq=2, by="replaced", actor="a tester")
    )
    story.then_decision(TARGET, log.ms(3), allowed=True, reason="allowed_by_operator")
    story.when(log.override("hold", at_s=4, until_s=4)).then()
    story.then_decision(TARGET, log.ms(5), allowed=True, reason="ok")


def test_until_later_than_thirty_days_ahead_is_cut_to_that(log: Log) -> None:
    story = given().when(log.override("hold", at_s=5, until_s=400 * DAY_S))
    story.then(held("operator", end_ms=log.ms(5 + 30 * DAY_S)))


def test_successes_do_not_lift_an_operators_hold(log: Log) -> None:
    story = given(log.override("hold", at_s=0, until_s=1000)).when(log.outcome("ok", at_s=1, seen_seq=1)).then()
    story.then_decision(TARGET, log.ms(2), allowed=False)


@pytest.mark.parametrize("scope", SCOPES, ids=lambda scope: scope.name)
def test_a_clear_ends_every_hold_and_empties_the_folds_of_its_scope(log: Log, scope: Scope) -> None:
    """And of the scopes below it."""
    story = given(*rejected_twice(log), log.override("hold", at_s=2, until_s=1000))
    story.when(log.override("clear", at_s=3, scope=scope))
    if scope == MODEL:
        story.then(
            released("quarantine", began_seq=2, by="clear", reason="a test"),
            released("operator", began_seq=3, by="clear", actor="a tester"),
        )
    story.then_decision(TARGET, log.ms(3), allowed=True, reason="ok", trial=False)
    document = story.fleet.document(TARGET.key, log.ms(3))
    assert document is not None
    assert (document["evidence"], document["holds"], document["operator"]) == ({}, [], None)
    story.when(log.outcome("model_unavailable", at_s=4, seen_seq=4))
    if scope != MODEL:
        story.then(
            released("quarantine", began_seq=2, by="clear", cause_seq=5), released("operator", began_seq=3, by="clear")
        )
    story.then_decision(TARGET, log.ms(4), allowed=True, reason="ok", trial=False)
    story.when(log.outcome("model_unavailable", at_s=5, seen_seq=4)).then(held("quarantine", began_seq=6))


@pytest.mark.parametrize("scope", SCOPES, ids=lambda scope: scope.name)
def test_what_started_before_a_clear_is_statistics(log: Log, scope: Scope) -> None:
    story = given(log.outcome("model_unavailable", at_s=0), log.override("clear", at_s=10, scope=scope))
    story.when(*(log.outcome("model_unavailable", at_s=11 + n, seen_seq=1) for n in range(5))).then()
    story.when(*(log.outcome("model_unavailable", at_s=20, took_ms=10_001) for _ in range(5))).then()
    story.when(log.outcome("model_unavailable", at_s=20, took_ms=10_000)).then()
    story.when(log.outcome("model_unavailable", at_s=21, seen_seq=2)).then(held("quarantine"))


def test_a_clear_takes_back_good_answers_that_spoke_against_one_replicas_word(log: Log) -> None:
    story = given(log.outcome("ok", at_s=0, replica="r2"), log.override("clear", at_s=1, scope=HOST))
    story.when(*(log.outcome("model_unavailable", at_s=2 + n, seen_seq=2) for n in range(2)))
    story.then(held("quarantine", replica=None))


def test_a_clear_of_one_scope_leaves_wider_ones_and_siblings_alone(log: Log) -> None:
    story = given(
        *(log.outcome("model_unavailable", at_s=n, target=OTHER) for n in range(2)),
        log.override("hold", at_s=2, scope=HOST, until_s=100),
        log.override("clear", at_s=3, scope=CREDENTIAL),
    )
    story.then_decision(TARGET, log.ms(4), allowed=False, reason="held_by_operator", scope=HOST.key)
    story.then_decision(OTHER, log.ms(4), allowed=False, reason="quarantined")


def test_a_cleared_scope_notes_a_later_wide_clear_in_its_entry(log: Log) -> None:
    story = given(log.override("clear", at_s=0, scope=CREDENTIAL), log.override("clear", at_s=1, scope=HOST))
    story.fleet.take_changed()
    story.when(log.outcome("ok", at_s=2))
    assert CREDENTIAL.key in story.fleet.take_changed()
    entry = story.fleet.entry(CREDENTIAL.key)
    assert entry is not None
    assert (entry.cleared_seq, entry.seq) == (2, 3), "what a reader keeps is what the state says"


def test_a_record_made_after_a_wide_clear_stands(log: Log) -> None:
    story = given(*rejected_twice(log), log.override("clear", at_s=2, scope=HOST))
    story.when(log.override("hold", at_s=3, until_s=100)).then(
        released("quarantine", began_seq=2, by="clear"), held("operator", began_seq=4)
    )
    story.then_decision(TARGET, log.ms(4), allowed=False, reason="held_by_operator", scope=TARGET.key)


def test_an_override_of_a_host_with_two_thousand_models_writes_one_key(log: Log) -> None:
    targets = [Target(TARGET.provider, f"model-{n}") for n in range(2000)]
    story = given(*(log.outcome("model_unavailable", at_s=0, target=t) for t in targets for _ in range(2)))
    assert len(story.fleet.take_changed()) == 2000
    for action, until_s in (("hold", 60.0), ("allow", 60.0), ("clear", None)):
        story.when(log.override(action, at_s=1, scope=HOST, until_s=until_s))
        assert story.fleet.take_changed() == [HOST.key]
        allowed = [story.fleet.decide(target, log.ms(2)).allowed for target in targets]
        assert allowed == [action != "hold"] * 2000
    story.when(log.outcome("ok", at_s=3, target=targets[7]))
    assert story.fleet.take_changed() == [targets[7].key], "a target takes note when it is next folded"


def test_a_wide_clear_is_shown_as_long_as_an_entry_below_it_could_speak(log: Log) -> None:
    story = given(log.override("hold", at_s=0, until_s=5 * DAY_S), log.override("clear", at_s=1, scope=HOST))
    entry = story.fleet.entry(HOST.key)
    assert entry is not None
    assert (entry.cleared_seq, entry.expires_ms) == (2, log.ms(5 * DAY_S))
    alone = given(log.override("clear", at_s=10, scope=Scope("other.example")))
    entry = alone.fleet.entry(Scope("other.example").key)
    assert entry is not None
    assert (entry.reason, entry.by, entry.expires_ms) == ("released", "clear", log.ms(610))


def test_an_operators_hold_is_in_the_entry_with_reason_and_actor(log: Log) -> None:
    story = given(log.override("hold", at_s=0, scope=HOST, until_s=60))
    entry = story.fleet.entry(HOST.key)
    assert entry is not None
    assert (entry.scope, entry.model, entry.reason) == ("host", None, "held_by_operator")
    assert (entry.holds[0].reason, entry.holds[0].actor) == ("a test", "a tester")
    story.when(log.override("allow", at_s=1, scope=HOST, until_s=60))
    entry = story.fleet.entry(HOST.key)
    assert entry is not None
    assert entry.allow is not None
    assert (entry.holds, entry.allow.seq, entry.allow.end_ms) == ([], 2, log.ms(60))


def test_an_override_without_a_readable_until_is_passed_over_and_counted(log: Log) -> None:
    story: Story = given(log.override("hold", at_s=0, until="tomorrow")).then()
    assert story.fleet.skipped == {"override": 1}
    story.then_decision(TARGET, log.ms(1), allowed=True)


def test_an_override_of_an_unknown_scope_survives_encoding_and_leaves_in_the_end(log: Log) -> None:
    story = given(log.override("hold", at_s=0, scope=HOST, until_s=60))
    copy = Story(Fleet.decode(story.fleet.encode()))
    copy.then_decision(TARGET, log.ms(1), allowed=False)
    log.target = Target("elsewhere.example", "m")
    for n in range(3):
        copy.when(log.outcome("ok", at_s=3 * DAY_S + n * 3600))
    assert HOST.key not in list(copy.fleet.keys())
