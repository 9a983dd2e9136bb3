"""One call's way along its chain: whom to try next, for how long, and what came of it (SPEC 5.4).

A `Failover` decides; it neither waits nor calls. `calls` drives it in the event loop, `sync_calls` in threads.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from sickbay_events import Decision, Skipped, Target, Verdict
from sickbay_events.redact import redact
from sickbay_events.view import HoldView

from .attempt import Attempt, AttemptHost
from .budget import Budget, entered
from .chain import CallResult, ChainLimits
from .errors import Exhausted, Held, Reason, Tried
from .faults import fault_of
from .gate import Gate, Inspection

T = TypeVar("T")

TARGETS_MAX: Final = 64
FORCED_EVERY_S: Final = 5.0
"""A replica forces one call at a time and one in so long."""
PAUSE_S_MIN: Final = 0.001

LEAST_BAD: Final = ("ramp", "trial_taken", "degraded", "breaker", "throttle", "credential")
"""What a forced call may go against, the least bad first: the nearer a target is to being allowed, the better."""
NEVER_FORCED: Final = ("quarantine", "operator")


class ForcedCallLimiter:
    """A replica's forced calls: one at a time, and one in 5 s. From any thread."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._is_running = False
        self._again_s = -math.inf

    def take(self) -> bool:
        """Whether one may be made now; it is then to be given back."""
        with self._lock:
            now_s = self._monotonic()
            if self._is_running or now_s < self._again_s:
                return False
            self._is_running, self._again_s = True, now_s + FORCED_EVERY_S
            return True

    def give_back(self) -> None:
        """The forced call is over."""
        with self._lock:
            self._is_running = False


class Try(NamedTuple):
    """Call this one."""

    target: Target
    rank: int
    limit_s: float
    """Its share of the time."""
    is_whole: bool
    """Whether that is what the chain promises each of its attempts; else waiting or a budget around it took some."""
    forced: bool


class Pause(NamedTuple):
    """Wait until something of the candidates changes, and at most so long."""

    limit_s: float


class _Passed(NamedTuple):
    decision: Decision
    again_s: float
    """Monotonic time from which it is worth asking again, whatever else happens."""


def share_s(rest_s: float, attempt_s: float, candidates: int) -> float:
    """The time for an attempt: at most `attempt_s`, and so that each of its successors is left as much as it takes.

    rest_s       what is left of the chain's time
    candidates   how many may be called now, this one included
    """
    return min(attempt_s, rest_s / candidates)


class Failover:
    """One call's way along its chain. `next` says what to do until it says None; then `reason` says why there is no
    answer, or `is_answered` that there is one."""

    def __init__(
        self,
        gate: Gate,
        targets: Sequence[Target],
        limits: ChainLimits,
        *,
        forcing: ForcedCallLimiter,
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
        self._gate, self._forcing, self._monotonic = gate, forcing, monotonic
        self._budgets: tuple[Budget, ...] = entered()
        self._began_s = monotonic()
        self._todo = deque(range(len(self.targets)))
        self._passed: dict[int, _Passed] = {}
        self._denied: dict[int, Decision] = {}
        """By rank: a denial that the gate has counted. One call counts at most once as kept from a target."""
        self._wait_until_s: float | None = None
        self._was_forced = False

    # What to do.

    def next(self) -> Try | Pause | None:
        """The next step; None when the call is over."""
        if not self.targets or self.is_answered or self.reason == "truncated":
            return None
        rest_s = self.rest_s()
        if rest_s <= 0:
            why: Reason = "out_of_time" if self._todo else "failed" if self.attempts else "nothing_allowed"
            self.reason = "budget_spent" if self.spent_budget() is not None else why
            return None
        if not self._todo and self._wait_until_s is not None:
            self._ask_again()
        if self._todo:
            return self._try(self._todo.popleft(), rest_s)
        step = self._pause(rest_s) or self._force(rest_s)
        if step is None:
            self.reason = "failed" if self.attempts else "nothing_allowed"
        return step

    def rest_s(self) -> float:
        """Seconds left of the chain's own time and of the budgets around it."""
        own_s = self.limits.budget_s - (self._monotonic() - self._began_s)
        return min([own_s, *(budget.rest_s for budget in self._budgets)])

    def spent_budget(self) -> Budget | None:
        """The nearest budget around the call that is used up."""
        return next((spent for budget in reversed(self._budgets) if (spent := budget.spent()) is not None), None)

    def called(self) -> None:
        """The call makes its first request: the budgets around it count it."""
        for budget in self._budgets:
            budget.called()

    def _try(self, rank: int, rest_s: float, *, forced: bool = False) -> Try:
        self._passed.pop(rank, None)
        later = 0 if forced else sum(self._gate.look(self.targets[at]).decision.allowed for at in self._todo)
        limit_s = share_s(rest_s, self.limits.attempt_s, 1 + later)
        whole_s = share_s(self.limits.budget_s, self.limits.attempt_s, len(self.targets))
        return Try(self.targets[rank], rank, limit_s, limit_s >= whole_s * 0.99, forced)

    def _ask_again(self) -> None:
        """Candidates that were held and may be allowed by now, in their order."""
        now_s = self._monotonic()
        for rank in sorted(self._passed):
            before, again_s = self._passed[rank]
            decision = self._gate.look(self.targets[rank]).decision
            # A trial that another one makes may end at any time, which no decision tells: it has to be asked for.
            is_news = decision.allowed and not (decision.trial and before.reason == "trial_taken")
            if is_news or now_s >= again_s:
                self._todo.append(rank)

    def _pause(self, rest_s: float) -> Pause | None:
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
        return Pause(max(PAUSE_S_MIN, min(left_s, *moments)))

    def _force(self, rest_s: float) -> Try | None:
        if self.limits.forced != "one" or self.attempts or self._was_forced:
            return None
        found: list[tuple[int, float, int]] = []
        for rank, passed in self._passed.items():
            badness = _badness(passed.decision, self._gate.look(self.targets[rank]))
            if badness is not None:
                found.append((badness, passed.decision.retry_in_s, rank))
        if not found or not self._forcing.take():
            return None
        self._was_forced = True
        return self._try(min(found)[2], rest_s, forced=True)

    # What an attempt is made with, and what came of it.

    def attempt(self, desk: AttemptHost, step: Try) -> Attempt:
        """The attempt of a step, to be entered."""
        limits = self.limits
        return desk.attempt_type(
            desk,
            step.target,
            limit_s=step.limit_s,
            route=limits.route,
            rank=step.rank,
            prompt_ascii=limits.prompt_ascii,
            client_capped=limits.client_capped,
            request_hash=limits.request_hash,
            skipped=self.skipped() or None,
            forced=step.forced,
            keep_text=True,
        )

    def began(self, step: Try, attempt: Attempt) -> None:
        """The attempt was entered."""
        if not self.attempts:
            self.called()
        self._take_back(step)
        if step.forced and attempt.decision is not None and not attempt.decision.allowed:
            self._gate.admit(step.target, attempt.decision)

    def _take_back(self, step: Try) -> None:
        if (before := self._denied.pop(step.rank, None)) is not None:
            self._gate.admit(step.target, before)

    def held(self, step: Try, held: Held) -> None:
        """It may not be called now."""
        self._take_back(step)
        self._denied[step.rank] = held.decision
        again_s = self._monotonic() + max(held.retry_in_s, PAUSE_S_MIN)
        self._passed[step.rank] = _Passed(held.decision, again_s)

    def over(self, step: Try, attempt: Attempt, error: BaseException | None) -> None:
        """The attempt was left: with a value, unless `error` says what it raised."""
        self.error = error
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
        if not self.is_answered and attempt.has_content:
            # Content may have been passed on: no other candidate can take over.
            self.reason = "truncated"

    def answering(self, step: Try) -> None:
        """A stream's first content came: it is this candidate that answers."""
        self.is_answered = True
        self.attempts.append(
            Tried(target=step.target, rank=step.rank, kind="ok", limit_s=step.limit_s, forced=step.forced)
        )

    def left(self, step: Try) -> None:
        """The step is over, in whichever way."""
        if step.forced:
            self._forcing.give_back()

    # What the call gives.

    def skipped(self) -> list[Skipped]:
        """Candidates that were not called, with why."""
        why = {rank: passed.decision.reason for rank, passed in self._passed.items()}
        if self.reason in ("out_of_time", "budget_spent"):
            why |= dict.fromkeys(self._todo, self.reason)
        return [Skipped(self.targets[rank].provider, self.targets[rank].model, why[rank]) for rank in sorted(why)]

    def answer(self, value: T) -> CallResult[T]:
        """The answer of the last attempt."""
        last = self.attempts[-1]
        return CallResult(
            value=value,
            target=last.target,
            rank=last.rank,
            forced=last.forced,
            skipped=tuple(self.skipped()),
            attempts=tuple(self.attempts),
        )

    def fallback(self, value: T) -> CallResult[T]:
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


def out_of_time(step: Try, attempt: Attempt) -> TimeoutError:
    """Say of an attempt that was cut at its limit what that tells, and give the error it ends with.

    `timeout`, unless its limit was shorter than the chain promises, or content had come: then its caller gave up.
    """
    if attempt.verdict is None or attempt.verdict.kind == "ok":
        is_slow = step.is_whole and not attempt.has_content
        attempt.verdict = Verdict(kind="timeout", scope="model") if is_slow else Verdict(kind="cancelled", scope="none")
    return TimeoutError(f"no answer within {step.limit_s:.1f} s")


def cut_off(attempt: Attempt, error: BaseException) -> None:
    """A stream broke after its first content."""
    fault = fault_of(error)
    if fault not in (None, "aborted") and (attempt.verdict is None or attempt.verdict.kind == "ok"):
        attempt.verdict = Verdict(kind="truncated", scope="model", signature=fault)


def no_content(attempt: Attempt) -> None:
    """A stream ended without content: an answer only if it was said to be one (a turn with tool calls)."""
    if attempt.verdict is None:
        attempt.verdict = Verdict(kind="empty_output", scope="model", signature="no_content")


def _badness(decision: Decision, look: Inspection) -> int | None:
    """How bad it would be to call a held target, by the worst of its holds; None if it may not be."""
    worst = 0
    for name in [decision.rule if decision.reason != "ramp" else "ramp", *(hold.rule for hold in look.holds)]:
        if name in NEVER_FORCED or name not in LEAST_BAD:
            return None
        worst = max(worst, LEAST_BAD.index(name))
    if any(_is_stated(hold) for hold in look.holds):
        return None
    return min(worst, LEAST_BAD.index("trial_taken")) if decision.reason == "trial_taken" else worst


def _is_stated(hold: HoldView) -> bool:
    """A throttle with a stated reset: only a spent allowance names one (SPEC 4.2)."""
    return hold.rule == "throttle" and hold.kind == "quota"
