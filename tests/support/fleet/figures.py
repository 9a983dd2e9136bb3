"""What is measured of a story, and what it must not exceed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from .provider import Condition
from .world import ALONE, TOGETHER, Told

Telling = Mapping[str, Told]
"""One story told from one seed, by side."""
Figures = Callable[[Sequence[Telling]], Iterator["Figure"]]
MEAN_SEEDS: Final = 3
"""A bound of a mean says nothing of fewer seeds; of them it may be twice as much."""


class Figure(NamedTuple):
    """One measured number beside its bound. `miss` says why it misses it. `is_mean`: over the seeds, else the worst."""

    what: str
    value: float
    bound: float
    unit: str = ""
    is_least: bool = False
    is_mean: bool = False
    miss: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the bound is kept."""
        return self.value >= self.bound if self.is_least else self.value <= self.bound

    def is_kept(self, seeds: int) -> bool:
        """The same, as far as so many seeds can say."""
        return self.is_met or (self.is_mean and seeds < MEAN_SEEDS and self.value <= 2 * self.bound)


class Lesson(NamedTuple):
    """What the rules want of one kind of failure: so many in a row, an answer takes `1 / weight` of one off; the first
    trial comes after `first_s`, later ones at most every `every_s`, or an 80th of the time held (Rule 4)."""

    needed: int
    weight: int
    first_s: float
    every_s: float

    def wanted(self, word: Sequence[tuple[str, bool]], replicas: int) -> int:
        """Failures that a word of the fleet takes: enough in a row, or 3 more than it got over by itself, and not one
        replica's alone. Of the others there are one or more, and no fewer than answers of theirs (Rule 4.0)."""
        points, top, failures, most = 0, 0, 0, self.weight * self.needed
        by: dict[str, list[int]] = {}
        for replica, is_ok in word:
            failures += not is_ok
            if is_ok and not points:
                continue
            counts = by.setdefault(replica, [0, 0])
            counts[is_ok] += 1
            points = points - 1 if is_ok else min(points + self.weight, most)
            top = max(top, points)
            if not points:
                if top > self.weight:
                    most = max(most, self.weight * (-(-top // self.weight) + 3))
                top = 0
                by.clear()
            if not is_ok and points == most and (replicas == 1 or _is_theirs(by)):
                break
        return max(failures, self.needed)

    def trials(self, outage_s: float, took_s: float) -> int:
        """Trials at the stated distances in an outage of this length, each of which takes so long to fail."""
        at_s, count = self.first_s, 0
        while at_s < outage_s:
            count += 1
            most_s = max(self.every_s, min(120.0, at_s / 80))
            at_s += max(took_s, min(most_s, self.first_s * 2 ** max(0, count - 2)))
        return count


def _is_theirs(by: Mapping[str, Sequence[int]]) -> bool:
    """Whether those beside the one who failed most say the same."""
    most = max(by, key=lambda name: (by[name][0], name))
    failed, answers = (sum(by[name][place] for name in by if name != most) for place in (0, 1))
    return failed >= max(1, answers)


FAULTS: Final = Lesson(5, 2, 2.0, 8.0)
STRIKES: Final = Lesson(2, 1, 1.0, 12.0)
LESSONS: Final[dict[Condition, Lesson]] = {"down": FAULTS, "slow": FAULTS, "network": FAULTS, "gone": STRIKES}


def mean(values: Sequence[float]) -> float:
    """Of at least one."""
    return sum(values) / len(values)


def free_after_s(told: Told) -> float:
    """When all were free again; infinite if never."""
    return math.inf if told.free_after_s is None else told.free_after_s


def dead(
    tellings: Sequence[Telling], *, lesson: Lesson, replicas: int, took_s: float, free_s: float, late: str = ""
) -> Iterator[Figure]:
    """A target that is dead for a while, for all calls. `late` says why it is free later than it should."""
    tolds = [telling[TOGETHER] for telling in tellings]
    pairs = [(told.run, lesson.wanted(told.word, replicas), told) for told in tolds]
    run, wanted, _ = max(pairs, key=lambda pair: pair[0] - pair[1])
    yield Figure("failures that counted to the hold", run, wanted)
    dead_calls, most, flying = max(
        ((told.dead, wanted + told.in_flight, told.in_flight) for _, wanted, told in pairs),
        key=lambda of: of[0] - of[1],
    )
    yield Figure(f"free dead calls, {flying} of them in flight", dead_calls, most)
    trials = [(told.dead_trials, lesson.trials(told.outage_s, took_s)) for told in tolds]
    yield Figure("dead trials", *max(trials, key=lambda of: of[0] - of[1]))
    yield Figure("trials at once", max(told.trials_at_once for told in tolds), 1)
    free = mean([free_after_s(told) for told in tolds])
    yield Figure("free again after", free, free_s, "s", is_mean=True, miss=late if free > free_s else "")


def partly_dead(tellings: Sequence[Telling], *, most: int, miss: str = "") -> Iterator[Figure]:
    """A share of the calls fails for a while."""
    calls = max(len(told[TOGETHER].word) if told[TOGETHER].is_hold_of_outage else math.inf for told in tellings)
    failed = max(told[TOGETHER].run for told in tellings)
    late = miss if calls > most else ""
    yield Figure(f"calls until it is held, {failed} of them failed", calls, most, miss=late)


def answered(tellings: Sequence[Telling], *, least: float = 0.95, miss: str = "") -> Iterator[Figure]:
    """Calls answered beside each for itself."""
    shares = [(told[TOGETHER].counts["ok"], max(1, told[ALONE].counts["ok"])) for told in tellings]
    worst, beside = min(shares, key=lambda share: share[0] / share[1])
    yield Figure("calls answered", worst, least * beside, is_least=True, miss=miss if worst < least * beside else "")


def held(tellings: Sequence[Telling], *, most: float, of: str = "", miss: str = "") -> Iterator[Figure]:
    """Share of the time in which a well target was held, in percent."""
    share = 100 * mean([told[TOGETHER].held_well for told in tellings])
    yield Figure("held when well" + of, share, most, "%", is_mean=True, miss=miss if share > most else "")


def throttled(tellings: Sequence[Telling], *, most: int) -> Iterator[Figure]:
    """Nothing but 429 for a while."""
    yield Figure("calls that got a 429", max(told[TOGETHER].counts["bad"] for told in tellings), most)


def rare(tellings: Sequence[Telling], *, free_s: float) -> Iterator[Figure]:
    """Few calls an hour: a dead target costs no more together than each for itself."""
    pairs = [(told[TOGETHER].counts["bad"], told[ALONE].counts["bad"]) for told in tellings]
    yield Figure("dead calls, at most as many as each for itself", *max(pairs, key=lambda pair: pair[0] / pair[1]))
    yield Figure("free again after", max(free_after_s(told[TOGETHER]) for told in tellings), free_s, "s")


def both(*figures: Figures) -> Figures:
    """One after the other."""
    return partial(_each, figures)


def _each(figures: Sequence[Figures], tellings: Sequence[Telling]) -> Iterator[Figure]:
    for found in figures:
        yield from found(tellings)
