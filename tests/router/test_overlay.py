"""The overlay: a replica's own folds, and what the cluster's word does to a local hold (Rule 5.3)."""

from __future__ import annotations

import asyncio
from itertools import accumulate

import pytest

from sickbay.router.overlay import TARGETS_MAX, UNACKNOWLEDGED_MAX, Overlay
from sickbay_events import CallOutcome, Decision, GateEntry, Override, Policy, Target
from sickbay_events.view import HoldView
from sickbay_projections import decide_entries
from view_writer import release_entry

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")
DEAD = CallOutcome(kind="model_unavailable", status=404)
FAULT = CallOutcome(kind="server_error", status=500)
OK = CallOutcome(kind="ok", status=200)
EPOCH_MS = 1_800_000_000_000


class Rig:
    """An overlay with a clock and a cluster's view in the test's hand."""

    def __init__(self) -> None:
        self.now_ms = EPOCH_MS
        self.cluster: dict[str, GateEntry] = {}
        self.n = 0
        self.overlay = Overlay(now_ms=lambda: self.now_ms, cluster=self.cluster, replica="r1")

    def record(self, event: CallOutcome, target: Target = TARGET, seen: int | None = None) -> int:
        self.n += 1
        self.overlay.observe(target, event, seen=self.overlay.seq if seen is None else seen, n=self.n)
        return self.n

    def put(self, entry: GateEntry, key: str = TARGET.key) -> None:
        old, self.cluster[key] = self.cluster.get(key), entry
        self.overlay.cluster_changed(key, old, entry)

    def decide(self, target: Target = TARGET) -> Decision:
        self.overlay.fold()
        own = [self.overlay.entry(key, self.now_ms) if key in self.overlay.marked else None for key in target.keys]
        return decide_entries(own, self.now_ms, source="local")

    def hold(self, log_seq: int = 100) -> None:
        """Two own rejections, the second acknowledged at `log_seq`."""
        self.record(DEAD)
        n = self.record(DEAD)
        assert not self.decide().allowed
        self.overlay.acknowledged(TARGET, DEAD, n, log_seq)


def test_two_own_rejections_hold_at_once_and_to_the_own_end() -> None:
    """One replica is its own only witness; the hold ends by itself after 10 min, to the millisecond."""
    rig = Rig()
    rig.record(DEAD)
    assert rig.decide().allowed
    rig.record(DEAD)
    decision = rig.decide()
    assert (decision.allowed, decision.reason, decision.retry_in_s) == (False, "quarantined", 1.0), "its first trial"
    rig.now_ms += 999
    assert not rig.decide().trial
    rig.now_ms += 1
    assert (rig.decide().allowed, rig.decide().trial, rig.decide().retry_in_s) == (False, True, 599.0)
    rig.now_ms += 598_999
    assert not rig.decide().allowed
    rig.now_ms += 1
    assert rig.decide().allowed and rig.decide().trial


def test_a_success_after_the_hold_ends_it_and_one_from_before_does_not() -> None:
    """What started before the hold lifts nothing: the local counter at its start says which is which."""
    rig = Rig()
    before = rig.overlay.seq
    rig.record(DEAD)
    rig.record(DEAD)
    rig.record(OK, seen=before)
    assert not rig.decide().allowed
    rig.record(OK)
    assert rig.decide().allowed


def test_a_hold_that_the_cluster_does_not_share_is_tried_by_the_times_of_the_fleets() -> None:
    """Acknowledged or not: three trials 1 s apart, then at doubling distances up to 12 s, each of which begins the
    hold again; one that is answered ends it (Rules 4.0 and 5.3)."""
    rig = Rig()
    rig.hold(100)
    for gap_s in (1, 1, 1, 2, 4, 8, 12, 12):
        assert rig.decide().retry_in_s == gap_s
        rig.now_ms += gap_s * 1_000 - 1
        assert not rig.decide().allowed and not rig.decide().trial
        rig.now_ms += 1
        decision = rig.decide()
        assert not decision.allowed and decision.trial
        rig.record(DEAD)
        assert (rig.decide().began_seq or 0) > (decision.began_seq or 0)
    rig.now_ms += 12_000
    rig.record(OK)
    assert rig.decide().allowed and not rig.decide().trial


def test_a_failure_that_began_before_a_trial_was_wanted_is_no_trial() -> None:
    """It is counted, and moves nothing: neither the next trial nor the end."""
    rig = Rig()
    rig.hold(100)
    before = rig.decide()
    rig.now_ms += 1_500
    rig.record(CallOutcome(kind="model_unavailable", status=404, took_ms=600))
    after = rig.decide()
    assert (after.began_seq, after.trial, after.retry_in_s) == (before.began_seq, True, 598.5)


def test_a_long_own_hold_is_tried_a_twentieth_of_its_time_apart() -> None:
    """What this replica alone cannot reach is called ever more rarely: a broken uplink is that, as a rule."""
    rig = Rig()
    rig.hold(100)
    gaps_s: list[float] = []
    while rig.now_ms < EPOCH_MS + 3_600_000:
        gaps_s.append(rig.decide().retry_in_s)
        rig.now_ms += round(1_000 * gaps_s[-1])
        rig.record(DEAD)
    assert max(gaps_s) == 120.0
    assert len(gaps_s) < 90, "every 12 s it were 300"
    assert all(gap_s <= max(12.0, at_s / 20) for at_s, gap_s in zip(accumulate(gaps_s), gaps_s[1:], strict=False))


@pytest.mark.parametrize(("seq", "ends"), [(99, False), (100, False), (101, True)])
@pytest.mark.parametrize("cleared", [False, True])
def test_a_release_or_clear_of_the_cluster_ends_it_only_if_it_is_later(seq: int, ends: bool, cleared: bool) -> None:
    """The log's order decides: what was released before this replica's rejections says nothing of them."""
    rig = Rig()
    rig.hold(100)
    rig.put(release_entry(TARGET, seq=seq, cleared=cleared))
    assert rig.decide().allowed is ends


def test_an_answer_to_the_clusters_trial_ends_the_local_throttle_too() -> None:
    """A local throttle lasts up to half as long again as was asked, but no longer than until the fleet got an answer:
    also where the cluster's had come to its end and was on probation. A release of another rule does not concern it."""
    rig = Rig()
    throttle = CallOutcome(kind="rate_limited", status=429, retry_after_s=60, retry_after_from="header")
    rig.overlay.acknowledged(TARGET, throttle, rig.record(throttle), 100)
    assert not rig.decide().allowed
    rig.put(release_entry(TARGET, seq=101))
    assert not rig.decide().allowed, "the cluster held nothing"
    hold = HoldView(rule="throttle", began_seq=100, end_ms=rig.now_ms + 1_000, proof=True)
    rig.put(GateEntry(provider=TARGET.provider, model=TARGET.model, holds=[hold], seq=102))
    rig.now_ms += 2_000
    rig.put(release_entry(TARGET, seq=103))
    assert rig.decide().allowed


def test_a_clear_of_the_host_ends_local_holds_below_it() -> None:
    """A wider scope's clear counts too."""
    rig = Rig()
    rig.hold(100)
    rig.put(GateEntry(provider="openrouter.ai", scope="host", cleared_seq=101, seq=101, by="clear"), "openrouter=2Eai")
    assert rig.decide().allowed


def test_a_release_that_came_before_the_acknowledgement_counts_when_that_comes() -> None:
    """The view can be faster than the acknowledgement of one's own outcome."""
    rig = Rig()
    rig.record(DEAD)
    n = rig.record(DEAD)
    rig.put(release_entry(TARGET, seq=150))
    assert not rig.decide().allowed, "nobody knows yet which came first"
    rig.overlay.acknowledged(TARGET, DEAD, n, 149)
    assert rig.decide().allowed


def test_one_fault_on_probation_begins_the_hold_again_with_growth() -> None:
    """No five new faults are needed after its own end. A success ends the probation."""
    rig = Rig()
    for _ in range(5):
        rig.record(FAULT)
    first = rig.decide()
    assert not first.allowed and first.retry_in_s == 2.0
    rig.now_ms += 33_000
    decision = rig.decide()
    assert decision.allowed and decision.trial and decision.began_seq == first.began_seq
    rig.record(FAULT)
    assert not rig.decide().allowed and rig.decide().retry_in_s == 2.0
    rig.now_ms += 2_000
    assert not rig.decide().allowed and 52 <= rig.decide().retry_in_s <= 64
    rig.now_ms += 64_000
    assert rig.decide().allowed and rig.decide().trial
    rig.record(OK)
    assert rig.decide().allowed and not rig.decide().trial


@pytest.mark.parametrize("cleared", [False, True])
def test_a_later_release_or_clear_of_the_cluster_ends_its_probation_too(cleared: bool) -> None:
    """It is a hold still: what the cluster has let go later in the log is let go."""
    rig = Rig()
    rig.hold(100)
    rig.now_ms += 600_000
    assert rig.decide().allowed
    assert rig.decide().trial
    rig.put(release_entry(TARGET, seq=101, cleared=cleared))
    assert rig.decide().allowed and not rig.decide().trial


def test_a_changed_policy_is_taken_up_without_restart() -> None:
    """The threshold in force counts from the next outcome on."""
    rig = Rig()
    rig.overlay.set_policy(Policy.from_data({"rejections": {"threshold": 3}}), 7)
    rig.record(DEAD)
    rig.record(DEAD)
    assert rig.decide().allowed
    rig.record(DEAD)
    assert not rig.decide().allowed


async def test_record_only_queues_and_the_next_tick_folds() -> None:
    """Nothing is folded inside `record`; one tick of the loop folds all."""
    rig = Rig()
    rig.overlay.start()
    for _ in range(50):
        rig.record(OK)
    assert rig.overlay.counts["folded"] == 0
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert rig.overlay.counts["folded"] == 50


def test_the_overlay_is_bounded() -> None:
    """Targets, queue and unacknowledged numbers have limits, and what the limits drop holds nobody longer."""
    rig = Rig()
    for n in range(TARGETS_MAX + 2_000):
        rig.record(DEAD, Target("openrouter.ai", f"m{n}"))
    rig.overlay.fold()
    assert len(list(rig.overlay._fleet.keys())) <= TARGETS_MAX + 10
    assert len(rig.overlay.marked) <= TARGETS_MAX + 10
    for n in range(UNACKNOWLEDGED_MAX):
        rig.record(OK, Target("openrouter.ai", f"m{n % 10}"))
    assert len(rig.overlay._unacknowledged) <= UNACKNOWLEDGED_MAX
    assert len(rig.overlay._pending) <= 1_001


def test_what_a_fold_cannot_take_is_counted_and_passed() -> None:
    """An event of a sort that is not an outcome's does no harm."""
    rig = Rig()
    rig.overlay.observe(TARGET, Override(action="clear", reason="r", actor="a"))
    rig.record(DEAD)
    rig.record(DEAD)
    assert not rig.decide().allowed


def test_a_usable_target_is_not_marked_once_its_outcomes_are_folded() -> None:
    """After a success nothing slows the next decision down."""
    rig = Rig()
    rig.record(OK)
    assert TARGET.key in rig.overlay.marked
    rig.overlay.fold()
    assert not rig.overlay.marked
