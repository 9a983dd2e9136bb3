"""From a file of another system to a log file: read, classified, sorted by time, numbered.

    done = import_file("litellm", Path("spend.jsonl"), Path("week.jsonl.zst"), setup)

The same file gives the same bytes each time: times are the rows' own, sequences count in their order, and ids are made
of the content. A row that cannot be read goes into the file of rejects by its number and the reason, never by its
text, which may hold what people wrote.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec

from sickbay_events import CallOutcome, EventError, encode, read_subject, rfc3339
from sickbay_events.redact import redact

from ..log.file import LogFile, LogFileError, LogLine, open_writer
from .calls import Call, NotACall, RowRefused, event_of
from .fields import Setup
from .formats import FORMATS
from .sorting import Sorter
from .source import SourceRow, open_source

SHOWN_MAX: Final = 5
"""Rejects that are kept to be shown; the file has them all."""
TARGETS_MAX: Final = 100_000


class RowRejected(msgspec.Struct, frozen=True, kw_only=True):
    """A row of which no event was made."""

    row: int
    """Its line, or of an array its number; from 1."""
    field: str
    why: str


class Imported(msgspec.Struct, kw_only=True):
    """What an import did, or would do."""

    rows: int = 0
    events: int = 0
    passed: Counter[str] = msgspec.field(default_factory=Counter)
    """Rows that are no calls to a provider, by why."""
    rejected: Counter[str] = msgspec.field(default_factory=Counter)
    """Rows that could not be read, by the field that was at fault."""
    kinds: Counter[str] = msgspec.field(default_factory=Counter)
    targets: set[str] = msgspec.field(default_factory=set)
    first_ms: int = 0
    last_ms: int = 0
    unsorted: int = 0
    """Rows that were earlier than one before them."""
    unmeasured: int = 0
    """Calls whose length is unknown."""
    shown: list[RowRejected] = []

    def facts(self) -> dict[str, Any]:
        """For people's programs."""
        return {
            "rows": self.rows,
            "events": self.events,
            "passed": dict(self.passed.most_common()),
            "rejected": dict(self.rejected.most_common()),
            "kinds": dict(self.kinds.most_common()),
            "targets": len(self.targets),
            "from": rfc3339(self.first_ms) if self.events else None,
            "to": rfc3339(self.last_ms) if self.events else None,
            "unsorted": self.unsorted,
            "without_length": self.unmeasured,
            "first_rejects": [msgspec.to_builtins(one) for one in self.shown],
        }


def import_file(
    form: str,
    source: Path,
    out: Path | None,
    setup: Setup,
    *,
    rejects: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> Imported:
    """Import; `out` None is a dry run, which writes nothing. `rejects` is written if there are any.

    Raises `FileExistsError` for a name that is taken, `OSError`, `InvalidValue` for a map that cannot be.
    """
    for path in (out, rejects):
        if path is not None and str(path) != "-" and path.exists():
            raise FileExistsError(f"{path} exists already; name another file or remove it first")
    running = _Import(form, setup)
    with Sorter() as sorter, _Rejects(rejects if out is not None else None) as refused:
        with open_source(source) as stream:
            for row in FORMATS[form].rows(stream):
                found = running.take(row)
                if isinstance(found, RowRejected):
                    refused.add(found)
                elif found is not None and out is not None:
                    sorter.add(*found)
                if progress is not None and running.done.rows % 1_000 == 0:
                    progress(running.done.rows)
        if out is not None and running.done.events:
            _write(out, sorter, running.boot)
    return running.done


class _Import:
    """Rows on their way to events, and what is counted of them."""

    def __init__(self, form: str, setup: Setup) -> None:
        self.done = Imported()
        self._call, self._setup = FORMATS[form].call, setup
        self._fingerprint = hashlib.sha256(form.encode())

    @property
    def boot(self) -> str:
        """The ids' first part: made of every event so far, in the order of the rows."""
        return self._fingerprint.hexdigest()[:16]

    def take(self, row: SourceRow) -> tuple[int, str, bytes] | RowRejected | None:
        """Time, subject and body of one row; None if it is no call."""
        done = self.done
        done.rows += 1
        if row.why:
            return self._reject(row, "row", redact(row.why))
        try:
            call = self._call(row.value, self._setup)
            subject, event = event_of(call)
        except NotACall as passed:
            done.passed[passed.why] += 1
            return None
        except RowRefused as error:
            return self._reject(row, error.field, error.why)
        payload = encode(event)
        self._fingerprint.update(b"%d %s %s\n" % (call.at_ms, subject.encode(), payload))
        self._count(call, event)
        return call.at_ms, subject, payload

    def _count(self, call: Call, event: CallOutcome) -> None:
        done = self.done
        done.events += 1
        done.kinds[event.kind] += 1
        done.unmeasured += event.took_ms is None
        done.unsorted += call.at_ms < done.last_ms
        done.first_ms = min(done.first_ms or call.at_ms, call.at_ms)
        done.last_ms = max(done.last_ms, call.at_ms)
        if len(done.targets) < TARGETS_MAX:
            done.targets.add(f"{call.provider} {call.model}")

    def _reject(self, row: SourceRow, field: str, why: str) -> RowRejected:
        reject = RowRejected(row=row.number, field=field, why=why)
        self.done.rejected[field] += 1
        if len(self.done.shown) < SHOWN_MAX:
            self.done.shown.append(reject)
        return reject


def _write(out: Path, sorter: Sorter, boot: str) -> None:
    with open_writer(out) as write:
        for seq, line in enumerate(sorter.sorted(), start=1):
            event_id = f"{boot}-{seq}"
            # The id is part of the event; what follows the brace is the body as it was encoded.
            payload = b'{"id":"%s",%s' % (event_id.encode(), line.payload[1:])
            headers: dict[str, str | list[str]] = {"Nats-Msg-Id": event_id}
            write(LogLine.of(seq, line.time_ms * 1_000_000, line.subject.decode(), headers, payload))


class _Rejects:
    """The file of rejects: it appears with the first of them."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: TextIO | None = None

    def __enter__(self) -> _Rejects:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, reject: RowRejected) -> None:
        if self._path is None:
            return
        if self._file is None:
            self._file = self._path.open("x", encoding="utf-8")
        self._file.write(msgspec.json.encode(reject).decode() + "\n")


def copy_log(source: Path, out: Path | None, progress: Callable[[int], None] | None = None) -> Imported:
    """A log file into another one, line for line: sequences, times, gaps and unreadable events stay as they are.

    Raises `LogFileError` for a file that is none, `FileExistsError`, `OSError`.
    """
    done, before_seq = Imported(), 0
    file = LogFile(source)

    def read(write: Callable[[LogLine], None] | None) -> None:
        nonlocal before_seq
        for line in file:
            if line.seq <= before_seq:
                why = f"sequence {line.seq} after {before_seq}: a log is in rising order"
                raise LogFileError(file.path, file.lines, why)
            before_seq = line.seq
            done.rows += 1
            done.events += 1
            done.first_ms = done.first_ms or line.time_ms
            done.last_ms = line.time_ms
            with suppress(EventError):
                target = read_subject(line.subject).target
                if target is not None and len(done.targets) < TARGETS_MAX:
                    done.targets.add(f"{target.provider} {target.model}")
            if write is not None:
                write(line)
            if progress is not None and done.rows % 1_000 == 0:
                progress(done.rows)

    if out is None:
        read(None)
    else:
        with open_writer(out) as write:
            read(write)
    if file.cut:
        done.passed[file.cut] += 1
    return done
