"""Histories of a whole fleet from seeds (tests/sim): whatever goes wrong, SPEC's rules hold and all is well in the end.

SICKBAY_SIM="FIRST:LAST" runs those seeds. A failure names its seed; `make sim SEED=…` runs it again.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

import sickbay.client
from sim import virtual
from sim.faults import FAULTS_WANTED
from sim.history import run
from sim.run import Sum, run_many
from sim.virtual import VirtualLoop, bound

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
    """The same seed gives the same bytes in the same order and the same steps, whatever the interpreter's hash seed,
    and whatever ran before."""
    program = "from sim.history import run; print(*[(h.print, h.steps) for h in (run(7), run(8))])"
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
    others_first = [(h.print, h.steps) for h in (run(8), run(7))]
    assert prints == {f"{others_first[1]} {others_first[0]}"}


def test_no_real_clock_and_no_real_chance_has_a_part_in_a_history() -> None:
    """Neither the product nor nats-py calls one, by whichever name it came by it (SPEC 6: clocks are each node's)."""
    names = ("time", "monotonic", "perf_counter", "process_time")
    clocks: set[Any] = {getattr(time, name + unit) for name in names for unit in ("", "_ns")}
    clocks |= {datetime.now, datetime.utcnow, datetime.today}
    chance: set[Any] = {os.urandom, random.random, random.getrandbits}
    asked: set[str] = set()

    def profile(frame: FrameType, event: str, callee: Any) -> None:
        if event != "c_call" or not (callee in clocks or callee in chance):
            return
        module = str(frame.f_globals.get("__name__"))
        if callee in chance or module.partition(".")[0] in virtual.PRODUCT:
            asked.add(f"{module}, line {frame.f_lineno}, calls {callee.__qualname__}")

    found = []
    sys.setprofile(profile)
    try:
        found = [run(seed) for seed in (5, 7, 2338)]
    finally:
        sys.setprofile(None)
    assert not asked
    assert [one.broken for one in found] == [[], [], []]


def test_a_history_in_which_the_product_asks_the_real_world_does_not_hold() -> None:
    """A module that is not bound to the virtual clocks is named, with what it asked."""
    module = ModuleType("sickbay.unheard_of")
    exec("import random, time\ndef ask():\n    return time.monotonic(), random.random()", vars(module))
    loop = VirtualLoop()
    with bound(loop, 1):
        module.ask()
    loop.close()
    assert loop.unexpected == [
        "sickbay.unheard_of, line 3, asks the real time.monotonic",
        "sickbay.unheard_of, line 3, asks the real random.random",
    ]
    assert (sickbay.client, "time") in virtual._places()
