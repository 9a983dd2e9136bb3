"""Every path of the HTTP interface, one small function each."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any, Final
from zlib import crc32

import msgspec
import nats.errors
from litestar import Response, delete, get, post
from litestar.datastructures import Cookie
from litestar.response.base import ASGIResponse

from sickbay_events import Scope, parse_rfc3339, provider_of, rfc3339

from ..bus.connect import BusError
from ..control.acts import make_override, scope_of
from ..log.transitions import DAY_MS
from ..log.transitions import past_transitions as read_history
from ..loggers import logger
from .access import COOKIE, COOKIE_MAX_S, Access, Asked, check_origin, still_may
from .desk import Operations, target_of
from .ingest import take
from .openapi import openapi_document
from .problems import Problem, field_refused, unavailable
from .questions import (
    JSON,
    NDJSON,
    ActRequest,
    Clear,
    DecideQuery,
    ExplainQuery,
    HistoryQuery,
    SignIn,
    StatusQuery,
    json_body,
    query,
    read_request_body,
)
from .streaming import EventStream
from .tokens import Role

_log = logger("sickbay.api")

REPORT: Final[frozenset[Role]] = frozenset({"report"})
READ: Final[frozenset[Role]] = frozenset({"read"})
OPERATE: Final[frozenset[Role]] = frozenset({"operate"})
KEY: Final = re.compile(r"[!-~]{1,128}")
ASK: Final = READ | REPORT
"""A reporter has to ask before it calls."""
_REVALIDATE: Final = "private, no-cache"


def desk_of(request: Asked) -> Operations:
    """What the application rests on."""
    desk: Operations = request.app.state.desk
    return desk


def json_response(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response[bytes]:
    """A JSON answer; not to be kept unless `headers` say so."""
    return Response(
        msgspec.json.encode(value), status_code=status, media_type="application/json", headers=headers or {}
    )


def tagged(request: Asked, value: object, tag: str, cache: str) -> Response[bytes]:
    """A JSON answer with an ETag, or 304 if the caller has it."""
    headers = {"ETag": tag, "Cache-Control": cache, "Vary": "Authorization, Cookie"}
    known = [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]
    if "*" in known or tag.removeprefix("W/") in known:
        return Response(b"", status_code=304, headers=headers)
    return json_response(value, headers=headers)


@get("/healthz", opt={"open": True}, sync_to_thread=False)
def healthz(request: Asked) -> Response[bytes]:
    """Alive."""
    return json_response({"ok": True, "connected": desk_of(request).link.client is not None})


@get("/readyz", opt={"open": True}, sync_to_thread=False)
def readyz(request: Asked) -> Response[bytes]:
    """The view is fresh, or how old it is."""
    found = desk_of(request).readiness()
    return json_response(
        found, status=200 if found["ready"] else 503, headers={} if found["ready"] else {"Retry-After": "1"}
    )


@get("/metrics", opt={"roles": READ})
async def metrics(request: Asked) -> Response[bytes]:
    """The metrics of this process, for Prometheus."""
    body, content_type = await request.app.state.metrics(request.headers.get("accept", ""))
    return Response(body, media_type=content_type)


@get("/openapi.json", opt={"open": True}, sync_to_thread=False)
def openapi() -> Response[bytes]:
    """The OpenAPI document."""
    return json_response(openapi_document(), headers={"Cache-Control": "public, max-age=300"})


@post("/v1/outcomes", opt={"roles": REPORT}, status_code=200)
async def outcomes(request: Asked) -> Response[bytes]:
    """Report finished attempts; answered when the log has them."""
    body, media_type = await read_request_body(request, JSON, NDJSON)
    return await take(desk_of(request).sender, body, media_type, request.user.replica)


@get("/v1/decide", opt={"roles": ASK}, sync_to_thread=False)
def get_decide(request: Asked) -> Response[bytes]:
    """May this target be called now?"""
    asked = query(request, DecideQuery)
    replica = asked.replica or request.user.replica
    found = desk_of(request).decide(target_of(asked.provider, asked.model, replica), replica)
    said = found.decision
    # The time left and the source belong to what the tag stands for: an answer that is kept must not say more.
    left = (said.allowed, said.reason, said.scope, said.rule, said.began_seq, said.trial, round(said.retry_in_s))
    tag = f'W/"{said.seq}-{crc32(repr((*left, said.source)).encode("utf-8", "surrogatepass")):08x}"'
    return tagged(request, said, tag, f"private, max-age={int(found.stands_s)}")


@get("/v1/status", opt={"roles": READ})
async def get_status(request: Asked) -> Response[bytes]:
    """What is held, or every target by pages."""
    asked = query(request, StatusQuery)
    question = {key: value for key, value in msgspec.to_builtins(asked).items() if value is not None}
    if asked.provider is not None:
        question["provider"] = _scope(asked.provider, asked.model).provider
    elif asked.model is not None:
        raise field_refused("model", "a model together with its provider")
    found = await desk_of(request).ask("sickbay.v1.status", question)
    return tagged(request, found, _tag_of(found), _REVALIDATE)


@get("/v1/explain", opt={"roles": READ})
async def get_explain(request: Asked) -> Response[bytes]:
    """All that is known of a scope and those around it."""
    asked = query(request, ExplainQuery)
    question = {"provider": _scope(asked.provider, asked.model).provider, "model": asked.model}
    found = await desk_of(request).ask("sickbay.v1.explain", question)
    return tagged(request, found, _tag_of(found), _REVALIDATE)


def _tag_of(found: dict[str, Any]) -> str:
    """The sequence that an answer rests on, and what of it changes by time alone but for the times left."""
    kept = msgspec.json.encode(_without_times({**found, "projector": None}))
    return f'W/"{found.get("seq", 0)}-{crc32(kept):08x}"'


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(one) for key, one in value.items() if not key.endswith("_s") and key not in _TIMES}
    return [_without_times(one) for one in value] if isinstance(value, list) else value


_TIMES: Final = frozenset({"at", "at_ms"})


@get("/v1/history", opt={"roles": READ})
async def get_history(request: Asked) -> Response[bytes]:
    """Transitions of a time, newest last."""
    asked = query(request, HistoryQuery)
    desk = desk_of(request)
    client = desk.link.client
    to_ms = desk.mirror.now_ms() if asked.to is None else _moment("to", asked.to)
    from_ms = to_ms - DAY_MS if asked.from_ is None else _moment("from", asked.from_)
    if from_ms > to_ms:
        raise field_refused("from", "a time that is not after `to`")
    if asked.model is not None and asked.provider is None:
        raise field_refused("model", "a model together with its provider")
    scope = None if asked.provider is None else _scope(asked.provider, asked.model)
    if client is None:
        raise unavailable("there is no connection to NATS")
    try:
        async with desk.reading:
            found = await read_history(client, scope, from_ms, to_ms, limit=asked.limit)
    except (BusError, nats.errors.Error, TimeoutError, OSError) as error:
        raise unavailable(f"the transitions could not be read: {error or 'no answer'}") from None
    complete = found.known_from_ms <= from_ms
    facts = {"from": rfc3339(from_ms), "to": rfc3339(to_ms), "seq": desk.mirror.seq, "complete": complete}
    return json_response({**facts, "known_from": rfc3339(found.known_from_ms), "transitions": found.transitions})


def _scope(provider: str, model: str | None) -> Scope:
    """The scope that is asked about. Raises `InvalidValue`, and `Problem` for a name that no subject can hold."""
    found = scope_of(provider_of(provider), model)
    target_of(found.provider, model or "", "")
    return found


def _moment(field: str, text: str) -> int:
    try:
        return parse_rfc3339(text)
    except ValueError:
        raise field_refused(field, "an RFC 3339 time with an offset, such as 2026-11-30T12:00:00Z") from None


@get("/v1/overview", opt={"roles": READ})
async def overview(request: Asked) -> Response[bytes]:
    """The fleet at a glance."""
    if request.query_params:
        raise field_refused(next(iter(request.query_params))[:64], "no parameter")
    return json_response(await request.app.state.overview.get())


@get("/v1/watch", opt={"roles": READ}, sync_to_thread=False)
def watch(request: Asked) -> ASGIResponse:
    """Changes as they come: server-sent events."""
    if request.query_params:
        raise field_refused(next(iter(request.query_params))[:64], "no parameter")
    last_id = request.headers.get("last-event-id", "")
    hub, is_anonymous = desk_of(request).hub, request.user.is_anonymous
    return EventStream(hub, last_id, lambda: still_may(request, READ), is_anonymous=is_anonymous)


def _act_id(key: str, action: str, question: dict[str, Any]) -> str:
    """The id under which the log knows an act again: of its key and of all that it says. Another act under a key that
    was used is another act, not a repeat that is left out. Raises `Problem`."""
    if KEY.fullmatch(key) is None:
        raise field_refused("Idempotency-Key", "1 to 128 printable ASCII characters without spaces")
    return sha256(msgspec.json.encode([key, action, question])).hexdigest()[:32]


async def _operate(request: Asked, action: str, act: ActRequest | Clear) -> Response[bytes]:
    scope = _scope(act.provider, act.model)
    until, for_s = (act.until, act.for_s) if isinstance(act, ActRequest) else (None, None)
    desk, actor = desk_of(request), request.user.name
    # The services have the last word; what they would refuse is refused here with its field.
    make_override(action, reason=act.reason, actor=actor, now_ms=desk.mirror.now_ms(), until=until, for_s=for_s)
    question: dict[str, Any] = {"provider": scope.provider, "model": act.model, "reason": act.reason, "actor": actor}
    if action != "clear":
        question |= {"until": until, "for_s": for_s}
    if (key := request.headers.get("idempotency-key")) is not None:
        question["id"] = _act_id(key, action, question)
    found = await desk.ask(f"sickbay.operate.v1.{action}", question)
    _log.info("%s of %s by %s", action, scope.key, actor)
    return json_response(found)


@post("/v1/hold", opt={"roles": OPERATE}, status_code=200)
async def post_hold(request: Asked) -> Response[bytes]:
    """Keep every replica from a target."""
    return await _operate(request, "hold", await json_body(request, ActRequest))


@post("/v1/allow", opt={"roles": OPERATE}, status_code=200)
async def post_allow(request: Asked) -> Response[bytes]:
    """Let calls pass whatever the rules say."""
    return await _operate(request, "allow", await json_body(request, ActRequest))


@post("/v1/clear", opt={"roles": OPERATE}, status_code=200)
async def post_clear(request: Asked) -> Response[bytes]:
    """End a target's holds and forget its counts."""
    return await _operate(request, "clear", await json_body(request, Clear))


@get("/v1/session", sync_to_thread=False)
def session(request: Asked) -> Response[bytes]:
    """The name and the roles of the caller."""
    caller = request.user
    roles = sorted(caller.roles)
    return json_response(
        {"name": caller.name, "roles": roles, "anonymous": caller.is_anonymous, "replica": caller.replica}
    )


@post("/v1/session", opt={"open": True}, status_code=204)
async def sign_in(request: Asked) -> Response[None]:
    """Change a token into a cookie."""
    if "origin" in request.headers:
        check_origin(request)
    access: Access = request.app.state.access
    token = (await json_body(request, SignIn)).token
    if access.find(token) is None:
        raise Problem(401, "token-refused", "the token is not known here")
    return Response(None, status_code=204, cookies=[_cookie(request, token, COOKIE_MAX_S)])


@delete("/v1/session", opt={"open": True}, status_code=204, sync_to_thread=False)
def sign_out(request: Asked) -> Response[None]:
    """Forget the cookie."""
    if "origin" in request.headers:
        check_origin(request)
    return Response(None, status_code=204, cookies=[_cookie(request, "", 0)])


def _cookie(request: Asked, value: str, max_age_s: int) -> Cookie:
    secure = request.scope["scheme"] == "https"
    return Cookie(key=COOKIE, value=value, max_age=max_age_s, httponly=True, samesite="strict", secure=secure, path="/")


HANDLERS: Final = (
    *(healthz, readyz, metrics, openapi),
    *(outcomes, get_decide, get_status, get_explain, get_history, overview, watch),
    *(post_hold, post_allow, post_clear),
    *(session, sign_in, sign_out),
)
