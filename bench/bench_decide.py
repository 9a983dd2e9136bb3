"""What a decision costs, how fast a gate starts, and what it weighs.

`decide()` is timed in runs of 500 calls over targets in random order; a value is the median run. The Redis GET
beside it is asked over asyncio streams, as a router on an event loop would ask: of a redis-server where one is
installed, else of a process that answers at once, which is the least a GET can cost.
"""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import msgspec

from nats_servers import NatsServer, free_port
from rows import Row, print_rows
from sickbay.bus.connect import connect_client
from sickbay.bus.topology import GATE_PREFIX, ensure
from sickbay.router.gate import Gate
from sickbay.router.overlay import Overlay
from sickbay.view.entries import View
from sickbay_events import Target
from sickbay_events.view import CHECKPOINT_KEY
from view_writer import ViewWriter, hold_entry

RUN = 500
FAR_MS = int(time.time() * 1000) + 3_600_000
ANSWERER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
client, _ = server.accept()
client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while client.recv(4096):
    client.sendall(b"$-1\\r\\n")
"""
START = """
import asyncio, sys, time
def weight_mb():
    for line in open("/proc/self/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
before_mb = weight_mb()
sys.modules["aiohttp"] = None  # nats-py loads it where it is installed; a router that installs sickbay has none
import sickbay
from sickbay import Target
async def main():
    began = time.perf_counter()
    async with sickbay.connect(sys.argv[1], replica="bench") as sb:
        assert await sb.ready(30)
        assert not sb.decide(Target("openrouter.ai", "m0")).allowed
        took_s = time.perf_counter() - began
        after_mb = weight_mb()
        print(len(sb.mirror.entries), took_s, after_mb - before_mb)
asyncio.run(main())
"""


def gate_over(count: int, held: int) -> tuple[Gate, list[Target]]:
    """A gate that knows `count` targets, of which another `held` have entries."""
    mirror = View()
    mirror.is_loaded = mirror.is_heard = True
    gate = Gate(mirror, Overlay(now_ms=mirror.now_ms, cluster=mirror.entries))
    for n in range(held):
        target = Target("held.example", f"m{n}")
        mirror.put(target.key, hold_entry(target, end_ms=FAR_MS))
    targets = [Target("openrouter.ai", f"vendor/model-{n}") for n in range(count)]
    for target in targets:
        gate.decide(target)
    return gate, targets


def median_us(gate: Gate, targets: list[Target], runs: int) -> float:
    """Median over runs of the mean of one run, in microseconds a call."""
    decide, took = gate.decide, []
    for _ in range(runs):
        picked = random.choices(targets, k=RUN)
        began = time.perf_counter()
        for target in picked:
            decide(target)
        took.append((time.perf_counter() - began) / RUN)
    return statistics.median(took) * 1e6


async def ask(port: int, calls: int) -> float:
    """Median of one GET over asyncio streams, in microseconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    took = []
    for _ in range(calls):
        began = time.perf_counter()
        writer.write(b"*2\r\n$3\r\nGET\r\n$1\r\nx\r\n")
        await reader.readline()
        took.append(time.perf_counter() - began)
    writer.close()
    return statistics.median(took) * 1e6


def redis_get_us(calls: int) -> tuple[float, str]:
    """Median of one GET in microseconds, and what answered it."""
    if redis := shutil.which("redis-server"):
        port, what = free_port(), "Redis GET"
        command = [redis, "--port", str(port), "--save", "", "--bind", "127.0.0.1"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        time.sleep(0.5)
    else:
        process = subprocess.Popen([sys.executable, "-c", ANSWERER], stdout=subprocess.PIPE)
        assert process.stdout is not None
        port, what = int(process.stdout.readline()), "round trip to a stand-in for Redis"
    try:
        return asyncio.run(ask(port, calls)), what
    finally:
        process.kill()
        process.wait()


async def filled(url: str, count: int) -> None:
    """A bucket with `count` held targets and a checkpoint."""
    client = await connect_client(url)
    await ensure(client)
    writer = ViewWriter(client)
    for at in range(0, count, 500):
        targets = [Target("openrouter.ai", f"m{n}") for n in range(at, min(count, at + 500))]
        bodies = [(target.key, msgspec.json.encode(hold_entry(target, end_ms=FAR_MS))) for target in targets]
        await asyncio.gather(*[writer.js.publish(GATE_PREFIX + key, body) for key, body in bodies])
        writer.values.update(bodies)
    await writer.js.publish(GATE_PREFIX + CHECKPOINT_KEY, msgspec.json.encode(writer.checkpoint()))
    await client.close()


def started(count: int) -> tuple[float, float]:
    """Seconds from `connect_client` to the first decision, and MB over bare Python, with `count` entries."""
    with NatsServer() as server:
        asyncio.run(filled(server.url, count))
        done = subprocess.run([sys.executable, "-c", START, server.url], capture_output=True, text=True, check=True)
        entries, took_s, weight_mb = done.stdout.split()
        assert int(entries) == count, f"{entries} of {count} entries arrived"
        return float(took_s), float(weight_mb)


def measure(quick: bool) -> list[Row]:
    """The rows of the budget table that concern a gate."""
    runs = 40 if quick else 400
    rows: list[Row] = []
    gc.disable()  # a collection inside a run is not what a decision costs
    for count in (10, 1_000, 100_000):
        gate, targets = gate_over(count, held=1_000)
        us = median_us(gate, targets, runs)
        rows.append(Row(f"decide(), {count:,} targets, none of them held", us, "us", 1.0))
    gate, _ = gate_over(10, held=1_000)
    held = [Target("held.example", f"m{n}") for n in range(1_000)]
    for target in held:
        gate.decide(target)
    rows.append(Row("decide(), a held target", median_us(gate, held, runs), "us", 1.5))
    gc.enable()
    get_us, what = redis_get_us(2_000 if quick else 20_000)
    cheaper = get_us / rows[0].value
    rows.append(
        Row(f"{what} / decide()", cheaper, "x", 100.0, f"{get_us:.1f} us against {rows[0].value:.2f} us", "higher")
    )
    start_s, _ = started(20_000)
    rows.append(Row("gate: start with 20,000 entries to the first decision", start_s, "s", 1.0))
    _, weight_mb = started(10_000)
    rows.append(Row("router side: memory over bare Python, 10,000 entries", weight_mb, "MB", 30.0))
    return rows


if __name__ == "__main__":
    print_rows(measure(quick="--quick" in sys.argv))
