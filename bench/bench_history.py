"""The history: bulk events a second into the file, and the historian keeping up with 20,000 events a second, live.

Run: python bench/bench_history.py [--quick]
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from bench_fold import START_MS
from nats_servers import NatsServer
from rows import Row, print_rows
from sickbay.bus.connect import connect_client
from sickbay.bus.topology import ensure
from sickbay.historian.store import Book, Position
from sickbay.log.decode import DecodedBatch
from sickbay_events import CallOutcome, Kind, Target, encode, outcome_subject
from sickbay_events.codec import decode_outcomes
from sickbay_projections import Fleet
from sickbay_projections.replay.history import History

TARGETS, REPLICAS, CHUNK, COMMIT = 1000, 8, 5_000, 20_000
BAD_KINDS: tuple[Kind, ...] = ("model_unavailable", "server_error", "empty_output", "timeout", "cancelled")


def event(n: int) -> tuple[str, CallOutcome]:
    """One of a busy fleet: 5 % are no success, every fourth is a stream of a chain."""
    kind: Kind = BAD_KINDS[n // 20 % len(BAD_KINDS)] if n % 20 == 0 else "ok"
    chained = n % 4 == 0
    target = (n * 7919) % TARGETS
    outcome = CallOutcome(
        kind=kind, id=f"{n % REPLICAS:016x}-{n // REPLICAS + 1}", status=200, queued_ms=2, seen_seq=n,
        took_ms=200.5 + n * 31 % 5000,
        ttft_ms=120.0 + n % 300 if chained else None, stream=chained, charset="utf-8" if chained else None,
        route="brief" if chained else None, rank=int(n % 8 == 0),
    )  # fmt: skip
    subject = outcome_subject(f"r{n % REPLICAS}", Target(f"provider-{target % 20}.example", f"model-{target}"))
    return subject, outcome


def bulk(count: int, per_s: int, folder: Path) -> tuple[float, float, int]:
    """Seconds for `count` events of `per_s` a second of log time, decoded, folded, and written; MiB of the file."""
    made = [event(n) for n in range(count)]
    subjects, payloads = [one[0] for one in made], [encode(one[1]) for one in made]
    del made
    path = folder / f"bulk-{per_s}.db"
    book, fleet, history = Book.open(path), Fleet(), History()
    began_s = time.perf_counter()
    for at in range(0, count, CHUNK):
        end = min(at + CHUNK, count)
        events = decode_outcomes(payloads[at:end])
        times_ms = [START_MS + n * 1000 // per_s for n in range(at, end)]
        batch = DecodedBatch(subjects[at:end], events, list(range(at + 1, end + 1)), times_ms)
        history.add(*batch, derived=fleet.apply_many(*batch), passed_over=fleet.passed_over)
        if history.events >= COMMIT or end == count:
            book.write(history.take(), Position(seq=fleet.seq, time_ms=history.time_ms, rolled_ms=history.rolled_ms))
    took_s = time.perf_counter() - began_s
    rows = next(iter(book.db.query("SELECT count(*) AS n FROM calls_by_minute")))["n"]
    book.close()
    return took_s, path.stat().st_size / 2**20, int(rows)


async def live(per_s: int, seconds: int, folder: Path) -> tuple[float, float, float]:
    """A historian of its own process beside a publisher: the worst and the last lag in s, and its CPU share."""
    path = folder / "live.db"
    with NatsServer() as server:
        client = await connect_client(server.url)
        await ensure(client, None)
        command = [sys.executable, "-m", "sickbay", "historian", "--nats", server.url, "--history", str(path)]
        process = subprocess.Popen(command, env={**os.environ, "SICKBAY_LOG_LEVEL": "ERROR"})
        try:
            await asyncio.sleep(2)
            began_s, sent, lags = time.perf_counter(), 0, list[float]()
            cpu_s = _cpu_s(process.pid)
            while (now_s := time.perf_counter() - began_s) < seconds:
                while sent < now_s * per_s:
                    subject, outcome = event(sent)
                    await client.publish(subject, encode(outcome))
                    sent += 1
                if now_s > 3:
                    lags.append((sent - _position(path)) / per_s)
                await asyncio.sleep(0.01)
            await client.flush()
            cpu_s = _cpu_s(process.pid) - cpu_s
            while _position(path) < sent:
                await asyncio.sleep(0.02)
            rest_s = time.perf_counter() - began_s - seconds
        finally:
            process.terminate()
            process.wait(20)
            await client.close()
    return max(lags), rest_s, cpu_s / seconds


def _position(path: Path) -> int:
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db,
    ):
        return int(db.execute("SELECT seq FROM position").fetchone()[0])
    return 0


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(quick: bool) -> list[Row]:
    """Rows of the budget table."""
    count = 100_000 if quick else 1_000_000
    rows = []
    with tempfile.TemporaryDirectory(prefix="sickbay-bench-") as name:
        folder = Path(name)
        for per_s in (20_000, 1_000):
            took_s, mib, minutes = bulk(count, per_s, folder)
            note = f"{count / took_s:,.0f} events/s; {minutes:,} rows by minute, {mib:.0f} MiB"
            budget = 30.0 * count / 1_000_000
            rows.append(
                Row(f"history of {count:,} events at {per_s:,}/s, decoded and folded", took_s, "s", budget, note)
            )
        worst_s, rest_s, cpu = asyncio.run(live(20_000, 5 if quick else 15, folder))
        note = f"whole {rest_s:.1f} s after the last event; {cpu:.0%} of a core"
        rows.append(Row("historian at 20,000 events/s live: worst lag", worst_s, "s", 5.0, note))
    return rows


if __name__ == "__main__":
    print_rows(measure(quick="--quick" in sys.argv))
