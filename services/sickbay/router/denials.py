"""How many calls holds kept away, per target and rule: reported to the log each minute (Rule 2, CallsRefused)."""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from sickbay_events import Target

from ..loggers import logger

_log = logger("sickbay.gate")

SAY_EVERY_S: Final = 60.0
"""A router's log says at most so often that calls to one target are skipped."""
COUNTS_MAX: Final = 10_000
"""Up to so many targets and rules are counted each by itself; denials of further ones are counted together."""
OTHER: Final = "other"


class DenialCount:
    """Calls kept from one target by one rule. Counting is a plain addition without a lock: threads that count at the
    same moment may lose one, and a request path does not wait.

    reported, logged   how many of them the event log, and the router's own log, have been told of
    log_at_s           monotonic time from which the next line may be logged
    alone_until_ms     log time at which the hold ends, if it is this replica's own; 0: it is the fleet's
    """

    __slots__ = ("alone_until_ms", "count", "log_at_s", "logged", "reason", "reported", "rule", "target")

    def __init__(self, target: Target, rule: str, reason: str) -> None:
        self.target, self.rule, self.reason = target, rule, reason
        self.count = self.reported = self.logged = self.alone_until_ms = 0
        self.log_at_s = float("-inf")


class KeptAway(NamedTuple):
    """Calls kept from a target by a rule since the last look."""

    target: Target
    rule: str
    calls: int
    alone_until_ms: int = 0
    """Of a `DenialCount`."""


class Denials:
    """All denials of one gate."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Target, str, str], DenialCount] = {}
        self._other = DenialCount(Target("", ""), OTHER, OTHER)
        self._forgotten: Counter[str] = Counter()
        self._is_full_logged = False

    @property
    def unreported(self) -> int:
        """Calls that are never reported, because there were too many targets and rules in one minute."""
        return self._other.count

    def count_of(self, target: Target, rule: str, reason: str) -> DenialCount:
        """The count of a target, rule and reason; made if there is none."""
        key = target, rule, reason
        found = self._counts.get(key)
        if found is None:
            if len(self._counts) >= COUNTS_MAX:
                self._log_full()
                return self._other
            found = self._counts.setdefault(key, DenialCount(target, rule, reason))
        return found

    def _log_full(self) -> None:
        if not self._is_full_logged:
            self._is_full_logged = True
            _log.warning(
                "calls are kept from more than %d targets and rules in one minute: further ones are counted as other"
                " and not told to the log",
                COUNTS_MAX,
            )

    def by_reason(self) -> Counter[str]:
        """All that was ever counted, by the reason of the decision."""
        found = Counter(self._forgotten)
        for each in (*self._counts.values(), self._other):
            found[each.reason] += each.count
        return found

    def take(self) -> list[KeptAway]:
        """Denials since the last take, one for each target and rule."""
        taken: dict[tuple[Target, str], KeptAway] = {}
        for each in list(self._counts.values()):
            count = each.count
            if count > each.reported:
                key = each.target, each.rule
                before = taken.get(key, KeptAway(*key, 0))
                until_ms = max(before.alone_until_ms, each.alone_until_ms)
                taken[key] = KeptAway(*key, before.calls + count - each.reported, until_ms)
                each.reported = count
        return list(taken.values())

    def drop_idle(self) -> bool:
        """Forget all counts if half of the room is used up. Returns whether it did.

        To be called after `take`. A `DenialCount` from before must not be used afterwards.
        """
        if len(self._counts) < COUNTS_MAX // 2:
            return False
        for each in self._counts.values():
            self._forgotten[each.reason] += each.count
        self._counts.clear()
        return True
