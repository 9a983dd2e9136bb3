"""Histories of a whole fleet from seeds: whatever goes wrong, the rules hold and all is well in the end (`sim`).

SICKBAY_SIM="FIRST:LAST" runs those seeds. A failure names its seed; `make sim SEED=…` runs it again.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime
from types import FrameType, ModuleType
from typing import Any

import msgspec
import pytest

import sickbay.router.client
from paths import ROOT, SUPPORT
from sim import virtual
from sim.faults import AWAITS, FAULTS_WANTED
from sim.history import run
from sim.run import MANY, RULES, Sum, main, run_many
from sim.virtual import VirtualLoop, bound

FIRST, _, LAST = os.environ.get("SICKBAY_SIM", "1:80").partition(":")
SEEDS = range(int(FIRST), int(LAST or FIRST) + 1)
TOGETHER = 20


@pytest.mark.parametrize("first", SEEDS[::TOGETHER])
def test_whatever_goes_wrong_the_rules_hold(first: int) -> None:
    """The checker finds nothing in any history (Rules 4 to 7). That every sort of fault
    takes place in some of them is asked of the many that `make sim` runs."""
    found = run_many(range(first, min(first + TOGETHER, SEEDS.stop)))
    print(found)
    assert not found.broken, str(found)


def test_every_function_in_which_a_projector_is_killed_exists() -> None:
    """`AWAITS` names functions of the product in text, which a rename would leave behind."""
    defined = [
        f"{path.name}:{name}"
        for path in (ROOT / "services").rglob("*.py")
        for name in re.findall(r"async def (\w+)", path.read_text(encoding="utf-8"))
    ]
    assert [name for name in AWAITS if not any(name in site for site in defined)] == []


def test_many_histories_in_which_something_never_happened_do_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault, a rule's hold, leases or kills that are missing in many histories are named and end `make sim` with 1; a
    few histories need not have them all."""
    all_of_it = Sum(
        histories=MANY,
        grants=101,
        faults=Counter(FAULTS_WANTED),
        holds=Counter(RULES),
        sites=Counter(f"function_{n}:await" for n in range(16)),
        broken=[],
    )
    named: dict[str, dict[str, Any]] = {
        "lost acknowledgements": {"faults": Counter(set(FAULTS_WANTED) - {"lost acknowledgements"})},
        "holds by breaker": {"holds": Counter(set(RULES) - {"breaker"})},
        "more than 100 leases": {"grants": 100},
        "projectors killed in more than 15 functions": {"sites": Counter({"function:await": 1_000})},
    }
    cases: list[tuple[Sum, list[str]]] = [(all_of_it, []), (Sum(histories=MANY - 1, broken=[]), [])]
    cases += [(msgspec.structs.replace(all_of_it, **without), [what]) for what, without in named.items()]
    monkeypatch.setattr(sys, "argv", ["sim.run", "1:150"])
    for found, missing in cases:
        monkeypatch.setattr("sim.run.run_many", lambda *_, found=found, **__: found)
        assert found.missing == missing
        assert main() == (1 if missing else 0), missing
        assert all(f"NEVER HAPPENED: {what}" in str(found) for what in missing)


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
            cwd=SUPPORT,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    others_first = [(h.print, h.steps) for h in (run(8), run(7))]
    assert prints == {f"{others_first[1]} {others_first[0]}"}


def test_no_real_clock_and_no_real_chance_has_a_part_in_a_history() -> None:
    """Neither the product nor nats-py calls one, by whichever name it came by it (Rule 6: clocks are each node's)."""
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
    assert (sickbay.router.client, "time") in virtual._places()
