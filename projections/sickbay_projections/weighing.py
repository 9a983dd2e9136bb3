"""What entries say at one time: for how long that stands, what denies, which leases a trial needs. No state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from sickbay_events import Decision, GateEntry
from sickbay_events.view import HoldView
from sickbay_projections.decide import wants_early
from sickbay_projections.rules.ramp import in_from_ms

LOCAL_EARLY_AFTER_MS: Final = 1_000
"""A hold of one's own that the cluster does not know is tried early only when the cluster has had time to know."""

Entries: TypeAlias = list[GateEntry | None]
"""Entries of host, credential and model, in that order."""


class LeaseNeeded(NamedTuple):
    """One lease that a trial needs."""

    scope: str
    """Scope key."""
    rule: str
    began_seq: int
    end_ms: int
    """End of the hold, log time."""
    early: bool
    """Wanted before that end: without it the call may not be made."""
    every_ms: int
    """The hold wants an early trial this often; 0: one."""
    is_local: bool
    """A hold of this replica's own overlay, whose name says nothing to others."""


def moments(entries: Entries, now_ms: int, replica: str) -> Iterator[int]:
    """The moments after `now_ms` at which time alone may change what these entries say."""
    for entry in entries:
        if entry is None:
            continue
        found = [entry.expires_ms]
        if entry.allow is not None:
            found.append(entry.allow.end_ms)
        if entry.ramp is not None:
            found += (entry.ramp.from_ms, in_from_ms(entry.ramp, replica), entry.ramp.end_ms)
        for hold in entry.holds:
            found += (hold.end_ms, hold.over_ms, hold.trial_from_ms)
        yield from [moment for moment in found if moment > now_ms]


def leases_needed(
    keys: tuple[str, str, str], cluster: Entries, own: Entries, now_ms: int, *, is_stale: bool
) -> list[LeaseNeeded]:
    """The leases that a trial needs, widest scope first; empty if there is none to be had."""
    # The overlay knows of a hold some milliseconds before the cluster does; the cluster's is the one to try for.
    names = {(at, hold.rule) for at, entry in enumerate(cluster) if entry is not None for hold in entry.holds}
    found: list[LeaseNeeded] = []
    for entries, is_local in ((cluster, False), (own, True)):
        for at, hold in _standing(entries):
            early = now_ms < hold.end_ms
            if early and not wants_early(hold, now_ms):
                return []
            if not early and not (hold.proof and now_ms < hold.over_ms):
                continue
            is_young = not is_stale and now_ms < hold.began_ms + LOCAL_EARLY_AFTER_MS
            if early and is_local and is_young and (at, hold.rule) not in names:
                return []
            found.append(
                LeaseNeeded(keys[at], hold.rule, hold.began_seq, hold.end_ms, early, hold.trial_every_ms, is_local)
            )
    return sorted(found, key=lambda lease: (lease.scope.count("."), lease.is_local))


def denying(entries: Entries, now_ms: int) -> list[HoldView]:
    """Holds that deny now."""
    return [hold for _, hold in _standing(entries) if now_ms < hold.end_ms]


def _standing(entries: Entries) -> Iterator[tuple[int, HoldView]]:
    """Holds that count, with the place of their scope: what is older than a clear of a wider one is void, what is in
    shadow lets pass."""
    cleared_seq = 0
    for at, entry in enumerate(entries):
        if entry is not None:
            yield from [(at, hold) for hold in entry.holds if hold.enforced and hold.began_seq >= cleared_seq]
            cleared_seq = max(cleared_seq, entry.cleared_seq or 0)


def alive(entry: GateEntry | None, now_ms: int) -> GateEntry | None:
    """The entry, unless its time is over."""
    return entry if entry is not None and not 0 < entry.expires_ms <= now_ms else None


def stricter(cluster: Decision, local: Decision) -> Decision:
    """Denied until the last end of both; on probation in either, a trial is wanted; before the end one may be tried
    for if both want it (SPEC 5.1)."""
    if not local.allowed:
        if cluster.allowed:
            return local
        longer = local if local.retry_in_s > cluster.retry_in_s else cluster
        return longer if local.trial == cluster.trial else replace(longer, trial=False)
    return local if cluster.allowed and local.trial and not cluster.trial else cluster
