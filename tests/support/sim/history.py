"""One history from one seed: some time with faults, then time to heal, then the rules."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

import sickbay.bus.feed as feed_module
import sickbay.bus.link as link_module
import sickbay.bus.reader as reader_module
import sickbay.projector.loop as loop_module
import sickbay.projector.maintenance as maintenance_module
from sickbay.bus.topology import GATE_PREFIX, GATE_STREAM, LOG, TRANSITIONS
from sickbay_events import GateEntry

from .client import connect_on
from .ends import Broken, derived_fault, view_fault
from .faults import Faults
from .server import Server
from .virtual import VirtualLoop, bound
from .walk import Walk
from .watch import Watch
from .world import World

FAULTS_S = (6.0, 14.0)
HEAL_S = 60.0
"""All must be well again so long after the last fault: the longest hold is 12 s, and a probation has 120 s."""
SLOWER = {
    (maintenance_module, "TICK_S"): 0.2,
    (reader_module, "CHECK_S"): 0.2,
    (maintenance_module, "SNAPSHOT_EVERY_S"): 4.0,
    (loop_module, "MARK_EVERY"): 32,
    (feed_module, "HEARTBEAT_S"): 0.5,
}
"""Constants that only say how often something is looked at: less often, and a history costs less."""


class History(msgspec.Struct):
    """What one history was."""

    seed: int
    faults: Counter[str]
    counts: Counter[str]
    holds: Counter[str]
    sites: list[str]
    steps: int
    virtual_s: float
    events: int
    grants: int
    print: str
    """A digest of all that was stored: the same seed gives the same one."""
    broken: list[str]


@contextmanager
def _constants() -> Iterator[None]:
    before = {place: getattr(*place) for place in SLOWER}
    connect = vars(link_module)["connect_once"]
    for (module, name), value in SLOWER.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        _set_connect(connect)
        for (module, name), value in before.items():
            setattr(module, name, value)


def _set_connect(connect: Any) -> None:
    """What the product's links connect by from now on."""
    setattr(link_module, "connect_once", connect)  # noqa: B010 - it is another module's name there


def run(seed: int, only: tuple[str, ...] = ()) -> History:
    """Run one history. `only`: these faults and no others."""
    loop = VirtualLoop()
    with bound(loop, seed), _constants():
        story = _Story(seed, loop, only)
        try:
            loop.run_until_complete(story.tell())
        except Broken as broken:
            story.broken += [str(broken), *loop.unexpected]
        finally:
            loop.end()
    return story.history()


class _Story:
    def __init__(self, seed: int, loop: VirtualLoop, only: tuple[str, ...]) -> None:
        self.seed, self.loop = seed, loop
        self.rng = rng = random.Random(seed)
        self.server = Server(loop, rng)
        _set_connect(connect_on(self.server))
        self.world = World(loop, self.server, rng)
        self.faults = Faults(self.world)
        self.watch = Watch(self.server, self.faults)
        self.broken: list[str] = []
        self.walk: Walk | None = None
        self.only = only
        self._hash = hashlib.blake2b(digest_size=8)
        stored = self.watch._stored

        def noted(stream: Any, message: Any, client: Any) -> None:
            if loop.is_ending:
                return
            self._hash.update(b"%d %b %b" % (message.time_ns, message.subject.encode(), message.payload))
            stored(stream, message, client)

        self.server.on_stored = noted

    async def tell(self) -> None:
        rng, world, faults = self.rng, self.world, self.faults
        await world.start()
        await asyncio.sleep(1.0)
        names = [name for name in faults.names if name != "trouble"]
        lasts_s = rng.uniform(*FAULTS_S)
        chosen = [rng.choice(self.only or names) for _ in range(rng.randrange(2, 8))] + ["trouble"] * rng.randrange(
            1, 4
        )
        tasks = [self.loop.create_task(self._later(rng.uniform(0, lasts_s), name)) for name in chosen]
        compares = self.loop.create_task(self._compare_gates())
        await asyncio.sleep(lasts_s)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and task.exception() is not None:
                raise AssertionError(f"a fault failed: {task.exception()!r}") from task.exception()
        faults.heal()
        world.round = {}
        world.pause_s = 0.15
        await self._until_well()
        compares.cancel()
        self._check()

    async def _later(self, wait_s: float, name: str) -> None:
        await asyncio.sleep(wait_s)
        await self.faults.one(name)

    async def _until_well(self) -> None:
        """Traffic goes on until nothing is held, then ends; then everything must come to rest."""
        why = ""
        deadline_s = self.loop.time() + HEAL_S
        while self.loop.time() < deadline_s:
            await asyncio.sleep(1.0)
            why = self._held()
            if not why:
                break
        else:
            raise Broken(f"not well {HEAL_S} s after the last fault: {why}")
        self.world.is_calling = False
        if self.faults.counts["derived events deleted"]:
            await asyncio.sleep(maintenance_module.LOOK_EVERY_S + 1.0)  # nothing makes the writer look sooner
        deadline_s = self.loop.time() + HEAL_S
        while self.loop.time() < deadline_s:
            await asyncio.sleep(0.5)
            why = self._restless()
            if not why:
                return
        raise Broken(f"no rest {HEAL_S} s after the last call: {why}")

    def _held(self) -> str:
        """What is still held, or half open; "" if nothing."""
        for router in self.world.routers:
            why = router.node.ask(router.kept_from)
            if why:
                return why
        for key, message in self.server.standing(GATE_STREAM, GATE_PREFIX).items():
            if not key.startswith("=."):
                entry = msgspec.json.decode(message.payload, type=GateEntry)
                holds = [hold for hold in entry.holds if hold.over_ms > self.server.now_ns() // 10**6]
                if holds:
                    return f"{key}: {holds}"
        return ""

    def _restless(self) -> str:
        log = self.server.streams.get(LOG)
        if log is None or TRANSITIONS not in self.server.streams:
            return "there is no log, or none of what was derived"
        for router in self.world.routers:
            counts = router.sb.reporter.counts if router.sb is not None else None
            if counts is None or counts.queued or counts.unacknowledged:
                return f"{router.name}: {counts}"
        writers = 0
        for process in self.world.processes:
            p = process.projector
            if p is None or p.fleet.seq != log.last_seq or not p.state.is_caught_up:
                return f"{process.name} is at {p and p.fleet.seq} of {log.last_seq}: {p and process.node.ask(p.health)}"
            if p.state.transitions.waiting and p.is_writer:
                return f"{process.name} has {p.state.transitions.waiting} to tell"
            writers += p.is_writer and p.state.is_live
        if writers != 1:
            return f"{writers} write"
        now_ms = self.server.now_ns() // 10**6
        first = next(p.projector for p in self.world.processes)
        assert first is not None
        return view_fault(self.server, first.fleet, now_ms)

    async def _compare_gates(self) -> None:
        """Two gates that have read the bucket up to one revision hold the same (alike per name)."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.3, 0.9))
            self._compare_now()

    def _compare_now(self) -> None:
        seen: dict[int, tuple[str, dict[str, GateEntry]]] = {}
        for router in self.world.routers:
            mirror: Any = router.sb.mirror if router.sb is not None else None
            if mirror is None or not mirror.is_loaded or router.node.is_dead or router.node.is_paused:
                continue
            if mirror._wants_load or mirror._lost_at_revision is not None or mirror._map.is_loading:
                continue
            now_ms = router.node.ask(mirror.now_ms)
            entries = {k: e for k, e in mirror.entries.items() if e.expires_ms > now_ms + 2_000}
            other = seen.setdefault(mirror._map.revision, (router.name, entries))
            self.faults.counts["gates compared"] += other[0] != router.name
            if mirror._map.settled and other[1] != entries and not self.loop.is_ending:
                keys = [k for k in entries.keys() | other[1].keys() if entries.get(k) != other[1].get(k)]
                gap = [k for k in keys if (entries.get(k) or other[1][k]).expires_ms > now_ms + 10_000]
                if gap:
                    raise Broken(f"{router.name} and {other[0]} at one revision hold something else of {gap}")

    def _check(self) -> None:
        """All rules, now that all is at rest."""
        log = self.server.streams[LOG]
        # A step in events that were lost is not to be seen in the log, but the gates had that time.
        hidden_step = self.faults.log_changed and bool(self.faults.steps_back)
        self.walk = walk = Walk(log, stepped_back=hidden_step, freed=self.faults.freed)
        walk.go()
        broken = self.broken
        broken += self.watch.broken + walk.broken + self.loop.unexpected
        for process in self.world.processes:
            fleet = process.projector.fleet  # type: ignore[union-attr]
            if fleet.digest() != walk.fleet.digest() or fleet.seq != walk.fleet.seq:
                broken.append(f"{process.name}'s state is not that of a replay")  # Rule 7
        if walk.fleet.repeated != walk.repeats:
            broken.append(f"{walk.repeats} events of the log are repeats, the state counts {walk.fleet.repeated}")
        if sum(walk.fleet.skipped.values()) != walk.poison:
            broken.append(f"{walk.poison} events of the log cannot be read, the state counts {walk.fleet.skipped}")
        fault = derived_fault(self.server.streams[TRANSITIONS], walk, log_changed=self.faults.log_changed)
        broken += [fault] if fault else []
        self._check_acked(log)
        for router in self.world.routers:
            sb: Any = router.sb
            if sb.gate.counts["failed"] or sb.overlay.counts["failed"]:
                broken.append(f"{router.name} failed: {sb.gate.counts} {sb.overlay.counts}")
        self.faults.counts["repeats in the log"] += bool(walk.repeats)

    def _check_acked(self, log: Any) -> None:
        """Every acknowledged event is in the log, and every other one is told of."""
        ids = {(m.subject.split(".")[2], _id(m.payload)) for m in log.messages.values() if m.subject.count(".") > 3}
        for name, acked in self.world.acked.items():
            missing = [one for one in acked if (name, one) not in ids]
            if missing and not self.faults.log_changed:
                self.broken.append(f"acknowledged events of {name} are not in the log: {missing[:3]}")
        for router in self.world.routers:
            counts = router.sb.reporter.counts  # type: ignore[union-attr]
            told = counts.acked + sum(counts.dropped.values()) + sum(counts.given_up.values())
            if counts.recorded != told:
                self.broken.append(f"{router.name} recorded {counts.recorded} and told of {told}")

    def history(self) -> History:
        """What it was."""
        log = self.server.streams.get(LOG)
        return History(
            seed=self.seed,
            faults=self.faults.counts,
            counts=self.world.counts + self.server.counts,
            holds=self.walk.holds_begun if self.walk is not None else Counter(),
            sites=sorted(self.faults.sites),
            steps=self.loop.lived_steps,
            virtual_s=round(self.loop.time(), 1),
            events=log.last_seq if log is not None else 0,
            grants=self.watch.grants,
            print=self._hash.hexdigest(),
            broken=self.broken,
        )


def _id(payload: bytes) -> str:
    try:
        found = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return str(found.get("id", "")) if isinstance(found, dict) else ""
