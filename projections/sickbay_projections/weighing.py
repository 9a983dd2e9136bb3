"""What entries say at one time: for how long that stands, what denies, which leases a trial needs. No state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from sickbay_events import Decision, GateEntry
from sickbay_events.view import HoldView
from sickbay_projections.decide import denies, is_on_probation, trial_from_ms
from sickbay_projections.rules.ramp import in_from_ms

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
            if hold.last == replica:
                found.append(hold.trial_from_ms + hold.behind_ms)
        yield from [moment for moment in found if moment > now_ms]


def leases_needed(
    keys: tuple[str, str, str], cluster: Entries, own: Entries, now_ms: int, *, replica: str, replicas: int
) -> list[LeaseNeeded]:
    """The leases that a trial needs, widest scope first; empty if there is none to be had. `own` without what the
    cluster's holds make silent (`without_shared`)."""
    found: list[LeaseNeeded] = []
    for entries, is_local in ((cluster, False), (own, True)):
        for at, hold in _standing(entries):
            early = denies(hold, now_ms, replica)
            if early and not 0 < trial_from_ms(hold, replica, replicas) <= now_ms:
                return []
            if early or is_on_probation(hold, now_ms):
                found.append(LeaseNeeded(keys[at], hold.rule, hold.began_seq, hold.end_ms, early, is_local))
    return sorted(found, key=lambda lease: (lease.scope.count("."), lease.is_local))


def without_shared(cluster: Entries, own: Entries, now_ms: int) -> Entries:
    """A replica's own entries without the holds that the fleet has too, by scope and rule, up to their very release:
    there the fleet's is the one to go by and to try (Rule 5.3). Not to be asked of a stale view."""
    found: Entries = []
    for fleets, mine in zip(cluster, own, strict=True):
        if mine is not None and fleets is not None:
            rules = {hold.rule for hold in fleets.holds if now_ms < max(hold.end_ms, hold.over_ms)}
            if any(hold.rule in rules for hold in mine.holds):
                mine = replace(mine, holds=[hold for hold in mine.holds if hold.rule not in rules])
        found.append(mine)
    return found


def denying(entries: Entries, now_ms: int, replica: str) -> list[HoldView]:
    """Holds that deny this replica now."""
    return [hold for _, hold in _standing(entries) if denies(hold, now_ms, replica)]


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
    for if both want it (Rule 5.1)."""
    if not local.allowed:
        if cluster.allowed:
            return local
        if local.trial != cluster.trial:
            return cluster if local.trial else local  # the one that wants no trial yet
        return local if local.retry_in_s > cluster.retry_in_s else cluster
    return local if cluster.allowed and local.trial and not cluster.trial else cluster
