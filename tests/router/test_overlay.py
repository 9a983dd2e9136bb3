"""The overlay: a replica's own folds, and what the cluster's word does to a local hold (Rule 5.3)."""

from __future__ import annotations

import asyncio

import pytest

from sickbay.router.overlay import TARGETS_MAX, UNACKNOWLEDGED_MAX, Overlay
from sickbay_events import CallOutcome, Decision, GateEntry, Override, Policy, Target
from sickbay_events.view import HoldView
from sickbay_projections import decide_entries
from view_writer import hold_entry, release_entry

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
    assert (decision.allowed, decision.reason, decision.retry_in_s) == (False, "quarantined", 600.0)
    rig.now_ms += 599_999
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


def test_without_a_cluster_a_local_hold_lasts_to_its_own_end() -> None:
    """Neither acknowledgement nor checkpoint: each replica for itself."""
    rig = Rig()
    rig.record(DEAD)
    rig.record(DEAD)
    rig.overlay.checkpoint(10_000)
    rig.now_ms += 60_000
    assert not rig.decide().allowed


def test_a_hold_of_its_own_lasts_30_s_more_and_doubles_while_it_recurs() -> None:
    """The cluster does not share it. Once the checkpoint has passed its events: 30 s, then 60 s, up to 10 min; a
    success between forgets."""
    rig = Rig()
    for round_, extra_s in enumerate((30, 60, 120, 240, 480, 600, 600)):
        log_seq = 100 + 10 * round_
        rig.hold(log_seq)
        rig.overlay.checkpoint(log_seq - 1)
        rig.now_ms += 1_000
        assert not rig.decide().allowed, "the checkpoint has not passed it yet"
        rig.overlay.checkpoint(log_seq)
        rig.now_ms += min(extra_s, 598) * 1_000 - 1
        assert not rig.decide().allowed, extra_s
        rig.now_ms += 1 + (2_000 if extra_s > 598 else 0)
        assert rig.decide().allowed, extra_s
    rig.record(OK)
    rig.hold(500)
    rig.overlay.checkpoint(500)
    rig.now_ms += 30_000
    assert rig.decide().allowed


def test_a_hold_that_the_cluster_shares_is_not_cut() -> None:
    """While the cluster holds the same scope, or a wider one, the local hold runs on."""
    far_ms = EPOCH_MS + 600_000
    operator = HoldView(rule="operator", began_seq=9, end_ms=far_ms)
    host = GateEntry(provider="openrouter.ai", scope="host", holds=[operator])
    for entry, key in ((hold_entry(TARGET, end_ms=far_ms, seq=100), TARGET.key), (host, "openrouter=2Eai")):
        rig = Rig()
        rig.hold(100)
        rig.put(entry, key)
        rig.overlay.checkpoint(100)
        rig.now_ms += 500_000
        rig.overlay.checkpoint(200)
        assert not rig.decide().allowed


@pytest.mark.parametrize(("seq", "ends"), [(99, False), (100, False), (101, True)])
@pytest.mark.parametrize("cleared", [False, True])
def test_a_release_or_clear_of_the_cluster_ends_it_only_if_it_is_later(seq: int, ends: bool, cleared: bool) -> None:
    """The log's order decides: what was released before this replica's rejections says nothing of them."""
    rig = Rig()
    rig.hold(100)
    rig.put(release_entry(TARGET, seq=seq, cleared=cleared))
    assert rig.decide().allowed is ends


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


def test_what_the_cluster_does_not_share_goes_on_as_probation_after_its_30_s() -> None:
    """It denies no longer, but a trial is wanted, as after its own end: one rejection then holds nothing, two do
    (Rules 4.1 and 5.3)."""
    rig = Rig()
    rig.hold(100)
    rig.overlay.checkpoint(100)
    rig.now_ms += 29_999
    assert not rig.decide().allowed
    rig.now_ms += 1
    decision = rig.decide()
    assert decision.allowed and decision.trial and rig.overlay.counts["cut"] == 1
    rig.record(DEAD)
    assert rig.decide().allowed
    rig.record(DEAD)
    assert not rig.decide().allowed


@pytest.mark.parametrize("waits_s", [30, 40])
def test_one_fault_on_that_probation_begins_the_hold_again_with_growth(waits_s: int) -> None:
    """Whether its 30 s or its own end came first, and however many checkpoints came since: no five new faults are
    needed. The next hold may last 60 s more. A success ends the probation."""
    rig = Rig()
    n = [rig.record(FAULT) for _ in range(5)][-1]
    first = rig.decide()
    assert not first.allowed and 27 <= first.retry_in_s <= 33
    rig.overlay.acknowledged(TARGET, FAULT, n, 100)
    rig.overlay.checkpoint(100)
    for second in range(waits_s):
        rig.now_ms += 1_000
        rig.overlay.checkpoint(101 + second)
    decision = rig.decide()
    assert decision.allowed and decision.trial and decision.began_seq == first.began_seq
    n = rig.record(FAULT)
    again = rig.decide()
    assert not again.allowed and 54 <= again.retry_in_s <= 66
    rig.overlay.acknowledged(TARGET, FAULT, n, 200)
    rig.overlay.checkpoint(200)
    rig.now_ms += 53_000
    assert not rig.decide().allowed
    rig.now_ms += 7_000
    assert rig.decide().allowed and rig.decide().trial
    rig.record(OK)
    assert rig.decide().allowed and not rig.decide().trial


@pytest.mark.parametrize("cleared", [False, True])
def test_a_later_release_or_clear_of_the_cluster_ends_that_probation_too(cleared: bool) -> None:
    """It is a hold still: what the cluster has let go later in the log is let go."""
    rig = Rig()
    rig.hold(100)
    rig.overlay.checkpoint(100)
    rig.now_ms += 31_000
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
