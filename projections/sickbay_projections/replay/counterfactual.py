"""What a policy would have made of a history that was recorded under another one.

    world = World("a.toml", policy)
    world.take(subject, event, seq, time_ms, target)   # True: under this policy the call would not have been made

A call that a hold of this policy would have kept back says nothing to its folds: in that world it was never made. So
its outcome is withheld, and what holds next follows from the calls that would have been let through, as it would have.
How a call is judged:
- It is asked about when it began: its log time less its wait and its length. With a `seen_seq` it knew the holds up to
  there (sequences are the log's, whichever policy reads them); without one, those that stood by the clock.
- The trials that a hold wants, before its end and on probation, are made by the calls that came then, one at a time; a
  call that began while one ran is kept back. A lease that was recorded stands where it names a hold of this world.
- A hold that rests on the word of one replica keeps back that replica's calls; the others' are its trials.
- A forced call, and one that an operator's `allow` covers, is made.
What only the overlay of one replica would keep back (a short throttle, the hold of a single witness) and the shares of
a ramp are left out: they are of seconds, and of one replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from sickbay_events.codec import read_subject
from sickbay_events.derived import DerivedEvent, Released, TargetHeld
from sickbay_events.errors import Poison
from sickbay_events.names import Scope, Target
from sickbay_events.outcome import CallAnswered, CallOutcome, Event, Lease, Override, PolicyChanged
from sickbay_events.policy import Policy
from sickbay_events.view import HoldView

from ..fold import Fleet

RECENT: Final = 4
"""Spells of a scope, counted from the newest, at whose time a call may have begun: a call lasts at most so long."""
AFTER_MS: Final = 60_000
"""A refusal is told by the minute, and a trial or a ramp may refuse a little after the end."""


class Spell(msgspec.Struct, kw_only=True):
    """One hold of a scope from its beginning to its end, release or extension."""

    rule: str
    began_seq: int
    cause_seq: int
    from_ms: int
    end_ms: int
    """Its end as it came to be: that of the hold, or the release before it."""
    kind: str | None = None
    numbers: dict[str, int] = {}
    by: str | None = None
    """What ended it before its end."""
    ended_seq: int = 0
    """The event that did; 0: none."""


class World:
    """One policy over a history."""

    def __init__(self, name: str, policy: Policy | None, *, pinned: bool = True) -> None:
        """`policy` None: nothing is ever held. Not `pinned`: it holds until the log brings its own."""
        self.name = name
        self.spells: dict[str, list[Spell]] = {}
        """By scope key, in order of their beginnings."""
        self.told: Sequence[TargetHeld | Released] = ()
        """What followed from the last event: enforced holds of the fleet, and their releases."""
        self._pinned = pinned
        self._fleet = None if policy is None else Fleet(policy)
        self._trials: dict[str, int] = {}
        """Until when the last trial of a target ran, by its key."""

    def take(self, subject: str, event: Event | Poison, seq: int, time_ms: int, target: Target | None) -> bool:
        """Fold one event as it would have been; True for a call that would not have been made."""
        self.told = ()
        fleet = self._fleet
        if fleet is None:
            return False
        if self._pinned and type(event) is PolicyChanged:
            fleet.passed(seq, time_ms, "policy")
            return False
        if (
            target is not None
            and isinstance(event, CallOutcome | CallAnswered)
            and any(key in self.spells for key in target.keys)
        ):
            made = self._asked(event, target, read_subject(subject).replica, seq, time_ms)
            if made is None:
                fleet.passed(seq, time_ms, "refused")
                return True
            event = made
        derived = fleet.apply_many((subject,), (event,), (seq,), (time_ms,))
        if derived:
            self._note(derived)
        if isinstance(event, Override) and event.action == "clear" and (scope := read_subject(subject).scope):
            self._clear(scope, seq, time_ms)
        return False

    def _clear(self, scope: Scope, seq: int, time_ms: int) -> None:
        """An operator ended every hold of a scope and below it; the folds say so only when they next meet each."""
        for key, spells in self.spells.items():
            if key == scope.key or key.startswith(scope.key + "."):
                for spell in spells[-RECENT:]:
                    _end(spell, seq, time_ms, "clear")

    def refused(self, target: Target, minute_ms: int) -> bool:
        """Whether this world, too, had a hold of the target in a minute, or shortly before it."""
        return any(
            spell.from_ms < minute_ms + 60_000 and minute_ms < spell.end_ms + AFTER_MS
            for key in target.keys
            for spell in self.spells.get(key, ())
        )

    def _asked(
        self, event: CallOutcome | CallAnswered, target: Target, replica: str, seq: int, time_ms: int
    ) -> CallOutcome | CallAnswered | None:
        """The event as it would have been told; None for a call that would not have been made."""
        is_outcome = isinstance(event, CallOutcome)
        if isinstance(event, CallOutcome) and event.forced:
            return event
        start_ms, keys = began_ms(event, time_ms), target.keys
        seen_seq = event.seen_seq if event.seen_seq is not None and event.seen_seq < seq else None
        leases = {(lease.rule, lease.began_seq) for lease in event.trial or ()}
        standing = [
            spell
            for key in keys
            for spell in self.spells.get(key, ())[-RECENT:]
            if _stood(spell, start_ms, seen_seq) and (spell.rule, spell.began_seq) not in leases
        ]
        is_free = start_ms >= self._trials.get(keys[2], 0)
        assert self._fleet is not None
        if standing:
            decision = self._fleet.decide(target, start_ms, replica)
            if decision.reason == "allowed_by_operator":
                return event
            if not decision.trial or not is_free or not is_outcome:
                return None
            return self._leased(event, keys[2], standing, time_ms)
        probation = list(self._on_probation(keys, start_ms, seen_seq)) if is_outcome else []
        if not probation or any((hold.rule, hold.began_seq) in leases for hold in probation):
            return event
        return self._leased(event, keys[2], probation, time_ms) if is_free else None

    def _leased(
        self, event: CallOutcome | CallAnswered, key: str, holds: Iterable[Spell | HoldView], time_ms: int
    ) -> CallOutcome | CallAnswered:
        self._trials[key] = time_ms
        return msgspec.structs.replace(event, trial=[Lease(hold.rule, hold.began_seq) for hold in holds])

    def _on_probation(self, keys: tuple[str, str, str], start_ms: int, seen_seq: int | None) -> Iterable[HoldView]:
        assert self._fleet is not None
        for key in keys:
            entry = self._fleet.entry(key) if key in self.spells else None
            for hold in entry.holds if entry is not None else ():
                knew = seen_seq is None or seen_seq >= hold.began_seq
                if hold.proof and hold.enforced and knew and hold.end_ms <= start_ms < hold.over_ms:
                    yield hold

    def _note(self, derived: list[DerivedEvent]) -> None:
        """Keep what was held when."""
        told = [
            event
            for event in derived
            if isinstance(event, TargetHeld | Released) and event.enforced and getattr(event, "replica", None) is None
        ]
        for event in told:
            spells = self.spells.setdefault(event.scope.key, [])
            last = next((spell for spell in reversed(spells) if spell.rule == event.rule), None)
            if isinstance(event, Released):
                if last is not None and last.began_seq == event.began_seq:
                    _end(last, event.cause_seq, event.time_ms, event.by)
            elif last is not None and last.began_seq == event.began_seq:
                last.end_ms = event.end_ms
            else:
                if last is not None:
                    last.end_ms = max(last.from_ms, min(last.end_ms, event.time_ms))
                spells.append(
                    Spell(
                        rule=event.rule,
                        began_seq=event.began_seq,
                        cause_seq=event.cause_seq,
                        from_ms=event.time_ms,
                        end_ms=event.end_ms,
                        kind=event.kind,
                        numbers=event.numbers,
                    )
                )
        self.told = told


def began_ms(event: CallOutcome | CallAnswered, time_ms: int) -> int:
    """The log time at which a call began; one of unknown length is taken to have begun when it was told."""
    took_ms = event.took_ms if isinstance(event, CallOutcome) else event.ttft_ms
    return time_ms - round((event.queued_ms or 0) + (took_ms or 0))


def _end(spell: Spell, seq: int, time_ms: int, by: str) -> None:
    if time_ms < spell.end_ms:
        spell.end_ms, spell.ended_seq, spell.by = max(time_ms, spell.from_ms), seq, by


def _stood(spell: Spell, start_ms: int, seen_seq: int | None) -> bool:
    """Whether a call that began then knew of this hold, and it stood."""
    if seen_seq is None:
        return spell.from_ms <= start_ms < spell.end_ms
    if seen_seq < spell.began_seq or (spell.ended_seq and seen_seq >= spell.ended_seq):
        return False
    return start_ms < spell.end_ms
