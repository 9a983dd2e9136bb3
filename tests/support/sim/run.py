"""Run histories: `python -m sim.run [SEED | FIRST:LAST] [--seconds S] [--jobs N]` in the folder tests/support/.

Says what happened in all of them, and which did not hold. Exit code 1 if any did not, or if there were many and
something never happened in any of them.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count, islice

import msgspec

from .faults import FAULTS_WANTED
from .history import History, run

BATCH = 8
MANY = 150
"""So many histories have every sort of fault and of hold among them."""
RULES = ("quarantine", "throttle", "breaker", "degraded", "credential")


class Sum(msgspec.Struct):
    """What happened in many histories."""

    histories: int = 0
    events: int = 0
    steps: int = 0
    grants: int = 0
    virtual_s: float = 0.0
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    holds: Counter[str] = msgspec.field(default_factory=Counter)
    calls: Counter[str] = msgspec.field(default_factory=Counter)
    sites: Counter[str] = msgspec.field(default_factory=Counter)
    broken: list[tuple[int, list[str]]] = []

    def add(self, history: History) -> None:
        """One more."""
        self.histories += 1
        self.events += history.events
        self.steps += history.steps
        self.grants += history.grants
        self.virtual_s += history.virtual_s
        self.faults.update(history.faults)
        self.holds.update(history.holds)
        self.calls.update(history.counts)
        self.sites.update(history.sites)
        if history.broken:
            self.broken.append((history.seed, history.broken))

    @property
    def killed_in(self) -> set[str]:
        """Functions that a projector was in when it was killed."""
        return {step.rpartition(":")[0] for site in self.sites for step in site.split(" > ")}

    @property
    def missing(self) -> list[str]:
        """What never happened, though there were many histories: then that nothing broke says less than it seems to."""
        if self.histories < MANY:
            return []
        found = [name for name in FAULTS_WANTED if not self.faults[name]]
        found += [f"holds by {rule}" for rule in RULES if not self.holds[rule]]
        found += ["more than 100 leases"] if self.grants <= 100 else []
        return found + (["projectors killed in more than 15 functions"] if len(self.killed_in) <= 15 else [])

    def __str__(self) -> str:
        lines = [
            f"{self.histories} histories, {self.virtual_s / 3600:.1f} virtual hours, {self.events} events in the logs, "
            f"{self.steps} steps, {self.grants} leases"
        ]
        for name, found in (("faults", self.faults), ("holds", self.holds), ("calls and network", self.calls)):
            told = ", ".join(f"{what} {times}" for what, times in sorted(found.items()) if times)
            lines.append(f"{name}: {told}")
        lines.append(f"projectors were killed at {len(self.sites)} awaits, in {', '.join(sorted(self.killed_in))}")
        if self.missing:
            lines.append(f"NEVER HAPPENED: {', '.join(self.missing)}")
        for seed, broken in self.broken[:10]:
            lines += [f"SEED {seed} (again: make sim SEED={seed}):", *[f"    {one}" for one in broken[:5]]]
        return "\n".join(lines)


def _batch(seeds: list[int]) -> list[History]:
    return [run(seed) for seed in seeds]


def _batches(seeds: Iterable[int], until_s: float) -> Iterator[list[int]]:
    seeds = iter(seeds)
    while time.monotonic() < until_s and (batch := list(islice(seeds, BATCH))):
        yield batch


def run_many(seeds: Iterable[int], *, seconds: float = float("inf"), jobs: int = 1) -> Sum:
    """Run these, as many as there is time for."""
    found, batches = Sum(broken=[]), _batches(seeds, time.monotonic() + seconds)
    if jobs == 1:
        for batch in batches:
            for history in _batch(batch):
                found.add(history)
        return found
    with ProcessPoolExecutor(jobs) as pool:
        running = {pool.submit(_batch, batch) for batch in islice(batches, 2 * jobs)}
        while running:
            done = next(iter(running))
            running.remove(done)
            for history in done.result():
                found.add(history)
            running |= {pool.submit(_batch, batch) for batch in islice(batches, 1)}
    return found


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="sim.run", description=__doc__)
    parser.add_argument("seeds", nargs="?", default="", help="one seed, or FIRST:LAST; default: on from 1")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    first, colon, last = (given.seeds or "1:").partition(":")
    seeds = count(int(first)) if colon and not last else range(int(first), int(last or first) + 1)
    if isinstance(seeds, count) and given.seconds == float("inf"):
        given.seconds = 60.0
    found = run_many(seeds, seconds=given.seconds, jobs=1 if len(given.seeds) and not colon else given.jobs)
    print(found)
    return 1 if found.broken or found.missing else 0


if __name__ == "__main__":
    sys.exit(main())
