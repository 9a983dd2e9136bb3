"""Models of one credential that fail alike open it, or its host, as one (Rule 4.3, Spread)."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest

from sickbay_events import Kind, Lease, Policy, Scope, Target
from sickbay_projections import Fleet
from sickbay_projections.testing import Log, Story, given, held, released

CREDENTIAL = Scope("h", "a")
HOST = Scope("h")
LONE = Policy.from_data({"breaker": {"jitter_percent": 0, "consecutive": 1}})
"""One fault opens a model: what is tried here is what follows from open models."""


@pytest.fixture
def log() -> Log:
    return Log(model(0))


def model(n: int, provider: str = "h#a") -> Target:
    return Target(provider, f"m{n}")


def faults(log: Log, count: int, kind: Kind = "server_error", *, at_s: float = 0, provider: str = "h#a") -> list[Any]:
    return [log.outcome(kind, at_s=at_s, target=model(n, provider)) for n in range(count)]


def wide(story: Story) -> list[tuple[str, str]]:
    """Scope and kind of event of what was told of credential or host."""
    return [(event.scope.key, type(event).__name__) for event in story.derived if event.scope.model is None]


def spread(log: Log, kind: Kind = "server_error", provider: str = "h#a") -> Story:
    """Three models open; the third, sequence 3, opens them as one."""
    return given(*faults(log, 3, kind, provider=provider), policy=LONE)


# -- when it opens -------------------------------------------------------------------------------------


def test_three_open_models_of_one_credential_open_it_as_one(log: Log) -> None:
    story = given(*faults(log, 2), policy=LONE)
    assert wide(story) == []
    story.when(log.outcome("timeout", at_s=1, target=model(2))).then(
        held("breaker", scope=model(2).scope, began_seq=3),
        held(
            "breaker",
            scope=CREDENTIAL,
            began_seq=3,
            cause_seq=3,
            end_ms=log.ms(31),
            proof=True,
            kind="timeout",
            numbers={"open": 3, "models": 3, "n": 1},
        ),
    )
    story.then_decision(model(9), log.ms(1), allowed=False, reason="breaker_open", scope="h.a", began_seq=3)
    story.then_decision(model(0, "h#b"), log.ms(1), allowed=True)
    story.then_decision(model(0, "h"), log.ms(1), allowed=True)


@pytest.mark.parametrize(
    ("kinds", "opens"),
    [
        (("network", "network", "network"), "h"),
        (("network", "network", "timeout"), "h.a"),
        (("server_error", "network", "network"), "h.a"),
        (("overloaded", "server_error", "server_error"), None),
        (("server_error", "server_error", "truncated"), None),
    ],
)
def test_all_of_it_network_opens_the_host(log: Log, kinds: tuple[Kind, ...], opens: str | None) -> None:
    story = given(*(log.outcome(kind, at_s=n, target=model(n)) for n, kind in enumerate(kinds)), policy=LONE)
    assert wide(story) == ([(opens, "TargetHeld")] if opens else [])


@pytest.mark.parametrize("kind", ["network", "server_error"])
def test_a_provider_without_alias_opens_its_host_in_both_cases(log: Log, kind: Kind) -> None:
    for policy in (LONE, Policy.from_data({**LONE.to_data(), "single_credential": ["h"]})):
        log.seq = 0
        assert wide(given(*faults(log, 3, kind, provider="h"), policy=policy)) == [("h", "TargetHeld")]


@pytest.mark.parametrize(("others", "opens"), [(3, True), (4, False)])
def test_half_of_the_models_called_in_ten_minutes_must_be_open(log: Log, others: int, opens: bool) -> None:
    called = [log.outcome("bad_request", at_s=0, target=model(10 + n)) for n in range(others)]
    assert bool(wide(given(*called, *faults(log, 3, at_s=1), policy=LONE))) == opens
    log.seq = 0
    called = [log.outcome("bad_request", at_s=0, target=model(10 + n)) for n in range(others)]
    assert wide(given(*called, *faults(log, 3, at_s=600), policy=LONE)), "they were called longer ago"


@pytest.mark.parametrize(("at_s", "opens"), [(599.999, False), (600, True)])
@pytest.mark.parametrize("answered", [0, 9])
def test_none_of_its_models_may_have_been_answered_in_ten_minutes(
    log: Log, at_s: float, opens: bool, answered: int
) -> None:
    good = log.outcome("ok", at_s=0, target=model(answered))
    assert bool(wide(given(good, *faults(log, 3, at_s=at_s), policy=LONE))) == opens


def test_a_host_of_which_another_credential_is_answered_stays(log: Log) -> None:
    good = log.outcome("ok", at_s=0, target=model(0, "h#b"))
    assert wide(given(good, *faults(log, 3, "network", at_s=1), policy=LONE)) == [("h.a", "TargetHeld")]
    log.seq = 0
    good = log.outcome("ok", at_s=0, target=model(0, "h#b"))
    assert wide(given(good, *faults(log, 3, "network", at_s=1, provider="h"), policy=LONE)) == []


def test_open_means_before_its_end(log: Log) -> None:
    assert wide(given(*faults(log, 2), log.outcome("timeout", at_s=30, target=model(2)), policy=LONE)) == []
    log.seq = 0
    assert wide(given(*faults(log, 2), log.outcome("timeout", at_s=29.999, target=model(2)), policy=LONE))


def test_models_of_two_credentials_are_not_counted_together(log: Log) -> None:
    events = [*faults(log, 2, "network"), *faults(log, 2, "network", provider="h#b")]
    assert wide(given(*events, policy=LONE)) == []


def test_the_length_goes_by_the_scopes_own_key(log: Log) -> None:
    policy = Policy.from_data({"breaker": {"consecutive": 1}})
    story = given(*faults(log, 3), policy=policy)
    ends = {event.scope.key: event.end_ms - log.ms(0) for event in story.derived}  # type: ignore[union-attr]
    for key, seq in (("h.a.m2", 3), ("h.a", 3)):
        assert ends[key] == 30_000 + 30_000 * (crc32(f"{key} {seq}".encode()) % 2001 - 1000) // 10_000


def test_a_model_that_opens_while_its_credential_is_open_moves_nothing(log: Log) -> None:
    story = spread(log).when(log.outcome("timeout", at_s=20, target=model(3)))
    story.then(held("breaker", scope=model(3).scope))
    story.then_decision(model(9), log.ms(30), allowed=True, trial=True, scope="h.a")


def test_a_clear_of_the_host_leaves_no_open_model_behind(log: Log) -> None:
    story = given(*faults(log, 2), log.override("clear", at_s=1, scope=HOST), policy=LONE)
    assert wide(story.when(log.outcome("timeout", at_s=2, target=model(2), seen_seq=3))) == []


# -- one trial for all ---------------------------------------------------------------------------------


def test_on_probation_one_lease_of_the_wide_hold_is_wanted_by_all(log: Log) -> None:
    story = spread(log)
    for target in (model(0), model(2), model(77)):
        story.then_decision(target, log.ms(29.999), allowed=False)
        story.then_decision(target, log.ms(30), allowed=True, trial=True, scope="h.a", began_seq=3)


@pytest.mark.parametrize("kind", ["ok", "empty_output", "mangled_output"])
@pytest.mark.parametrize("at_s", [5.0, 40.0])
def test_what_came_through_closes_the_wide_hold_and_the_models_holds_of_these_kinds(
    log: Log, kind: Kind, at_s: float
) -> None:
    other = log.outcome("overloaded", at_s=0, target=model(8))
    story = given(other, *faults(log, 3), policy=LONE)
    story.when(log.outcome(kind, at_s=at_s, target=model(5), seen_seq=4)).then(
        released("breaker", scope=CREDENTIAL, began_seq=4, by="success"),
        *(released("breaker", scope=model(n).scope, began_seq=2 + n, by="wide_close") for n in range(3)),
    )
    story.then_decision(model(8), log.ms(5), allowed=False, reason="breaker_open", scope=model(8).key)
    story.then_decision(model(0), log.ms(at_s), allowed=True, trial=False)


def test_a_model_that_was_ordinary_closes_the_wide_hold_too(log: Log) -> None:
    ordinary = [log.outcome("ok", at_s=at_s, target=model(5)) for at_s in (0, 1, 2)]
    story = given(*ordinary, *faults(log, 3, at_s=700), policy=LONE)
    story.when(log.outcome("ok", at_s=735, target=model(5), seen_seq=6))
    assert wide(story) == [("h.a", "Released")]


def test_a_success_from_before_the_wide_hold_closes_nothing(log: Log) -> None:
    story = spread(log)
    for target in (model(0), model(5)):
        story.when(log.outcome("ok", at_s=5, target=target, seen_seq=0, took_ms=60_000)).then()
    story.then_decision(model(5), log.ms(6), allowed=False)


def test_a_models_hold_that_the_trial_could_not_know_of_stays(log: Log) -> None:
    story = spread(log).when(log.outcome("timeout", at_s=20, target=model(3)))
    story.when(log.outcome("ok", at_s=40, target=model(5), seen_seq=3, trial=[Lease("breaker", 3)]))
    assert [event.scope.model for event in story.derived] == [None, "m0", "m1", "m2"]
    story.when(log.outcome("ok", at_s=41, target=model(3), seen_seq=4)).then(released("breaker", by="success"))


def test_a_success_of_a_host_hold_closes_models_of_every_credential(log: Log) -> None:
    story = spread(log, "network", provider="h")
    story.when(log.outcome("timeout", at_s=1, target=model(0, "h#b"), seen_seq=3))
    story.when(log.outcome("ok", at_s=40, target=model(7, "h#c"), seen_seq=4))
    assert [event.scope.key for event in story.derived] == ["h", "h.=.m0", "h.=.m1", "h.=.m2", "h.b.m0"]
    assert story.fleet.entry("h.b.m0").by == "wide_close"  # type: ignore[union-attr]


def test_a_fault_of_the_one_trial_begins_the_next_wide_hold(log: Log) -> None:
    story = spread(log)
    leases = [Lease("breaker", 3), Lease("breaker", 1)]
    story.when(log.outcome("timeout", at_s=30, target=model(0), seen_seq=3, trial=leases)).then(
        held("breaker", scope=model(0).scope, began_seq=4, end_ms=log.ms(90)),
        held("breaker", scope=CREDENTIAL, began_seq=4, end_ms=log.ms(90)),
    )
    story.then_decision(model(50), log.ms(31), allowed=False, scope="h.a")


def test_a_fault_without_the_wide_lease_moves_the_wide_hold_only_by_spread(log: Log) -> None:
    story = spread(log)
    story.when(log.outcome("timeout", at_s=30, target=model(0), seen_seq=3, trial=[Lease("breaker", 1)]))
    assert wide(story) == []
    story.when(*(log.outcome("timeout", at_s=31, target=model(n), seen_seq=3) for n in (1, 2)))
    assert wide(story) == [("h.a", "TargetHeld")], "three are open again, and none was answered"


def test_three_leased_neutral_trials_begin_the_wide_hold_again(log: Log) -> None:
    story = spread(log)
    for n in range(3):
        story.when(log.outcome("unknown", at_s=40 + n, target=model(5), seen_seq=3, trial=[Lease("breaker", 3)]))
    story.then(held("breaker", scope=CREDENTIAL, began_seq=6, end_ms=log.ms(72)))


def test_evidence_of_any_model_keeps_the_wide_probation_and_an_hour_without_ends_it(log: Log) -> None:
    story = spread(log).when(log.outcome("overloaded", at_s=2000, target=model(5), seen_seq=3))
    assert [event.scope.key for event in story.derived] == ["h.a.m5"]
    story.then_decision(model(9), log.ms(5600 - 0.001), trial=True, scope="h.a")
    story.then_decision(model(9), log.ms(5600), trial=False)
    story.when(log.outcome("unknown", at_s=5601, target=model(5), seen_seq=3))
    assert story.fleet.store.nodes["h.a"].state.holds is None


def test_after_the_wide_close_all_are_in_one_ramp_and_a_fault_is_its_models_own(log: Log) -> None:
    fleet = [log.outcome("bad_request", at_s=0, replica=f"r{n}", target=model(0)) for n in range(4)]
    policy = Policy.from_data({**LONE.to_data(), "ramp": {"part": 1, "max_s": 30.0}})
    story = given(*fleet, *faults(log, 3), policy=policy)
    story.when(log.outcome("ok", at_s=40, target=model(5), seen_seq=7))
    places: dict[str, set[bool]] = {}
    for name in (f"router-{n}" for n in range(200)):
        found = {story.fleet.decide(target, log.ms(55), name).allowed for target in (model(0), model(2), model(9))}
        places[name] = found
    assert all(len(found) == 1 for found in places.values()), "in for the wide scope is in for its models"
    assert {True in found for found in places.values()} == {True, False}
    story.when(log.outcome("timeout", at_s=56, target=model(0), seen_seq=8))
    story.then(held("breaker", scope=model(0).scope, end_ms=log.ms(86)))
    story.then_decision(model(1), log.ms(71), allowed=True, trial=False)


# -- the state -----------------------------------------------------------------------------------------


def test_a_wide_hold_lives_through_encode_and_decode_with_the_same_continuation(log: Log) -> None:
    story = spread(log)
    copy = Fleet.decode(story.fleet.encode())
    after = [
        log.outcome("ok", at_s=3, target=model(9), seen_seq=2, took_ms=9000),
        log.outcome("ok", at_s=4, target=model(9), seen_seq=3),
        log.outcome("timeout", at_s=5, target=model(1), seen_seq=4),
    ]
    derived = [event for one in after for event in copy.apply(one)]
    story.when(*after)
    assert story.all == derived != []
    assert copy.encode() == story.fleet.encode()
    assert copy.digest() == story.fleet.digest()


def test_a_host_without_targets_whose_hold_is_over_leaves_the_state(log: Log) -> None:
    story = spread(log, "network")
    assert wide(story) == [("h", "TargetHeld")]
    for n in range(6):
        story.when(log.outcome("ok", at_s=49 * 3600 + n * 3600, target=Target("other", "m")))
    assert list(story.fleet.keys()) == ["other", "other.=", "other.=.m"]
