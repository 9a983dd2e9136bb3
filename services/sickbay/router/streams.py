"""Streams along a chain: another candidate takes over before the first content, never after it (Rule 5.4)."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable
from types import TracebackType
from typing import Any, Final, Generic, Literal, NamedTuple, Self, TypeVar

import msgspec

from sickbay_events import Skipped, Target

from . import joined
from .attempt import Attempt
from .calls import Abandoned, ChainCall, drive, end
from .chain import CallResult
from .errors import Tried
from .failover import Try, WrongFunction, cut_off, no_content, out_of_time
from .sdk_shapes import Speaker

T = TypeVar("T")

KEPT_MAX: Final = 1_000
"""Up to so many chunks without content are kept back; with more, the stream counts as begun."""


class Piece(NamedTuple):
    """What the attempt's own task hands over."""

    what: Literal["chunk", "end", "error"]
    value: Any = None


class Streamed(Generic[T]):
    """Which candidate streams, and what happened on the way.

    `answer` is a `CallResult` whose value is None. It is there from the first content on; a stream that was cut gets
    another one in the end.
    """

    def __init__(self, call: ChainCall, is_content: Callable[[T], object]) -> None:
        self.answer: CallResult[None] | None = None
        self._call, self._is_content = call, is_content
        self._kept: deque[T] = deque()
        """Chunks that came and were not passed on."""
        self._is_begun = self._is_read = False

    def _keep(self, chunk: T) -> bool:
        """Keep a chunk back; whether the stream has begun to answer with it."""
        self._kept.append(chunk)
        return bool(self._is_content(chunk)) or len(self._kept) > KEPT_MAX

    def _take_result(self, result: CallResult[Any]) -> None:
        """The chain gave this: a fallback or a value at hand is the only chunk."""
        if result.target is None:
            self._kept.clear()
            if result.value is not None:
                self._kept.append(result.value)
        self.answer = msgspec.structs.replace(result, value=None)

    @property
    def provider(self) -> str:
        """Which provider answers; empty for a fallback, and before the first content."""
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


class StreamingAnswer(Streamed[T]):
    """The chunks of the candidate that answers. Made by `Sickbay.stream`.

        async with sb.stream(chain, fn) as answer:      # raises Exhausted; here it is known which candidate answers
            async for chunk in answer: ...

    A plain `async for` does too, if it is run to its end.
    """

    def __init__(
        self,
        call: ChainCall,
        stream_fn: Callable[[Target, Attempt], AsyncIterable[T]],
        is_content: Callable[[T], object],
    ) -> None:
        super().__init__(call, is_content)
        self._stream_fn = stream_fn
        self._run: _Run | None = None

    async def __aenter__(self) -> Self:
        """Go along the chain to the first content. Raises `Exhausted`, unless there is a fallback."""
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, as `aclose()` does. Left before its first chunk was taken, it goes on: somebody else reads it, such as
        a web framework that streams it to its client."""
        if error is not None or self._is_read:
            await self.aclose()

    def __aiter__(self) -> AsyncIterator[T]:
        """The chunks."""
        return self

    async def __anext__(self) -> T:
        """The next chunk."""
        await self._begin()
        self._is_read = True
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
            cut_off(run.attempt, piece.value)
            run.leave(piece.value)
            self.answer = self._call.truncated(piece.value)
        else:
            run.leave(None)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop the stream, if it still runs: its caller's own choice, recorded as `cancelled`."""
        self._is_begun = True
        run, self._run = self._run, None
        if run is not None:
            await run.stop()
            run.leave(asyncio.CancelledError())

    # Up to the first content.

    async def _begin(self) -> None:
        if not self._is_begun:
            self._is_begun = True
            self._take_result(await drive(self._call, self._attempt))

    async def _attempt(self, step: Try) -> None:
        try:
            await step.attempt.__aenter__()
        except Exception as error:  # noqa: BLE001 - `Held`, as a rule; the step's failover tells them apart
            step.error = error
            return
        step.began()
        self._kept.clear()
        run = _Run(step.attempt)
        try:
            run.begin(self._stream_fn, step.target)
            joined.unbind(step.attempt)  # the reader's own calls are not part of it
            piece = await self._first(run, step)
        except BaseException as error:
            await run.stop()
            run.leave(error)
            if not isinstance(error, Exception):
                raise
            step.error = error
            return
        if piece.what == "chunk":
            step.attempt.first_content()
            self._run = run.watch(self)
            step.is_streaming = True
            return
        if piece.what == "end":
            no_content(step.attempt)
        step.error = piece.value
        run.leave(step.error)

    async def _first(self, run: _Run, step: Try) -> Piece:
        """What comes first: content, the end or an error. Raises `TimeoutError` at the step's limit."""
        try:
            async with asyncio.timeout(step.limit_s):
                while (piece := await run.queue.get()).what == "chunk" and not self._keep(piece.value):
                    pass
                return piece
        except TimeoutError:
            await run.stop()
            raise out_of_time(step) from None


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
    speaker = Speaker(attempt)
    try:
        iterator = _iterator(stream_fn(target, attempt))
        try:
            async for chunk in iterator:
                speaker.add(chunk)
                await queue.put(Piece("chunk", chunk))
            speaker.end()
        finally:
            if (close := getattr(iterator, "aclose", None)) is not None:
                await close()
    except Exception as error:  # noqa: BLE001 - the reading task judges it
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
    """The stream was dropped without being closed. Called in any thread, when the garbage collector runs."""

    def stop() -> None:
        task.cancel()
        error = asyncio.CancelledError()
        attempt.__exit__(type(error), error, None)

    loop = task.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(stop)
