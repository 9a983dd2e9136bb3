"""What the HTTP interface answers when it cannot do what it was asked: problem documents (RFC 9457).

Each says its status, what is wrong in one sentence, and for bad input the field and the accepted form. What was sent
is never repeated in one: it may be what must not be written down.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, Final

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException

from sickbay_events import NameRefused

from ..bus.connect import BusError
from ..invalid import InvalidValue
from ..loggers import logger

_log = logger("sickbay.api")

MEDIA_TYPE: Final = "application/problem+json"
NAME_CHARS_MAX: Final = 64
"""So much of an unknown field's name is said again."""
_AT: Final = re.compile(r" - at `\$\.?(.*)`$", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(.*)`$")
_WORDS: Final = re.compile(r"Invalid enum value .*", re.DOTALL)


class Problem(Exception):
    """An answer that is an error.

    Attributes: `status`, `kind` (a word for machines, the end of the document's `type`), `detail`, `field` and
    `accepted` for bad input, `headers`, `more` (further members of the document).
    """

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        field: str | None = None,
        accepted: str | None = None,
        headers: dict[str, str] | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        self.status, self.kind, self.detail, self.field, self.accepted = status, kind, detail, field, accepted
        self.headers, self.more = headers or {}, more or {}
        super().__init__(f"{status} {kind}: {detail}")

    def document(self) -> dict[str, Any]:
        """It as it goes over the wire."""
        found: dict[str, Any] = {
            "type": f"urn:sickbay:problem:{self.kind}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
        if self.field is not None:
            found["field"] = self.field
        if self.accepted is not None:
            found["accepted"] = self.accepted
        return {**found, **self.more}

    def response(self) -> Response[bytes]:
        """It as a response."""
        headers = {"Cache-Control": "no-store", **self.headers}
        return Response(
            msgspec.json.encode(self.document()), status_code=self.status, media_type=MEDIA_TYPE, headers=headers
        )


def field_refused(field: str, accepted: str, detail: str = "") -> Problem:
    """A field that is not accepted."""
    return Problem(422, "field-refused", detail or f"{field} is not accepted", field=field, accepted=accepted)


def unavailable(detail: str, *, retry_after_s: int = 1, more: dict[str, Any] | None = None) -> Problem:
    """NATS or the services are away; a later request may succeed."""
    return Problem(503, "unavailable", detail, headers={"Retry-After": str(retry_after_s)}, more=more)


def of_validation(error: msgspec.ValidationError, words: dict[str, str] | None = None) -> Problem:
    """What msgspec found, as field and accepted form. `words`: the accepted form of fields that are one word of a list;
    under "" the names of all fields."""
    text, field = str(error), ""
    if at := _AT.search(text):
        text, field = text[: at.start()], at[1]
    words = words or {}
    if unknown := _UNKNOWN.match(text):
        name = f"{field}.{unknown[1]}".lstrip(".")[:NAME_CHARS_MAX]
        known = "" if field else words.get("", "")
        return field_refused(name, f"one of the fields {known}" if known else "no such field", "an unknown field")
    if missing := _MISSING.match(text):
        name = f"{field}.{missing[1]}".lstrip(".")
        return field_refused(name, words.get(name, "a value: it is required"), f"{name} is missing")
    # msgspec repeats the value of a wrong word; nobody else does.
    accepted = _WORDS.sub("one of its words", text).removeprefix("Expected ").replace("`", "")
    return field_refused(field or "body", (words.get(field) if field else None) or accepted)


def of_error(error: Exception) -> Problem:
    """Any exception as a problem; what is none of ours is logged and says nothing."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, InvalidValue):
        return field_refused(error.what, error.accepted)
    if isinstance(error, NameRefused):
        return field_refused(error.field, error.accepted)
    if isinstance(error, BusError):
        return unavailable(str(error))
    if isinstance(error, HTTPException):
        return _of_litestar(error)
    _log.error("a request failed", exc_info=error)
    return Problem(500, "fault", "a fault of this service; it is in its log")


def _of_litestar(error: HTTPException) -> Problem:
    status = error.status_code
    says = {
        404: ("no-such-path", "there is nothing at this path; /openapi.json says what there is"),
        405: ("method-not-allowed", "this path does not take this method; the header Allow says which"),
        413: ("too-large", "the body is larger than is taken"),
    }
    kind, detail = says.get(status, ("bad-request", error.detail if status < 500 else "a fault of this service"))
    return Problem(status, kind, detail, headers=dict(error.headers or {}))


def handle(_request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Litestar's exception handler for everything."""
    return of_error(error).response()
