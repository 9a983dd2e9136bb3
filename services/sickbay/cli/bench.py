"""The command that measures this machine: bench."""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer
from nats.aio.client import Client

import sickbay
from sickbay_events import CallOutcome, Target

from ..bus.connect import connect_client
from ..bus.embedded import saved_url
from .base import AsJson, SaysNo, console, plain_table, print_json, rows, run
from .demo.children import Children

RUN: Final = 200
"""Calls that are timed together, since one is shorter than reading the clock."""
HOST: Final = "bench.test"
ANSWER_S: Final = 10.0
IN_FLIGHT: Final = 5_000


class Measured(NamedTuple):
    """One row: a value in `unit`, the budget it is held against (None: there is none), and what it compares with."""

    what: str
    value: float
    unit: str
    budget: float | None = None
    more_is_better: bool = False
    beside: str = ""

    @property
    def verdict(self) -> str:
        """Whether the budget is met, empty without one."""
        if self.budget is None:
            return ""
        met = self.value >= self.budget if self.more_is_better else self.value <= self.budget
        return "met" if met else "missed"


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(bench)


def bench(
    *,
    holds: Annotated[int, typer.Option(min=10, max=5_000, help="Models that die, one after the other.")] = 200,
    outcomes: Annotated[int, typer.Option(min=1_000, max=5_000_000, help="Outcomes to report at once.")] = 50_000,
    as_json: AsJson = False,
) -> None:
    """Measure what Sickbay costs on this machine, with services and NATS of its own: about 10 seconds.

    Nothing is written to a log that is in use.

    Example: sickbay bench --holds 1000
    """
    found = run(_bench(holds, outcomes))
    if as_json:
        print_json([row._asdict() | {"verdict": row.verdict or None} for row in found])
        return
    cells = [
        (row.what, f"{row.value:,.3g} {row.unit}" if row.value < 100 else f"{row.value:,.0f} {row.unit}",
         "" if row.budget is None else f"{row.budget:,g} {row.unit}", row.verdict, row.beside)
        for row in found
    ]  # fmt: skip
    console().print(rows(plain_table("what", "measured", "budget", "", "in the same run"), cells))


async def _bench(holds: int, outcomes: int) -> list[Measured]:
    """Start services in a folder of their own, measure beside them, end them."""
    with tempfile.TemporaryDirectory(prefix="sickbay-bench-") as folder:
        async with Children(Path(folder), lambda _child, _fact: None) as children:
            services = await children.start(
                "services", "sickbay", "serve", "--data", str(Path(folder) / "data"), "--http", "off",
                "--history", "off", "--until-stdin-closes", SICKBAY_NATS="", SICKBAY_POLICY="",
            )  # fmt: skip
            await services.words("is ready")
            url = saved_url(Path(folder) / "data")
            assert url is not None
            client = await connect_client(url)
            try:
                async with sickbay.connect(url, "bench-a") as a, sickbay.connect(url, "bench-b") as b:
                    if not (await a.ready(ANSWER_S) and await b.ready(ANSWER_S)):
                        raise SaysNo("the bench's services did not answer")
                    return await _measured(client, a, b, holds, outcomes)
            finally:
                await client.close()


async def _measured(
    client: Client, a: sickbay.Sickbay, b: sickbay.Sickbay, holds: int, outcomes: int
) -> list[Measured]:
    hop_ms = await _hop_ms(client)
    lags_ms = await _deny_lags_ms(a, b, holds)
    free = [Target(HOST, f"free-{n}") for n in range(1_000)]
    held = [Target(HOST, f"dead-{n}") for n in range(holds)]
    free_us, held_us = _decide_us(b, free), _decide_us(b, held)
    record_us, rate = await _record(a, free, outcomes)
    ordered = sorted(lags_ms)
    median_ms, p99_ms = statistics.median(ordered), ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return [
        Measured("decide(), a free target", free_us, "us", 1.0, beside=f"{hop_ms * 1e3 / free_us:,.0f} a hop"),
        Measured("decide(), a held target", held_us, "us", 1.5),
        Measured("record(), on the caller's side", record_us, "us", 5.0),
        Measured("reported and acknowledged", rate, "outcomes/s", 20_000.0, more_is_better=True),
        Measured("one hop through NATS", hop_ms, "ms"),
        Measured("deciding report to another gate's refusal, median", median_ms, "ms", 2.0,
                 beside=f"{median_ms / hop_ms:.1f} hops"),
        Measured("the same, p99", p99_ms, "ms", 5.0, beside=f"{len(ordered)} holds"),
    ]  # fmt: skip


async def _hop_ms(client: Client) -> float:
    """Median time from publishing a message to its arrival at another subscription."""
    arrived = asyncio.Event()

    async def arrive(_message: Any) -> None:
        arrived.set()

    subject = client.new_inbox()
    await client.subscribe(subject, cb=arrive)
    await client.flush()
    took: list[float] = []
    for _ in range(500):
        arrived.clear()
        began = time.perf_counter()
        await client.publish(subject, b"x")
        await client.flush(1)
        await asyncio.wait_for(arrived.wait(), 1)
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e3


async def _deny_lags_ms(a: sickbay.Sickbay, b: sickbay.Sickbay, holds: int) -> list[float]:
    """For each model that dies: from the rejection of `a`, after one of `b` (one word would not be the fleet's), to the
    moment at which `b` denies it."""
    denied = asyncio.Event()
    waited = ""

    def changed(key: str, _old: object, _new: object) -> None:
        if key == waited:
            denied.set()

    b.mirror.listen(changed=changed)
    took: list[float] = []
    for n in range(holds):
        target = Target(HOST, f"dead-{n}")
        waited = target.key
        denied.clear()
        rejected = CallOutcome(kind="model_unavailable", status=404)
        acked = b.reporter.counts.acked
        b.record(target, rejected)
        while b.reporter.counts.acked == acked:  # noqa: ASYNC110 - counts tell no event
            await asyncio.sleep(0.001)
        began = time.perf_counter()
        a.record(target, rejected)
        try:
            await asyncio.wait_for(denied.wait(), ANSWER_S)
        except TimeoutError:
            raise SaysNo(f"no gate denied {target.provider} {target.model} within {ANSWER_S:.0f} s") from None
        took.append((time.perf_counter() - began) * 1e3)
        if b.decide(target).allowed:
            raise SaysNo(f"the gate allows {target.provider} {target.model} although it has its hold")
    return took


def _decide_us(gate: sickbay.Sickbay, targets: list[Target]) -> float:
    """Median of one decision in microseconds, over targets in random order."""
    return _median_us(lambda picked: [gate.decide(target) for target in picked], targets, 300)


def _median_us(work: Callable[[list[Target]], object], targets: list[Target], runs: int) -> float:
    took: list[float] = []
    gc.disable()  # a collection inside a run is not what a call costs
    try:
        for _ in range(runs):
            picked = random.choices(targets, k=RUN)
            began = time.perf_counter()
            work(picked)
            took.append((time.perf_counter() - began) / RUN)
    finally:
        gc.enable()
    return statistics.median(took) * 1e6


async def _record(router: sickbay.Sickbay, targets: list[Target], outcomes: int) -> tuple[float, float]:
    """Microseconds of one `record()`, and outcomes a second from the first to the last acknowledgement."""
    outcome = CallOutcome(kind="ok", status=200, took_ms=812, limit_ms=60_000)
    took: list[float] = []
    before, began = router.reporter.counts.acked, time.perf_counter()
    for at in range(0, outcomes, RUN):
        picked = random.choices(targets, k=min(RUN, outcomes - at))
        started = time.perf_counter()
        for target in picked:
            router.record(target, outcome)
        took.append((time.perf_counter() - started) / len(picked))
        while router.reporter.counts.queued > IN_FLIGHT:  # noqa: ASYNC110 - a count, not an event
            await asyncio.sleep(0)
    while router.reporter.counts.acked < before + outcomes:
        if time.perf_counter() - began > ANSWER_S + outcomes / 1_000:
            raise SaysNo(f"{before + outcomes - router.reporter.counts.acked} outcomes were not acknowledged")
        await asyncio.sleep(0.001)
    return statistics.median(took) * 1e6, outcomes / (time.perf_counter() - began)
