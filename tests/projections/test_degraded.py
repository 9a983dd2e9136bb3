"""Degraded output -> a hold -> probation, to the millisecond (Rule 4.4 and the rules of 4)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from paths import CASES
from sickbay_events import KINDS, CallOutcome, Event, Kind, Lease, Policy, Scope, Target, TargetHeld
from sickbay_events.codec import decode
from sickbay_events.times import parse_rfc3339
from sickbay_projections import Fleet
from sickbay_projections.rules.columns import TABLE
from sickbay_projections.testing import Log, Story, given, held, released, warned

TARGET = Target("openrouter.ai#team-a", "z-ai/glm-5.3")
HOST = Scope("openrouter.ai")
BAD: Kind = "empty_output"
MS = 0.001
MIDNIGHT_MS = 19_675 * 86_400_000
"""Log time of a test's second 0: the beginning of a bucket of every size."""
DAMAGE: dict[str, Any] = {"signature": "double_encoded", "scope": "host", "attributable": True}


@pytest.fixture
def log() -> Log:
    return Log(TARGET, start_ms=MIDNIGHT_MS)


def bad(log: Log, at_s: float, count: int = 1, **fields: Any) -> list[Any]:
    return [log.outcome(fields.get("kind", BAD), at_s=at_s, **_without(fields, "kind")) for _ in range(count)]


def clean(log: Log, at_s: float, count: int = 1, **fields: Any) -> list[Any]:
    return [log.outcome("ok", at_s=at_s, **fields) for _ in range(count)]


def _without(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}


def held_by_twelve(log: Log, at_s: float = 0, **policy: Any) -> Story:
    """Twelve bad in a row at one moment: held by sequence 12 for 30 s, with probation for an hour."""
    return given(*bad(log, at_s, 12), policy=Policy.from_data(policy))


def points(story: Story, log: Log, at_s: float, name: str = "bad") -> int:
    found: int = document(story, log, at_s)["evidence"].get(name, {}).get("points", 0)
    return found


def trial(seq: int) -> list[Lease]:
    return [Lease("degraded", seq)]


def document(story: Story, log: Log, at_s: float) -> dict[str, Any]:
    found = story.fleet.document(TARGET.key, log.ms(at_s))
    assert found is not None
    return found


def damaged(log: Log, at_s: float, model: str, count: int = 1, **fields: Any) -> list[Any]:
    target = Target(fields.pop("provider", TARGET.provider), model)
    return [log.outcome("mangled_output", at_s=at_s, target=target, **{**DAMAGE, **fields}) for _ in range(count)]


# -- the measured incident -----------------------------------------------------------------------------


def incident() -> list[tuple[str, Event, int, int]]:
    """Calls of one router in one hour: subject, event, sequence and log time."""
    lines = (CASES / "incident_empty_answers.jsonl").read_bytes().splitlines()
    found = []
    for line in lines:
        record = msgspec.json.decode(line)
        event = decode(record["subject"], msgspec.json.encode(record["data"]))
        found.append((record["subject"], event, record["seq"], parse_rfc3339(record["time"])))
    return found


def test_the_incident_is_held_at_its_twelfth_checkable_call() -> None:
    """The other models are untouched. 38 empty answers in 108 calls, 70 of them tool-call turns: 35 % of all calls, but
    all that could be checked."""
    fleet, calls, checkable, first = Fleet(), dict[str, int](), 0, None
    for subject, event, seq, time_ms in incident():
        model = subject.rpartition(".")[2]
        calls[model] = calls.get(model, 0) + 1
        assert isinstance(event, CallOutcome)
        checkable += event.checkable
        derived = [
            each for each in fleet.apply_many([subject], [event], [seq], [time_ms]) if isinstance(each, TargetHeld)
        ]
        for each in derived:
            assert (each.scope.model, each.rule) == ("z-ai/glm-5.3", "degraded")
            first = first or (checkable, each, time_ms)
    assert sorted(calls.values()) == [2, 8, 18, 108]
    assert first is not None
    at_call, hold, time_ms = first
    assert at_call == 12
    assert {name: hold.numbers[name] for name in ("failures", "needed", "answers")} == {
        "failures": 12,
        "needed": 12,
        "answers": 0,
    }
    assert (hold.kind, hold.end_ms - time_ms, hold.proof) == ("empty_output", 30_000, True)
    for model in ("z-ai/glm-5.3-flash", "qwen/qwen4-coder", "mistralai/devstral-2"):
        found = fleet.document(Target("openrouter.ai", model).key, time_ms)
        assert found is not None
        assert (found["evidence"], found["holds"]) == ({}, [])


# -- the points -----------------------------------------------------------------------------------------


def test_twelve_bad_in_a_row_hold_and_eleven_do_not(log: Log) -> None:
    story = given(*clean(log, 0, 500), *bad(log, 1, 11)).then()
    story.when(*bad(log, 2)).then(held("degraded", began_seq=512, end_ms=log.ms(32), kind=BAD))
    story.then_decision(TARGET, log.ms(32 - MS), allowed=False, reason="degraded", rule="degraded")
    story.then_decision(TARGET, log.ms(32), allowed=True, reason="ok", trial=True, began_seq=512)


def test_a_share_over_a_quarter_holds_if_it_lasts_and_a_quarter_does_not(log: Log) -> None:
    story = given()
    for _ in range(200):
        story.when(*bad(log, 0), *clean(log, 0, 3)).then()
    told = [story.when(*bad(log, 0), *clean(log, 0, 2)).derived for _ in range(60)]
    assert any(told)


def test_tool_call_turns_prove_nothing_either_way(log: Log) -> None:
    story = given(*clean(log, 0, 200, checkable=False, signature="tool_calls"), *bad(log, 1, 11)).then()
    story.when(*bad(log, 1, 5, checkable=False), *clean(log, 1, 50, checkable=False)).then()
    story.when(*bad(log, 2)).then(held("degraded"))


@pytest.mark.parametrize("kind", ["empty_output", "malformed_output", "mangled_output"])
def test_each_kind_is_bad_and_the_models_own(log: Log, kind: Kind) -> None:
    story = given(*bad(log, 1, 12, kind=kind, signature="loop"))
    assert [event.scope for event in story.derived if isinstance(event, TargetHeld)] == [TARGET.scope]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_table_says_what_is_a_sample(log: Log, kind: Kind) -> None:
    cell = TABLE[KINDS[kind].group].sample
    story = given(*bad(log, 0), log.outcome(kind, at_s=0, signature="loop", limit_ms=60_000))
    assert points(story, log, 0) == {"clean": 2, "bad": 6, "none": 3}[cell]


def test_a_first_content_is_no_sample(log: Log) -> None:
    story = given(*bad(log, 0), log.answered(at_s=0))
    assert points(story, log, 0) == 3


def test_the_same_request_over_again_is_one_sample(log: Log) -> None:
    for again_s, counted in ((60 - MS, 1), (60, 2)):
        log.seq = 0
        story = given(*bad(log, 0, request_hash="x"), *bad(log, again_s, request_hash="x"))
        assert points(story, log, again_s) == 3 * counted


def test_a_bad_answer_to_a_forced_call_is_statistics(log: Log) -> None:
    assert points(given(*bad(log, 0, forced=True)), log, 0) == 0


# -- whose word ----------------------------------------------------------------------------------------


def test_one_replicas_word_holds_it_alone_while_another_has_clean_samples(log: Log) -> None:
    story = given(*clean(log, 0, 7, replica="r2"), *bad(log, 1, 11)).when(*bad(log, 2))
    story.then(held("degraded", replica="r1", end_ms=log.ms(32)), warned("replica_suspect", replica="r1"))
    story.then_decision(TARGET, log.ms(3), allowed=True)
    assert document(story, log, 3)["evidence"]["bad"]["alone"] == "r1"


def test_an_uncheckable_answer_of_another_does_not_speak_for_the_model(log: Log) -> None:
    story = given(*clean(log, 0, 30, replica="r2", checkable=False), *bad(log, 1, 12))
    story.then(held("degraded", replica=None, by="r1"))


@pytest.mark.parametrize(("at_s", "fleet"), [(600 - MS, False), (600, True)])
def test_a_clean_sample_of_another_speaks_for_ten_minutes(log: Log, at_s: float, fleet: bool) -> None:
    events = [*clean(log, 0, replica="r2"), log.outcome("bad_request", at_s=300, replica="r2"), *bad(log, 300, 11)]
    story = given(*events).when(*bad(log, at_s))
    assert [event.replica for event in story.derived if isinstance(event, TargetHeld)] == [None if fleet else "r1"]


def test_bad_samples_of_two_are_everyones(log: Log) -> None:
    story = given(*clean(log, 0, 7, replica="r3"), *bad(log, 1, 10), *bad(log, 1, 1, replica="r2"))
    story.when(*bad(log, 2)).then(held("degraded", replica=None, by=None))


def test_an_overlay_needs_one_witness_and_no_lease(log: Log) -> None:
    story = given(*bad(log, 0, 12), overlay=True)
    story.when(*clean(log, 1.9, 5, seen_seq=12)).then()
    for n in range(2):
        story.when(*clean(log, 30 + n, seen_seq=12)).then()
    story.when(*clean(log, 32, seen_seq=12)).then(released("degraded"))


# -- trials --------------------------------------------------------------------------------------------


def test_three_clean_leased_trials_release_and_leave_half_of_the_points(log: Log) -> None:
    story = held_by_twelve(log)
    for n in range(2):
        story.when(*clean(log, 31 + n, trial=trial(12))).then()
    story.when(*bad(log, 33, 3, seen_seq=12)).then()
    assert document(story, log, 33)["holds"][0]["clean_trials"] == 2
    story.when(*clean(log, 34, trial=trial(12))).then(released("degraded", began_seq=12, by="success"))
    assert document(story, log, 34)["holds"] == []
    assert points(story, log, 34) == 18
    story.then_decision(TARGET, log.ms(34), allowed=True, trial=False)


@pytest.mark.parametrize("n", range(4))
def test_a_clean_answer_without_the_lease_releases_nothing(log: Log, n: int) -> None:
    lease = [None, trial(11), [Lease("breaker", 12)], []][n]
    story = held_by_twelve(log).when(*clean(log, 31, 30, trial=lease, seen_seq=12)).then()
    story.then_decision(TARGET, log.ms(31), allowed=True, trial=True)


def test_a_trial_is_judged_at_its_end_and_not_at_its_first_content(log: Log) -> None:
    story = held_by_twelve(log)
    for n in range(9):
        story.when(log.answered(at_s=31 + n, trial=trial(12))).then()
    assert document(story, log, 40)["holds"][0]["clean_trials"] == 0


def test_first_contents_do_not_end_the_probation(log: Log) -> None:
    story = held_by_twelve(log).when(*(log.answered(at_s=31, seen_seq=12) for _ in range(30))).then()
    assert document(story, log, 31)["holds"][0]["uncheckable"] == 0


def test_before_the_end_leased_trials_count_and_the_next_is_wanted_at_once(log: Log) -> None:
    story = held_by_twelve(log).when(*clean(log, 20, 9, seen_seq=12)).then()
    story.then_decision(TARGET, log.ms(2), allowed=False, trial=True)
    for at_s in (2, 2.5):
        story.when(*clean(log, at_s, trial=trial(12))).then()
        story.then_decision(TARGET, log.ms(at_s), allowed=False, trial=True)
    story.when(*clean(log, 3, trial=trial(12))).then(released("degraded"))


def test_one_bad_leased_trial_begins_the_hold_again_and_it_doubles_to_ten_minutes(log: Log) -> None:
    story, seq, at_s = held_by_twelve(log), 12, 30.0
    for length_s in (60, 120, 240, 480, 600, 600):
        story.when(*bad(log, at_s, trial=trial(seq)))
        story.then(held("degraded", began_seq=log.seq, end_ms=log.ms(at_s + length_s)))
        seq, at_s = log.seq, at_s + length_s
    assert document(story, log, at_s)["holds"][0]["nth"] == 7


def test_growth_is_forgotten_with_the_release(log: Log) -> None:
    story = held_by_twelve(log).when(*bad(log, 3, trial=trial(12))).then(held("degraded", end_ms=log.ms(63)))
    story.when(*(log.outcome("ok", at_s=31, trial=trial(13)) for _ in range(3)), *clean(log, 31, 18, seen_seq=16))
    story.when(*bad(log, 32, 12, seen_seq=16)).then(held("degraded", end_ms=log.ms(62)))


def test_an_unleased_bad_answer_on_probation_is_a_sample(log: Log) -> None:
    story = held_by_twelve(log).when(*bad(log, 31, 11, seen_seq=12)).then()
    assert points(story, log, 31) == 33
    story.when(*bad(log, 31, seen_seq=12)).then(held("degraded", began_seq=24, end_ms=log.ms(91)))


def test_bad_answers_before_the_end_are_counted_and_move_nothing(log: Log) -> None:
    story = held_by_twelve(log).when(*bad(log, 10, 20, seen_seq=12)).then()
    found = document(story, log, 10)
    assert (found["holds"][0]["later"], found["holds"][0]["end_ms"]) == (20, log.ms(30))
    assert points(story, log, 10) == 0


def test_twenty_uncheckable_answers_on_probation_end_it(log: Log) -> None:
    story = held_by_twelve(log).when(*clean(log, 31, 19, checkable=False, seen_seq=12)).then()
    story.when(*clean(log, 32, 30, checkable=False, seen_seq=11)).then()
    story.when(*clean(log, 33, checkable=False, seen_seq=12)).then(released("degraded", by="uncheckable"))


@pytest.mark.parametrize("kind", ["ok", "server_error"])
def test_an_hour_on_probation_ends_it_whatever_comes(log: Log, kind: Kind) -> None:
    """Calls that never ask for a lease prove nothing, and nothing may be stuck on probation."""
    story = held_by_twelve(log)
    for n in range(1, 60):
        story.when(*(log.outcome(kind, at_s=30 + 60 * n, seen_seq=12) for _ in range(1)))
    story.then_decision(TARGET, log.ms(3630 - MS), rule="degraded" if kind == "ok" else "breaker", trial=True)
    story.then_decision(TARGET, log.ms(3630), trial=kind != "ok")
    entry = story.fleet.entry(TARGET.key)
    assert entry is not None
    assert next(hold.over_ms for hold in entry.holds if hold.rule == "degraded") == log.ms(3630)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_as_a_trial_each_kind_does_what_the_table_says(log: Log, kind: Kind) -> None:
    cell, is_neutral = TABLE[KINDS[kind].group].sample, KINDS[kind].group == "neutral"
    story = held_by_twelve(log)
    for n in range(3):
        fields: dict[str, Any] = {"limit_ms": 60_000, "took_ms": 100, "signature": "loop"}
        story.when(log.outcome(kind, at_s=31 + n, trial=trial(12), **fields))
        if cell == "bad":
            story.then(held("degraded", began_seq=13, end_ms=log.ms(91)))
            return
    after = [event for event in story.derived if event.rule == "degraded"]
    if cell == "clean":
        assert [type(event).__name__ for event in after] == ["Released"]
    elif is_neutral:
        assert [(type(event).__name__, event.began_seq, event.end_ms) for event in after] == [  # type: ignore[union-attr]
            ("TargetHeld", 15, log.ms(63))
        ], "same length, new name, no growth"
    else:
        assert after == []
        hold = next(hold for hold in document(story, log, 34)["holds"] if hold["rule"] == "degraded")
        assert (hold["began_seq"], hold["clean_trials"], hold["nth"]) == (12, 0, 1)


def test_uncheckable_trials_are_given_back(log: Log) -> None:
    story = held_by_twelve(log).when(*clean(log, 31, 5, checkable=False, trial=trial(12))).then()
    assert document(story, log, 31)["holds"][0]["clean_trials"] == 0


@pytest.mark.parametrize("kind", ["ok", "empty_output"])
@pytest.mark.parametrize("at_s", [5.0, 40.0])
def test_what_is_not_after_the_hold_is_no_sample_and_no_trial(log: Log, kind: Kind, at_s: float) -> None:
    story = held_by_twelve(log)
    for seen_seq in (11, 0, 10**9, None):
        story.when(*(log.outcome(kind, at_s=at_s, seen_seq=seen_seq, took_ms=60_000) for _ in range(30))).then()
    assert points(story, log, at_s) == 0
    assert document(story, log, at_s)["holds"][0]["began_seq"] == 12


def test_a_clear_empties_it_and_is_a_name(log: Log) -> None:
    story = held_by_twelve(log).when(log.override("clear", at_s=5)).then(released("degraded", by="clear"))
    story.when(*bad(log, 6, 20, seen_seq=12)).then()
    assert points(story, log, 6) == 0
    story.when(*bad(log, 7, 12, seen_seq=13)).then(held("degraded", end_ms=log.ms(37)))


def test_the_policy_overrides_its_numbers_for_one_model(log: Log) -> None:
    model = {TARGET.model: {"degraded": {"consecutive": 2, "hold_s": 7.5, "clean_trials": 1}}}
    story = given(*bad(log, 0, 2), policy=Policy.from_data({"model": model}))
    story.then(held("degraded", end_ms=log.ms(7.5)))
    story.when(*clean(log, 8, trial=trial(2))).then(released("degraded"))


# -- damaged encoding ----------------------------------------------------------------------------------


def test_damaged_encoding_is_made_good_by_what_is_attributable(log: Log) -> None:
    """Thousands of clean answers to prompts that were no ASCII prove nothing about the encoding."""
    story = given(*damaged(log, 1, TARGET.model, 11), *clean(log, 1, 900), *clean(log, 1, 3, attributable=True))
    assert (points(story, log, 1, "damage"), points(story, log, 1, "bad")) == (30, 0)
    story.when(*damaged(log, 1, TARGET.model, 2))
    assert holds(story) == [TARGET.key]


def test_damage_that_may_be_an_echo_proves_nothing(log: Log) -> None:
    story = given(*damaged(log, 0, TARGET.model, 40, attributable=False))
    assert not any(isinstance(event, TargetHeld) for event in story.derived)
    assert document(story, log, 0)["evidence"] == {}


def test_own_decoding_is_the_routers_fault_and_no_sample(log: Log) -> None:
    events = damaged(log, 0, TARGET.model, 40, signature="own_decoding", scope="none", attributable=False)
    assert not any(isinstance(event, TargetHeld) for event in given(*events).derived)


def holds(story: Story) -> list[str]:
    return sorted(
        {event.scope.key for event in story.derived if isinstance(event, TargetHeld) and event.replica is None}
    )


def test_one_model_is_never_the_host(log: Log) -> None:
    story = given(*damaged(log, 0, "a", 12), *damaged(log, 0, "b", 2))
    assert holds(story) == ["openrouter=2Eai.team-a.a"]
    story.when(*damaged(log, 1, "b")).then(held("degraded", scope=HOST))
    assert (story.derived[0].numbers["failures"], story.derived[0].numbers["needed"]) == (15, 12)


def test_what_a_clear_of_the_host_made_void_is_not_counted_against_it(log: Log) -> None:
    story = given(*damaged(log, 0, "a", 9)).when(log.override("clear", at_s=1, scope=HOST))
    story.when(*damaged(log, 2, "b", 5, seen_seq=10))
    assert holds(story) == []


def test_clean_answers_of_its_other_models_make_good_for_the_host(log: Log) -> None:
    story = given()
    for model in ("a", "b"):
        for _ in range(12):
            story.when(
                *damaged(log, 1, model), *clean(log, 1, 3, target=Target("openrouter.ai", "c"), attributable=True)
            )
        assert holds(story) == [] or holds(story) == [f"openrouter=2Eai.team-a.{model}"]
    assert story.fleet.store.nodes[HOST.key].state.holds is None


def test_one_replicas_word_does_not_hold_the_host_that_serves_another(log: Log) -> None:
    """Another replica has clean samples, of any model."""
    other = clean(log, 0, replica="r2", target=Target("openrouter.ai", "c"))
    story = given(*other, *damaged(log, 1, "a", 12))
    assert holds(story) == ["openrouter=2Eai.team-a.a"], "of this model nobody else had a clean sample"
    story.when(*damaged(log, 2, "b", 3))
    assert [(e.scope, e.replica) for e in story.derived if isinstance(e, TargetHeld)] == [(HOST, "r1")]
    story.when(*clean(log, 3, 1, target=Target("openrouter.ai", "c"), attributable=True))
    story.when(*damaged(log, 3, "c", 1, replica="r3", provider="openrouter.ai"))
    assert holds(story) == [HOST.key]


def test_three_clean_trials_of_any_model_release_the_host(log: Log) -> None:
    """One damaged trial begins the hold again."""
    story = given(*damaged(log, 0, "a", 6), *damaged(log, 0, "b", 6))
    assert holds(story) == [HOST.key]
    story.when(*damaged(log, 31, "c", trial=trial(12)))
    assert [(e.scope, e.began_seq, e.end_ms) for e in story.derived if isinstance(e, TargetHeld)] == [
        (HOST, 13, log.ms(91))
    ]
    third = Target("openrouter.ai", "d")
    story.when(*(log.outcome(BAD, at_s=92, target=third, trial=trial(13)) for _ in range(3))).then()
    story.when(*clean(log, 93, 2, target=third, trial=trial(13))).then()
    story.when(*clean(log, 94, target=TARGET, trial=trial(13))).then(released("degraded", scope=HOST, by="success"))
    assert story.fleet.entry(HOST.key) is not None
    story.then_decision(TARGET, log.ms(94), allowed=True, trial=False)


def test_the_host_is_held_when_models_of_any_credential_are_damaged(log: Log) -> None:
    story = given(*damaged(log, 1, "a", 6), *damaged(log, 1, "b", 5, provider="openrouter.ai"))
    assert not any(isinstance(event, TargetHeld) for event in story.derived)
    story.when(*damaged(log, 2, "b", provider="openrouter.ai"))
    story.then(held("degraded", scope=HOST, end_ms=log.ms(32), kind="mangled_output"))
    story.then_decision(Target("openrouter.ai#other", "c"), log.ms(3), allowed=False, reason="degraded", scope=HOST.key)
