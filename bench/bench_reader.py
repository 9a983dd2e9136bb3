"""How fast the log is read: a real nats-server, events of the usual size with a Msg-Id each.

`LogReader` from nothing to caught up, bare and with each event decoded and counted by target; and a page-through of
20,000 gate entries (part of a gate's start). Client and server share the machine.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

import msgspec
from nats.aio.client import Client

from nats_servers import NatsServer
from rows import Row, print_rows
from sickbay.bus import topology
from sickbay.bus.connect import connect_client
from sickbay.bus.entries import read_entries
from sickbay.bus.link import BorrowedConnection
from sickbay.bus.reader import CaughtUp, Chunk, LogReader

TARGETS = 1_000
ENTRIES = 20_000
_BATCH = 500


class _Outcome(msgspec.Struct):
    """The fields a fold looks at first."""

    kind: str
    id: str = ""
    status: int | None = None
    took_ms: int = 0
    queued_ms: int = 0
    seen_seq: int = 0


def event(n: int) -> tuple[str, bytes, dict[str, str]]:
    """The n-th event: subject, body of some 300 bytes, headers."""
    kind = "ok" if n % 20 else "model_unavailable"
    body = {
        "type": "outcome",
        "v": 1,
        "id": f"00ff00ff00ff00ff-{n}",
        "kind": kind,
        "status": 200 if kind == "ok" else 404,
        "took_ms": 812 + n % 100,
        "ttft_ms": 200,
        "queued_ms": 1,
        "limit_ms": 60_000,
        "seen_seq": n // 2,
        "route": "brief",
        "rank": 0,
        "checkable": True,
        "attributable": True,
        "at": "2026-01-05T10:00:00.123Z",
        "charset": "utf-8",
    }
    subject = f"{topology.OUTCOME_PREFIX}router-{n % 4}.openrouter=2Eai.=.z-ai/model-{n % TARGETS}"
    return subject, json.dumps(body, separators=(",", ":")).encode(), {"Nats-Msg-Id": f"00ff00ff00ff00ff-{n}"}


async def publish_events(client: Client, count: int) -> None:
    """Fill the log; waits for the server's acknowledgement every few hundred events."""
    jetstream = client.jetstream(timeout=30)
    for n in range(1, count + 1):
        subject, body, headers = event(n)
        if n % _BATCH and n != count:
            await client.publish(subject, body, headers=headers)
        else:
            await jetstream.publish(subject, body, headers=headers)


async def read_all(client: Client, *, decode: bool) -> float:
    """Seconds from nothing to caught up."""
    decoder = msgspec.json.Decoder(_Outcome)
    counts: dict[bytes, int] = {}
    began = time.perf_counter()
    reader = LogReader(BorrowedConnection(client), topology.LOG, after_seq=0)
    async for item in reader:
        if isinstance(item, Chunk) and decode:
            for subject, outcome in zip(item.subjects, decoder.decode_lines(b"\n".join(item.payloads)), strict=True):
                if outcome.kind == "ok":
                    counts[subject] = counts.get(subject, 0) + 1
        elif isinstance(item, CaughtUp):
            break
    took_s = time.perf_counter() - began
    await reader.close()
    return took_s


async def fill_bucket(client: Client) -> None:
    """20,000 gate entries of 400 bytes."""
    jetstream = client.jetstream(timeout=30)
    value = b'{"provider":"openrouter.ai","reason":"quarantined"' + b" " * 350 + b"}"
    for n in range(1, ENTRIES + 1):
        subject = f"{topology.GATE_PREFIX}openrouter=2Eai.=.z-ai/model-{n}"
        if n % _BATCH and n != ENTRIES:
            await client.publish(subject, value)
        else:
            await jetstream.publish(subject, value)


async def _measured(events: int) -> tuple[float, float, float]:
    """Best of three each: seconds for the bare read, for the decoded one, for the pages."""
    with NatsServer() as server:
        client = await connect_client(server.url)
        try:
            await topology.ensure(client)
            await publish_events(client, events)
            bare_s = min([await read_all(client, decode=False) for _ in range(3)])
            decoded_s = min([await read_all(client, decode=True) for _ in range(3)])
            await fill_bucket(client)
            pages_s = min([await _page_through(client) for _ in range(3)])
        finally:
            await client.close()
    return bare_s, decoded_s, pages_s


async def _page_through(client: Client) -> float:
    began = time.perf_counter()
    found = await read_entries(client, topology.GATE_STREAM, f"{topology.GATE_PREFIX}>")
    took_s = time.perf_counter() - began
    assert len(found.entries) == ENTRIES
    return took_s


def measure(quick: bool) -> list[Row]:
    """The rows of the budget table that the reader answers for."""
    events = 100_000 if quick else 400_000
    bare_s, decoded_s, pages_s = asyncio.run(_measured(events))
    per_event = f"{decoded_s / events * 1e6:.1f} us an event, decoding included"
    return [
        Row("reader, bare", events / bare_s, "events/s", better="higher"),
        Row("reader, decoded and counted", events / decoded_s, "events/s", 100_000, per_event, better="higher"),
        Row(f"page through {ENTRIES:,} gate entries", pages_s * 1000, "ms", 500),
    ]


if __name__ == "__main__":
    print_rows(measure(quick="--quick" in sys.argv))
