"""Routers that call one target, together or each for itself, and what came of it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from sickbay.router.attempt import Attempt, AttemptOptions
from sickbay.router.client import MINUTE_S, Sickbay
from sickbay.router.errors import Held
from sickbay.router.gate import Gate
from sickbay.router.outbox import Reportable, fit
from sickbay.router.overlay import Overlay
from sickbay.router.reporter import CLOSE_LIMIT_S, Counts, Left
from sickbay.router.trials import Trials
from sickbay.view.entries import View
from sickbay_events import CallOutcome, CallsRefused, Event, Policy, Target
from virtual_loop import VirtualLoop

from .cluster import Cluster
from .provider import RAISED, SHAPES, Luck, Provider

BEGAN_S: Final = 1_800_000_000.0
"""Log time at which every story begins, seconds since the epoch."""
TARGET: Final = Target("api.example#team", "demo-1")
JOIN_S: Final = 1.0
"""Routers begin to call when they have heard of the cluster."""


@dataclass(frozen=True, kw_only=True)
class Story:
    """What happens. `rates` are the calls a second each replica has to make; `provider` makes one for each telling."""

    name: str
    rates: dict[str, float]
    length_s: float
    provider: Callable[[], Provider]
    limit_s: float = 12.0
    sample_s: float = 0.5
    checkpoint_every_s: float = 1.0
    policy: Policy = field(default_factory=Policy)


@dataclass
class Told:
    """What came of one telling.

    counts          `offered`, `made`, `refused`, and calls by what they got: `ok`, `down`, `limited`, ...
    dead            calls made freely while the target was dead
    dead_trials     calls made as trials meanwhile
    run             of the free ones, those that the fleet had folded since the last answer when its first hold began
    late_s          how long after the first hold of the fleet the last of the free ones began
    trials_failed   trials that were rejected or failed
    open_s          when, after it was dead, the target was first free to every replica; None if never
    held            share of the time in which a replica could not call freely, over all and by replica
    holds           how many of the fleet began
    """

    counts: Counter[str] = field(default_factory=Counter)
    dead: int = 0
    dead_trials: int = 0
    run: int = 0
    late_s: float = 0.0
    trials_failed: int = 0
    open_s: float | None = None
    held: float = 0.0
    held_by_replica: dict[str, float] = field(default_factory=dict)
    holds: int = 0

    @property
    def in_flight(self) -> int:
        """Free calls under way when the first hold began, or ended before a last answer that was under way."""
        return self.dead - self.run


class Outbox:
    """Hands a replica's events to the log, or to nobody."""

    is_forked = False

    def __init__(self, replica: Replica, cluster: Cluster | None, boot: str) -> None:
        self._replica, self._cluster, self._boot, self._n = replica, cluster, boot, 0

    def enqueue(self, target: Target, event: Reportable) -> int:
        """Send one event; its number."""
        self._n = n = self._n + 1
        if self._cluster is not None:
            waited = {} if isinstance(event, CallsRefused) else {"queued_ms": 1}
            sent = msgspec.structs.replace(fit(target, event), id=f"{self._boot}-{n}", **waited)
            told = self._replica.acknowledged
            self._cluster.publish(
                self._replica.name, target, sent, self._replica.delay_s, lambda seq: told(target, event, n, seq)
            )
        return n

    def start(self) -> None:
        """Nothing waits."""

    async def close(self, limit_s: float = CLOSE_LIMIT_S) -> Left:
        """Nothing is left."""
        return Left({})

    @property
    def counts(self) -> Counts:
        """As if all had arrived."""
        return Counts(
            recorded=self._n, acked=self._n, duplicates=0, resent=0, late=0, queued=0, unacknowledged=0,
            rejected={}, dropped={}, given_up={}, blocked="", why="",
        )  # fmt: skip


class Replica:
    """One router. What its calls meet is the same however the gate decides, so that two tellings can be compared."""

    def __init__(self, world: World, name: str, rate: float) -> None:
        self.name, self._world, self._rate = name, world, rate
        self._rng = random.Random(f"{world.seed} {name}")
        self.delay_s = self._rng.uniform(0.001, 0.006)
        """One way to the cluster."""
        self.counts: Counter[str] = Counter()
        self.samples = self.held = 0
        loop, cluster = world.loop, world.cluster
        self.view = View(monotonic=loop.time, wall=world.wall_s)
        self.overlay = Overlay(now_ms=self.view.now_ms, cluster=self.view.entries, replica=name)
        self.overlay.set_policy(world.story.policy)
        self.view.policy = world.story.policy
        self.gate = Gate(self.view, self.overlay, replica=name, machine=name, monotonic=loop.time)
        link = cluster.link(self.delay_s) if cluster is not None else None
        self.trials = Trials(link=link, view=self.view, gate=self.gate, replica=name, monotonic=loop.time)
        outbox = Outbox(self, cluster, f"{self._rng.getrandbits(64):016x}")
        self.outbox = outbox
        self.sb = Sickbay(
            link=None, mirror=self.view, overlay=self.overlay, gate=self.gate, reporter=outbox, trials=self.trials
        )
        if cluster is not None:
            cluster.join(self.view, self.delay_s)

    def start(self) -> None:
        """Begin in the running loop."""
        self.overlay.start()
        self.trials.start()
        self._world.loop.call_later(MINUTE_S, self._tell_refused)
        self._world.loop.call_later(JOIN_S + self._rng.expovariate(self._rate), self._next)

    def _tell_refused(self) -> None:
        """Calls that holds kept away, told each minute: so a replica is heard of that may call nothing."""
        for target, rule, count in self.gate.take_denials():
            self.outbox.enqueue(target, CallsRefused(count=count, rule=rule))
        if self._world.at_s < self._world.story.length_s:
            self._world.loop.call_later(MINUTE_S, self._tell_refused)

    def acknowledged(self, target: Target, event: Reportable, n: int, seq: int) -> None:
        """As `connect` binds the reporter to overlay and trials."""
        self.overlay.acknowledged(target, event, n, seq)
        self.trials.acked(n, seq)

    def sample(self) -> bool:
        """Look whether the target may be called freely."""
        is_held = not self.gate.look(TARGET).decision.allowed
        self.samples += 1
        self.held += is_held
        return is_held

    def _next(self) -> None:
        world = self._world
        if world.at_s >= world.story.length_s:
            return
        luck = Luck(self._rng.random(), self._rng.random())
        world.start(self._call(luck))
        world.loop.call_later(self._rng.expovariate(self._rate), self._next)

    async def _call(self, luck: Luck) -> None:
        world, counts = self._world, self.counts
        limit_s = world.story.limit_s
        counts["offered"] += 1
        attempt = Attempt(self.sb, TARGET, AttemptOptions(limit_s=limit_s), monotonic=world.loop.time)
        try:
            async with attempt:
                counts["made"] += 1
                began_s = world.at_s
                answer = world.provider.answer(self.name, began_s, limit_s, luck)
                counts[answer.condition] += 1
                is_trial = attempt.decision is not None and attempt.decision.trial
                if world.provider.is_dead(began_s):
                    world.dead_call(is_trial=is_trial)
                world.told.trials_failed += is_trial and answer.condition != "ok"
                await asyncio.sleep(answer.took_s)
                if answer.condition == "ok":
                    attempt.ok(status=200)
                elif answer.condition in RAISED:
                    attempt.error(RAISED[answer.condition]())
                else:
                    status, body = SHAPES[answer.condition]
                    headers = {"retry-after": str(answer.retry_after_s)} if answer.retry_after_s else {}
                    attempt.response(status, headers, body)
        except Held:
            counts["refused"] += 1


class World:
    """One telling of a story: `together` with a cluster, else each replica for itself, the same folds and all."""

    def __init__(self, story: Story, seed: int, *, together: bool) -> None:
        self.story, self.seed = story, seed
        self.loop = VirtualLoop()
        self._began_s = self.loop.time()
        self.cluster = (
            Cluster(self.loop, self.now_ms, policy=story.policy, checkpoint_every_s=story.checkpoint_every_s)
            if together
            else None
        )
        self.provider = story.provider()
        self.told = Told()
        self._tasks: set[asyncio.Task[None]] = set()
        self._faults: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _loop, fault: self._faults.append(fault))
        self._run = 0
        self._held_at_s: float | None = None
        self.replicas = [Replica(self, name, rate) for name, rate in story.rates.items()]

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

    def dead_call(self, *, is_trial: bool) -> None:
        """A call began that will get no answer."""
        if is_trial:
            self.told.dead_trials += 1
        else:
            self.told.dead += 1
            self.told.late_s = self.at_s - self._held_at_s if self._held_at_s is not None else 0.0

    def tell(self) -> Told:
        """Run to the end."""
        try:
            self.loop.run_until_complete(self._live())
        finally:
            self.loop.close()
        assert not self._faults, self._faults
        return self._sum()

    async def _live(self) -> None:
        if self.cluster is not None:
            self.cluster.on_held, self.cluster.folded = self._held, self._folded
            self.cluster.start()
        for replica in self.replicas:
            replica.start()
        while self.at_s < self.story.length_s:
            await asyncio.sleep(self.story.sample_s)
            held = [replica.sample() for replica in self.replicas]
            if self.told.open_s is None and self.at_s >= self.provider.dead_s[1] and not any(held):
                self.told.open_s = self.at_s - self.provider.dead_s[1]
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _folded(self, event: Event) -> None:
        """An event reached the fleet's fold."""
        if isinstance(event, CallOutcome):
            self._run = 0 if event.kind == "ok" else self._run + 1

    def _held(self) -> None:
        """A hold of the fleet began."""
        if self._held_at_s is None:
            self._held_at_s, self.told.run = self.at_s, self._run
        self.told.holds += 1

    def _sum(self) -> Told:
        told = self.told
        for replica in self.replicas:
            told.counts.update(replica.counts)
            told.held_by_replica[replica.name] = replica.held / max(1, replica.samples)
        told.held = sum(r.held for r in self.replicas) / max(1, sum(r.samples for r in self.replicas))
        return told


def tell(story: Story, seed: int, *, together: bool) -> Told:
    """Tell a story once."""
    return World(story, seed, together=together).tell()
