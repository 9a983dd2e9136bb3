"""Messages of the log as events for the fold: the same for live reading, for rebuilding and for verifying."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from sickbay_events import Event, Poison, Policy, PolicyChanged, decode, read_subject
from sickbay_events.codec import decode_outcomes

from ..bus.reader import Chunk
from .file import Columns

_CACHED_MAX: Final = 200_000


class DecodedBatch(NamedTuple):
    """Messages in log order, as parallel lists; a message that cannot be read is its `Poison`."""

    subjects: list[str]
    events: list[Event | Poison]
    seqs: list[int]
    times_ms: list[int]

    def cut(self, begin: int, end: int) -> DecodedBatch:
        """The messages from index `begin` up to `end`."""
        part = slice(begin, end)
        return DecodedBatch(self.subjects[part], self.events[part], self.seqs[part], self.times_ms[part])


class Intake:
    """Decodes chunks; remembers which subjects it has read before.

    pinned   a policy that counts in the place of every one in the log: for a projector beside the running one
    """

    def __init__(self, pinned: Policy | None = None) -> None:
        self._pinned = None if pinned is None else PolicyChanged(policy=pinned.to_data())
        self._known: dict[bytes | str, tuple[str, bool, Poison | None]] = {}
        self._plain: dict[bytes | str, str] = {}
        """Subjects of outcomes alone, which most are."""

    def batch(self, chunk: Chunk | Columns) -> DecodedBatch:
        """Decode one chunk of the log, or lines of a file of it."""
        payloads, is_json = chunk.payloads, isinstance(chunk, Columns) and chunk.is_json
        subjects: list[str] = list(map(self._plain.get, chunk.subjects))  # type: ignore[arg-type]
        if None not in subjects:
            events = decode_outcomes(payloads, whole=is_json)
        else:
            known = self._known
            read = [known.get(subject) or self._learn(subject) for subject in chunk.subjects]
            subjects = [one[0] for one in read]
            outcomes = [data for data, one in zip(payloads, read, strict=True) if one[1]]
            plain = iter(decode_outcomes(outcomes, whole=is_json))
            events = [next(plain) if one[1] else _decode(one, data) for data, one in zip(payloads, read, strict=True)]
            if self._pinned is not None:
                events = [self._pinned if isinstance(event, PolicyChanged) else event for event in events]
        if isinstance(chunk, Columns):
            return DecodedBatch(subjects, events, chunk.seqs, chunk.times_ms)
        return DecodedBatch(subjects, events, chunk.seqs, [time_ns // 1_000_000 for time_ns in chunk.times_ns])

    def _learn(self, raw: bytes | str) -> tuple[str, bool, Poison | None]:
        subject = raw if isinstance(raw, str) else raw.decode("utf-8", "replace")
        poison: Poison | None = None
        is_outcome = False
        try:
            is_outcome = read_subject(subject).sort == "outcome"
        except Poison as error:
            poison = error
        if len(self._known) >= _CACHED_MAX:
            self._known.clear()
            self._plain.clear()
        self._known[raw] = learnt = (subject, is_outcome, poison)
        if is_outcome:
            self._plain[raw] = subject
        return learnt


def _decode(read: tuple[str, bool, Poison | None], data: bytes | msgspec.Raw) -> Event | Poison:
    if read[2] is not None:
        return read[2]
    try:
        return decode(read[0], data)
    except Poison as poison:
        return poison
