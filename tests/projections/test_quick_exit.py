"""The quick exit of the loop is a shortcut: through every fold instead comes the same state, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest

from histories import history
from known_log import KnownLog
from sickbay_events.codec import decode_outcomes
from sickbay_projections import Fleet
from sickbay_projections import fold as fold_module
from sickbay_projections.rules import outcomes as outcomes_module


def both(monkeypatch: pytest.MonkeyPatch, fill: object) -> tuple[Fleet, Fleet]:
    """The same events with and without the shortcut."""
    quick = fill(Fleet())  # type: ignore[operator]
    with monkeypatch.context() as patched:
        patched.setattr(outcomes_module, "mark", lambda _: None)
        slow = fill(Fleet())  # type: ignore[operator]
    return quick, slow


@pytest.mark.parametrize("seed", range(6))
def test_a_history_of_everything(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Histories with every kind of event, steps of the clock, clears and policies."""
    told: list[list[object]] = []

    def fill(fleet: Fleet) -> Fleet:
        told.append([event for recorded in history(seed, 1_500) for event in fleet.apply(recorded)])
        return fleet

    quick, slow = both(monkeypatch, fill)
    assert told[0] == told[1] and quick.encode() == slow.encode()


def test_a_busy_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log like a fleet's: most events leave by the shortcut, in chunks of any size."""
    messages = list(KnownLog(12_000).messages())
    seqs, times_ms = [message[0] for message in messages], [message[1] for message in messages]
    subjects = [message[2] for message in messages]
    events = decode_outcomes([message[3] for message in messages])
    gone_through: list[int] = []

    def counted(*arguments: Any, **options: Any) -> None:
        gone_through[-1] += 1
        outcomes_module.fold_all(*arguments, **options)

    monkeypatch.setattr(fold_module, "fold_all", counted)

    def fill(fleet: Fleet) -> Fleet:
        gone_through.append(0)
        for at in range(0, len(seqs), 777):
            part = slice(at, at + 777)
            fleet.apply_many(subjects[part], events[part], seqs[part], times_ms[part])
        return fleet

    quick, slow = both(monkeypatch, fill)
    assert quick.encode() == slow.encode() and quick.digest() == slow.digest()
    assert gone_through[1] == 12_000 and gone_through[0] < 3_500, "the shortcut is taken by most"
