"""OpenTelemetry spans of calls to models (the `gen_ai` conventions) as OTLP JSON, as a file exporter writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from .calls import ERRORS, Call, NotACall, RowRefused
from .fields import Setup, provider
from .values import status_value, text_of, time_ms

_INFERENCE: Final = ("", "chat", "text_completion", "generate_content", "embeddings", "completion", "responses")
"""Operations that are calls to a model; agents and tools have spans around them, or none."""
_ERROR_CODES: Final = (2, "2", "STATUS_CODE_ERROR")
_REPLICA: Final = ("host.name", "k8s.pod.name", "service.instance.id", "service.name")
_EXCEPTIONS: Final = {"timeout": "timeout", "connect": "connect", "connection": "connect", "dns": "dns", "ssl": "tls"}
_CLASSES: Final = {
    "authentication": 401,
    "permissiondenied": 403,
    "notfound": 404,
    "unprocessableentity": 422,
    "ratelimit": 429,
    "badrequest": 400,
    "internalserver": 500,
    "overloaded": 529,
    "cancelled": 499,
}
_OTHER: Final = "_OTHER"


def spans(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every span of one export request, with its resource's attributes beside its own. Raises `RowRefused`."""
    resources = document.get("resourceSpans", document.get("resource_spans"))
    if not isinstance(resources, list):
        raise RowRefused("resourceSpans", "it is no export of traces")
    for resource in resources:
        about = attributes(_get(_get(resource, "resource"), "attributes"))
        scopes = _get(resource, "scopeSpans") or _get(resource, "scope_spans") or ()
        for scope in scopes if isinstance(scopes, list) else ():
            found = _get(scope, "spans")
            for span in found if isinstance(found, list) else ():
                yield {"span": span, "resource": about}


def otel_call(row: Mapping[str, Any], setup: Setup) -> Call:
    """The call that a span tells of. Raises `RowRefused`, `NotACall`."""
    span, about = row["span"], row["resource"]
    if not isinstance(span, Mapping):
        raise RowRefused("span", "it is no object")
    found = attributes(span.get("attributes"))
    if not any(name.startswith("gen_ai.") for name in found):
        raise NotACall("a span that is no call to a model")
    if text_of(found.get("gen_ai.operation.name")) not in _INFERENCE:
        raise NotACall("a span of an agent or a tool")
    begin_ms = time_ms(_either(span, "startTimeUnixNano", "start_time_unix_nano"), setup.zone, "startTimeUnixNano")
    at_ms = time_ms(_either(span, "endTimeUnixNano", "end_time_unix_nano"), setup.zone, "endTimeUnixNano")
    made = Call(
        at_ms=at_ms,
        provider=_provider(found, setup),
        model=text_of(found.get("gen_ai.request.model")) or text_of(found.get("gen_ai.response.model")),
        replica=next((name for key in _REPLICA if (name := text_of(about.get(key)))), setup.replica),
        took_ms=max(0, at_ms - begin_ms),
        ttft_ms=_seconds_ms(found.get("gen_ai.response.time_to_first_chunk")),
        stream=found.get("gen_ai.request.stream") is True,
    )
    status = span.get("status")
    failed = _get(status, "code") in _ERROR_CODES or "error.type" in found
    if failed:
        _failed(made, found, span, text_of(_get(status, "message")))
    else:
        made.status = status_value(found.get("http.response.status_code")) or 200
        reasons = found.get("gen_ai.response.finish_reasons")
        if isinstance(reasons, list) and "content_filter" in reasons:
            made.kind = "content_filter"
    return made


def attributes(value: Any) -> dict[str, Any]:
    """Attributes as a plain object; arrays are lists, other values that are none are left out."""
    found: dict[str, Any] = {}
    for pair in value if isinstance(value, list) else ():
        key = _get(pair, "key")
        if isinstance(key, str):
            found[key] = _any_value(_get(pair, "value"))
    return found


def _any_value(value: Any) -> Any:
    for name in ("stringValue", "intValue", "doubleValue", "boolValue", "string_value", "int_value"):
        if (one := _get(value, name)) is not None:
            return one
    values = _get(_get(value, "arrayValue"), "values")
    return [_any_value(one) for one in values] if isinstance(values, list) else None


def _provider(found: Mapping[str, Any], setup: Setup) -> str:
    """The address that was called; where the span has none, the name of the provider's kind."""
    host, port = text_of(found.get("server.address")), text_of(found.get("server.port"))
    if "://" in host:
        return provider(host, setup)
    if host:
        return provider(f"{'http' if port == '80' else 'https'}://{host}" + (f":{port}" if port else ""), setup)
    return provider(found.get("gen_ai.provider.name") or found.get("gen_ai.system"), setup)


def _failed(made: Call, found: Mapping[str, Any], span: Mapping[str, Any], message: str) -> None:
    """`error.type` is a status, a word, or the name of an exception; the text stands in the status or in an event."""
    name = text_of(found.get("error.type"))
    events = span.get("events")
    for event in events if isinstance(events, list) else ():
        if _get(event, "name") == "exception":
            about = attributes(_get(event, "attributes"))
            name = name if name not in ("", _OTHER) else text_of(about.get("exception.type"))
            message = message or text_of(about.get("exception.message"))
    made.body = message
    made.status = status_value(found.get("http.response.status_code"))
    if made.status is None and name.isdecimal():
        made.status = status_value(name, "error.type")
    if made.status is not None:
        return
    word = name.rpartition(".")[2].lower()
    if word in ERRORS:
        made.error, made.body = word, ""
        return
    made.status = next((status for part, status in _CLASSES.items() if part in word), None)
    if made.status == 499:
        made.status, made.kind = None, "cancelled"
    elif made.status is None and (error := next((error for part, error in _EXCEPTIONS.items() if part in word), None)):
        made.error, made.body = error, ""
    elif made.status is None and not made.body:
        made.kind = "unknown"


def _seconds_ms(value: Any) -> float | None:
    return value * 1000 if isinstance(value, int | float) and not isinstance(value, bool) else None


def _either(value: Mapping[str, Any], one: str, other: str) -> Any:
    found = value.get(one, value.get(other))
    return None if found in (0, "0") else found


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None
