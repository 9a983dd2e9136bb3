"""What the folds remember: one state a scope, one a replica. Integers, strings and booleans only.

`ScopeState` is the same for a host, a credential and a model. What only few scopes need is a slot that
stays None until it is needed. A `Node` carries one scope's state together with links and marks that are no
part of the state and can be made anew from it.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

import msgspec

from sickbay_events.names import Scope, Target
from sickbay_events.outcome import Event

from .limits import HOUR_MS, RuleLimits

encode_sorted = msgspec.msgpack.Encoder(order="sorted").encode


class Recorded(msgspec.Struct, frozen=True):
    """One event as the log has it. `target` for outcomes and probes, `scope` for overrides, neither for a policy."""

    event: Event
    target: Target | None = None
    scope: Scope | None = None
    replica: str = ""
    seq: int = 0
    """Log sequence, from 1; 0 is the next one. At or below the fleet's own it was folded before and changes nothing."""
    time_ms: int = 0
    """Log time."""


class Hold(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """One hold of one rule; `began_seq` is its name (Rule 4, Holds)."""

    rule: str
    began_seq: int
    began_ms: int
    end_ms: int
    length_ms: int
    """What it was given when it began; a hold that begins again without growth gets the same."""
    proof: bool = False
    """It goes on as probation after its end."""
    kind: str | None = None
    status: int | None = None
    count: int = 0
    """Failures behind it, as they stood when it began."""
    evidence: str = ""
    """Whose points it rests on (`Points`); "" if it goes by none."""
    score: int = 0
    """Those points, as they stood when the target was first held."""
    first_ms: int = 0
    """When that was: a hold that begins again goes on with it."""
    every_ms: int = 0
    """How far apart its trials are at most, before the length of the hold makes them rarer."""
    trial_from_ms: int = 0
    """From when a leased trial is wanted, also before its end; 0: only after it."""
    by: str = ""
    """Token of the replica on whose word alone it rests; "" where it is everyone's."""
    last: str = ""
    """Token of the replica whose leased trial began it again."""
    nth: int = 1
    """1, and one more for each failed trial or new hold after it."""
    clean: int = 0
    """Clean leased trials of it."""
    uncheckable: int = 0
    """Answers on its probation that could not be checked."""
    later: int = 0
    """The same sort of evidence since it began: counted, moves nothing."""
    evidence_ms: int = 0
    """Newest outcome, other than neutral ones, at or after its end."""
    shown_over_ms: int = 0
    """End of the probation as the gate entry shows it: exact until evidence comes, then at most a minute long."""
    neutral: int = 0
    """Leased trials in a row that told nothing."""


class Past(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """A hold that is over: its name stays for the rule After, its number for growth."""

    began_seq: int
    end_ms: int
    """When it stopped denying."""
    over_ms: int
    """When its probation was over too."""
    nth: int = 1
    """Growth of a credential's holds goes by it."""


class Operator(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """The newest override of a scope, until it expires or is cleared (Rule 4.7)."""

    allow: bool
    seq: int
    time_ms: int
    end_ms: int
    reason: str
    actor: str


class Points(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """Points of one sort of evidence at one scope, and what it got over by itself (Rule 4.0)."""

    points: int = 0
    top: int = 0
    """Their highest since they were last 0."""
    since_ms: int = 0
    """Log time of the first failure since then."""
    newest_ms: int = 0
    """Log time of the newest one."""
    life_ms: int = 0
    """So long after it they are dropped."""
    events: int = 0
    """Failures and answers since they were last 0."""
    told: bool = False
    """They were one replica's word alone, and that was told: what comes down then teaches nothing."""
    permission: int = 0
    """Failures among those of `by` that are `permission_model`."""
    by: dict[str, list[int]] = {}
    """Replica -> failures, answers, log time of its newest failure; "" stands for all beyond the first 16."""
    record: list[int] = []
    """Half-day, the most failures in a row that came down to 0 by themselves in it, and in the one before it."""


class Sightings(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """Sightings of one signature (Rule 4.5). Hours are floor(log time / 1 h)."""

    counts: list[int]
    """By hour, as in `buckets`."""
    novel: bool = False
    """It was absent in the 24 h before its first sighting, and nobody was warned yet."""
    warned_hour: int = -1


class Notices(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """What may be worth a person's look at a scope (Rule 4.5)."""

    signatures: dict[str, Sightings] = {}
    """By the signature's token."""
    endpoints: dict[str, list[int]] = {}
    """Token of a model -> hour, wrong endpoints in it, 1 if that was warned of; only a host's."""
    no_charset_day: int = -1
    """The last day that warned of damaged answers without a charset."""


class ProbeState(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """Newest active checks (Rule 4.6); log times, 0: none, or a success came after it."""

    live_ms: int = 0
    """Newest liveness check that passed."""
    not_live_ms: int = 0
    """Newest one that failed."""
    ready_ms: int = 0
    """Newest readiness check that passed."""
    not_ready_ms: int = 0
    failures: int = 0
    """Readiness checks that failed in a row."""


class Refusals(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """Strikes of a credential (Rule 4.1)."""

    newest_ms: int = 0
    by: dict[str, int] = {}
    """Replica -> its strikes."""


class Ramp(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """Replicas come back by shares of a ring (Rule 5.2)."""

    rule: str
    """The rule whose hold came before it."""
    began_seq: int
    """The name that gives each replica its place in the ring."""
    from_ms: int
    end_ms: int
    prover: str = ""
    """Token of the replica whose answer ended the hold: it is always in."""


class ScopeState(msgspec.Struct, omit_defaults=True, gc=False):
    """All that is remembered of one host, credential or model."""

    last_seq: int = 0
    """Sequence and log time of its newest event."""
    last_ms: int = 0
    outcomes: int = 0
    answers: int = 0
    rejections: int = 0
    failed_otherwise: bool = False
    """It had an outcome that was neither a success nor a rejection."""
    good_ms: int = 0
    """Newest good answer, and the newest one of any other replica: enough to say of each replica whether
    another had one."""
    good_by: str = ""
    other_good_ms: int = 0
    other_good_by: str = ""
    clean_ms: int = 0
    """The same of clean samples: good answers that could be checked (Rule 4.4)."""
    clean_by: str = ""
    other_clean_ms: int = 0
    bad_kind: str | None = None
    """The newest outcome that was no success."""
    bad_status: int | None = None
    bad_ms: int = 0
    points: dict[str, Points] | None = None
    """By evidence: `strikes`, `throttles`, `faults`, `slow`, `bad` or `damage`."""
    fault_ms: int = 0
    """Newest fault that counted, for the word for its health."""
    holds: dict[str, Hold] | None = None
    """Rule -> its hold, until it is over."""
    past: dict[str, Past] | None = None
    """Rule -> its last hold that is over."""
    refusals: Refusals | None = None
    notices: Notices | None = None
    probes: ProbeState | None = None
    against_ms: int = 0
    """Newest evidence that spoke against the target, and whether nothing good came after it (Rule 4.6)."""
    is_against: bool = False
    word: str = "unknown"
    """Health as it was last told (Rule 4.6), and since when."""
    word_ms: int = 0
    ramp: Ramp | None = None
    operator: Operator | None = None
    cleared_seq: int = 0
    """Newest clear of this scope or a wider one that it has taken note of; a name for the rule After."""
    cleared_ms: int = 0
    cleared_shown_ms: int = 0
    """Until when the gate entry says so."""
    changed_seq: int = 0
    """The event that made the gate entry what it is."""
    changed_ms: int = 0
    released_by: str | None = None
    requests: dict[str, int] | None = None
    """Request hash (crc32, hex) -> log time of its newest outcome."""


class Boot(msgspec.Struct, gc=False):
    """One process start of a replica, for the rule Once."""

    highest: int
    missing: int
    """Bit i says that `highest - i` was not seen; bits 1 to 1,023. An unbroken run is 0."""
    heard_ms: int


class Replica:
    """One router machine as the log knows it. `key` is the token of its name."""

    __slots__ = (
        "boots",
        "dirty",
        "dropped",
        "dropped_ms",
        "dropped_since_ms",
        "hashed",
        "heard_ms",
        "hour",
        "key",
        "new_targets",
        "next_id",
        "prefix",
        "run",
        "warned_hour",
    )

    def __init__(self, key: str) -> None:
        self.key = key
        self.heard_ms = 0
        self.hour = 0
        self.new_targets = 0
        self.dropped = self.dropped_since_ms = self.dropped_ms = 0
        """Events about new targets for which there was no room, and log times of the first and the newest of them; an
        hour without any ends the count."""
        self.warned_hour = -1
        """The last hour that warned of its own decoding (Rule 4.5)."""
        self.boots: dict[str, Boot] = {}
        self.next_id = ""
        """The id that goes on an unbroken run, which is nearly every one: see `dedup`. No part of the state."""
        self.prefix = ""
        self.run: Boot | None = None
        self.dirty = True
        self.hashed = 0

    def to_data(self) -> list[Any]:
        """Its state; the missing bits as hex, since they are wider than any wire integer."""
        boots = {boot: [b.highest, b.heard_ms, f"{b.missing:x}"] for boot, b in self.boots.items()}
        dropped = [self.dropped, self.dropped_since_ms, self.dropped_ms]
        return [self.heard_ms, self.hour, self.new_targets, self.warned_hour, dropped, boots]

    def drop(self, now_ms: int) -> None:
        """There was no room for an event of this replica."""
        if not self.dropped or now_ms >= self.dropped_ms + HOUR_MS:
            self.dropped, self.dropped_since_ms = 0, now_ms
        self.dropped += 1
        self.dropped_ms = now_ms

    @classmethod
    def from_data(cls, key: str, data: list[Any]) -> Replica:
        """Read `to_data` back."""
        replica = cls(key)
        replica.heard_ms, replica.hour, replica.new_targets, replica.warned_hour, dropped, boots = data
        replica.dropped, replica.dropped_since_ms, replica.dropped_ms = dropped
        for boot, (highest, heard_ms, missing) in boots.items():
            replica.boots[boot] = Boot(highest, int(missing, 16), heard_ms)
        return replica

    def digest(self) -> int:
        """Hash of its state."""
        return hash_of("replica " + self.key, self.to_data())


class Route:
    """Answers to the calls of one chain in one hour of log time (Rule 4.5). `key` is the token of its name."""

    __slots__ = ("answers", "by_fallback", "dirty", "hashed", "hour", "key", "warned")

    def __init__(self, key: str) -> None:
        self.key = key
        self.hour = 0
        self.answers = 0
        self.by_fallback = 0
        """Those of them that were not by the first choice."""
        self.warned = False
        self.dirty = True
        self.hashed = 0

    def to_data(self) -> list[Any]:
        """Its state."""
        return [self.hour, self.answers, self.by_fallback, self.warned]

    @classmethod
    def from_data(cls, key: str, data: list[Any]) -> Route:
        """Read `to_data` back."""
        route = cls(key)
        route.hour, route.answers, route.by_fallback, route.warned = data
        return route

    def digest(self) -> int:
        """Hash of its state."""
        return hash_of("route " + self.key, self.to_data())


class Node:
    """One scope with its state, and links and marks that are no part of it."""

    __slots__ = (
        "children",
        "credential",
        "dirty",
        "due_ms",
        "gone",
        "has_pending_evidence",
        "hashed",
        "health_unchanged_until_ms",
        "host",
        "is_quick",
        "key",
        "limits",
        "scope",
        "state",
    )

    def __init__(self, key: str, scope: Scope, limits: RuleLimits, host: Node | None, credential: Node | None) -> None:
        self.key = key
        self.scope = scope
        self.limits = limits
        self.host = host
        self.credential = credential
        self.children: dict[str, Node] = {} if scope.model is None else _NO_CHILDREN
        """Narrower scopes in the state, by key."""
        self.state = ScopeState()
        self.dirty = True
        self.hashed = 0
        self.due_ms = 0
        """Its place in the queue of those that leave when idle."""
        self.gone = False
        """It has left the fleet's state; a new one may stand under its key."""
        self.is_quick = False
        """An ordinary success leaves by the quick exit."""
        self.has_pending_evidence = False
        """It has to take points off, too."""
        self.health_unchanged_until_ms = 0
        """Before this log time such a success leaves the word for its health as it is."""

    def digest(self) -> int:
        """Hash of its state."""
        return hash_of(self.key, self.state)


_NO_CHILDREN: dict[str, Node] = {}
NEVER: Final = 1 << 62


def hash_of(name: str, value: object) -> int:
    """128 bits that say which part this is and what it holds; equal in every process."""
    return int.from_bytes(blake2b(encode_sorted((name, value)), digest_size=16).digest(), "big")
