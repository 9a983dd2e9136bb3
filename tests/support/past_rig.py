"""Running services with a history in their log, for the tests of what looks back at it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from nats.aio.client import Client

from sickbay.bus.jetstream import JetStreamApi
from sickbay.bus.topology import CONTROL, LOG, SNAPSHOTS_STREAM
from sickbay.config import Settings
from sickbay.control.acts import publish, publish_outcome, publish_override
from sickbay.service.services import Services
from sickbay_events import CallOutcome, Kind, Target
from sickbay_events.codec import outcome_subject
from sickbay_projections import Fleet

KINDS: tuple[Kind, ...] = ("ok", "ok", "model_unavailable", "server_error", "bad_request", "rate_limited")
TARGETS = [Target(f"host-{n % 2}", f"model.{n}") for n in range(4)]


@asynccontextmanager
async def services(url: str, name: str = "box", **settings: Any) -> AsyncIterator[Services]:
    """Services in this process, answering and writing."""
    running = Services(Settings(nats=url, replica=name, **settings))
    await running.start()
    try:
        await running.ready()
        yield running
    finally:
        await running.stop()


async def history(client: Client, seed: int, count: int) -> None:
    """Outcomes of three replicas and four targets, unreadable events, and operators' acts."""
    drawn = random.Random(seed)
    for n in range(1, count + 1):
        replica, target = f"r{drawn.randrange(3)}", drawn.choice(TARGETS)
        if n % 17 == 0:
            await publish(client, outcome_subject(replica, target), b"not json", f"poison-{seed}-{n}")
        elif n % 23 == 0:
            action = drawn.choice(["hold", "allow", "clear"])
            await publish_override(
                client,
                target.scope,
                action,
                reason="x",
                actor="ana",
                for_s=None if action == "clear" else 60,
            )
        else:
            outcome = CallOutcome(kind=drawn.choice(KINDS), status=200, id=f"{seed:08x}{replica:0>8}-{n}")
            await publish_outcome(client, target, outcome, replica=replica)


async def settled(client: Client, running: Services) -> int:
    """Wait until all that is stored is in the log, folded and written; the last sequence."""
    api, projector = JetStreamApi(client, timeout_s=5), running.projector
    assert projector is not None
    async with asyncio.timeout(20):
        while True:
            info = await api.request(f"STREAM.INFO.{LOG}", {"subjects_filter": ">"})
            counts = (info["state"].get("subjects") or {}).items()
            copied = sum(count for name, count in counts if name.startswith(("sickbay.override.", "sickbay.policy")))
            kept = (await api.request(f"STREAM.INFO.{CONTROL}"))["state"]["messages"]
            last: int = info["state"]["last_seq"]
            seen = projector.state.view.checkpoint
            is_written = projector.state.writer.settled and seen is not None and seen.seq == last
            if copied == kept and projector.seq == last and is_written:
                return last
            await asyncio.sleep(0.02)


def fleet_of(running: Services) -> Fleet:
    """The state of running services."""
    assert running.projector is not None
    return running.projector.fleet


async def api(client: Client, name: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """One request to JetStream that must succeed."""
    reply = await client.request(f"$JS.API.{name}", json.dumps(body or {}).encode(), timeout=5)
    answer: dict[str, Any] = json.loads(reply.data)
    assert "error" not in answer, answer
    return answer


async def stored(client: Client, count: int) -> None:
    """Wait until so many snapshots stand in the store."""
    async with asyncio.timeout(10):
        while True:
            info = await api(client, f"STREAM.INFO.{SNAPSHOTS_STREAM}", {"subjects_filter": "$O.sickbay_snapshots.M.>"})
            if len(info["state"].get("subjects") or {}) >= count:
                return
            await asyncio.sleep(0.02)
