"""From the same beginning, the state after a replay to N is the live state at N, byte for byte (Rule 7)."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from histories import history
from paths import SUPPORT
from sickbay_events import Released, Target, TargetHeld
from sickbay_projections import FOLD_VERSION, Fleet, Recorded
from sickbay_projections.state.model import encode_sorted

COUNT = 3000
MARKS = [1, 7, 500, 1234, 2999, 3000]


def replayed_elsewhere(seed: int, hash_seed: str) -> str:
    """What a process of its own, with its own hash seed, makes of the history."""
    here = SUPPORT
    done = subprocess.run(
        [sys.executable, str(here / "fold_process.py"), str(seed), str(COUNT), *map(str, MARKS)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(here)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("seed", [1, 2])
def test_a_replay_in_another_process_with_another_hash_seed_gives_the_same_bytes(seed: int) -> None:
    first, second = replayed_elsewhere(seed, "0"), replayed_elsewhere(seed, "4242")
    assert first == second
    assert len(first.splitlines()) == len(MARKS)
    fleet = Fleet()
    for recorded in history(seed, COUNT):
        fleet.apply(recorded)
    assert fleet.digest() in first.splitlines()[-1]


@pytest.mark.parametrize("seed", range(8))
def test_encoding_and_decoding_in_the_middle_changes_nothing_afterwards(seed: int) -> None:
    rng = random.Random(seed)
    live, copy = Fleet(), Fleet()
    happened = dict.fromkeys(("targetheld", "released", "healthchanged", "warningraised", "repeated", "policy"), 0)
    for recorded in history(seed, 1500):
        if rng.random() < 0.05:
            data = copy.encode()
            digest = copy.digest()
            copy = Fleet.decode(data)
            assert (copy.encode(), copy.digest()) == (data, digest)
        derived = live.apply(recorded)
        assert copy.apply(recorded) == derived, recorded.seq
        if rng.random() < 0.2:
            assert copy.digest() == live.digest(), recorded.seq
        for event in derived:
            name = type(event).__name__.lower()
            happened[name] = happened.get(name, 0) + 1
    assert copy.encode() == live.encode()
    assert [copy.entry(key) for key in copy.keys()] == [live.entry(key) for key in live.keys()]  # noqa: SIM118
    happened["repeated"], happened["policy"] = live.repeated, live.policy_seq
    assert all(happened.values()), f"the history did not exercise everything: {happened}"


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_redelivery_by_the_reader_changes_nothing(seed: int, times: int) -> None:
    """The same message read several times has the same sequence: no byte of the state differs."""
    once, often = Fleet(), Fleet()
    recorded = history(seed, 800)
    for n, each in enumerate(recorded):
        once.apply(each)
        for _ in range(times):
            often.apply(each)
            often.apply(recorded[max(0, n - 3)])
    assert often.encode() == once.encode()


@pytest.mark.parametrize("times", [2, 3])
def test_redelivery_into_the_log_changes_nothing_but_its_own_count(times: int) -> None:
    """An event that lies in the log several times, within the window, acts once (Rule 4, Once)."""
    base = [each for each in history(5, 600) if each.target is not None and getattr(each.event, "id", None)]
    clock_ms = 0
    once, often, seq = Fleet(), Fleet(), 0
    for n, each in enumerate(base):
        clock_ms = max(clock_ms, each.time_ms)
        copies = [each, *(base[max(0, n - 5 * k)] for k in range(1, times))]
        for copy in copies:
            seq += 1
            often.apply(Recorded(copy.event, copy.target, replica=copy.replica, seq=seq, time_ms=clock_ms))
        once.apply(Recorded(each.event, each.target, replica=each.replica, seq=seq, time_ms=clock_ms))
    assert often.repeated > once.repeated
    at_ms = clock_ms
    for target in {each.target for each in base if each.target}:
        first, second = once.document(target.key, at_ms), often.document(target.key, at_ms)
        assert first is not None
        assert second is not None
        for counted in ("outcomes", "answers", "rejections", "evidence", "last_answer_ms"):
            assert first[counted] == second[counted]


def test_the_digest_hashes_only_what_changed_and_is_that_of_a_fresh_state() -> None:
    """The additive digest kept along the way equals the one that a decoded fleet computes from nothing."""
    fleet = Fleet()
    seen = set[str]()
    for recorded in history(11, 1000, targets=300):
        fleet.apply(recorded)
        digest = fleet.digest()
        seen.add(digest)
        if recorded.seq % 50 == 0:
            assert Fleet.decode(fleet.encode()).digest() == digest
    assert len(seen) == 1000, "every event moves at least the position"


def test_a_state_of_another_version_or_no_state_is_refused() -> None:
    fleet = Fleet()
    for data in (b"", b"\x00", b"{}", encode_sorted({"fold": FOLD_VERSION})):
        with pytest.raises(ValueError, match="no state"):
            Fleet.decode(data)
    other = fleet.encode().replace(b"\xa4fold" + bytes([FOLD_VERSION]), b"\xa4fold\x63")
    with pytest.raises(ValueError, match="version 99"):
        Fleet.decode(other)


def test_thousands_of_targets_replay_to_the_same_state() -> None:
    recorded = history(21, 12_000, targets=5000, replicas=40, pace=0)
    one, two = Fleet(), Fleet()
    for each in recorded:
        one.apply(each)
    for at in range(0, len(recorded), 1000):
        two = Fleet.decode(two.encode())
        for each in recorded[at : at + 1000]:
            two.apply(each)
    assert len(list(one.keys())) > 4000
    assert (two.encode(), two.digest()) == (one.encode(), one.digest())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.integers(1, 250), st.data())
def test_any_prefix_of_any_history_is_a_function_of_the_events(seed: int, count: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, count))
    recorded = history(seed, count, targets=4)
    live = Fleet()
    for each in recorded[:at]:
        live.apply(each)
    resumed = Fleet.decode(live.encode())
    for each in recorded[at:]:
        assert resumed.apply(each) == live.apply(each)
    assert resumed.encode() == live.encode()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_what_is_released_was_held_and_no_quarantine_lasts_longer_than_its_cap(seed: int) -> None:
    fleet, names = Fleet(), dict[tuple[str, str], int]()
    for each in history(seed, 400, targets=3):
        for event in fleet.apply(each):
            key = (event.scope.key, event.rule)
            if isinstance(event, TargetHeld) and event.replica is None:
                names[key] = event.began_seq
            elif isinstance(event, Released):
                assert names[key] == event.began_seq
        for target in (Target("h1", "m/0"), Target("h1#a", "m/1"), Target("h2#ü", "m/2")):
            decision = fleet.decide(target, fleet.time_ms)
            assert decision.allowed or decision.retry_in_s > 0
            assert decision.rule != "quarantine" or decision.retry_in_s <= 3600
