"""One call along its chain: which candidate to try next, for how long, and what came of it (Rule 5.4).

A `Failover` decides; it neither waits nor calls. It yields what has to be done, and one of two drivers does it:
`calls.drive` in the event loop, `sync_calls.drive_in_thread` in the caller's thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from sickbay_events import Decision, Skipped, Target, Verdict
from sickbay_events.classify.held_answer import is_held_verdict
from sickbay_events.redact import redact

from .attempt import Attempt
from .attempt_host import AttemptHost, AttemptOptions
from .budget import Budget, entered
from .chain import CallResult, ChainLimits
from .errors import Exhausted, Held, Reason, Tried
from .faults import fault_of
from .forced import ForcedCallLimiter, badness
from .gate import Gate
from .waiters import HoldWaiters

TARGETS_MAX: Final = 64
WAIT_S_MIN: Final = 0.001


class CallHost(AttemptHost, Protocol):
    """What a call asks of its `Sickbay`, beside what an attempt asks."""

    @property
    def gate(self) -> Gate:
        """The decisions of this replica."""
        ...


class WrongFunction(TypeError):
    """A call in the event loop got a plain function, or a call in a thread an async one. `got` is the type that the
    function returned."""

    def __init__(self, got: object, accepted: str) -> None:
        self.got = type(got).__name__
        super().__init__(f"attempt_fn: it gave a {self.got}; accepted is {accepted}")


class Wait(NamedTuple):
    """A step: wait until a candidate changes, and at most `limit_s` seconds."""

    limit_s: float


class Try(msgspec.Struct, kw_only=True):
    """A step: make one attempt.

    The driver enters `attempt`, calls `began`, and works for at most `limit_s` seconds. Before the next step it sets
    `value`, `error` or, in a stream, `is_streaming`.
    """

    target: Target
    rank: int
    limit_s: float
    """The attempt's share of the time, in seconds."""
    has_full_share: bool
    """Whether that is as much as the chain promises each attempt; False if waiting or a budget took some of it."""
    forced: bool
    attempt: Attempt
    failover: Failover
    value: Any = None
    error: Exception | None = None
    """What entering the attempt or the work in it raised."""
    is_streaming: bool = False
    """The first content of a stream came: this candidate answers, and the attempt goes on after the step."""
    has_begun: bool = False

    def began(self) -> None:
        """The attempt was entered, and its request follows."""
        self.has_begun = True
        self.failover.began(self)


class _Passed(NamedTuple):
    """Why a candidate was passed over."""

    decision: Decision
    again_s: float
    """Monotonic time from which it is worth asking again, whatever else happens."""


def share_s(rest_s: float, attempt_s: float, candidates: int) -> float:
    """The time for one attempt: an equal share of the time left, at most `attempt_s`.

    rest_s       what is left of the chain's time
    candidates   how many may be called now, this one included
    """
    return min(attempt_s, rest_s / candidates)


class Failover:
    """One call along its chain. After its `steps`, `is_answered` says whether there is an answer; if not, `reason`
    says why. Raises `ValueError` for targets that are not accepted."""

    def __init__(
        self,
        host: CallHost,
        targets: Sequence[Target],
        limits: ChainLimits,
        *,
        forced_calls: ForcedCallLimiter,
        waiters: HoldWaiters,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.targets, self.limits = tuple(targets), limits
        if len(self.targets) > TARGETS_MAX or not all(isinstance(target, Target) for target in self.targets):
            raise ValueError(f"targets: accepted are up to {TARGETS_MAX} of `sickbay.Target`")
        self.attempts: list[Tried] = []
        self.error: BaseException | None = None
        """What the last attempt raised."""
        self.reason: Reason = "no_chain"
        self.is_answered = False
        self._host, self._gate, self._monotonic = host, host.gate, monotonic
        self._forced_calls, self._waiters = forced_calls, waiters
        self._value: Any = None
        self._budgets: tuple[Budget, ...] = entered()
        self._began_s = monotonic()
        self._todo = deque(range(len(self.targets)))
        self._passed: dict[int, _Passed] = {}
        self._denied: dict[int, Decision] = {}
        """By rank: a denial that the gate has counted. One call counts at most once as kept from a target."""
        self._wait_until_s: float | None = None
        self._was_forced = False

    # The steps.

    def steps(self, wake: Callable[[], None]) -> Generator[Wait | Try, None, None]:
        """What the driver has to do, one step after the other. To be closed if the driver stops earlier.

        `wake` is called, in any thread, at each change of a candidate: it ends a `Wait`.
        """
        named = [self._gate.target_of(target) for target in self.targets] if self.limits.wait_s else []
        with self._waiters.waiting(named, wake) if named else nullcontext():
            while (step := self._next()) is not None:
                if isinstance(step, Wait):
                    yield step
                    continue
                try:
                    yield step
                    self._settle(step)
                finally:
                    if step.forced:
                        self._forced_calls.release()

    def _next(self) -> Wait | Try | None:
        """The next step; None when the call is over."""
        if not self.targets or self.is_answered or self.reason == "truncated":
            return None
        rest_s = self._rest_s()
        if rest_s <= 0:
            why: Reason = "out_of_time" if self._todo else "failed" if self.attempts else "nothing_allowed"
            self.reason = "budget_spent" if self.spent_budget() is not None else why
            return None
        if not self._todo and self._wait_until_s is not None:
            self._ask_again()
        if self._todo:
            return self._try(self._todo.popleft(), rest_s)
        step = self._wait(rest_s) or self._force(rest_s)
        if step is None:
            self.reason = "failed" if self.attempts else "nothing_allowed"
        return step

    def _rest_s(self) -> float:
        """Seconds left of the chain's own time and of the budgets around it."""
        own_s = self.limits.budget_s - (self._monotonic() - self._began_s)
        return min([own_s, *(budget.rest_s for budget in self._budgets)])

    def _try(self, rank: int, rest_s: float, *, forced: bool = False) -> Try:
        self._passed.pop(rank, None)
        limits, target = self.limits, self.targets[rank]
        later = 0 if forced else sum(self._gate.look(self.targets[at]).decision.allowed for at in self._todo)
        limit_s = share_s(rest_s, limits.attempt_s, 1 + later)
        full_s = share_s(limits.budget_s, limits.attempt_s, len(self.targets))
        options = AttemptOptions(
            limit_s=limit_s,
            route=limits.route,
            rank=rank,
            prompt_ascii=limits.prompt_ascii,
            client_capped=limits.client_capped,
            request_hash=limits.request_hash,
            skipped=self.skipped() or None,
            forced=forced,
            keep_text=True,
        )
        return Try(
            target=target,
            rank=rank,
            limit_s=limit_s,
            has_full_share=limit_s >= full_s * 0.99,
            forced=forced,
            attempt=Attempt(self._host, target, options),
            failover=self,
        )

    def _ask_again(self) -> None:
        """Put candidates that were held and may be allowed by now in line again, in their order."""
        now_s = self._monotonic()
        for rank in sorted(self._passed):
            before, again_s = self._passed[rank]
            decision = self._gate.look(self.targets[rank]).decision
            # Another caller's trial may end at any time, and no decision tells when: it has to be asked for.
            is_news = decision.allowed and not (decision.trial and before.reason == "trial_taken")
            if is_news or now_s >= again_s:
                self._todo.append(rank)

    def _wait(self, rest_s: float) -> Wait | None:
        if not self._passed or not self.limits.wait_s:
            return None
        now_s = self._monotonic()
        if self._wait_until_s is None:
            self._wait_until_s = now_s + self.limits.wait_s
        left_s = min(self._wait_until_s - now_s, rest_s)
        if left_s <= 0:
            return None
        moments = [
            min(passed.again_s - now_s, self._gate.look(self.targets[rank]).stands_s)
            for rank, passed in self._passed.items()
        ]
        return Wait(max(WAIT_S_MIN, min(left_s, *moments)))

    def _force(self, rest_s: float) -> Try | None:
        if self.limits.forced != "one" or self.attempts or self._was_forced:
            return None
        found: list[tuple[int, float, int]] = []
        for rank, passed in self._passed.items():
            bad = badness(passed.decision, self._gate.look(self.targets[rank]))
            if bad is not None:
                found.append((bad, passed.decision.retry_in_s, rank))
        if not found or not self._forced_calls.acquire():
            return None
        self._was_forced = True
        return self._try(min(found)[2], rest_s, forced=True)

    # What came of a step.

    def began(self, step: Try) -> None:
        """The attempt of a step was entered; the call's first one counts in the budgets around it."""
        if not self.attempts:
            for budget in self._budgets:
                budget.called()
        self._uncount_denial(step)
        if step.forced and step.attempt.decision is not None and not step.attempt.decision.allowed:
            self._gate.uncount_denial(step.target, step.attempt.decision)

    def _uncount_denial(self, step: Try) -> None:
        if (before := self._denied.pop(step.rank, None)) is not None:
            self._gate.uncount_denial(step.target, before)

    def _settle(self, step: Try) -> None:
        error = step.error
        if isinstance(error, WrongFunction):
            raise error
        if step.is_streaming:
            self.is_answered = True
            self.attempts.append(
                Tried(target=step.target, rank=step.rank, kind="ok", limit_s=step.limit_s, forced=step.forced)
            )
        elif isinstance(error, Held) and not step.has_begun:
            self._uncount_denial(step)
            self._denied[step.rank] = error.decision
            self._pass_over(step, error.decision)
        elif step.attempt.verdict is not None and is_held_verdict(step.attempt.verdict):
            # Another Sickbay on the way refused it: nobody was called.
            verdict = step.attempt.verdict
            wait_s = verdict.retry_after_s or 0.0
            self._pass_over(step, Decision(allowed=False, reason=verdict.code or "held", retry_in_s=wait_s))
        else:
            self._attempted(step, step.attempt, error)

    def _pass_over(self, step: Try, decision: Decision) -> None:
        self._passed[step.rank] = _Passed(decision, self._monotonic() + max(decision.retry_in_s, WAIT_S_MIN))

    def _attempted(self, step: Try, attempt: Attempt, error: Exception | None) -> None:
        """The attempt was made and left: with a value, unless `error` says what it raised."""
        self._value, self.error = step.value, error
        outcome, verdict = attempt.outcome, attempt.verdict
        kind = outcome.kind if outcome is not None else verdict.kind if verdict is not None else "ok"
        status = outcome.status if outcome is not None else None
        self.is_answered = error is None and is_answer(kind, status, verdict)
        text = attempt.error_text
        if error is not None and not text:
            text = redact(f"{type(error).__name__}: {error}")
        self.attempts.append(
            Tried(
                target=step.target,
                rank=step.rank,
                kind=kind,
                status=status,
                text="" if self.is_answered else text,
                took_s=((outcome.took_ms if outcome is not None else 0) or 0) / 1000,
                limit_s=step.limit_s,
                forced=step.forced,
            )
        )
        if not self.is_answered and attempt.is_passed_on:
            # Content may have been passed on: no other candidate can take over.
            self.reason = "truncated"

    # What the call gives.

    def spent_budget(self) -> Budget | None:
        """The nearest budget around the call that is used up."""
        return next((spent for budget in reversed(self._budgets) if (spent := budget.spent()) is not None), None)

    def skipped(self) -> list[Skipped]:
        """Candidates that were not called, with why."""
        why = {rank: passed.decision.reason for rank, passed in self._passed.items()}
        if self.reason in ("out_of_time", "budget_spent"):
            why |= dict.fromkeys(self._todo, self.reason)
        return [Skipped(self.targets[rank].provider, self.targets[rank].model, why[rank]) for rank in sorted(why)]

    def answer(self) -> CallResult[Any]:
        """The answer of the last attempt; its value is None for a stream."""
        last = self.attempts[-1]
        return CallResult(
            value=self._value,
            target=last.target,
            rank=last.rank,
            forced=last.forced,
            skipped=tuple(self.skipped()),
            attempts=tuple(self.attempts),
        )

    def fallback(self, value: Any) -> CallResult[Any]:
        """The fallback; an empty chain is a choice, not a degradation."""
        return CallResult(
            value=value,
            degraded=self.reason != "no_chain",
            reason=self.reason,
            skipped=tuple(self.skipped()),
            attempts=tuple(self.attempts),
        )

    def exhausted(self) -> Exhausted:
        """What a required call raises."""
        waits = [passed.again_s - self._monotonic() for passed in self._passed.values()]
        return Exhausted(self.reason, self.attempts, self.skipped(), max(0.0, min(waits)) if waits else None)


def is_answer(kind: str, status: int | None, verdict: Verdict | None) -> bool:
    """Whether a value with this verdict is an answer. A refusal in a 2xx is one, and so is text that only this router
    damaged: the next candidate's would be damaged too."""
    if kind == "content_filter":
        return status is None or 200 <= status < 300
    if kind == "mangled_output":
        return verdict is not None and verdict.signature == "own_decoding"
    return kind == "ok"


def out_of_time(step: Try) -> TimeoutError:
    """Set the verdict of an attempt that was cut at its limit, and return the error it ends with.

    The verdict is `timeout`. It is `cancelled`, as if the caller had given up, if the limit was shorter than the chain
    promises or content had come.
    """
    attempt = step.attempt
    if attempt.verdict is None or attempt.verdict.kind == "ok":
        is_slow = step.has_full_share and not attempt.has_content
        attempt.verdict = Verdict(kind="timeout", scope="model") if is_slow else Verdict(kind="cancelled", scope="none")
    return TimeoutError(f"no answer within {step.limit_s:.1f} s")


def cut_off(attempt: Attempt, error: BaseException) -> None:
    """The attempt's work raised `error`: if a stream's first content had come, its verdict is `truncated`."""
    fault = fault_of(error) if attempt.has_content else None
    if fault not in (None, "aborted") and (attempt.verdict is None or attempt.verdict.kind == "ok"):
        attempt.verdict = Verdict(kind="truncated", scope="model", signature=fault)


def no_content(attempt: Attempt) -> None:
    """A stream ended without content: an answer only if the caller said so (a turn with tool calls)."""
    if attempt.verdict is None:
        attempt.verdict = Verdict(kind="empty_output", scope="model", signature="no_content")
