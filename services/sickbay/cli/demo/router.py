"""One router replica of the demonstration, a process of its own that calls providers through the library.

    python -m sickbay.cli.demo.router NAME ORDER FIRST_PORT SECOND_PORT          (SICKBAY_NATS says where NATS is)
    python -m sickbay.cli.demo.router --live FIRST SECOND                        (each HOST:PORT, as compose starts it)

It calls four times a second: the first choice, and when that is held or fails the second. With `--live` it begins so,
under the name that its environment says, and goes on until SIGTERM. From standard input it
reads `alone` (its gate hears nothing of the cluster and tells it nothing: the same folds, its own outcomes only),
`cluster`, and `stop`. It ends when that input closes, however its parent ended.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from contextlib import suppress
from typing import Final, NamedTuple

import sickbay
from sickbay import Held, Sickbay, Target, provider_of
from sickbay.router.gate import Gate
from sickbay.router.overlay import Overlay
from sickbay.router.trials import Trials
from sickbay.testing import Recorder
from sickbay.view.entries import View

from .pipes import lines_of_stdin, say

CALLS_PER_S: Final = 4
REPLICAS: Final = 4
LIMIT_S: Final = 5.0
WATCH_S: Final = 0.001
"""How often a replica looks whether its gate refuses the first choice; the answer comes from memory."""
READY_S: Final = 10.0
FIRST: Final = "gpt-5.2-nano"
SECOND: Final = "claude-haiku-4-6"


class Choice(NamedTuple):
    """One candidate of the chain."""

    target: Target
    host: str
    port: int
    path: str

    @classmethod
    def at(cls, address: str, model: str, path: str) -> Choice:
        """A model at HOST:PORT, or at a port of this machine."""
        host, _, port = address.rpartition(":")
        host = host or "127.0.0.1"
        return cls(Target(provider_of(f"http://{host}:{port}/v1"), model), host, int(port), path)


async def post(choice: Choice) -> tuple[int, dict[str, str], bytes]:
    """One request over HTTP/1.1: status, headers and body as received."""
    reader, writer = await asyncio.open_connection(choice.host, choice.port)
    try:
        messages = [{"role": "user", "content": "How is the ward?"}]
        body = json.dumps({"model": choice.target.model, "max_tokens": 64, "messages": messages}).encode()
        head = f"POST {choice.path} HTTP/1.1\r\nHost: {choice.host}\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + body)
        raw_head, _, raw_body = (await reader.read()).partition(b"\r\n\r\n")
        first, *lines = raw_head.decode("latin-1").split("\r\n")
        headers = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return int(first.split()[1]), headers, raw_body
    finally:
        writer.close()


def standing_alone(name: str) -> Sickbay:
    """A gate with the same folds and no cluster: it hears of nobody, and what it records goes nowhere."""
    mirror = View()
    overlay = Overlay(now_ms=mirror.now_ms, cluster=mirror.entries, replica=name)
    gate = Gate(mirror, overlay, replica=name)
    trials = Trials(link=None, view=mirror, gate=gate, replica=name)
    return Sickbay(link=None, mirror=mirror, overlay=overlay, gate=gate, reporter=Recorder(), trials=trials)


class Router:
    """One replica, in either of its two lives."""

    def __init__(self, name: str, order: int, chain: list[Choice]) -> None:
        self.name, self.chain = name, chain
        self._offset_s = order / REPLICAS / CALLS_PER_S
        self._calls: set[asyncio.Task[None]] = set()

    async def live(self, sb: Sickbay, phase: str) -> None:
        """Call at the steady rate until cancelled, and say when the first choice is refused."""
        watch = asyncio.create_task(self._watch(sb, phase))
        try:
            began_s = time.monotonic() + self._offset_s
            for n in range(1_000_000):
                await asyncio.sleep(began_s + n / CALLS_PER_S - time.monotonic())
                call = asyncio.create_task(self._call(sb, phase))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)
        finally:
            watch.cancel()
            if self._calls:
                await asyncio.wait(self._calls)

    async def _call(self, sb: Sickbay, phase: str) -> None:
        for rank, choice in enumerate(self.chain):
            try:
                async with sb.attempt(choice.target, limit_s=LIMIT_S, route="demo", rank=rank) as attempt:
                    verdict = attempt.response(*await asyncio.wait_for(post(choice), LIMIT_S))
            except Held:
                say(event="refused", phase=phase, rank=rank)
                continue
            except (OSError, TimeoutError, ValueError, IndexError):
                say(event="failed", phase=phase, rank=rank)
                continue
            outcome = attempt.outcome
            took_ms = outcome.took_ms if outcome is not None else 0
            is_trial = attempt.decision is not None and attempt.decision.trial
            said = {"kind": verdict.kind, "took_ms": took_ms, "at_s": time.monotonic(), "trial": is_trial}
            say(event="called", phase=phase, rank=rank, **said)
            if verdict.kind == "ok":
                return

    async def _watch(self, sb: Sickbay, phase: str) -> None:
        while sb.decide(self.chain[0].target).allowed:  # noqa: ASYNC110 - the moment is what is measured
            await asyncio.sleep(WATCH_S)
        say(event="refuses", phase=phase, at_s=time.monotonic())


async def main(name: str | None, order: int, first: str, second: str, *, is_live: bool = False) -> None:
    """Live as the parent says; or at once, until SIGTERM."""
    chain = [Choice.at(first, FIRST, "/v1/chat/completions"), Choice.at(second, SECOND, "/v1/messages")]
    router = Router(name or "", order, chain)
    if is_live:
        running = asyncio.current_task()
        assert running is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    async with sickbay.connect(replica=name, machine="demo") as cluster, standing_alone(name or "") as alone:
        ready = await cluster.ready(READY_S)
        say(event="ready", heard=ready)
        life = asyncio.create_task(router.live(cluster, "cluster")) if is_live else None
        try:
            async for line in lines_of_stdin():
                if life is not None:
                    await _ended(life)
                    life = None
                if line in ("alone", "cluster"):
                    life = asyncio.create_task(router.live(cluster if line == "cluster" else alone, line))
                say(event="done", line=line)
        finally:
            if life is not None:
                await _ended(life)


async def _ended(life: asyncio.Task[None]) -> None:
    life.cancel()
    with suppress(asyncio.CancelledError):
        await life


if __name__ == "__main__":
    # Ctrl-C goes to the whole terminal; the demonstration's own process decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.argv[1] == "--live":
        with suppress(asyncio.CancelledError):
            asyncio.run(main(None, 0, *sys.argv[2:4], is_live=True))
    else:
        asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]))
