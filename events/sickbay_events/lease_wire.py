"""What routers and services say to each other about trial leases, by request and reply on `sickbay.v1.trial`."""

from __future__ import annotations

from math import ceil
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from sickbay_events.outcome import DAY_MS
from sickbay_events.policy import TrialsPolicy

SUBJECT: Final = "sickbay.v1.trial"
NOT_CURRENT: Final = "425"
"""Service error of an instance that reads the log first: the same question may reach another one."""
LEASES_MAX: Final = 16
"""Three scopes with five rules each are fewer."""

SCOPE_KEY_CHARS_MAX: Final = 2_400
"""Three names of 256 bytes, each byte escaped."""

Name: TypeAlias = Annotated[str, Meta(max_length=1_024)]
Action: TypeAlias = Literal["take", "renew", "give_back"]


class LeaseName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which hold's trial: scope key, rule, and the hold's name."""

    scope: Annotated[str, Meta(max_length=SCOPE_KEY_CHARS_MAX)]
    rule: str
    began_seq: Annotated[int, Meta(ge=0, le=2**53)]


class TrialAsk(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Take, renew or give back the leases of one attempt, widest scope first: all or none."""

    replica: Name
    provider: Name
    model: Name
    leases: Annotated[list[LeaseName], Meta(min_length=1, max_length=LEASES_MAX)]
    token: Annotated[str, Meta(min_length=1, max_length=64)]
    """Made by whoever asks, random: says whose lease it is. The same request twice is one lease."""
    limit_ms: Annotated[int, Meta(ge=0, le=DAY_MS)] = 60_000
    action: Action = "take"


class TrialAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`granted`, and either how long it lasts or which lease another one holds and for how long at most."""

    granted: bool
    token: str
    expires_in_ms: int = 0
    taken: LeaseName | None = None
    retry_in_s: float = 0.0


def ttl_s(limit_ms: int, policy: TrialsPolicy) -> int:
    """How long a lease of an attempt with this limit lasts, in whole seconds: the bucket counts no others."""
    return max(1, ceil(min(limit_ms / 1000 + policy.grace_s, policy.lease_max_s)))
