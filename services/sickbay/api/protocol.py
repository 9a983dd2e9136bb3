"""HTTP/1.1 on one connection, for what no application sees: requests that are malformed, clients that send nothing."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from .problems import MEDIA_TYPE, Problem

HEAD_S: Final = 20.0
"""A request whose head takes longer to come is not waited for."""
_BAD: Final = msgspec.json.encode(
    Problem(400, "bad-request", "this is no HTTP/1.1 request that can be read").document()
)
_HEADERS: Final = [
    (b"content-type", MEDIA_TYPE.encode()),
    (b"content-length", b"%d" % len(_BAD)),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"connection", b"close"),
]


class Protocol(H11Protocol):
    """uvicorn's, but what it refuses is a problem document like any other, and half a head is not waited for."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody is there, and has to say something."""
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Some bytes came."""
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        """An answer is out; what has come meanwhile may be the half of the next request."""
        super().on_response_complete()
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        super().connection_lost(exc)
        self._unwatch_head()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's words, which are plain text
        """Say that it cannot be read, and hang up."""
        reason = b"Bad Request"
        events: list[Any] = [h11.Response(status_code=400, headers=_HEADERS, reason=reason)]
        events += [h11.Data(data=_BAD), h11.EndOfMessage()]
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch_head(self) -> None:
        """Wait for the rest of a head that has begun, or the first of a connection, and for nothing else."""
        is_first = self.cycle is None
        is_half = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if not (is_first or is_half) or self.transport.is_closing():
            self._unwatch_head()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self.transport.close)

    def _unwatch_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
