"""What an exception of an HTTP client says about the call: a fault of the transport, or an answer.

Classes are recognized by name, so that no client library is imported. Causes are followed, because libraries wrap
exceptions.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

DEPTH_MAX: Final = 20

FAULTS: Final[dict[str, str]] = {
    # One row a class: the transport's fault as `classify` names it. The nearest class in the MRO counts.
    # The interpreter and its standard library
    "gaierror": "dns",
    "SSLError": "tls",
    "ConnectionRefusedError": "connect",
    "ConnectionError": "reset",
    "TimeoutError": "timeout",
    "IncompleteReadError": "reset",
    "IncompleteRead": "reset",
    "RemoteDisconnected": "reset",
    # httpx and httpcore
    "ConnectTimeout": "connect",
    "TimeoutException": "timeout",
    "ConnectError": "connect",
    "NetworkError": "reset",
    "RemoteProtocolError": "reset",
    # aiohttp
    "ConnectionTimeoutError": "connect",
    "ServerTimeoutError": "timeout",
    "ClientConnectorDNSError": "dns",
    "ClientSSLError": "tls",
    "ClientConnectorCertificateError": "tls",
    "ClientConnectorError": "connect",
    "ClientOSError": "reset",
    "ServerDisconnectedError": "reset",
    "ClientPayloadError": "reset",
    "HttpProcessingError": "reset",  # bytes that are no HTTP; it carries a status of 400 that nobody sent
    # requests and urllib3
    "NameResolutionError": "dns",
    "NewConnectionError": "connect",
    "ConnectTimeoutError": "connect",
    "ReadTimeoutError": "timeout",
    "ReadTimeout": "timeout",
    "ProtocolError": "reset",
    "ChunkedEncodingError": "reset",
    # gRPC and cloud SDKs
    "EndpointConnectionError": "connect",
    "ServiceUnavailable": "connect",
}
OWN: Final = frozenset(
    # Faults of the caller's own set-up: they say nothing about the provider, whatever they wrap.
    ("PoolTimeout", "ProxyError", "ClientProxyConnectionError", "ClientHttpProxyError", "LocalProtocolError",
     "UnsupportedProtocol", "InvalidURL", "TooManyRedirects", "WriteTimeout")
)  # fmt: skip
_UNREACHABLE: Final = frozenset(
    (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.ETIMEDOUT)
)
_FINER: Final = ("dns", "tls")
"""If a cause says one of these, it is the more exact name of a `connect`."""


class HttpResponse(NamedTuple):
    """An HTTP answer that came as an exception."""

    status: int
    headers: Mapping[str, str]
    body: str | bytes


def fault_of(error: BaseException) -> str | None:
    """`connect`, `dns`, `tls`, `reset`, `timeout` or `aborted` (cancelled); None if it is no fault of a transport."""
    found: str | None = None
    for link in _chain(error):
        if isinstance(link, asyncio.CancelledError):
            return found or "aborted"
        names = _names(link)
        if not OWN.isdisjoint(names):
            return None
        fault = _fault(names)
        if fault is None and isinstance(link, OSError) and link.errno in _UNREACHABLE:
            fault = "connect"
        if fault in _FINER:
            return fault
        if found is None:
            found = fault
        if found is not None and found != "connect":
            return found
    return found


def answer_of(error: BaseException) -> HttpResponse | None:
    """The answer that a client library raised: `raise_for_status` of httpx, aiohttp or requests, an SDK's error."""
    chain = list(_chain(error))
    if isinstance(error, asyncio.CancelledError) or any("HttpProcessingError" in _names(link) for link in chain):
        return None
    for link in chain:
        if _fault(_names(link)):
            return None  # the transport broke, whatever answer was there before
        response: Any = getattr(link, "response", None)
        # A status on the exception itself is one of HTTP only where headers came with it.
        for holder in (response, link if hasattr(link, "headers") else None):
            status = _first(holder, "status_code", "status", "code")
            if isinstance(status, int) and not isinstance(status, bool) and 100 <= status <= 599:
                headers: Any = _first(holder, "headers")
                return HttpResponse(status, headers if isinstance(headers, Mapping) else {}, _body(holder, link))
    return None


def _names(error: BaseException) -> list[str]:
    return [kind.__name__ for kind in type(error).__mro__]


def _fault(names: list[str]) -> str | None:
    return next((FAULTS[name] for name in names if name in FAULTS), None)


def _body(holder: Any, error: BaseException) -> str | bytes:
    for source, name in ((holder, "content"), (holder, "text"), (error, "body"), (error, "message")):
        try:
            found = getattr(source, name, None)
        except Exception:  # noqa: BLE001 - a stream that was not read raises when it is asked for its content
            found = None
        if isinstance(found, str | bytes) and found:
            return found
    return b""


def _first(holder: Any, *names: str) -> Any:
    for name in names:
        try:
            found = getattr(holder, name, None)
        except Exception:  # noqa: BLE001 - properties of foreign classes may do anything
            found = None
        if found is not None:
            return found
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and what it was raised from, outermost first; of a group the first member."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen and len(seen) < DEPTH_MAX:
        seen.add(id(link))
        yield link
        # Also where the context was suppressed: httpcore raises `from None` what a name lookup said.
        link = link.exceptions[0] if isinstance(link, BaseExceptionGroup) else link.__cause__ or link.__context__
