"""`target.<scope key>`: the counters of targets that are not simply well, for a person with `nats kv get`.

Recovery does not need them, and they come last: at most 500 puts a second, and gate entries go first.
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
"""A document with something to say is put again this often."""
KEPT_S: Final = 3_600
"""How long a document stands that is not put again."""
QUIET_S: Final = 60
"""How long the last document stands, which says that all is well again."""
_encode = msgspec.json.Encoder().encode


class Documents:
    """Puts documents of the keys given to `note`, and again every 10 s of those that had something to say."""

    def __init__(self, publisher: AckedPublisher, names: ViewNames) -> None:
        self.puts = 0
        self._publisher, self._prefix = publisher, names.target_prefix
        self._pending: dict[str, None] = {}
        self._shown: dict[str, tuple[float, Any]] = {}  # by key, oldest first: when it was put, and its `_in_kind`
        self._allowed = 0.0
        self._pumped_s = time.monotonic()

    def note(self, keys: Iterable[str]) -> None:
        """Something happened to these scopes that may change their documents."""
        self._pending.update(dict.fromkeys(keys))

    def start(self, fleet: Fleet) -> None:
        """Look at everything once: what the writer before has put is not known."""
        self._pending = dict.fromkeys(fleet.keys())
        self._shown.clear()

    def pump(self, fleet: Fleet, now_ms: int) -> None:
        """Put what is noted or to be put again, as far as the rate allows."""
        now_s = time.monotonic()
        self._allowed = min(self._allowed + (now_s - self._pumped_s) * PER_SECOND, PER_SECOND / 10)
        self._pumped_s = now_s
        looks = int(self._allowed)
        while looks > 0 and self._pending:
            key = next(iter(self._pending))
            del self._pending[key]
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
    """What a document says, without the numbers and times that always move; None if it says nothing."""
    operator = document["operator"]
    holds = [(hold["rule"], hold["began_seq"], hold["phase"]) for hold in document["holds"]]
    points = {name: says["points"] for name, says in document["evidence"].items() if says["points"]}
    told = (points.get("strikes"), sorted(points), holds, operator and (operator["action"], operator["seq"]))
    return told if any(told) else None
