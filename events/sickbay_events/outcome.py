"""Input events: what happened, as reported. Facts, never conclusions (Rule 2).

Each event is one JSON object. Replica and scope are in the subject and nowhere else. Unknown fields do no
harm; a missing `type` means an outcome; `v` rises only if an old fold would misread the event.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from .kinds import Kind, ScopeName

DAY_MS = 86_400_000
RETRY_AFTER_S_MAX = 30 * 86_400
DETAIL_CHARS_MAX = 200
CODE_CHARS_MAX = 64

DurationMs: TypeAlias = Annotated[int, Meta(ge=0, le=DAY_MS)] | Annotated[float, Meta(ge=0, le=DAY_MS)] | None
"""Milliseconds, 0 to 24 h; None where it was not measured. Anything else makes the event poison."""

Number: TypeAlias = Annotated[int, Meta(ge=-(2**53), le=2**53)]
"""A whole number that every language and store on the way can hold exactly; a larger one makes the event poison."""


class Lease(msgspec.Struct, frozen=True, gc=False):
    """One trial lease an attempt ran under: which rule's hold, by its name."""

    rule: str
    began_seq: Number


class Skipped(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A target that a chain passed over, and why."""

    provider: str
    model: str
    reason: str


class CallOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One finished attempt of one call. Only `kind` is required. No prompt and no completion text, ever."""

    kind: Kind
    type: Literal["outcome"] = "outcome"
    v: Literal[1] = 1
    id: str | None = None
    """`<boot>-<n>`: boot is 16 hex digits, random per process start; n counts up from 1."""
    status: Number | None = None
    """HTTP status, None if there was no answer."""
    took_ms: DurationMs = None
    ttft_ms: DurationMs = None
    """Until the first content."""
    queued_ms: DurationMs = None
    """Its wait in the reporter at this sending."""
    limit_ms: DurationMs = None
    """The time the caller gave it."""
    scope: ScopeName | None = None
    """As classified; None means the scope of the table of kinds."""
    seen_seq: Number | None = None
    """The largest log sequence the gate's mirror had seen when the call started."""
    trial: list[Lease] | None = None
    forced: bool = False
    route: str | None = None
    rank: Number = 0
    skipped: list[Skipped] | None = None
    retry_after_s: int | float | None = None
    retry_after_from: Literal["header", "body"] | None = None
    signature: str | None = None
    checkable: bool = True
    attributable: bool = False
    stream: bool = False
    charset: str | None = None
    """What the answer's content type said, or `absent`."""
    code: str | None = None
    request_hash: str | None = None
    detail: str | None = None
    at: str | None = None
    """RFC 3339 wall time of the end. Information only, except in imported history."""


class CallAnswered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="answered"):
    """The first content of a streaming trial arrived: proof now, not at the end of the stream."""

    v: Literal[1] = 1
    id: str | None = None
    ttft_ms: DurationMs = None
    queued_ms: DurationMs = None
    seen_seq: Number | None = None
    trial: list[Lease] | None = None
    at: str | None = None


class CallsRefused(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="refused"):
    """Calls that a hold kept from this target in one minute. Statistics only."""

    count: Annotated[int, Meta(ge=1, le=2**53)]
    rule: str
    v: Literal[1] = 1
    id: str | None = None
    minute: str | None = None
    """RFC 3339 beginning of the minute, by the replica's wall clock."""
    alone_until_ms: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Log time at which the hold ends, if it is this replica's own and the fleet has none."""
    at: str | None = None


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One active check of a target."""

    level: Literal["liveness", "readiness"]
    ok: bool
    kind: Kind = "unknown"
    v: Literal[1] = 1
    id: str | None = None
    status: Number | None = None
    took_ms: DurationMs = None
    limit_ms: DurationMs = None
    queued_ms: DurationMs = None
    usage: bool = False
    """Whether the answer carried token usage."""
    signature: str | None = None
    """As an outcome's; `suspiciously_fast`: no upstream can have answered that."""
    trial: list[Lease] | None = None
    seen_seq: Number | None = None
    interval_s: int | float | None = None
    at: str | None = None


class Override(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operator's act on a scope and everything below it (Rule 4.7)."""

    action: Literal["hold", "allow", "clear"]
    reason: Annotated[str, Meta(min_length=1)]
    actor: Annotated[str, Meta(min_length=1)]
    until: str | None = None
    """RFC 3339; required for `hold` and `allow`; later than 30 days ahead is cut to that."""
    v: Literal[1] = 1
    id: str | None = None
    at: str | None = None


class PolicyChanged(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole policy as data, so that a replay knows which rules held when."""

    policy: dict[str, Any]
    actor: str = ""
    reason: str = ""
    v: Literal[1] = 1
    id: str | None = None
    at: str | None = None


Event: TypeAlias = CallOutcome | CallAnswered | CallsRefused | ProbeResult | Override | PolicyChanged
