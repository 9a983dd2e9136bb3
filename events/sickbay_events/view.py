"""The gate's view on the wire: entries, the checkpoint and the policy in force (docs/wire.md).

One line of JSON each; what a person asks first comes first. All times are log time in milliseconds since
the Unix epoch, with RFC 3339 beside them for people.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

CHECKPOINT_KEY: Final = "=.0"
"""In the place of a scope key. No target has it, since the empty provider is no target."""
POLICY_KEY: Final = "=.1"
GATE_PREFIX: Final = "gate."
TARGET_PREFIX: Final = "target."


class HoldView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One hold of a scope, as a gate needs it."""

    rule: str
    began_seq: int
    """The sequence of the event that began it: its name."""
    end_ms: int
    proof: bool = False
    """After its end it goes on as probation."""
    over_ms: int = 0
    """When its probation is over without further evidence; `end_ms` if it has none."""
    until: str = ""
    """`end_ms` for people."""
    kind: str | None = None
    """The kind of the outcome that began it."""
    status: int | None = None
    count: int = 0
    """Failures that were behind it."""
    by: str = ""
    """The replica on whose word alone it rests: for every other one it is on probation (Rule 4.0). Empty: no one's."""
    n: int = 1
    """1 for a hold that has just begun, one more for each trial that failed since."""
    trial_from_ms: int = 0
    """Log time from which a leased trial is wanted, also before its end; 0: only after it."""
    every_ms: int = 0
    """How far apart its trials are at most, before the length of the hold makes them rarer."""
    last: str = ""
    """The replica whose trial failed last: it waits `behind_ms` longer, where two or more replicas are heard of."""
    behind_ms: int = 5_000
    began_ms: int = 0
    enforced: bool = True
    """False in shadow: the gate lets pass."""
    reason: str | None = None
    actor: str | None = None


class AllowView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An operator's `allow` of a scope."""

    seq: int
    end_ms: int
    until: str = ""
    reason: str = ""
    actor: str = ""


class RampView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Replicas come back by shares of a ring (Rule 5.2)."""

    began_seq: int
    """With a replica's name it gives the replica's place in the ring."""
    from_ms: int
    end_ms: int
    rule: str = "breaker"
    """The rule whose hold came before it."""
    percents: tuple[int, ...] = (10, 25, 50)
    """Share of the ring that is in, step by step; the steps are equally long."""
    replicas: int = 4
    """A fleet of fewer has no ramp."""
    prover: str = ""
    """The replica whose answer ended the hold: it is always in."""


class GateEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a gate must know of one scope. A usable scope has no entry."""

    provider: str
    model: str | None = None
    """None for a host's or a credential's entry."""
    scope: Literal["host", "credential", "model"] = "model"
    until: str = ""
    """The last end, for people; empty for a release."""
    reason: str = ""
    """The reason a decision would give, or `released`."""
    holds: list[HoldView] = []
    allow: AllowView | None = None
    ramp: RampView | None = None
    cleared_seq: int | None = None
    """Sequence of the newest `clear`, kept for 10 min: what started before it is statistics."""
    by: str | None = None
    """What ended the last hold, in an entry without holds."""
    seq: int = 0
    """Log sequence of the event that made the entry what it is."""
    time_ms: int = 0
    """Log time of that event."""
    expires_ms: int = 0
    """Log time after which the entry says nothing any more; the broom may take it."""
    at: str = ""
    v: int = 1


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who writes, how far the log is folded, and what the view held at one bucket revision."""

    seq: int
    time_ms: int
    """Log time of that event."""
    writer: str
    """Name and boot of the projector that wrote it."""
    fold: int
    """Fold version."""
    policy_seq: int = 0
    revision: int = 0
    """Bucket revision as of which `entries` and `digest` count."""
    entries: int = 0
    digest: str = ""
    """Sum mod 2^128, 32 hex digits, of one hash an entry."""
    log_created: str = ""
    """Creation time of the log's stream: says which log this is."""
    wrote_ms: int = 0
    """The writer's log clock when it wrote this: moves on also when no event comes."""
    live: bool = True
    """False while it still catches up."""
    replicas: int = 0
    """Replicas heard of in the last 10 min, for ramps."""
    told_seq: int = 0
    """Every derived event up to this log sequence stands in its stream."""
    marked_seq: int = 0
    """The last log sequence at which the digest of the whole state was taken: a multiple of 16,384."""
    marked_digest: str = ""
    pinned: str = ""
    """Digest of a policy that counts in the place of the log's, of a projector beside the running one; else empty."""
    v: int = 1


class PolicyInForce(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The policy that the log says."""

    seq: int
    policy: dict[str, Any]
    v: int = 1


class Decision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """May this target be called now? (Rule 5.1)"""

    allowed: bool
    reason: str
    """`ok`, `quarantined`, `throttled`, `breaker_open`, `degraded`, `credential`, `held_by_operator`,
    `allowed_by_operator`, `trial_taken`, `ramp` or `no_target`."""
    scope: str | None = None
    """Scope key that decided, None when nothing did."""
    rule: str | None = None
    retry_in_s: float = 0.0
    """Time truly left until a leased trial is wanted, or (one is by now, or never) until the denial ends; 0 when
    allowed."""
    trial: bool = False
    """A lease is wanted: on probation, or (with `allowed` False) before the end."""
    began_seq: int | None = None
    """Name of the hold that decided."""
    seq: int = 0
    """Last event behind the answer."""
    age_s: float = 0.0
    """Age of the mirror, seconds since a live projector last wrote a checkpoint."""
    source: Literal["cluster", "local", "stale"] = "cluster"
