"""Log lines that repeat: each at most once in a while, with the number of those that were left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Final

KEYS_MAX: Final = 1_000
"""Beyond so many keys all are forgotten, so that each may come again."""


class Throttled:
    """Tells when a line is due. From any thread; threads that ask at the same moment may lose a count.

    every_s   the lines of one key come at most so often
    """

    def __init__(self, every_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._every_s, self._monotonic = every_s, monotonic
        self._said: dict[Hashable, tuple[float, int]] = {}
        """By key: when its last line came, and how many were left out since."""

    def due(self, key: Hashable = None, count: int = 1) -> int:
        """For how many a line would stand now, those that were left out among them; 0 while it is too soon for one."""
        now_s = self._monotonic()
        said_s, left_out = self._said.get(key, (float("-inf"), 0))
        if now_s - said_s < self._every_s:
            self._said[key] = said_s, left_out + count
            return 0
        if len(self._said) >= KEYS_MAX:
            self._said.clear()
        self._said[key] = now_s, 0
        return left_out + count

    def forget(self) -> bool:
        """Let every line come again at once; whether there was one."""
        was_said = bool(self._said)
        self._said.clear()
        return was_said
