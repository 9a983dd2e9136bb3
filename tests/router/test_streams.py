"""Streams along a chain (Rule 5.4): failover before the first content only, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable

import pytest

import sickbay
from sickbay import Attempt, CallOutcome, Exhausted, Target
from sickbay.router.streams import StreamingAnswer
from sickbay.testing import Standalone, standalone
from virtual_loop import virtual
from waiting import patience

A, B = Target("a.example", "m-a"), Target("b.example", "m-b")
Clock = Callable[[], float]


def outcomes(sb: Standalone) -> list[CallOutcome]:
    return [event for _, event in sb.recorded if isinstance(event, CallOutcome)]


async def words(target: Target, _attempt: Attempt) -> AsyncIterator[str]:
    for word in ("one", "two", "three"):
        yield f"{target.model} {word}"


def first_fails(error: Exception, *, after: tuple[str, ...] = ()) -> Callable[[Target, Attempt], AsyncIterator[str]]:
    async def stream_fn(target: Target, attempt: Attempt) -> AsyncIterator[str]:
        if target == A:
            for chunk in after:
                yield chunk
            raise error
        async for chunk in words(target, attempt):
            yield chunk

    return stream_fn


async def test_a_stream_comes_from_the_first_choice_and_says_so() -> None:
    sb = standalone()
    async with sb.stream([A, B], words, route="chat") as answer:
        assert (answer.provider, answer.model, answer.failed_over) == ("a.example", "m-a", False)
        assert [chunk async for chunk in answer] == ["m-a one", "m-a two", "m-a three"]
    (outcome,) = outcomes(sb)
    assert (outcome.kind, outcome.stream, outcome.route, outcome.checkable) == ("ok", True, "chat", False)
    assert outcome.ttft_ms is not None


async def test_a_plain_loop_does_too() -> None:
    sb = standalone()
    assert [chunk async for chunk in sb.stream([A], words)] == ["m-a one", "m-a two", "m-a three"]
    assert [o.kind for o in outcomes(sb)] == ["ok"]


@pytest.mark.parametrize("after", [(), ("", "")])
async def test_before_the_first_content_the_next_candidate_takes_over(after: tuple[str, ...]) -> None:
    """What is no content (an empty delta, a keep-alive) is kept back, and forgotten with the candidate."""
    sb = standalone()
    async with sb.stream([A, B], first_fails(ConnectionResetError(), after=after)) as answer:
        assert (answer.failed_over, answer.model) == (True, "m-b")
        assert [chunk async for chunk in answer] == ["m-b one", "m-b two", "m-b three"]
        assert [tried.kind for tried in answer.attempts] == ["network", "ok"]
    assert [(o.kind, o.rank) for o in outcomes(sb)] == [("network", 0), ("ok", 1)]


@pytest.mark.parametrize("error", [ConnectionResetError("cut"), TimeoutError("stalled")])
async def test_after_the_first_content_a_cut_is_recorded_as_truncated_and_raised(error: Exception) -> None:
    sb = standalone()
    got: list[str] = []
    with pytest.raises(type(error)):
        async with sb.stream([A, B], first_fails(error, after=("one", "two"))) as answer:
            async for chunk in answer:
                got.append(chunk)  # noqa: PERF401 - what came before the cut counts
    assert got == ["one", "two"]
    assert [(o.kind, o.rank) for o in outcomes(sb)] == [("truncated", 0)]


async def test_an_error_of_the_caller_s_own_after_the_first_content_blames_nobody() -> None:
    sb = standalone()
    with pytest.raises(KeyError):
        async with sb.stream([A, B], first_fails(KeyError("delta"), after=("one",))) as answer:
            _ = [chunk async for chunk in answer]
    assert [o.kind for o in outcomes(sb)] == ["unknown"]


async def test_a_stream_without_content_is_an_empty_answer() -> None:
    sb = standalone()

    async def stream_fn(target: Target, attempt: Attempt) -> AsyncIterator[str]:
        yield "" if target == A else "b"

    async with sb.stream([A, B], stream_fn) as answer:
        assert [chunk async for chunk in answer] == ["b"]
    assert [o.kind for o in outcomes(sb)] == ["empty_output", "ok"]


async def test_a_turn_with_tool_calls_is_an_answer_though_no_content_came() -> None:
    sb = standalone()

    async def stream_fn(target: Target, attempt: Attempt) -> AsyncIterator[dict[str, str]]:
        yield {"tool": "f"}
        attempt.output("", has_tool_calls=True)

    async with sb.stream([A, B], stream_fn, is_content=lambda chunk: "text" in chunk) as answer:
        assert [chunk async for chunk in answer] == [{"tool": "f"}]
        assert answer.model == "m-a"
    assert [(o.kind, o.checkable) for o in outcomes(sb)] == [("ok", False)]


def test_the_limit_holds_up_to_the_first_content_and_not_for_the_stream() -> None:
    async def test(sb: Standalone, clock: Clock) -> None:
        closed: list[str] = []

        async def stream_fn(target: Target, attempt: Attempt) -> AsyncIterator[str]:
            try:
                if target == A:
                    await asyncio.sleep(3600)
                for n in range(10):
                    yield str(n)
                    await asyncio.sleep(60)
            finally:
                closed.append(target.model)

        began_s = clock()
        async with sb.stream([A, B], stream_fn, budget_s=20, attempt_s=5) as answer:
            assert clock() - began_s == pytest.approx(5)
            assert closed == ["m-a"], "cancelled and awaited before the next began"
            assert [chunk async for chunk in answer] == [str(n) for n in range(10)]
        assert clock() - began_s == pytest.approx(605)
        assert [o.kind for o in outcomes(sb)] == ["timeout", "ok"]

    virtual(test)


async def test_leaving_in_mid_stream_closes_it_and_is_the_caller_s_own() -> None:
    sb = standalone()
    closed = asyncio.Event()

    async def stream_fn(target: Target, attempt: Attempt) -> AsyncIterator[str]:
        try:
            while True:
                yield "x"
        finally:
            closed.set()

    async with sb.stream([A], stream_fn) as answer:
        async for _ in answer:
            break
    assert closed.is_set()
    assert [o.kind for o in outcomes(sb)] == ["cancelled"]


async def test_a_stream_that_is_dropped_without_being_closed_is_ended_too() -> None:
    """A `break` out of a plain loop leaves no task and no connection behind, and an outcome is recorded."""
    sb = standalone()
    closed = asyncio.Event()

    async def stream_fn(target: Target, attempt: Attempt) -> AsyncIterator[str]:
        try:
            while True:
                yield "x"
        finally:
            closed.set()

    async def reads() -> None:
        async for _ in sb.stream([A], stream_fn):
            break

    await reads()
    gc.collect()
    await asyncio.wait_for(closed.wait(), patience(5))
    assert [o.kind for o in outcomes(sb)] == ["cancelled"]


async def test_cancelling_the_reader_closes_the_stream() -> None:
    sb = standalone()
    reading, closed = asyncio.Event(), asyncio.Event()

    async def stream_fn(target: Target, attempt: Attempt) -> AsyncIterator[str]:
        try:
            yield "x"
            reading.set()
            await asyncio.Event().wait()
        finally:
            closed.set()

    async def read() -> None:
        async for _ in sb.stream([A], stream_fn):
            pass

    task = asyncio.create_task(read())
    await reading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.is_set()
    assert [o.kind for o in outcomes(sb)] == ["cancelled"]


async def test_the_reader_sets_the_pace() -> None:
    """Not more than a chunk ahead: a provider's stream is not drawn into memory."""
    sb = standalone()
    made = 0

    async def stream_fn(target: Target, attempt: Attempt) -> AsyncIterator[str]:
        nonlocal made
        for _ in range(100):
            made += 1
            yield "x"

    async with sb.stream([A], stream_fn) as answer:
        await anext(answer)
        for _ in range(20):
            await asyncio.sleep(0)
        assert made <= 3


async def test_exhaustion_is_raised_on_entering_and_a_fallback_is_the_only_chunk() -> None:
    sb = standalone()
    fails = first_fails(ConnectionRefusedError())
    with pytest.raises(Exhausted):
        async with sb.stream([A], fails):
            raise AssertionError("not reached")
    async with sb.stream([A], fails, fallback="sorry", route="chat") as answer:
        assert [chunk async for chunk in answer] == ["sorry"]
        assert (answer.degraded, answer.reason) == (True, "failed")
    assert [chunk async for chunk in sb.stream([A], fails, fallback=None)] == []
    assert [chunk async for chunk in sb.stream([], fails, fallback="plain")] == ["plain"]
    assert sb.degradations == {("chat", "failed"): 1, ("", "failed"): 1}


async def test_optional_work_ends_at_a_cut_and_says_so() -> None:
    sb = standalone()
    answer: StreamingAnswer[str] = sb.stream([A, B], first_fails(ConnectionResetError(), after=("one",)), fallback="f")
    assert [chunk async for chunk in answer] == ["one"]
    assert (answer.degraded, answer.reason) == (True, "truncated")
    assert [o.kind for o in outcomes(sb)] == ["truncated"]


async def test_a_spent_budget_and_a_value_at_hand() -> None:
    sb = standalone()
    with sickbay.budget(0) as b:
        assert [chunk async for chunk in sb.stream([A], words, fallback="f")] == ["f"]
        assert [chunk async for chunk in sb.stream([A], words, at_hand="whole")] == ["whole"]
        assert b.skipped == 1
    assert sb.recorded == []


async def test_what_is_no_async_generator_is_named() -> None:
    sb = standalone()

    stream: StreamingAnswer[str] = sb.stream([A, B], lambda _target, _attempt: ["x"])  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="async"):
        await anext(stream)


def test_a_failing_is_content_leads_to_the_next_candidate() -> None:
    async def test(sb: Standalone, _clock: Clock) -> None:
        def is_content(chunk: str) -> bool:
            return bool({"one": 1}[chunk])

        async def stream_fn(target: Target, _attempt: Attempt) -> AsyncIterator[str]:
            yield "what is this" if target == A else "one"

        async with sb.stream([A, B], stream_fn, is_content=is_content) as answer:
            assert [chunk async for chunk in answer] == ["one"]
        assert [tried.kind for tried in answer.attempts] == ["unknown", "ok"]
        assert len(outcomes(sb)) == 2, "the failed attempt was left"

    virtual(test)
