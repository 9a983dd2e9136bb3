"""A transport for httpx and httpx2, sync and async: asks before a request, reports its answer, refuses what is held.

Both libraries look alike, and their classes are not each other's. So the transport derives from neither, and makes what
it answers of the classes of the library that the request comes from.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, Self

from sickbay_events import provider_of

from ..router.errors import Held
from .asked import ModelRequest, read_request
from .exchange import BodyStart, Exchange, connection_of
from .refusal import NO_RETRY, refusal_of

_LIBRARIES: Final = ("httpx2", "httpx")
_INSIDE: Final = ("_client", "_api_client", "_httpx_client", "_async_httpx_client")
"""Where SDKs keep their client: OpenAI, Anthropic and their relatives; google-genai."""


def client(router: Any, *, alias: str = "", library: str | None = None, **options: Any) -> Any:
    """An `httpx2.Client` (or `httpx.Client`) that asks Sickbay before each call of a model, and reports it.

    router    of `sickbay.sync.connect`, or of `sickbay.connect` if its loop runs in another thread
    alias     names the credential, if there are several at one host: `team-a`
    library   `httpx2` or `httpx`; default: httpx2 where it is installed
    options   of the client. Without any: read timeout 600 s, connect 5 s, redirects followed, as the SDKs have it

    Raises `ModuleNotFoundError` if neither library is installed, `NameRefused` for an alias that looks like a key.
    """
    module = _module(library)
    return guard(module.Client(**_defaults(module) | options), router, alias=alias)


def async_client(router: Any, *, alias: str = "", library: str | None = None, **options: Any) -> Any:
    """As `client`, an `AsyncClient`."""
    module = _module(library)
    return guard(module.AsyncClient(**_defaults(module) | options), router, alias=alias)


def transport(router: Any, inner: Any, *, alias: str = "") -> Transport:
    """A transport around `inner`, for a client that you make yourself: `httpx2.Client(transport=...)`."""
    return Transport(router, inner, alias)


def guard(client: Any, router: Any, *, alias: str = "") -> Any:
    """Put the transport into a client that is there: one of httpx or httpx2, or an SDK's (OpenAI, Anthropic and others
    that keep such a client). Returns the client. Raises `TypeError` for any other.
    """
    found = list(_clients(client))
    if not found:
        raise TypeError(f"client: accepted is a client of httpx or httpx2, or an SDK's with one, not {client!r}")
    for one in found:
        one._transport = _wrapped(router, one._transport, alias)
        one._mounts = {pattern: _wrapped(router, inner, alias) for pattern, inner in one._mounts.items()}
    return client


def _clients(client: Any, depth: int = 0) -> Iterator[Any]:
    if hasattr(client, "_transport") and hasattr(client, "_mounts"):
        yield client
    elif depth < 2:
        for name in _INSIDE:
            if (inside := getattr(client, name, None)) is not None:
                yield from _clients(inside, depth + 1)


def _wrapped(router: Any, inner: Any, alias: str) -> Any:
    return inner if inner is None or isinstance(inner, Transport) else Transport(router, inner, alias)


def _module(library: str | None) -> Any:
    for name in (library,) if library else _LIBRARIES:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    raise ModuleNotFoundError("sickbay.httpx needs httpx2 or httpx: pip install 'sickbay[httpx]'")


def _defaults(module: Any) -> dict[str, Any]:
    return {
        "timeout": module.Timeout(600.0, connect=5.0),
        "limits": module.Limits(max_connections=1000, max_keepalive_connections=100),
        "follow_redirects": True,
    }


class Transport:
    """Made by `transport`. Sync and async, as its `inner` is."""

    def __init__(self, router: Any, inner: Any, alias: str = "") -> None:
        connection_of(router)
        provider_of(f"alias.test#{alias}")
        self._router, self._inner, self._alias = router, inner, alias

    def handle_request(self, request: Any) -> Any:
        """One request of a sync client."""
        exchange = self._exchange(request)
        if exchange is None:
            return self._inner.handle_request(request)
        try:
            exchange.attempt.__enter__()
        except Held as held:
            return _refused(request, held, exchange)
        exchange.entered()
        try:
            response = self._inner.handle_request(request)
        except BaseException as error:
            exchange.leave(error)
            raise
        exchange.begin(response, request)
        if response.status_code < 400:
            return _passing(request, response, exchange)
        read = BodyStart(iter(response.stream))
        try:
            for chunk in read.rest:
                exchange.feed(chunk)
                if not read.add(chunk):
                    break
        except Exception as error:  # noqa: BLE001 - the client meets it where it stands in the body
            read.failure = error
        return _judged(request, response, exchange, read)

    async def handle_async_request(self, request: Any) -> Any:
        """One request of an async client."""
        exchange = self._exchange(request)
        if exchange is None:
            return await self._inner.handle_async_request(request)
        try:
            await exchange.attempt.__aenter__()
        except Held as held:
            return _refused(request, held, exchange)
        exchange.entered()
        try:
            response = await self._inner.handle_async_request(request)
        except BaseException as error:
            exchange.leave(error)
            raise
        exchange.begin(response, request)
        if response.status_code < 400:
            return _passing(request, response, exchange)
        read = BodyStart(aiter(response.stream))
        try:
            async with asyncio.timeout(read.left_s):
                async for chunk in read.rest:
                    exchange.feed(chunk)
                    if not read.add(chunk):
                        break
        except Exception as error:  # noqa: BLE001 - see above; a body that does not end is passed on as far as it came
            read.failure = None if isinstance(error, TimeoutError) else error
        except BaseException as error:
            exchange.leave(error)
            raise
        return _judged(request, response, exchange, read)

    def _exchange(self, request: Any) -> Exchange | None:
        """None for a request that calls no model."""
        asked = self._asked(request)
        if asked is None:
            return None
        if "accept-encoding" in request.headers:
            request.headers["accept-encoding"] = "gzip, deflate"  # what can be read here without a library
        return Exchange(self._router, asked, request.extensions.get("timeout", {}).get("read"))

    def _asked(self, request: Any) -> ModelRequest | None:
        if request.method != "POST" or "json" not in request.headers.get("content-type", ""):
            return None
        try:
            body = request.content
        except Exception:  # noqa: BLE001 - a body that is streamed, such as a file, is not there yet
            return None
        url = request.url
        origin = f"{url.scheme}://{url.host}" if url.port is None else f"{url.scheme}://{url.host}:{url.port}"
        path = url.raw_path.partition(b"?")[0].decode("ascii", "replace")
        return read_request(origin, self._alias, path, body)

    def close(self) -> None:
        """Close the transport inside."""
        self._inner.close()

    async def aclose(self) -> None:
        """Close the transport inside."""
        await self._inner.aclose()

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(self, *args: object) -> None:
        self._inner.__exit__(*args)

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *args: object) -> None:
        await self._inner.__aexit__(*args)


def _library_of(request: Any) -> Any:
    """The module that a request belongs to."""
    names = [base.__module__.partition(".")[0] for base in type(request).__mro__]
    return sys.modules[next(name for name in names if name in _LIBRARIES)]


def _refused(request: Any, held: Held, exchange: Exchange) -> Any:
    status, headers, body = refusal_of(held, exchange.dialect)
    return _library_of(request).Response(
        status, headers=headers, content=body, request=request, extensions={"sickbay": held}
    )


def _passing(request: Any, response: Any, exchange: Exchange) -> Any:
    """A good answer, whose bytes are seen as the client reads them."""
    stream = _stream_class(_library_of(request))(response.stream, exchange, BodyStart(response.stream))
    exchange.watch(stream)
    response.stream = stream
    return response


def _judged(request: Any, response: Any, exchange: Exchange, read: BodyStart) -> Any:
    """An error answer, judged before the client gets it: an SDK that retries closes it unread."""
    exchange.end()
    if exchange.forbids_retry():
        response.headers[NO_RETRY[0]] = NO_RETRY[1]
    response.stream = _stream_class(_library_of(request))(response.stream, exchange, read)
    return response


@functools.cache
def _stream_class(library: Any) -> Any:
    class PassingStream(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc]
        """The bytes of an answer on their way to the client: what was read before, then the rest."""

        def __init__(self, inner: Any, exchange: Exchange, read: BodyStart) -> None:
            self._inner, self._exchange, self._read = inner, exchange, read

        def __iter__(self) -> Iterator[bytes]:
            yield from self._read.kept
            if self._read.failure is not None:
                raise self._read.failure
            feed = self._exchange.feed
            try:
                for chunk in self._read.rest:
                    feed(chunk)
                    yield chunk
            except GeneratorExit:
                raise  # the client left: `close` follows
            except BaseException as error:
                self._exchange.leave(error)
                raise
            self._exchange.end()

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for chunk in self._read.kept:
                yield chunk
            if self._read.failure is not None:
                raise self._read.failure
            feed = self._exchange.feed
            try:
                async for chunk in self._read.rest:
                    feed(chunk)
                    yield chunk
            except GeneratorExit:
                raise
            except BaseException as error:
                self._exchange.leave(error)
                raise
            self._exchange.end()

        def close(self) -> None:
            self._exchange.leave(None)
            self._inner.close()

        async def aclose(self) -> None:
            self._exchange.leave(None)
            await self._inner.aclose()

    return PassingStream
