"""Pure fold: events a second, decoded already, over 1,000 targets and four replicas. Budget: 200,000 a second.

Run: python bench/bench_fold.py [--quick]
"""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc

from rows import Row, print_rows
from sickbay_events import CallOutcome, Kind, Target, outcome_subject
from sickbay_projections import Fleet

START_MS = 1_700_000_000_000
BAD_KINDS: tuple[Kind, ...] = ("model_unavailable", "server_error", "empty_output", "rate_limited", "cancelled")


def history(count: int, targets: int, replicas: int, bad_one_in: int) -> tuple[list[str], list[CallOutcome]]:
    """Outcomes as four busy routers write them; every `bad_one_in`-th is no success (0: none)."""
    names = [Target(f"provider-{i % 20}.example", f"model-{i}") for i in range(targets)]
    subjects, events = [], []
    for n in range(count):
        bad = bad_one_in and n % bad_one_in == 0
        kind: Kind = BAD_KINDS[n // bad_one_in % len(BAD_KINDS)] if bad else "ok"
        subjects.append(outcome_subject(f"r{n % replicas}", names[(n * 7919) % targets]))
        boot = f"{n % replicas:016x}"
        events.append(
            CallOutcome(kind=kind, id=f"{boot}-{n // replicas + 1}", status=200, took_ms=350.5, queued_ms=2, seen_seq=n)
        )
    return subjects, events


def fold(count: int, bad_one_in: int) -> tuple[float, Fleet]:
    """Processor seconds for a fold of `count` events in chunks of 500, as the projector takes them."""
    subjects, events = history(count, 1000, 4, bad_one_in)
    # Subjects come from the wire as new strings: their hashes are not cached.
    subjects = [subject.encode().decode() for subject in subjects]
    fleet = Fleet()
    gc.collect()
    gc.freeze()
    began = time.process_time()
    for at in range(0, count, 500):
        part = range(at + 1, at + 501)
        fleet.apply_many(subjects[at : at + 500], events[at : at + 500], part, [START_MS + n for n in part])
    return time.process_time() - began, fleet


def memory_per_target(targets: int) -> float:
    """Bytes a target in the state, each heard of once from one replica, with its routes."""
    subjects, events = history(targets, targets, 1, 0)
    times = [START_MS + n * 3000 for n in range(targets)]
    tracemalloc.start()
    fleet = Fleet()
    fleet.apply_many(subjects, events, range(1, targets + 1), times)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / len(list(fleet.keys()))


def measure(quick: bool) -> list[Row]:
    """Rows of the budget table."""
    count = 50_000 if quick else 200_000
    rows = []
    for name, bad_one_in, budget in (("all ok", 0, 200_000), ("5 % bad", 20, 200_000), ("50 % bad", 2, None)):
        seconds, fleet = min((fold(count, bad_one_in) for _ in range(1 if quick else 3)), key=lambda found: found[0])
        each = f"{seconds / count * 1e6:.2f} us an event"
        rows.append(Row(f"pure fold, {name}", count / seconds, "events/s", budget, each, better="higher"))
    scopes = len(list(fleet.keys()))
    began = time.perf_counter()
    data = fleet.encode()
    rows.append(Row(f"encode a state of {scopes:,} scopes", _ms_since(began), "ms", None, f"{len(data):,} bytes"))
    began = time.perf_counter()
    Fleet.decode(data)
    rows.append(Row("decode it", _ms_since(began), "ms"))
    rows.append(Row("memory of the state, a target", memory_per_target(20_000), "bytes", 2_048))
    return rows


def _ms_since(began_s: float) -> float:
    return (time.perf_counter() - began_s) * 1000


if __name__ == "__main__":
    print_rows(measure(quick="--quick" in sys.argv))
