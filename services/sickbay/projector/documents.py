"""`target.<scope key>`: the counters of targets with something to tell, for a person with `nats kv get`.

Never needed to recover, and last in line: at most 500 puts a second, and none that a gate entry waits for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from sickbay_projections import Fleet

from ..bus.publish import AckedPublisher
from ..bus.view_names import ViewNames

PER_SECOND: Final = 500
EVERY_S: Final = 10.0
"""A document is put again this often while it tells something."""
KEPT_S: Final = 3_600
"""How long one stands that nobody puts again."""
QUIET_S: Final = 60
"""How long the last one stands, which says that there is nothing more to tell."""
_encode = msgspec.json.Encoder().encode


class Documents:
    """Puts documents of what it is told about, and of what told something 10 s ago."""

    def __init__(self, publisher: AckedPublisher, names: ViewNames) -> None:
        self.puts = 0
        self._publisher, self._prefix = publisher, names.target_prefix
        self._due: dict[str, None] = {}
        self._shown: dict[str, tuple[float, Any]] = {}  # by key, oldest first: when it was put, and what in kind
        self._allowed = 0.0
        self._pumped_s = time.monotonic()

    def note(self, keys: Iterable[str]) -> None:
        """Something happened to these that may be worth telling."""
        self._due.update(dict.fromkeys(keys))

    def start(self, fleet: Fleet) -> None:
        """Look at everything once: what the one before has put, and what it has not, is not known."""
        self._due = dict.fromkeys(fleet.keys())
        self._shown.clear()

    def pump(self, fleet: Fleet, now_ms: int) -> None:
        """Put what is due, as far as the rate allows."""
        now_s = time.monotonic()
        self._allowed = min(self._allowed + (now_s - self._pumped_s) * PER_SECOND, PER_SECOND / 10)
        self._pumped_s = now_s
        looks = int(self._allowed)
        while looks > 0 and self._due:
            key = next(iter(self._due))
            del self._due[key]
            looks -= 1
            self._look(fleet, key, now_ms, now_s)
        while looks > 0 and self._shown:
            key = next(iter(self._shown))
            if now_s - self._shown[key][0] < EVERY_S:
                return
            looks -= 1
            self._look(fleet, key, now_ms, now_s)

    def _look(self, fleet: Fleet, key: str, now_ms: int, now_s: float) -> None:
        self._allowed -= 1
        put_s, before = self._shown.get(key, (0.0, None))
        document = fleet.document(key, now_ms)
        in_kind = None if document is None else _in_kind(document)
        if in_kind is None and before is None:
            return
        if in_kind == before and now_s - put_s < EVERY_S:
            self._shown[key] = (put_s, before)
            return
        self._shown.pop(key, None)  # the newest go to the end
        if in_kind is not None:
            self._shown[key] = (now_s, in_kind)
        told = document if document is not None else {"scope_key": key, "at_ms": now_ms}
        headers = {"Nats-TTL": f"{KEPT_S if in_kind is not None else QUIET_S}s"}
        self.puts += 1
        self._publisher.send(self._prefix + key, _encode(told), headers, lambda _: None)


def _in_kind(document: dict[str, Any]) -> Any:
    """What a document tells apart from numbers and times that always move; None if it tells nothing."""
    operator = document["operator"]
    holds = [(hold["rule"], hold["began_seq"], hold["phase"]) for hold in document["holds"]]
    faults = bool(document["fault_run"] or document["window_faults"])
    bad = bool(document["bad"] or document["damaged"])
    told = (document["strikes"], faults, bad, holds, operator and (operator["action"], operator["seq"]))
    return told if any(told) else None
