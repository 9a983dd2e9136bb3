"""What a router's log says of holds and calls, line by line."""

from __future__ import annotations

import logging

import pytest

from sickbay.router.logs import LOADED_MAX, SAY_EVERY_S, CallLog, HoldLog, silence
from sickbay.throttled import KEYS_MAX
from sickbay_events import Decision, GateEntry, Target
from sickbay_events.view import HoldView
from view_writer import hold_entry, release_entry

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")
HELD = Decision(allowed=False, reason="quarantined", rule="quarantine", scope=TARGET.key, retry_in_s=12.5)


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "event", "") == event]


def holds(now_ms: int = 0, loaded: bool = True) -> HoldLog:
    return HoldLog(lambda: now_ms, lambda: loaded)


def test_a_hold_is_said_once_and_a_longer_end_of_it_not_again(caplog: pytest.LogCaptureFixture) -> None:
    """The name of a hold is the event that began it."""
    log = holds()
    first = hold_entry(TARGET, end_ms=60_000, seq=7)
    later = hold_entry(TARGET, end_ms=90_000, seq=7)
    log.changed(TARGET.key, None, first)
    log.changed(TARGET.key, first, later)
    (line,) = lines(caplog, "held")
    assert line.levelno == logging.WARNING and line.name == "sickbay"
    assert (
        line.getMessage()
        == "held openrouter.ai / z-ai/glm-5.3: quarantine, 2 model_unavailable, last status 404, 60.0 s"
    )
    assert (line.seconds, line.began_seq, line.enforced, line.scope) == (60.0, 7, True, TARGET.key)  # type: ignore[attr-defined]


def test_a_release_is_said_with_its_cause_and_an_end_by_time_is_not(caplog: pytest.LogCaptureFixture) -> None:
    """An entry without holds is a release; an entry that went away was over."""
    caplog.set_level(logging.INFO, logger="sickbay")
    log = holds()
    entry = hold_entry(TARGET, end_ms=60_000, seq=7)
    log.changed(TARGET.key, entry, None)
    assert not lines(caplog, "released")
    log.changed(TARGET.key, entry, release_entry(TARGET, seq=9))
    (line,) = lines(caplog, "released")
    assert line.levelno == logging.INFO
    assert line.getMessage() == "released openrouter.ai / z-ai/glm-5.3: quarantine, by success"


def test_an_operators_hold_is_said_with_actor_and_reason_and_shadow_as_shadow(caplog: pytest.LogCaptureFixture) -> None:
    """Who and why, and whether it denies anybody."""
    hold = HoldView(rule="operator", began_seq=3, end_ms=60_000, reason="maintenance", actor="ops", enforced=False)
    holds().changed("openrouter=2Eai", None, GateEntry(provider="openrouter.ai", scope="host", holds=[hold]))
    (line,) = lines(caplog, "held")
    assert "by ops: maintenance" in line.getMessage() and "(shadow" in line.getMessage()


def test_names_reasons_and_actors_are_shown_and_do_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A router's log goes to terminals and collectors that somebody else set up."""
    caplog.set_level(logging.INFO, logger="sickbay")
    nasty = Target("evil.example", "x\n2026-11-30 WARNING sickbay: released\x1b[8m\u202e")
    holds().changed(nasty.key, None, hold_entry(nasty, end_ms=60_000, seq=7))
    hold = HoldView(rule="operator", began_seq=3, end_ms=60_000, reason="a\r\nb", actor="\x9b31mana")
    holds().changed("k", None, GateEntry(provider="evil.example", scope="host", holds=[hold]))
    log = CallLog(lambda: 1000.0)
    log.skipped(nasty, HELD)
    log.failed_over(nasty, 1, "brief\u2066")
    log.degraded("brief\n", "held", "no\x07")
    assert len(caplog.records) == 5
    assert [record.getMessage() for record in caplog.records if not record.getMessage().isprintable()] == []
    assert caplog.records[2].model == nasty.model, "a field is data"  # type: ignore[attr-defined]


def test_a_hold_that_is_over_when_it_is_found_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    """A gate that starts does not warn of what ended before."""
    holds(now_ms=70_000).changed(TARGET.key, None, hold_entry(TARGET, end_ms=60_000))
    assert not caplog.records


def test_a_starting_gate_says_twenty_holds_and_the_number_of_all(caplog: pytest.LogCaptureFixture) -> None:
    """Twenty thousand entries are no twenty thousand lines."""
    log = holds(loaded=False)
    for n in range(500):
        target = Target("openrouter.ai", f"m{n}")
        log.changed(target.key, None, hold_entry(target, end_ms=60_000))
    log.loaded()
    assert len(lines(caplog, "held")) == LOADED_MAX
    (line,) = lines(caplog, "loaded")
    assert line.holds == 500  # type: ignore[attr-defined]


def test_skips_are_said_once_a_minute_with_the_count_between(caplog: pytest.LogCaptureFixture) -> None:
    """The first at once; a thousand more are one line a minute later."""
    caplog.set_level(logging.INFO, logger="sickbay")
    now_s = 1000.0
    log = CallLog(lambda: now_s)
    for _ in range(1001):
        log.skipped(TARGET, HELD)
    assert [line.count for line in lines(caplog, "skipped")] == [1]  # type: ignore[attr-defined]
    now_s += SAY_EVERY_S
    log.skipped(TARGET, HELD)
    assert [line.count for line in lines(caplog, "skipped")] == [1, 1001]  # type: ignore[attr-defined]
    log.skipped(TARGET, Decision(allowed=False, reason="throttled"))
    assert len(lines(caplog, "skipped")) == 3, "another reason is another line"


def test_what_was_said_is_remembered_within_a_bound() -> None:
    """Ten thousand targets do not grow it without end."""
    log = CallLog(lambda: 1000.0)
    for n in range(10_000):
        log.failed_over(Target("openrouter.ai", f"m{n}"), 1, "brief")
    assert len(log._lines._said) <= KEYS_MAX


def test_silence_adds_one_handler_however_often_it_is_called() -> None:
    """Without it the standard library would print warnings to stderr by itself."""
    silence()
    silence()
    for name in ("sickbay", "nats"):
        handlers = logging.getLogger(name).handlers
        assert sum(isinstance(handler, logging.NullHandler) for handler in handlers) == 1
