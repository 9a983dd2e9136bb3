"""Forced calls: which held target may be called all the same when nothing is allowed, and how often (Rule 5.4)."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final

from sickbay_events import Decision
from sickbay_events.view import HoldView

from .gate import Inspection

FORCED_EVERY_S: Final = 5.0
"""A replica makes one forced call at a time, and starts at most one in so long."""
LEAST_BAD: Final = ("ramp", "trial_taken", "degraded", "breaker", "throttle", "credential")
"""Reasons that a forced call may overrule, the least bad first: the nearer a target is to being allowed, the better."""
NEVER_FORCED: Final = ("quarantine", "operator")


class ForcedCallLimiter:
    """Limits a replica's forced calls to one at a time and one in 5 s. Safe from any thread."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._is_running = False
        self._again_s = -math.inf

    def acquire(self) -> bool:
        """Whether a forced call may be made now. If so, `release` has to follow."""
        with self._lock:
            now_s = self._monotonic()
            if self._is_running or now_s < self._again_s:
                return False
            self._is_running, self._again_s = True, now_s + FORCED_EVERY_S
            return True

    def release(self) -> None:
        """The forced call is over."""
        with self._lock:
            self._is_running = False


def badness(decision: Decision, inspection: Inspection) -> int | None:
    """How bad it would be to call a held target, by the worst of its holds; None if a forced call may not be made."""
    worst = 0
    for name in [decision.rule if decision.reason != "ramp" else "ramp", *(hold.rule for hold in inspection.holds)]:
        if name in NEVER_FORCED or name not in LEAST_BAD:
            return None
        worst = max(worst, LEAST_BAD.index(name))
    if any(_has_stated_reset(hold) for hold in inspection.holds):
        return None
    return min(worst, LEAST_BAD.index("trial_taken")) if decision.reason == "trial_taken" else worst


def _has_stated_reset(hold: HoldView) -> bool:
    """Whether a throttle names its reset, as only a spent allowance does (Rule 4.2)."""
    return hold.rule == "throttle" and hold.kind == "quota"
