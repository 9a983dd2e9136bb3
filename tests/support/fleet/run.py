"""Tell every story: `python -m fleet.run [--seeds N] [--jobs N] [--only WORDS] [--dry]` in the folder tests/support/.

Prints the tables and writes them into docs/fleet.md and README.md (not with `--only` or `--dry`). Exit code 1 if a
bound is missed or a rival is better, and nothing says why.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from .scenarios import SCENARIOS
from .tables import ROOT, Measured, bounds_table, long_table, short_table, write
from .world import SIDES, Told, tell


def one(task: tuple[int, int, str]) -> Told:
    """One telling, in whichever process."""
    place, seed, side = task
    return tell(SCENARIOS[place].story, seed, side)


def measure(places: Sequence[int], seeds: Sequence[int], jobs: int) -> list[Measured]:
    """Tell the scenarios at these places from each seed by each side; those with most calls first."""
    tasks = [(place, seed, side) for place in places for seed in seeds for side in SIDES]
    tasks.sort(key=lambda task: -_calls(task[0]))
    with ProcessPoolExecutor(jobs) as pool:
        found = dict(zip(tasks, pool.map(one, tasks), strict=True))
    return [
        Measured(SCENARIOS[place], [{side: found[place, seed, side] for side in SIDES} for seed in seeds])
        for place in places
    ]


def _calls(place: int) -> float:
    story = SCENARIOS[place].story
    return sum(story.rates.values()) * story.length_s


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="stories whose name contains these words")
    parser.add_argument("--dry", action="store_true", help="write no page")
    options = parser.parse_args()
    began_s = time.monotonic()
    places = [place for place, scenario in enumerate(SCENARIOS) if options.only in scenario.story.name]
    measured = measure(places, range(1, options.seeds + 1), options.jobs)
    said = f"Seeds 1 to {options.seeds}; means, and of bounds the worst seed but where they are of a mean."
    long = ["", said, *long_table(measured), "", "### Bounds", "", *bounds_table(measured), ""]
    print("\n".join(long))
    if not options.only and not options.dry:
        write(ROOT / "docs" / "fleet.md", long)
        write(ROOT / "README.md", ["", *short_table(measured), ""])
    failed = [
        f"{found.scenario.story.name}: {figure}"
        for found in measured
        for figure in found.scenario.measure(found.tellings)
        if not figure.is_kept(options.seeds) and not figure.miss
    ]
    failed += [f"{found.scenario.story.name}: {found.better} do better" for found in measured if not found.is_explained]
    print("\n".join(failed), file=sys.stderr)
    print(f"{len(measured)} stories in {time.monotonic() - began_s:.0f} s; {len(failed)} unexplained", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
