"""One time budget over many calls: a stage of optional work that may take so long and no longer (Rule 5.4).

    with sickbay.budget(30, feature="summaries"):
        for section in sections:
            answer = await sb.call(chain, summarize, fallback="")    # without a request once 30 s are over

A budget also holds in awaited code and in tasks that are made inside it. A thread joins by entering the same budget
again. Inside another budget the smaller rest counts.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Final, Self

from ..invalid import InvalidValue
from ..loggers import logger

_log = logger("sickbay")

LIMIT_S_MAX: Final = 86_400.0


class Budget:
    """Made by `budget`. Its time runs from when it is first entered; it may be entered again, also in other threads.

    feature   what the work is for, for the log
    calls     calls that were made in it
    cut       how many of these its end cut off
    skipped   calls that took their fallback without a request, because it was spent
    """

    def __init__(self, limit_s: float, feature: str = "", *, monotonic: Callable[[], float] = time.monotonic) -> None:
        check_seconds("limit_s", limit_s, least_s=0.0)
        self.limit_s, self.feature = float(limit_s), feature
        self.calls = self.cut = self.skipped = 0
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._began_s: float | None = None
        self._outer: tuple[Budget, ...] = ()
        self._depth = 0
        self._is_said = False

    @property
    def spent_s(self) -> float:
        """Seconds since it was entered, 0 before."""
        return 0.0 if self._began_s is None else self._monotonic() - self._began_s

    @property
    def rest_s(self) -> float:
        """Seconds left of it and of those around it, the smallest; never below 0."""
        return max(0.0, min([self.limit_s - self.spent_s, *(outer.rest_s for outer in self._outer)]))

    @property
    def is_spent(self) -> bool:
        """Whether calls take their fallback from now on."""
        return self.rest_s <= 0

    def spent(self) -> Budget | None:
        """The budget that is used up: this one, or the nearest around it; None if there is time left."""
        if self.spent_s >= self.limit_s:
            return self
        return next((found for outer in reversed(self._outer) if (found := outer.spent()) is not None), None)

    def __enter__(self) -> Self:
        """Begin, or join where it has begun."""
        around = _entered.get()
        with self._lock:
            self._depth += 1
            if self._began_s is None:
                self._began_s, self._outer = self._monotonic(), tuple(b for b in around if b is not self)
        _entered.set((*around, self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave. The last to leave logs what the budget's end cost, if it cost anything."""
        around = list(_entered.get())
        if self in around:
            del around[len(around) - 1 - around[::-1].index(self)]
        _entered.set(tuple(around))
        with self._lock:
            self._depth -= 1
            say = not self._depth and not self._is_said and bool(self.cut or self.skipped)
            self._is_said = self._is_said or say
        if say:
            self._say()

    # What calls report.

    def called(self) -> None:
        """A call is made in it."""
        with self._lock:
            self.calls += 1

    def record_exhausted(self, *, cut: bool) -> bool:
        """A call was cut off because the budget ran out (`cut`), or not made. Returns True the first time only, so that
        all of them count as one degradation."""
        with self._lock:
            first = not (self.cut or self.skipped)
            self.cut, self.skipped = self.cut + cut, self.skipped + (not cut)
        return first

    def _say(self) -> None:
        _log.warning(
            "the budget of %s is spent: %.1f of %.1f s, %d calls made (%d of them cut off), %d skipped",
            self.feature or "this stage",
            self.spent_s,
            self.limit_s,
            self.calls,
            self.cut,
            self.skipped,
            extra={
                "event": "budget_spent",
                "feature": self.feature,
                "seconds": self.spent_s,
                "limit_s": self.limit_s,
                "calls": self.calls,
                "cut": self.cut,
                "skipped": self.skipped,
            },
        )


_entered: Final[ContextVar[tuple[Budget, ...]]] = ContextVar("sickbay_budgets", default=())


def budget(limit_s: float, feature: str = "", *, monotonic: Callable[[], float] = time.monotonic) -> Budget:
    """A budget of `limit_s` seconds (0 to 24 h) for all calls made inside `with`, by the wall clock from its entry.

    Raises `ValueError` for any other limit. `monotonic` is for tests with a clock of their own.
    """
    return Budget(limit_s, feature, monotonic=monotonic)


def entered() -> tuple[Budget, ...]:
    """The budgets around the running code, outermost first, and those around a budget that a thread has joined."""
    found = [budget for each in _entered.get() for budget in (*each._outer, each)]
    return tuple(dict.fromkeys(found))


def check_seconds(field: str, value: object, *, least_s: float) -> None:
    """Raise a `ValueError` that names the field, unless the value is a number of seconds from `least_s` to 24 h."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not least_s <= value <= LIMIT_S_MAX:  # type: ignore[arg-type,operator]
        raise InvalidValue(field, value, f"a number of seconds, {least_s:g} to 86400")
