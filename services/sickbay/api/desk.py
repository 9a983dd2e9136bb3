"""What the HTTP interface rests on: one connection to NATS, the view that it follows, and questions over it."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any, Final

import msgspec
import nats.errors

from sickbay_events import Decision, NameRefused, Target, provider_of, token
from sickbay_events.names import NAME_BYTES_MAX
from sickbay_projections import decide_entries
from sickbay_projections.weighing import alive, moments

from ..bus.connect import NatsOptions, PermissionDenied, request
from ..bus.link import Link
from ..bus.view_names import view_names
from ..config import Settings
from ..loggers import logger
from ..view.mirror import Mirror
from .problems import Problem, field_refused, unavailable
from .sender import Sender
from .watch import Hub

_log = logger("sickbay.api")

ASK_S: Final = 2.0
"""Time limit of a question to the services."""
READERS_MAX: Final = 4
"""Histories read at once: each may take some megabytes."""
STANDS_S_MAX: Final = 1.0
"""Longest time for which a caller may keep an answer: new events may change it at any time."""


class Decided(msgspec.Struct, frozen=True):
    """A decision and for how long time alone does not change it."""

    decision: Decision
    stands_s: float


class Operations:
    """One process of the HTTP interface, without HTTP. Belongs to the event loop in which `start` is called."""

    def __init__(self, settings: Settings, options: NatsOptions) -> None:
        self.link = Link(options)
        self.mirror = Mirror(self.link, names=view_names(settings.view))
        self.sender = Sender(self.link)
        self.hub = Hub(self.link, self.mirror)
        self.reading = asyncio.Semaphore(READERS_MAX)

    def start(self) -> None:
        """Begin, whether or not NATS is there; returns at once."""
        self.mirror.start()
        self.hub.start()
        self.link.start()

    async def stop(self) -> None:
        """End watchers, then the connection. Never raises."""
        await self.hub.stop()
        await self.sender.close()
        await self.mirror.stop()
        await self.link.close()

    def decide(self, target: Target, replica: str) -> Decided:
        """May this replica call this target, by the view: no hop. Raises `NameRefused`."""
        mirror = self.mirror
        source = "stale" if mirror.is_stale else "cluster"
        if target.is_empty:
            none = Decision(allowed=True, reason="no_target", seq=mirror.seq, age_s=mirror.age_s(), source=source)  # type: ignore[arg-type]
            return Decided(none, STANDS_S_MAX)
        now_ms = mirror.now_ms()
        entries = [alive(mirror.entries.get(key), now_ms) for key in target.keys]
        replicas = mirror.checkpoint.replicas if mirror.checkpoint is not None else 0
        decision = decide_entries(
            entries,
            now_ms,
            replica,
            replicas=replicas,
            seq=mirror.seq,
            age_s=round(mirror.age_s(), 3),
            source=source,  # type: ignore[arg-type]
        )
        next_ms = min(moments(entries, now_ms, replica), default=None)
        return Decided(decision, STANDS_S_MAX if next_ms is None else min(STANDS_S_MAX, (next_ms - now_ms) / 1000))

    def readiness(self) -> dict[str, Any]:
        """Whether the view is fresh, and how old it is."""
        mirror = self.mirror
        connected = self.link.client is not None
        why = None
        if not mirror.is_loaded:
            why = "the view was not read yet"
        elif mirror.is_stale:
            why = "nobody has written the view lately"
        if not connected:
            why = "there is no connection to NATS" if why is None else f"{why}: there is no connection to NATS"
        found = {
            "ready": why is None,
            "age_s": round(mirror.age_s(), 3),
            "seq": mirror.seq,
            "source": "stale" if mirror.is_stale else "cluster",
            "connected": connected,
            "version": version("sickbay"),
        }
        return found if why is None else {**found, "why": why}

    async def ask(self, subject: str, question: dict[str, Any]) -> dict[str, Any]:
        """Ask the services. Raises `Problem`: 422 for what they refuse, 503 when none answers in time."""
        client = self.link.client
        if client is None:
            raise unavailable("there is no connection to NATS")
        try:
            reply = await request(client, subject, msgspec.json.encode(question), timeout_s=ASK_S)
        except nats.errors.NoRespondersError:
            raise unavailable("no `sickbay serve` answers on this NATS") from None
        except PermissionDenied as error:
            _log.error("%s", error)
            raise unavailable("this service's NATS user may not ask that", retry_after_s=30) from None
        except (TimeoutError, nats.errors.Error, OSError):
            raise unavailable(f"no answer in {ASK_S:g} s; what was asked for may have been done") from None
        answer: dict[str, Any] = msgspec.json.decode(reply.data)
        if code := (reply.headers or {}).get("Nats-Service-Error-Code"):
            why = str(answer.get("error", {}).get("why", ""))
            if code == "400":
                raise Problem(422, "field-refused", why)
            raise unavailable(why)
        return answer


def target_of(provider: str, model: str, replica: str) -> Target:
    """The target that a caller names: a provider by name or URL; a loopback one is the caller's own machine's.

    Raises `Problem` for a name that no subject can hold.
    """
    found = Target(provider_of(provider, replica), model)
    host, _, alias = found.provider.partition("#")
    for field, name in (("provider", host), ("provider", alias), ("model", model)):
        try:
            token(name)
        except (NameRefused, UnicodeEncodeError):
            raise field_refused(field, f"up to {NAME_BYTES_MAX} bytes of UTF-8") from None
    return found
