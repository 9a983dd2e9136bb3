"""The scenarios, what is measured of each, and what it must not exceed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from sickbay_events import Policy

from .provider import Bucket, Condition, Limiter, Provider, Windows
from .world import Story, Told, tell

HOUR_S: Final = 3_600.0
FAULTS: Final = 5
STRIKES: Final = 2
"""Thresholds of SPEC 4.3 and 4.1."""
TRIALS_MAX: Final = 4
"""Dead calls after the hold."""
SOON_S: Final = 0.02
"""Within this a hold is known to every gate: the network's ways of this model are 1 to 6 ms each."""
BREAKER_S_MAX: Final = 66.0
"""The second hold of a breaker, with its jitter."""
QUARANTINE_S: Final = 600.0


class Pair(NamedTuple):
    """One story told twice from the same seed: with the cluster, and each replica for itself."""

    together: Told
    alone: Told


class Figure(NamedTuple):
    """One measured number beside its bound. `miss` names the rule by which it misses it, with most seeds at least."""

    what: str
    together: float
    alone: float
    bound: float
    unit: str = ""
    better: str = "lower"
    miss: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the bound is kept."""
        return self.together <= self.bound if self.better == "lower" else self.together >= self.bound


class Scenario(NamedTuple):
    """A story and its figures."""

    story: Story
    figures: Callable[[Sequence[Pair]], Iterator[Figure]]

    def measure(self, seeds: Sequence[int]) -> list[Figure]:
        """Tell it from every seed."""
        pairs = [Pair(tell(self.story, seed, together=True), tell(self.story, seed, together=False)) for seed in seeds]
        return list(self.figures(pairs))


# What is measured.


def _worst(what: str, pairs: Sequence[Pair], of: Callable[[Told], float], bound: float, unit: str = "") -> Figure:
    return Figure(what, max(of(p.together) for p in pairs), max(of(p.alone) for p in pairs), bound, unit)


def _answered(pairs: Sequence[Pair], least: float, miss: str = "") -> Figure:
    shares = [(p.together.counts["ok"], max(1, p.alone.counts["ok"])) for p in pairs]
    worst, beside = min(shares, key=lambda share: share[0] / share[1])
    return Figure("calls answered", worst, beside, least * beside, better="higher", miss=miss)


def _held(what: str, pairs: Sequence[Pair], of: Callable[[Told], float], miss: str = "") -> Figure:
    """The mean over the seeds: one quarantine in one short run says little."""
    shares = [sum(of(told) for told in side) / len(pairs) for side in zip(*pairs, strict=True)]
    return Figure(what, 100 * shares[0], 100 * shares[1], 1.0, "%", miss=miss)


def dead(pairs: Sequence[Pair], *, threshold: int, lag_s: float) -> Iterator[Figure]:
    """A target that is dead for a while and was held by its run of bad calls."""
    # If one replica reached the threshold alone while others had good answers, one more of a second one is wanted.
    counted = threshold + (len(pairs[0].together.held_by_replica) > 1)
    yield Figure("calls that counted to the hold", max(pair.together.run for pair in pairs), math.nan, counted)
    late_s = max(pair.together.late_s for pair in pairs)
    yield Figure("last free call began after the hold", 1000 * late_s, math.nan, 1000 * SOON_S, "ms")
    most = max(pairs, key=lambda pair: pair.together.dead)
    what = f"dead calls up to the hold, {most.together.in_flight} of them in flight"
    yield Figure(what, most.together.dead, most.alone.dead, counted + most.together.in_flight)
    yield _worst("dead calls after the hold", pairs, lambda told: told.dead_trials, TRIALS_MAX)
    yield _worst("free again after", pairs, lambda told: told.open_s or 0.0, lag_s, "s")


def dead_and_busy(pairs: Sequence[Pair]) -> Iterator[Figure]:
    """A target with more than 100 attempts a minute: only shares of the window open (SPEC 4.3)."""
    worst = max(pairs, key=lambda pair: pair.together.dead / pair.alone.dead)
    yield Figure("dead calls up to the hold", worst.together.dead, worst.alone.dead, 1.05 * worst.alone.dead)
    yield _worst("dead calls after the hold", pairs, lambda told: told.dead_trials, TRIALS_MAX)
    yield _worst("free again after", pairs, lambda told: told.open_s or 0.0, BREAKER_S_MAX, "s")


def limited(pairs: Sequence[Pair]) -> Iterator[Figure]:
    """A provider that takes a part of what is offered."""
    yield _answered(pairs, 0.95)


def noise(pairs: Sequence[Pair], *, length_s: float, miss: str = "") -> Iterator[Figure]:
    """A healthy model that now and then rejects or fails a call."""
    yield _held("share of time held", pairs, lambda told: told.held, miss)
    yield _held(
        "the same, but for holds whose trial met noise too", pairs, partial(_without_bad_luck, length_s=length_s)
    )


def _without_bad_luck(told: Told, length_s: float) -> float:
    """SPEC 4.1 gives a quarantine one early trial: if that is rejected, it stands for its ten minutes."""
    return max(0.0, told.held - told.trials_failed * QUARANTINE_S / length_s)


def broken(pairs: Sequence[Pair], miss: str = "") -> Iterator[Figure]:
    """One replica reaches nothing; the others must not be kept from the model."""
    yield _held("share of time held, at the other replicas", pairs, _others, miss)
    yield _answered(pairs, 0.95, miss)


def _others(told: Told) -> float:
    others = [held for name, held in told.held_by_replica.items() if name != "r0"]
    return sum(others) / len(others)


def rare(pairs: Sequence[Pair]) -> Iterator[Figure]:
    """Three calls an hour and replica: no harm to a healthy model, and a dead one costs fewer calls together."""
    worst = max(pairs, key=lambda pair: (pair.together.dead + pair.together.dead_trials) / _dead_calls(pair.alone))
    yield Figure("dead calls", _dead_calls(worst.together), _dead_calls(worst.alone), _dead_calls(worst.alone))
    yield _worst("free again after", pairs, lambda told: told.open_s or 0.0, QUARANTINE_S, "s")


def _dead_calls(told: Told) -> int:
    return told.dead + told.dead_trials


def rare_and_healthy(pairs: Sequence[Pair]) -> Iterator[Figure]:
    """As `rare`, of a model that is well but for noise."""
    yield _held("share of time held", pairs, lambda told: told.held)
    yield _answered(pairs, 0.95)


# The stories.


def _four(rate: float) -> dict[str, float]:
    return {f"r{number}": rate for number in range(4)}


def _dead(name: str, kind: Condition, rates: dict[str, float], figures: Callable[..., Iterator[Figure]]) -> Scenario:
    story = Story(
        name=name,
        rates=rates,
        length_s=760.0 if kind == "gone" else 200.0,
        provider=lambda: Provider(dead=kind, dead_s=(70.0, 110.0)),
    )
    return Scenario(story, figures)


def _limited(name: str, share: float, limiter: Callable[[float], Limiter]) -> Scenario:
    rates = _four(0.75)
    capacity = share * sum(rates.values())
    story = Story(name=name, rates=rates, length_s=240.0, provider=lambda: Provider(limiter=limiter(capacity)))
    return Scenario(story, limited)


def _noise(
    name: str, *, rejects: float = 0.0, fails: float = 0.0, threshold: int = STRIKES, miss: str = ""
) -> Scenario:
    story = Story(
        name=name,
        rates=_four(1.0),
        length_s=900.0,
        provider=lambda: Provider(rejects=rejects, fails=fails),
        policy=Policy.from_data({"rejections": {"threshold": threshold}}),
    )
    return Scenario(story, partial(noise, length_s=story.length_s, miss=miss))


def _broken(name: str, rates: dict[str, float], from_s: float = 0.0, miss: str = "") -> Scenario:
    provider = partial(Provider, unreachable=frozenset({"r0"}), unreachable_from_s=from_s)
    story = Story(name=name, rates=rates, length_s=1_200.0, provider=provider)
    return Scenario(story, partial(broken, miss=miss))


def _rare(name: str, figures: Callable[..., Iterator[Figure]], provider: Callable[[], Provider]) -> Scenario:
    story = Story(
        name=name,
        rates=_four(3 / HOUR_S),
        length_s=7 * HOUR_S,
        provider=provider,
        sample_s=20.0,
        checkpoint_every_s=2.9,  # a view older than 3 s is stale
    )
    return Scenario(story, figures)


_FAULTS = partial(dead, threshold=FAULTS, lag_s=BREAKER_S_MAX)
_REJECTIONS = partial(dead, threshold=STRIKES, lag_s=QUARANTINE_S)
_MOST = {"r0": 3.0, "r1": 0.05, "r2": 0.05, "r3": 0.05}
_NEARLY_ALL = {"r0": 0.5, "r1": 3 / HOUR_S, "r2": 3 / HOUR_S, "r3": 3 / HOUR_S}
# SPEC 4.1 and 4 (Two witnesses).
_TWO_OF_SO_MANY = "two rejections in a row hold, and the early trial was rejected too"
_ONE_WORD = "nobody else had a good answer in ten minutes, and the trials were its own too"

SCENARIOS: Final = (
    _dead("dead for 40 s: status 500", "down", _four(0.3), _FAULTS),
    _dead("dead for 40 s: no answer in 12 s", "slow", _four(0.3), _FAULTS),
    _dead("dead for 40 s: model unknown", "gone", _four(0.3), _REJECTIONS),
    _dead("dead for 40 s: status 500, 4 calls/s", "down", _four(1.0), dead_and_busy),
    _dead("dead for 40 s: status 500, 12 calls/s", "down", _four(3.0), dead_and_busy),
    _limited("limited to 95 %, no Retry-After", 0.95, Bucket),
    _limited("limited to 50 %, no Retry-After", 0.5, Bucket),
    _limited("limited to 95 % of each minute", 0.95, lambda rate: Windows(60 * rate, 60.0)),
    _limited("limited to 50 % of each minute", 0.5, lambda rate: Windows(60 * rate, 60.0)),
    _noise("noise: 1 % rejections", rejects=0.01),
    _noise("noise: 1 % faults", fails=0.01),
    _noise("noise: 5 % faults", fails=0.05),
    _noise("noise: 5 %, half and half", rejects=0.025, fails=0.025, miss=_TWO_OF_SO_MANY),
    _noise("noise: 5 % rejections", rejects=0.05, miss=_TWO_OF_SO_MANY),
    _noise("noise: 5 % rejections, threshold 4", rejects=0.05, threshold=4),
    _dead("a fleet of one: status 500", "down", {"r0": 1.2}, _FAULTS),
    _dead("a fleet of one: model unknown", "gone", {"r0": 1.2}, _REJECTIONS),
    _rare("three calls an hour: healthy, 1 % noise", rare_and_healthy, lambda: Provider(rejects=0.005, fails=0.005)),
    _rare("three calls an hour: unknown for 4 h", rare, lambda: Provider(dead="gone", dead_s=(HOUR_S, 5 * HOUR_S))),
    _rare("three calls an hour: status 500 for 4 h", rare, lambda: Provider(dead="down", dead_s=(HOUR_S, 5 * HOUR_S))),
    _broken("a broken uplink from the beginning", _four(0.5)),
    _broken("a broken uplink: 95 % of the calls", _MOST, 300.0),
    _broken("the same from the beginning", _MOST, miss=_ONE_WORD),
    _broken("a broken uplink, the others call thrice an hour", _NEARLY_ALL, 300.0, miss=_ONE_WORD),
)


def table(measured: Sequence[tuple[str, Sequence[Figure]]]) -> list[str]:
    """Lines of a table in Markdown."""
    lines = ["| scenario | figure | together | each for itself | bound | |", "|---|---|--:|--:|--:|---|"]
    for name, figures in measured:
        for figure in figures:
            sign = "<=" if figure.better == "lower" else ">="
            verdict = "met" if figure.is_met else "missed"
            verdict += f" ({figure.miss})" if figure.miss else ""
            together, alone, bound = (_said(value, figure.unit) for value in figure[1:4])
            lines.append(f"| {name} | {figure.what} | {together} | {alone} | {sign} {bound} | {verdict} |")
    return lines


def _said(value: float, unit: str) -> str:
    if math.isnan(value):
        return "-"
    number = f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
    return f"{number} {unit}".strip()
