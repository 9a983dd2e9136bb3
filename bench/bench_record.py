"""What reporting costs: `record()` on the caller's side, and how many events a second one process gets acknowledged.

.venv/bin/python bench/bench_record.py
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from nats_servers import NatsServer
from rows import Row, median, percentile, print_rows
from sickbay.bus.connect import NatsOptions, connect_client
from sickbay.bus.link import Link
from sickbay.bus.topology import ensure
from sickbay.router.reporter import Reporter
from sickbay_events import CallOutcome, Target

RECORD_US = 5.0
PUBLISHED_PER_S = 20_000.0
BATCH = 200
TARGETS = [Target("openrouter.ai#team-a", f"vendor/model-{number}") for number in range(1000)]
OUTCOME = CallOutcome(
    kind="server_error",
    status=502,
    took_ms=1234.5,
    limit_ms=60_000,
    seen_seq=1_234_567,
    route="brief",
    rank=1,
    signature="bad_gateway",
    code="bad_gateway",
    charset="utf-8",
)


async def _record_us(reporter: Reporter, batches: int) -> list[float]:
    """Microseconds of one `record` each, connected, with the sending going on between the batches."""
    samples: list[float] = []
    for batch in range(batches):
        began = time.perf_counter()
        for number in range(BATCH):
            reporter.enqueue(TARGETS[(batch * BATCH + number) % 1000], OUTCOME)
        samples.append((time.perf_counter() - began) / BATCH * 1e6)
        while reporter.counts.queued > 1000:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
    return samples


async def _published_per_s(reporter: Reporter, events: int) -> float:
    """Events a second from the first `record` to the last acknowledgement, each with its own id."""
    acked_before = reporter.counts.acked
    began = time.perf_counter()
    for number in range(events):
        reporter.enqueue(TARGETS[number % 1000], OUTCOME)
        if number % 1000 == 999:
            while reporter.counts.queued > 5000:
                await asyncio.sleep(0)
    while reporter.counts.acked < acked_before + events:
        await asyncio.sleep(0.001)
    return events / (time.perf_counter() - began)


async def _measure(quick: bool) -> list[Row]:
    with NatsServer() as server:
        client = await connect_client(server.url)
        await ensure(client)
        link = Link(NatsOptions.from_url(server.url))
        link.start()
        await link.wait_connected(5)
        reporter = Reporter(link, replica="bench")
        reporter.start()
        samples = await _record_us(reporter, 100 if quick else 500)
        began = time.perf_counter()
        for _ in range(20):  # the nearest thing without an outbox, in the same run: one awaited publish an event
            await client.jetstream().publish("sickbay.outcome.bench.a.=.b", b'{"kind":"ok"}')
        awaited_us = (time.perf_counter() - began) / 20 * 1e6
        rate = max([await _published_per_s(reporter, 20_000 if quick else 100_000) for _ in range(3)])
        left = await reporter.close(10)
        assert not left and not reporter.counts.dropped, (left, reporter.counts)
        await link.close()
        await client.close()
    us = median(samples)
    return [
        Row("record(), caller's side, median", us, "us", RECORD_US, f"{awaited_us / us:,.0f}x an awaited publish"),
        Row("record(), caller's side, p99 of batches", percentile(samples, 0.99), "us"),
        Row("reporter, published and acknowledged", rate, "events/s", PUBLISHED_PER_S, better="higher"),
    ]


def measure(quick: bool) -> list[Row]:
    """The rows of this module; `quick` measures a fifth."""
    return asyncio.run(_measure(quick))


if __name__ == "__main__":
    print_rows(measure(quick=False))
