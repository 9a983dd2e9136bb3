"""What a router's code may do wrong on its request path: nothing but `Held` comes back at it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import sickbay
import sickbay.testing
from sickbay import CallOutcome, Target

NO_TARGETS: list[Any] = [
    None,
    "openrouter.ai/m",
    ("openrouter.ai", "m"),
    Target(None, "m"),  # type: ignore[arg-type]
    Target("p", None),  # type: ignore[arg-type]
    Target(["p"], "m"),  # type: ignore[arg-type]
    Target(b"p", b"m"),  # type: ignore[arg-type]
    Target("", ""),
    Target("#team-a", "m"),
    Target("p" * 300, "m"),
    Target("p", "\ud800"),
    Target("p\x00\r\n", "\x1b[31m"),
]


class Hostile:
    """Raises whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("target", NO_TARGETS, ids=repr)
async def test_what_is_no_target_is_let_pass_and_raises_nowhere(target: Any) -> None:
    """SPEC 1: asking about what is no target answers `allowed`, and every step of its attempt goes on."""
    for sb in (sickbay.testing.standalone(), sickbay.connect("nats://127.0.0.1:1", replica="r")):
        async with sb:
            assert sb.decide(target).allowed
            sb.record(target, CallOutcome(kind="ok"))
            with sb.attempt(target) as attempt:
                attempt.response(404, {"content-type": "application/json"}, b'{"error": {"message": "no such model"}}')
            async with sb.attempt(target) as attempt:
                attempt.error(ConnectionError())
                attempt.first_content()
            assert len(list(sb.usable([target]))) == 1


@pytest.mark.parametrize(
    "said",
    [(None, None, None), ("200", [("a", "b")], memoryview(b"{}")), (2**70, {1: 2}, b""), (Hostile(), Hostile(), b"")],
    ids=["none", "other types", "huge", "hostile"],
)
def test_an_answer_in_any_form_raises_nowhere(said: tuple[Any, Any, Any]) -> None:
    """`response` takes what a client of any sort hands over."""
    sb = sickbay.testing.standalone()
    with sb.attempt(Target("p", "m")) as attempt:
        attempt.response(*said)
    assert attempt.outcome is not None


def test_an_event_that_cannot_be_looked_at_is_rejected_not_raised() -> None:
    """`record` never raises, whatever stands in a field."""
    sb = sickbay.testing.standalone()
    sb.record(Target("p", "m"), CallOutcome(kind="ok", retry_after_s=Hostile()))  # type: ignore[arg-type]
    assert sb.recorded == []


def test_an_attempt_used_again_is_another_outcome() -> None:
    """What came the second time is not lost behind what came the first time."""
    sb = sickbay.testing.standalone()
    attempt = sb.attempt(Target("p", "m"))
    with attempt:
        attempt.ok(status=200)
        attempt.first_content()
    with attempt:
        attempt.response(500, {}, b"")
    first, second = [event for _, event in sb.recorded]
    assert isinstance(first, CallOutcome) and isinstance(second, CallOutcome)
    assert (first.kind, second.kind, second.status, second.ttft_ms) == ("ok", "server_error", 500, None)
    sb.hold(Target("p", "m"), for_s=1)
    sb.advance(1)
    for _ in range(2):  # its trial's lease ended with it, so that the next one gets it
        with attempt:
            assert attempt.trial
            attempt.error(asyncio.CancelledError())  # neutral: the trial told nothing and is wanted again
