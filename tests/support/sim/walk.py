"""Goes through the log afterwards, event by event.

It states what the rules say must hold apart from the code that makes it so: no thresholds' bookkeeping, only what may
never be, whatever the bookkeeping. The real fold runs beside it, since what is checked is what that fold shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from typing import TYPE_CHECKING, Any, Final

from sickbay_events import (
    KINDS,
    CallAnswered,
    CallOutcome,
    Event,
    GateEntry,
    Override,
    Poison,
    Policy,
    PolicyChanged,
    ProbeResult,
    Released,
    TargetHeld,
    decode,
    read_subject,
)
from sickbay_events.codec import derived_id
from sickbay_events.lease_wire import LeaseName
from sickbay_events.outcome import Lease
from sickbay_events.view import HoldView
from sickbay_projections import Fleet, Recorded

from .server import Stream
from .tallies import LESSONS, Tally, distance_ms, farthest_ms, is_certain_answer, spoken_of, word_fault
from .watch import lease_subject
from .world import POLICY

if TYPE_CHECKING:
    pass

GROUP_OF: Final = {"quarantine": "rejection", "breaker": "fault", "credential": "auth", "degraded": "degraded"}
CREDENTIAL_STRIKES: Final = 3
"""So many refusals at least are behind every hold of a credential that is not a trial's (Rule 4.1)."""
EARLY_MS: Final = 300
"""A router's notion of log time may be ahead by so much."""


class Name:
    """What a hold that is over leaves behind."""

    __slots__ = ("began_seq", "end_ms", "length_ms", "nth", "over_ms", "score")

    def __init__(self, began_seq: int, end_ms: int, length_ms: int, nth: int) -> None:
        self.began_seq, self.end_ms, self.length_ms, self.nth = began_seq, end_ms, length_ms, nth
        self.over_ms: int | None = None
        self.score = 0
        """Points that began the first of these in a row."""


class Walk:
    """Goes through a log. `broken` is what does not hold, `derived` the ids of what follows from it.

    `stepped_back`: its clock went back before its first event, or in events that it has lost. `freed`: the subjects of
    leases that were taken away from their holders.
    """

    def __init__(self, log: Stream, *, stepped_back: bool = False, freed: Set[str] = frozenset()) -> None:
        self.fleet = Fleet(Policy())
        self.log = log
        self.broken: list[str] = []
        self.derived: list[str] = []
        self.repeats = self.poison = 0
        self.counts: Counter[str] = Counter()
        self.holds_begun: Counter[str] = Counter()
        self._ids: set[tuple[str, str]] = set()
        self._shown: dict[str, GateEntry] = {}
        self._names: dict[tuple[str, str], Name] = {}
        self._cleared: dict[str, tuple[int, int]] = {}
        self._bad: dict[str, list[tuple[int, str, str, int]]] = {}
        """By model key: (time, replica, group, sequence) of each outcome that can count."""
        self._good: dict[str, dict[str, tuple[int, int]]] = {}
        """By model key and replica: time and sequence of its newest good answer."""
        self._clean: dict[str, dict[str, tuple[int, int]]] = {}
        """The same of its newest clean sample, the good answer of Rule 4.4."""
        self._trials_moved: dict[LeaseName, list[tuple[int, int]]] = {}
        """By the name of a hold: when its next trial was moved, and to when it had been before."""
        self._requests: dict[tuple[str, str], int] = {}
        self._tallies: dict[tuple[str, str], Tally] = {}
        self.stepped_back, self.freed = stepped_back, freed

    def go(self) -> None:
        """Every event of the log, in order."""
        expected = 0
        for seq, message in self.log.messages.items():
            for gap in range(expected + 1, seq):
                self.fleet.passed(gap, self.fleet.time_ms, "gap")
            expected = seq
            time_ms = message.time_ns // 1_000_000
            try:
                where = read_subject(message.subject)
                event = decode(message.subject, message.payload)
            except Poison as poison:
                self.poison += 1
                self.fleet.passed(seq, time_ms, poison.reason)
                continue
            self._one(Recorded(event, where.target, where.scope, where.replica, seq=seq, time_ms=time_ms))

    def _says(self, seq: int, what: str) -> None:
        self.broken.append(f"log sequence {seq}: {what}")

    def _one(self, recorded: Recorded) -> None:
        fleet, event, seq = self.fleet, recorded.event, recorded.seq
        before_ms = fleet.time_ms
        old = self._standing(recorded)
        derived = fleet.apply(recorded)
        now_ms = fleet.time_ms
        self.derived += [derived_id(one, self.log.created) for one in derived]
        if now_ms < before_ms:
            self._step_back(now_ms)
        self.stepped_back = self.stepped_back or recorded.time_ms < before_ms
        first = self._is_first(recorded)
        if first and isinstance(event, CallOutcome | CallAnswered):
            self._note(recorded, now_ms)
        if isinstance(event, Override) and event.action == "clear" and recorded.scope is not None:
            self._cleared[recorded.scope.key] = (seq, now_ms)
            for (key, rule), tally in self._tallies.items():
                if key == recorded.scope.key or key.startswith(recorded.scope.key + "."):
                    self._tallies[key, rule] = Tally(tally.lesson)
        changed = fleet.take_changed()
        for key in changed:
            self._moved(key, event, seq, now_ms, derived)
        if not first and derived:
            self._says(seq, f"an event that was folded before led to {derived}")  # Rule 4, Once
        for one in derived:
            if one.cause_seq != seq:
                self._says(seq, f"a derived event names another cause: {one}")
            if isinstance(one, TargetHeld) and one.replica is None and one.rule != "operator":
                self._began(one, event, seq, now_ms)
            elif isinstance(one, Released):
                name = self._names.get((one.scope.key, one.rule))
                if name is not None:
                    name.over_ms = now_ms
                    if one.by == "clear":
                        name.nth = 0
                    elif one.rule in LESSONS:
                        self._tally(one.scope.key, one.rule).over(name.score, by=one.by)
        if first:
            self._check_standing(recorded, old, now_ms)

    def _is_first(self, recorded: Recorded) -> bool:
        event_id = getattr(recorded.event, "id", None)
        if not event_id or isinstance(recorded.event, Override | PolicyChanged):
            return True
        known = (recorded.replica, event_id)
        if known in self._ids:
            self.repeats += 1
            return False
        self._ids.add(known)
        return True

    def _step_back(self, now_ms: int) -> None:
        """Rule 6: stored times ahead of a clock that stepped back become it."""
        self.stepped_back = True
        for found in self._bad.values():
            found[:] = [(min(at, now_ms), replica, group, seq) for at, replica, group, seq in found]
        for good in [*self._good.values(), *self._clean.values()]:
            for replica in good:
                good[replica] = min(good[replica][0], now_ms), good[replica][1]
        self._requests = {key: min(at, now_ms) for key, at in self._requests.items()}
        for name in self._names.values():
            name.over_ms = None if name.over_ms is None else min(name.over_ms, now_ms)

    def _note(self, recorded: Recorded, now_ms: int) -> None:
        """Take note of an outcome."""
        event, target = recorded.event, recorded.target
        assert target is not None
        if isinstance(event, CallAnswered):
            self._good.setdefault(target.key, {})[recorded.replica] = now_ms, recorded.seq
            self._answered(event, target.key, now_ms)
            return
        assert isinstance(event, CallOutcome)
        group = KINDS[event.kind].group
        if group == "success" and (event.queued_ms or 0) <= POLICY.witnesses.good_answer_s * 1000:
            self._good.setdefault(target.key, {})[recorded.replica] = now_ms, recorded.seq
            if event.checkable:
                self._clean.setdefault(target.key, {})[recorded.replica] = now_ms, recorded.seq
        repeats = False
        if event.request_hash is not None:
            before_ms = self._requests.get((target.key, event.request_hash))
            self._requests[target.key, event.request_hash] = now_ms
            # Rule 4, Same request.
            repeats = before_ms is not None and now_ms < before_ms + POLICY.evidence.same_request_s * 1000
        too_short = event.kind == "timeout" and (event.limit_ms or 1e9) < POLICY.breaker.impatience_s * 1000
        repeatable = event.kind in ("empty_output", "malformed_output", "timeout", "truncated")
        if group not in ("success", "neutral") and not (repeats and repeatable) and not too_short and not event.forced:
            self._bad.setdefault(target.key, []).append((now_ms, recorded.replica, group, recorded.seq))
            self._scored(event, target.key, recorded.replica, now_ms)
        else:
            self._answered(event, target.key, now_ms)

    # Points.

    def _tally(self, key: str, rule: str) -> Tally:
        return self._tallies.setdefault((key, rule), Tally(LESSONS[rule]))

    def _holds(self, key: str, rule: str, now_ms: int, *, to_its_end: bool) -> bool:
        """Whether a hold stands, on probation too unless only `to_its_end`."""
        name = self._names.get((key, rule))
        if name is None or name.over_ms is not None or name.began_seq < self._cleared_over(key)[0]:
            return False
        return not to_its_end or now_ms < name.end_ms

    def _scored(self, event: CallOutcome, key: str, replica: str, now_ms: int) -> None:
        for rule, lesson in LESSONS.items():
            if lesson.group == KINDS[event.kind].group:
                at = spoken_of(event, key) if rule == "throttle" else key
                self._tally(at, rule).scores(replica, is_free=not self._holds(at, rule, now_ms, to_its_end=True))

    def _answered(self, event: CallOutcome | CallAnswered, key: str, now_ms: int) -> None:
        for rule in LESSONS:
            for at in (key, key.rpartition(".")[0]) if rule == "throttle" else (key,):
                if is_certain_answer(event, rule) and not self._holds(at, rule, now_ms, to_its_end=False):
                    self._tally(at, rule).answered()

    # What stands.

    def _standing(self, recorded: Recorded) -> dict[str, list[HoldView]]:
        """The holds of an outcome's scopes."""
        target = recorded.target
        entries = [(key, self.fleet.entry(key)) for key in target.keys] if target is not None else []
        return {key: list(entry.holds) for key, entry in entries if entry is not None and entry.holds}

    def _check_standing(self, recorded: Recorded, old: dict[str, list[HoldView]], now_ms: int) -> None:
        """What an outcome does to the holds that it finds, and what must be so of its trial."""
        event, seq = recorded.event, recorded.seq
        if not isinstance(event, CallOutcome | ProbeResult) or self.stepped_back:
            return
        if (event.queued_ms or 0) > POLICY.evidence.window_s * 1000:
            return
        group, began_ms = KINDS[event.kind].group, now_ms - int(event.took_ms or 0)
        for key, holds in old.items():
            entry = self.fleet.entry(key)
            for was in holds:
                lesson = LESSONS.get(was.rule)
                if lesson is None or was.began_seq < self._cleared_over(key)[0]:
                    continue
                now = next((one for one in entry.holds if one.rule == was.rule), None) if entry is not None else None
                leased = any(Lease(was.rule, was.began_seq) == lease for lease in event.trial or ())
                knew = leased or (event.seen_seq is not None and was.began_seq <= event.seen_seq < seq)
                stands = now is not None and now.began_seq == was.began_seq and now_ms < now.over_ms
                if group == "success" and knew and stands and was.rule != "degraded":
                    # Rule 4.0, The end: an answer after the hold, leased or not.
                    self._says(seq, f"{event!r} is after {was!r} of {key} and does not end it")
                if leased and was.by in ("", recorded.replica) and was.trial_from_ms:
                    at_ms = began_ms - int(event.queued_ms or 0)
                    # Two ran at once where a lease was taken away: what the other one moved, this one could not know.
                    name = LeaseName(key, was.rule, was.began_seq)
                    moved = self._trials_moved.get(name, ()) if lease_subject(name) in self.freed else ()
                    from_ms = [old_ms for moved_ms, old_ms in moved if moved_ms >= at_ms]
                    if at_ms + EARLY_MS < min(was.trial_from_ms, was.end_ms, *from_ms):
                        self._says(seq, f"a trial of {was!r} of {key} began {was.trial_from_ms - at_ms} ms too soon")
                if stands and now is not None and now.trial_from_ms != was.trial_from_ms:
                    name = LeaseName(key, was.rule, was.began_seq)
                    self._trials_moved.setdefault(name, []).append((now_ms, was.trial_from_ms))
                tells = group == lesson.group or group in lesson.answers
                if leased and stands and not tells and now is not None and was.trial_from_ms:
                    least_ms = began_ms + distance_ms(was.rule, was.n)
                    if now.trial_from_ms < least_ms and now_ms < now.end_ms:
                        # Rule 4.0, Trials, one that tells nothing of its rule.
                        self._says(seq, f"{was!r} of {key} wants its next trial as if {event!r} had been none: {now!r}")

    # What moved.

    def _moved(self, key: str, event: Event, seq: int, now_ms: int, derived: list[Any]) -> None:
        entry = self.fleet.entry(key)
        before = self._shown.get(key)
        if entry is None:
            self._shown.pop(key, None)
        else:
            self._shown[key] = entry
        if isinstance(event, Override | PolicyChanged):
            return  # an operator may move whatever there is
        old = {hold.rule: hold for hold in before.holds} if before is not None else {}
        new = {hold.rule: hold for hold in entry.holds} if entry is not None else {}
        wide = any(isinstance(one, Released) and one.by == "wide_close" and one.scope.key == key for one in derived)
        for rule in old.keys() | new.keys():
            if rule == "operator":
                continue
            was, now = old.get(rule), new.get(rule)
            what = self._what_moved(was, now, entry, now_ms)
            if what == "ended" and was is not None and self._cleared_over(key)[0] > was.began_seq:
                continue  # a clear of a wider scope, which the target heeds when it is next folded
            if what and not wide and not self._is_after(event, seq, now_ms, key, rule, was):
                # Rule 4, After: what is not after a hold lifts, closes, extends and reopens nothing.
                self._says(seq, f"{rule} of {key} {what} by what is not after it: {event!r}; {was!r} -> {now!r}")
            same = was is not None and now is not None and was.began_seq == now.began_seq
            if was is not None and now is not None and same and now.end_ms < was.end_ms and not self.stepped_back:
                # Rule 4, Holds: ends only ever grow within a hold.
                self._says(seq, f"{rule} of {key} ends earlier than before: {was!r} -> {now!r}")
            if now is not None and entry is not None and (word := word_fault(entry, now, now_ms)):
                self._says(seq, f"{rule} of {key} {word}")
            if now is not None and (was is None or was.began_seq != now.began_seq) and now.began_seq != seq:
                self._says(seq, f"{rule} of {key} is named {now.began_seq} and not by the event that began it")

    def _what_moved(self, was: HoldView | None, now: HoldView | None, entry: GateEntry | None, now_ms: int) -> str:
        """What an event did to a hold; "" if time alone did it, or nothing moved."""
        if now is None:
            assert was is not None
            gone_by_time = now_ms >= was.over_ms or (entry is not None and entry.by == "evidence_gone")
            return "" if gone_by_time and now_ms >= was.end_ms else "ended"
        if was is None or was.began_seq != now.began_seq:
            return "began"
        return "was extended" if now.end_ms > was.end_ms else ""

    def _is_after(self, event: Event, seq: int, now_ms: int, key: str, rule: str, was: HoldView | None) -> bool:
        if not isinstance(event, CallOutcome | CallAnswered | ProbeResult):
            return False
        name = self._names.get((key, rule))
        began_seq, end_ms = (was.began_seq, was.end_ms) if was is not None else (0, 0)
        if was is None and name is not None:
            began_seq, end_ms = name.began_seq, min(name.end_ms, name.over_ms or name.end_ms)
        cleared = self._cleared_over(key)
        leased = any(lease.rule == rule and lease.began_seq == began_seq for lease in event.trial or ())
        if cleared[0] > began_seq:
            (began_seq, end_ms), leased = cleared, False
        if not began_seq or leased:
            return True
        if event.seen_seq is not None and event.seen_seq < seq:
            return event.seen_seq >= began_seq
        took_ms = getattr(event, "took_ms", None)
        took_ms = POLICY.evidence.took_s * 1000 if took_ms is None else took_ms
        return self.stepped_back or now_ms - took_ms >= end_ms

    def _cleared_over(self, key: str) -> tuple[int, int]:
        """Sequence and time of the newest clear of a scope or around it."""
        parts = key.split(".")
        return max((self._cleared.get(".".join(parts[:n]), (0, 0)) for n in (1, 2, 3)), default=(0, 0))

    # What began.

    def _began(self, held: TargetHeld, event: Event, seq: int, now_ms: int) -> None:
        key, rule = held.scope.key, held.rule
        self.holds_begun[rule] += 1
        before = self._names.get((key, rule))
        trial = isinstance(event, CallOutcome | ProbeResult) and any(
            before is not None and lease.rule == rule and lease.began_seq == before.began_seq
            for lease in event.trial or ()
        )
        name = self._names[key, rule] = Name(held.began_seq, held.end_ms, held.end_ms - now_ms, 1)
        again = bool(held.numbers.get("neutral_trials"))
        in_a_row = self._check_growth(held, before, name, now_ms, again=again)
        name.score = before.score if before is not None and in_a_row else held.numbers.get("points", 0)
        wide = "open" in held.numbers  # by spread (Rule 4.3)
        if rule in LESSONS and not again:
            self._check_trial(held, event, name, now_ms, trial=trial)
        if not trial and not again:
            if rule in LESSONS and not wide:
                self._check_points(held, event, seq)
            self._check_evidence(held, event, seq, now_ms)
        if rule in LESSONS:
            self._tally(key, rule).points = 0

    def _check_points(self, held: TargetHeld, event: Event, seq: int) -> None:
        """Rule 4.0: a hold begins only at as many points as are needed, on the word of those who saw it."""
        if not isinstance(event, CallOutcome | ProbeResult) or self.stepped_back:
            return
        tally = self._tally(held.scope.key, held.rule)
        if fault := tally.fault(held, event, self.fleet.replicas(self.fleet.time_ms)):
            self._says(seq, f"{held} {fault}")

    def _check_trial(self, held: TargetHeld, event: Event, name: Name, now_ms: int, *, trial: bool) -> None:
        """Rule 4.0 (begin): when the next trial is wanted, and that one's failed trial says nothing of the others."""
        if not isinstance(event, CallOutcome | ProbeResult):
            return
        entry = self.fleet.entry(held.scope.key)
        hold = (
            next((one for one in entry.holds if one.began_seq == held.began_seq), None) if entry is not None else None
        )
        if hold is None or self.stepped_back:
            return
        start_ms = now_ms - int(event.took_ms or 0) if trial else now_ms
        least_ms = max(now_ms, start_ms + distance_ms(held.rule, name.nth))
        if not least_ms <= hold.trial_from_ms <= now_ms + farthest_ms(held.rule, event):
            self._says(held.cause_seq, f"{hold!r} of {held.scope.key} wants its next trial from the wrong time on")
        if hold.n != name.nth:
            self._says(held.cause_seq, f"{hold!r} of {held.scope.key} is hold {name.nth} in a row")

    def _check_growth(self, held: TargetHeld, before: Name | None, name: Name, now_ms: int, *, again: bool) -> bool:
        """Rule 4.0 and Growth: the n-th hold in a row is 2^(n-1) times the first. Whether it is one more in a row."""
        sections: dict[str, Any] = {
            "breaker": POLICY.breaker,
            "degraded": POLICY.degraded,
            "credential": POLICY.credential,
        }
        limits = sections.get(held.rule)
        in_a_row = False
        if before is not None:
            over_ms = before.over_ms
            if over_ms is None and now_ms >= before.end_ms + POLICY.evidence.probation_s * 1000:
                over_ms = before.end_ms + round(POLICY.evidence.probation_s * 1000)
            forget_ms = POLICY.evidence.forget_s * 1000 if held.rule == "credential" else 0
            in_a_row = over_ms is None or now_ms < over_ms + forget_ms
            name.nth = before.nth + (not again) if in_a_row else 1
        if limits is None or self.stepped_back:
            return in_a_row
        length_ms = min(limits.hold_s * 2 ** max(0, name.nth - 1), limits.cap_s) * 1000
        slack = 0.11 if held.rule == "breaker" else 0.0
        # Ends only ever grow within a hold.
        left_ms = before.end_ms - now_ms if before is not None and in_a_row else 0
        most_ms = max(length_ms * (1 + slack), left_ms)
        if not length_ms * (1 - slack) - 2 <= name.length_ms <= most_ms + 2:
            self._says(
                held.cause_seq, f"hold {name.nth} in a row of {held.scope.key} ({held.rule}) lasts {name.length_ms} ms"
            )
        return in_a_row

    def _check_evidence(self, held: TargetHeld, event: Event, seq: int, now_ms: int) -> None:
        group = GROUP_OF.get(held.rule, "throttle")
        if not isinstance(event, CallOutcome | ProbeResult) or KINDS[event.kind].group != group:
            self._says(seq, f"{held} began at {event!r}")  # Rule 4, Holds: only at a bad event
            return
        keys = [key for key in self._bad if key == held.scope.key or key.startswith(held.scope.key + ".")]
        window_ms = max(POLICY.witnesses.good_answer_s, POLICY.evidence.window_s, 30.0) * 1000
        # Rule 4.7: a clear empties every fold of the scope and below, and none above it.
        cleared_seq = self._cleared_over(held.scope.key)[0]
        found = [one for key in keys for one in self._bad[key] if one[2] == group and one[3] > cleared_seq]
        bad = [one for one in found if now_ms < one[0] + window_ms]
        if held.rule == "credential" and len(bad) < CREDENTIAL_STRIKES:
            self._says(seq, f"{held} rests on {len(bad)} {group} outcomes")
        replicas = {one[1] for one in bad}
        # After a step back a clear and the good answers that followed it are of one time, and so these are void.
        if len(replicas) > 1 or (self.stepped_back and cleared_seq) or self._is_named(held, event):
            return
        good_ms = POLICY.witnesses.good_answer_s * 1000
        good = self._clean if held.rule == "degraded" else self._good
        for key in [key for key in good if key == held.scope.key or key.startswith(held.scope.key + ".")]:
            for replica, (at_ms, good_seq) in good[key].items():
                if replica not in replicas and good_seq > cleared_seq and now_ms < at_ms + good_ms:
                    # Rule 4.0, Whose word.
                    self._says(seq, f"{held} rests on {replicas} alone, while {replica} had a good answer of {key}")

    @staticmethod
    def _is_named(held: TargetHeld, event: CallOutcome | ProbeResult) -> bool:
        """Whether it is everyone's without asking: a rate limit that says when, and that it is its credential's."""
        return held.rule == "throttle" and event.kind == "rate_limited" and bool(getattr(event, "retry_after_s", None))
