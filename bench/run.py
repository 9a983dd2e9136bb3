"""The budget table with measured values: `make bench`, or `python bench/run.py [--quick] [MODULE ...]`.

Every `bench_*.py` beside this file is run in a process of its own, one after the other, so that none
measures another's memory or garbage. Exit code: 0 measured, 1 a module failed, or (with --strict) missed a budget.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from rows import Row, print_rows

FOLDER = Path(__file__).parent
# As the budget table has them; what is not named here comes after, by name.
ORDER = ("bench_decide", "bench_record", "bench_projector", "bench_fold", "bench_reader", "bench_classify")


def modules(wanted: list[str]) -> list[str]:
    """The modules to run, in order. Exits with a message when one is named that is not here."""
    found = sorted(
        (path.stem for path in FOLDER.glob("bench_*.py")),
        key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name),
    )
    named = [name if name.startswith("bench_") else f"bench_{name}" for name in wanted]
    if unknown := set(named) - set(found):
        sys.exit(f"no such bench: {', '.join(sorted(unknown))}; there are {', '.join(found)}")
    return [name for name in found if name in named] if named else found


def measure_alone(name: str, quick: bool) -> list[Row] | None:
    """Run one module in a process of its own; None if it failed (its error is on stderr)."""
    with tempfile.TemporaryDirectory(prefix="sickbay-bench-") as folder:
        result = Path(folder) / "rows.json"
        command = [sys.executable, __file__, "--into", str(result), *(["--quick"] if quick else []), name]
        done = subprocess.run(command, check=False, cwd=FOLDER.parent)
        if done.returncode or not result.exists():
            return None
        return [Row(**row) for row in json.loads(result.read_text(encoding="utf-8"))]


def write_rows(name: str, quick: bool, into: Path) -> None:
    """What the child does: measure here, write the rows down."""
    sys.path.insert(0, str(FOLDER))
    rows: list[Row] = importlib.import_module(name).measure(quick)
    into.write_text(json.dumps([asdict(row) for row in rows]), encoding="utf-8")


def where() -> str:
    """The machine, and how busy it was: figures are worth nothing without it."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{platform.machine()}, {os.cpu_count()} cores{load}, Python {platform.python_version()}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure, and compare with the budgets.")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="decide, fold, ...; default all")
    parser.add_argument("--quick", action="store_true", help="shorter runs, rougher figures")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a budget is missed")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.into:
        write_rows(given.modules[0], given.quick, given.into)
        return 0
    print(f"{where()}{', quick run' if given.quick else ''}\n", flush=True)
    failed: list[str] = []
    everything: list[Row] = []
    for name in modules(given.modules):
        began = time.monotonic()
        rows = measure_alone(name, given.quick)
        if rows is None:
            failed.append(name)
            continue
        print(f"{name} measured in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        everything += rows
    print_rows(everything)
    missed = [row for row in everything if row.met() is False]
    print(f"\n{len(everything)} measured, {len(missed)} missed their budget")
    for name in failed:
        print(f"{name} FAILED", file=sys.stderr)
    return 1 if failed or (given.strict and missed) else 0


if __name__ == "__main__":
    sys.exit(main())
