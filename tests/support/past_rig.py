"""Running services with a history in their log, for the tests of what looks back at it."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
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
from waiting import patience, until

KINDS: tuple[Kind, ...] = ("ok", "ok", "model_unavailable", "server_error", "bad_request", "rate_limited")
POISON = (b"", b"not json", b'{"kind":"nonsense"}', b'{"kind":"ok","took_ms":-1}', b"\xff")
TARGETS = [Target(f"host-{n % 2}", f"model.{n}") for n in range(4)]


def services(url: str, name: str = "box", **settings: Any) -> AbstractAsyncContextManager[Services]:
    """Services in this process, answering and writing."""
    return serving(Settings(nats=url, replica=name, **settings))


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Services]:
    running = Services(settings)
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
            await publish(client, outcome_subject(replica, target), drawn.choice(POISON), f"poison-{seed}-{n}")
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
    api, projector = JetStreamApi(client, timeout_s=patience(5)), running.projector
    assert projector is not None

    async def at() -> int | None:
        info = await api.request(f"STREAM.INFO.{LOG}", {"subjects_filter": ">"})
        counts = (info["state"].get("subjects") or {}).items()
        copied = sum(count for name, count in counts if name.startswith(("sickbay.override.", "sickbay.policy")))
        kept = (await api.request(f"STREAM.INFO.{CONTROL}"))["state"]["messages"]
        last: int = info["state"]["last_seq"]
        seen = projector.state.view.checkpoint
        is_written = projector.state.writer.settled and seen is not None and seen.seq == last
        return last if copied == kept and projector.seq == last and is_written else None

    return await until(at, "all is folded and written")


def fleet_of(running: Services) -> Fleet:
    """The state of running services."""
    assert running.projector is not None
    return running.projector.fleet


async def api(client: Client, name: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """One request to JetStream that must succeed."""
    reply = await client.request(f"$JS.API.{name}", json.dumps(body or {}).encode(), timeout=patience(5))
    answer: dict[str, Any] = json.loads(reply.data)
    assert "error" not in answer, answer
    return answer


async def stored(client: Client, count: int) -> None:
    """Wait until so many snapshots stand in the store."""

    async def stand() -> bool:
        info = await api(client, f"STREAM.INFO.{SNAPSHOTS_STREAM}", {"subjects_filter": "$O.sickbay_snapshots.M.>"})
        return len(info["state"].get("subjects") or {}) >= count

    await until(stand, f"{count} snapshots are stored")


async def lived(client: Client, running: Services, stretches: int, count: int) -> int:
    """So many stretches of history, a snapshot after each; the last sequence."""
    last = 0
    for seed in range(stretches):
        await history(client, seed, count)
        last = await settled(client, running)
        await stored(client, seed + 1)
    return last
