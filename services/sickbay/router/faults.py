"""What an exception of a client says about the call: which fault of the transport, or which answer.

Classes are known by name and errors are read by shape, so that no client library is imported. Causes are walked,
since libraries wrap them, but no further than the attempt: what was being handled before it speaks of another call.
"""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

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
    "ConnectionClosedError": "reset",
    "ResponseStreamingError": "reset",
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


_VAGUE: Final = {"APITimeoutError": "timeout", "APIConnectionError": "connect"}
"""What SDKs make of any fault of the transport: its cause says more, and a status on it is nobody's."""
_SERVERS: Final = frozenset(("starlette", "fastapi", "litestar", "werkzeug", "django", "quart", "sanic"))
"""Frameworks of the caller's own server: their HTTP errors are what he answers, not what he was answered."""
_STATUS_IN_TEXT: Final = re.compile(
    r"\b(?:error code|status code|status|http(?:/\d(?:\.\d)?)?(?: error| status| code){0,2})[ :=]{1,3}([45]\d\d)\b",
    re.I,
)
_JSON: Final = {"content-type": "application/json"}
MESSAGE_CHARS_MAX: Final = 65_536


class HttpResponse(NamedTuple):
    """An HTTP answer that came as an exception."""

    status: int
    headers: Mapping[str, str]
    body: str | bytes
    is_frame: bool = False
    """An error inside an answer that had begun, or of which no status of HTTP is known."""


def fault_of(error: BaseException, before: BaseException | None = None) -> str | None:
    """`connect`, `dns`, `tls`, `reset`, `timeout` or `aborted` (cancelled); None if it is no fault of a transport.

    `before` is what was being handled when the attempt began: it and its causes say nothing.
    """
    found = vague = None
    for link in _chain(error, before):
        if isinstance(link, asyncio.CancelledError):
            return found or vague or "aborted"
        names = _names(link)
        if not OWN.isdisjoint(names):
            return None
        vague = vague or next((_VAGUE[name] for name in names if name in _VAGUE), None)
        fault = _fault(names)
        if fault is None and isinstance(link, OSError) and link.errno in _UNREACHABLE:
            fault = "connect"
        if fault in _FINER:
            return fault
        if found is None:
            found = fault
        if found is not None and found != "connect":
            return found
    return found or vague


def answer_of(error: BaseException, before: BaseException | None = None) -> HttpResponse | None:
    """The answer that a client raised: `raise_for_status` of httpx, aiohttp or requests, any SDK's error."""
    chain = list(_chain(error, before))
    if isinstance(error, asyncio.CancelledError) or any("HttpProcessingError" in _names(link) for link in chain):
        return None
    for at, link in enumerate(chain):
        names = _names(link)
        if _fault(names) is not None or (_is_of_litellm(link) and any(_fault(_names(one)) for one in chain[at:])):
            return None  # the transport broke, whatever answer was there before, or was made up of it
        if not _VAGUE.keys().isdisjoint(names) or type(link).__module__.partition(".")[0] in _SERVERS:
            continue
        found = _cloud_answer(link) or _http_answer(link) or _frame(link)
        if found is not None:
            return found
    return next((found for link in chain if (found := _told(link)) is not None), None)


def _http_answer(link: BaseException) -> HttpResponse | None:
    """An answer with a status of HTTP: that of its `response`, or on the exception itself."""
    response: Any = _first(link, "response")
    for holder in (response, link):
        status = _status(holder)
        if status is None or (holder is link and not _has_more(link)):
            continue
        headers: Any = _first(holder, "headers") or _first(link, "headers", "litellm_response_headers")
        headers = headers if isinstance(headers, Mapping) else {}
        structured = _structured(link)
        if status < 300 and structured is not None:
            # The error came inside a stream: the frame decides, not the status that the stream began with.
            return HttpResponse(status, _JSON, structured, is_frame=True)
        body = _body(holder) or structured or _body(link, "body", "details")
        return HttpResponse(status, headers, body or _message(link))
    return None


def _cloud_answer(link: BaseException) -> HttpResponse | None:
    """An answer as a dict (botocore): its error, and its status beside it; one of a stream has none."""
    response = _first(link, "response")
    if not isinstance(response, Mapping):
        return None
    error, meta = response.get("Error"), response.get("ResponseMetadata")
    if not isinstance(error, Mapping):
        return HttpResponse(200, _JSON, _encoded({"error": dict(response)}), is_frame=True)
    meta = meta if isinstance(meta, Mapping) else {}
    status, headers = meta.get("HTTPStatusCode"), meta.get("HTTPHeaders")
    body = _encoded({"code": error.get("Code"), "message": error.get("Message")})
    if isinstance(status, int) and 400 <= status <= 599:
        return HttpResponse(status, headers if isinstance(headers, Mapping) else {}, body)
    return HttpResponse(200, _JSON, b'{"error":' + body + b"}", is_frame=True)


def _frame(link: BaseException) -> HttpResponse | None:
    """An error without any status: a frame of a stream, as a dict, as text, or by its code alone."""
    structured = _structured(link)
    if structured is not None:
        return HttpResponse(200, _JSON, structured, is_frame=True)
    code, says = _call(_first(link, "code")), _call(_first(link, "details"))
    name = getattr(code, "name", None)
    if isinstance(name, str) and isinstance(says, str):  # gRPC
        return HttpResponse(200, _JSON, _encoded({"error": {"status": name, "message": says}}), is_frame=True)
    return None


def _told(link: BaseException) -> HttpResponse | None:
    """A status that only the message tells: `Error code: 429 - {...}`."""
    text = _message(link)
    told = _STATUS_IN_TEXT.search(text[:1024])
    return HttpResponse(int(told[1]), {}, _json_in(text) or text) if told else None


def _status(holder: Any) -> int | None:
    for name in ("status_code", "status", "code"):
        status = _first(holder, name)
        if isinstance(status, int) and not isinstance(status, bool) and 100 <= status <= 599:
            return int(status)
    return None


def _has_more(link: BaseException) -> bool:
    """Whether a number on an exception is a status of HTTP: something else of an answer came with it."""
    return hasattr(link, "headers") or hasattr(link, "response") or _first(link, "body", "details") is not None


def _structured(link: BaseException) -> bytes | None:
    """The error object that an SDK keeps, in the envelope that it came in."""
    for name in ("body", "details"):
        found = _first(link, name)
        if isinstance(found, str | bytes) and found.lstrip()[:1] in ("{", b"{"):
            return found.encode() if isinstance(found, str) else found
        if isinstance(found, list) and found and isinstance(found[0], Mapping):
            found = found[0]
        if isinstance(found, Mapping) and found:
            plain = dict(found)
            return _encoded(plain if "error" in plain or plain.get("type") == "error" else {"error": plain})
    return None


def _json_in(text: str) -> str:
    start, end = text.find("{"), text.rfind("}")
    return text[start : end + 1] if 0 <= start < end else ""


def _message(link: BaseException) -> str:
    said = _first(link, "message")
    try:
        text = (said if isinstance(said, str) and said else str(link))[:MESSAGE_CHARS_MAX]
    except Exception:  # noqa: BLE001 - foreign classes may do anything
        return ""
    if _is_of_litellm(link):
        # `litellm.NotFoundError: OpenAIException - ...`: what the provider said, behind the name that it got.
        inner = _json_in(text)
        return inner or _encoded({"error": {"message": text}}).decode()
    return text


def _is_of_litellm(link: BaseException) -> bool:
    return type(link).__module__.partition(".")[0] == "litellm"


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=repr)


def _call(value: Any) -> Any:
    try:
        return value() if callable(value) else value
    except Exception:  # noqa: BLE001 - foreign classes may do anything
        return None


def _names(error: BaseException) -> list[str]:
    return [kind.__name__ for kind in type(error).__mro__]


def _fault(names: list[str]) -> str | None:
    return next((FAULTS[name] for name in names if name in FAULTS), None)


def _body(holder: Any, *names: str) -> str | bytes:
    for name in names or ("content", "text"):
        found = _first(holder, name)
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


def _chain(error: BaseException, before: BaseException | None) -> Iterator[BaseException]:
    """The exception and what it was raised from, outermost first, with all of a group; without what came before."""
    seen = {id(link) for link in _chain(before, None)} if before is not None else set[int]()
    seen_max = len(seen) + DEPTH_MAX
    waiting: list[BaseException | None] = [error]
    while waiting and len(seen) < seen_max:
        link = waiting.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        # Also where the context was suppressed: httpcore raises `from None` what a name lookup said.
        waiting.append(link.__cause__ or link.__context__)
        if isinstance(link, BaseExceptionGroup):
            waiting.extend(reversed(link.exceptions))
