"""The story of one scope: its events in the log, and what each of them did.

    for step in await trace(client, Scope("openrouter.ai", "", "z-ai/glm-5.3")): ...

The events are read from the log by subject and folded one by one by the same fold, which tells what each changed.
Only this scope's events are read, so a rule that asks how many replicas there are sees those that called it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
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
from sickbay_projections import Fleet

from ..bus.jetstream import JetStreamApi
from ..bus.link import BorrowedConnection
from ..bus.reader import CaughtUp, Chunk, LogReader
from ..bus.topology import LOG, OUTCOME_PREFIX, PROBE_PREFIX
from ..log.decode import Intake

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
    story = _Story(scope)
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


class _Story:
    def __init__(self, scope: Scope) -> None:
        self.steps: list[Step] = []
        self._scope = scope
        self._fleet = Fleet()
        self._strikes: dict[str, int] = {}

    def take(self, subject: str, event: Event | Poison, seq: int, time_ms: int) -> None:
        """Fold one event; keep it if it tells something."""
        derived = self._fleet.apply_many([subject], [event], [seq], [time_ms])
        address = None if isinstance(event, Poison) else read_subject(subject)
        key = address.target.key if address is not None and address.target is not None else self._scope.key
        effects = [_effect(one) for one in derived if isinstance(one, TargetHeld | Released)]
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
