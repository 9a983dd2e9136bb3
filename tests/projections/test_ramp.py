"""After a breaker closes replicas come back by shares of a ring (Rule 5.2)."""

from __future__ import annotations

from zlib import crc32

import pytest

from sickbay_events import Kind, Lease, Policy, Scope, Target
from sickbay_events.view import AllowView, GateEntry, HoldView, RampView
from sickbay_projections import decide_entries
from sickbay_projections.testing import Log, Story, given, held, released

TARGET = Target("openrouter.ai#team-a", "z-ai/glm-5.3")
FAULT: Kind = "server_error"
FLEET = [f"router-{n}" for n in range(400)]
MS = 0.001


@pytest.fixture
def log() -> Log:
    return Log(TARGET)


def closed(log: Log, replicas: int = 4, policy: Policy | None = None) -> Story:
    """A fleet of so many replicas; open by sequence 9 at 1 s, closed by a success of `r0` at 40 s."""
    policy = policy or Policy.from_data({"breaker": {"jitter_percent": 0}, "ramp": {"part": 1, "max_s": 30.0}})
    others = [log.outcome("bad_request", at_s=0, replica=f"r{n % replicas}") for n in range(4)]
    faults = [log.outcome(FAULT, at_s=1, replica=f"r{n % 2}") for n in range(5)]
    return given(*others, *faults, log.outcome("ok", at_s=40, replica="r0", seen_seq=9), policy=policy)


def step_of(replica: str, began_seq: int = 9) -> int:
    """Which 10 s this replica comes in with: 0, 1, 2, or 3 for the end of the ramp."""
    place = crc32(f"{replica} {began_seq}".encode()) / 2**32
    return sum(place >= share for share in (0.10, 0.25, 0.50))


def test_replicas_come_in_by_10_25_and_50_percent_of_the_ring_every_ten_seconds(log: Log) -> None:
    story = closed(log).then(held("breaker", began_seq=9), released("breaker", began_seq=9))
    steps = [step_of(name) for name in FLEET]
    assert set(steps) == {0, 1, 2, 3}
    for name, step in zip(FLEET, steps, strict=True):
        in_ms = log.ms(40 + 10 * step)
        story.then_decision(TARGET, in_ms, replica=name, allowed=True, reason="ok", trial=False)
        if step:
            story.then_decision(
                TARGET, in_ms - 1, replica=name, allowed=False, reason="ramp", rule="breaker", retry_in_s=0.001
            )
            story.then_decision(
                TARGET, log.ms(40), replica=name, retry_in_s=10.0 * step, began_seq=9, scope=TARGET.key, trial=False
            )
    for second, share in ((0, 0.10), (10, 0.25), (20, 0.50), (30, 1.0)):
        allowed = [story.fleet.decide(TARGET, log.ms(40 + second), name).allowed for name in FLEET]
        assert abs(sum(allowed) / len(FLEET) - share) < 0.06


def test_with_fewer_than_four_replicas_at_asked_at_there_is_no_ramp(log: Log) -> None:
    late = next(name for name in FLEET if step_of(name) == 3)
    closed(log, replicas=3).then_decision(TARGET, log.ms(41), replica=late, allowed=True, reason="ok")
    log.seq = 0
    story = closed(log)
    story.then_decision(TARGET, log.ms(41), replica=late, allowed=False)
    assert story.fleet.replicas(log.ms(600 - MS)) == 4
    assert story.fleet.replicas(log.ms(600)) == 2
    assert story.fleet.replicas(log.ms(640)) == 0


def test_an_overlay_has_no_ramp(log: Log) -> None:
    story = given(
        *(log.outcome(FAULT, at_s=0, replica=f"r{n}") for n in range(5)),
        log.outcome("ok", at_s=40, seen_seq=5),
        overlay=True,
    ).then(held("breaker"), released("breaker"))
    assert story.fleet.store.nodes[TARGET.key].state.ramp is None


@pytest.mark.parametrize(("closed_s", "length_s"), [(3, 0.1), (41, 2), (81, 4), (601, 4)])
def test_it_is_a_twentieth_of_the_time_held_and_four_seconds_at_most(
    log: Log, closed_s: float, length_s: float
) -> None:
    faults = [log.outcome(FAULT, at_s=1, replica=f"r{n % 4}") for n in range(5)]
    story = given(*faults, log.outcome("ok", at_s=closed_s, replica="r0", seen_seq=5))
    ramp = story.fleet.store.nodes[TARGET.key].state.ramp
    assert ramp is not None
    assert (ramp.from_ms, ramp.end_ms) == (log.ms(closed_s), log.ms(closed_s + length_s))


def test_it_counts_from_when_the_target_was_first_held(log: Log) -> None:
    faults = [log.outcome(FAULT, at_s=1, replica=f"r{n % 4}") for n in range(5)]
    trial = log.outcome(FAULT, at_s=31, trial=[Lease("breaker", 5)])
    story = given(*faults, trial, log.outcome("ok", at_s=41, replica="r0", seen_seq=6))
    ramp = story.fleet.store.nodes[TARGET.key].state.ramp
    assert ramp is not None and ramp.end_ms - ramp.from_ms == 2000


def test_a_hold_that_ends_at_once_has_none(log: Log) -> None:
    faults = [log.outcome(FAULT, at_s=1, replica=f"r{n % 4}") for n in range(5)]
    story = given(*faults).when(log.outcome("ok", at_s=1.019, seen_seq=5)).then(released("breaker"))
    assert story.fleet.store.nodes[TARGET.key].state.ramp is None


def test_the_replica_whose_answer_ended_the_hold_is_always_in(log: Log) -> None:
    late = next(name for name in FLEET if step_of(name) == 3)
    others = [log.outcome("bad_request", at_s=0, replica=f"r{n}") for n in range(4)]
    faults = [log.outcome(FAULT, at_s=1, replica=f"r{n % 2}") for n in range(5)]
    story = given(*others, *faults, log.outcome("ok", at_s=40, replica=late, seen_seq=9))
    story.then_decision(TARGET, log.ms(40), replica=late, allowed=True, reason="ok")
    other = next(name for name in FLEET if step_of(name) == 3 and name != late)
    story.then_decision(TARGET, log.ms(40), replica=other, allowed=False, reason="ramp")


def test_a_fault_in_the_ramp_scores_like_any_and_the_next_hold_ends_it(log: Log) -> None:
    story = closed(log).when(*(log.outcome(FAULT, at_s=41, replica=f"r{n % 3}", seen_seq=9) for n in range(2))).then()
    assert story.fleet.store.nodes[TARGET.key].state.ramp is not None
    story.when(log.outcome(FAULT, at_s=41, replica="r1", seen_seq=9)).then(held("breaker", end_ms=log.ms(71)))
    assert story.fleet.store.nodes[TARGET.key].state.ramp is None


def test_the_entry_says_so_until_the_ramp_ends_and_a_gate_decides_as_the_fleet_does(log: Log) -> None:
    story = closed(log)
    assert story.fleet.take_changed() == [TARGET.key]
    entry = story.fleet.entry(TARGET.key)
    assert entry is not None
    assert (entry.reason, entry.by, entry.holds) == ("ramp", "success", [])
    assert entry.ramp == RampView(began_seq=9, from_ms=log.ms(40), end_ms=log.ms(70), prover="r0")
    assert entry.expires_ms == log.ms(100)
    for second in range(35):
        for name in FLEET[:40]:
            at_ms = log.ms(40 + second)
            gate = decide_entries((None, None, entry), at_ms, name, replicas=4, seq=10)
            assert gate == story.fleet.decide(TARGET, at_ms, name)
            assert decide_entries((None, None, entry), at_ms, name, replicas=3).allowed


def test_the_ramp_follows_the_policy(log: Log) -> None:
    rules = {
        "breaker": {"jitter_percent": 0},
        "ramp": {"part": 5, "max_s": 6.0, "percents": [1, 50, 100], "replicas": 2},
    }
    story = closed(log, replicas=2, policy=Policy.from_data(rules))
    entry = story.fleet.entry(TARGET.key)
    assert entry is not None
    ramp = RampView(began_seq=9, from_ms=log.ms(40), end_ms=log.ms(46), percents=(1, 50, 100), replicas=2, prover="r0")
    assert entry.ramp == ramp
    late = next(name for name in FLEET if step_of(name) == 3)
    story.then_decision(TARGET, log.ms(44 - MS), replica=late, allowed=False, retry_in_s=0.001)
    story.then_decision(TARGET, log.ms(44), replica=late, allowed=True)


def test_in_shadow_there_is_no_ramp(log: Log) -> None:
    rules = {"breaker": {"jitter_percent": 0}, "shadow": {"rules": ["breaker"]}}
    story = closed(log, policy=Policy.from_data(rules))
    assert all(story.fleet.decide(TARGET, log.ms(40), name).allowed for name in FLEET)


@pytest.mark.parametrize("scope", [TARGET.scope, Scope("openrouter.ai")], ids=str)
def test_a_clear_ends_the_ramp(log: Log, scope: Scope) -> None:
    story = closed(log)
    before = story.fleet.entry(TARGET.key)
    story.when(log.override("clear", at_s=41, scope=scope))
    assert all(story.fleet.decide(TARGET, log.ms(41), name).allowed for name in FLEET)
    entries = [story.fleet.entry(key) for key in TARGET.keys[:2]] + [before]
    if scope != TARGET.scope:
        assert all(decide_entries(entries, log.ms(41), name, replicas=4).allowed for name in FLEET)


def test_an_operators_word_wins_over_the_ramp(log: Log) -> None:
    story = closed(log).when(log.override("allow", at_s=41, until_s=60))
    assert {story.fleet.decide(TARGET, log.ms(42), name).reason for name in FLEET} == {"allowed_by_operator"}
    assert {story.fleet.decide(TARGET, log.ms(60), name).reason for name in FLEET} == {"ok", "ramp"}
    story.when(log.override("hold", at_s=61, until_s=65))
    late = next(name for name in FLEET if step_of(name) == 3)
    story.then_decision(TARGET, log.ms(62), replica=late, reason="ramp", retry_in_s=8.0)
    early = next(name for name in FLEET if step_of(name) == 0)
    story.then_decision(TARGET, log.ms(62), replica=early, reason="held_by_operator", retry_in_s=3.0)


AT_MS = 1_700_000_000_000


def entry(scope: str, ramp: RampView | None, *holds: HoldView, allow: AllowView | None = None) -> GateEntry:
    model = "m" if scope == "model" else None
    return GateEntry(provider="h#a", model=model, scope=scope, ramp=ramp, holds=list(holds), allow=allow)  # type: ignore[arg-type]


def test_denied_until_the_last_of_holds_and_ramps() -> None:
    ramp = RampView(began_seq=9, from_ms=AT_MS, end_ms=AT_MS + 30_000)
    late = next(name for name in FLEET if step_of(name) == 3)
    shorter = HoldView(rule="throttle", began_seq=4, end_ms=AT_MS + 29_999)
    equal = HoldView(rule="throttle", began_seq=4, end_ms=AT_MS + 30_000)
    found = decide_entries((None, None, entry("model", ramp, shorter)), AT_MS, late, replicas=4)
    assert (found.reason, found.retry_in_s) == ("ramp", 30.0)
    found = decide_entries((None, None, entry("model", ramp, equal)), AT_MS, late, replicas=4)
    assert (found.reason, found.retry_in_s) == ("throttled", 30.0)
    wide = entry("host", ramp)
    found = decide_entries((wide, None, entry("model", None, shorter)), AT_MS, late, replicas=4)
    assert (found.reason, found.scope) == ("ramp", "h")


def test_a_ramp_that_began_ahead_of_a_clock_that_steps_back_begins_now(log: Log) -> None:
    story = closed(log)
    story.fleet.take_changed()
    story.when(log.outcome("bad_request", at_s=10))
    assert story.fleet.take_changed() == [TARGET.key]
    late = next(name for name in FLEET if step_of(name) == 3)
    story.then_decision(TARGET, log.ms(10), replica=late, reason="ramp", retry_in_s=30.0)
