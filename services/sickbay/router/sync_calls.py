"""Calls and streams along a chain for code without an event loop, in the caller's own thread (Rule 5.4).

A thread cannot be cancelled: the function has to give `attempt.limit_s` to its client as the timeout. One that takes
longer all the same gets its answer in, and leaves that much less to its successors.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from sickbay_events import Target

from .attempt import Attempt
from .calls import Calls, ChainCall, judge_value
from .chain import NO_FALLBACK, CallOptions, CallResult
from .failover import Try, Wait, WrongFunction, cut_off, no_content
from .joined import bound, unbind
from .sdk_shapes import Speaker
from .streams import Streamed

T = TypeVar("T")


def call(
    calls: Calls,
    targets: Sequence[Target],
    attempt_fn: Callable[[Target, Attempt], T],
    fallback: Any = NO_FALLBACK,
    **options: Unpack[CallOptions],
) -> CallResult[T]:
    """One call; see `SyncSickbay.call`."""

    def make(step: Try) -> None:
        try:
            with step.attempt:
                step.began()
                try:
                    step.value = _plain(attempt_fn(step.target, step.attempt))
                    judge_value(step)
                except Exception as error:
                    cut_off(step.attempt, error)
                    raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the next candidate may do better
            step.error = error

    return drive_in_thread(ChainCall(calls, targets, fallback, options), make)


def drive_in_thread(call: ChainCall, make: Callable[[Try], None]) -> CallResult[Any]:
    """Do the steps of a call in this thread. `make` makes one attempt."""
    woken = threading.Event()
    with closing(call.steps(woken.set)) as steps:
        for step in steps:
            if isinstance(step, Wait):
                woken.wait(step.limit_s)
                woken.clear()
            else:
                make(step)
    return call.result()


def _plain(value: T) -> T:
    if inspect.iscoroutine(value):
        value.close()
        raise WrongFunction(value, "a plain function (sickbay.connect has calls for async ones)")
    return value


class SyncStreamingAnswer(Streamed[T]):
    """The chunks of the candidate that answers. Made by `SyncSickbay.stream`; one thread at a time."""

    def __init__(
        self,
        call: ChainCall,
        stream_fn: Callable[[Target, Attempt], Iterable[T]],
        is_content: Callable[[T], object],
    ) -> None:
        super().__init__(call, is_content)
        self._stream_fn = stream_fn
        self._chunks: Iterator[T] | None = None
        self._attempt: Attempt | None = None
        self._speaker: Speaker | None = None
        self._dropped: weakref.finalize[Any, Any] | None = None

    def __enter__(self) -> Self:
        """Go along the chain to the first content. Raises `Exhausted`, unless there is a fallback."""
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, as `close()` does. Left before its first chunk was taken, it goes on: somebody else reads it."""
        if error is not None or self._is_read:
            self.close()

    def __iter__(self) -> Iterator[T]:
        """The chunks."""
        return self

    def __next__(self) -> T:
        """The next chunk."""
        self._begin()
        self._is_read = True
        if self._kept:
            return self._kept.popleft()
        if self._chunks is None:
            raise StopIteration
        assert self._attempt is not None and self._speaker is not None
        try:
            with bound(self._attempt):
                chunk = next(self._chunks)
        except StopIteration:
            self._speaker.end()
            self._leave(None)
            raise
        except BaseException as error:  # noqa: BLE001 - `truncated` raises it, or optional work ends there
            cut_off(self._attempt, error)
            self._leave(error)
            self.answer = self._call.truncated(error)
            raise StopIteration from None
        self._speaker.add(chunk)
        return chunk

    def close(self) -> None:
        """Stop the stream, if it still runs: its caller's own choice, recorded as `cancelled`."""
        self._is_begun = True
        if self._chunks is not None:
            self._leave(asyncio.CancelledError())

    def _begin(self) -> None:
        if not self._is_begun:
            self._is_begun = True
            self._take_result(drive_in_thread(self._call, self._make))

    def _make(self, step: Try) -> None:
        try:
            step.attempt.__enter__()
        except Exception as error:  # noqa: BLE001 - `Held`, as a rule; the step's failover tells them apart
            step.error = error
            return
        step.began()
        self._kept.clear()
        self._attempt, self._speaker = step.attempt, Speaker(step.attempt)
        try:
            self._chunks = iter(self._stream_fn(step.target, step.attempt))
            for chunk in self._chunks:
                self._speaker.add(chunk)
                if self._keep(chunk):
                    step.attempt.first_content()
                    step.is_streaming = True
                    unbind(step.attempt)  # the reader's own calls are not part of it
                    self._dropped = weakref.finalize(self, step.attempt.forget)
                    self._dropped.atexit = False
                    return
            self._speaker.end()
            no_content(step.attempt)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next candidate may do better
            step.error = error
        except BaseException as error:
            self._leave(error)
            raise
        self._leave(step.error)

    def _leave(self, error: BaseException | None) -> None:
        """The attempt is over."""
        chunks, self._chunks = self._chunks, None
        attempt, self._attempt = self._attempt, None
        if self._dropped is not None:
            self._dropped.detach()
        try:
            if (close := getattr(chunks, "close", None)) is not None:
                close()
        finally:
            if attempt is not None:
                attempt.__exit__(type(error) if error is not None else None, error, None)
