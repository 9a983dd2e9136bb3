"""Log time, as a reader of the view knows it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

CLOCK_WINDOW_S: Final = 60
"""The largest offset of this long counts (Rule 6)."""


class LogClock:
    """Log time: the monotonic clock of this process plus the largest offset of the last 60 s, in ms since the epoch.

    Before the first message (`heard` is False) it is the wall clock.
    """

    def __init__(self, monotonic: Callable[[], float], wall: Callable[[], float]) -> None:
        self.heard = False
        self.offset_ms = 0.0
        self._monotonic, self._wall = monotonic, wall
        self._seconds: deque[tuple[int, float]] = deque()

    def hear(self, stamp_ms: int, at_s: float) -> None:
        """Take the server's time `stamp_ms` of a message that arrived at `at_s` of the monotonic clock."""
        second, offset_ms = int(at_s), stamp_ms - at_s * 1000
        seconds = self._seconds
        if seconds and seconds[-1][0] == second:
            seconds[-1] = (second, max(seconds[-1][1], offset_ms))
        else:
            seconds.append((second, offset_ms))
        while seconds[0][0] <= second - CLOCK_WINDOW_S:
            seconds.popleft()
        self.offset_ms = max([offset for _, offset in seconds])
        self.heard = True

    def now_ms(self) -> int:
        """Log time now, in whole milliseconds."""
        if self.heard:
            return int(self.offset_ms + self._monotonic() * 1000)
        return int(self._wall() * 1000)
