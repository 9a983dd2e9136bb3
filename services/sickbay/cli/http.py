"""Answering HTTP from a command: the socket, the server, and which application answers what."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

from ..config import Settings
from .base import SaysNo

AsgiApp: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]

OWN: Final = ("/healthz", "/asyncapi.json")
"""Paths that `sickbay serve` answers by itself."""
UNREAD_MS: Final = 30_000
"""The system ends a connection whose other side has not taken what was sent for so long."""
IDLE_S: Final = 75
"""A connection nobody uses is kept longer than balancers keep theirs, so that none is closed as it is used again."""
_CUT_OFF: Final = "ASGI callable returned without completing response"


def listening(settings: Settings) -> socket.socket | None:
    """A bound socket for HTTP, made here so that a taken port is a plain error; None where HTTP is off."""
    address = settings.http_address
    if address is None:
        return None
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sys.platform == "linux":
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
    try:
        made.bind((address[0].strip("[]"), address[1]))
        made.listen()  # a request that comes before the services are ready waits for them
    except OSError as error:
        made.close()
        raise SaysNo(f"--http {settings.http}: {error.strerror or error}; name another one, or off") from error
    return made


@asynccontextmanager
async def answering(
    app: AsgiApp, listener: socket.socket, ending: Callable[[], Awaitable[None]] | None = None
) -> AsyncIterator[None]:
    """Answer HTTP on the socket by uvicorn, which here neither handles signals nor the application's life.

    `ending` is awaited before the server waits for the answers that are under way: streams end by it.
    """
    import uvicorn

    from ..api.protocol import Protocol

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    # A reader that was dropped on purpose is no fault of the application.
    logging.getLogger("uvicorn.error").addFilter(lambda record: _CUT_OFF not in record.getMessage())
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",  # whatever else is installed
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=4,
    )
    server = Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    try:
        yield
    finally:
        if ending is not None:
            await ending()
        server.should_exit = True
        await task


class Front:
    """One application before two: the services' own paths, and the HTTP interface for all others."""

    def __init__(self, own: AsgiApp, api: AsgiApp) -> None:
        self._own, self._api = own, api

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Hand a request on."""
        own = scope["type"] == "http" and scope["path"] in OWN
        await (self._own if own else self._api)(scope, receive, send)
