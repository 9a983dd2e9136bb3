"""One word for people, with the age of its evidence (Rule 4.6)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from histories import history
from sickbay_events import HealthChanged, Lease, Policy, Scope, Target
from sickbay_events.kinds import Kind
from sickbay_projections import Fleet, Health, Recorded
from sickbay_projections.rules.health import WORDS
from sickbay_projections.testing import Log, Story, became, given, held, released

TARGET = Target("openrouter.ai#team-a", "z-ai/glm-5.3")
OTHER = Target("openrouter.ai#team-a", "other")
MIDNIGHT_MS = 19_675 * 86_400_000
MS = 0.001
HOUR_S, DAY_S = 3600, 86_400


@pytest.fixture
def log() -> Log:
    return Log(TARGET, start_ms=MIDNIGHT_MS)


def health(story: Story, log: Log, at_s: float, target: Target = TARGET) -> Health:
    return story.fleet.health(target, log.ms(at_s))


def says(story: Story, log: Log, at_s: float, target: Target = TARGET) -> tuple[str, str, float | None]:
    found = health(story, log, at_s, target)
    return found.word, found.why, found.age_s


# -- each word -----------------------------------------------------------------------------------------


def test_nothing_is_known_of_what_nobody_called(log: Log) -> None:
    assert health(given(), log, 0) == Health(word="unknown", why="nothing", age_s=None, since_ms=None)
    assert given().fleet.health(Target("", "x"), 0).word == "unknown"
    assert given().fleet.health(Target("h", "x" * 300), 0).word == "unknown"


@pytest.mark.parametrize(
    ("at_s", "word"),
    [(0, "healthy"), (HOUR_S - MS, "healthy"), (HOUR_S, "idle"), (DAY_S - MS, "idle"), (DAY_S, "unknown")],
)
def test_an_answer_ages_from_healthy_over_idle_to_unknown(log: Log, at_s: float, word: str) -> None:
    story = given(log.outcome("ok", at_s=0))
    found = health(story, log, at_s)
    assert (found.word, found.age_s) == (word, None if word == "unknown" else at_s)
    assert found.since_ms == (log.ms(0) if word == "healthy" else None)


def test_a_readiness_pass_is_as_good_as_an_answer(log: Log) -> None:
    story = given(log.probe("readiness", ok=True, at_s=5))
    assert says(story, log, 10) == ("healthy", "readiness", 5.0)
    assert health(story, log, 5 + HOUR_S).word == "idle"


def test_only_a_liveness_answer_is_live_and_the_upstream_unverified(log: Log) -> None:
    story = given(log.probe("liveness", ok=True, at_s=0))
    assert says(story, log, 9) == ("live", "liveness", 9.0)
    assert health(story, log, DAY_S - MS).word == "live"
    assert health(story, log, DAY_S).word == "unknown"
    story.when(log.outcome("ok", at_s=10))
    assert health(story, log, 11).word == "healthy"
    story.when(log.probe("liveness", ok=True, at_s=2 * HOUR_S))
    assert health(story, log, 2 * HOUR_S).word == "idle", "an answer two hours ago says more than a port that is open"


def test_an_operators_hold_comes_first_at_any_scope(log: Log) -> None:
    story = given(*(log.outcome("model_unavailable", at_s=0) for _ in range(2)))
    assert says(story, log, 1) == ("quarantined", "quarantine", 1.0)
    for scope in (TARGET.scope, Scope("openrouter.ai", "team-a"), Scope("openrouter.ai")):
        story.when(log.override("hold", at_s=2, scope=scope, until_s=60))
        assert says(story, log, 5) == ("held", "operator", 3.0)
        assert says(story, log, 60)[0] == "quarantined"
        story.when(log.override("allow", at_s=6, scope=scope, until_s=600))
        assert health(story, log, 7).word == "quarantined", "an allow admits, and makes nothing well"


def test_throttled_and_its_end(log: Log) -> None:
    story = given(log.outcome("ok", at_s=0), log.outcome("quota", at_s=1, scope="model", retry_after_s=100))
    assert says(story, log, 50) == ("throttled", "throttle", 49.0)
    assert says(story, log, 101) == ("healthy", "answer", 101.0), "a throttle is no fault"


def test_an_open_breaker_is_unhealthy_also_of_a_wider_scope(log: Log) -> None:
    policy = Policy.from_data({"breaker": {"jitter_percent": 0, "consecutive": 1}})
    story = given(log.outcome("ok", at_s=0, target=OTHER), policy=policy)
    assert health(story, log, 0, OTHER).word == "healthy"
    for n in range(3):
        story.when(log.outcome("network", at_s=700, target=Target("openrouter.ai#team-a", f"m{n}")))
    assert any(event.scope.model is None for event in story.derived), "the host opened as one"
    assert says(story, log, 701, OTHER) == ("unhealthy", "breaker", 1.0)
    assert health(story, log, 730, OTHER).word == "healthy"


def test_a_held_credential_is_unhealthy(log: Log) -> None:
    story = given(*(log.outcome("auth", at_s=n, replica=f"r{n}") for n in range(2)))
    assert says(story, log, 2) == ("degraded", "strikes", 1.0)
    story.when(log.outcome("auth", at_s=2))
    assert says(story, log, 3) == ("unhealthy", "credential", 1.0)
    story.when(log.outcome("bad_request", at_s=4, target=OTHER))
    assert health(story, log, 4, OTHER).word == "unhealthy", "no model of it can be called"


@pytest.mark.parametrize(("failures", "word"), [(1, "degraded"), (2, "degraded"), (3, "unhealthy"), (4, "unhealthy")])
def test_readiness_failures_in_a_row(log: Log, failures: int, word: str) -> None:
    story = given(log.outcome("ok", at_s=0), *(log.probe("readiness", ok=False, at_s=1 + n) for n in range(failures)))
    assert says(story, log, 10) == (word, "readiness", float(10 - failures))


@pytest.mark.parametrize("good", ["ok", "readiness", "answered"])
def test_a_success_ends_the_row(log: Log, good: str) -> None:
    story = given(
        *(log.probe("readiness", ok=False, at_s=n) for n in range(3)), log.probe("liveness", ok=False, at_s=3)
    )
    passes = {"ok": log.outcome("ok", at_s=4), "answered": log.answered(at_s=4)}
    story.when(passes.get(good) or log.probe("readiness", ok=True, at_s=4)).then(became("healthy", old="unhealthy"))
    story.when(log.probe("readiness", ok=False, at_s=5)).then(became("degraded"))


def test_a_failing_liveness_check_degrades_until_something_good_comes(log: Log) -> None:
    story = given(log.outcome("ok", at_s=0), log.probe("liveness", ok=False, at_s=1))
    assert says(story, log, 3) == ("degraded", "liveness", 2.0)
    story.when(log.probe("liveness", ok=True, at_s=4))
    assert says(story, log, 4) == ("healthy", "answer", 4.0)
    story.when(log.probe("liveness", ok=False, at_s=5)).when(log.outcome("ok", at_s=6)).then(became("healthy"))


def test_an_answer_ends_a_failing_check_also_while_faults_still_count(log: Log) -> None:
    story = given(
        log.outcome("server_error", at_s=0), log.outcome("ok", at_s=1), log.probe("liveness", ok=False, at_s=2)
    )
    story.when(log.outcome("ok", at_s=3))
    assert says(story, log, 4)[:2] == ("degraded", "faults")
    assert says(story, log, 61)[:2] == ("healthy", "answer")


def test_failed_checks_are_forgotten_after_a_day(log: Log) -> None:
    story = given(*(log.probe("readiness", ok=False, at_s=n) for n in range(3)))
    assert health(story, log, DAY_S + 2 - MS).word == "unhealthy"
    assert health(story, log, DAY_S + 2).word == "unknown"


def test_a_strike_and_faults_below_a_threshold_degrade(log: Log) -> None:
    story = given(log.outcome("ok", at_s=0), log.outcome("model_unavailable", at_s=1))
    assert says(story, log, 2) == ("degraded", "strikes", 1.0)
    story.when(log.outcome("ok", at_s=3), log.outcome("server_error", at_s=4))
    assert says(story, log, 5) == ("degraded", "faults", 1.0)
    story.when(log.outcome("ok", at_s=6), log.outcome("ok", at_s=6))
    assert says(story, log, 64 - MS) == ("degraded", "faults", 59.999), "for a minute, so that the word is steady"
    assert says(story, log, 64) == ("healthy", "answer", 58.0)


@pytest.mark.parametrize(("bad", "word"), [(5, "healthy"), (6, "degraded")])
def test_half_of_the_bad_answers_that_hold_degrade(log: Log, bad: int, word: str) -> None:
    story = given(*(log.outcome("empty_output", at_s=0) for _ in range(bad)), log.probe("readiness", ok=True, at_s=1))
    assert health(story, log, 2).word == word
    if word == "degraded":
        assert says(story, log, 2)[:2] == ("degraded", "bad_answers")
        story.when(log.outcome("ok", at_s=3)).then(became("healthy", old="degraded"))


def test_what_a_hold_leaves_is_no_word_against_it(log: Log) -> None:
    story = given(*(log.outcome("model_unavailable", at_s=0) for _ in range(2)))
    story.when(log.outcome("ok", at_s=1, seen_seq=2)).then(released("quarantine"), became("healthy"))
    story.when(log.outcome("ok", at_s=2)).then()


def test_a_hold_for_degraded_output_degrades_on_its_probation_too(log: Log) -> None:
    story = given(*(log.outcome("empty_output", at_s=0) for _ in range(12)))
    assert says(story, log, 29)[:2] == ("degraded", "degraded")
    story.when(*(log.outcome("ok", at_s=31, seen_seq=12) for _ in range(20)))
    assert says(story, log, 32)[:2] == ("degraded", "degraded")
    story.when(*(log.outcome("ok", at_s=33, trial=[Lease("degraded", 12)]) for _ in range(3)))
    story.then(released("degraded"), became("healthy", old="degraded"))


def test_the_last_word_against_it_counts_until_a_good_one_or_for_a_day(log: Log) -> None:
    story = given(log.outcome("ok", at_s=0), log.outcome("server_error", at_s=1))
    assert says(story, log, 3000) == ("degraded", "last_outcome", 2999.0)
    assert health(story, log, DAY_S + 1).word == "unknown"
    story.when(log.outcome("ok", at_s=3600))
    assert says(story, log, 3601) == ("healthy", "answer", 1.0)


@pytest.mark.parametrize("kind", ["bad_request", "cancelled", "unknown", "wrong_endpoint"])
def test_the_callers_own_says_nothing(log: Log, kind: Kind) -> None:
    story = given(log.outcome("ok", at_s=0), log.outcome(kind, at_s=1)).when(log.outcome(kind, at_s=2)).then()
    assert says(story, log, 3) == ("healthy", "answer", 3.0)


@pytest.mark.parametrize(
    "fields",
    [{"forced": True}, {"queued_ms": 700_000}, {"scope": "none"}, {"limit_ms": 5000}, {"seen_seq": 0}],
    ids=lambda fields: next(iter(fields)),
)
def test_what_is_no_evidence_for_the_folds_does_not_speak_against(log: Log, fields: dict[str, Any]) -> None:
    story = given(log.override("clear", at_s=0), log.outcome("ok", at_s=1, seen_seq=1))
    story.when(log.outcome("timeout", at_s=2, **{"limit_ms": 60_000, "took_ms": 60_000, **fields})).then()
    assert health(story, log, 3).word == "healthy"


# -- changes -------------------------------------------------------------------------------------------


def test_an_event_that_changes_the_word_tells_old_and_new(log: Log) -> None:
    story = given().when(log.outcome("ok", at_s=0)).then(became("healthy", old="unknown", scope=TARGET.scope))
    story.when(*(log.outcome("ok", at_s=n, replica=f"r{n % 3}") for n in range(1, 50))).then()
    story.when(log.outcome("model_unavailable", at_s=60)).then(became("degraded", old="healthy", time_ms=log.ms(60)))
    story.when(log.outcome("model_unavailable", at_s=61, replica="r2")).then(
        held("quarantine"), became("quarantined", old="degraded", cause_seq=log.seq, rule="health")
    )
    assert health(story, log, 62).since_ms == log.ms(61)
    story.when(log.outcome("ok", at_s=62, seen_seq=log.seq)).then(
        released("quarantine"), became("healthy", old="quarantined")
    )


def test_an_override_of_the_target_tells_at_once(log: Log) -> None:
    """A wider one tells with the next event."""
    story = given(log.outcome("ok", at_s=0)).when(log.override("hold", at_s=1, until_s=100))
    story.then(held("operator"), became("held", old="healthy"))
    story.when(log.override("clear", at_s=2)).then(released("operator"), became("unknown", old="held"))
    story.when(log.override("hold", at_s=3, scope=Scope("openrouter.ai"), until_s=100)).then(held("operator"))
    assert health(story, log, 4).word == "held"
    story.when(log.outcome("ok", at_s=5)).then(became("held", old="unknown"))
    story.when(log.outcome("ok", at_s=100)).then(became("healthy", old="held"))


def test_a_wider_clear_makes_what_was_before_it_void(log: Log) -> None:
    story = given(*(log.outcome("model_unavailable", at_s=0) for _ in range(2)))
    story.when(log.override("clear", at_s=1, scope=Scope("openrouter.ai")))
    assert says(story, log, 2) == ("unknown", "nothing", None)
    credential, host = Scope("openrouter.ai", "team-a"), Scope("openrouter.ai")
    story = given(log.override("hold", at_s=3, scope=credential, until_s=900), log.outcome("ok", at_s=4))
    story.when(log.override("clear", at_s=5, scope=host))
    assert says(story, log, 6) == ("unknown", "nothing", None)


def test_a_probe_without_a_lease_is_evidence_for_health_alone(log: Log) -> None:
    story = given(*(log.probe("readiness", ok=False, kind="model_unavailable", at_s=n) for n in range(9)))
    story.then_decision(TARGET, log.ms(9), allowed=True, trial=False)
    document = story.fleet.document(TARGET.key, log.ms(9))
    assert document is not None
    assert (document["evidence"], document["outcomes"], document["readiness_failures"]) == ({}, 0, 9)


def test_a_leased_probe_acts_as_the_outcome_of_its_kind_too(log: Log) -> None:
    story = given(*(log.outcome("model_unavailable", at_s=0) for _ in range(2)))
    lease = [Lease("quarantine", 2)]
    story.when(log.probe("readiness", ok=False, kind="server_error", at_s=601, trial=lease)).then()
    assert says(story, log, 601)[0] == "degraded"
    story.when(log.probe("readiness", ok=True, kind="ok", at_s=670, trial=lease))
    story.then(released("quarantine"))
    story.when(log.outcome("ok", at_s=671)).then(became("healthy", old="degraded"))


def test_an_overlay_has_no_word_and_tells_of_none(log: Log) -> None:
    story = given(log.outcome("ok", at_s=0), log.outcome("server_error", at_s=1), overlay=True)
    assert not any(isinstance(event, HealthChanged) for event in story.all)


def test_the_document_shows_it(log: Log) -> None:
    story = given(log.outcome("ok", at_s=0), log.probe("liveness", ok=True, at_s=1))
    document = story.fleet.document(TARGET.key, log.ms(2))
    assert document is not None
    assert (document["health"], document["health_why"], document["health_age_s"]) == ("healthy", "answer", 2.0)
    assert (document["last_live_ms"], document["last_ready_ms"]) == (log.ms(1), None)
    assert "health" not in (story.fleet.document("openrouter=2Eai", log.ms(2)) or {})


# -- any history ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_the_word_that_was_told_last_is_the_one_that_holds_right_after_each_event(seed: int) -> None:
    """The quick exit skips no change: what a target was last told to be is what it is, after every event of its own."""
    fleet, told = Fleet(), dict[str, str]()
    happened = set[str]()
    for recorded in history(seed, 1500, pace=2):
        nodes = {key: fleet.store.nodes[key] for key in told}
        derived = fleet.apply(recorded)
        for key, node_before in nodes.items():
            if fleet.store.nodes.get(key) is not node_before:
                del told[key]  # it left the state, and may have come back
        for event in derived:
            if isinstance(event, HealthChanged):
                assert event.old == told.get(event.scope.key, "unknown"), recorded.seq
                assert event.new != event.old
                told[event.scope.key] = event.new
                happened.add(event.new)
        target = recorded.target
        node = fleet.store.nodes.get(target.key) if target is not None else None
        if target is None or node is None or node.state.last_seq != recorded.seq:
            continue
        assert fleet.health(target, fleet.time_ms).word == told.get(target.key, "unknown"), recorded.seq
    assert {"held", "quarantined", "throttled", "degraded", "healthy"} <= happened <= set(WORDS)


@pytest.mark.parametrize("seed", range(6))
def test_an_ordinary_stream_tells_the_same_one_by_one_in_batches_and_decoded_anew(seed: int) -> None:
    rng = random.Random(seed)
    log, targets = Log(TARGET, start_ms=MIDNIGHT_MS), [TARGET, OTHER, Target("h", "m")]
    events: list[Recorded] = []
    at_s = 0.0
    for _ in range(900):
        at_s += rng.choice([0, 0.1, 1, 5, 30])
        kinds: tuple[Kind, ...] = ("server_error", "empty_output", "model_unavailable")
        kind: Kind = rng.choice(kinds) if rng.random() < 0.1 else "ok"
        seen = None if rng.random() < 0.2 else log.seq
        replica = rng.choice(["r1", "r2"])
        events.append(
            log.outcome(kind, at_s=at_s, target=rng.choice(targets), replica=replica, seen_seq=seen, took_ms=100)
        )
    one, many, anew = Fleet(), Fleet(), Fleet()
    told = [event for each in events for event in one.apply(each)]
    again = []
    for each in events:
        if rng.random() < 0.3:
            anew = Fleet.decode(anew.encode())
        again += anew.apply(each)
    subjects = [f"sickbay.outcome.{each.replica}.{each.target.key}" for each in events if each.target is not None]
    batched = many.apply_many(
        subjects, [each.event for each in events], [each.seq for each in events], [each.time_ms for each in events]
    )
    assert told == again == batched
    assert one.encode() == many.encode() == anew.encode()
    assert sum(isinstance(event, HealthChanged) for event in told) > 20
