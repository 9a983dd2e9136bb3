"""One call of another system's history, and the event that it becomes."""

from __future__ import annotations

import ast
import json
import re
from functools import lru_cache
from typing import Any, Final

import msgspec

from sickbay_events import KINDS, CallOutcome, Kind, NameRefused, Target, Verdict, classify, outcome_subject, rfc3339
from sickbay_events.outcome import DAY_MS
from sickbay_events.redact import looks_secret, redact

ERRORS: Final = ("connect", "dns", "tls", "reset", "timeout", "aborted")
TEXT_MAX: Final = 65_536
"""classify reads no further."""
_STATUS_IN_TEXT: Final = re.compile(r"\b(?:Error code|status code|HTTP)\s*:?\s*([45]\d\d)\b")
_UNCHECKED: Final = Verdict(kind="ok", scope="none", checkable=False)


class RowRefused(ValueError):
    """A row of which no event can be made. Attributes: `field` (what is missing or wrong), `why`."""

    def __init__(self, field: str, why: str) -> None:
        self.field, self.why = field, redact(why)
        super().__init__(f"{field}: {self.why}")


class NotACall(Exception):
    """A row that is no call to a provider: passed over, and counted by `why`."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


class Call(msgspec.Struct, kw_only=True):
    """One finished attempt as another system tells it. Texts are read for their meaning and never kept."""

    at_ms: int
    """When it ended, milliseconds since the epoch."""
    provider: str
    model: str
    replica: str = ""
    status: int | None = None
    error: str | None = None
    """What the transport saw: `connect`, `dns`, `tls`, `reset`, `timeout` or `aborted`."""
    kind: str | None = None
    """Where the source already says what it was, in Sickbay's kinds."""
    headers: dict[str, str] = {}
    body: str = ""
    """The provider's answer or its error text; of a success only where it is the whole answer."""
    took_ms: float | None = None
    ttft_ms: float | None = None
    limit_ms: float | None = None
    stream: bool = False
    route: str | None = None
    rank: int = 0


def event_of(call: Call) -> tuple[str, CallOutcome]:
    """Subject and event of a call. Raises `RowRefused`."""
    for name in ("provider", "model", "replica"):
        if _is_secret(getattr(call, name)):
            raise RowRefused(name, "it looks like a key")
    target = Target(call.provider, call.model)
    if target.is_empty:
        field = "model" if not call.model else "provider"
        raise RowRefused(field, f"it is empty (is it another column? --map {field}=COLUMN)")
    try:
        subject = outcome_subject(call.replica, target)
    except NameRefused as error:
        raise RowRefused(error.field, error.accepted) from error
    verdict = _verdict(call)
    return subject, CallOutcome(
        kind=verdict.kind,
        status=call.status,
        took_ms=_ms("took", call.took_ms),
        ttft_ms=_ms("ttft", call.ttft_ms),
        limit_ms=_ms("limit", call.limit_ms),
        scope=verdict.scope if verdict.scope != KINDS[verdict.kind].scope else None,
        route=call.route,
        rank=call.rank,
        retry_after_s=verdict.retry_after_s,
        retry_after_from=verdict.retry_after_from,
        signature=verdict.signature,
        checkable=verdict.checkable,
        attributable=verdict.attributable,
        stream=call.stream,
        code=verdict.code if verdict.code is None or not looks_secret(verdict.code) else None,
        at=rfc3339(call.at_ms),
    )


@lru_cache(maxsize=65_536)
def _is_secret(name: str) -> bool:
    """Names come again and again, and are looked at by many patterns."""
    return looks_secret(name)


def _verdict(call: Call) -> Verdict:
    if call.kind is not None:
        if call.kind not in KINDS:
            raise RowRefused("kind", f"{call.kind[:40]!r} is none of {', '.join(KINDS)}")
        kind: Kind = call.kind
        return Verdict(kind=kind, scope=KINDS[kind].scope, checkable=kind != "ok")
    success = call.status is not None and 200 <= call.status < 300
    if success and not call.body and call.error is None:
        return _UNCHECKED  # it was answered, and the answer was not kept: no sample for or against
    if call.status is None and call.error is None and not call.body:
        raise RowRefused("status", "there is neither a status, an error, a body nor a kind")
    status = call.status
    if status is None and call.error is None and (found := _STATUS_IN_TEXT.search(call.body[:TEXT_MAX])):
        status = int(found[1])
    texts = [call.body] if success else [inner(call.body), call.body]
    verdict = _UNCHECKED
    for text in dict.fromkeys(texts):
        verdict = classify(
            status=status,
            headers=call.headers,
            body=text,
            requested_model=call.model,
            provider=call.provider.partition("#")[0],
            error=call.error,
            stream=call.stream,
        )
        if verdict.kind != "unknown":
            break
    return verdict


def inner(text: str) -> str:
    """The provider's own JSON inside a client library's sentence, as JSON; the text as it is if there is none.

    `litellm.NotFoundError: OpenrouterException - {"error": …}` and `Error code: 404 - {'error': …}` are such.
    """
    begin = text.find("{")
    if begin <= 0 or len(text) > TEXT_MAX:
        return text
    try:
        found: Any = json.JSONDecoder().raw_decode(text, begin)[0]
    except (ValueError, RecursionError):
        end = text.rfind("}")
        try:
            found = ast.literal_eval(text[begin : end + 1])
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return text
    try:
        return json.dumps(found) if isinstance(found, dict) else text
    except (TypeError, ValueError, RecursionError):
        return text


def _ms(name: str, value: float | None) -> int | None:
    if value is None:
        return None
    if not 0 <= value <= DAY_MS:
        raise RowRefused(name, f"{value:g} ms lies outside 0 to 24 h")
    return round(value)
