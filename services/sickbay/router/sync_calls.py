"""Calls and streams along a chain for code without an event loop, in the caller's own thread (SPEC 5.4).

A thread cannot be cancelled: the function has to give `attempt.limit_s` to its client as the timeout. One that takes
longer all the same gets its answer in, and leaves that much less to its successors.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

import msgspec

from sickbay_events import Target

from .attempt import Attempt
from .calls import Calls, WrongFunction
from .chain import NO_FALLBACK, CallOptions, CallResult, ChainLimits
from .errors import Held
from .failover import Failover, Pause, Try, cut_off, no_content
from .streams import KEPT_MAX, Streamed

T = TypeVar("T")


def call(
    calls: Calls,
    targets: Sequence[Target],
    attempt_fn: Callable[[Target, Attempt], T],
    fallback: Any = NO_FALLBACK,
    **options: Unpack[CallOptions],
) -> CallResult[T]:
    """One call; see `SyncSickbay.call`."""
    if (at_hand := options.get("at_hand")) is not None:
        return CallResult(value=at_hand, reason="at_hand")
    failover: Failover | None = None
    try:
        failover = calls.failover(targets, ChainLimits(**options))
        for step in steps(calls, failover):
            value = _attempt(calls, failover, step, attempt_fn)
            if failover.is_answered:
                calls.resorts.answered(step.target)
                return failover.answer(value)
    except Exception as error:  # noqa: BLE001 - optional work cannot raise
        return calls.failed(failover, error, fallback, options)
    answer: CallResult[T] = calls.end(failover, fallback)
    return answer


def steps(calls: Calls, failover: Failover) -> Iterator[Try]:
    """The attempts to be made, one after the other, with the waiting in between."""
    woken = threading.Event()
    waits = failover.limits.wait_s > 0
    with calls.releases.waiting(calls.named(failover.targets), woken.set) if waits else nullcontext():
        while (step := failover.next()) is not None:
            if isinstance(step, Pause):
                woken.wait(step.limit_s)
                woken.clear()
                continue
            try:
                yield step
            finally:
                failover.left(step)


def _attempt(calls: Calls, failover: Failover, step: Try, attempt_fn: Callable[[Target, Attempt], T]) -> Any:
    attempt = failover.attempt(calls.ward, step)
    failure: Exception | None = None
    value: T | None = None
    is_in = False
    try:
        with attempt:
            failover.began(step, attempt)
            is_in = True
            try:
                value = _plain(attempt_fn(step.target, attempt))
            except Exception as error:
                if attempt.has_content:
                    cut_off(attempt, error)
                raise
    except WrongFunction:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the next candidate may do better
        if not is_in and isinstance(error, Held):
            failover.held(step, error)
            return None
        failure = error
    failover.over(step, attempt, failure)
    return value


def _plain(value: T) -> T:
    if inspect.iscoroutine(value):
        value.close()
        raise WrongFunction(value, "a plain function (sickbay.connect has calls for async ones)")
    return value


class SyncStreamingAnswer(Streamed, Generic[T]):
    """The chunks of one candidate, and who that is. Made by `SyncSickbay.stream`; one thread at a time."""

    def __init__(
        self,
        calls: Calls,
        targets: Sequence[Target],
        stream_fn: Callable[[Target, Attempt], Iterable[T]],
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
        self._chunks: Iterator[T] | None = None
        self._attempt: Attempt | None = None
        self._is_begun = False

    def __enter__(self) -> Self:
        """Go along the chain to the first content. Raises `Exhausted`, unless there is a fallback."""
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, as `close()` does."""
        self.close()

    def __iter__(self) -> Iterator[T]:
        """The chunks."""
        return self

    def __next__(self) -> T:
        """The next chunk."""
        self._begin()
        if self._kept:
            return self._kept.popleft()
        if self._chunks is None:
            raise StopIteration
        try:
            return next(self._chunks)
        except StopIteration:
            self._leave(None)
            raise
        except BaseException as error:
            if self._attempt is not None:
                cut_off(self._attempt, error)
            self._leave(error)
            if self._fallback is NO_FALLBACK or not isinstance(error, Exception):
                raise
            self._cut(error)
            raise StopIteration from None

    def close(self) -> None:
        """Stop the stream, if it still runs: its caller's own choice, recorded as `cancelled`."""
        self._is_begun = True
        if self._chunks is not None:
            self._leave(asyncio.CancelledError())

    def _cut(self, error: Exception) -> None:
        assert self._course is not None
        self._course.reason = "truncated"
        self._calls.degraded(self._course.limits.route or "", "truncated", f"{type(error).__name__}: {error}")
        self.answer = self._course.fallback(None)

    def _begin(self) -> None:
        if self._is_begun:
            return
        self._is_begun = True
        if (at_hand := self._options.get("at_hand")) is not None:
            self._kept.append(at_hand)
            self.answer = CallResult(value=None, reason="at_hand")
            return
        try:
            failover = self._course = self._calls.failover(self._targets, ChainLimits(**self._options))
            for step in steps(self._calls, failover):
                self._try(failover, step)
                if failover.is_answered:
                    self._calls.resorts.answered(step.target)
                    self.answer = failover.answer(None)
                    return
        except Exception as error:  # noqa: BLE001 - optional work cannot raise
            self._fall_back(self._calls.failed(self._course, error, self._fallback, self._options))
            return
        self._fall_back(self._calls.end(failover, self._fallback))

    def _fall_back(self, answer: CallResult[Any]) -> None:
        self._kept.clear()
        if answer.value is not None:
            self._kept.append(answer.value)
        self.answer = msgspec.structs.replace(answer, value=None)

    def _try(self, failover: Failover, step: Try) -> None:
        attempt = failover.attempt(self._calls.ward, step)
        try:
            attempt.__enter__()
        except Held as held:
            failover.held(step, held)
            return
        failover.began(step, attempt)
        self._kept.clear()
        self._attempt = attempt
        failure: Exception | None = None
        try:
            self._chunks = iter(self._stream_fn(step.target, attempt))
            for chunk in self._chunks:
                self._kept.append(chunk)
                if self._is_content(chunk) or len(self._kept) > KEPT_MAX:
                    attempt.first_content()
                    failover.answering(step)
                    return
            no_content(attempt)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next candidate may do better
            failure = error
        except BaseException as error:
            self._leave(error)
            raise
        self._leave(failure)
        failover.over(step, attempt, failure)

    def _leave(self, error: BaseException | None) -> None:
        """The attempt is over."""
        chunks, self._chunks = self._chunks, None
        attempt, self._attempt = self._attempt, None
        try:
            if (close := getattr(chunks, "close", None)) is not None:
                close()
        finally:
            if attempt is not None:
                attempt.__exit__(type(error) if error is not None else None, error, None)
