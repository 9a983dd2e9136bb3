"""(gate entries, asked-at) -> Decision: what a gate and a fleet answer (Rule 5.1)."""

from __future__ import annotations

import pytest

from sickbay_events import Scope, Target
from sickbay_events.view import AllowView, GateEntry, HoldView
from sickbay_projections import Fleet, decide_entries
from sickbay_projections.decide import scope_key
from sickbay_projections.testing import Log, given

AT_MS = 1_700_000_000_000
TARGET = Target("openrouter.ai#team-a", "z-ai/glm-5.3")


def entry(scope: str, *holds: HoldView, allow: AllowView | None = None, cleared_seq: int | None = None) -> GateEntry:
    provider = "openrouter.ai" if scope == "host" else "openrouter.ai#team-a"
    model = "z-ai/glm-5.3" if scope == "model" else None
    return GateEntry(
        provider=provider,
        model=model,
        scope=scope,  # type: ignore[arg-type]
        holds=list(holds),
        allow=allow,
        cleared_seq=cleared_seq,
    )


def hold(rule: str, end_s: float, began_seq: int = 5, **fields: bool | int | str) -> HoldView:
    end_ms = AT_MS + round(end_s * 1000)
    over_ms = end_ms + 3_600_000
    return HoldView(rule=rule, began_seq=began_seq, end_ms=end_ms, over_ms=over_ms, **fields)  # type: ignore[arg-type]


def test_no_entry_means_allowed() -> None:
    decision = decide_entries((None, None, None), AT_MS, seq=7, age_s=0.5, source="stale")
    assert (decision.allowed, decision.reason, decision.scope, decision.rule) == (True, "ok", None, None)
    assert (decision.seq, decision.age_s, decision.source) == (7, 0.5, "stale")


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("quarantine", "quarantined"),
        ("throttle", "throttled"),
        ("breaker", "breaker_open"),
        ("degraded", "degraded"),
        ("credential", "credential"),
        ("operator", "held_by_operator"),
    ],
)
def test_each_rule_has_its_reason(rule: str, reason: str) -> None:
    decision = decide_entries((None, None, entry("model", hold(rule, 2.5))), AT_MS)
    assert (decision.allowed, decision.reason, decision.rule, decision.retry_in_s) == (False, reason, rule, 2.5)


def test_denied_until_the_last_end_over_scopes_and_rules() -> None:
    entries = (
        entry("host", hold("breaker", 20, 1)),
        entry("credential", hold("credential", 30, 2)),
        entry("model", hold("quarantine", 10, 3)),
    )
    decision = decide_entries(entries, AT_MS)
    assert (decision.rule, decision.began_seq, decision.retry_in_s) == ("credential", 2, 30.0)
    assert decision.scope == "openrouter=2Eai.team-a"


def test_at_equal_ends_the_widest_scope_is_named_first() -> None:
    entries = (entry("host", hold("breaker", 20, 1)), None, entry("model", hold("quarantine", 20, 3)))
    assert decide_entries(entries, AT_MS).scope == "openrouter=2Eai"


def test_on_probation_the_reason_is_ok_and_a_trial_is_wanted_until_its_end() -> None:
    entries = (None, None, entry("model", hold("quarantine", 0, proof=True)))
    for at_ms, trial in ((AT_MS, True), (AT_MS + 3_599_999, True), (AT_MS + 3_600_000, False)):
        decision = decide_entries(entries, at_ms)
        assert (decision.allowed, decision.reason, decision.trial, decision.retry_in_s) == (True, "ok", trial, 0.0)
    assert decide_entries(entries, AT_MS).began_seq == 5
    unproved = (None, None, entry("model", hold("throttle", 0)))
    assert not decide_entries(unproved, AT_MS).trial


def test_before_the_end_a_trial_needs_every_denying_hold_to_want_one() -> None:
    due, later = hold("breaker", 5, trial_from_ms=AT_MS), hold("quarantine", 9, trial_from_ms=AT_MS + 3000)
    both = (entry("host", due), None, entry("model", hold("quarantine", 9, trial_from_ms=AT_MS)))
    decision = decide_entries(both, AT_MS)
    assert (decision.allowed, decision.trial, decision.retry_in_s) == (False, True, 9.0)
    decision = decide_entries((entry("host", due), None, entry("model", later)), AT_MS)
    assert (decision.trial, decision.rule, decision.retry_in_s) == (False, "quarantine", 3.0)
    never = (entry("host", hold("credential", 5)), None, entry("model", later))
    decision = decide_entries(never, AT_MS + 4000)
    assert (decision.trial, decision.rule, decision.retry_in_s) == (False, "quarantine", 1.0)


def test_a_hold_on_one_word_is_on_probation_for_the_others() -> None:
    entries = (None, None, entry("model", hold("breaker", 9, proof=True, by="r1", trial_from_ms=AT_MS + 2000)))
    decision = decide_entries(entries, AT_MS, "r1")
    assert (decision.allowed, decision.trial, decision.retry_in_s) == (False, False, 2.0)
    decision = decide_entries(entries, AT_MS, "r2")
    assert (decision.allowed, decision.reason, decision.trial, decision.began_seq) == (True, "ok", True, 5)


def test_whose_trial_failed_last_waits_longer_where_another_could_try() -> None:
    entries = (None, None, entry("model", hold("breaker", 9, proof=True, last="r1", trial_from_ms=AT_MS, n=2)))
    for replica, replicas, trial, retry_in_s in (("r1", 2, False, 5.0), ("r1", 1, True, 9.0), ("r2", 2, True, 9.0)):
        decision = decide_entries(entries, AT_MS, replica, replicas=replicas)
        assert (decision.trial, decision.retry_in_s) == (trial, retry_in_s)


def test_a_hold_in_shadow_lets_pass() -> None:
    entries = (None, None, entry("model", hold("quarantine", 9, proof=True, enforced=False)))
    assert decide_entries(entries, AT_MS).allowed
    assert not decide_entries(entries, AT_MS + 10_000).trial


def test_what_is_older_than_a_wider_clear_is_void() -> None:
    allow = AllowView(seq=6, end_ms=AT_MS + 1000)
    model = entry("model", hold("quarantine", 9, 5), allow=allow)
    assert decide_entries((entry("host", cleared_seq=7), None, model), AT_MS).reason == "ok"
    assert decide_entries((entry("host", cleared_seq=4), None, model), AT_MS).reason == "allowed_by_operator"
    newer = entry("model", hold("quarantine", 9, 8))
    assert not decide_entries((entry("host", cleared_seq=7), None, newer), AT_MS).allowed


def test_no_target_is_answered_and_stored_nowhere() -> None:
    fleet = Fleet()
    for target in (Target("", "m"), Target("openrouter.ai", ""), Target("#alias", "m"), Target("h", "x" * 300)):
        decision = fleet.decide(target, AT_MS)
        assert (decision.allowed, decision.reason) == (True, "no_target")
    assert list(fleet.keys()) == []


@pytest.mark.parametrize(
    "target", [TARGET, Target("localhost:11434@box", "a b"), Target("x", "ü/ö"), Target("h#", "m")], ids=repr
)
def test_an_entry_names_its_scope_key(target: Target) -> None:
    log = Log(target)
    for scope in (target.scope, Scope(target.scope.host), Scope(target.scope.host, target.scope.alias)):
        story = given(log.override("hold", at_s=0, scope=scope, until_s=60))
        found = story.fleet.entry(scope.key)
        assert found is not None
        assert scope_key(found) == scope.key


def test_a_gate_with_the_entries_answers_like_the_fleet() -> None:
    """What the entries say is what the state says, at every moment of a history."""
    log = Log(TARGET)
    story = given()
    events = [
        log.outcome("model_unavailable", at_s=0),
        log.outcome("model_unavailable", at_s=1),
        log.override("allow", at_s=10, until_s=20, scope=Scope("openrouter.ai")),
        log.override("hold", at_s=30, until_s=900),
        log.override("clear", at_s=40, scope=Scope("openrouter.ai", "team-a")),
        log.outcome("ok", at_s=50, seen_seq=5),
        log.outcome("model_unavailable", at_s=60, seen_seq=5),
        log.outcome("model_unavailable", at_s=61, seen_seq=5),
        log.outcome("ok", at_s=700, seen_seq=8),
    ]
    view: dict[str, GateEntry] = {}
    for event in events:
        story.when(event)
        for key in story.fleet.take_changed():
            found = story.fleet.entry(key)
            assert found is not None
            view[key] = found
        for ahead_ms in (0, 1, 9_999, 10_000, 599_999, 600_000, 4_199_999, 4_200_000, 4_300_000):
            at_ms = event.time_ms + ahead_ms
            entries = [view.get(key) for key in TARGET.keys]
            gate = decide_entries(entries, at_ms, seq=story.fleet.seq)
            assert gate == story.fleet.decide(TARGET, at_ms), (event, ahead_ms)
