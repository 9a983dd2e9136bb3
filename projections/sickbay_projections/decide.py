"""(gate entries, asked-at) -> Decision (Rule 5.1). The gate and the fleet ask the same function."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from sickbay_events.names import Scope
from sickbay_events.view import AllowView, Decision, GateEntry, HoldView, RampView

from .entries import REASONS
from .rules.ramp import in_from_ms


class _Found:
    """What the entries say at one time: the denials, an allow, a probation, each with the entry that says so."""

    __slots__ = ("allow", "due_ms", "early", "last", "operator", "probation", "ramp")

    def __init__(self) -> None:
        self.last: tuple[HoldView, GateEntry] | None = None
        self.operator: tuple[HoldView, GateEntry] | None = None
        self.probation: tuple[HoldView, GateEntry] | None = None
        self.allow: tuple[AllowView, GateEntry] | None = None
        self.ramp: tuple[RampView, GateEntry, int] | None = None
        """With the log time from which this replica is in."""
        self.early = True
        """Every denying hold wants an early trial."""
        self.due_ms = 0
        """When the last of those is wanted; of a hold that wants none, its end."""

    def deny(self, from_ms: int, hold: HoldView, at_ms: int) -> None:
        """Take note of a denying hold, whose trial is wanted from `from_ms` on (0: never)."""
        self.early = self.early and 0 < from_ms <= at_ms
        self.due_ms = max(self.due_ms, from_ms or hold.end_ms)


def decide_entries(
    entries: Sequence[GateEntry | None],
    at_ms: int,
    replica: str = "",
    *,
    replicas: int = 0,
    seq: int = 0,
    age_s: float = 0.0,
    source: Literal["cluster", "local", "stale"] = "cluster",
) -> Decision:
    """Decide for one target from its entries of host, credential and model, in that order (widest first).

    `at_ms` is log time; None stands for a scope without an entry. `replica` is whose view it is and `replicas` how
    many were heard of in the last 10 min: a ramp goes by both. `seq`, `age_s` and `source` are passed on
    into the answer. Denied until the last end over scopes and rules, of which the widest scope is named at
    equal ends; an operator's hold of any scope wins over an allow, and that over the folds.
    """
    found = _find(entries, at_ms, replica, replicas)
    deciding, ramp = found.last, found.ramp
    if found.allow is not None:
        allow, entry = found.allow
        if found.operator is None:
            return Decision(
                allowed=True,
                reason="allowed_by_operator",
                scope=scope_key(entry),
                rule="operator",
                began_seq=allow.seq,
                seq=seq,
                age_s=age_s,
                source=source,
            )
        if allow.end_ms >= found.operator[0].end_ms:
            # When the operator's hold ends the allow still stands, whatever the folds say until then.
            deciding, ramp = found.operator, None
    if ramp is not None and (deciding is None or ramp[2] > deciding[0].end_ms):
        return Decision(
            allowed=False,
            reason="ramp",
            scope=scope_key(ramp[1]),
            rule=ramp[0].rule,
            retry_in_s=(ramp[2] - at_ms) / 1000,
            began_seq=ramp[0].began_seq,
            seq=seq,
            age_s=age_s,
            source=source,
        )
    named = deciding or found.probation
    if named is None:
        return Decision(allowed=True, reason="ok", seq=seq, age_s=age_s, source=source)
    hold, entry = named
    due_ms = found.due_ms if deciding is found.last and found.due_ms > at_ms else hold.end_ms
    return Decision(
        allowed=deciding is None,
        reason=REASONS.get(hold.rule, hold.rule) if deciding else "ok",
        scope=scope_key(entry),
        rule=hold.rule,
        retry_in_s=(due_ms - at_ms) / 1000 if deciding else 0.0,
        trial=found.early if deciding else True,
        began_seq=hold.began_seq,
        seq=seq,
        age_s=age_s,
        source=source,
    )


def _find(entries: Sequence[GateEntry | None], at_ms: int, replica: str, replicas: int) -> _Found:
    found, cleared_seq = _Found(), 0
    for entry in entries:
        if entry is None:
            continue
        for hold in entry.holds:
            # What is older than a clear of a wider scope is void; what is in shadow lets pass.
            if hold.began_seq < cleared_seq or not hold.enforced:
                continue
            if denies(hold, at_ms, replica):
                found.deny(trial_from_ms(hold, replica, replicas), hold, at_ms)
                if found.last is None or hold.end_ms > found.last[0].end_ms:
                    found.last = hold, entry
                if hold.rule == "operator" and (found.operator is None or hold.end_ms > found.operator[0].end_ms):
                    found.operator = hold, entry
            elif found.probation is None and is_on_probation(hold, at_ms):
                found.probation = hold, entry
        allow = entry.allow
        stands = allow is not None and allow.seq >= cleared_seq and at_ms < allow.end_ms
        if allow is not None and stands and (found.allow is None or allow.end_ms > found.allow[0].end_ms):
            found.allow = allow, entry
        ramp = entry.ramp
        stands = ramp is not None and ramp.began_seq >= cleared_seq
        if ramp is not None and stands and replicas >= ramp.replicas:
            in_ms = in_from_ms(ramp, replica)
            if at_ms < in_ms and (found.ramp is None or in_ms > found.ramp[2]):
                found.ramp = ramp, entry, in_ms
        cleared_seq = max(cleared_seq, entry.cleared_seq or 0)
    return found


def denies(hold: HoldView, at_ms: int, replica: str) -> bool:
    """Whether a hold keeps this replica away: before its end, unless it rests on the word of another one alone."""
    return at_ms < hold.end_ms and hold.by in ("", replica)


def is_on_probation(hold: HoldView, at_ms: int) -> bool:
    """Whether a hold that does not deny wants its calls to be leased trials, one at a time."""
    return hold.proof and at_ms < hold.over_ms


def trial_from_ms(hold: HoldView, replica: str, replicas: int) -> int:
    """Log time from which a leased trial of this replica is wanted before the end; 0: none is."""
    is_behind = bool(hold.last) and hold.last == replica and replicas >= 2
    return hold.trial_from_ms + hold.behind_ms if is_behind else hold.trial_from_ms


def scope_key(entry: GateEntry) -> str:
    """The scope key of the scope that an entry is about."""
    return _scope_key(entry.provider, entry.model, entry.scope)


@lru_cache(maxsize=16_384)
def _scope_key(provider: str, model: str | None, scope: str) -> str:
    host, _, alias = provider.partition("#")
    if scope == "host":
        return Scope(host).key
    return Scope(host, alias, model).key
