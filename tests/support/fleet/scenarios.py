"""The stories, each with its bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple

from .figures import LESSONS, Figure, Figures, Telling, answered, both, dead, held, partly_dead, rare, throttled
from .provider import Bucket, Condition, Limiter, Outage, Provider, Windows, bursts, stretched
from .world import Story

HOUR_S: Final = 3_600.0
SAYS: Final[dict[Condition, str]] = {"down": "500", "slow": "hangs 12 s", "gone": "unknown model"}
LIMIT_S: Final = 12.0
Group = Literal["dead", "partly dead", "flapping", "noise", "broken uplink", "429", "limited", "recovery"]
_RARE_CALLS: Final = "a call comes every 20 s"
_ONE_IN_FLIGHT: Final = "a trial that began in the outage takes its 12 s to fail"
_BETWEEN_TRIALS: Final = (
    "it ends between two trials, which are 1 to 8 s apart, and a ramp of a 20th of the outage follows"
)
_SHORT: Final = "an outage of 5 s is over when a hold begins to pay: who does not hold, or for 5 s, is free sooner"
_AT_ONCE: Final = (
    "it holds at the first rejection, which costs it 17 to 89 % of a healthy model's time in the noise below"
)
_NOT_A_THIRD: Final = (
    "30 % of failures are below the share of 1/3 that is held for certain: the price of ignoring noise"
)
_FIRST_LESSONS: Final = (
    "two rejections in a row come each 4 s at this rate: it learns of the noise by its first short holds"
)
_NOBODY_ELSE: Final = (
    "nobody else is heard of yet, so who fails is the whole fleet: it costs one call of another in all"
)
_EJECTED: Final = (
    "its broken replica is tried again ever more rarely; so are targets that are well again, 20 to 159 s late"
)
_TAKES_ALL: Final = "who does not hold gets all that the limit leaves, for 4 to 13 times as many refused calls"
_EVERY_5_S: Final = "all go there again every 5 s: free sooner, for more dead calls"
_SELDOM_HOLDS: Final = "who does not hold wins where most calls are answered"


class Scenario(NamedTuple):
    """A story and its bounds. `is_quick`: `make test` tells it too. `better` says why a rival may do better in it."""

    group: Group
    story: Story
    figures: Figures
    is_quick: bool = False
    better: str = ""

    def measure(self, tellings: Sequence[Telling]) -> list[Figure]:
        """Its figures."""
        return list(self.figures(tellings))


def even(rate: float, replicas: int = 4) -> dict[str, float]:
    """So many calls a second in all, spread evenly."""
    return {f"r{number}": rate / replicas for number in range(replicas)}


def _nothing(_tellings: Sequence[Telling]) -> Iterator[Figure]:
    """No bound but the rivals."""
    yield from ()


def _died(s: float, how: Condition, rate: float, rates: dict[str, float] | None = None, name: str = "") -> Scenario:
    """Dead for about so long."""
    rates = rates or even(rate, 20 if rate >= 100 else 4)
    is_rare = rate < 1
    began_s, tail_s = (1_800.0, 900.0) if is_rare else (20.0, 60.0) if rate >= 100 else (70.0, 120.0)
    late = _RARE_CALLS if is_rare else _ONE_IN_FLIGHT if how == "slow" else _BETWEEN_TRIALS
    bounds = partial(
        dead,
        lesson=LESSONS[how],
        replicas=len(rates),
        took_s=LIMIT_S if how == "slow" else 0.05,
        free_s=2.0 if s == 5 else 10.0,
        late=late,
    )
    story = Story(
        name=name or f"dead {_time(s)}, {SAYS[how]}, {rate:g}/s",
        rates=rates,
        length_s=began_s + 4 / 3 * s + tail_s,
        provider=lambda seed: Provider(outages=[stretched(Outage(began_s, began_s + s, how), seed)]),
        sample_s=1.0 if is_rare else 0.1 if s == 5 else 0.25,
        checkpoint_every_s=2.9 if is_rare else 1.0,  # a view older than 3 s is stale
    )
    better = _SHORT if s == 5 and how != "gone" else _AT_ONCE if how == "gone" and rate < 12 else _EVERY_5_S
    is_quick = s > 5 and (rate < 12 or how == "down" or s == 40) and (rate < 100 or (s == 40 and how != "slow"))
    return Scenario("dead", story, bounds, is_quick=is_quick, better=better)


def _time(s: float) -> str:
    return f"{s:g} s" if s < 100 else f"{s / 60:g} min" if s < HOUR_S else f"{s / HOUR_S:g} h"


def _partly(share: float, how: Condition, most: int) -> Scenario:
    """A share of the calls fails for about 5 min."""
    what = "half rolled-out retirement" if how == "gone" and share == 0.5 else "partly dead"
    story = Story(
        name=f"{what}: {share:.0%} {SAYS[how]}, 5 min, 12/s",
        rates=even(12),
        length_s=540.0,
        provider=lambda seed: Provider(outages=[stretched(Outage(70.0, 370.0, how, share), seed)]),
    )
    miss = _NOT_A_THIRD if share < 1 / 3 else ""
    return Scenario("partly dead", story, partial(partly_dead, most=most, miss=miss), is_quick=share == 0.5)


def _flapping(s: float, every_s: float, rate: float) -> Scenario:
    """Dead for some seconds, again and again."""
    outages = [Outage(70.0 + every_s * n, 70.0 + every_s * n + s, "down") for n in range(15)]
    story = Story(
        name=f"flapping: {s:g} s of each {every_s:g} s, {rate:g}/s",
        rates=even(rate),
        length_s=160.0 + every_s * 15,
        provider=lambda _seed: Provider(outages=outages),
    )
    return Scenario("flapping", story, _nothing, better=_EVERY_5_S)


def _noise(share: float, how: Condition, rate: float, length_s: float = HOUR_S) -> Scenario:
    """A healthy model that rejects or fails some calls, each for itself."""
    rejects, fails = (share, 0.0) if how == "gone" else (0.0, share)
    story = Story(
        name=f"noise: {share:.0%} {'rejected' if how == 'gone' else 'failed'}, {rate:g}/s, {_time(length_s)}",
        rates=even(rate, 20 if rate >= 100 else 4),
        length_s=length_s,
        provider=lambda _seed: Provider(rejects=rejects, fails=fails),
        sample_s=0.5,
    )
    miss = _FIRST_LESSONS if rate >= 100 else ""
    return Scenario("noise", story, partial(held, most=0.2, miss=miss), is_quick=share == 0.05 and rate == 4)


def _bursts(share: float, how: Condition) -> Scenario:
    """The same share, but half of the calls of 2 s at a time."""
    length_s = HOUR_S / 3
    story = Story(
        name=f"bursts: {share:.0%} {'rejected' if how == 'gone' else 'failed'}, half of 2 s, 12/s, {_time(length_s)}",
        rates=even(12),
        length_s=length_s,
        provider=lambda seed: Provider(bursts=bursts(share, how, length_s, seed)),
        sample_s=0.5,
    )
    return Scenario("noise", story, _nothing, better=_SELDOM_HOLDS)


def _uplink(says: str, rates: dict[str, float], from_s: float, fails: float) -> Scenario:
    """One replica reaches nothing."""
    story = Story(
        name=f"broken uplink at {says} of the calls from {from_s:g} s" + (f", {fails:.0%} noise" if fails else ""),
        rates=rates,
        length_s=1_200.0 + from_s,
        provider=lambda _seed: Provider(fails=fails, unreachable=frozenset({"r0"}), unreachable_from_s=from_s),
        sample_s=0.5,
    )
    others = partial(held, most=0.5, of=", at the other replicas", miss=_NOBODY_ELSE)
    bounds = both(others, partial(answered, miss=_NOBODY_ELSE if rates is _NEARLY_ALL else ""))
    return Scenario("broken uplink", story, bounds, is_quick=not fails and len(rates) < 20, better=_EJECTED)


def _throttled(hint_s: float | None, names_key: bool, replicas: int) -> Scenario:
    """Nothing but 429 for about 40 s."""
    story = Story(
        name=f"429 for 40 s, {_hint(hint_s, names_key)}, 36/s, {replicas} replicas",
        rates=even(36, replicas),
        length_s=180.0,
        provider=lambda seed: Provider(
            outages=[stretched(Outage(60.0, 100.0, "limited"), seed)], hint_s=hint_s, names_key=names_key
        ),
    )
    return Scenario("429", story, partial(throttled, most=25), is_quick=replicas == 20, better=_EVERY_5_S)


def _hint(hint_s: float | None, names_key: bool) -> str:
    says = "says truly when" if hint_s is None else f"says {hint_s:g} s" if hint_s else "does not say when"
    return says + (", of the key" if names_key else "")


def _limited(share: float, window_s: float, hint_s: float | None, names_key: bool, replicas: int) -> Scenario:
    """A provider that takes a share of what is offered."""
    rate = 36.0 if replicas == 20 else 12.0

    def limiter() -> Limiter:
        return Windows(rate * share * window_s, window_s) if window_s > 1 else Bucket(rate * share)

    by = "a minute" if window_s > 1 else "a second"
    story = Story(
        name=f"limited to {share:.0%} by {by}, {_hint(hint_s, names_key)}, {rate:g}/s, {replicas} replicas",
        rates=even(rate, replicas),
        length_s=300.0 if replicas == 4 else 180.0,
        provider=lambda _seed: Provider(limiter=limiter, hint_s=hint_s, names_key=names_key),
        sample_s=1.0,
    )
    return Scenario("limited", story, answered, is_quick=replicas == 4, better=_TAKES_ALL)


def _cold(s: float) -> Scenario:
    """After an outage it takes a tenth of its calls, a minute later all; the others get a 503."""

    def provider(seed: int) -> Provider:
        outage = stretched(Outage(60.0, 60.0 + s, "down"), seed)
        warm = (outage.to_s, outage.to_s + 60.0)
        return Provider(outages=[outage], limiter=lambda: Bucket(15.0, warm), over="down")

    story = Story(
        name=f"cold start: dead {_time(s)}, then 10 % to all of its capacity in 1 min, 12/s, 20 replicas",
        rates=even(12, 20),
        length_s=200.0 + 4 / 3 * s,
        provider=provider,
    )
    return Scenario("recovery", story, _nothing)


def _limited_by_faults(share: float) -> Scenario:
    """Who is over the limit gets a 500."""
    story = Story(
        name=f"takes {share:.0%} of 12/s, the others get a 500",
        rates=even(12),
        length_s=300.0,
        provider=lambda _seed: Provider(limiter=lambda: Bucket(12 * share), over="down"),
        sample_s=1.0,
    )
    return Scenario("limited", story, _nothing)


def _hourly(name: str, outages: Sequence[Outage], figures: Figures, noise: float = 0.0) -> Scenario:
    """Three calls an hour and replica."""
    story = Story(
        name=f"three calls an hour and replica: {name}",
        rates=even(12 / HOUR_S),
        length_s=7 * HOUR_S,
        provider=lambda _seed: Provider(outages=outages, rejects=noise, fails=noise),
        sample_s=20.0,
        checkpoint_every_s=2.9,
    )
    return Scenario("dead" if outages else "noise", story, figures, is_quick=True)


_MOST: Final = {"r0": 3.0, "r1": 0.05, "r2": 0.05, "r3": 0.05}
_HALF: Final = {"r0": 3.0, "r1": 1.0, "r2": 1.0, "r3": 1.0}
_NEARLY_ALL: Final = {"r0": 0.5, "r1": 3 / HOUR_S, "r2": 3 / HOUR_S, "r3": 3 / HOUR_S}
_PARTLY: Final[dict[Condition, tuple[int, int, int]]] = {
    "down": (260, 60, 30), "slow": (420, 220, 190), "gone": (60, 30, 20),
}  # fmt: skip
"""Calls until it is held at 30, 50 and 70 %: what 19 of 20 first outages take, and those in flight."""
_HINTS: Final[tuple[tuple[float | None, bool], ...]] = ((0.0, False), (1.0, False), (1.0, True), (None, False))
_LIMITS: Final[tuple[tuple[float, float | None, bool], ...]] = (
    (1.0, 0.0, False), (1.0, 1.0, False), (1.0, 1.0, True), (60.0, 0.0, False), (60.0, None, False),
)  # fmt: skip


def _all() -> Iterator[Scenario]:
    for how in SAYS:
        for s in (5.0, 40.0, 600.0):
            yield from (_died(s, how, rate) for rate in (0.05, 1.0, 4.0, 12.0, 100.0))
    for how, says in (("down", "500"), ("gone", "unknown model")):
        yield _died(40.0, how, 1.2, {"r0": 1.2}, f"a fleet of one: dead 40 s, {says}, 1.2/s")
    for s in (40.0, 600.0):
        yield _died(s, "down", 3.15, _MOST, f"dead {_time(s)}, 500, 3.15/s, 95 % of them one replica's")
    for how, says in (("gone", "unknown model"), ("down", "500")):
        yield _hourly(f"dead 4 h, {says}", [Outage(HOUR_S, 5 * HOUR_S, how)], partial(rare, free_s=1_200.0))
    for how, most in _PARTLY.items():
        yield from (_partly(share, how, calls) for share, calls in zip((0.3, 0.5, 0.7), most, strict=True))
    yield from (_flapping(*of) for of in ((10, 30, 4), (5, 60, 12), (30, 60, 1)))
    for how in ("gone", "down"):
        yield from (_noise(share, how, 4.0) for share in (0.01, 0.05, 0.1))
    yield _noise(0.1, "gone", 12.0)
    yield _noise(0.05, "gone", 100.0, 600.0)
    for how in ("gone", "down"):
        yield from (_bursts(share, how) for share in (0.01, 0.05, 0.1))
    yield _hourly("healthy, 1 % noise", (), both(partial(held, most=0.2), answered), 0.005)
    uplinks = (("95 %", _MOST), ("50 %", _HALF), ("5 %", even(12, 20)), ("nearly all", _NEARLY_ALL))
    for fails in (0.0, 0.05):
        for says, rates in uplinks:
            yield from (_uplink(says, rates, from_s, fails) for from_s in (0.0, 300.0) if from_s or not fails)
    for replicas in (4, 20):
        yield from (_throttled(hint_s, names_key, replicas) for hint_s, names_key in _HINTS)
    for replicas in (4, 20):
        for share in (0.5, 0.95):
            yield from (_limited(share, *of, replicas) for of in _LIMITS)
    yield from (_limited_by_faults(share) for share in (0.5, 0.95))
    yield from (_cold(s) for s in (40.0, 300.0))


SCENARIOS: Final = tuple(_all())
