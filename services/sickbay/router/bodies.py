"""Reading the body of an error answer with a bound on bytes and time: a body may be huge, slow, or never end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any, Final

BODY_BYTES_MAX: Final = 65_536
BODY_S_MAX: Final = 2.0


async def read_error_body(response: Any, max_bytes: int = BODY_BYTES_MAX, max_s: float = BODY_S_MAX) -> bytes:
    """The beginning of an answer's body, then the rest is cancelled and the response closed.

    `response` is one of httpx's async client (best opened with `stream`) or of aiohttp. At most `max_bytes`
    bytes in at most `max_s` seconds; what came until then is returned, also when the connection breaks.
    Raises `TypeError` for any other response.
    """
    if hasattr(response, "aiter_bytes"):
        read, known = _httpx(response), getattr(response, "_content", None)
    elif hasattr(getattr(response, "content", None), "readany"):
        read, known = _aiohttp(response), getattr(response, "_body", None)
    else:
        raise TypeError(f"response: expected an async response of httpx or aiohttp, got {type(response).__name__}")
    if isinstance(known, bytes):
        await read.aclose()  # type: ignore[attr-defined]
        return known[:max_bytes]
    body = bytearray()
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(max_s), aclosing(read):  # type: ignore[type-var]
                async for piece in read:
                    body += piece
                    if len(body) >= max_bytes:
                        break
    except Exception:  # noqa: BLE001, S110 - each library has its own errors for a broken body; what came, came
        pass
    finally:
        await _close(response)
    return bytes(body[:max_bytes])


async def _httpx(response: Any) -> AsyncIterator[bytes]:
    async for piece in response.aiter_bytes():
        yield piece


async def _aiohttp(response: Any) -> AsyncIterator[bytes]:
    while piece := await response.content.readany():
        yield piece


async def _close(response: Any) -> None:
    with suppress(Exception):
        if hasattr(response, "aclose"):
            await asyncio.wait_for(response.aclose(), 1.0)
        else:
            response.close()
