"""A dead target on real processes: NATS, the services, four routers with 60 calls a second together, a provider."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from aiohttp import web

import calling_router
from cli_runs import CLEAN, Serve, serve_fixture, sickbay_process  # noqa: F401 - a fixture is used by its name
from fleet.figures import LESSONS
from nats_servers import NatsServer
from sickbay.log.file import LogFile
from sickbay.log.folding import replay
from sickbay_events import TargetHeld, read_subject
from waiting import patience, until

REPLICAS, PER_S = 4, 60.0
ANSWERS_S, FAILS_S = 0.12, 0.05
TRIALS = 3
OK = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Well."}, "finish_reason": "stop"}]}


@dataclass
class Provider:
    """Answers, or fails all calls while `is_dead`; it counts what it gets.

    answered      answered calls by replica
    refused       calls that gates kept away, by replica
    dead, trials  calls that it failed: of those made freely what the gate had seen of the log, and how many trials
    at_once       so many trials were under way at the same time
    """

    is_dead: bool = False
    answered: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    dead: list[int] = field(default_factory=list)
    trials: int = 0
    at_once: int = 0
    _trying: int = 0

    async def refuse(self, request: web.Request) -> web.Response:
        """A call was refused by the gate of a replica."""
        self.refused[request.headers["x-replica"]] += 1
        return web.Response()

    async def call(self, request: web.Request) -> web.Response:
        """A call is made."""
        replica, is_trial = request.headers["x-replica"], request.headers["x-trial"] == "1"
        self._trying += is_trial
        self.at_once = max(self.at_once, self._trying)
        try:
            if self.is_dead:
                return await self._fail(int(request.headers["x-seen"]), is_trial=is_trial)
            await asyncio.sleep(ANSWERS_S)
        finally:
            self._trying -= is_trial
        self.answered[replica] += 1
        return web.json_response(OK)

    async def _fail(self, seen: int, *, is_trial: bool) -> web.Response:
        if is_trial:
            self.trials += 1
        else:
            self.dead.append(seen)
        await asyncio.sleep(FAILS_S)
        return web.json_response({"error": {"message": "Internal server error"}}, status=500)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[int]:
        """Its port."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.call)
        app.router.add_get("/refused", self.refuse)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()


@asynccontextmanager
async def routers(url: str, port: int) -> AsyncIterator[None]:
    """Four that call all the time; behind it they have handed over what they knew."""
    started = [
        await asyncio.create_subprocess_exec(
            sys.executable, calling_router.__file__, f"r{n}", str(port), str(PER_S / REPLICAS),
            stdin=subprocess.PIPE, env={**CLEAN, "SICKBAY_NATS": url},
        )
        for n in range(REPLICAS)
    ]  # fmt: skip
    try:
        yield
        for process in started:
            assert process.stdin is not None
            process.stdin.close()
        async with asyncio.timeout(patience(20)):
            assert [await process.wait() for process in started] == [0] * REPLICAS
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
            await process.wait()


def word_of(log: Path, began_seq: int) -> list[tuple[str, bool]]:
    """What the services had folded when that hold began: replica, and was it answered."""
    return [
        (read_subject(line.subject).replica, msgspec.json.decode(line.payload)["kind"] == "ok")
        for line in LogFile(log)
        if line.seq <= began_seq and line.subject.startswith("sickbay.outcome.")
    ]


async def test_a_dead_target_costs_what_is_needed_and_what_is_in_flight(
    nats_server: NatsServer, serve: Callable[..., Serve], tmp_path: Path
) -> None:
    """Who has heard of the hold calls no more, but for one trial at a time in the fleet; an answer frees all."""
    provider, log = Provider(), tmp_path / "log.jsonl"
    served = serve("--data", str(tmp_path / "data"), SICKBAY_NATS=nats_server.url)
    await asyncio.to_thread(served.ready)
    async with provider.serve() as port, routers(nats_server.url, port):
        await until(lambda: len(provider.answered) == REPLICAS and min(provider.answered.values()) >= 5, "all call")
        provider.is_dead = True
        await until(lambda: len(provider.refused) == REPLICAS and provider.trials >= TRIALS, "held, and tried")
        provider.is_dead, before = False, Counter(provider.answered)
        await until(lambda: all(provider.answered[r] >= before[r] + 5 for r in provider.refused), "all are free again")
    exported = await asyncio.to_thread(sickbay_process, "export", str(log), SICKBAY_NATS=nats_server.url)
    assert exported.returncode == 0, exported.stderr
    holds = [event for event in replay(LogFile(log)).derived if isinstance(event, TargetHeld)]
    first = next(hold for hold in holds if hold.replica is None)
    assert first.rule == "breaker"
    word = word_of(log, first.began_seq)
    needed = LESSONS["down"].wanted(word, REPLICAS)
    assert sum(not is_ok for _, is_ok in word) == needed
    in_flight = sum(seen < first.began_seq for seen in provider.dead) - needed
    assert len(provider.dead) == needed + in_flight, "a gate let a call pass that had seen the hold"
    assert provider.at_once == 1
    print(f"dead calls: {needed} needed + {in_flight} in flight; {provider.trials} trials failed")
