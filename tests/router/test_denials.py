"""Calls that holds kept away: counted each, told by target and rule, and what finds no room said once (Rule 2)."""

from __future__ import annotations

import logging

import pytest

from sickbay.router.denials import COUNTS_MAX, Denials
from sickbay_events import Target


def keep(refused: Denials, number: int, reason: str = "quarantined") -> None:
    refused.count_of(Target("x.test", f"m{number}"), "quarantine", reason).count += 1


def test_what_finds_no_room_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Beyond 10,000 targets and rules in one minute nothing is lost in silence; a minute later there is room again."""
    refused = Denials()
    for number in range(COUNTS_MAX):
        keep(refused, number)
    assert refused.unreported == 0 and not caplog.records
    for number in range(COUNTS_MAX, COUNTS_MAX + 3):
        keep(refused, number)
    keep(refused, 0)
    assert refused.unreported == 3
    said = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1 and "10000" in said[0].getMessage()
    taken = refused.take()
    assert len(taken) == COUNTS_MAX and sum(count for _, _, count, _ in taken) == COUNTS_MAX + 1
    assert refused.drop_idle()
    keep(refused, COUNTS_MAX)
    assert refused.take() == [(Target("x.test", f"m{COUNTS_MAX}"), "quarantine", 1, 0)]
    assert sum(refused.by_reason().values()) == COUNTS_MAX + 5 and len(caplog.records) == 1
