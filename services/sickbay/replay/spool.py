"""Derived events of a replay, spooled to disk beyond 4 MiB."""

from __future__ import annotations

import json
import tempfile
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final

import msgspec

from sickbay_events import DerivedEvent, HealthChanged

SPOOL_BYTES: Final = 4 << 20
NEWEST_MAX: Final = 200


class DerivedSpool(AbstractContextManager["DerivedSpool"]):
    """Keeps derived events in order. `facts` gives all of them back; `newest` has those that a person looks at."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """By type: `held`, `released`, `health`, `warning`."""
        self.newest: deque[DerivedEvent] = deque(maxlen=NEWEST_MAX)
        """Holds, releases and warnings."""
        self.first_seq = self.first_ms = 0
        """Derived events with an earlier cause, by sequence or by log time, are left out."""
        self._spool = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115 - closed by __exit__

    def append(self, derived: list[DerivedEvent]) -> None:
        """Keep the derived events of some events of the log."""
        lines: list[bytes] = []
        for event in derived:
            if event.cause_seq < self.first_seq or event.time_ms < self.first_ms:
                continue
            self.counts[str(event.__struct_config__.tag)] += 1
            if not isinstance(event, HealthChanged):
                self.newest.append(event)
            lines.append(msgspec.json.encode(transition_fact(event)))
        if lines:
            self._spool.write(b"\n".join([*lines, b""]))

    def facts(self) -> Iterator[dict[str, Any]]:
        """Everything that was kept, in order."""
        self._spool.seek(0)
        for line in self._spool:
            yield json.loads(line)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._spool.close()


def transition_fact(event: DerivedEvent) -> dict[str, Any]:
    """A derived event as plain data, its scope in words."""
    scope = event.scope
    return {**msgspec.to_builtins(event), "scope": scope.key, "provider": scope.provider, "model": scope.model}
