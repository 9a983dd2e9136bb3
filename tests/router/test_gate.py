"""Decisions of a gate: from the mirror's entries and the overlay, without I/O and without ever raising (Rule 5.1)."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest

from sickbay.router.gate import KNOWN_MAX, Gate
from sickbay.router.overlay import Overlay
from sickbay.testing import standalone
from sickbay.view.entries import STALE_S, View
from sickbay_events import CallOutcome, Checkpoint, GateEntry, Target
from sickbay_events.view import AllowView, HoldView
from view_writer import hold_entry, release_entry

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")
HOST = "openrouter=2Eai"


def test_an_unheld_target_is_allowed_with_sequence_and_age() -> None:
    """`ok`, from the cluster, with the last sequence the mirror knows."""
    sb = standalone()
    sb.mirror.put("other.=.m", release_entry(Target("other", "m"), seq=77))
    decision = sb.decide(TARGET)
    assert (decision.allowed, decision.reason, decision.source, decision.seq) == (True, "ok", "cluster", 77)
    assert decision.age_s == 0


def test_the_last_end_over_scopes_and_rules_decides() -> None:
    """A host's longer hold outlasts the model's; the time left is what is truly left."""
    sb = standalone()
    now_ms = sb.mirror.now_ms()
    sb.mirror.put(TARGET.key, hold_entry(TARGET, end_ms=now_ms + 5_000, seq=5))
    long = HoldView(rule="breaker", began_seq=6, end_ms=now_ms + 9_000)
    sb.mirror.put(HOST, GateEntry(provider="openrouter.ai", scope="host", holds=[long], seq=6))
    decision = sb.decide(TARGET)
    assert (decision.allowed, decision.reason, decision.scope) == (False, "breaker_open", HOST)
    assert decision.retry_in_s == pytest.approx(9.0)
    sb.advance(9.0)
    assert sb.decide(TARGET).allowed


def test_a_local_and_a_cluster_hold_of_different_rules_are_one_union() -> None:
    """The later moment counts and is named; `source` says whose it is."""
    sb = standalone()
    for _ in range(2):
        sb.record(TARGET, CallOutcome(kind="model_unavailable", status=404))
    local = sb.decide(TARGET)
    assert (local.allowed, local.source, local.retry_in_s) == (False, "local", 1.0)
    sb.mirror.put(TARGET.key, hold_entry(TARGET, end_ms=sb.mirror.now_ms() + 700_000, seq=9, rule="breaker"))
    both = sb.decide(TARGET)
    assert (both.allowed, both.source, both.began_seq) == (False, "cluster", 9)
    sb.advance(650)
    assert sb.decide(TARGET).retry_in_s == pytest.approx(50)


def test_an_own_hold_is_silent_where_the_fleet_holds_by_the_same_rule() -> None:
    """To its very release, its probation included: there the fleet's trials count. A stale view silences nothing
    (Rule 5.3)."""
    sb = standalone()
    for _ in range(2):
        sb.record(TARGET, CallOutcome(kind="model_unavailable", status=404))
    began_seq = sb.decide(TARGET).began_seq
    sb.advance(5)
    sb.mirror.put(TARGET.key, hold_entry(TARGET, end_ms=sb.mirror.now_ms() + 60_000, seq=9))
    held = sb.decide(TARGET)
    assert (held.allowed, held.trial, held.source, held.began_seq, held.retry_in_s) == (False, False, "cluster", 9, 60)
    sb.advance(60)
    probation = sb.decide(TARGET)
    assert (probation.allowed, probation.trial, probation.began_seq) == (True, True, 9), "the own one ends 535 s later"
    fresh_at_s = sb.mirror.fresh_at_s
    sb.advance(STALE_S + 0.1)
    sb.mirror.fresh_at_s = fresh_at_s
    stale = sb.decide(TARGET)
    assert (stale.allowed, stale.trial, stale.source, stale.began_seq) == (False, True, "local", began_seq)


def test_who_failed_the_last_trial_is_told_to_wait_five_seconds_more() -> None:
    """`retry_in_s` is the time to the next trial this replica may make, and then to the end; the others go first."""
    sb = standalone()
    now_ms = sb.mirror.now_ms()
    for replicas, wait_s in ((1, 2.0), (2, 7.0)):
        sb.mirror.checkpoint = Checkpoint(
            seq=1, time_ms=now_ms, writer="test", fold=1, revision=1, entries=0, digest="", log_created="",
            wrote_ms=now_ms, live=True, replicas=replicas,
        )  # fmt: skip
        for last, expected_s in (("test", wait_s), ("another", 2.0)):
            hold = HoldView(
                rule="breaker",
                began_seq=5,
                end_ms=now_ms + 30_000,
                trial_from_ms=now_ms + 2_000,
                every_ms=8_000,
                last=last,
                behind_ms=5_000,
                proof=True,
            )
            sb.mirror.put(TARGET.key, GateEntry(provider=TARGET.provider, model=TARGET.model, holds=[hold], seq=5))
            decision = sb.decide(TARGET)
            assert (decision.allowed, decision.trial, decision.retry_in_s) == (False, False, expected_s)


def test_an_operators_allow_wins_over_cluster_and_local_holds() -> None:
    """It admits whatever the folds say, here and there, and says so."""
    sb = standalone()
    for _ in range(2):
        sb.record(TARGET, CallOutcome(kind="model_unavailable", status=404))
    sb.mirror.put(TARGET.key, hold_entry(TARGET, end_ms=sb.mirror.now_ms() + 700_000, seq=9))
    allow = AllowView(seq=10, end_ms=sb.mirror.now_ms() + 60_000, reason="r", actor="ops")
    sb.mirror.put(HOST, GateEntry(provider="openrouter.ai", scope="host", allow=allow, seq=10))
    assert sb.decide(TARGET).reason == "allowed_by_operator"
    sb.advance(60)
    assert not sb.decide(TARGET).allowed


def test_on_probation_a_trial_is_wanted_and_calls_are_allowed() -> None:
    """After the end of a hold with proof: `ok`, trial True (until leases exist, a plain call proves it)."""
    sb = standalone()
    sb.hold(TARGET, for_s=10)
    assert not sb.decide(TARGET).allowed
    sb.advance(10)
    decision = sb.decide(TARGET)
    assert (decision.allowed, decision.reason, decision.trial, decision.rule) == (True, "ok", True, "quarantine")


def test_a_hold_in_shadow_lets_pass_and_is_counted() -> None:
    """`enforced: false` denies nobody."""
    sb = standalone()
    sb.mirror.put(TARGET.key, hold_entry(TARGET, end_ms=sb.mirror.now_ms() + 5_000, enforced=False))
    assert sb.decide(TARGET).allowed
    assert sb.gate.counts["shadow"] == 1 and sb.gate.counts["denied"] == 0


def test_an_entry_past_its_expiry_says_nothing() -> None:
    """The own clock drops it, whether or not the broom has passed."""
    sb = standalone()
    sb.mirror.put(TARGET.key, hold_entry(TARGET, end_ms=sb.mirror.now_ms() + 5_000, expires_ms=sb.mirror.now_ms() + 1))
    assert not sb.decide(TARGET).allowed
    sb.advance(0.001)
    assert sb.decide(TARGET).allowed and not sb.decide(TARGET).trial


def test_no_target_and_names_too_long_are_allowed_and_counted() -> None:
    """Nothing is stored of them, and each question is counted."""
    sb = standalone()
    for target in (Target("", "m"), Target("#a", "m"), Target("openrouter.ai", "")):
        assert (sb.decide(target).allowed, sb.decide(target).reason) == (True, "no_target")
    assert sb.gate.counts["no_target"] == 6
    assert sb.decide(Target("openrouter.ai", "m" * 257)).reason == "no_target"
    assert sb.gate.counts["name_refused"] == 1
    assert not sb.gate._keys


@pytest.mark.parametrize("junk", [None, 5, "openrouter.ai", [], {"provider": "x"}, Target(None, "m"), Target("x", 5)])  # type: ignore[arg-type]
def test_decide_never_raises(junk: Any) -> None:
    """Whatever it is asked, the call is let pass and the fault is counted."""
    sb = standalone()
    assert sb.decide(junk).allowed
    assert sb.gate.counts["failed"] + sb.gate.counts["no_target"] == 1


def test_a_loopback_provider_is_this_machines_own() -> None:
    """A hold of another box's localhost does not concern this one; a hold of this box's does."""
    here = standalone(machine="box-7")
    local = Target("localhost:11434", "llama3")
    here.mirror.put("x", None)
    there = Target("localhost:11434@box-8", "llama3")
    here.mirror.put(there.key, hold_entry(there, end_ms=here.mirror.now_ms() + 5_000))
    assert here.decide(local).allowed
    own = Target("localhost:11434@box-7", "llama3")
    here.mirror.put(own.key, hold_entry(own, end_ms=here.mirror.now_ms() + 5_000))
    assert not here.decide(local).allowed


def test_before_the_first_message_the_wall_clock_counts_and_it_is_stale() -> None:
    """A gate that has heard nothing lets pass and says so (Rule 5.3)."""
    mirror = View()
    overlay = Overlay(now_ms=mirror.now_ms, cluster=mirror.entries)
    gate = Gate(mirror, overlay)
    decision = gate.decide(TARGET)
    assert decision.allowed and decision.source == "stale" and decision.age_s >= 0
    assert abs(mirror.now_ms() - time.time() * 1000) < 1_000
    for _ in range(2):
        overlay.observe(TARGET, CallOutcome(kind="model_unavailable", status=404), seen=overlay.seq)
    assert gate.decide(TARGET).source == "local"


def test_an_old_mirror_goes_on_holding_and_says_stale_with_its_age() -> None:
    """With NATS gone the last known holds stand (Rule 5.3)."""
    sb = standalone()
    sb.hold(TARGET, for_s=600)
    sb._now_s += 10
    held, free = sb.decide(TARGET), sb.decide(Target("x.ai", "m"))
    assert (held.allowed, held.source, held.age_s) == (False, "stale", 10.0)
    assert (free.allowed, free.source, free.age_s) == (True, "stale", 10.0)


def test_the_cache_of_targets_is_bounded() -> None:
    """More targets than it keeps are learnt anew, and still answered."""
    sb = standalone()
    for n in range(KNOWN_MAX):
        sb.gate._keys[Target("x", f"m{n}")] = sb.gate._keys.get(TARGET) or ()  # type: ignore[assignment]
    assert sb.decide(TARGET).allowed
    assert len(sb.gate._keys) == 1


def test_a_hold_of_one_credential_leaves_the_others() -> None:
    """openrouter.ai#team-a and openrouter.ai#team-b are two credentials of one host."""
    sb = standalone()
    sb.hold("openrouter.ai#team-a", rule="credential")
    assert not sb.decide(Target("openrouter.ai#team-a", "m")).allowed
    assert sb.decide(Target("openrouter.ai#team-b", "m")).allowed
    assert sb.decide(Target("openrouter.ai", "m")).allowed


def test_every_change_of_a_target_reaches_the_next_decision() -> None:
    """What was found free is looked at anew after a hold of its model, credential or host, and after own outcomes."""
    sb = standalone()
    for what in (TARGET, "openrouter.ai", "openrouter.ai#"):
        for target in (TARGET, Target("openrouter.ai#", TARGET.model)):
            assert sb.decide(target).allowed and sb.decide(target).allowed
        sb.hold(what, rule="operator")
        assert not sb.decide(TARGET).allowed
        assert not sb.decide(Target("openrouter.ai#", TARGET.model)).allowed, "the same target by another spelling"
        sb.release(what)
        sb.advance(3_600)
    assert sb.decide(TARGET).allowed
    for _ in range(2):
        sb.record(TARGET, CallOutcome(kind="model_unavailable"))
    assert not sb.decide(TARGET).allowed


def test_a_hold_that_comes_while_another_thread_decides_is_not_missed() -> None:
    """Threads that ask while holds come and go never keep a stale `free` (the generation settles the race)."""
    sb = standalone()
    entry = hold_entry(TARGET, end_ms=sb.mirror.now_ms() + 5_000)
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            sb.decide(TARGET)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(3_000):
            sb.mirror.put(TARGET.key, entry)
            assert not sb.decide(TARGET).allowed
            sb.mirror.put(TARGET.key, None)
    finally:
        sys.setswitchinterval(before)
        stop.set()
        for thread in threads:
            thread.join()
