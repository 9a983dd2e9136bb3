"""What a history keeps of each event: increments to counts, and steps to keep one by one.

A projection of its own over the log (SPEC 7): `History` takes what a fold took and concluded and gives pages of
increments. It does not depend on how the log was cut into batches: a page ends only where log time enters a new hour,
which is where whoever keeps the counts rolls old ones up, or where somebody takes what there is.

    history = History(time_ms=fleet.time_ms, rolled_ms=0)
    history.add(subjects, events, seqs, times_ms, fleet.apply_many(...), fleet.aside)
    for page in history.take(): ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from sickbay_events.codec import read_subject
from sickbay_events.derived import DerivedEvent
from sickbay_events.errors import Poison
from sickbay_events.names import Scope, Target
from sickbay_events.outcome import CallOutcome, CallsRefused, Event, Override, PolicyChanged, ProbeResult

from ..state.limits import HOUR_MS, STEP_BACK_MS
from .latency import Histogram, bound_ms

MINUTE_MS: Final = 60_000
OTHER: Final = "(other)"
"""What is counted together, where names are too many."""
ROUTES_MAX: Final = 131_072
NAME_CHARS_MAX: Final = 64
CHARSET_CHARS_MAX: Final = 32
REFUSED_MAX: Final = 1_000_000_000
"""Calls that one event can say were refused in its minute; more is no count, and would overflow a sum."""
_BOOT_CHARS: Final = 16
_NEVER: Final = 1 << 63


class Refusal(NamedTuple):
    """Calls that a hold kept from a target in one minute, as one replica told it."""

    seq: int
    time_ms: int
    target: Target
    replica: str
    rule: str
    calls: int


class HistoryAct(NamedTuple):
    """What an operator did, or a policy that was set."""

    seq: int
    time_ms: int
    scope: Scope | None
    event: Override | PolicyChanged


Step: TypeAlias = DerivedEvent | Refusal | HistoryAct


class CallCounts:
    """Calls of one target, minute and kind."""

    __slots__ = ("calls", "fallback", "forced", "streamed", "took", "took_ms", "trials", "ttft")

    def __init__(self) -> None:
        self.calls = self.forced = self.trials = self.streamed = self.fallback = self.took_ms = 0
        self.took: Histogram = {}
        self.ttft: Histogram = {}


class Heard:
    """One replica: what it sent, and under which boots."""

    __slots__ = ("answered", "boots", "first_ms", "last_ms", "outcomes", "probes", "refused", "repeated")

    def __init__(self, now_ms: int) -> None:
        self.first_ms = self.last_ms = now_ms
        self.outcomes = self.answered = self.probes = self.refused = self.repeated = 0
        self.boots: dict[str, list[int]] = {}
        """By boot: first and last log time, events."""


class Page:
    """Increments in the order of the log, up to `seq`. After a page with `roll_ms`, what is old is rolled up."""

    __slots__ = ("calls", "charsets", "events", "heard", "other", "refused", "repeated", "roll_ms", "routes", "scopes",
                 "seq", "steps", "time_ms", "unread")  # fmt: skip

    def __init__(self, seq: int, time_ms: int) -> None:
        self.seq, self.time_ms = seq, time_ms
        self.roll_ms = 0
        """The beginning of the hour that log time enters after this page; 0 if it enters none."""
        self.events = self.repeated = self.other = 0
        self.scopes: dict[str, None] = {}
        """Scope keys in the order in which they were first met."""
        self.calls: dict[tuple[str, int, str], CallCounts] = {}
        """By scope key, minute (ms) and kind."""
        self.refused: dict[tuple[str, int, str], int] = {}
        """By scope key, minute and rule."""
        self.routes: dict[tuple[str, int], list[int]] = {}
        """By route and minute: calls, answered, answered by a fallback, targets skipped."""
        self.charsets: dict[tuple[str, str, int], list[int]] = {}
        """By host, charset and minute: answers, event streams among them, damaged ones."""
        self.heard: dict[str, Heard] = {}
        self.steps: list[Step] = []
        self.unread: dict[str, list[int]] = {}
        """By reason of poison: how many, the last one's sequence."""


class History:
    """Events to pages. `time_ms` is the log time before the first event, `rolled_ms` the hour rolled up last."""

    def __init__(self, *, seq: int = 0, time_ms: int = 0, rolled_ms: int = 0) -> None:
        self.time_ms = time_ms
        self.rolled_ms = rolled_ms
        self._page = Page(seq, time_ms)
        self._whole: list[Page] = []
        self._routes: dict[str, tuple[Heard, str, str]] = {}

    @property
    def events(self) -> int:
        """Events since the last take."""
        return self._page.events + sum([page.events for page in self._whole])

    @property
    def seq(self) -> int:
        """The last sequence that was added or passed."""
        return self._page.seq

    def add(
        self,
        subjects: Sequence[str],
        events: Sequence[Event | Poison],
        seqs: Sequence[int],
        times_ms: Sequence[int],
        *,
        derived: Sequence[DerivedEvent],
        passed_over: Mapping[int, str],
    ) -> None:
        """Take a batch of the log with what the fold concluded from it and which events it set aside."""
        told = iter(derived)
        next_told = next(told, None)
        cause_seq = next_told.cause_seq if next_told is not None else _NEVER
        now_ms = self.time_ms
        for subject, event, seq, time_ms in zip(subjects, events, seqs, times_ms, strict=True):
            if time_ms > now_ms or now_ms - time_ms >= STEP_BACK_MS:  # log time, as the fold has it (SPEC 6)
                now_ms = time_ms
                if now_ms - self.rolled_ms >= HOUR_MS:
                    self._turn(now_ms)
            page = self._page
            page.seq, page.time_ms = seq, now_ms
            page.events += 1
            if seq in passed_over:
                self._aside(subject, event, passed_over[seq], now_ms)
            elif type(event) is CallOutcome:
                self._outcome(page, subject, event, now_ms)
            else:
                self._event(page, subject, event, now_ms)
            while cause_seq <= seq:
                assert next_told is not None
                self._told(next_told)
                next_told = next(told, None)
                cause_seq = next_told.cause_seq if next_told is not None else _NEVER
        self.time_ms = now_ms
        while next_told is not None:  # of events that the log has lost
            self._told(next_told)
            next_told = next(told, None)

    def passed(self, seq: int) -> None:
        """Go past a gap."""
        self._page.seq = seq

    def take(self) -> list[Page]:
        """All increments since the last take, in order; the last page may be empty."""
        taken = [*self._whole, self._page]
        self._whole = []
        self._begin()
        return taken

    def _begin(self) -> None:
        self._page = Page(self._page.seq, self._page.time_ms)
        self._routes.clear()

    def _turn(self, now_ms: int) -> None:
        """Log time enters an hour later than any before: end the page, so that the roll-up has its place in the log."""
        is_first = not self.rolled_ms
        self.rolled_ms = now_ms - now_ms % HOUR_MS
        if not is_first:
            self._page.roll_ms = self.rolled_ms
            self._whole.append(self._page)
            self._begin()

    def _told(self, event: DerivedEvent) -> None:
        self._page.scopes[event.scope.key] = None
        self._page.steps.append(event)

    def _route(self, subject: str, now_ms: int) -> tuple[Heard, str, str]:
        """The replica's counts, the target's key and its host. Raises `Poison` for another subject."""
        found = self._routes.get(subject)
        if found is None:
            address = read_subject(subject)
            assert address.target is not None
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            key, page = address.target.key, self._page
            found = (self._heard(address.replica, now_ms), key, address.target.scope.host)
            page.scopes[key] = None
            self._routes[subject] = found
        return found

    def _heard(self, replica: str, now_ms: int) -> Heard:
        found = self._page.heard.get(replica)
        if found is None:
            found = self._page.heard[replica] = Heard(now_ms)
        return found

    def _outcome(self, page: Page, subject: str, event: CallOutcome, now_ms: int) -> None:
        """Runs for every event of the log."""
        heard, key, host = self._routes.get(subject) or self._route(subject, now_ms)
        minute_ms = now_ms - now_ms % MINUTE_MS
        _note(heard, event.id, now_ms)
        heard.outcomes += 1
        cell = page.calls.get((key, minute_ms, event.kind))
        if cell is None:
            cell = page.calls[key, minute_ms, event.kind] = CallCounts()
        cell.calls += 1
        duration_ms = event.took_ms
        if duration_ms is not None:
            bound = bound_ms(duration_ms)
            cell.took[bound] = cell.took.get(bound, 0) + 1
            cell.took_ms += int(duration_ms)
        duration_ms = event.ttft_ms
        if duration_ms is not None:
            bound = bound_ms(duration_ms)
            cell.ttft[bound] = cell.ttft.get(bound, 0) + 1
        if event.stream:
            cell.streamed += 1
        if event.forced:
            cell.forced += 1
        if event.trial:
            cell.trials += 1
        if event.rank > 0:
            cell.fallback += 1
        if event.route is not None:
            _of_route(page, event, minute_ms)
        if event.charset is not None:
            _of_charset(page, host, event, minute_ms)

    def _event(self, page: Page, subject: str, event: Event | Poison, now_ms: int) -> None:
        if isinstance(event, Override | PolicyChanged):
            scope = read_subject(subject).scope
            if scope is not None:
                page.scopes[scope.key] = None
            page.steps.append(HistoryAct(page.seq, now_ms, scope, event))
        elif not isinstance(event, Poison):
            heard = self._route(subject, now_ms)[0]
            _note(heard, event.id, now_ms)
            if isinstance(event, ProbeResult):
                heard.probes += 1
            elif isinstance(event, CallsRefused):
                _of_refusal(page, heard, subject, event, now_ms)
            else:
                heard.answered += 1

    def _aside(self, subject: str, event: Event | Poison, why: str, now_ms: int) -> None:
        """What the fold did not count is counted apart: repeated, from targets beyond its bounds, or unreadable."""
        page = self._page
        if why not in ("repeated", "other") or isinstance(event, Poison):
            count = page.unread.setdefault(why[:NAME_CHARS_MAX], [0, 0])
            count[0] += 1
            count[1] = page.seq
            return
        heard = self._heard(read_subject(subject).replica, now_ms)
        heard.last_ms = now_ms
        if why == "repeated":
            page.repeated += 1
            heard.repeated += 1
        else:
            page.other += 1


def _note(heard: Heard, event_id: str | None, now_ms: int) -> None:
    heard.last_ms = now_ms
    if event_id is not None:
        boot = heard.boots.get(event_id[:_BOOT_CHARS])
        if boot is not None:
            boot[1] = now_ms
            boot[2] += 1
        elif _is_boot(event_id):
            heard.boots[event_id[:_BOOT_CHARS]] = [now_ms, now_ms, 1]


def _is_boot(event_id: str) -> bool:
    boot, dash, number = event_id.partition("-")
    return (
        bool(dash) and len(boot) == _BOOT_CHARS and number.isdecimal() and not set(boot) - set("0123456789abcdefABCDEF")
    )


def _of_route(page: Page, event: CallOutcome, minute_ms: int) -> None:
    """One attempt of a call of a chain (SPEC 4.5, sustained fallback)."""
    name = (event.route or "")[:NAME_CHARS_MAX]
    counts = page.routes.get((name, minute_ms))
    if counts is None:
        counts = page.routes[name, minute_ms] = [0, 0, 0, 0]
    counts[0] += 1
    if event.kind == "ok":
        counts[1] += 1
        counts[2] += event.rank > 0
        counts[3] += len(event.skipped or ())


def _of_charset(page: Page, host: str, event: CallOutcome, minute_ms: int) -> None:
    key = (host, (event.charset or "")[:CHARSET_CHARS_MAX].lower(), minute_ms)
    counts = page.charsets.get(key)
    if counts is None:
        counts = page.charsets[key] = [0, 0, 0]
    counts[0] += 1
    counts[1] += event.stream
    counts[2] += event.kind == "mangled_output"


def _of_refusal(page: Page, heard: Heard, subject: str, event: CallsRefused, now_ms: int) -> None:
    address = read_subject(subject)
    target = address.target
    assert target is not None
    rule, calls = event.rule[:NAME_CHARS_MAX], min(event.count, REFUSED_MAX)
    heard.refused += calls
    cell = (target.key, now_ms - now_ms % MINUTE_MS, rule)
    page.refused[cell] = page.refused.get(cell, 0) + calls
    page.steps.append(Refusal(page.seq, now_ms, target, address.replica, rule, calls))
