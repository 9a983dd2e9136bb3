"""What may be asked over HTTP: the fields of each query and body, as types that also make the OpenAPI document."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final, TypeVar

import msgspec
from litestar import Request
from litestar.exceptions import HTTPException
from msgspec import Meta

from sickbay_events.names import NAME_BYTES_MAX

from ..service.rpc import LIMIT_MAX
from .problems import Problem, field_refused, of_validation

_T = TypeVar("_T")

BODY_BYTES_MAX: Final = 1 << 20
BODY_S: Final = 15.0
"""A body that takes longer to come is not waited for."""
HISTORY_MAX: Final = 5_000
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"


def _name(says: str, example: str, chars_max: int = NAME_BYTES_MAX) -> Meta:
    return Meta(max_length=chars_max, description=says, examples=[example])


Provider = Annotated[
    str, _name("Provider as routers name it, with #alias if they do, or its URL", "openrouter.ai", 1_024)
]
Model = Annotated[str, _name("Exact model id", "z-ai/glm-5.3")]
Moment = Annotated[str, Meta(max_length=64, description="RFC 3339 time", examples=["2026-11-30T12:00:00Z"])]


class ApiRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of queries and bodies: a field misspelled is an error, since what was meant is not known."""


class DecideQuery(ApiRequest, kw_only=True):
    """May this target be called now?"""

    provider: Provider
    model: Model
    replica: Annotated[str, _name("Whose share of a ramp it is; default the token's replica", "router-7")] = ""


class StatusQuery(ApiRequest, kw_only=True):
    """What is held; with `all`, every target, by pages."""

    provider: Provider | None = None
    model: Model | None = None
    all: Annotated[bool, Meta(description="Every target, not only those with a hold")] = False
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="Scopes in one answer")] = 200
    after: Annotated[str, Meta(max_length=4_096, description="`next` of the answer before")] = ""


class ExplainQuery(ApiRequest, kw_only=True):
    """All that is known of a scope and those around it."""

    provider: Provider
    model: Model | None = None


class HistoryQuery(ApiRequest, kw_only=True):
    """Transitions, the newest `limit` of the time asked for."""

    provider: Provider | None = None
    model: Model | None = None
    from_: Annotated[Moment | None, Meta(description="From when; default 24 hours before `to`")] = msgspec.field(
        default=None, name="from"
    )
    to: Annotated[Moment | None, Meta(description="To when; default now")] = None
    limit: Annotated[int, Meta(ge=1, le=HISTORY_MAX, description="Transitions in the answer")] = 500


class ActRequest(ApiRequest, kw_only=True):
    """An operator's hold or allow. Its actor is the token's name. Exactly one of `for_s` and `until`."""

    provider: Provider
    reason: Annotated[str, Meta(min_length=1, max_length=500, description="Why, for people", examples=["maintenance"])]
    model: Annotated[Model | None, Meta(description="Without one: the whole provider")] = None
    for_s: Annotated[float, Meta(gt=0, le=2_592_000, description="For how long, seconds", examples=[1800])] | None = (
        None
    )
    until: Moment | None = None


class Clear(ApiRequest, kw_only=True):
    """An operator's clear: it ends holds, forgets counts, and has no end of its own."""

    provider: Provider
    reason: Annotated[str, Meta(min_length=1, max_length=500, description="Why, for people", examples=["fixed"])]
    model: Annotated[Model | None, Meta(description="Without one: the whole provider")] = None


class SignIn(ApiRequest, kw_only=True):
    """A token, to be changed into a cookie."""

    token: Annotated[str, Meta(min_length=1, max_length=512, description="The token", examples=["sbk_..."])]


def query(request: Request[Any, Any, Any], sort: type[_T]) -> _T:
    """The query of a request. Raises `Problem` naming the parameter."""
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in found:
            raise field_refused(name[:64], "the parameter once", "a parameter stands twice")
        found[name] = value
    try:
        return msgspec.convert(found, sort, strict=False)
    except msgspec.ValidationError as error:
        raise of_validation(error, _fields(sort)) from None


async def read_request_body(request: Request[Any, Any, Any], *accepted: str) -> tuple[bytes, str]:
    """A request's body and its media type. Raises `Problem` for one of another type, too large, or too slow."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in accepted or request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(
            415, "media-type", "this body is of a type that is not taken", accepted=f"{', '.join(accepted)}, uncoded"
        )
    try:
        async with asyncio.timeout(BODY_S):
            return await request.body(), media_type
    except TimeoutError:
        raise Problem(408, "too-slow", f"the body did not come within {BODY_S:g} s") from None
    except HTTPException as error:
        if error.status_code != 413:
            raise
        raise Problem(413, "too-large", "the body is too large", accepted=f"at most {BODY_BYTES_MAX} bytes") from None


async def json_body(request: Request[Any, Any, Any], sort: type[_T]) -> _T:
    """A request's JSON body. Raises `Problem` naming the field."""
    body, _ = await read_request_body(request, JSON)
    try:
        return msgspec.json.decode(body, type=sort)
    except msgspec.ValidationError as error:
        raise of_validation(error, _fields(sort)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Problem(400, "no-json", "the body is no JSON", accepted="one JSON object") from None


def _fields(sort: type[Any]) -> dict[str, str]:
    return {"": ", ".join(field.encode_name for field in msgspec.structs.fields(sort))}
