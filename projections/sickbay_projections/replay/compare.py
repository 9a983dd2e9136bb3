"""The same events under two policies: what each would have held, which dead calls it would have spared, which good
calls it would have cost, and where the two first differ.

    comparison = Comparison(World("a.toml", a), World("none", None))
    comparison.take(subjects, events, seqs, times_ms)     # the log, in order, as often as needed
    comparison.result()

How a world is made of a history that was recorded under another policy is said in `counterfactual`; how calls are
weighed of which the history has no outcome, in `estimate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sickbay_events.codec import read_subject
from sickbay_events.derived import Released, TargetHeld
from sickbay_events.errors import Poison
from sickbay_events.kinds import KINDS
from sickbay_events.names import Scope, Target
from sickbay_events.outcome import CallOutcome, CallsRefused, Event
from sickbay_events.policy import Policy
from sickbay_events.times import parse_rfc3339

from ..rules.evidence import judged
from ..state.limits import RuleLimits
from .compared import SPELLS_SHOWN, ComparedCalls, ComparedHold, ComparedScope, FirstDifference, Part, Result
from .counterfactual import Spell, World
from .estimate import Nearby, Share, Unanswered, share
from .traffic import Traffic


class _Tally:
    __slots__ = ("also_refused", "calls", "let_through")

    def __init__(self) -> None:
        self.calls, self.also_refused, self.let_through = ComparedCalls(), 0, Unanswered()


class Comparison:
    """Two worlds on their way through one history."""

    def __init__(self, one: World, other: World, *, from_seq: int = 0, from_ms: int = 0) -> None:
        """`from_seq`, `from_ms`: what lies before is folded, so that the states are whole, and not counted."""
        self.worlds = (one, other)
        self.events = self.calls = self.refused = self.first_seq = self.last_seq = self.first_ms = self.last_ms = 0
        self._from_seq, self._begin_ms = from_seq, from_ms
        self._tallies: tuple[dict[str, _Tally], dict[str, _Tally]] = ({}, {})
        self._difference: FirstDifference | None = None
        self._nearby, self._traffic = Nearby(), Traffic()
        self._limits = RuleLimits.of(Policy())

    def take(
        self, subjects: Sequence[str], events: Sequence[Event | Poison], seqs: Sequence[int], times_ms: Sequence[int]
    ) -> None:
        """Fold events of the log, in its order."""
        for subject, event, seq, time_ms in zip(subjects, events, seqs, times_ms, strict=True):
            self._take(subject, event, seq, time_ms)

    def _take(self, subject: str, event: Event | Poison, seq: int, time_ms: int) -> None:
        one, other = self.worlds
        target = _target(subject, event)
        refused = one.take(subject, event, seq, time_ms, target), other.take(subject, event, seq, time_ms, target)
        if seq < self._from_seq or time_ms < self._begin_ms:
            return
        if not self.events:
            self.first_seq, self.first_ms = seq, time_ms
        self.events += 1
        self.last_seq, self.last_ms = seq, max(self.last_ms, time_ms)
        if self._difference is None and (one.told or other.told):
            self._compare(subject, event, seq, time_ms)
        if target is None:
            return
        if isinstance(event, CallOutcome):
            self._outcome(event, target.key, time_ms, refused)
        elif isinstance(event, CallsRefused):
            self._refused(event, target, time_ms)

    def _outcome(self, event: CallOutcome, key: str, time_ms: int, refused: tuple[bool, bool]) -> None:
        self.calls += 1
        group = KINDS[judged(event, self._limits, overlay=False)].group
        if group != "neutral":
            self._nearby.answered(key, time_ms, good=group == "success")
        self._traffic.add(key, time_ms, group)
        for side in (0, 1):
            if refused[side]:
                self._tally(side, key).calls.add(group, unsure=event.took_ms is None)

    def _refused(self, event: CallsRefused, target: Target, time_ms: int) -> None:
        """The minute is told by a replica's clock, which may be wrong: one that cannot be is the minute before."""
        minute_ms = time_ms - 60_000
        try:
            told_ms = parse_rfc3339(event.minute or "")
        except ValueError:
            told_ms = 0
        if time_ms - 3_600_000 < told_ms <= time_ms:
            minute_ms = told_ms
        self.refused += event.count
        key, open_to = target.key, []
        for side, world in enumerate(self.worlds):
            tally = self._tally(side, key)
            if world.refused(target, minute_ms):
                tally.also_refused += event.count
            else:
                open_to.append(tally.let_through)
        if open_to:
            self._nearby.refused(key, event.count, minute_ms, open_to)

    def _tally(self, side: int, key: str) -> _Tally:
        return self._tallies[side].setdefault(key, _Tally())

    def _compare(self, subject: str, event: Event | Poison, seq: int, time_ms: int) -> None:
        says = [sorted({_says(told) for told in world.told}) for world in self.worlds]
        if says[0] == says[1]:
            return
        told = [*self.worlds[0].told, *self.worlds[1].told]
        scope = told[0].scope
        address = None if isinstance(event, Poison) else read_subject(subject)
        self._difference = FirstDifference(
            seq=seq,
            time_ms=time_ms,
            event=event.kind if isinstance(event, CallOutcome) else type(event).__name__,
            status=event.status if isinstance(event, CallOutcome) else None,
            replica=address.replica if address is not None else "",
            scope=scope.key,
            provider=scope.provider,
            model=scope.model,
            says=(says[0], says[1]),
        )

    def result(self) -> Result:
        """What was found. Nothing is taken afterwards."""
        self._nearby.finish()
        keys = {key for world in self.worlds for key in world.spells}
        keys |= {key for tallies in self._tallies for key in tallies}
        rows = [row for row in map(self._row, sorted(keys)) if _tells(row)]
        rows.sort(key=_weight)
        return Result(
            events=self.events,
            calls=self.calls,
            first_seq=self.first_seq,
            last_seq=self.last_seq,
            from_ms=self.first_ms,
            to_ms=self.last_ms,
            refused=self.refused,
            parts=(_sum([row.parts[0] for row in rows], self.worlds[0].name),
                   _sum([row.parts[1] for row in rows], self.worlds[1].name)),
            first_difference=self._difference,
            rows=rows,
            bucket_ms=self._traffic.bucket_ms,
        )  # fmt: skip

    def _row(self, key: str) -> ComparedScope:
        scope = Scope.of_key(key)
        holds = self._holds(0, key), self._holds(1, key)
        return ComparedScope(
            scope=key,
            provider=scope.provider,
            model=scope.model,
            parts=(self._part(0, key, holds[0]), self._part(1, key, holds[1])),
            holds=(holds[0][:SPELLS_SHOWN], holds[1][:SPELLS_SHOWN]),
            traffic=self._traffic.of(key),
        )

    def _holds(self, side: int, key: str) -> list[ComparedHold]:
        return [
            _shown(spell, self.first_ms, self.last_ms)
            for spell in self.worlds[side].spells.get(key, ())
            if spell.from_ms <= self.last_ms and spell.end_ms > self.first_ms
        ]

    def _part(self, side: int, key: str, holds: list[ComparedHold]) -> Part:
        tally = self._tallies[side].get(key) or _Tally()
        rules: dict[str, int] = {}
        for hold in holds:
            # A failed trial begins a hold again: it is still the same one.
            if hold.rule not in rules or hold.numbers.get("n", 1) == 1:
                rules[hold.rule] = rules.get(hold.rule, 0) + 1
        return Part(
            name=self.worlds[side].name,
            holds=sum(rules.values()),
            held_ms=covered_ms(holds),
            rules=rules,
            calls=tally.calls,
            kept_back=_errs(tally.calls),
            also_refused=tally.also_refused,
            let_through=tally.let_through,
        )


def _target(subject: str, event: Event | Poison) -> Target | None:
    if isinstance(event, Poison):
        return None
    try:
        return read_subject(subject).target
    except Poison:
        return None


def _says(told: TargetHeld | Released) -> str:
    """What a world concludes, in the words in which two worlds are compared."""
    where = told.scope.name if told.scope.model is None else "model"
    if isinstance(told, Released):
        return f"{told.rule} of the {where} released by {told.by}"
    word = "held" if told.old_end_ms is None else "held on"
    return f"{word} by {told.rule} of the {where} for {(told.end_ms - told.time_ms) / 1000:g} s"


def _shown(spell: Spell, first_ms: int, last_ms: int) -> ComparedHold:
    return ComparedHold(
        rule=spell.rule,
        began_seq=spell.began_seq,
        from_ms=max(spell.from_ms, first_ms),
        to_ms=max(min(spell.end_ms, last_ms), spell.from_ms),
        kind=spell.kind,
        numbers=spell.numbers,
        by=spell.by,
    )


def covered_ms(holds: Sequence[ComparedHold]) -> int:
    """Time under at least one of the holds."""
    total = reached_ms = 0
    for hold in sorted(holds, key=lambda hold: hold.from_ms):
        begin_ms = max(hold.from_ms, reached_ms)
        if hold.to_ms > begin_ms:
            total += hold.to_ms - begin_ms
            reached_ms = hold.to_ms
    return total


def _errs(calls: ComparedCalls) -> Share:
    return share(calls.good, calls.good + calls.dead)


def _sum(parts: list[Part], name: str) -> Part:
    calls, through, rules = ComparedCalls(), Unanswered(), dict[str, int]()
    for part in parts:
        _add(calls, part.calls)
        _add(through, part.let_through)
        for rule, count in part.rules.items():
            rules[rule] = rules.get(rule, 0) + count
    return Part(
        name=name,
        holds=sum(part.holds for part in parts),
        held_ms=sum(part.held_ms for part in parts),
        rules=dict(sorted(rules.items())),
        calls=calls,
        kept_back=_errs(calls),
        also_refused=sum(part.also_refused for part in parts),
        let_through=through,
    )


def _add(total: Any, part: Any) -> None:
    for name in total.__struct_fields__:
        setattr(total, name, getattr(total, name) + getattr(part, name))


def _tells(row: ComparedScope) -> bool:
    return any(part.holds or part.calls.all or part.also_refused or part.let_through.calls for part in row.parts)


def _weight(row: ComparedScope) -> tuple[int, int, str]:
    """Where the worlds differ most, first."""
    one, other = row.parts
    calls = abs(one.calls.dead - other.calls.dead) + abs(one.calls.good - other.calls.good)
    return -calls, -abs(one.held_ms - other.held_ms), row.scope
