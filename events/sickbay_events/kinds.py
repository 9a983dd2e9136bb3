"""The kinds of outcome and what each says about its target (the table of Rule 3 as data)."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal[
    "ok",
    "model_unavailable",
    "permission_model",
    "wrong_endpoint",
    "auth",
    "quota",
    "rate_limited",
    "overloaded",
    "server_error",
    "timeout",
    "network",
    "truncated",
    "empty_output",
    "malformed_output",
    "mangled_output",
    "bad_request",
    "context_length",
    "content_filter",
    "cancelled",
    "unknown",
]
ScopeName: TypeAlias = Literal["host", "credential", "model", "none"]
Group: TypeAlias = Literal["success", "rejection", "neutral", "auth", "throttle", "fault", "degraded"]
"""How the folds treat a kind: each group is one row of the table in Rule 4."""


class KindRow(NamedTuple):
    """One row of the table of kinds."""

    scope: ScopeName
    """What the verdict holds for when the reporter does not say."""
    group: Group
    says: str
    """The row in plain words, for people."""


KINDS: Final[dict[Kind, KindRow]] = {
    "ok": KindRow("none", "success", "a usable answer"),
    "model_unavailable": KindRow("model", "rejection", "unknown, retired or not served here"),
    "permission_model": KindRow("model", "rejection", "exists, but not for this credential"),
    "wrong_endpoint": KindRow("none", "neutral", "the route does not exist, or not for this model"),
    "auth": KindRow("credential", "auth", "the credential is bad"),
    "quota": KindRow("credential", "throttle", "balance or allowance is spent"),
    "rate_limited": KindRow("model", "throttle", "too fast, clears soon"),
    "overloaded": KindRow("model", "fault", "no capacity, loading, cold"),
    "server_error": KindRow("model", "fault", "the provider broke"),
    "timeout": KindRow("model", "fault", "too slow"),
    "network": KindRow("model", "fault", "unreachable"),
    "truncated": KindRow("model", "fault", "cut off in mid-stream"),
    "empty_output": KindRow("model", "degraded", "200 without a usable answer"),
    "malformed_output": KindRow("model", "degraded", "200 with an answer that cannot be read"),
    "mangled_output": KindRow("model", "degraded", "200 with damaged text"),
    "bad_request": KindRow("none", "neutral", "the caller's request is at fault"),
    "context_length": KindRow("none", "neutral", "the caller's request is too long"),
    "content_filter": KindRow("none", "neutral", "the caller's content was refused"),
    "cancelled": KindRow("none", "neutral", "the caller gave up"),
    "unknown": KindRow("none", "neutral", "cannot tell"),
}
