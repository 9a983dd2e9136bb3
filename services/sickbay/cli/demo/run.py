"""The demonstration: `sickbay demo`.

One machine, nine processes: NATS, the services, two providers, four router replicas, and this one, which watches.
First each replica stands alone, then the cluster tells all what one has learnt; both times the first provider
retires a model id while everybody calls it. What it cost is counted from what the replicas did, in this very run.
"""

from __future__ import annotations

import asyncio
import json
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from nats.aio.client import Client
from rich.console import Console

from sickbay_events import Scope, TargetHeld, read_subject, rfc3339

from ...bus.connect import connect_client
from ...bus.embedded import saved_url
from ...bus.jetstream import JetStreamApi
from ...bus.link import BorrowedConnection
from ...bus.reader import CaughtUp, Chunk, LogReader
from ...bus.topology import HELD_PREFIX, LOG, TRANSITIONS
from ...log.file import LogFile
from ...log.folding import replay
from ..base import SaysNo, console, plain_table, print_json, rows, run
from ..files import export_log
from ..replay import hold_fact
from .board import Board, Phase
from .children import Child, Children
from .router import FIRST, REPLICAS, SECOND

CALM_S: Final = 2.0
"""Calls before the model is retired, so that everybody has had good answers."""
DEAD_S: Final = 4.0
"""Calls after it."""
PHASES: Final = (Phase("alone", "each replica on its own"), Phase("cluster", "with the cluster"))


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(demo)


def demo(
    *,
    keep: Annotated[Path | None, typer.Option(help="Keep the log of the run in this file (.jsonl, .zst, .gz).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Watch a fleet learn one lesson: real processes on this machine, about 20 seconds, nothing to set up.

    Example: sickbay demo --keep demo.jsonl
    """
    if keep is not None and keep.exists():
        raise SaysNo(f"{keep} exists already; name another file")
    if not run(_interruptible(Demo(console(), quiet=as_json, keep=keep), as_json=as_json)):
        raise typer.Exit(1)


async def _interruptible(shown: Demo, *, as_json: bool) -> bool:
    """Run it; Ctrl-C and SIGTERM end it in order, and so do their repetitions."""
    work = asyncio.ensure_future(shown.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, work.cancel)
    try:
        result = await work
    except asyncio.CancelledError:
        raise SaysNo("interrupted; every process of the demonstration has ended") from None
    if as_json:
        print_json(result)
    return bool(result["replay_same"])


class Demo:
    """One run."""

    def __init__(self, out: Console, *, quiet: bool, keep: Path | None) -> None:
        self.board = Board(out, PHASES, quiet=quiet)
        self._out, self._quiet, self._keep = out, quiet, keep
        self._deciding: tuple[str, int] | None = None

    def heard(self, child: Child, fact: dict[str, Any]) -> None:
        """A replica said what it did."""
        if "event" in fact:
            self.board.take(child.name, fact)

    async def run(self) -> dict[str, Any]:
        """All of it; the result as plain data. Raises `SaysNo` if a process fails."""
        with tempfile.TemporaryDirectory(prefix="sickbay-demo-") as folder:
            async with Children(Path(folder), self.heard) as children:
                return await self._run(Path(folder), children)

    async def _run(self, folder: Path, children: Children) -> dict[str, Any]:
        began_s = time.monotonic()
        services = await children.start(
            "services", "sickbay", "serve", "--data", str(folder / "data"), "--http", "off", "--until-stdin-closes",
            SICKBAY_NATS="", SICKBAY_POLICY="",
        )  # fmt: skip
        first = await children.start("provider-1", "sickbay.cli.demo.provider", "openai")
        second = await children.start("provider-2", "sickbay.cli.demo.provider", "anthropic")
        ports = [str(await child.fact("port")) for child in (first, second)]
        await services.words("is ready")
        url = saved_url(folder / "data")
        assert url is not None
        replicas = [
            await children.start(
                f"replica-{n + 1}", "sickbay.cli.demo.router", f"replica-{n + 1}", str(n), *ports, SICKBAY_NATS=url
            )
            for n in range(REPLICAS)
        ]
        await asyncio.gather(*(replica.fact("heard") for replica in replicas))
        self.board.say(
            f"{REPLICAS} replicas call {FIRST} at provider 1, and {SECOND} at provider 2 when that is held or fails"
        )
        with self.board.live():
            for phase in PHASES:
                await self._phase(phase, first, replicas)
            await asyncio.gather(*(replica.tell("stop") for replica in replicas))
        client = await connect_client(url)
        try:
            checked = await self._check(client, folder)
        finally:
            await client.close()
        return self._show({**checked, "seconds": round(time.monotonic() - began_s, 1)})

    async def _phase(self, phase: Phase, provider: Child, replicas: list[Child]) -> None:
        self.board.begin(phase)
        await provider.tell(f"restore {FIRST}")
        await asyncio.gather(*(replica.tell(phase.name) for replica in replicas))
        await asyncio.sleep(CALM_S)
        await provider.tell(f"retire {FIRST}")
        self.board.say(f"provider 1 has retired {FIRST}: it answers 404 from now on")
        await asyncio.sleep(DEAD_S)

    async def _check(self, client: Client, folder: Path) -> dict[str, Any]:
        """Export the log, fold it again from the file, and compare the holds with what the services concluded."""
        file = self._keep or folder / "log.jsonl"
        await export_log(client, file)
        folded = [hold_fact(event) for event in replay(LogFile(file)).derived if isinstance(event, TargetHeld)]
        live = await live_holds(client)
        self._deciding = deciding(file, live[0]["began_seq"]) if live else None
        return {"live": live, "replayed": folded}

    def _show(self, found: dict[str, Any]) -> dict[str, Any]:
        alone, cluster = self.board.measured(PHASES[0]), self.board.measured(PHASES[1], self._deciding)
        same = found["live"] == found["replayed"] and bool(found["live"])
        result = {"alone": alone, "cluster": cluster, "replay_same": same, **found}
        if self._quiet:
            return result
        made = plain_table("measured in this run", PHASES[0].title, PHASES[1].title)
        self._out.print()
        self._out.print(rows(made, _rows(alone, cluster)))
        self._out.print("* on its own: from the second rejection that anybody got", style="dim")
        saved, saved_ms = alone["dead"] - cluster["dead"], alone["dead_ms"] - cluster["dead_ms"]
        self._out.print()
        self._out.print(f"saved: {saved} dead calls and {saved_ms / 1000:.2f} s of waiting, by one retired model id")
        for n, hold in enumerate(found["live"]):
            name, word = Scope.of_key(hold["scope"]), "held again by a failed trial" if n else "held"
            until = rfc3339(hold["end_ms"])[11:19]
            self._out.print(f"{word}: {name.model} by {hold['rule']}, log sequence {hold['began_seq']}, until {until}")
        word = "gives the same holds at the same sequences" if same else "DIFFERS from what was concluded live"
        self._out.print(f"replay of the log of this run {word}", style=None if same else "bold red")
        if self._keep:
            self._out.print(f"the log is in {self._keep}: sickbay replay {self._keep}")
        self._out.print(f"{found['seconds']} s; every process of the demonstration ends now")
        return result


def _rows(alone: dict[str, Any], cluster: dict[str, Any]) -> list[tuple[str, ...]]:
    def ms(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f} ms"

    both = (alone, cluster)
    return [
        ("calls that were answered", *(str(one["answered"]) for one in both)),
        ("dead calls after the retirement", *(str(one["dead"]) for one in both)),
        ("  of them trials", *(str(one["trials"]) for one in both)),
        ("  most by one replica", *(str(max(one["dead_by"].values(), default=0)) for one in both)),
        ("time lost in dead calls", *(ms(one["dead_ms"]) for one in both)),
        ("deciding rejection -> all refuse *", *(ms(one["spread_ms"]) for one in both)),
    ]


def deciding(file: Path, began_seq: int) -> tuple[str, int]:
    """Whose rejection began a hold, and how many that replica had reported before it, from the log's file."""
    rejected: Counter[str] = Counter()
    for line in LogFile(file):
        replica = read_subject(line.subject).replica
        if line.seq == began_seq:
            return replica, rejected[replica]
        rejected[replica] += msgspec.json.decode(line.payload)["kind"] != "ok"
    raise SaysNo(f"the log has no event {began_seq}, which began a hold")


async def live_holds(client: Client) -> list[dict[str, Any]]:
    """What the services concluded, from the stream of transitions, once they have folded the whole log."""
    log = await JetStreamApi(client, timeout_s=5.0).stream_at(LOG)
    deadline_s = time.monotonic() + 5.0
    while time.monotonic() < deadline_s:
        reply = await client.request("sickbay.v1.status", b"{}", timeout=5.0)
        projector = json.loads(reply.data)["projector"]
        if projector["seq"] >= log.last_seq and not projector["transitions_waiting"]:
            break
        await asyncio.sleep(0.02)
    found: list[dict[str, Any]] = []
    reader = LogReader(BorrowedConnection(client), TRANSITIONS, after_seq=0, filters=(f"{HELD_PREFIX}>",), name="demo")
    try:
        async for item in reader:
            if isinstance(item, Chunk):
                found += [_live_hold(*message) for message in zip(item.subjects, item.payloads, strict=True)]
            if isinstance(item, CaughtUp):
                break
    finally:
        await reader.close()
    return found


def _live_hold(subject: bytes, payload: bytes) -> dict[str, Any]:
    """A published hold in the form of `hold_fact`."""
    fact = json.loads(payload)
    names = ("rule", "began_seq", "cause_seq", "end_ms")
    return {"scope": subject.decode().removeprefix(HELD_PREFIX), **{name: fact[name] for name in names}}
