"""A response that goes on: server-sent events, to a reader that may be slow or go away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from ..loggers import logger
from .watch import Hub

_log = logger("sickbay.api")

SEND_S: Final = 10.0
"""What the reader's side does not take within this is not waited for."""

MAY_EVERY_S: Final = 1.0
"""How often it is looked whether the reader's token is still known."""


class EventStream(ASGIResponse):
    """The events of a hub, until the reader leaves, is too slow, may not any more, or the hub ends."""

    __slots__ = ("_hub", "_is_anonymous", "_last_id", "_may")

    def __init__(self, hub: Hub, last_id: str, may: Callable[[], bool], *, is_anonymous: bool) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(media_type="text/event-stream", headers=headers)
        self._hub, self._last_id, self._may, self._is_anonymous = hub, last_id, may, is_anonymous

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as ASGI has it
        """Send until it is over."""
        events = self._hub.watch(self._last_id, is_anonymous=self._is_anonymous)
        headers = [row for row in self.encode_headers() if row[0].lower() != b"content-length"]
        # The first event is made before anything is sent: that there are too many watchers is an answer of its own.
        first = await anext(events)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone: asyncio.Task[Any] = asyncio.create_task(_gone(receive), name="sickbay-api-gone")
        sending = asyncio.create_task(_send_all(events, first, send), name="sickbay-api-watch")
        refused = asyncio.create_task(_refused(self._may), name="sickbay-api-may")
        try:
            await asyncio.wait((gone, sending, refused), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (gone, sending, refused):
                task.cancel()
            await asyncio.wait((gone, sending, refused))
            with suppress(RuntimeError):
                await events.aclose()  # type: ignore[attr-defined]


async def _gone(receive: Receive) -> None:
    """Return when the reader has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refused(may: Callable[[], bool]) -> None:
    """Return when the reader may not read any more."""
    while may():  # noqa: ASYNC110 - a file does not tell when it changes
        await asyncio.sleep(MAY_EVERY_S)
    _log.info("a watcher is dropped: its token was taken back")


async def _send_all(events: Any, first: bytes, send: Send) -> None:
    data = first
    while True:
        try:
            async with asyncio.timeout(SEND_S):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError:
            _log.info("a watcher that did not read for %g s is dropped", SEND_S)
            return
        try:
            data = await anext(events)
        except StopAsyncIteration:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
