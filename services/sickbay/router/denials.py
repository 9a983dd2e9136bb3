"""How many calls holds kept away, per target and rule: told to the log by the minute (SPEC 2, CallsRefused)."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from sickbay_events import Target

_log = logging.getLogger("sickbay.gate")

SAY_EVERY_S: Final = 60.0
"""A router's log says at most so often that calls to one target are skipped."""
TALLIES_MAX: Final = 10_000
"""Beyond so many targets and rules at once, what is kept away is counted for all of them together."""
OTHER: Final = "other"


class DenialCount:
    """Calls kept from one target by one rule. Counting is a plain addition: threads that count at the same moment
    may lose one, which statistics can bear and a request path cannot wait for."""

    __slots__ = ("count", "reason", "rule", "said", "say_at_s", "target", "told")

    def __init__(self, target: Target, rule: str, reason: str) -> None:
        self.target, self.rule, self.reason = target, rule, reason
        self.count = self.told = self.said = 0
        self.say_at_s = float("-inf")


class Denials:
    """All tallies of one gate."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[Target, str, str], DenialCount] = {}
        self._other = DenialCount(Target("", ""), OTHER, OTHER)
        self._forgotten: Counter[str] = Counter()
        self._is_full_said = False

    @property
    def untold(self) -> int:
        """Calls that the log is not told of, since there were too many targets and rules in one minute."""
        return self._other.count

    def tally(self, target: Target, rule: str, reason: str) -> DenialCount:
        """The tally of a target and rule, for each reason one; made where there is none."""
        key = target, rule, reason
        found = self._tallies.get(key)
        if found is None:
            if len(self._tallies) >= TALLIES_MAX:
                self._say_full()
                return self._other
            found = self._tallies.setdefault(key, DenialCount(target, rule, reason))
        return found

    def _say_full(self) -> None:
        if not self._is_full_said:
            self._is_full_said = True
            _log.warning(
                "calls are kept from more than %d targets and rules in one minute: further ones are counted as other"
                " and not told to the log",
                TALLIES_MAX,
            )

    def by_reason(self) -> Counter[str]:
        """All that was ever counted, by the reason of the decision."""
        found = Counter(self._forgotten)
        for tally in (*self._tallies.values(), self._other):
            found[tally.reason] += tally.count
        return found

    def take(self) -> list[tuple[Target, str, int]]:
        """What was counted since the last take: (target, rule, count)."""
        taken: dict[tuple[Target, str], int] = {}
        for tally in list(self._tallies.values()):
            count = tally.count
            if count > tally.told:
                key = tally.target, tally.rule
                taken[key] = taken.get(key, 0) + count - tally.told
                tally.told = count
        return [(target, rule, count) for (target, rule), count in taken.items()]

    def drop_idle(self) -> bool:
        """Forget all tallies where there are so many that new ones would find no room; whether that was done. To be
        called after `take`, and nobody may keep a tally over it."""
        if len(self._tallies) < TALLIES_MAX // 2:
            return False
        for tally in self._tallies.values():
            self._forgotten[tally.reason] += tally.count
        self._tallies.clear()
        return True
