"""The story of one scope: its events in the log, and what each of them did.

    for step in await trace(client, Scope("openrouter.ai", "", "z-ai/glm-5.3")): ...

The events are read from the log by subject. What began and ended by them is what the services told of them
(SICKBAY_TRANSITIONS). What each came to count as, and what was not told yet or is told no more, is folded: of this
scope's events alone, so that a rule that asks how many replicas there are sees those that called it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import nats.errors
from nats.aio.client import Client

from sickbay_events import (
    CallAnswered,
    CallOutcome,
    CallsRefused,
    Event,
    Override,
    Poison,
    PolicyChanged,
    ProbeResult,
    Released,
    Scope,
    TargetHeld,
    rfc3339,
)
from sickbay_events.codec import POLICY_SUBJECT, read_subject
from sickbay_events.kinds import KINDS
from sickbay_events.view import CHECKPOINT_KEY, Checkpoint
from sickbay_projections import Fleet

from ..bus.connect import BusError
from ..bus.entries import read_entry
from ..bus.jetstream import JetStreamApi
from ..bus.link import BorrowedConnection
from ..bus.reader import CaughtUp, Chunk, LogReader
from ..bus.topology import LOG, OUTCOME_PREFIX, PROBE_PREFIX
from ..bus.view_names import MAIN
from ..log.decode import Intake
from ..log.transitions import past_transitions

TOLD_MAX: Final = 20_000
"""The newest transitions that are looked at."""
TIME_MS_MAX: Final = 4_102_444_800_000
"""The end of 2099: after every event."""
STEPS_MAX: Final = 1_000
"""The newest steps that are kept."""
_QUIET: Final = ("success",)
_ACTS: Final = {
    "hold": "denies until {until}",
    "allow": "allows until {until}",
    "clear": "ends every hold and forgets every count, here and below",
}


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One event that changed something, or that is evidence."""

    seq: int
    time_ms: int
    replica: str
    """The replica that reported it; of an operator's act the actor."""
    what: str
    effect: str


async def trace(client: Client, scope: Scope, last_seq: int | None = None) -> list[Step]:
    """The newest steps of a scope's story, up to `last_seq`, oldest first. Raises `BusError` when there is no log."""
    at = await JetStreamApi(client, timeout_s=5.0).stream_at(LOG)
    story = _Story(scope, await _recorded(client, scope))
    if at.last_seq < at.first_seq or at.last_seq == 0:
        return []
    reader = LogReader(
        BorrowedConnection(client), LOG, after_seq=at.first_seq - 1, filters=subjects(scope), name="explain"
    )
    intake = Intake()
    try:
        async for item in reader:
            if isinstance(item, Chunk):
                batch = intake.batch(item)
                for subject, event, seq, time_ms in zip(*batch, strict=True):
                    if last_seq is None or seq <= last_seq:
                        story.take(subject, event, seq, time_ms)
            if isinstance(item, CaughtUp) or (last_seq is not None and reader.seq >= last_seq):
                break
    finally:
        await reader.close()
    return story.steps[-STEPS_MAX:]


def subjects(scope: Scope) -> tuple[str, ...]:
    """What to read: the scope's own outcomes and probes, overrides of it and of what is around it, the policy."""
    below = scope.key if scope.model is not None else f"{scope.key}.>"
    around = {Scope(scope.host).key, Scope(scope.host, scope.alias).key, scope.key}
    overrides = sorted(f"sickbay.override.{key}" for key in around)
    return (f"{OUTCOME_PREFIX}*.{below}", f"{PROBE_PREFIX}*.{below}", *overrides, POLICY_SUBJECT)


_COUNTED: Final = {
    "fault": (("faults", "fault"),),
    "degraded": (("bad", "bad answer"), ("damage", "damaged answer")),
    "throttle": (("throttles", "throttle"),),
}
"""By the group of an outcome: the evidence that it may score in, and the word for it."""


class _Recorded(NamedTuple):
    """What the services told of a scope: effects in words by the event that caused them, and of which time."""

    effects: Mapping[int, Sequence[str]] = {}
    from_ms: int = 0
    to_seq: int = 0
    """The last event of the log of which all is told; 0: nothing is known."""

    def of(self, seq: int, time_ms: int) -> Sequence[str] | None:
        """The effects of an event; None where nobody can say."""
        return self.effects.get(seq, ()) if self.from_ms <= time_ms and seq <= self.to_seq else None


async def _recorded(client: Client, scope: Scope) -> _Recorded:
    """Never raises for what cannot be read: the fold tells it then."""
    try:
        entry = await read_entry(client, MAIN.stream, MAIN.gate_prefix + CHECKPOINT_KEY)
        if entry is None or entry.gone:
            return _Recorded()
        told_seq = msgspec.json.decode(entry.payload, type=Checkpoint).told_seq
        past = await past_transitions(client, scope, 0, TIME_MS_MAX, limit=TOLD_MAX)
    except (BusError, nats.errors.Error, TimeoutError, OSError, ValueError):
        return _Recorded()
    effects: dict[int, list[str]] = {}
    for fact in past.transitions:
        if fact.get("type") in ("held", "released") and isinstance(fact.get("cause_seq"), int):
            effects.setdefault(fact["cause_seq"], []).append(_told_effect(fact, scope))
    return _Recorded(effects, past.known_from_ms, told_seq)


def _told_effect(fact: Mapping[str, Any], scope: Scope) -> str:
    of = "" if fact["key"] == scope.key else f" (of {' '.join(filter(None, (fact['provider'], fact.get('model'))))})"
    if fact["type"] == "released":
        return f"released from {fact['rule']} by {fact['by']}{of}"
    word = "until" if fact.get("old_end_ms") is None else "now until"
    shadow = "" if fact.get("enforced", True) else " (shadow)"
    alone = f" for {fact['replica']} alone" if fact.get("replica") else ""
    return f"held by {fact['rule']}{alone} {word} {rfc3339(fact['end_ms'])[11:19]}{shadow}{of}"


class _Story:
    def __init__(self, scope: Scope, recorded: _Recorded) -> None:
        self.steps: list[Step] = []
        self._recorded = recorded
        self._scope = scope
        self._fleet = Fleet()
        self._strikes: dict[str, int] = {}

    def take(self, subject: str, event: Event | Poison, seq: int, time_ms: int) -> None:
        """Fold one event; keep it if it tells something."""
        derived = self._fleet.apply_many([subject], [event], [seq], [time_ms])
        address = None if isinstance(event, Poison) else read_subject(subject)
        key = address.target.key if address is not None and address.target is not None else self._scope.key
        told = self._recorded.of(seq, time_ms)
        effects = (
            [_effect(one) for one in derived if isinstance(one, TargetHeld | Released)] if told is None else [*told]
        )
        # A success of a target without strikes and holds is the ordinary case: there is nothing to compare.
        if not effects and key not in self._strikes and _is_quiet(event):
            return
        document = self._fleet.document(key, self._fleet.time_ms) or {}
        strikes = document.get("evidence", {}).get("strikes", {"points": 0})
        before, now = self._strikes.get(key, 0), int(strikes["points"])
        if now:
            self._strikes[key] = now
        else:
            self._strikes.pop(key, None)
        if now > before:
            effects.append(f"strike {now} of {strikes['needed']}")
        elif now < before and not effects:
            effects.append("takes a strike off" if now else "clears the strikes")
        if isinstance(event, CallOutcome) and not effects:
            effects += _counted(event, document)
        if isinstance(event, Override) and not effects:
            # A scope's override is one record; what lies below compares with it when it is next asked (Rule 4.7).
            effects.append(_ACTS[event.action].format(until=(event.until or "")[11:19]))
        if effects or not _is_quiet(event):
            replica = address.replica if address is not None else ""
            who = event.actor if isinstance(event, Override | PolicyChanged) else replica
            self.steps.append(Step(seq=seq, time_ms=time_ms, replica=who, what=_what(event), effect="; ".join(effects)))


def _is_quiet(event: Event | Poison) -> bool:
    if isinstance(event, CallOutcome):
        return KINDS[event.kind].group in _QUIET
    return isinstance(event, CallAnswered | CallsRefused | PolicyChanged)


def _counted(event: CallOutcome, document: dict[str, Any]) -> list[str]:
    """What a bad outcome came to count as, in words; nothing where no rule counted it."""
    group = KINDS[event.kind].group
    if event.trial:
        return [f"a trial of {', '.join(lease.rule for lease in event.trial)} that did not pass"]
    for name, noun in _COUNTED.get(group, ()):
        says = document.get("evidence", {}).get(name)
        if says and says["points"]:
            return [f"{noun}: {says['points']} of {says['weight'] * says['needed']} points"]
    return []


def _effect(event: Any) -> str:
    if isinstance(event, TargetHeld):
        word = "until" if event.old_end_ms is None else "now until"
        shadow = "" if event.enforced else " (shadow)"
        alone = f" for {event.replica} alone" if event.replica else ""
        return f"held by {event.rule}{alone} {word} {rfc3339(event.end_ms)[11:19]}{shadow}"
    return f"released from {event.rule} by {event.by}"


def _what(event: Event | Poison) -> str:
    if isinstance(event, CallOutcome):
        return event.kind if event.status is None else f"{event.kind} ({event.status})"
    if isinstance(event, Override):
        return f"{event.action}: {event.reason}"
    if isinstance(event, ProbeResult):
        return f"probe {event.level}: {event.kind}"
    if isinstance(event, Poison):
        return f"unreadable: {event.reason}"
    return type(event).__name__
