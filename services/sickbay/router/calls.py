"""Calls along a chain (Rule 5.4): what they share, and their driver for the event loop.

A `ChainCall` says step by step what has to be done. `drive` does it in the event loop, where each attempt is a task
of its own that is really cancelled; `sync_calls.drive_in_thread` does it in a thread.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import closing
from typing import Any, Final, TypeVar, Unpack

from sickbay_events import Target

from ..loggers import logger
from .attempt import Attempt
from .chain import NO_FALLBACK, CallOptions, CallResult, ChainLimits
from .chain_check import ChainCheck
from .failover import CallHost, Failover, Try, Wait, WrongFunction, cut_off, out_of_time
from .forced import ForcedCallLimiter
from .logs import CallLog
from .waiters import HoldWaiters, Wakeup

_log = logger("sickbay.calls")

T = TypeVar("T")

GRACE_S: Final = 0.2
"""How long a cancelled attempt is waited for; one that does not end by then is left behind."""

_left_behind: Final[set[asyncio.Future[Any]]] = set()
"""Tasks that were cancelled and have not ended; the loop itself would let them be collected."""


class Calls:
    """What the calls of one `Sickbay` share, whether they run in its loop or in threads.

    degradations   how often optional work took its fallback, by (route or feature, reason); for a budget once
    """

    def __init__(
        self, host: CallHost, log: CallLog, chain_check: ChainCheck, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.degradations: Counter[tuple[str, str]] = Counter()
        self.waiters = HoldWaiters()
        self.chain_check = chain_check
        self._host, self._log, self._monotonic = host, log, monotonic
        self._forced_calls = ForcedCallLimiter(monotonic)
        host.gate.on_touched = self.waiters.changed

    def failover(self, targets: Sequence[Target], limits: ChainLimits) -> Failover:
        """The failover of one call."""
        found = Failover(
            self._host,
            targets,
            limits,
            forced_calls=self._forced_calls,
            waiters=self.waiters,
            monotonic=self._monotonic,
        )
        self.chain_check.used(found.targets, limits.route)
        return found

    async def call(
        self,
        targets: Sequence[Target],
        attempt_fn: Callable[[Target, Attempt], Awaitable[T]],
        fallback: Any = NO_FALLBACK,
        **options: Unpack[CallOptions],
    ) -> CallResult[T]:
        """One call in the event loop; see `Sickbay.call`."""

        async def make(step: Try) -> None:
            try:
                async with step.attempt:
                    step.began()
                    step.value = await within_limit(attempt_fn(step.target, step.attempt), step)
                    judge_value(step)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next candidate may do better
                step.error = error

        return await drive(ChainCall(self, targets, fallback, options), make)

    def degraded(self, name: str, reason: str, text: str) -> None:
        """Optional work took its fallback."""
        self.degradations[name, reason] += 1
        self._log.degraded(name, reason, text)


class ChainCall:
    """One call or stream: a driver does its `steps`; then `result` says what came of them."""

    def __init__(self, calls: Calls, targets: Sequence[Target], fallback: Any, options: CallOptions) -> None:
        self._calls, self._targets, self._fallback, self._options = calls, targets, fallback, options
        self._failover: Failover | None = None
        self._failure: Exception | None = None
        """What was wrong with the call itself, such as an option."""

    def steps(self, wake: Callable[[], None]) -> Generator[Wait | Try, None, None]:
        """See `Failover.steps`; there are none for a value at hand."""
        if self._options.get("at_hand") is not None:
            return
        try:
            failover = self._failover = self._calls.failover(self._targets, ChainLimits(**self._options))
            yield from failover.steps(wake)
            if failover.is_answered:
                self._calls.chain_check.answered(failover.attempts[-1].target)
        except Exception as error:  # noqa: BLE001 - optional work cannot raise
            self._failure = error

    def result(self) -> CallResult[Any]:
        """The answer, the value at hand or the fallback. Raises what was wrong, or `Exhausted` with what was tried."""
        if (at_hand := self._options.get("at_hand")) is not None:
            return CallResult(value=at_hand, reason="at_hand")
        failover = self._failover
        if self._failure is not None:
            return self._failed(failover, self._failure)
        assert failover is not None
        return failover.answer() if failover.is_answered else self._unanswered(failover)

    def _unanswered(self, failover: Failover) -> CallResult[Any]:
        spent = failover.spent_budget() if failover.reason == "budget_spent" else None
        # A spent budget is one degradation for the whole stage, which the budget logs when it is left.
        is_first = spent is None or spent.record_exhausted(cut=bool(failover.attempts))
        if self._fallback is NO_FALLBACK:
            if failover.reason == "truncated" and failover.error is not None:
                raise failover.error
            raise failover.exhausted() from failover.error
        answer = failover.fallback(self._fallback)
        name = failover.limits.route or ""
        if spent is not None:
            if is_first:
                self._calls.degradations[spent.feature or name, failover.reason] += 1
        elif answer.degraded:
            self._calls.degraded(name, failover.reason, str(failover.exhausted()))
        return answer

    def _failed(self, failover: Failover | None, error: Exception) -> CallResult[Any]:
        if self._fallback is NO_FALLBACK:
            raise error
        _log.error("an optional call could not be made", exc_info=error)
        self._calls.degraded(str(self._options.get("route") or ""), "error", f"{type(error).__name__}: {error}")
        attempts = tuple(failover.attempts) if failover is not None else ()
        return CallResult(value=self._fallback, degraded=True, reason="error", attempts=attempts)

    def truncated(self, error: BaseException) -> CallResult[None]:
        """The stream broke after its first content: raises `error` if the answer is required."""
        if self._fallback is NO_FALLBACK or not isinstance(error, Exception):
            raise error
        failover = self._failover
        assert failover is not None
        failover.reason = "truncated"
        self._calls.degraded(failover.limits.route or "", failover.reason, f"{type(error).__name__}: {error}")
        return failover.fallback(None)


async def drive(call: ChainCall, make: Callable[[Try], Awaitable[None]]) -> CallResult[Any]:
    """Do the steps of a call in the event loop. `make` makes one attempt."""
    wakeup = Wakeup()
    with closing(call.steps(wakeup.ring)) as steps:
        for step in steps:
            if isinstance(step, Wait):
                await wakeup.wait(step.limit_s)
            else:
                await make(step)
    return call.result()


async def within_limit(work: Awaitable[T], step: Try) -> T:
    """What `work` gives within the step's limit. Raises what it raised, or a `TimeoutError` at the limit.

    `work` is cancelled at the limit, and when the awaiting task is cancelled.
    """
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
        raise out_of_time(step)
    if task.cancelled():
        step.attempt.error(asyncio.CancelledError())
        raise Abandoned("the attempt was cancelled from within")
    error = task.exception()
    if error is not None:
        cut_off(step.attempt, error)
        raise error
    return task.result()


def judge_value(step: Try) -> None:
    """A function that returned what an SDK gave it, and said nothing, has it judged."""
    attempt = step.attempt
    if attempt.verdict is None and not attempt.is_fed and not attempt.has_content:
        attempt.returned(step.value)


class Abandoned(RuntimeError):
    """An attempt's function was cancelled by something of its own."""


async def end(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait up to 0.2 s for its end; a task that swallows its cancellation is left behind."""
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
        task.exception()  # retrieved, so that asyncio does not log it as never retrieved
