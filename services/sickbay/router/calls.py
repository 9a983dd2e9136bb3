"""Calls along a chain, in the event loop: each attempt a task of its own that is really cancelled (SPEC 5.4)."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Any, Final, Protocol, TypeVar, Unpack

from sickbay_events import Target

from .attempt import Attempt, AttemptHost
from .chain import NO_FALLBACK, CallOptions, CallResult, ChainLimits
from .chain_check import ChainCheck
from .errors import Held
from .failover import Failover, ForcedCallLimiter, Pause, Try, cut_off, out_of_time
from .gate import Gate
from .logs import CallLog
from .waiters import HoldWaiters, Wakeup

_log = logging.getLogger("sickbay.calls")

T = TypeVar("T")

GRACE_S: Final = 0.2
"""An attempt that was cancelled is waited for so long; one that does not heed it is left behind."""

_left_behind: Final[set[asyncio.Future[Any]]] = set()
"""What was cancelled and is not over; the loop itself would let it be collected."""


class CallHost(AttemptHost, Protocol):
    """What calls ask of their `Sickbay`, beside what an attempt asks."""

    @property
    def gate(self) -> Gate:
        """Who may be called."""
        ...


class Calls:
    """The calls of one `Sickbay`, whether in its loop or in threads.

    degradations   how often optional work took its fallback, by (route or feature, reason); for a budget once
    """

    def __init__(
        self, ward: CallHost, log: CallLog, resorts: ChainCheck, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.degradations: Counter[tuple[str, str]] = Counter()
        self.releases = HoldWaiters()
        self.ward, self.resorts = ward, resorts
        self._log, self._monotonic = log, monotonic
        self._forcing = ForcedCallLimiter(monotonic)
        ward.gate.on_touched = self.releases.changed

    def failover(self, targets: Sequence[Target], limits: ChainLimits) -> Failover:
        """The way of one call along its chain."""
        found = Failover(self.ward.gate, targets, limits, forcing=self._forcing, monotonic=self._monotonic)
        self.resorts.used(found.targets, limits.route)
        return found

    def named(self, targets: Sequence[Target]) -> list[Target]:
        """The targets as the log knows them."""
        return [self.ward.gate.target_of(target) for target in targets]

    async def call(
        self,
        targets: Sequence[Target],
        attempt_fn: Callable[[Target, Attempt], Awaitable[T]],
        fallback: Any = NO_FALLBACK,
        **options: Unpack[CallOptions],
    ) -> CallResult[T]:
        """One call; see `Sickbay.call`."""
        if (at_hand := options.get("at_hand")) is not None:
            return CallResult(value=at_hand, reason="at_hand")
        failover: Failover | None = None
        try:
            failover = self.failover(targets, ChainLimits(**options))
            answer = await self._run(failover, attempt_fn)
        except Exception as error:  # noqa: BLE001 - optional work cannot raise
            return self.failed(failover, error, fallback, options)
        return answer if answer is not None else self.end(failover, fallback)

    async def _run(
        self, failover: Failover, attempt_fn: Callable[[Target, Attempt], Awaitable[T]]
    ) -> CallResult[T] | None:
        alarm = Wakeup()
        waits = failover.limits.wait_s > 0
        with self.releases.waiting(self.named(failover.targets), alarm.ring) if waits else nullcontext():
            while (step := failover.next()) is not None:
                if isinstance(step, Pause):
                    await alarm.wait(step.limit_s)
                    continue
                try:
                    value = await self._attempt(failover, step, attempt_fn)
                finally:
                    failover.left(step)
                if failover.is_answered:
                    self.resorts.answered(step.target)
                    return failover.answer(value)
        return None

    async def _attempt(
        self, failover: Failover, step: Try, attempt_fn: Callable[[Target, Attempt], Awaitable[T]]
    ) -> Any:
        """Make the attempt of a step and tell the course; its value, if it gave one."""
        attempt = failover.attempt(self.ward, step)
        failure: BaseException | None = None
        value: T | None = None
        is_in = False
        try:
            async with attempt:
                failover.began(step, attempt)
                is_in = True
                value = await within_limit(attempt_fn(step.target, attempt), step, attempt)
        except WrongFunction:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the next candidate may do better
            if not is_in and isinstance(error, Held):
                failover.held(step, error)
                return None
            failure = error
        failover.over(step, attempt, failure)
        return value

    # How a call ends without an answer.

    def end(self, failover: Failover, fallback: Any) -> Any:
        """The fallback, or an exception that lists what was tried."""
        if fallback is NO_FALLBACK:
            if failover.reason == "truncated" and failover.error is not None:
                raise failover.error
            if failover.reason == "budget_spent" and (spent := failover.spent_budget()) is not None:
                spent.record_exhausted(cut=bool(failover.attempts))
            raise failover.exhausted() from failover.error
        answer = failover.fallback(fallback)
        if not answer.degraded:
            return answer
        name = failover.limits.route or ""
        if failover.reason == "budget_spent" and (spent := failover.spent_budget()) is not None:
            # One degradation for the stage: what it was, its budget says when it is left.
            if spent.record_exhausted(cut=bool(failover.attempts)):
                self.degradations[spent.feature or name, failover.reason] += 1
            return answer
        self.degraded(name, failover.reason, str(failover.exhausted()))
        return answer

    def failed(
        self, failover: Failover | None, error: Exception, fallback: Any, options: CallOptions
    ) -> CallResult[Any]:
        """The call itself was wrong: optional work takes its fallback all the same."""
        if fallback is NO_FALLBACK:
            raise error
        _log.error("an optional call could not be made", exc_info=error)
        self.degraded(str(options.get("route") or ""), "error", f"{type(error).__name__}: {error}")
        attempts = tuple(failover.attempts) if failover is not None else ()
        return CallResult(value=fallback, degraded=True, reason="error", attempts=attempts)

    def degraded(self, name: str, reason: str, text: str) -> None:
        """Optional work took its fallback."""
        self.degradations[name, reason] += 1
        self._log.degraded(name, reason, text)


class WrongFunction(TypeError):
    """A call in the event loop was given a plain function, or one in threads an async one. `got` says what it gave."""

    def __init__(self, got: object, accepted: str) -> None:
        self.got = type(got).__name__
        super().__init__(f"attempt_fn: it gave a {self.got}; accepted is {accepted}")


async def within_limit(work: Awaitable[T], step: Try, attempt: Attempt) -> T:
    """What `work` gives within the step's limit. Raises what it raised, or a `TimeoutError`; it is cancelled then, and
    when whoever awaits this is cancelled."""
    if not inspect.isawaitable(work):
        raise WrongFunction(work, "an async function (sickbay.sync takes plain ones)")
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,), timeout=step.limit_s)
    except asyncio.CancelledError:
        await end(task)
        raise
    if not task.done():
        await end(task)
        raise out_of_time(step, attempt)
    if task.cancelled():
        attempt.error(asyncio.CancelledError())
        raise Abandoned("the attempt was cancelled from within")
    error = task.exception()
    if error is not None:
        if attempt.has_content:
            cut_off(attempt, error)
        raise error
    return task.result()


class Abandoned(RuntimeError):
    """An attempt's function was cancelled by something of its own."""


async def end(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait for its end, but not for ever: who swallows a cancellation is left behind."""
    _left_behind.add(task)
    task.add_done_callback(_forget)
    task.cancel()
    await asyncio.wait((task,), timeout=GRACE_S)
    if not task.done():
        _log.warning(
            "an attempt did not heed its cancellation within %.1f s and is left behind", GRACE_S,
            extra={"event": "left_behind"},
        )  # fmt: skip


def _forget(task: asyncio.Future[Any]) -> None:
    _left_behind.discard(task)
    if not task.cancelled():
        task.exception()  # looked at, so that it is not said to be forgotten
