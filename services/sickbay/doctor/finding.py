"""What a check finds, and what it looks at."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from nats.aio.client import Client

from ..bus.connect import BusError, NatsOptions
from ..bus.jetstream import ApiError, JetStreamApi
from ..bus.view_names import ViewNames
from ..config import Settings

Level: TypeAlias = Literal["ok", "note", "warn", "bad"]
REQUEST_S = 5.0


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing looked at. `do` says what to do about it; empty when nothing is to be done."""

    what: str
    level: Level
    found: str
    do: str = ""


class Installation:
    """An installation as one NATS user sees it, and as the system account does where its credential is at hand.

    client     of the user that doctor was given, or of the services themselves
    system     of the system account, or None
    router     how a router connects, to be tried for what it must not do, or None
    """

    def __init__(
        self,
        client: Client,
        settings: Settings,
        names: ViewNames,
        *,
        system: Client | None = None,
        router: NatsOptions | None = None,
    ) -> None:
        self.client, self.settings, self.names = client, settings, names
        self.system, self.router = system, router

    async def stream(self, name: str) -> dict[str, Any]:
        """What the server says of a stream. Raises `BusError`, `nats.errors.Error`, `TimeoutError`."""
        try:
            return await JetStreamApi(self.client, timeout_s=REQUEST_S).request(f"STREAM.INFO.{name}")
        except ApiError as error:
            raise BusError(f"stream {name}: {error}") from error

    @property
    def is_embedded(self) -> bool:
        """Whether the server is the one that `sickbay serve` runs in the data folder of these settings."""
        url = self.client.connected_url
        try:
            config = (self.settings.data_folder / "nats.conf").read_text(encoding="utf-8")
        except OSError:
            return False
        return url is not None and url.hostname == "127.0.0.1" and f'listen: "127.0.0.1:{url.port}"' in config
