"""Hooks: they are told of every decision and attempt, in order, and cannot harm a call."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import sickbay
from sickbay import Attempt, Decision, Held, Hook, Target
from sickbay.testing import Standalone, standalone

A, B = Target("a.example", "m-a"), Target("b.example", "m-b")


class Notes(Hook):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def decided(self, target: Target, decision: Decision, took_s: float) -> None:
        assert 0 <= took_s < 60
        self.lines.append(f"decided {target.model} {decision.reason}")

    def entering(self, attempt: Attempt) -> None:
        self.lines.append(f"entering {attempt.target.model}")

    def not_entered(self, attempt: Attempt, error: BaseException) -> None:
        self.lines.append(f"not entered {attempt.target.model} {type(error).__name__}")

    def first_content(self, attempt: Attempt) -> None:
        self.lines.append(f"first content {attempt.target.model}")

    def left(self, attempt: Attempt) -> None:
        assert attempt.outcome is not None
        self.lines.append(f"left {attempt.target.model} {attempt.outcome.kind}")


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def sb(notes: Notes) -> Standalone:
    return standalone(hooks=[notes])


def test_a_decision_and_an_attempt_are_told_in_order(sb: Standalone, notes: Notes) -> None:
    sb.decide(A)
    sb.usable([B])
    with sb.attempt(A) as attempt:
        attempt.response(503, {}, b"")
    assert notes.lines == ["decided m-a ok", "decided m-b ok", "entering m-a", "decided m-a ok", "left m-a overloaded"]


async def test_an_attempt_of_a_held_target_is_not_entered(sb: Standalone, notes: Notes) -> None:
    sb.hold(A)
    with pytest.raises(Held), sb.attempt(A):
        pass
    with pytest.raises(Held):
        async with sb.attempt(A):
            pass
    assert notes.lines == ["entering m-a", "decided m-a quarantined", "not entered m-a Held"] * 2


async def test_calls_and_streams_are_attempts_too(sb: Standalone, notes: Notes) -> None:
    async def chunks(target: Target, _attempt: Attempt) -> AsyncIterator[str]:
        if target == A:
            raise ConnectionRefusedError
        for chunk in ("", "one", "two"):
            yield chunk

    async with sb.stream([A, B], chunks) as answer:
        assert [chunk async for chunk in answer] == ["", "one", "two"]
    assert [line for line in notes.lines if not line.startswith("decided")] == [
        "entering m-a", "left m-a network", "entering m-b", "first content m-b", "left m-b ok"
    ]  # fmt: skip


def test_a_hook_that_fails_harms_no_call_and_no_other_hook(caplog: pytest.LogCaptureFixture) -> None:
    """Each failure is logged once."""

    class Broken(Hook):
        def decided(self, target: Target, decision: Decision, took_s: float) -> None:
            raise RuntimeError("no decision for me")

        def left(self, attempt: Attempt) -> None:
            raise RuntimeError("never left")

    notes = Notes()
    sb = standalone(hooks=[Broken(), notes])
    for _ in range(3):
        with sb.attempt(A) as attempt:
            attempt.ok()
    assert [event.kind for _, event in sb.recorded if isinstance(event, sickbay.CallOutcome)] == ["ok"] * 3
    assert notes.lines == ["entering m-a", "decided m-a ok", "left m-a ok"] * 3
    said = [record.getMessage().rpartition(": ")[2] for record in caplog.records if record.name == "sickbay.hooks"]
    assert said == ["no decision for me", "never left"]
