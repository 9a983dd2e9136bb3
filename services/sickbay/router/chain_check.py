"""Warnings about chains that may not help, when they are first used: all candidates are at one provider, or one of them
has never answered (Rule 5.4)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import nats.errors

from sickbay_events import Target

from ..bus.link import Link
from ..loggers import logger

_log = logger("sickbay")

SUBJECT: Final = "sickbay.v1.decide"
ASK_S: Final = 2.0
ASK_AGAIN_S: Final = 10.0
"""If the services do not answer, a later use of the chain asks again, at most so often."""
CHAINS_MAX: Final = 1_000
"""Up to so many chains are remembered; with more, warnings come again."""
ANSWERED_MAX: Final = 10_000

NamedChain: TypeAlias = tuple[str, tuple[Target, ...]]


class ChainCheck:
    """The chains of one process. `used` may be called from any thread; it never waits and never raises."""

    def __init__(
        self, link: Link | None, named: Callable[[Target], Target], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._link, self._named, self._monotonic = link, named, monotonic
        self._used: set[NamedChain] = set()
        self._asked: dict[NamedChain, float] = {}
        """Chains that the services have not answered about yet, and when they may be asked again."""
        self._answered: set[Target] = set()
        """Targets that answered in this process."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin in the running loop, which is the link's."""
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """Ask no more."""
        self._loop = None
        for task in (tasks := list(self._tasks)):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def answered(self, target: Target) -> None:
        """It gave an answer."""
        if len(self._answered) < ANSWERED_MAX:
            self._answered.add(target)

    def used(self, targets: tuple[Target, ...], route: str | None) -> None:
        """A chain is used."""
        if len(targets) < 2:
            return
        chain = route or "", targets
        if chain not in self._used:
            if len(self._used) >= CHAINS_MAX:
                self._used.clear()
                self._asked.clear()
            self._used.add(chain)
            self._asked[chain] = 0.0
            hosts = {target.provider.partition("#")[0] for target in targets}
            if len(hosts) == 1:
                _warn(chain, "one_provider", f"all {len(targets)} candidates are at {hosts.pop()}")
        if self._asked and chain in self._asked:
            self._ask_later(chain)

    def _ask_later(self, chain: NamedChain) -> None:
        now_s, loop = self._monotonic(), self._loop
        if loop is None or self._link is None or self._link.client is None or now_s < self._asked.get(chain, now_s + 1):
            return
        self._asked[chain] = now_s + ASK_AGAIN_S
        try:
            loop.call_soon_threadsafe(self._begin, chain)
        except RuntimeError:
            self._loop = None  # closed

    def _begin(self, chain: NamedChain) -> None:
        if self._loop is not None:
            task = self._loop.create_task(self._ask(chain), name="sickbay-chain-check")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(self, chain: NamedChain) -> None:
        try:
            silent = [target for target in dict.fromkeys(chain[1]) if not await self._has_answered(target)]
        except (TimeoutError, nats.errors.Error, OSError, ValueError, KeyError, TypeError) as error:
            _log.debug("the services do not say yet whether the candidates of a chain ever answered: %r", error)
            return
        self._asked.pop(chain, None)
        for target in silent:
            if target not in self._answered:
                _warn(chain, "never_answered", f"no answer of {target.provider} / {target.model} is known")

    async def _has_answered(self, target: Target) -> bool:
        client = self._link.client if self._link is not None else None
        if client is None:
            raise TimeoutError
        named = self._named(target)
        if target.is_empty:
            return True
        ask = json.dumps({"provider": named.provider, "model": named.model}).encode()
        reply = await client.request(SUBJECT, ask, timeout=ASK_S)
        if (reply.headers or {}).get("Nats-Service-Error-Code"):
            raise ValueError((reply.headers or {}).get("Nats-Service-Error"))
        found: Sequence[dict[str, Any]] = json.loads(reply.data)["counters"]
        return any(each.get("model") == named.model and each.get("last_answer_ms") for each in found)


def _warn(chain: NamedChain, why: str, text: str) -> None:
    _log.warning(
        "the chain %s is no last resort: %s",
        chain[0] or " > ".join(f"{target.provider} / {target.model}" for target in chain[1]),
        text,
        extra={"event": "no_last_resort", "route": chain[0] or None, "why": why},
    )
