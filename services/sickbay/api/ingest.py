"""Outcomes by HTTP: read item by item, checked as the routers' reporter checks, stored, and only then answered.

An item is an outcome with its provider and model, and an `id` if its sender may send it again. The replica is the
token's, whatever an item says: there is no field for it. An unknown field refuses its item, so that nothing that was
not meant for the log, a prompt least of all, gets near it.
"""

from __future__ import annotations

import re
import secrets
from types import GenericAlias
from typing import Annotated, Any, Final, NamedTuple, get_type_hints

import msgspec
from litestar import Response
from msgspec import Meta

from sickbay_events import KINDS, CallOutcome, encode, parse_rfc3339, token
from sickbay_events.codec import outcome_subject
from sickbay_events.derived import RULES
from sickbay_events.names import NAME_BYTES_MAX, at_machine
from sickbay_events.redact import redact

from ..router.outbox import EVENT_BYTES_MAX, WORD_CHARS_MAX, NotReportable, fit
from .desk import target_of
from .problems import Problem, field_refused, of_validation, unavailable
from .questions import NDJSON, Model, Provider
from .sender import Busy, EventToStore, NotConnected, Sender, SendResult

ITEMS_MAX: Final = 1_000
ID_FORM: Final = "1 to 128 printable ASCII characters without spaces, another one for each outcome"
_ID: Final = re.compile(r"[!-~]{1,128}")
_ItemId: Any = Annotated[
    str,
    Meta(
        pattern=r"^[!-~]{1,128}$",
        description="Tells this outcome from all others of its sender: sent again under the same id it counts once",
        examples=["5f0c9e2a7b41d8c6-17"],
    ),
]
_Word: Any = Annotated[str, Meta(pattern=r"^[!-~]*$", max_length=WORD_CHARS_MAX)]
_WORD_FIELDS: Final = ("signature", "charset", "request_hash")
"""Words for machines. Routers' own code fills them there; here anybody does, and a sentence is none."""
_SAYS: Final[dict[str, tuple[str, Any]]] = {
    "kind": ("What came of the attempt", "rate_limited"),
    "status": ("HTTP status, none if there was no answer", 429),
    "took_ms": ("How long the attempt took", 812),
    "seen_seq": ("`seq` of the decision that let the call begin", 4711),
    "retry_after_s": ("The provider's hint", 20),
}


def _fields() -> list[tuple[str, Any, Any]]:
    """The fields of an item: those of an outcome, with what it is about."""
    hints = get_type_hints(CallOutcome, include_extras=True)
    found: list[tuple[str, Any, Any]] = [("provider", Provider, msgspec.NODEFAULT), ("model", Model, msgspec.NODEFAULT)]
    for field in msgspec.structs.fields(CallOutcome):
        hint = hints[field.name]
        if field.name in _SAYS:
            says, example = _SAYS[field.name]
            hint = Annotated[hint, Meta(description=says, examples=[example])]
        if field.name == "id":
            hint = _ItemId | None
        elif field.name in _WORD_FIELDS:
            hint = _Word | None
        found.append((field.name, hint, field.default))
    return found


Outcome: Final[Any] = msgspec.defstruct(
    "Outcome",
    _fields(),
    forbid_unknown_fields=True,
    kw_only=True,
    frozen=True,
    module=__name__,
    namespace={"__doc__": "One finished attempt of one call."},
)
"""One item: every field of a `CallOutcome`, and its provider and model."""
_one: Final[Any] = msgspec.json.Decoder(Outcome).decode
_many: Final[Any] = msgspec.json.Decoder(GenericAlias(list, (Outcome,))).decode
_raw: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_NAMES: Final = ", ".join(field.name for field in msgspec.structs.fields(Outcome))
_WORDS: Final = {
    "": _NAMES,
    "kind": f"one of {', '.join(KINDS)}",
    "scope": "host, credential, model or none",
    "id": ID_FORM,
    **dict.fromkeys(_WORD_FIELDS, f"up to {WORD_CHARS_MAX} printable ASCII characters without spaces"),
}
_OUTCOME_FIELDS: Final = tuple(CallOutcome.__struct_fields__)


class ItemRejected(msgspec.Struct, frozen=True):
    """An item that was not taken, and why."""

    index: int
    field: str
    error: str


class ItemNotStored(msgspec.Struct, frozen=True):
    """An item that is good and not in the log, or nobody knows: to be sent again, under this id."""

    index: int
    id: str
    error: str


class Taken(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What became of the items of one request."""

    accepted: int
    """In the log for certain, those it had already included."""
    duplicates: int
    rejected: list[ItemRejected]
    not_stored: list[ItemNotStored] = []


class _Event(NamedTuple):
    at: int
    """Its place in the request."""
    id: str
    message: EventToStore


def read_items(body: bytes, media_type: str) -> list[bytes | Any]:
    """The items of a body, decoded where all of them can be, else each as its bytes. Raises `Problem`."""
    found: list[bytes | Any]
    if media_type == NDJSON:
        found = [line for line in body.split(b"\n") if line.strip()]
    elif body.lstrip()[:1] == b"[":
        try:
            try:
                found = _many(body)
            except msgspec.ValidationError:
                found = [bytes(one) for one in _raw(body)]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Problem(400, "no-json", "the body is no JSON", accepted="an object, an array or NDJSON") from None
    else:
        found = [body]
    if not 1 <= len(found) <= ITEMS_MAX:
        status = 422 if not found else 413
        raise Problem(status, "items", f"{len(found)} items", field="body", accepted=f"1 to {ITEMS_MAX} items")
    return found


def _decoded(item: bytes | Any) -> Any:
    """An item that was not decoded with the others. Raises `Problem` naming the field."""
    if not isinstance(item, bytes):
        return item
    if len(item) > EVENT_BYTES_MAX:
        raise field_refused("body", f"at most {EVENT_BYTES_MAX} bytes an item")
    try:
        return _one(item)
    except msgspec.ValidationError as error:
        raise of_validation(error, _WORDS) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise field_refused("body", "one JSON object an item", "no JSON") from None


def _check_texts(item: Any) -> None:
    """Texts that would else hold anything. Raises `Problem` naming the field."""
    if item.at is not None:
        try:
            parse_rfc3339(item.at)
        except ValueError:
            raise field_refused("at", "an RFC 3339 time with an offset") from None
    for at, lease in enumerate(item.trial or ()):
        if lease.rule not in RULES:
            raise field_refused(f"trial[{at}].rule", f"one of {', '.join(RULES)}")
    for at, skip in enumerate(item.skipped or ()):
        if len(skip.reason) > WORD_CHARS_MAX or " " in skip.reason:
            raise field_refused(f"skipped[{at}].reason", f"one word of up to {WORD_CHARS_MAX} characters")
        if max(len(skip.provider), len(skip.model)) > 2 * NAME_BYTES_MAX:
            raise field_refused(f"skipped[{at}]", f"names of up to {NAME_BYTES_MAX} bytes")


def read_item(given: bytes | Any, replica: str) -> tuple[str, EventToStore]:
    """One item as an event of this replica. Raises `Problem` naming the field."""
    item = _decoded(given)
    item_id = secrets.token_hex(12) if item.id is None else item.id
    if _ID.fullmatch(item_id) is None:
        raise field_refused("id", ID_FORM)
    _check_texts(item)
    target = target_of(item.provider, item.model, replica)
    host, mark, machine = target.scope.host.partition("@")
    if mark and machine != replica and at_machine(host, machine) != host:
        # Of a machine's own loopback it is the only witness there is: another one must not be it.
        raise field_refused("provider", "a loopback provider without a machine's name, which is the token's")
    fields = {name: getattr(item, name) for name in _OUTCOME_FIELDS}
    fields["id"] = item_id
    if item.detail is not None:
        fields["detail"] = redact(item.detail)
    try:
        data = encode(fit(target, CallOutcome(**fields)))
        subject = outcome_subject(replica, target)
    except NotReportable as error:
        raise field_refused(error.field.removeprefix("target."), str(error).partition(": ")[2]) from None
    # Ids are each sender's own: one replica must not be able to have the log take another's event for a repeat.
    return item_id, EventToStore(subject, f"{token(replica)}:{item_id}", data)


def _says(problem: Problem) -> str:
    return problem.detail if problem.accepted is None else f"{problem.detail}; accepted is {problem.accepted}"


async def take(sender: Sender, body: bytes, media_type: str, replica: str) -> Response[bytes]:
    """Store a body's items; answers when the log has them. Raises `Problem`."""
    events: list[_Event] = []
    rejected: list[ItemRejected] = []
    for index, item in enumerate(read_items(body, media_type)):
        try:
            events.append(_Event(index, *read_item(item, replica)))
        except Problem as problem:
            rejected.append(ItemRejected(index, problem.field or "body", _says(problem)))
    try:
        answers = await sender.send([event.message for event in events]) if events else []
    except (NotConnected, Busy) as error:
        answers = [SendResult(why=str(error))] * len(events)
    return _response(events, answers, rejected)


def _response(events: list[_Event], answers: list[SendResult], rejected: list[ItemRejected]) -> Response[bytes]:
    found = Taken(accepted=0, duplicates=0, rejected=rejected)
    not_stored: list[ItemNotStored] = []
    for event, answer in zip(events, answers, strict=True):
        if answer.seq:
            found.accepted += 1
            found.duplicates += answer.duplicate
        elif answer.is_refused:
            rejected.append(ItemRejected(event.at, "body", f"the log refuses it: {answer.why}"))
        else:
            not_stored.append(ItemNotStored(event.at, event.id, answer.why))
    rejected.sort(key=lambda one: one.index)
    if not_stored:
        found.not_stored = not_stored
        problem = unavailable(f"{len(not_stored)} outcomes are not stored: {not_stored[0].error}; send them again")
        problem.more = msgspec.to_builtins(found)
        return problem.response()
    if not found.accepted:
        more = msgspec.to_builtins(found)
        return Problem(422, "items-refused", "no item was accepted", more=more).response()
    status = 207 if rejected else 200
    return Response(msgspec.json.encode(found), status_code=status, media_type="application/json")
