"""Projectors as real processes, load for them, and what must be true of them in the end.

Run as a program this is one projector: `python projector_processes.py URL NAME [OPTIONS as JSON]`. It answers
`test.projector.NAME` with its health and the digest of its state.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import nats.errors
from nats.aio.client import Client

from sickbay.bus.connect import BusError, NatsOptions
from sickbay.bus.entries import read_entries
from sickbay.bus.jetstream import JetStreamApi
from sickbay.bus.link import Link
from sickbay.bus.reader import CaughtUp, Chunk, Gap, LogReader
from sickbay.bus.topology import GATE_PREFIX, GATE_STREAM, LOG, TRANSITIONS
from sickbay.log.control import fold_lost_control_events
from sickbay_events import (
    CallOutcome,
    Poison,
    Policy,
    Target,
    decode,
    encode,
    outcome_subject,
    parse_rfc3339,
    read_subject,
)
from sickbay_events.codec import derived_id
from sickbay_events.view import CHECKPOINT_KEY, POLICY_KEY, Checkpoint, GateEntry, PolicyInForce
from sickbay_projections import Fleet, Recorded
from waiting import patience, until

T = TypeVar("T")
DEADLINE_S = 30.0
POLICY = Policy.from_data({"rejections": {"hold_s": 0.5, "cap_s": 2.0, "growth": 2.0}})
"""Holds so short that they begin and end many times in a test."""


class Process:
    """One projector in a process of its own."""

    def __init__(self, url: str, name: str, **options: Any) -> None:
        self.url, self.name, self.options = url, name, options
        self.log_path = Path(os.environ.get("PROJECTOR_LOG", os.devnull))
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, self.url, self.name, json.dumps(self.options)], stdout=log, stderr=log
            )

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill9(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """End it gently; its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(patience(15))
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    async def health(self, client: Client, timeout_s: float = 1.0) -> dict[str, Any]:
        """Health and `digest` of its state; {} if it does not answer."""
        try:
            reply = await client.request(f"test.projector.{self.name}", timeout=patience(timeout_s))
        except (nats.errors.Error, OSError):
            return {}
        answer: dict[str, Any] = json.loads(reply.data)
        return answer

    async def until(self, client: Client, what: str, **wanted: Any) -> dict[str, Any]:
        """Its health once these fields have these values (a callable: once it says so)."""

        async def fits() -> dict[str, Any] | None:
            health = await self.health(client)
            fits = health and all(v(health[k]) if callable(v) else health[k] == v for k, v in wanted.items())
            return health if fits else None

        return await until(fits, f"{self.name}: {what}")

    async def until_live(self, client: Client) -> dict[str, Any]:
        return await self.until(client, "is the writer and has compared the bucket", live=True)


Spawn = Callable[..., Process]


class Load:
    """A publisher of outcomes that hold and release: every event acknowledged, through outages, once each."""

    def __init__(self, client: Client, *, targets: int = 20, seed: int = 1) -> None:
        self.client = client
        self.random = random.Random(seed)
        self.targets = [Target("p.test", f"m{n}") for n in range(targets)]
        self.boot = {f"r{n}": secrets.token_hex(8) for n in range(3)}
        self.n = dict.fromkeys(self.boot, 0)
        self.acked = 0
        self.last_seq = 0

    async def publish(self, count: int, *, at_once: int = 50) -> None:
        """`count` outcomes, some at once."""
        for begin in range(0, count, at_once):
            await asyncio.gather(*(self._one() for _ in range(min(at_once, count - begin))))

    async def go_on(self, stop: asyncio.Event, *, pause_s: float = 0.01) -> None:
        """Publish until told to stop."""
        while not stop.is_set():
            await self.publish(10)
            await asyncio.sleep(pause_s)

    async def _one(self) -> None:
        replica = self.random.choice(list(self.boot))
        self.n[replica] += 1
        kind, status = self.random.choice([("model_unavailable", 404), ("model_unavailable", 404), ("ok", 200)])
        outcome = CallOutcome(
            kind=kind,  # type: ignore[arg-type]
            status=status,
            id=f"{self.boot[replica]}-{self.n[replica]}",
            took_ms=1,
            seen_seq=self.random.choice([None, max(0, self.last_seq - self.random.randrange(50))]),
        )
        await self.send(replica, self.random.choice(self.targets), outcome)

    async def send(self, replica: str, target: Target, outcome: CallOutcome) -> int:
        """Publish one and repeat it under its id until it is acknowledged; its sequence."""
        headers = {"Nats-Msg-Id": str(outcome.id)}
        while True:
            try:
                reply = await self.client.request(
                    outcome_subject(replica, target), encode(outcome), timeout=1, headers=headers
                )
            except (nats.errors.Error, OSError):
                await asyncio.sleep(0.02)
                continue
            answer = json.loads(reply.data)
            if "error" in answer:
                await asyncio.sleep(0.02)
                continue
            self.acked += 1
            self.last_seq = max(self.last_seq, answer["seq"])
            return int(answer["seq"])


async def replay(client: Client) -> tuple[Fleet, list[str]]:
    """The log folded anew from its beginning, one event after the other, and the ids of what was derived."""
    created = (await JetStreamApi(client, timeout_s=patience(5)).stream_at(LOG)).created_at
    fleet, ids = Fleet(Policy()), []

    class Source:
        def __init__(self) -> None:
            self.client: Client | None = client

    reader = LogReader(Source(), LOG, after_seq=0)
    async for item in reader:
        if isinstance(item, CaughtUp):
            break
        derived = []
        if isinstance(item, Gap) and item.reason == "trimmed":
            derived = await fold_lost_control_events(client, fleet, item.last + 1)
        elif isinstance(item, Gap):
            for seq in range(item.first, item.last + 1):
                fleet.passed(seq, fleet.time_ms, "gap")
        elif isinstance(item, Chunk):
            for raw, seq, time_ns, data in zip(item.subjects, item.seqs, item.times_ns, item.payloads, strict=True):
                subject, time_ms = raw.decode(), time_ns // 1_000_000
                try:
                    where = read_subject(subject)
                    event = decode(subject, data)
                except Poison as poison:
                    fleet.passed(seq, time_ms, poison.reason)
                    continue
                derived += fleet.apply(
                    Recorded(event, where.target, where.scope, where.replica, seq=seq, time_ms=time_ms)
                )
        ids += [derived_id(event, created) for event in derived]
    await reader.close()
    return fleet, ids


async def bucket(client: Client) -> dict[str, bytes]:
    """What stands in the view, by scope key."""
    found = await read_entries(client, GATE_STREAM, f"{GATE_PREFIX}>")
    start = len(GATE_PREFIX)
    return {entry.subject[start:].decode(): entry.payload for entry in found.entries if not entry.gone}


async def told(client: Client) -> list[dict[str, Any]]:
    """All derived events in their stream, in its order."""
    found = await read_entries(client, TRANSITIONS, ">")
    return [json.loads(entry.payload) for entry in found.entries]


async def view_fault(client: Client, fleet: Fleet) -> str:
    """How the bucket differs from what this state says; "" if it does not."""
    standing = await bucket(client)
    info = await JetStreamApi(client, timeout_s=patience(5)).request(f"STREAM.INFO.{GATE_STREAM}")
    now_ms = parse_rfc3339(info["ts"])
    wanted = {key: entry for key, entry in fleet.entries() if entry.expires_ms > now_ms + 500}
    for key, entry in wanted.items():
        if standing.get(key) != msgspec.json.encode(entry):
            return f"{key} stands as {standing.get(key)!r}, the state says {entry!r}"
    for key, value in standing.items():
        if key in (CHECKPOINT_KEY, POLICY_KEY) or key in wanted:
            continue
        entry = msgspec.json.decode(value, type=GateEntry)
        if (entry.holds or entry.allow or entry.cleared_seq) and entry.expires_ms > now_ms:
            return f"{key} stands as {value!r}, the state says nothing"
    policy = msgspec.json.decode(standing[POLICY_KEY], type=PolicyInForce)
    if policy.policy != fleet.policy.to_data() or policy.seq != fleet.policy_seq:
        return f"the policy in force stands as of {policy.seq}, the state has {fleet.policy_seq}"
    return ""


async def assert_converged(
    client: Client, *processes: Process, derived: str = "exact", deadline_s: float = DEADLINE_S
) -> Fleet:
    """In the end: every running projector's state, the bucket and the derived events are what a fresh replay of
    the log says.

    derived: "exact" (just those of the replay, in its order), "ordered" (each once, of each log in order of
    cause), "once".
    """

    async def all_there() -> bool:
        last_seq = (await JetStreamApi(client, timeout_s=patience(2)).stream_at(LOG)).last_seq
        healths = [await process.health(client) for process in processes]
        quiet = [h.get("seq") == last_seq and h["phase"] in ("writing", "standby") for h in healths if h]
        writers = [h for h in healths if h and h["live"] and not h["transitions_waiting"]]
        if len(quiet) == len(processes) and all(quiet) and len(writers) == 1:
            return True
        raise BusError(f"the log ends at {last_seq}: {healths}")

    await until(all_there, "one writes, all have folded the whole log", deadline_s)
    fleet, ids = await replay(client)
    for process in processes:
        # A control event can still be on its way into a log that was made anew.
        health = await process.until(client, "has folded as much as the replay", seq=lambda seq: seq >= fleet.seq)
        if health["seq"] > fleet.seq:
            return await assert_converged(client, *processes, derived=derived, deadline_s=deadline_s)
        assert health["digest"] == fleet.digest(), f"{process.name}'s state is not that of a replay"

    async def view_is_right() -> bool:
        fault = await view_fault(client, fleet)
        if fault:
            raise BusError(fault)
        return True

    await until(view_is_right, "the bucket says what the state says")
    await until(lambda: _signed(client), "the checkpoint signs what stands in the bucket")
    events = await told(client)
    assert len({event["id"] for event in events}) == len(events), "a derived event stands twice"
    for log in {str(event["id"]).rpartition("Z:")[0] for event in events} if derived != "once" else ():
        causes = [event["cause_seq"] for event in events if str(event["id"]).startswith(log)]
        assert causes == sorted(causes), "derived events are not in the order of their causes"
    if derived == "exact":
        assert [event["id"] for event in events] == ids
    return fleet


async def _signed(client: Client) -> bool:
    """Whether a checkpoint's number and digest are those of the bucket, seen while nothing else is written."""
    from sickbay.view.digest_map import Change, ViewMap

    found = await read_entries(client, GATE_STREAM, f"{GATE_PREFIX}>")
    start = len(GATE_PREFIX)
    view = ViewMap()
    view.finish_load([Change(e.subject[start:].decode(), e.revision, e.payload or None) for e in found.entries], 0.0)
    standing = {e.subject[start:].decode(): e.payload for e in found.entries if not e.gone}
    checkpoint = msgspec.json.decode(standing[CHECKPOINT_KEY], type=Checkpoint)
    counted = view.counted()
    return (checkpoint.entries, checkpoint.digest) == (counted.entries, counted.digest) and checkpoint.live


async def main(url: str, name: str, options: dict[str, Any]) -> None:
    """One projector until SIGTERM."""
    import faulthandler
    import logging

    faulthandler.register(signal.SIGUSR1)

    from sickbay.control import lag as acts_module
    from sickbay.projector import Projector
    from sickbay.projector import loop as loop_module
    from sickbay.projector import maintenance as maintenance_module

    logging.basicConfig(level=logging.INFO, format="%(asctime)s " + name + " %(message)s")
    places = {"SNAPSHOT_EVENTS": maintenance_module, "LOOK_EVERY_S": maintenance_module, "MARK_EVERY": loop_module}
    places |= {"ACTS_EVERY_S": acts_module, "WAIT_MAX_S": acts_module}
    for constant, module in places.items():
        if constant in options:
            setattr(module, constant, options.pop(constant))
    link = Link(NatsOptions.from_url(url))
    projector = Projector(link, name=name, policy=POLICY, **options)

    def connected(client: Client, fresh: bool) -> None:
        if fresh:
            tasks.append(asyncio.ensure_future(client.subscribe(f"test.projector.{name}", cb=answer)))
            tasks.append(asyncio.ensure_future(client.subscribe(f"test.spoil.{name}", cb=spoil)))

    async def answer(message: Any) -> None:
        health = msgspec.to_builtins(projector.health())
        live = projector.is_writer and projector.state.is_live
        await message.respond(json.dumps({**health, "live": live, "digest": projector.fleet.digest()}).encode())

    async def spoil(message: Any) -> None:
        projector.fleet.apply(Recorded(CallOutcome(kind="ok"), Target("never.test", "happened"), replica="nobody"))
        await message.respond(b"")

    tasks: list[Any] = []
    link.listen(connected=connected)
    link.start()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, projector.stop)
    await projector.run()
    await link.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}))


@asynccontextmanager
async def under_load(client: Client, seed: int) -> AsyncIterator[Load]:
    """Outcomes flow while the body runs; all that were published are acknowledged after it."""
    load = Load(client, seed=seed)
    stop = asyncio.Event()
    flow = asyncio.create_task(load.go_on(stop))
    try:
        yield load
    finally:
        stop.set()
        await asyncio.wait_for(flow, patience(30))
