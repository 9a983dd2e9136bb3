"""A provider as it truly is: well, dead for a while, limited, now and then wrong, or out of one router's reach."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, Protocol

Condition = Literal["ok", "down", "gone", "slow", "network", "limited"]

GONE: Final = b'{"error":{"message":"The model `demo-1` does not exist","code":"model_not_found"}}'
DOWN: Final = b'{"error":{"message":"Internal server error"}}'
LIMITED: Final = b'{"error":{"message":"Rate limit reached","code":"rate_limit_exceeded"}}'
LIMITED_KEY: Final = b'{"error":{"message":"Rate limit reached for your API key","code":"rate_limit_exceeded"}}'
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
    share: float


class Answer(NamedTuple):
    """What comes of a call, and after how long. `retry_after_s` is what a 429 asks to wait, None if it says nothing."""

    condition: Condition
    took_s: float
    retry_after_s: int | None = None


class Outage(NamedTuple):
    """From when to when (seconds since the beginning), for what share of the calls, and what they meet."""

    from_s: float
    to_s: float
    condition: Condition
    share: float = 1.0


class Limiter(Protocol):
    """How many calls a provider takes."""

    def take(self, at_s: float) -> float | None:
        """None if this call is one of them, else the seconds after which there is room again."""
        ...


class Bucket:
    """So many calls a second, and a burst of as many as come in one second. With `warm` it takes a tenth at the
    first of these two moments, then more and more, and all from the second one on."""

    def __init__(self, rate: float, warm: tuple[float, float] | None = None) -> None:
        self._rate, self._warm, self._left, self._at_s = rate, warm, rate, 0.0

    def take(self, at_s: float) -> float | None:
        """See `Limiter`."""
        rate = self._rate
        if self._warm is not None and at_s >= self._warm[0]:
            began_s, ended_s = self._warm
            rate *= 0.1 + 0.9 * min(1.0, (at_s - began_s) / (ended_s - began_s))
        self._left = min(max(1.0, rate), self._left + (at_s - self._at_s) * rate)
        self._at_s = at_s
        if self._left < 1:
            return (1 - self._left) / rate
        self._left -= 1
        return None


class Windows:
    """So many calls in each window, then none until the next one begins."""

    def __init__(self, count: float, window_s: float) -> None:
        self._count, self._window_s = count, window_s
        self._window, self._taken = 0, 0

    def take(self, at_s: float) -> float | None:
        """See `Limiter`."""
        if (window := int(at_s // self._window_s)) != self._window:
            self._window, self._taken = window, 0
        if self._taken >= self._count:
            return self._window_s - at_s % self._window_s
        self._taken += 1
        return None


class Provider:
    """Times are seconds since the beginning.

    outages            when it is dead, for all calls or a share of them; must not overlap
    bursts             the same, but as noise of a model that is well
    rejects, fails     shares of calls that a healthy model rejects or fails all the same
    limiter, over      makes how many calls it takes; what the others meet
    hint_s             what a 429 asks to wait: seconds, 0 for nothing, None for what is true
    names_key          a 429 says that it is the API key's
    unreachable        replicas whose network does not lead here, from `unreachable_from_s` on
    """

    def __init__(
        self,
        *,
        outages: Sequence[Outage] = (),
        bursts: Sequence[Outage] = (),
        rejects: float = 0.0,
        fails: float = 0.0,
        limiter: Callable[[], Limiter] | None = None,
        over: Condition = "limited",
        hint_s: float | None = 0.0,
        names_key: bool = False,
        unreachable: frozenset[str] = frozenset(),
        unreachable_from_s: float = 0.0,
    ) -> None:
        self.outages, self.unreachable = outages, unreachable
        self.shapes = SHAPES | {"limited": (429, LIMITED_KEY if names_key else LIMITED)}
        """Status and body by condition."""
        self._outages, self._bursts = _Times(outages), _Times(bursts)
        self._rejects, self._fails = rejects, fails
        self._limiter: Limiter | None = limiter() if limiter is not None else None
        self._spare: Limiter | None = limiter() if limiter is not None else None
        """Of the second one refused calls take their room, too."""
        self._over: Condition = over
        self._hint_s, self._unreachable_from_s = hint_s, unreachable_from_s

    def is_out(self, at_s: float) -> bool:
        """Whether there is an outage now, be it of a share of the calls only."""
        return self._outages.at(at_s) is not None

    def is_dead(self, at_s: float, luck: Luck) -> bool:
        """Whether an outage meets a call that begins now."""
        outage = self._outages.at(at_s)
        return outage is not None and luck.share < outage.share

    def answer(self, replica: str, at_s: float, limit_s: float, luck: Luck) -> Answer:
        """What comes of a call that is made and begins now."""
        found = self._fate(replica, at_s, limit_s, luck)
        if found.condition != "ok" or self._limiter is None or self._spare is None:
            return found
        room_s = self._limiter.take(at_s)
        if room_s is None:
            self._spare.take(at_s)
            return found
        return self._hinted(Answer(self._over, _soon_s(luck)), room_s)

    def would_answer(self, replica: str, at_s: float, luck: Luck) -> bool:
        """Whether a call that was refused would have been answered. Where the provider is limited: whether there was
        room left by all calls so far, refused ones included."""
        if self._fate(replica, at_s, 0.0, luck).condition != "ok":
            return False
        return self._spare is None or self._spare.take(at_s) is None

    def _fate(self, replica: str, at_s: float, limit_s: float, luck: Luck) -> Answer:
        soon_s = _soon_s(luck)
        if replica in self.unreachable and at_s >= self._unreachable_from_s:
            return Answer("network", soon_s)
        for times in (self._outages, self._bursts):
            outage = times.at(at_s)
            if outage is not None and luck.share < outage.share:
                took_s = limit_s if outage.condition == "slow" else soon_s
                return self._hinted(Answer(outage.condition, took_s), outage.to_s - at_s)
        if luck.noise < self._rejects:
            return Answer("gone", soon_s)
        if luck.noise < self._rejects + self._fails:
            return Answer("down", soon_s)
        return Answer("ok", 0.2 + 1.3 * luck.took**2)

    def _hinted(self, answer: Answer, room_s: float) -> Answer:
        if answer.condition != "limited" or self._hint_s == 0:
            return answer
        return answer._replace(retry_after_s=int(room_s) + 1 if self._hint_s is None else int(self._hint_s))


class _Times:
    """Outages, found by time."""

    def __init__(self, outages: Sequence[Outage]) -> None:
        self._outages = sorted(outages)
        self._from_s = [outage.from_s for outage in self._outages]

    def at(self, at_s: float) -> Outage | None:
        """The one that stands now."""
        place = bisect_right(self._from_s, at_s) - 1
        return self._outages[place] if place >= 0 and at_s < self._outages[place].to_s else None


def _soon_s(luck: Luck) -> float:
    return 0.05 + luck.took * (FAILS_WITHIN_S - 0.05)


def stretched(outage: Outage, seed: int) -> Outage:
    """The same, longer or shorter by up to a third: what is regular would favour whoever is in step with it."""
    by = 0.75 * (16 / 9) ** random.Random(f"outage {seed}").random()
    return outage._replace(to_s=outage.from_s + (outage.to_s - outage.from_s) * by)


def bursts(share: float, condition: Condition, length_s: float, seed: int) -> list[Outage]:
    """Times of 2 s in the mean in which half of the calls meet the condition: `share` of all calls."""
    rng, at_s, found = random.Random(f"bursts {seed}"), 0.0, list[Outage]()
    while at_s < length_s:
        from_s = at_s + rng.expovariate(1 / (1 / share - 2.0))
        at_s = from_s + rng.expovariate(1 / 2.0)
        found.append(Outage(from_s, at_s, condition, 0.5))
    return found
