"""Streams along a chain: another candidate takes over before the first content, never after it (SPEC 5.4)."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Final, Generic, Literal, NamedTuple, Self, TypeVar

import msgspec

from sickbay_events import Skipped, Target

from .attempt import Attempt
from .calls import Abandoned, Calls, WrongFunction, end
from .chain import NO_FALLBACK, CallOptions, CallResult, ChainLimits
from .errors import Held, Tried
from .failover import Failover, Pause, Try, cut_off, no_content, out_of_time
from .waiters import Wakeup

T = TypeVar("T")

KEPT_MAX: Final = 1_000
"""So many pieces without content are kept back; with more, the stream counts as begun."""


class Piece(NamedTuple):
    """What the attempt's own task hands over."""

    what: Literal["chunk", "end", "error"]
    value: Any = None


class Streamed:
    """Who streams, and what happened on the way: `answer` is an `CallResult` whose value is None, known from the first
    content on (and of a stream that was cut, in the end)."""

    def __init__(self) -> None:
        self.answer: CallResult[None] | None = None

    @property
    def provider(self) -> str:
        """Who answers; empty for a fallback, and before the first content."""
        return self.answer.provider if self.answer is not None else ""

    @property
    def model(self) -> str:
        """Which model answers; empty for a fallback, and before the first content."""
        return self.answer.model if self.answer is not None else ""

    @property
    def failed_over(self) -> bool:
        """Whether it is not the first choice that answers."""
        return self.answer is not None and self.answer.failed_over

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Candidates passed over, with why."""
        return self.answer.skipped if self.answer is not None else ()

    @property
    def attempts(self) -> tuple[Tried, ...]:
        """A `Tried` for each candidate that failed before the first content."""
        return self.answer.attempts if self.answer is not None else ()

    @property
    def degraded(self) -> bool:
        """Whether there is no stream but the fallback, or one that was cut and has a fallback."""
        return self.answer is not None and self.answer.degraded

    @property
    def reason(self) -> str:
        """Why it is degraded: a word of `Reason`."""
        return self.answer.reason if self.answer is not None else ""


class StreamingAnswer(Streamed, Generic[T]):
    """The chunks of one candidate, and who that is. Made by `Sickbay.stream`.

        async with sb.stream(chain, fn) as answer:      # raises Exhausted; here it is known who answers
            async for chunk in answer: ...

    A plain `async for` does too, if it is run to its end.
    """

    def __init__(
        self,
        calls: Calls,
        targets: Sequence[Target],
        stream_fn: Callable[[Target, Attempt], AsyncIterable[T]],
        *,
        fallback: Any,
        is_content: Callable[[T], object],
        options: CallOptions,
    ) -> None:
        super().__init__()
        self._calls, self._targets, self._stream_fn = calls, targets, stream_fn
        self._fallback, self._is_content, self._options = fallback, is_content, options
        self._course: Failover | None = None
        self._kept: deque[T] = deque()
        self._run: _Run | None = None
        self._is_begun = False

    async def __aenter__(self) -> Self:
        """Go along the chain to the first content. Raises `Exhausted`, unless there is a fallback."""
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, as `aclose()` does."""
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[T]:
        """The chunks."""
        return self

    async def __anext__(self) -> T:
        """The next chunk."""
        if not self._is_begun:
            await self._begin()
        if self._kept:
            return self._kept.popleft()
        run = self._run
        if run is None:
            raise StopAsyncIteration
        try:
            piece = await run.queue.get()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if piece.what == "chunk":
            chunk: T = piece.value
            return chunk
        self._run = None
        if piece.what == "error":
            self._cut(run, piece.value)
        run.leave(None)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop the stream, if it still runs: its caller's own choice, recorded as `cancelled`."""
        self._is_begun = True
        run, self._run = self._run, None
        if run is not None:
            await run.stop()
            run.leave(asyncio.CancelledError())

    def _cut(self, run: _Run, error: BaseException) -> None:
        """It broke after its first content. Optional work ends there, else the caller is told."""
        cut_off(run.attempt, error)
        run.leave(error)
        if self._fallback is NO_FALLBACK:
            raise error
        assert self._course is not None
        failover, self._course.reason = self._course, "truncated"
        self._calls.degraded(failover.limits.route or "", "truncated", f"{type(error).__name__}: {error}")
        self.answer = failover.fallback(None)
        raise StopAsyncIteration

    # Up to the first content.

    async def _begin(self) -> None:
        if self._is_begun:
            return
        self._is_begun = True
        if (at_hand := self._options.get("at_hand")) is not None:
            self._kept.append(at_hand)
            self.answer = CallResult(value=None, reason="at_hand")
            return
        try:
            self._course = self._calls.failover(self._targets, ChainLimits(**self._options))
            await self._go(self._course)
        except Exception as error:  # noqa: BLE001 - optional work cannot raise
            self._fall_back(self._calls.failed(self._course, error, self._fallback, self._options))
            return
        if self.answer is None:
            self._fall_back(self._calls.end(self._course, self._fallback))

    def _fall_back(self, answer: CallResult[Any]) -> None:
        self._kept.clear()
        if answer.value is not None:
            self._kept.append(answer.value)
        self.answer = msgspec.structs.replace(answer, value=None)

    async def _go(self, failover: Failover) -> None:
        alarm = Wakeup()
        with self._calls.releases.waiting(self._calls.named(failover.targets), alarm.ring):
            while (step := failover.next()) is not None:
                if isinstance(step, Pause):
                    await alarm.wait(step.limit_s)
                    continue
                try:
                    await self._attempt(failover, step)
                finally:
                    failover.left(step)

    async def _attempt(self, failover: Failover, step: Try) -> None:
        attempt = failover.attempt(self._calls.ward, step)
        try:
            await attempt.__aenter__()
        except Held as held:
            failover.held(step, held)
            return
        failover.began(step, attempt)
        self._kept.clear()
        run = _Run(attempt)
        try:
            piece = await self._first(run, step)
        except asyncio.CancelledError as error:
            await run.stop()
            run.leave(error)
            raise
        if piece is not None and piece.what == "chunk":
            attempt.first_content()
            self._run = run.watch(self)
            failover.answering(step)
        else:
            self._ended(failover, run, piece, step)
        if failover.is_answered:
            self._calls.resorts.answered(step.target)
            self.answer = failover.answer(None)

    async def _first(self, run: _Run, step: Try) -> Piece | None:
        """What comes first: content, the end or an error; None if the time was over before."""
        run.begin(self._stream_fn, step.target)
        try:
            async with asyncio.timeout(step.limit_s):
                while (piece := await run.queue.get()).what == "chunk":
                    self._kept.append(piece.value)
                    if self._is_content(piece.value) or len(self._kept) > KEPT_MAX:
                        break
                return piece
        except TimeoutError:
            await run.stop()
            return None

    def _ended(self, failover: Failover, run: _Run, piece: Piece | None, step: Try) -> None:
        """It ended, broke or took too long before its first content."""
        error: BaseException | None = None
        if piece is None:
            error = out_of_time(step, run.attempt)
        elif piece.what == "error":
            error = piece.value
        else:
            no_content(run.attempt)
        run.leave(error)
        if isinstance(error, WrongFunction):
            raise error
        failover.over(step, run.attempt, error)


class _Run:
    """One candidate's stream: read in a task of its own, which is never more than one chunk ahead."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.queue: asyncio.Queue[Piece] = asyncio.Queue(1)
        self._task: asyncio.Task[None] | None = None
        self._dropped: weakref.finalize[Any, Any] | None = None

    def begin(self, stream_fn: Callable[[Target, Attempt], AsyncIterable[Any]], target: Target) -> None:
        """Begin to read."""
        self._task = asyncio.get_running_loop().create_task(_read(stream_fn, target, self.attempt, self.queue))

    async def stop(self) -> None:
        """Cancel it and wait for its end, but not for ever."""
        if self._task is not None and not self._task.done():
            await end(self._task)

    def watch(self, answer: StreamingAnswer[Any]) -> Self:
        """Stop also when the answer is dropped in mid-stream without being closed."""
        assert self._task is not None
        self._dropped = weakref.finalize(answer, _drop, self._task, self.attempt)
        self._dropped.atexit = False
        return self

    def leave(self, error: BaseException | None) -> None:
        """The attempt is over."""
        if self._dropped is not None:
            self._dropped.detach()
        self.attempt.__exit__(type(error) if error is not None else None, error, None)


async def _read(
    stream_fn: Callable[[Target, Attempt], AsyncIterable[Any]],
    target: Target,
    attempt: Attempt,
    queue: asyncio.Queue[Piece],
) -> None:
    try:
        iterator = _iterator(stream_fn(target, attempt))
        try:
            async for chunk in iterator:
                await queue.put(Piece("chunk", chunk))
        finally:
            if (close := getattr(iterator, "aclose", None)) is not None:
                await close()
    except Exception as error:  # noqa: BLE001 - it is the reader's to judge
        await queue.put(Piece("error", error))
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        attempt.error(error)
        await queue.put(Piece("error", Abandoned("the attempt was cancelled from within")))
    else:
        await queue.put(Piece("end"))


def _iterator(chunks: AsyncIterable[T]) -> AsyncIterator[T]:
    if not isinstance(chunks, AsyncIterable):
        raise WrongFunction(chunks, "an async generator (sickbay.sync takes plain ones)")
    return aiter(chunks)


def _drop(task: asyncio.Task[None], attempt: Attempt) -> None:
    """Nobody reads any more. May be called in any thread, whenever the collector runs."""

    def stop() -> None:
        task.cancel()
        error = asyncio.CancelledError()
        attempt.__exit__(type(error), error, None)

    loop = task.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(stop)
