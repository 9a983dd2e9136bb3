"""Subject and bytes to event and back; everything unreadable is poison with a reason (SPEC section 2)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from .derived import DerivedEvent
from .errors import Poison, TokenRefused
from .kinds import KINDS
from .names import Scope, Target, token, untoken
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
from .times import parse_rfc3339, rfc3339

POLICY_SUBJECT: Final = "sickbay.policy"
EVENT_VERSION: Final = 1
_DURATIONS: Final = ("took_ms", "ttft_ms", "queued_ms", "limit_ms")

_E = TypeVar("_E")
_encode = msgspec.json.Encoder().encode
_outcomes: Final = msgspec.json.Decoder(CallOutcome)
_raw: Final = msgspec.json.Decoder(dict[str, Any])


class Address(NamedTuple):
    """What a subject says: which sort of event, from whom, about what."""

    sort: Literal["outcome", "probe", "override", "policy"]
    replica: str = ""
    target: Target | None = None
    scope: Scope | None = None


def outcome_subject(replica: str, target: Target) -> str:
    """Subject of outcomes, answers and refusals. Raises `NameRefused` for a name that is too long."""
    return f"sickbay.outcome.{token(replica)}.{target.key}"


def probe_subject(replica: str, target: Target) -> str:
    """Subject of probe results. Raises `NameRefused` for a name that is too long."""
    return f"sickbay.probe.{token(replica)}.{target.key}"


def override_subject(scope: Scope) -> str:
    """Subject of an operator's acts on a scope. Raises `NameRefused` for a name that is too long."""
    return f"sickbay.override.{scope.key}"


@lru_cache(maxsize=131_072)
def read_subject(subject: str) -> Address:
    """Read an input event's subject. Raises `Poison("subject")` for any other."""
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


def decode(subject: str, data: bytes) -> Event:
    """Decode one message of the log. Raises `Poison` that says why it cannot be read."""
    sort = read_subject(subject).sort
    if sort == "outcome":
        return _decode_outcome(data)
    body = _checked_body(data)
    if sort == "probe":
        _checked_kind(body, required=False)
        return _convert(body, ProbeResult, "body")
    if sort == "policy":
        return _convert(body, PolicyChanged, "policy")
    override = _convert(body, Override, "override")
    if override.action != "clear":
        try:
            parse_rfc3339(override.until or "")
        except ValueError as error:
            raise Poison("override", f"until is required for {override.action}: {error}") from error
    return override


def decode_outcomes(payloads: Sequence[bytes]) -> list[Event | Poison]:
    """Decode many messages of outcome subjects at once; one entry a payload, in order.

    Much cheaper than one at a time. Payloads that are no plain outcome are decoded alone.
    """
    joined = b"\n".join(payloads)
    if joined.count(b"\n") == len(payloads) - 1 and b"" not in payloads:
        try:
            return _outcomes.decode_lines(joined)  # type: ignore[return-value]
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    return [_outcome_or_poison(data) for data in payloads]


def _outcome_or_poison(data: bytes) -> Event | Poison:
    try:
        return _outcomes.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            return _decode_outcome(data)
        except Poison as poison:
            return poison


def _decode_outcome(data: bytes) -> CallOutcome | CallAnswered | CallsRefused:
    body = _checked_body(data)
    sort = body.get("type", "outcome")
    if sort == "answered":
        return _convert(body, CallAnswered, "body")
    if sort == "refused":
        return _convert(body, CallsRefused, "body")
    if sort != "outcome":
        raise Poison("type", f"type {str(sort)[:80]!r} is none of outcome, answered, refused")
    _checked_kind(body, required=True)
    return _convert(body, CallOutcome, "body")


def _checked_body(data: bytes) -> dict[str, Any]:
    try:
        body = _raw.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Poison("body", f"not a JSON object: {error}") from error
    version = body.get("v", EVENT_VERSION)
    if isinstance(version, int) and version > EVENT_VERSION:
        raise Poison("version", f"v {version} is higher than {EVENT_VERSION}, the highest this version reads")
    for name in _DURATIONS:
        value = body.get(name)
        if isinstance(value, int | float) and not 0 <= value <= DAY_MS:
            raise Poison("duration", f"{name} {value} lies outside 0 to {DAY_MS} ms")
    return body


def _checked_kind(body: dict[str, Any], *, required: bool) -> None:
    kind = body.get("kind")
    if (required or kind is not None) and (not isinstance(kind, str) or kind not in KINDS):
        raise Poison("kind", f"kind {str(kind)[:80]!r} is none of {', '.join(KINDS)}")


def _convert(body: dict[str, Any], into: type[_E], reason: Literal["body", "override", "policy"]) -> _E:
    try:
        return msgspec.convert(body, into)
    except msgspec.ValidationError as error:
        raise Poison(reason, str(error)) from error


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
