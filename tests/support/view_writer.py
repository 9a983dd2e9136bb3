"""Writes gate entries and checkpoints into the real bucket as a projector does, for tests of those who read.

One writer, each put acknowledged before the next, so what it has put is what stands.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from nats.aio.client import Client

from sickbay.bus.topology import GATE_PREFIX
from sickbay.view.digest_map import entry_hash
from sickbay_events import Checkpoint, GateEntry, Policy, Target
from sickbay_events.view import CHECKPOINT_KEY, POLICY_KEY, AllowView, HoldView, PolicyInForce
from waiting import patience


def hold_entry(
    target: Target,
    *,
    end_ms: int,
    seq: int = 10,
    rule: str = "quarantine",
    reason: str = "quarantined",
    enforced: bool = True,
    proof: bool = True,
    expires_ms: int = 0,
    status: int | None = 404,
    count: int = 2,
) -> GateEntry:
    """An entry that holds a target's own scope."""
    hold = HoldView(
        rule=rule, began_seq=seq, end_ms=end_ms, proof=proof, enforced=enforced, status=status, count=count,
        kind="model_unavailable", over_ms=(expires_ms or end_ms + 3_600_000) if proof else end_ms,
    )  # fmt: skip
    return GateEntry(
        provider=target.provider, model=target.model, holds=[hold], reason=reason, seq=seq,
        expires_ms=expires_ms or end_ms + 3_600_000,
    )  # fmt: skip


def allow_entry(provider: str, *, end_ms: int, seq: int = 11) -> GateEntry:
    """An operator's allow of a host."""
    allow = AllowView(seq=seq, end_ms=end_ms, reason="tried by hand", actor="ops")
    return GateEntry(
        provider=provider, scope="host", allow=allow, reason="allowed_by_operator", seq=seq, expires_ms=end_ms
    )


def release_entry(target: Target, *, seq: int, cleared: bool = False) -> GateEntry:
    """An entry without holds, as a release leaves it."""
    return GateEntry(
        provider=target.provider, model=target.model, reason="released", by="clear" if cleared else "success", seq=seq,
        cleared_seq=seq if cleared else None,
    )  # fmt: skip


class ViewWriter:
    """Puts entries and signs checkpoints."""

    def __init__(self, client: Client, *, log_created: str = "2026-11-30T00:00:00Z") -> None:
        self.client = client
        self.js = client.jetstream()
        self.values: dict[str, bytes] = {}
        self.revision = 0
        self.seq = 0
        self.log_created = log_created

    async def put(self, key: str, value: GateEntry | bytes) -> int:
        """Put one entry by scope key; the bucket revision it got."""
        data = value if isinstance(value, bytes) else msgspec.json.encode(value)
        ack = await self.js.publish(GATE_PREFIX + key, data)
        self.revision = ack.seq
        self.values[key] = data
        if not data:
            del self.values[key]
        if isinstance(value, GateEntry):
            self.seq = max(self.seq, value.seq)
        return ack.seq

    async def policy(self, policy: Policy, seq: int) -> None:
        """Put the policy in force."""
        await self.put(POLICY_KEY, msgspec.json.encode(PolicyInForce(seq=seq, policy=policy.to_data())))

    def checkpoint(self, *, live: bool = True, digest: str | None = None) -> Checkpoint:
        """The checkpoint as of now."""
        total = sum(entry_hash(key, value) for key, value in self.values.items()) % (1 << 128)
        now_ms = int(time.time() * 1000)
        return Checkpoint(
            seq=self.seq, time_ms=now_ms, writer="test", fold=1, revision=self.revision, entries=len(self.values),
            digest=digest or f"{total:032x}", log_created=self.log_created, wrote_ms=now_ms, live=live,
        )  # fmt: skip

    async def sign(self, *, live: bool = True, digest: str | None = None) -> int:
        """Put a checkpoint; its revision."""
        body = msgspec.json.encode(self.checkpoint(live=live, digest=digest))
        ack = await self.js.publish(GATE_PREFIX + CHECKPOINT_KEY, body)
        return ack.seq

    @asynccontextmanager
    async def signing(self, every_s: float = 0.3) -> AsyncIterator[None]:
        """Sign a checkpoint again and again, as a live projector does; goes on through outages of the server."""

        stopped = False

        async def keep() -> None:
            while not stopped:
                try:
                    await asyncio.wait_for(self.sign(), patience(1.0))
                except Exception:
                    await asyncio.sleep(0.02)
                    continue
                await asyncio.sleep(every_s)

        task = asyncio.create_task(keep())
        try:
            yield
        finally:
            # A cancellation alone can be lost in `wait_for`.
            stopped = True
            task.cancel()
            await asyncio.wait([task])
