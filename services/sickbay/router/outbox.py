"""What a reporter keeps: events made fit for the log, numbered, in a bounded queue. No network, no clock.

`fit` turns what a caller gave into what the log takes, or says which field is wrong. `Backlog` holds what
waits to be sent and decides what goes when it is full.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec

from sickbay_events import KINDS, CallAnswered, CallOutcome, CallsRefused, NameRefused, ProbeResult, Target
from sickbay_events.names import checked_key
from sickbay_events.outcome import CODE_CHARS_MAX, DETAIL_CHARS_MAX, RETRY_AFTER_S_MAX

WINDOW: Final = 1000
"""At most so many numbers between the oldest unacknowledged event and the newest sent: the fold tells a repeat
from news within 1,024 numbers."""
EVENT_BYTES_MAX: Final = 32_768
SKIPPED_MAX: Final = 50
WORD_CHARS_MAX: Final = 64
ROUTE_CHARS_MAX: Final = 256

Reportable: TypeAlias = CallOutcome | CallAnswered | CallsRefused | ProbeResult

_CHARS_MAX: Final = {
    "detail": DETAIL_CHARS_MAX,
    "code": CODE_CHARS_MAX,
    "signature": WORD_CHARS_MAX,
    "charset": WORD_CHARS_MAX,
    "request_hash": WORD_CHARS_MAX,
    "route": ROUTE_CHARS_MAX,
}
_DURATIONS: Final = ("took_ms", "ttft_ms", "queued_ms", "limit_ms")
_encode: Final = msgspec.json.Encoder().encode
_DECODE: Final[dict[type[Reportable], Callable[[bytes], Reportable]]] = {
    CallOutcome: msgspec.json.Decoder(CallOutcome).decode,
    CallAnswered: msgspec.json.Decoder(CallAnswered).decode,
    CallsRefused: msgspec.json.Decoder(CallsRefused).decode,
    ProbeResult: msgspec.json.Decoder(ProbeResult).decode,
}
_FIELDS: Final = {sort: frozenset(sort.__struct_fields__) for sort in _DECODE}
_CUT: Final = {sort: tuple((n, _CHARS_MAX[n]) for n in _CHARS_MAX if n in _FIELDS[sort]) for sort in _DECODE}
_ROUNDED: Final = {sort: tuple(n for n in _DURATIONS if n in _FIELDS[sort]) for sort in _DECODE}


class NotReportable(ValueError):
    """An event the log would not take. `field` says which of its fields is wrong, the message what is accepted."""

    def __init__(self, field: str, accepted: str) -> None:
        self.field = field
        super().__init__(f"{field}: {accepted}")


def fit(target: Target, event: Reportable) -> Reportable:
    """The event as the log takes it: a copy of its own, checked, over-long text cut, durations in whole ms.

    Raises `NotReportable` that names the field. What a caller got wrong must not become poison in the log.
    """
    if type(event) not in _DECODE:
        names = ", ".join(sort.__name__ for sort in _DECODE)
        raise NotReportable("event", f"expected one of {names}, got {type(event).__name__}")
    if type(target) is not Target:
        raise NotReportable("target", f"expected a Target, got {type(target).__name__}")
    _check_target(target)
    if not _is_plain(event) and (changes := _changes(event)):
        event = msgspec.structs.replace(event, **changes)
    try:
        data = _encode(event)
    except UnicodeEncodeError:  # half of a surrogate pair: the text is damaged, the outcome is not
        event = _well_formed(event)
        data = _encode(event)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NotReportable(_unencodable(event), str(error)) from error
    if len(data) > EVENT_BYTES_MAX:
        raise NotReportable("event", f"at most {EVENT_BYTES_MAX} bytes of JSON, this one has {len(data)}")
    try:
        fitted = _DECODE[type(event)](data)
    except msgspec.ValidationError as error:
        what, _, field = str(error).partition(" - at `$.")
        if field == "kind`":
            what = f"expected one of {', '.join(KINDS)}"
        raise NotReportable(field.rstrip("`") or "event", what[:400]) from error
    return fitted


@lru_cache(maxsize=65_536)
def _check_target(target: Target) -> None:
    for field, value in (("provider", target.provider), ("model", target.model)):
        if type(value) is not str:
            raise NotReportable(f"target.{field}", f"expected a string, got {type(value).__name__}")
    if target.is_empty:
        raise NotReportable(
            "target.model" if not target.model else "target.provider", "a name that is not empty is required"
        )
    try:
        _ = checked_key(target.provider, target.model), f"{target.provider}{target.model}".encode()
    except (NameRefused, UnicodeEncodeError) as error:
        raise NotReportable("target", str(error)) from error


def _is_plain(event: Reportable) -> bool:
    """Whether `_changes` would certainly find nothing; quick, and so for nearly every outcome."""
    return (
        type(event) is CallOutcome
        and event.detail is None
        and event.request_hash is None
        and event.skipped is None
        and event.retry_after_s is None
        and (event.code is None or (type(event.code) is str and len(event.code) <= CODE_CHARS_MAX))
        and (event.signature is None or (type(event.signature) is str and len(event.signature) <= WORD_CHARS_MAX))
        and (event.charset is None or (type(event.charset) is str and len(event.charset) <= WORD_CHARS_MAX))
        and (event.route is None or (type(event.route) is str and len(event.route) <= ROUTE_CHARS_MAX))
        and type(event.took_ms) is not float
        and type(event.ttft_ms) is not float
        and type(event.limit_ms) is not float
        and type(event.queued_ms) is not float
    )


def _changes(event: Reportable) -> dict[str, Any]:
    """The fields that have to be cut or rounded, with their new values."""
    changes: dict[str, Any] = {}
    sort = type(event)
    for name, chars_max in _CUT[sort]:
        text = getattr(event, name)
        if text is not None:
            if not isinstance(text, str):
                raise NotReportable(name, f"expected a string, got {type(text).__name__}")
            if len(text) > chars_max:
                changes[name] = text[:chars_max]
    for name in _ROUNDED[sort]:
        duration = getattr(event, name)
        if type(duration) is float:
            try:
                changes[name] = round(duration)
            except (ValueError, OverflowError) as error:  # NaN or infinite
                raise NotReportable(name, f"expected milliseconds from 0 to 24 h, got {duration}") from error
    if type(event) is CallOutcome:
        hint = event.retry_after_s
        if hint is not None:
            if type(hint) not in (int, float) or not hint >= 0:
                raise NotReportable("retry_after_s", f"expected seconds of 0 or more, got {str(hint)[:40]}")
            if hint > RETRY_AFTER_S_MAX:
                changes["retry_after_s"] = RETRY_AFTER_S_MAX
        if type(event.skipped) is list and len(event.skipped) > SKIPPED_MAX:
            changes["skipped"] = event.skipped[:SKIPPED_MAX]
    return changes


def _well_formed(event: Reportable) -> Reportable:
    """The same with `?` for every character that is none."""

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return value.encode("utf-8", "replace").decode()
        if isinstance(value, list):
            return [clean(item) for item in value]
        if isinstance(value, dict):
            return {name: clean(item) for name, item in value.items()}
        return value

    body = {name: clean(msgspec.to_builtins(getattr(event, name))) for name in event.__struct_fields__}
    return msgspec.structs.replace(event, **body)


def _unencodable(event: Reportable) -> str:
    """The name of the first field that has no JSON form."""
    for name in event.__struct_fields__:
        try:
            _encode(getattr(event, name))
        except (TypeError, ValueError, OverflowError, RecursionError):
            return name
    return "event"


def label(event: Reportable) -> str:
    """Under which name an event is counted: its kind, or what sort of event it is."""
    if type(event) is CallOutcome:
        return event.kind
    return {CallAnswered: "answered", CallsRefused: "refused"}.get(type(event), "probe")


def weighty(event: Reportable) -> bool:
    """Whether it goes last when the queue is full: failures, and all that ran under a trial lease, since a
    fleet waits for what a trial says. Successes, neutral outcomes and statistics go first."""
    if type(event) is CallOutcome:
        return event.trial is not None or KINDS[event.kind].group not in ("success", "neutral")
    if type(event) is ProbeResult:
        return not event.ok or event.trial is not None
    return type(event) is CallAnswered and event.trial is not None


class QueuedEvent(msgspec.Struct, gc=False):
    """One event on its way. All times are this process's monotonic clock, in seconds."""

    n: int
    target: Target
    event: Reportable
    recorded_s: float
    sends: int = 0
    """How often it was written to a connection."""
    first_sent_s: float = 0.0
    due_s: float = 0.0
    """When to send it again if nothing is heard of it."""
    failed: bool = False
    """Whether the latest sending was answered with an error that can pass."""
    refusals: int = 0
    """How often a server refused just this one."""
    failures: int = 0
    """In how many outages it failed that ended with another event being taken."""


class Backlog:
    """The entries that were never sent, oldest first, at most `capacity`. Not thread-safe by itself."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity: expected 1 or more events, got {capacity}")
        self.capacity = capacity
        self._weighty: deque[QueuedEvent] = deque()
        self._light: deque[QueuedEvent] = deque()

    def __len__(self) -> int:
        return len(self._weighty) + len(self._light)

    def add(self, entry: QueuedEvent) -> QueuedEvent | None:
        """Put an entry last. Answers the one that had to go for it: the oldest light one, or for want of
        such the new one if it is light itself, else the oldest: what is fresh can still begin or end a hold."""
        queue = self._weighty if weighty(entry.event) else self._light
        dropped = None
        if len(self._weighty) + len(self._light) >= self.capacity:
            if self._light:
                dropped = self._light.popleft()
            elif queue is self._light:
                return entry
            else:
                dropped = self._weighty.popleft()
        queue.append(entry)
        return dropped

    def take(self, count_max: int, oldest_n: int | None) -> list[QueuedEvent]:
        """Take up to `count_max` of the oldest entries whose numbers lie less than `WINDOW` above `oldest_n`
        (None: above the first that is taken)."""
        taken: list[QueuedEvent] = []
        first, second = self._weighty, self._light
        while len(taken) < count_max and (first or second):
            queue = first if not second or (first and first[0].n < second[0].n) else second
            if oldest_n is None:
                oldest_n = queue[0].n
            if queue[0].n - oldest_n >= WINDOW:
                break
            taken.append(queue.popleft())
        return taken

    def entries(self) -> list[QueuedEvent]:
        """Everything in it, without taking it."""
        return [*self._weighty, *self._light]


def count_by_label(entries: Iterable[QueuedEvent]) -> dict[str, int]:
    """How many entries there are of each label, the most frequent first."""
    return dict(Counter(label(entry.event) for entry in entries).most_common())
