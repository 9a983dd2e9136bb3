"""The services as a FastStream application: life cycle, health, alerts, the event contract.

    faststream run sickbay.app:app          # settings from the environment; or `sickbay serve`, which says more

The fold does not run on FastStream's connection but on a `Link` of its own. The server closes a nats-py client for good
after most -ERR lines, and FastStream cannot replace the client that it was started with; a Link can. So alerts may be
lost with their connection, and the fold goes on.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, Final

import nats.errors
from fast_depends.msgspec import MsgSpecSerializer
from faststream.asgi import AsgiFastStream, AsgiResponse, get
from faststream.nats import NatsBroker
from nats.aio.client import Client

from ..bus.connect import NatsOptions, PermissionDenied, connect_client
from ..bus.link import close_client
from ..config import Settings
from ..loggers import logger
from .announce import subscribe_log_lines
from .asyncapi import asyncapi_document, documented, specification
from .exposition import exposition, refused_scrape
from .services import CONNECT_TIMEOUT_S, Services

_log = logger("sickbay.services")

SERVICES: Final = "services"


def _note_denied(error: Exception) -> None:
    if isinstance(error, PermissionDenied):
        _log.error("%s", error)  # the caller only sees a time-out


class Broker(NatsBroker):
    """FastStream's broker on a connection that is made as all others of Sickbay are: bounded and explained."""

    options: NatsOptions | None = None

    async def _connect(self) -> Client:
        if self.options is None:
            raise RuntimeError("the application's lifespan says where NATS is before the broker starts")
        client = await connect_client(self.options, timeout_s=CONNECT_TIMEOUT_S, on_error=_note_denied)
        self.config.connect(client)
        return client

    async def stop(self, *args: Any, **kwargs: Any) -> None:
        """As FastStream's, but the end of a connection that is lost anyway is no error."""
        try:
            await super().stop(*args, **kwargs)
        except (nats.errors.Error, OSError) as error:
            _log.debug("the broker's connection: %s", error)
            client, self._connection = self._connection, None
            if client is not None:
                await close_client(client)
            self.config.disconnect()


def make_app(settings: Settings | None = None) -> AsgiFastStream:
    """The application. Without settings they are read from the environment when it starts."""
    broker = Broker(serializer=MsgSpecSerializer(), logger=None, graceful_timeout=5.0)
    running: list[Services] = []

    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        services = Services(settings or Settings.from_environment())
        await services.start()
        broker.options = services.options
        running.append(services)
        try:
            yield
        finally:
            running.clear()
            await services.stop()

    @get
    async def healthz(_scope: Any) -> AsgiResponse:
        """200 while the fold is live and connected, 503 otherwise, with the facts."""
        found = running[0].health() if running else {"ok": False, "why": "not started"}
        headers = {"Content-Type": "application/json"}
        return AsgiResponse(json.dumps(found).encode(), 200 if found["ok"] else 503, headers)

    @get(include_in_schema=False)
    async def metrics(scope: Any) -> AsgiResponse:
        """The metrics of this process, for Prometheus."""
        if why := refused_scrape(scope, running[0].settings) if running else b"not started":
            return AsgiResponse(why, 403 if running else 503, {"Content-Type": "text/plain"})
        accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
        body, content_type = await exposition(running[0], accept)
        return AsgiResponse(body, 200, {"Content-Type": content_type})

    documented(broker)
    subscribe_log_lines(broker)
    contract = specification(broker)

    @get(include_in_schema=False)
    async def asyncapi(_scope: Any) -> AsgiResponse:
        """The event contract."""
        return AsgiResponse(json.dumps(asyncapi_document(contract)).encode(), 200, {"Content-Type": "application/json"})

    made = AsgiFastStream(
        broker,
        asgi_routes=[("/healthz", healthz), ("/metrics", metrics), ("/asyncapi.json", asyncapi)],
        lifespan=lifespan,
        logger=None,
        specification=contract,
    )
    made.context.set_global(SERVICES, running)
    return made


def services_of(app: AsgiFastStream) -> Services:
    """The services that an application runs. Raises `IndexError` while it does not."""
    running: list[Services] = app.context.get(SERVICES)
    return running[0]


app = make_app()
