"""A log with known truth, folded again: from a file, from a live server, and by `verify`; with the memory it takes.

Each replay is the command itself in a process of its own, so that start, reading, folding and printing all count.
Run: python bench/bench_replay.py [--quick]
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from known_log import KnownLog
from nats_servers import NatsServer
from rows import Row, print_rows
from sickbay.bus.bulk import Item, subscribe_bulk
from sickbay.bus.connect import connect_client
from sickbay.bus.jetstream import JetStreamApi
from sickbay.bus.topology import LOG, ensure
from sickbay.bus.write import hpub, write_now

FULL, QUICK = 1_000_000, 100_000
FILE_S, LIVE_S = 10.0, 12.0
"""Budgets for a million events; for a tenth the start of the process weighs too much to say anything."""
IN_FLIGHT = 5_000
SPAWN = multiprocessing.get_context("spawn")


def command(*arguments: str) -> tuple[dict[str, Any], float, float]:
    """Run `sickbay` with --json: what it says (and the processor's seconds as `cpu_s`), wall seconds, peak MB."""
    began_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "sickbay", *arguments, "--json"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"sickbay {' '.join(arguments)} ended with {status}")
    scale = 1 << 20 if sys.platform == "darwin" else 1 << 10
    found = {**json.loads(said), "cpu_s": used.ru_utime + used.ru_stime}
    return found, time.monotonic() - began_s, used.ru_maxrss / scale


def checked(found: dict[str, Any], truth: set[tuple[str, str, int]], what: str) -> None:
    """A fast replay that is wrong is worth nothing."""
    holds = {(hold["scope"], hold["rule"], hold["began_seq"]) for hold in found["holds"]}
    if holds != truth:
        raise RuntimeError(f"{what}: {len(holds ^ truth)} holds are not those of the known truth")


async def publish(url: str, log: KnownLog) -> None:
    """All of the log into a server; its own times are lost, so the truth is that of the sequences' order alone."""
    client = await connect_client(url)
    await ensure(client)
    acked = 0

    def on_items(items: list[Item]) -> None:
        nonlocal acked
        acked += len(items)

    inbox = client.new_inbox()
    await subscribe_bulk(client, inbox, on_items)
    await client.flush()
    part: list[bytes] = []
    for seq, _, subject, body in log.messages():
        part.append(hpub(subject, inbox.encode(), {"Nats-Msg-Id": str(seq)}, body))
        if len(part) == 250 or seq == log.count:
            write_now(client, b"".join(part))
            part.clear()
            while seq - acked > IN_FLIGHT or (seq == log.count and acked < seq):
                await asyncio.sleep(0.001)
            await asyncio.sleep(0)
    assert (await JetStreamApi(client, timeout_s=5).stream_at(LOG)).last_seq == log.count
    await client.close()


def run_projector(url: str) -> None:
    """Services' projector until it has folded the log, then hand over in order."""
    from sickbay.bus.connect import NatsOptions
    from sickbay.bus.link import Link
    from sickbay.projector import Projector

    async def work() -> None:
        link = Link(NatsOptions.from_url(url))
        link.start()
        projector = Projector(link, name="bench")
        running = asyncio.create_task(projector.run())
        last_seq = (await JetStreamApi(await link.wait_connected(), timeout_s=5).stream_at(LOG)).last_seq
        while not (projector.state.is_live and projector.seq >= last_seq and projector.state.transitions.all_told):
            await asyncio.sleep(0.05)
        projector.stop()
        await running
        await link.close()

    asyncio.run(work())


def measure(quick: bool) -> list[Row]:
    """The rows of the budget table that are the replay's."""
    count = QUICK if quick else FULL
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="sickbay-replay-") as folder:
        file, log = Path(folder) / "log.jsonl", KnownLog(count)
        log.write(file)
        found, took_s, peak_mb = command("replay", str(file))
        checked(found, log.holds, "file")
        rows += _rows(f"replay of {count:,} events from a file", found, took_s, None if quick else FILE_S, peak_mb)
        part = Path(folder) / "part.jsonl"
        small = KnownLog(count // 10)
        small.write(part)
        _, _, small_mb = command("replay", str(part))
        rows.append(
            Row("memory of ten times the events", peak_mb / small_mb, "x", 1.5, f"{small_mb:.0f} MB for a tenth")
        )
    with NatsServer() as server:
        asyncio.run(publish(server.url, KnownLog(count)))
        found, took_s, peak_mb = command("replay", "live", "--nats", server.url)
        rows += _rows(
            f"replay of {count:,} events from a live server", found, took_s, None if quick else LIVE_S, peak_mb
        )
        projector = SPAWN.Process(target=run_projector, args=(server.url,))
        projector.start()
        projector.join()
        verified, took_s, peak_mb = command("verify", "--nats", server.url)
        if not verified["ok"] or not verified["digests"]:
            raise RuntimeError(f"verify: {verified['differences'][:3]}")
        compared = f"{len(verified['digests'])} digests, {verified['entries']} entries, peak {peak_mb:.0f} MB"
        rows.append(Row(f"verify of {count:,} events", took_s, "s", None, compared))
        cpu_us = verified["cpu_s"] / count * 1e6
        rows.append(
            Row(f"verify of {count:,} events: processor", verified["cpu_s"], "s", None, f"{cpu_us:.2f} us an event")
        )
    return rows


def _rows(name: str, found: dict[str, Any], took_s: float, budget_s: float | None, peak_mb: float) -> list[Row]:
    rate = found["events"] / found["took_s"]
    inside = f"{rate:,.0f} events/s without the start, peak {peak_mb:.0f} MB"
    # On a machine with other work the processor's time says what a replay costs; the wall says who else was there.
    cpu_us = found["cpu_s"] / found["events"] * 1e6
    return [
        Row(name, took_s, "s", budget_s, inside),
        Row(f"{name}: processor", found["cpu_s"], "s", None, f"{cpu_us:.2f} us an event, start and printing included"),
    ]


if __name__ == "__main__":
    print_rows(measure(quick="--quick" in sys.argv))
