"""The demonstration, with its real processes: what it measures, and that none of them outlives it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from cli_runs import CLEAN, sickbay
from waiting import patience

MARK = "SICKBAY_TEST_MARK"
linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="children are found by /proc")


class Run:
    """`sickbay demo` with a mark in its environment, which every process below it inherits."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sickbay", "demo", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**CLEAN, MARK: self.mark, "TMPDIR": str(folder)},
        )  # fmt: skip

    def alive(self) -> list[tuple[int, str]]:
        """Every process that carries the mark: pid and command."""
        wanted, found = f"{MARK}={self.mark}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if wanted in path.read_bytes().split(b"\0"):
                    state = (path.parent / "stat").read_text().rpartition(")")[2].split()[0]
                    if state != "Z":
                        command = (path.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                        found.append((int(path.parent.name), command))
        return found

    def wait_gone(self, limit_s: float) -> list[tuple[int, str]]:
        """What still lives after the limit."""
        deadline = time.monotonic() + patience(limit_s)
        while (found := self.alive()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def sweep(self) -> None:
        """End whatever a failed test left behind."""
        for pid, _ in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()


@linux
def test_the_demonstration_measures_and_replays(tmp_path: Path) -> None:
    """The cluster saves dead calls, every replica refuses soon after the deciding rejection, and the log of the run
    folds to the same holds at the same sequences, by the demonstration's own check and by `sickbay replay`."""
    kept = tmp_path / "demo.jsonl"
    run = Run(tmp_path, "--json", "--keep", str(kept))
    out, err = run.process.communicate(timeout=patience(90))
    assert run.process.returncode == 0, err
    result = json.loads(out)
    assert run.wait_gone(5) == []
    alone, cluster = result["alone"], result["cluster"]
    # On its own each of the four replicas needs its own two rejections.
    assert alone["dead"] >= 8 and all(count >= 2 for count in alone["dead_by"].values())
    assert cluster["dead"] < alone["dead"] and cluster["dead_ms"] < alone["dead_ms"]
    assert 0 < cluster["spread_ms"] < 500 and alone["answered"] > 50 and cluster["answered"] > 50
    assert result["replay_same"] and {hold["rule"] for hold in result["live"]} == {"quarantine"}
    # The fleet learns it once; from then on each dead call is a trial, which holds it again.
    assert len(result["live"]) in (cluster["trials"], cluster["trials"] + 1)
    replayed = json.loads(sickbay("replay", str(kept), "--json").stdout)
    assert replayed["holds"] == result["live"]
    assert sickbay("demo", "--keep", str(kept)).returncode == 1, "a kept log is never written over"


@linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["INT", "TERM", "KILL"])
def test_no_process_outlives_it(number: signal.Signals, tmp_path: Path) -> None:
    """Ended at a random moment by Ctrl-C, SIGTERM or SIGKILL: within seconds no process of it is left."""
    seed = random.randrange(1 << 30)
    drawn = random.Random(seed)
    for wait_s in (drawn.uniform(0.3, 2.0), drawn.uniform(2.0, 8.0)):
        run = Run(tmp_path)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.process.wait(wait_s)
            started = len(run.alive())
            assert run.process.poll() is None and started >= 1, f"seed {seed}"
            run.process.send_signal(number)
            left = run.wait_gone(15)
            assert left == [], f"seed {seed}, after {wait_s:.2f} s of {started} processes: {left}"
            _, err = run.process.communicate(timeout=patience(5))
            if number != signal.SIGKILL and started > 1:  # before that, Python was still loading it
                assert run.process.returncode == 1 and "interrupted" in err and "Traceback" not in err, f"{seed}: {err}"
        finally:
            run.sweep()


@linux
def test_ctrl_c_twice_leaves_nothing_either(tmp_path: Path) -> None:
    """Impatience: a second and a third Ctrl-C while it ends its children."""
    run = Run(tmp_path)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.process.wait(4)
        for _ in range(3):
            run.process.send_signal(signal.SIGINT)
            time.sleep(0.15)
        assert run.wait_gone(15) == []
    finally:
        run.sweep()
