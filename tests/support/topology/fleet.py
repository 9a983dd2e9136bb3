"""Routers, a load and an operator on a topology, and what must hold whatever was done to it."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
from nats.aio.client import Client

import sickbay
from cli_runs import Done, sickbay_process
from projector_processes import Load
from sickbay import Sickbay
from sickbay.bus.connect import NatsOptions, connect_client
from sickbay.bus.jetstream import JetStreamApi
from sickbay.bus.link import BorrowedConnection
from sickbay.bus.reader import CaughtUp, Chunk, LogReader
from sickbay.bus.topology import LOG
from sickbay.control.acts import NotStored, publish_override
from sickbay_events import CallOutcome, Target
from waiting import patience, until

from .running import Running, Topology

ROUTERS = 3
IN_FORCE_S = 60.0


class Counted(Load):
    """A load that knows each event that was acknowledged to it."""

    def __init__(self, client: Client, seed: int) -> None:
        super().__init__(client, seed=seed)
        self.stored: dict[str, int] = {}

    async def send(self, replica: str, target: Target, outcome: CallOutcome) -> int:
        """Until it is acknowledged; its sequence."""
        seq = await super().send(replica, target, outcome)
        self.stored[str(outcome.id)] = seq
        return seq

    async def more(self, count: int) -> None:
        """Wait until so many more are acknowledged."""
        wanted = self.acked + count

        async def flowed() -> bool:
            return self.acked >= wanted

        await until(flowed, f"{count} more events are acknowledged", within_s=60)


def options(topology: Topology, role: str) -> NatsOptions:
    """The connection of a process of that role."""
    env = topology.env(role)
    return NatsOptions.from_url(
        env["SICKBAY_NATS"], tls_ca=env["SICKBAY_TLS_CA"], inbox_prefix=env["SICKBAY_INBOX_PREFIX"]
    )


class Fleet:
    """Three routers that follow the view, an operator, and a client by which a load reports."""

    def __init__(self, topology: Topology, operator: Client, reports: Client, routers: list[Sickbay]) -> None:
        self.topology, self.operator, self.reports, self.routers = topology, operator, reports, routers

    @asynccontextmanager
    async def load(self, seed: int) -> AsyncIterator[Counted]:
        """Outcomes flow while the body runs; after it all are acknowledged, and everything holds that must."""
        load = Counted(self.reports, seed)
        stop = asyncio.Event()
        flow = asyncio.create_task(load.go_on(stop))
        try:
            yield load
        finally:
            stop.set()
            await asyncio.wait_for(flow, patience(60))
        await self.holds_together(load)

    async def holds_together(self, load: Counted) -> None:
        """What was acknowledged is in the log once, the view follows from the log, and all decide alike."""
        found: dict[str, list[int]] = {}

        async def in_full() -> bool:
            nonlocal found
            found = await in_log(self.operator)  # right after an election its end may lie behind for a moment
            return found.keys() >= load.stored.keys()

        await until(in_full, f"all {len(load.stored)} acknowledged events are in the log", within_s=60)
        moved = [event for event, seq in load.stored.items() if found[event] != [seq]]
        assert not moved, f"{len(moved)} stand elsewhere or twice, such as {moved[0]}: {found[moved[0]]}"
        await until(self._verified, "verify finds all of it equal", within_s=60)
        lesson = Target("p.test", f"lesson-{load.last_seq}")
        await until(lambda: self._held(lesson), "an operator's hold is stored", within_s=60)
        # After an outage NATS may pass acts on only minutes later: the services see to that after some ten seconds.
        await until(lambda: self._alike([lesson, *load.targets], denied=lesson), "all decide alike", IN_FORCE_S)

    async def _verified(self) -> bool:
        done = await asyncio.to_thread(command, self.topology, "verify", "--json")
        if not done.stdout:
            raise ConnectionError(done.stderr)  # a stream without a leader yet; what differs is said in JSON
        assert done.returncode == 0, done.stdout[-2000:]
        return bool(json.loads(done.stdout)["ok"])

    async def _held(self, target: Target) -> bool:
        try:
            await publish_override(self.operator, target.scope, "hold", reason="a lesson", actor="test", for_s=60)
        except NotStored as error:
            raise ConnectionError(str(error)) from error
        return True

    async def _alike(self, targets: list[Target], *, denied: Target) -> bool:
        """Whether every router and the services say the same of each target now, and deny that one."""
        for target in targets:
            ask = json.dumps({"provider": target.provider, "model": target.model}).encode()
            reply = await self.operator.request("sickbay.v1.decide", ask, timeout=patience(2))
            answer = json.loads(reply.data)
            said = {(answer["allowed"], answer["reason"])}
            said |= {(one.allowed, one.reason) for one in (router.decide(target) for router in self.routers)}
            if len(said) > 1 or (target == denied and (False, "held_by_operator") not in said):
                raise ConnectionError(f"{target.model}: {said}")  # it is asked again, and told at the deadline
        return True

    async def leader(self, stream: str = LOG) -> Running:
        """The server that leads a stream, once there is one that runs."""

        async def found() -> Running | None:
            info = await JetStreamApi(self.operator, timeout_s=patience(2)).request(f"STREAM.INFO.{stream}")
            leads = info["cluster"].get("leader")
            return self.topology[leads] if leads and self.topology[leads].is_running else None

        return await until(found, f"{stream} has a leader", within_s=60)

    async def is_current(self, server: Running, *streams: str) -> None:
        """Wait until a server has all that its peers have."""

        async def caught_up() -> bool:
            for stream in streams:
                info = await JetStreamApi(self.operator, timeout_s=patience(2)).request(f"STREAM.INFO.{stream}")
                peers = {peer["name"]: peer for peer in info["cluster"].get("replicas", ())}
                peer = peers.get(server.name)
                if info["cluster"].get("leader") != server.name and not (peer and peer["current"]):
                    raise ConnectionError(f"{stream}: {info['cluster']}")
            return True

        await until(caught_up, f"{server.name} is current", within_s=60)


@asynccontextmanager
async def fleet(topology: Topology) -> AsyncIterator[Fleet]:
    """A fleet, each member by its role's own credential; gone after the block."""
    async with AsyncExitStack() as stack:
        clients = [await connect_client(options(topology, role)) for role in ("operator", "router")]
        for client in clients:
            stack.push_async_callback(client.close)
        routers = []
        env = topology.env("router")
        for number in range(ROUTERS):
            router = sickbay.connect(
                env["SICKBAY_NATS"],
                f"watch-{number}",
                tls_ca=env["SICKBAY_TLS_CA"],
                inbox_prefix=env["SICKBAY_INBOX_PREFIX"],
            )
            routers.append(await stack.enter_async_context(router))
        for router in routers:
            assert await router.ready(patience(20))
        yield Fleet(topology, clients[0], clients[1], routers)


async def in_log(client: Client) -> dict[str, list[int]]:
    """Sequences of every event in the log, by the id that its sender gave it."""
    found: dict[str, list[int]] = {}
    reader = LogReader(BorrowedConnection(client), LOG, after_seq=0, name="test")
    try:
        async for item in reader:
            if isinstance(item, Chunk):
                for seq, payload in zip(item.seqs, item.payloads, strict=True):
                    found.setdefault(msgspec.json.decode(payload).get("id", ""), []).append(seq)
            elif isinstance(item, CaughtUp):
                return found
    finally:
        await reader.close()
    raise AssertionError("the log has no end")


def command(topology: Topology, *arguments: str, role: str = "operator") -> Done:
    """`sickbay ...` as a person with that role's environment runs it. Not from within an event loop."""
    return sickbay_process(*arguments, stdin=b"", **topology.env(role))


def http(topology: Topology, service: str, path: str, *, token: str | None = "reader") -> tuple[int, Any]:
    """Status and body of a GET at a service's port of the file; JSON is decoded."""
    where = topology[service].address
    port = {"prometheus": 9090}.get(service, 8480)
    request = urllib.request.Request(f"http://{where}:{port}{path}")
    if token is not None:
        request.add_header("Authorization", f"Bearer {(topology.secrets / 'tokens' / token).read_text()}")
    try:
        with urllib.request.urlopen(request, timeout=patience(5)) as answer:
            status, body, kind = answer.status, answer.read(), answer.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        status, body, kind = error.code, error.read(), error.headers["Content-Type"]
    return status, json.loads(body) if "json" in kind else body.decode()


async def writer(topology: Topology) -> Running:
    """The projector that writes the view."""

    async def found() -> Running | None:
        for one in topology.of("projector-"):
            _, health = await asyncio.to_thread(http, topology, one.name, "/healthz", token=None)
            if health["projector"]["is_writer"]:
                return one
        return None

    return await until(found, "one projector writes")
