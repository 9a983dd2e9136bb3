"""Around the application: headers that every answer carries, and HEAD for every GET."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Any]]
Send: TypeAlias = Callable[[Any], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
"""An ASGI application, whosever types it is written with."""

_ALWAYS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_UNLESS_SAID: Final = (
    (b"cache-control", b"no-store"),
    # Nothing in here is a page; what is one says what it may load by itself.
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
)


class Armor:
    """An ASGI application around another."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_head = scope["method"] == "HEAD"

        async def armored(event: Message) -> None:
            if event["type"] == "http.response.start":
                headers: list[Any] = list(event["headers"])
                said = {name.lower() for name, _ in headers}
                headers += [row for row in _ALWAYS if row[0] not in said]
                headers += [row for row in _UNLESS_SAID if row[0] not in said]
                event["headers"] = headers
            elif is_head and event["type"] == "http.response.body":
                event = {"type": "http.response.body", "body": b"", "more_body": False}
            await send(event)

        if is_head:
            # The server itself leaves the body out and still tells of its length.
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, armored)
