"""A provider as it truly is: well, dead for a while, limited, now and then wrong, or out of one router's reach."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, Protocol

Condition = Literal["ok", "down", "gone", "slow", "network", "limited"]

GONE: Final = b'{"error":{"message":"The model `demo-1` does not exist","code":"model_not_found"}}'
DOWN: Final = b'{"error":{"message":"Internal server error"}}'
LIMITED: Final = b'{"error":{"message":"Rate limit reached","code":"rate_limit_exceeded"}}'
SHAPES: Final[dict[Condition, tuple[int, bytes]]] = {
    "gone": (404, GONE),
    "down": (500, DOWN),
    "limited": (429, LIMITED),
}
RAISED: Final[dict[Condition, type[Exception]]] = {"slow": TimeoutError, "network": ConnectionRefusedError}
FAILS_WITHIN_S: Final = 0.2


class Luck(NamedTuple):
    """What one call has coming to it, whoever is asked whether it may be made: each from 0 to 1."""

    noise: float
    took: float


class Answer(NamedTuple):
    """What comes of a call, and after how long."""

    condition: Condition
    took_s: float
    retry_after_s: int | None = None


class Limiter(Protocol):
    """How many calls a provider takes."""

    def take(self, at_s: float) -> int | None:
        """None if this call is one of them, else the seconds after which to come again (0: it does not say)."""
        ...


class Bucket:
    """So many calls a second, and a burst of as many as come in one second; says no when to come again."""

    def __init__(self, rate: float) -> None:
        self._rate, self._left, self._at_s = rate, rate, 0.0

    def take(self, at_s: float) -> int | None:
        """See `Limiter`."""
        self._left = min(max(1.0, self._rate), self._left + (at_s - self._at_s) * self._rate)
        self._at_s = at_s
        if self._left < 1:
            return 0
        self._left -= 1
        return None


class Windows:
    """So many calls in each window, then none until the next one begins; says when that is."""

    def __init__(self, count: float, window_s: float) -> None:
        self._count, self._window_s = count, window_s
        self._window, self._taken = 0, 0

    def take(self, at_s: float) -> int | None:
        """See `Limiter`."""
        if (window := int(at_s // self._window_s)) != self._window:
            self._window, self._taken = window, 0
        if self._taken >= self._count:
            return int(self._window_s - at_s % self._window_s) + 1
        self._taken += 1
        return None


class Provider:
    """Times are seconds since the beginning.

    dead, dead_s       what it answers from when to when, whoever calls
    rejects, fails     shares of calls that a healthy model rejects or fails all the same
    limiter            how many calls it takes
    unreachable        replicas whose network does not lead here, from `unreachable_from_s` on
    """

    def __init__(
        self,
        *,
        dead: Condition = "ok",
        dead_s: tuple[float, float] = (0.0, 0.0),
        rejects: float = 0.0,
        fails: float = 0.0,
        limiter: Limiter | None = None,
        unreachable: frozenset[str] = frozenset(),
        unreachable_from_s: float = 0.0,
    ) -> None:
        self.dead_s = dead_s
        self._dead, self._rejects, self._fails = dead, rejects, fails
        self._limiter = limiter
        self._unreachable, self._unreachable_from_s = unreachable, unreachable_from_s

    def is_dead(self, at_s: float) -> bool:
        """Whether a call that begins now gets no answer."""
        return self.dead_s[0] <= at_s < self.dead_s[1]

    def answer(self, replica: str, at_s: float, limit_s: float, luck: Luck) -> Answer:
        """What comes of a call that begins now."""
        soon_s = 0.05 + luck.took * (FAILS_WITHIN_S - 0.05)
        if replica in self._unreachable and at_s >= self._unreachable_from_s:
            return Answer("network", soon_s)
        if self.is_dead(at_s):
            return Answer(self._dead, limit_s if self._dead == "slow" else soon_s)
        if self._limiter is not None and (retry_s := self._limiter.take(at_s)) is not None:
            return Answer("limited", soon_s, retry_s or None)
        if luck.noise < self._rejects:
            return Answer("gone", soon_s)
        if luck.noise < self._rejects + self._fails:
            return Answer("down", soon_s)
        return Answer("ok", 0.2 + 1.3 * luck.took**2)
