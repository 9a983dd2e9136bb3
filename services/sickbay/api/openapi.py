"""The OpenAPI document, made of the types that read queries and bodies, and of one table of operations."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import version
from typing import Any, Final, NamedTuple

import msgspec

from sickbay_events import Decision

from ..control.acts import StoredAct
from .access import COOKIE
from .ingest import ITEMS_MAX, Outcome, Taken
from .problems import MEDIA_TYPE
from .questions import (
    BODY_BYTES_MAX,
    JSON,
    NDJSON,
    ActRequest,
    Clear,
    DecideQuery,
    ExplainQuery,
    HistoryQuery,
    SignIn,
    StatusQuery,
)
from .shapes import EXAMPLES, MORE, SHAPES

_REF: Final = "#/components/schemas/{name}"
_TYPES: Final = (Outcome, Taken, Decision, StoredAct, ActRequest, Clear, SignIn)


REPORT: Final = ("report",)
READ: Final = ("read",)
OPERATE: Final = ("operate",)
ASK: Final = ("read", "report")


class Operation(NamedTuple):
    """One row of the table: what a path does for a method."""

    method: str
    path: str
    name: str
    says: str
    roles: tuple[str, ...]
    """One of them is needed; none: everybody."""
    answer: str = ""
    """Schema of the answer."""
    query: type[Any] | None = None
    body: str = ""
    """Schema of the body."""
    status: int = 200
    tag: bool = False
    """It has an ETag and answers 304."""


OPERATIONS: Final = (
    Operation("get", "/healthz", "healthz", "Whether the process is alive", (), "Health"),
    Operation("get", "/readyz", "readyz", "Whether the view is fresh, and how old it is", (), "Readiness"),
    Operation("post", "/v1/outcomes", "outcomes", "Report finished attempts", REPORT, "Taken", body="Outcome"),
    Operation("get", "/v1/decide", "decide", "May this target be called now?", ASK, "Decision", DecideQuery, tag=True),
    Operation("get", "/v1/status", "status", "What is held, or every target", READ, "Status", StatusQuery, tag=True),
    Operation("get", "/v1/explain", "explain", "All about a scope", READ, "Explanation", ExplainQuery, tag=True),
    Operation("get", "/v1/history", "history", "What was held, released, warned of", READ, "History", HistoryQuery),
    Operation("get", "/v1/overview", "overview", "Replicas, routes, warnings and health", READ, "Overview"),
    Operation("get", "/v1/watch", "watch", "Changes as they come, as server-sent events", READ),
    Operation("post", "/v1/hold", "hold", "Keep every replica from a target", OPERATE, "Ack", body="Act"),
    Operation("post", "/v1/allow", "allow", "Let calls pass whatever the rules say", OPERATE, "Ack", body="Act"),
    Operation("post", "/v1/clear", "clear", "End holds and forget counts", OPERATE, "Ack", body="Clear"),
    Operation("get", "/v1/session", "session", "Who the caller is here", (), "Session"),
    Operation("post", "/v1/session", "sign_in", "Change a token into a cookie", (), body="SignIn", status=204),
    Operation("delete", "/v1/session", "sign_out", "Forget the cookie", (), status=204),
    Operation("get", "/metrics", "metrics", "The metrics of this process, for Prometheus", READ),
    Operation("get", "/openapi.json", "openapi", "This document", (), "Document"),
)
_TEXTS: Final = {"/v1/watch": "text/event-stream", "/metrics": "text/plain"}


@lru_cache(maxsize=1)
def openapi_document() -> dict[str, Any]:
    """The document, OpenAPI 3.1."""
    _, schemas = msgspec.json.schema_components(_TYPES, ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for row in OPERATIONS:
        paths.setdefault(row.path, {})[row.method] = _operation(row)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sickbay",
            "version": version("sickbay"),
            "summary": "Which (provider, model) may be called, decided from what a whole fleet saw.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {**schemas, **SHAPES},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "A token of `sickbay token`"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "Made by POST /v1/session"},
            },
        },
    }


def _operation(row: Operation) -> dict[str, Any]:
    needs = f"Needs the role {' or '.join(row.roles)}." if row.roles else "Open to everybody."
    found: dict[str, Any] = {
        "operationId": row.name,
        "summary": row.says,
        "description": f"{MORE.get(row.name, '')} {needs}".strip(),
        "security": [{"token": []}, {"cookie": []}] if row.roles else [],
        "responses": _responses(row),
    }
    if row.query is not None:
        found["parameters"] = _parameters(row.query)
    if row.path == "/v1/watch":
        says = "Go on after this event, if it is still known"
        found["parameters"] = [
            {"name": "Last-Event-ID", "in": "header", "description": says, "schema": {"type": "string"}}
        ]
    if row.roles == OPERATE:
        says = "Sent again under the same key within two minutes the same act is done once: `duplicate` in the answer"
        schema = {"type": "string", "pattern": "^[!-~]{1,128}$"}
        found["parameters"] = [{"name": "Idempotency-Key", "in": "header", "description": says, "schema": schema}]
    if row.body:
        found["requestBody"] = {"required": True, "content": _contents(row)}
    return found


def _contents(row: Operation) -> dict[str, Any]:
    one = {"$ref": _REF.format(name=row.body)}
    if row.body != "Outcome":
        return {JSON: {"schema": one, "examples": {row.name: {"value": EXAMPLES[row.name]}}}}
    many = {"type": "array", "items": one, "minItems": 1, "maxItems": ITEMS_MAX}
    examples = {"one": {"value": EXAMPLES["outcome"]}, "batch": {"value": EXAMPLES["batch"]}}
    says = f"One outcome a line, {ITEMS_MAX} at most and {BODY_BYTES_MAX} bytes"
    return {
        JSON: {"schema": {"oneOf": [one, many]}, "examples": examples},
        NDJSON: {"schema": {"type": "string", "description": says}},
    }


def _responses(row: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if row.answer:
        media: dict[str, Any] = {"schema": {"$ref": _REF.format(name=row.answer)}}
        if row.answer in EXAMPLES:
            media["example"] = EXAMPLES[row.answer]
        content = {JSON: media}
    elif row.path in _TEXTS:
        content = {_TEXTS[row.path]: {"schema": {"type": "string"}}}
    done: dict[str, Any] = {"description": row.says}
    if content:
        done["content"] = content
    if row.tag:
        done["headers"] = {
            "ETag": {"description": "Changes with the log sequence", "schema": {"type": "string"}},
            "Cache-Control": {"description": "For how long it may be kept", "schema": {"type": "string"}},
        }
    found: dict[str, Any] = {str(row.status): done}
    if row.tag:
        found["304"] = {"description": "What If-None-Match names still stands"}
    if row.body == "Outcome":
        found["207"] = {**done, "description": "Some were not accepted: `rejected` says which and why"}
    if row.path == "/readyz":
        found["503"] = {**done, "description": "The view is not fresh: `why` says why"}
    elif row.roles:
        away = "NATS or the services do not answer; Retry-After says when to try again"
        found["503"] = _problem(away, "Unavailable")
        found["503"]["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds"}}
    found["default"] = _problem("What was wrong with the request, and what would be right")
    return found


def _problem(says: str, example: str = "Problem") -> dict[str, Any]:
    media = {"schema": {"$ref": _REF.format(name="Problem")}, "example": EXAMPLES[example]}
    return {"description": says, "content": {MEDIA_TYPE: media}}


def _parameters(sort: type[Any]) -> list[dict[str, Any]]:
    _, schemas = msgspec.json.schema_components([sort], ref_template=_REF)
    schema = schemas[sort.__name__]
    required = schema.get("required", ())
    found = []
    for name, field in schema["properties"].items():
        # A parameter that is left out is not there: it has no null.
        plain = {key: value for key, value in field.items() if key != "anyOf" and (key, value) != ("default", None)}
        for one in field.get("anyOf", ()):
            if one != {"type": "null"}:
                plain = {**one, **plain}
        row = {"name": name, "in": "query", "required": name in required}
        if (says := plain.pop("description", None)) is not None:
            row["description"] = says
        found.append({**row, "schema": plain})
    return found
