"""(gate entries, asked-at) -> Decision (SPEC 5.1). The gate and the fleet ask the same function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sickbay_events.names import token
from sickbay_events.view import AllowView, Decision, GateEntry, HoldView

from .entries import REASONS


def decide_entries(
    entries: Sequence[GateEntry | None],
    at_ms: int,
    replica: str = "",  # noqa: ARG001 - whose view: the ramp goes by it
    *,
    seq: int = 0,
    age_s: float = 0.0,
    source: Literal["cluster", "local", "stale"] = "cluster",
) -> Decision:
    """Decide for one target from its entries of host, credential and model, in that order (widest first).

    `at_ms` is log time. None stands for a scope without an entry. Denied until the last end over scopes and
    rules; at equal ends the widest scope is named. A hold older than a wider scope's clear is void.
    """
    last: HoldView | None = None
    named: GateEntry | None = None
    probation: HoldView | None = None
    proving: GateEntry | None = None
    allow: AllowView | None = None
    allowing: GateEntry | None = None
    operator: HoldView | None = None
    early = True
    cleared_seq = 0
    for entry in entries:
        if entry is None:
            continue
        for hold in entry.holds:
            if hold.began_seq < cleared_seq or not hold.enforced:
                continue
            if at_ms < hold.end_ms:
                early = early and hold.early
                if last is None or hold.end_ms > last.end_ms:
                    last, named = hold, entry
                if hold.rule == "operator" and (operator is None or hold.end_ms > operator.end_ms):
                    operator, holding = hold, entry
            elif probation is None and hold.proof and at_ms < hold.over_ms:
                probation, proving = hold, entry
        found = entry.allow
        if (
            found is not None
            and found.seq >= cleared_seq
            and at_ms < found.end_ms
            and (allow is None or found.end_ms > allow.end_ms)
        ):
            allow, allowing = found, entry
        if entry.cleared_seq is not None and entry.cleared_seq > cleared_seq:
            cleared_seq = entry.cleared_seq
    if allow is not None and allowing is not None:
        if operator is None:
            return Decision(
                allowed=True,
                reason="allowed_by_operator",
                scope=scope_key(allowing),
                rule="operator",
                began_seq=allow.seq,
                seq=seq,
                age_s=age_s,
                source=source,
            )
        if allow.end_ms >= operator.end_ms:
            # An operator's hold wins over the allow, which then still wins over what the folds say.
            last, named, early = operator, holding, False
    if last is not None and named is not None:
        return Decision(
            allowed=False,
            reason=REASONS.get(last.rule, last.rule),
            scope=scope_key(named),
            rule=last.rule,
            retry_in_s=(last.end_ms - at_ms) / 1000,
            trial=early,
            began_seq=last.began_seq,
            seq=seq,
            age_s=age_s,
            source=source,
        )
    if probation is not None and proving is not None:
        return Decision(
            allowed=True,
            reason="ok",
            scope=scope_key(proving),
            rule=probation.rule,
            trial=True,
            began_seq=probation.began_seq,
            seq=seq,
            age_s=age_s,
            source=source,
        )
    return Decision(allowed=True, reason="ok", seq=seq, age_s=age_s, source=source)


def scope_key(entry: GateEntry) -> str:
    """The scope key of the scope that an entry is about."""
    host, _, alias = entry.provider.partition("#")
    if entry.scope == "host":
        return token(host)
    if entry.model is None:
        return f"{token(host)}.{token(alias)}"
    return f"{token(host)}.{token(alias)}.{token(entry.model)}"
