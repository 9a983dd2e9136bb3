"""What goes wrong, each by a function that does it once and counts it where it really happened."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from sickbay.bus.topology import GATE_STREAM, LOG, TRANSITIONS, TRIALS_STREAM
from sickbay_events import Scope

from .virtual import Node
from .world import CONDITIONS, POISON, TARGETS, TIMES, UNKNOWN_VERSION, Process, Router, World

ENDLESS_MS: Final = 9_999_999_999_999
LIE: Final = {
    "provider": "b.test", "holds": [{"rule": "breaker", "began_seq": 1, "end_ms": ENDLESS_MS}], "expires_ms": ENDLESS_MS
}  # fmt: skip


class Faults:
    """The faults of one history. `sites` are the awaits at which a projector was killed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng
        self.counts: Counter[str] = Counter()
        self.sites: set[str] = set()
        self.steps_back: list[float] = []
        """By how many seconds the log's clock went back."""
        self.log_changed = False
        """The log lost events or was made anew: what was acknowledged before need not be in it."""
        self.freed: set[str] = set()
        """Leases that were taken away from their holders."""
        self.dishonest: set[str] = set()
        """Replicas that lied, or could not reach anybody."""
        self._after: list[Callable[[], None]] = []
        self.names = list(_FAULTS)

    async def one(self, name: str) -> None:
        """Do one of them."""
        await _FAULTS[name](self)

    def heal(self) -> None:
        """End what goes on."""
        world, server = self.world, self.world.server
        for undo in self._after:
            undo()
        server.downs = 0
        for table in (server.slow, server.cut_off, server.lose_acks, server.again):
            table.clear()
        machines: list[Router | Process] = [*world.routers, *world.processes]
        for which in machines:
            which.node.die_at = which.node.die_if = None
            if which.node.is_paused:
                which.node.resume()
            if which.node.is_dead:
                world.restart(which)
        for router in world.routers:
            router.sees = None
        world.truth.clear()

    # The network.

    def _some(self) -> Node:
        machines: list[Router | Process] = [*self.world.routers, *self.world.processes]
        return self.rng.choice(machines).node

    async def slow_network(self) -> None:
        node = self.rng.choice(self.world.routers).node
        before = self.world.server.counts["reordered"]
        self.world.server.slow[node] = self.rng.choice((0.1, 0.5, 1.5))
        await asyncio.sleep(self.rng.uniform(1, 4))
        self.world.server.slow.pop(node, None)
        self.counts["reordering between replicas"] += self.world.server.counts["reordered"] > before

    async def lost_acks(self) -> None:
        node = self._some()
        before = self.world.server.counts["lost_ack"]
        self.world.server.lose_acks[node] = self.rng.choice((0.1, 0.5, 1.0))
        await asyncio.sleep(self.rng.uniform(1, 4))
        self.world.server.lose_acks.pop(node, None)
        self.counts["lost acknowledgements"] += self.world.server.counts["lost_ack"] > before

    async def duplicates(self) -> None:
        node = self.rng.choice(self.world.routers).node
        before = self.world.server.counts["sent_again"]
        self.world.server.again[node] = self.rng.choice((0.2, 1.0))
        await asyncio.sleep(self.rng.uniform(1, 4))
        self.world.server.again.pop(node, None)
        self.counts["duplicates"] += self.world.server.counts["sent_again"] > before

    async def cut_off(self) -> None:
        node, server = self._some(), self.world.server
        server.cut_off.add(node)
        for connection in [c for c in server.connections if c.client.node is node]:
            connection.client.lose(up=self.rng.random() < 0.5)
            self.counts["a node cut off from the log"] += 1
        await asyncio.sleep(self.rng.uniform(0.2, 5))
        server.cut_off.discard(node)

    # Processes.

    async def _pause(self, which: Router | Process) -> None:
        if not which.node.is_dead and not which.node.is_paused:
            which.node.pause()
            await asyncio.sleep(self.rng.choice((0.3, 1.2, 3.5, 6.0)))
            which.node.resume()

    async def paused_replica(self) -> None:
        self.counts["replica paused and revived"] += 1
        await self._pause(self.rng.choice(self.world.routers))

    async def killed_replica(self) -> None:
        await self._kill(self.rng.choice(self.world.routers))
        self.counts["replica killed"] += 1

    async def lost_lease(self) -> None:
        """The holder of a lease is killed, or its key is swept away."""
        for _ in range(100):
            holders = [router for router in self.world.routers if router.trials and not router.node.is_dead]
            if holders:
                self.counts["lease lost with its holder"] += 1
                await self._kill(self.rng.choice(holders))
                return
            await asyncio.sleep(0.05)

    async def purged_lease(self) -> None:
        for _ in range(100):
            stream = self.world.server.streams.get(TRIALS_STREAM)
            standing = [m for m in stream.messages.values() if not m.is_gone] if stream is not None else []
            if stream is not None and standing:
                message = self.rng.choice(standing)
                stream.remove(message.seq)
                self.freed.add(message.subject)
                self.counts["lease taken away"] += 1
                return
            await asyncio.sleep(0.05)

    async def _kill(self, which: Router | Process) -> None:
        which.node.kill()
        await asyncio.sleep(self.rng.uniform(0.1, 3))
        self._come_back(which)

    def _come_back(self, which: Router | Process) -> None:
        where: list[Any] = self.world.routers if isinstance(which, Router) else self.world.processes
        if which in where:
            self.world.restart(which)

    def writer(self) -> Process | None:
        """The process that holds the checkpoint."""
        found = [p for p in self.world.processes if p.projector is not None and p.projector.is_writer]
        return self.rng.choice(found) if found else None

    async def sleeping_projector(self) -> None:
        """The writer sleeps, so that another one takes over, and wakes up as if nothing had been."""
        which = self.writer()
        if which is not None and not which.node.is_paused:
            which.node.pause()
            await asyncio.sleep(self.rng.choice((0.7, 1.5, 4.5, 6.0)))
            others = [p for p in self.world.processes if p is not which and p.projector and p.projector.is_writer]
            self.counts["rival projectors"] += bool(others)
            self.counts["projector that slept"] += 1
            which.node.resume()

    async def killed_projector(self) -> None:
        """A projector is killed before one of its next steps, so at any await."""
        which = self.rng.choice(self.world.processes) if self.rng.random() < 0.5 else self.writer()
        if which is not None:
            await self._die_in(which, self.rng.randrange(1, self.rng.choice((5, 50, 400))))

    async def killed_starting_projector(self) -> None:
        """A projector is killed while it starts."""
        which = self.rng.choice(self.world.processes)
        await self._kill(which)
        again = next(p for p in self.world.processes if p.name == which.name)
        await self._die_in(again, self.rng.randrange(1, 120))

    async def killed_writing_projector(self) -> None:
        """The writer is killed some steps after something made it write."""
        which, before = self.writer(), self._held()
        for _ in range(200):
            if self._held() != before:
                break
            await asyncio.sleep(0.02)
        if which is not None and not which.node.is_dead:
            await self._die_in(which, self.rng.randrange(1, 30))

    def _held(self) -> int:
        stream = self.world.server.streams.get(TRANSITIONS)
        return stream.last_seq if stream is not None else 0

    async def projector_killed_at(self) -> None:
        """A projector is killed while it waits in one chosen function."""
        which = self.rng.choice(self.world.processes) if self.rng.random() < 0.3 else self.writer()
        function = self.rng.choice(AWAITS)
        if self.rng.random() < 0.3 and which is not None and not which.node.is_dead:
            await self._kill(which)
            which = next(p for p in self.world.processes if p.name == which.name)
        if which is not None:
            node = which.node
            node.die_if = lambda: any(function in site for site in standing_at(node))
            await self._wait_for_death(which)

    async def _die_in(self, which: Process, steps: int) -> None:
        which.node.die_at = which.node.steps + steps
        await self._wait_for_death(which)

    async def _wait_for_death(self, which: Process) -> None:
        node = which.node
        if node.is_dead:
            return
        node.on_death = lambda: self.sites.update(standing_at(node))
        for _ in range(100):
            if node.is_dead:
                break
            await asyncio.sleep(0.05)
        node.die_at = node.die_if = None
        if node.is_dead:
            self.counts["projector crash"] += 1
            await asyncio.sleep(self.rng.uniform(0.05, 3))
            self._come_back(which)

    # The server.

    async def _down(self, lose: Callable[[], None] = lambda: None) -> None:
        """The server dies, with what `lose` takes away, and comes back."""
        server = self.world.server
        server.downs += 1
        server.break_all()
        lose()
        await asyncio.sleep(self.rng.choice((0.05, 0.5, 2.0)))
        server.downs -= 1

    async def restarted_server(self) -> None:
        await self._down()
        self.counts["server restart"] += 1

    async def lost_tail(self) -> None:
        """The server comes back without the end of the log, whose sequences are given again."""
        await self._down(self._lose_tail)
        self.world.server.source()

    def _lose_tail(self) -> None:
        log = self.world.server.streams.get(LOG)
        if log is not None:
            before = log.last_seq
            # The first event stays, which is the policy: without it the product's own long times would hold.
            lost = log.cut_tail(min(self.rng.randrange(1, 30), max(0, log.last_seq - 1)))
            self.log_changed = self.log_changed or bool(lost)
            self.counts["log tail lost"] += bool(lost)
            self._after.append(lambda: self.counts.update({"sequences reused": int(log.last_seq >= before)}))

    async def recreated_log(self) -> None:
        self.world.server.delete_stream(LOG)
        self.log_changed = True
        self.counts["log stream recreated"] += 1

    async def deleted_bucket(self) -> None:
        self.world.server.delete_stream(GATE_STREAM)
        self.counts["view's bucket deleted"] += 1

    async def deleted_transitions(self) -> None:
        """What was derived is gone, and whoever looks first makes the stream anew."""
        stream = self.world.server.streams.get(TRANSITIONS)
        self.world.server.delete_stream(TRANSITIONS)
        self.counts["derived events deleted"] += bool(stream is not None and stream.last_seq)

    async def lie_in_the_bucket(self) -> None:
        bucket = self.world.server.streams.get(GATE_STREAM)
        if bucket is not None:
            key = self.rng.choice([*[target.key for target in TARGETS], "c=2Etest.=.m/never"])
            self.world.server.store(bucket, f"$KV.sickbay.gate.{key}", {}, json.dumps(LIE).encode())
            self.counts["foreign entry in the view"] += 1

    # Clocks.

    async def log_clock_steps(self) -> None:
        step_s = self.rng.choice((-30.0, -5.0, -1.5, 1.5, 5.0, 20.0))
        if step_s < 0:
            self.steps_back.append(-step_s)
        self.world.server.clock_s += step_s
        self.counts["clock step in the log"] += 1

    async def replica_clock_steps(self) -> None:
        node = self._some()
        node.wall_s += self.rng.choice((-3600.0, -10.0, 10.0, 3600.0))
        self.counts["clock step on a replica"] += 1

    # What is reported.

    async def poison(self) -> None:
        for _ in range(self.rng.randrange(1, 15)):
            self.counts["poison"] += self.world.raw(self.rng.choice(POISON))
        self.counts["poison"] += self.world.raw(b'{"kind":"ok"}', subject="sickbay.outcome.bad")

    async def unknown_version(self) -> None:
        self.counts["unknown version"] += self.world.raw(UNKNOWN_VERSION)

    async def broken_uplink(self) -> None:
        router = self.rng.choice(self.world.routers)
        router.sees = "network"
        self.dishonest.add(router.name)
        before = self.world.counts["call network"]
        await asyncio.sleep(self.rng.uniform(2, 6))
        router.sees = None
        self.counts["replica with a broken uplink"] += self.world.counts["call network"] > before

    async def lying_replica(self) -> None:
        router = self.rng.choice(self.world.routers)
        router.sees = condition = self.rng.choice(("gone", "down", "empty", "auth", "limited", "quota"))
        self.dishonest.add(router.name)
        before = self.world.counts[f"call {condition}"]
        await asyncio.sleep(self.rng.uniform(2, 6))
        router.sees = None
        self.counts["lying replica"] += self.world.counts[f"call {condition}"] > before

    # What is no fault, but the reason of all this.

    async def trouble(self) -> None:
        """Some targets are in trouble, one or all of a host."""
        host = self.rng.choice(("a.test", "b.test"))
        these = [t for t in TARGETS if t.provider.startswith(host)] if self.rng.random() < 0.3 else []
        condition = self.rng.choice(CONDITIONS)
        for target in these or [self.rng.choice(TARGETS)]:
            self.world.truth[target] = condition
        self.counts["a target in trouble"] += 1
        await asyncio.sleep(self.rng.uniform(2, 10))
        for target in list(self.world.truth):
            if self.world.truth[target] == condition:
                del self.world.truth[target]

    async def operator(self) -> None:
        scope = self.rng.choice(TARGETS).scope
        scope = self.rng.choice((scope, Scope(scope.host), Scope(scope.host, scope.alias)))
        self.world.override(scope, self.rng.choice(("hold", "allow", "clear")), self.rng.uniform(1, 6))
        self.counts["operator's act"] += 1

    async def other_policy(self) -> None:
        data = {**TIMES, "rejections": {**TIMES["rejections"], "growth": self.rng.choice((1.0, 2.0))}}
        self.world.set_policy(self.rng.choice((data, data, {"nonsense": 1})))
        self.counts["policy changed"] += 1


AWAITS: Final = (
    "_read_log", "_load", "seed_policy", "ensure", "read_end", "newest_fit", "fold_lost", "reader.py:_open",
    "reader.py:close", "_pass", "_tick", "_attend", "publish.py:open", "leases.py:_bury", "view_feed.py:load_all",
    "_ensure",
    "compare_all", "look_after", "_standing_checkpoint", "claim", "_keep_checkpoint", "transitions.py:take_over",
    "deadletters.py:take_over", "maintenance.py:_take_over", "folded_to", "maintenance.py:_store", "snapshots.py:store",
    "leases.py:_take_one", "leases.py:_put", "leases.py:_give_back", "leases.py:_current",
)  # fmt: skip
"""Functions of a services process that await something."""


def standing_at(node: Node) -> set[str]:
    """For each task of a node the product's functions in which it waits, outermost first: `file:function:line`."""
    found: set[str] = set()
    for task in node.tasks:
        chain, coroutine = [], task.get_coro() if not task.done() else None
        while coroutine is not None:
            frame = getattr(coroutine, "cr_frame", None)
            if frame is not None and "/sickbay/" in frame.f_code.co_filename:
                file = frame.f_code.co_filename.rpartition("/")[2]
                chain.append(f"{file}:{frame.f_code.co_name}:{frame.f_lineno}")
            coroutine = getattr(coroutine, "cr_await", None)
        if chain:
            found.add(" > ".join(chain))
    return found


FAULTS_WANTED: Final = (
    "duplicates",
    "repeats in the log",
    "lost acknowledgements",
    "reordering between replicas",
    "replica paused and revived",
    "replica killed",
    "projector crash",
    "rival projectors",
    "projector that slept",
    "log tail lost",
    "sequences reused",
    "log stream recreated",
    "clock step in the log",
    "clock step on a replica",
    "poison",
    "unknown version",
    "lease lost with its holder",
    "lease taken away",
    "replica with a broken uplink",
    "lying replica",
    "server restart",
    "a node cut off from the log",
    "view's bucket deleted",
    "derived events deleted",
    "foreign entry in the view",
    "policy changed",
    "operator's act",
    "gates compared",
)
"""What must happen in many histories, by the name under which it is counted."""
_Fault = Callable[[Faults], Awaitable[None]]
_FAULTS: Final[dict[str, _Fault]] = {
    name: function
    for name, function in vars(Faults).items()
    if asyncio.iscoroutinefunction(function) and not name.startswith("_") and name != "one"
}
