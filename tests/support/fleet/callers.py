"""Who calls: routers with the product in them, or with a rival's policy. What their calls meet is the same."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from sickbay.router.attempt import Attempt
from sickbay.router.attempt_host import AttemptOptions
from sickbay.router.client import MINUTE_S, Sickbay
from sickbay.router.errors import Held
from sickbay.router.gate import Gate
from sickbay.router.outbox import Reportable, fit
from sickbay.router.overlay import Overlay
from sickbay.router.reporter import CLOSE_LIMIT_S, Counts, Left
from sickbay.router.trials import Trials
from sickbay.view.entries import View
from sickbay_events import CallsRefused, Target

from .cluster import Cluster
from .provider import RAISED, Answer, Luck
from .rivals import Asked, Rival

if TYPE_CHECKING:
    from .world import World

TARGET = Target("api.example#team", "demo-1")
JOIN_S = 1.0
"""Routers begin to call when they have heard of the cluster."""


class Caller(ABC):
    """One replica: when it calls, and the luck of each call, come from its own seed, however its policy decides.

    counts          `offered`, `made`, `refused`, `lost` (refused, and would have been answered), `bad` (made, and
                    not answered), `bad_trials`, `trials`, and calls by what they met: `ok`, `down`, `limited`, ...
    """

    def __init__(self, world: World, name: str, rate: float) -> None:
        self.name, self.world, self._rate = name, world, rate
        self.rng = random.Random(f"{world.seed} {name}")
        self.delay_s = self.rng.uniform(0.001, 0.006)
        """One way to the cluster."""
        self._luck = random.Random(f"{world.seed} {name} calls")
        self.counts: Counter[str] = Counter()

    def start(self) -> None:
        """Begin in the running loop."""
        self.world.loop.call_later(JOIN_S + self._luck.expovariate(self._rate), self._next)

    def _next(self) -> None:
        if self.world.at_s >= self.world.story.length_s:
            return
        luck = Luck(self._luck.random(), self._luck.random(), self._luck.random())
        self.counts["offered"] += 1
        self.call(luck)
        self.world.loop.call_later(self._luck.expovariate(self._rate), self._next)

    @abstractmethod
    def is_free(self) -> bool:
        """Whether the target may be called freely now."""

    @abstractmethod
    def call(self, luck: Luck) -> None:
        """Make one call, if it may be made."""

    def meet(self, luck: Luck, *, is_trial: bool) -> Answer:
        """The call is made now."""
        world, counts = self.world, self.counts
        answer = world.provider.answer(self.name, world.at_s, world.story.limit_s, luck)
        counts["made"] += 1
        counts[answer.condition] += 1
        counts["trials"] += is_trial
        if answer.condition != "ok":
            counts["bad"] += 1
            counts["bad_trials"] += is_trial
            if world.provider.is_dead(world.at_s, luck):
                world.dead_call(answer.took_s, is_trial=is_trial)
        return answer

    def refuse(self, luck: Luck) -> None:
        """The call is not made."""
        self.counts["refused"] += 1
        self.counts["lost"] += self.world.provider.would_answer(self.name, self.world.at_s, luck)


class Ruled(Caller):
    """A replica with a rival's policy."""

    def __init__(self, world: World, name: str, rate: float, rival: Rival) -> None:
        super().__init__(world, name, rate)
        self._rival = rival

    def is_free(self) -> bool:
        """See `Caller`."""
        return self._rival.is_free(self.name, self.world.at_s)

    def call(self, luck: Luck) -> None:
        """See `Caller`."""
        asked = self._rival.ask(self.name, self.world.at_s)
        if asked == "no":
            self.refuse(luck)
            return
        answer = self.meet(luck, is_trial=asked == "trial")
        self.world.loop.call_later(answer.took_s, self._told, answer, asked)

    def _told(self, answer: Answer, asked: Asked) -> None:
        self._rival.told(self.name, self.world.at_s, answer.condition, answer.retry_after_s, asked)


class Outbox:
    """Hands a replica's events to the log, or to nobody."""

    def __init__(self, replica: Router, cluster: Cluster | None, boot: str) -> None:
        self._replica, self._cluster, self._boot, self._n = replica, cluster, boot, 0

    is_forked = False

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


class Router(Caller):
    """A replica with the product: its gate, overlay, trials and classifier."""

    def __init__(self, world: World, name: str, rate: float, cluster: Cluster | None) -> None:
        super().__init__(world, name, rate)
        loop = world.loop
        self.view = View(monotonic=loop.time, wall=world.wall_s)
        self.overlay = Overlay(now_ms=self.view.now_ms, cluster=self.view.entries, replica=name)
        self.overlay.set_policy(world.story.policy)
        self.view.policy = world.story.policy
        self.gate = Gate(self.view, self.overlay, replica=name, machine=name, monotonic=loop.time)
        link = cluster.link(self.delay_s) if cluster is not None else None
        self.trials = Trials(link=link, view=self.view, gate=self.gate, replica=name, monotonic=loop.time)
        self.outbox = Outbox(self, cluster, f"{self.rng.getrandbits(64):016x}")
        self.sb = Sickbay(
            link=None, mirror=self.view, overlay=self.overlay, gate=self.gate, reporter=self.outbox, trials=self.trials
        )
        if cluster is not None:
            cluster.join(self.view, self.delay_s)

    def start(self) -> None:
        """See `Caller`."""
        self.overlay.start()
        self.trials.start()
        self.world.loop.call_later(MINUTE_S, self._tell_refused)
        super().start()

    def _tell_refused(self) -> None:
        """Calls that holds kept away, told each minute: so a replica is heard of that may call nothing."""
        for target, rule, count, until_ms in self.gate.take_denials():
            self.outbox.enqueue(target, CallsRefused(count=count, rule=rule, alone_until_ms=until_ms or None))
        if self.world.at_s < self.world.story.length_s:
            self.world.loop.call_later(MINUTE_S, self._tell_refused)

    def acknowledged(self, target: Target, event: Reportable, n: int, seq: int) -> None:
        """As `connect` binds the reporter to overlay and trials."""
        self.overlay.acknowledged(target, event, n, seq)
        self.trials.acked(n, seq)

    def is_free(self) -> bool:
        """See `Caller`."""
        return self.gate.look(TARGET).decision.allowed

    def call(self, luck: Luck) -> None:
        """See `Caller`."""
        self.world.start(self._attempt(luck))

    async def _attempt(self, luck: Luck) -> None:
        world = self.world
        attempt = Attempt(self.sb, TARGET, AttemptOptions(limit_s=world.story.limit_s), monotonic=world.loop.time)
        try:
            async with attempt:
                is_trial = attempt.decision is not None and attempt.decision.trial
                answer = self.meet(luck, is_trial=is_trial)
                await asyncio.sleep(answer.took_s)
                if answer.condition == "ok":
                    attempt.ok(status=200)
                elif answer.condition in RAISED:
                    attempt.error(RAISED[answer.condition]())
                else:
                    status, body = world.provider.shapes[answer.condition]
                    headers = {"retry-after": str(answer.retry_after_s)} if answer.retry_after_s else {}
                    attempt.response(status, headers, body)
        except Held:
            self.refuse(luck)


def product(world: World, cluster: Cluster | None) -> list[Caller]:
    """The story's replicas, each with the product."""
    return [Router(world, name, rate, cluster) for name, rate in world.story.rates.items()]


def ruled(world: World, rival: Callable[[list[str]], Rival]) -> list[Caller]:
    """The same with one policy for all."""
    policy = rival(list(world.story.rates))
    return [Ruled(world, name, rate, policy) for name, rate in world.story.rates.items()]
