"""Routers that call one target, under the product or a rival's policy, and what came of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from sickbay_events import CallOutcome, Policy
from sickbay_projections import Recorded
from virtual_loop import VirtualLoop

from .callers import Caller, product, ruled
from .cluster import Cluster
from .provider import Provider
from .rivals import RIVALS

BEGAN_S: Final = 1_800_000_000.0
"""Log time at which every story begins, seconds since the epoch."""
SOON_S: Final = 0.02
"""Within this a hold is known to every gate: the network's ways of this model are 1 to 6 ms each."""
TOGETHER, ALONE = "Sickbay", "each for itself"
SIDES: Final = (TOGETHER, ALONE, *RIVALS)
"""The product with its cluster, the product with the cluster off, and the rivals."""


@dataclass(frozen=True, kw_only=True)
class Story:
    """What happens. `rates` are the calls a second each replica has to make; `provider` makes one from a seed."""

    name: str
    rates: dict[str, float]
    length_s: float
    provider: Callable[[int], Provider]
    limit_s: float = 12.0
    sample_s: float = 0.25
    checkpoint_every_s: float = 1.0
    policy: Policy = field(default_factory=Policy)


@dataclass
class Told:
    """What came of one telling.

    counts          those of all replicas (`Caller`)
    dead            calls made freely that an outage met, and those of them begun by the time all knew of a hold
    dead_trials     calls made as trials meanwhile; at most so many of them at once
    word            by the fleet's first hold in an outage, what was folded of it: replica, was it answered
    late_s          how long after the first hold of the fleet the last of the free ones began
    held_after_s    when, after the first outage began, no replica was free; None if never in it
    free_after_s    when, after the last outage ended, all were free; None if never
    outage_s        how long the outages were
    held_well       share of the time without outage in which a replica that reaches the target could not call it
    holds           how many of the fleet began
    """

    counts: Counter[str] = field(default_factory=Counter)
    dead: int = 0
    dead_by_hold: int = 0
    dead_trials: int = 0
    trials_at_once: int = 0
    word: list[tuple[str, bool]] = field(default_factory=list)
    late_s: float = 0.0
    held_after_s: float | None = None
    free_after_s: float | None = None
    outage_s: float = 0.0
    held_well: float = 0.0
    holds: int = 0
    is_hold_of_outage: bool = False

    @property
    def run(self) -> int:
        """Failures that the fleet had folded when its first hold in the outage began."""
        return sum(not is_ok for _, is_ok in self.word)

    @property
    def in_flight(self) -> int:
        """Free calls under way when the first hold began."""
        return self.dead_by_hold - self.run

    @property
    def cost(self) -> int:
        """Calls made that were not answered, and calls refused that would have been."""
        return self.counts["bad"] + self.counts["lost"]


class World:
    """One telling of a story under one of `SIDES`."""

    def __init__(self, story: Story, seed: int, side: str) -> None:
        self.story, self.seed = story, seed
        self.loop = VirtualLoop()
        self._began_s = self.loop.time()
        self.provider = story.provider(seed)
        self.told = Told(outage_s=sum(outage.to_s - outage.from_s for outage in self.provider.outages))
        self._tasks: set[asyncio.Task[None]] = set()
        self._faults: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _loop, fault: self._faults.append(fault))
        self._held_at_s: float | None = None
        self._trials = self._samples = self._held_samples = 0
        self.cluster: Cluster | None = None
        if side == TOGETHER:
            self.cluster = Cluster(
                self.loop, self.now_ms, policy=story.policy, checkpoint_every_s=story.checkpoint_every_s
            )
        self.callers: list[Caller] = ruled(self, RIVALS[side]) if side in RIVALS else product(self, self.cluster)

    @property
    def at_s(self) -> float:
        """Seconds since the beginning."""
        return self.loop.time() - self._began_s

    def wall_s(self) -> float:
        """What clocks show, seconds since the epoch."""
        return BEGAN_S + self.at_s

    def now_ms(self) -> int:
        """Log time."""
        return int(self.wall_s() * 1000)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin a call."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._called)

    def _called(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        task.result()

    def dead_call(self, took_s: float, *, is_trial: bool) -> None:
        """A call began that an outage meets."""
        told = self.told
        if is_trial:
            told.dead_trials += 1
            self._trials += 1
            told.trials_at_once = max(told.trials_at_once, self._trials)
            self.loop.call_later(took_s, self._trial_over)
            return
        told.dead += 1
        late_s = self.at_s - self._held_at_s if self._held_at_s is not None else 0.0
        told.late_s = max(told.late_s, late_s)
        told.dead_by_hold += late_s <= SOON_S

    def _trial_over(self) -> None:
        self._trials -= 1

    def tell(self) -> Told:
        """Run to the end."""
        try:
            self.loop.run_until_complete(self._live())
        finally:
            self.loop.close()
        assert not self._faults, self._faults
        for caller in self.callers:
            self.told.counts.update(caller.counts)
        self.told.held_well = self._held_samples / max(1, self._samples)
        return self.told

    async def _live(self) -> None:
        if self.cluster is not None:
            self.cluster.on_held, self.cluster.folded = self._held, self._folded
            self.cluster.start()
        for caller in self.callers:
            caller.start()
        while self.at_s < self.story.length_s:
            await asyncio.sleep(self.story.sample_s)
            self._sample()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _sample(self) -> None:
        told, at_s, provider = self.told, self.at_s, self.provider
        held = {caller.name for caller in self.callers if not caller.is_free()}
        if not provider.is_out(at_s):
            self._samples += len(self.callers) - len(provider.unreachable)
            self._held_samples += len(held - provider.unreachable)
        if not provider.outages:
            return
        first, last = provider.outages[0], provider.outages[-1]
        if told.held_after_s is None and first.from_s <= at_s < first.to_s and len(held) == len(self.callers):
            told.held_after_s = at_s - first.from_s
        if told.free_after_s is None and at_s >= last.to_s and not held:
            after_s = at_s - last.to_s
            told.free_after_s = after_s if after_s > self.story.sample_s else 0.0

    def _folded(self, recorded: Recorded) -> None:
        """An event reached the fleet's fold."""
        if self._held_at_s is None and isinstance(recorded.event, CallOutcome) and self.provider.is_out(self.at_s):
            self.told.word.append((recorded.replica, recorded.event.kind == "ok"))

    def _held(self) -> None:
        """A hold of the fleet began."""
        self.told.holds += 1
        if self._held_at_s is None and self.provider.is_out(self.at_s):
            self._held_at_s, self.told.is_hold_of_outage = self.at_s, True


def tell(story: Story, seed: int, side: str = TOGETHER) -> Told:
    """Tell a story once."""
    return World(story, seed, side).tell()
