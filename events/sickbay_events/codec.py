"""Subject and bytes to event and back; everything unreadable is poison with a reason (Rule 2)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from .derived import DerivedEvent
from .errors import Poison, PolicyRefused, TokenRefused
from .kinds import KINDS
from .names import Scope, Target, check_names, checked_key, token, untoken
from .outcome import (
    DAY_MS,
    CallAnswered,
    CallOutcome,
    CallsRefused,
    Event,
    Override,
    PolicyChanged,
    ProbeResult,
)
from .policy import Policy
from .times import parse_rfc3339, rfc3339

POLICY_SUBJECT: Final = "sickbay.policy"
EVENT_VERSION: Final = 1
_DURATIONS: Final = ("took_ms", "ttft_ms", "queued_ms", "limit_ms")

_E = TypeVar("_E")
_encode = msgspec.json.Encoder().encode
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Head(msgspec.Struct, frozen=True, gc=False):
    """What is looked at before an event is decoded: fields of any type, so that a wrong one can be named.

    Whatever else a body holds is skipped unread, as the decoders of whole events skip it: unknown fields do
    no harm, whichever way a body is decoded.
    """

    type: Any = msgspec.UNSET
    v: Any = EVENT_VERSION
    kind: Any = None
    took_ms: Any = None
    ttft_ms: Any = None
    queued_ms: Any = None
    limit_ms: Any = None


_heads: Final = msgspec.json.Decoder(_Head)
_outcomes: Final = msgspec.json.Decoder(CallOutcome)
_answers: Final = msgspec.json.Decoder(CallAnswered)
_refusals: Final = msgspec.json.Decoder(CallsRefused)
_probes: Final = msgspec.json.Decoder(ProbeResult)
_overrides: Final = msgspec.json.Decoder(Override)
_policies: Final = msgspec.json.Decoder(PolicyChanged)


class Address(NamedTuple):
    """What a subject says: which sort of event, from whom, about what."""

    sort: Literal["outcome", "probe", "override", "policy"]
    replica: str = ""
    target: Target | None = None
    scope: Scope | None = None


def outcome_subject(replica: str, target: Target) -> str:
    """Subject of outcomes, answers and refusals. Raises `NameRefused` for a name that is too long or looks secret."""
    return f"sickbay.outcome.{token(replica)}.{checked_key(target.provider, target.model)}"


def probe_subject(replica: str, target: Target) -> str:
    """Subject of probe results. Raises `NameRefused` for a name that is too long or looks secret."""
    return f"sickbay.probe.{token(replica)}.{checked_key(target.provider, target.model)}"


def override_subject(scope: Scope) -> str:
    """Subject of an operator's acts on a scope. Raises `NameRefused` for a name that is too long or looks secret."""
    check_names(provider=scope.host, alias=scope.alias or "", model=scope.model or "")
    return f"sickbay.override.{scope.key}"


@lru_cache(maxsize=131_072)
def read_subject(subject: str) -> Address:
    """Read an input event's subject. Raises `Poison("subject")` for any other, and for a name that is no text: a
    token can spell half of a surrogate pair, but no document that tells of it could be written."""
    address = _address(subject)
    scope = address.target.scope if address.target is not None else address.scope
    names = (scope.host, scope.alias or "", scope.model or "") if scope is not None else ()
    for name in (address.replica, *names):
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise Poison("subject", f"{subject[:200]!r}: a name in it is not UTF-8: {error.reason}") from error
    return address


def _address(subject: str) -> Address:
    root, _, rest = subject.partition(".")
    sort, _, rest = rest.partition(".")
    try:
        if root == "sickbay" and sort in ("outcome", "probe"):
            replica, _, key = rest.partition(".")
            return Address(sort, untoken(replica), Target.of_key(key))  # type: ignore[arg-type]
        if root == "sickbay" and sort == "override":
            return Address("override", scope=Scope.of_key(rest))
    except TokenRefused as error:
        raise Poison("subject", str(error)) from error
    if subject == POLICY_SUBJECT:
        return Address("policy")
    raise Poison("subject", f"{subject[:200]!r} is not sickbay.outcome|probe|override.… or {POLICY_SUBJECT}")


def encode(event: Event) -> bytes:
    """One line of JSON; what has its default value is left out."""
    return _encode(event)


def decode(subject: str, data: bytes | msgspec.Raw) -> Event:
    """Decode one message of the log. Raises `Poison` that says why it cannot be read."""
    sort = read_subject(subject).sort
    if sort == "outcome":
        event = _outcome_or_poison(data)
        if isinstance(event, Poison):
            raise event
        return event
    head = _checked_head(data, (sort,))
    if sort == "probe":
        if head.kind is not None:
            _check_kind(head)
        return _typed(_probes, data, "body")
    if sort == "policy":
        return _checked_policy(_typed(_policies, data, "policy"))
    return _checked_override(_typed(_overrides, data, "override"))


def decode_outcomes(payloads: Sequence[bytes | msgspec.Raw], *, whole: bool = False) -> list[Event | Poison]:
    """Decode many messages of outcome subjects at once; one entry a payload, in order.

    Much cheaper than one at a time. Payloads that are no plain outcome are decoded alone. `whole`: it is known that
    each payload is one whole JSON value without a line break.
    """
    if not payloads:
        return []
    joined = b"\n".join(payloads)
    # Lines are not boundaries to the decoder: two halves of an object in two payloads would be read as one
    # event, and a blank payload as none, and everything after it would get a wrong sequence. When each
    # payload is one line from { to }, no object can end in another payload than its own, so equal numbers
    # mean one event a payload.
    seams = len(payloads) - 1
    if whole or (joined[:1] == b"{" and joined[-1:] == b"}" and joined.count(b"\n") == joined.count(b"}\n{") == seams):
        try:
            events = _outcomes.decode_lines(joined)
        except _UNREADABLE:
            pass
        else:
            if len(events) == len(payloads):
                return events  # type: ignore[return-value]
    return [_outcome_or_poison(data) for data in payloads]


def _outcome_or_poison(data: bytes | msgspec.Raw) -> CallOutcome | CallAnswered | CallsRefused | Poison:
    try:
        return _outcomes.decode(data)
    except _UNREADABLE:
        try:
            return _decode_outcome(data)
        except Poison as poison:
            return poison


def _decode_outcome(data: bytes | msgspec.Raw) -> CallOutcome | CallAnswered | CallsRefused:
    head = _checked_head(data, ("outcome", "answered", "refused"))
    if head.type == "answered":
        return _typed(_answers, data, "body")
    if head.type == "refused":
        return _typed(_refusals, data, "body")
    _check_kind(head)
    return _typed(_outcomes, data, "body")


def _checked_head(data: bytes | msgspec.Raw, types: tuple[str, ...]) -> _Head:
    """Check what every event has; `types` names the accepted types, the first of them for a body without one."""
    try:
        head = _heads.decode(data)
    except _UNREADABLE as error:
        raise Poison("body", f"not a JSON object: {error}") from error
    if type(head.v) is int and head.v > EVENT_VERSION:
        raise Poison("version", f"v {head.v} is higher than {EVENT_VERSION}, the highest this version reads")
    if head.type is not msgspec.UNSET and head.type not in types:
        raise Poison("type", f"type {str(head.type)[:80]!r} is none of {', '.join(types)}")
    for name in _DURATIONS:
        value = getattr(head, name)
        if type(value) in (int, float) and not 0 <= value <= DAY_MS:
            raise Poison("duration", f"{name} {value} lies outside 0 to {DAY_MS} ms")
    return head


def _check_kind(head: _Head) -> None:
    if not isinstance(head.kind, str) or head.kind not in KINDS:
        raise Poison("kind", f"kind {str(head.kind)[:80]!r} is none of {', '.join(KINDS)}")


def _typed(
    decoder: msgspec.json.Decoder[_E], data: bytes | msgspec.Raw, reason: Literal["body", "override", "policy"]
) -> _E:
    try:
        return decoder.decode(data)
    except _UNREADABLE as error:
        raise Poison(reason, str(error)) from error


def _checked_policy(event: PolicyChanged) -> PolicyChanged:
    try:
        Policy.from_data(event.policy)
    except PolicyRefused as error:
        raise Poison("policy", str(error)) from error
    return event


def _checked_override(event: Override) -> Override:
    if event.action != "clear":
        try:
            parse_rfc3339(event.until or "")
        except ValueError as error:
            raise Poison("override", f"until is required for {event.action}: {error}") from error
    return event


def derived_subject(event: DerivedEvent) -> str:
    """`sickbay.held.<scope key>`, and likewise `released`, `health`, `warning`."""
    return f"sickbay.{event.__struct_config__.tag}.{event.scope.key}"


def derived_id(event: DerivedEvent, log_created: str) -> str:
    """Id and Nats-Msg-Id of a derived event: the same whenever the same log is folded."""
    return f"{log_created}:{event.cause_seq}:{event.scope.key}:{event.__struct_config__.tag}:{event.rule}"


def encode_derived(event: DerivedEvent, log_created: str) -> bytes:
    """One line of JSON for people and machines: unescaped names first, both forms of each time."""
    body: dict[str, Any] = msgspec.to_builtins(event)
    del body["scope"]
    head: dict[str, Any] = {"type": body.pop("type"), "provider": event.scope.provider}
    if event.scope.model is not None:
        head["model"] = event.scope.model
    head["rule"] = body.pop("rule")
    if "end_ms" in body:
        head["until"] = rfc3339(body["end_ms"])
    body["at"] = rfc3339(event.time_ms)
    body["id"] = derived_id(event, log_created)
    return _encode({**head, **body})
