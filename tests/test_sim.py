"""Histories of a whole fleet from seeds (tests/sim): whatever goes wrong, SPEC's rules hold and all is well in the end.

SICKBAY_SIM="FIRST:LAST" runs those seeds. A failure names its seed; `make sim SEED=…` runs it again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim.faults import FAULTS_WANTED
from sim.history import run
from sim.run import Sum, run_many

FIRST, _, LAST = os.environ.get("SICKBAY_SIM", "1:200").partition(":")
SEEDS = range(int(FIRST), int(LAST or FIRST) + 1)
RULES = ("quarantine", "throttle", "breaker", "degraded", "credential")


@pytest.fixture(scope="module")
def found() -> Sum:
    """All histories of this run."""
    return run_many(SEEDS)


@pytest.mark.timeout(1_200)
def test_whatever_goes_wrong_the_rules_hold_and_each_fault_really_happened(found: Sum) -> None:
    """The checker of tests/sim/rules.py finds nothing in any history (SPEC 4 to 7), and every sort of fault took place
    in some of them."""
    print(found)
    assert not found.broken, str(found)
    if found.histories >= 150:
        missing = [name for name in FAULTS_WANTED if not found.faults[name]]
        assert not missing, f"these faults never happened: {missing}\n{found}"
        assert all(found.holds[rule] for rule in RULES), found.holds
        assert found.grants > 100 and len(found.killed_in) > 15, str(found)


def test_one_seed_is_one_history_in_every_process() -> None:
    """The same seed gives the same bytes in the same order, whatever the interpreter's hash seed."""
    program = "from sim.history import run; print(run(7).print, run(8).print)"
    prints = {
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            capture_output=True,
            text=True,
            cwd=Path(__file__).parent,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert prints == {f"{run(7).print} {run(8).print}"}
