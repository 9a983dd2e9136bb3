"""Chains, streams and budgets for code without an event loop (Rule 5.4), in the caller's own thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import sickbay
import sickbay.sync
from sickbay import Attempt, CallOutcome, Exhausted, Target
from sickbay.sync import SyncSickbay
from sickbay.testing import Standalone
from waiting import patience

A, B = Target("a.example", "m-a"), Target("b.example", "m-b")


@pytest.fixture
def made() -> Iterator[tuple[SyncSickbay, Standalone]]:
    """A facade over a gate without NATS."""
    sb = Standalone()
    facade = SyncSickbay(lambda: sb, 1.0)
    yield facade, sb
    facade.close()


def outcomes(sb: Standalone) -> list[CallOutcome]:
    return [event for _, event in sb.recorded if isinstance(event, CallOutcome)]


def test_a_call_goes_along_the_chain_in_this_thread(made: tuple[SyncSickbay, Standalone]) -> None:
    facade, sb = made
    threads: set[int] = set()

    def attempt_fn(target: Target, attempt: Attempt) -> str:
        threads.add(threading.get_ident())
        assert attempt.limit_s is not None
        assert attempt.limit_s <= 60
        if target == A:
            attempt.response(503, {}, b"")
        return target.model

    assert facade.usable([A, B]) == [A, B]
    answer = facade.call([A, B], attempt_fn, route="brief")
    assert (answer.value, answer.failed_over) == ("m-b", True)
    assert threads == {threading.get_ident()}
    assert [(o.status, o.rank, o.route) for o in outcomes(sb)] == [(503, 0, "brief"), (None, 1, "brief")]


def test_exhaustion_and_fallback(made: tuple[SyncSickbay, Standalone]) -> None:
    facade, _sb = made

    def fails(target: Target, attempt: Attempt) -> str:
        raise ConnectionRefusedError("nobody there")

    with pytest.raises(Exhausted) as caught:
        facade.call([A, B], fails)
    assert [tried.kind for tried in caught.value.attempts] == ["network", "network"]
    answer = facade.call([A, B], fails, fallback="f")
    assert (answer.value, answer.degraded, answer.reason) == ("f", True, "failed")
    assert facade.call([A], fails, fallback="f", budget_s=-1).reason == "error"
    with pytest.raises(ValueError, match="budget_s"):
        facade.call([A], fails, budget_s=-1)


def test_an_async_function_is_named(made: tuple[SyncSickbay, Standalone]) -> None:
    facade, _sb = made

    async def attempt_fn(target: Target, attempt: Attempt) -> str:
        return "x"

    with pytest.raises(TypeError, match="attempt_fn: it gave a coroutine; accepted is a plain function"):
        facade.call([A], attempt_fn)


def test_a_release_wakes_a_waiting_thread(made: tuple[SyncSickbay, Standalone]) -> None:
    facade, sb = made
    sb.hold(A)
    waiting = threading.Event()
    look = sb.gate.look

    def looked(target: Target) -> object:
        waiting.set()
        return look(target)

    sb.gate.look = looked  # type: ignore[method-assign, assignment]
    found: list[str] = []
    thread = threading.Thread(
        target=lambda: found.append(facade.call([A], lambda target, _attempt: target.model, wait_s=15).value)
    )
    thread.start()
    assert waiting.wait(patience(5))
    sb.release(A)
    thread.join(patience(5))
    assert found == ["m-a"]


def test_forced_and_its_bounds(made: tuple[SyncSickbay, Standalone]) -> None:
    facade, sb = made
    sb.hold(A, rule="breaker")
    assert facade.call([A], lambda target, _attempt: target.model, forced="one").forced
    with pytest.raises(Exhausted):
        facade.call([A], lambda target, _attempt: target.model, forced="one")
    assert [o.forced for o in outcomes(sb)] == [True]


def test_a_budget_holds_in_threads_too(made: tuple[SyncSickbay, Standalone]) -> None:
    facade, sb = made
    now_s = 0.0

    def attempt_fn(_target: Target, attempt: Attempt) -> str:
        nonlocal now_s
        assert attempt.limit_s is not None
        now_s += 0.3
        return "summary"

    with sickbay.budget(1, feature="summaries", monotonic=lambda: now_s) as b:
        answers = [facade.call([A], attempt_fn, fallback="") for _ in range(20)]
    # No thread can be cancelled: the fourth is over the budget by its own doing, and its value is at hand.
    assert [answer.degraded for answer in answers] == [False] * 4 + [True] * 16
    assert (b.calls, b.cut, b.skipped) == (4, 0, 16)
    assert sb.degradations == {("summaries", "budget_spent"): 1}


def test_a_stream_fails_over_before_its_first_content_only(made: tuple[SyncSickbay, Standalone]) -> None:
    facade, sb = made
    closed: list[str] = []

    def stream_fn(target: Target, attempt: Attempt) -> Iterator[str]:
        try:
            yield ""
            if target == A:
                raise ConnectionResetError
            yield "one"
            yield "two"
        finally:
            closed.append(target.model)

    with facade.stream([A, B], stream_fn) as answer:
        assert (answer.model, answer.failed_over, closed) == ("m-b", True, ["m-a"])
        assert list(answer) == ["", "one", "two"]
    with facade.stream([B], stream_fn) as answer:
        assert next(answer) == ""
    assert closed == ["m-a", "m-b", "m-b"]
    assert [o.kind for o in outcomes(sb)] == ["network", "ok", "cancelled"]


def test_a_cut_after_the_first_content_is_truncated_and_raised(made: tuple[SyncSickbay, Standalone]) -> None:
    facade, sb = made

    def stream_fn(target: Target, attempt: Attempt) -> Iterator[str]:
        yield "one"
        raise ConnectionResetError

    got: list[str] = []
    with pytest.raises(ConnectionResetError), facade.stream([A, B], stream_fn) as answer:
        got.extend(iter(answer))
    optional = facade.stream([A, B], stream_fn, fallback="f")
    assert list(optional) == ["one"]
    assert (optional.degraded, optional.reason) == (True, "truncated")
    assert list(facade.stream([], stream_fn, fallback="f")) == ["f"]
    assert [o.kind for o in outcomes(sb)] == ["truncated", "truncated"]
