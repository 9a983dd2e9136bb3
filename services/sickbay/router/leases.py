"""How a router gets leases: from the services; if these are silent, rarely, from itself (Rule 5.2)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, TypeAlias
from zlib import crc32

import msgspec
import nats.errors

from sickbay_events.lease_wire import NOT_CURRENT, SUBJECT, LeaseName, TrialAnswer, TrialAsk
from sickbay_projections.weighing import LeaseNeeded

from ..bus.link import Link
from ..loggers import logger

_log = logger("sickbay.trials")

AGAIN_S: Final = 0.02
"""A question is asked again after this if it reached an instance of the services that is not current."""
REMEMBERED_MAX: Final = 1_000
SPREAD: Final = 0x9E3779B1
"""Checksums of names that differ in one letter differ in their low bits; times this, in their high bits too."""

Key: TypeAlias = tuple[bool, str, str, int]
"""Whether the hold is of this replica's overlay, scope key, rule and the hold's name."""


def key_of(lease: LeaseNeeded) -> Key:
    """The key that a lease is remembered by."""
    return lease.is_local, lease.scope, lease.rule, lease.began_seq


def name_of(lease: LeaseNeeded) -> LeaseName:
    """The name that a lease is asked for by."""
    return LeaseName(lease.scope, lease.rule, lease.began_seq)


async def ask_services(link: Link, ask: TrialAsk, limit_s: float) -> TrialAnswer | None:
    """The services' answer; None if there is none within `limit_s` seconds, or if it is an error."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while True:
                answer = await _ask_one(link, ask, limit_s)
                if answer != NOT_CURRENT:
                    return answer if isinstance(answer, TrialAnswer) else None
                await asyncio.sleep(AGAIN_S)  # the next instance may be current
    return None


async def _ask_one(link: Link, ask: TrialAsk, limit_s: float) -> TrialAnswer | str:
    """The answer of one instance, or the code of its error; "" if there is no answer."""
    client = link.client
    if client is None:
        return ""
    try:
        reply = await client.request(SUBJECT, msgspec.json.encode(ask), timeout=limit_s)
        code = (reply.headers or {}).get("Nats-Service-Error-Code")
        if code:
            _log.debug("no lease could be asked for: %s", (reply.headers or {}).get("Nats-Service-Error"))
            return code
        return msgspec.json.decode(reply.data, type=TrialAnswer)
    except (TimeoutError, nats.errors.Error, msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        _log.debug("no answer about a lease: %r", error)
        return ""


class SelfGrants:
    """Trials that a replica grants itself: one of a hold in each span, at a moment of its own.

    Spans count from the hold's end; the replica's place in the ring of its name is its moment in each.
    """

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._spans: dict[Key, int] = {}
        """Number of the span in which the last lease was granted, or in which one was first wanted."""

    def acquire(self, leases: list[LeaseNeeded], now_ms: int, span_ms: int) -> tuple[LeaseNeeded, float] | None:
        """Grant all of the leases, or none. Returns None if they are granted, else one that cannot be granted yet, and
        the seconds until it can."""
        if len(self._spans) >= REMEMBERED_MAX:
            self._spans.clear()
        taken: dict[Key, int] = {}
        for lease in leases:
            if lease.early:
                return lease, (lease.end_ms - now_ms) / 1000  # only the services may grant an early trial
            place = crc32(f"{self._replica} {lease.began_seq}".encode("utf-8", "surrogatepass")) * SPREAD & 0xFFFFFFFF
            moment_ms = lease.end_ms + (place * span_ms >> 32)
            span = (now_ms - moment_ms) // max(1, span_ms)
            # Not in the span in which the silence was noticed: all replicas whose moments have passed in it would call
            # at once.
            if span <= self._spans.setdefault(key_of(lease), span):
                return lease, (moment_ms + (span + 1) * span_ms - now_ms) / 1000
            taken[key_of(lease)] = span
        self._spans.update(taken)
        return None
