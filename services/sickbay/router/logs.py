"""The log lines of a router: each hold and release once, skips and failovers counted. Logger `sickbay`.

Nothing is written to stderr: lines appear only where the router sets up logging.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from sickbay_events import Decision, GateEntry, Target
from sickbay_events.view import HoldView

from ..loggers import logger
from ..throttled import Throttled

_log = logger("sickbay")

SAY_EVERY_S: Final = 60.0
"""The same skip or failover is logged at most so often; those in between are counted."""
LOADED_MAX: Final = 20
"""A starting gate logs up to so many holds one by one, and the others as a number."""


def silence() -> None:
    """Keep the standard library from writing to stderr for loggers without a handler."""
    for name in ("sickbay", "nats"):
        found = logging.getLogger(name)
        if not any(isinstance(handler, logging.NullHandler) for handler in found.handlers):
            found.addHandler(logging.NullHandler())


class HoldLog:
    """WARNING for each hold of the cluster, INFO for each failed trial and release. A listener of the mirror."""

    def __init__(self, now_ms: Callable[[], int], is_loaded: Callable[[], bool]) -> None:
        self._now_ms, self._is_loaded = now_ms, is_loaded
        self._found = 0

    def changed(self, key: str, old: GateEntry | None, new: GateEntry | None) -> None:
        """An entry changed: log holds that are new and holds that ended early."""
        now_ms = self._now_ms()
        before = {(hold.rule, hold.began_seq): hold for hold in old.holds} if old else {}
        after = {(hold.rule, hold.began_seq): hold for hold in new.holds} if new else {}
        standing = {hold.rule for hold in before.values() if hold.end_ms > now_ms}
        for name, hold in after.items():
            if name not in before and hold.end_ms > now_ms:
                self._held(key, new, hold, now_ms, is_again=hold.rule in standing)
        for name, hold in before.items():
            if name not in after and (hold.end_ms > now_ms or hold.proof) and new is not None and not after:
                self._released(key, hold, new)

    def _held(self, key: str, entry: GateEntry | None, hold: HoldView, now_ms: int, *, is_again: bool) -> None:
        if not self._is_loaded():
            self._found += 1
            if self._found > LOADED_MAX:
                return
        left_s = (hold.end_ms - now_ms) / 1000
        by = f", by {hold.actor}: {hold.reason}" if hold.actor else ""
        _log.log(
            logging.INFO if is_again else logging.WARNING,
            "%s %s: %s, %d %s, last status %s, %.1f s%s%s",
            "still held" if is_again else "held",
            _name(entry, key),
            hold.rule,
            hold.count,
            hold.kind or "",
            hold.status,
            left_s,
            by,
            "" if hold.enforced else " (shadow: calls are let pass)",
            extra={
                "event": "held",
                "scope": key,
                "rule": hold.rule,
                "count": hold.count,
                "kind": hold.kind,
                "status": hold.status,
                "seconds": left_s,
                "began_seq": hold.began_seq,
                "enforced": hold.enforced,
            },
        )

    def _released(self, key: str, hold: HoldView, new: GateEntry) -> None:
        _log.info(
            "released %s: %s, by %s",
            _name(new, key),
            hold.rule,
            new.by or "the cluster",
            extra={"event": "released", "scope": key, "rule": hold.rule, "by": new.by, "began_seq": hold.began_seq},
        )

    def loaded(self) -> None:
        """The first load is over: log how many holds there are if not all were logged one by one."""
        if self._found > LOADED_MAX:
            _log.warning(
                "%d holds stand, of which %d are listed above", self._found, LOADED_MAX,
                extra={"event": "loaded", "holds": self._found},
            )  # fmt: skip


def _name(entry: GateEntry | None, key: str) -> str:
    """A scope as people write it."""
    if entry is None:
        return key
    return f"{entry.provider} / {entry.model}" if entry.model else entry.provider


class CallLog:
    """INFO for skipped calls and failovers, each (target, reason) at most once a minute, with counts."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._lines = Throttled(SAY_EVERY_S, monotonic)

    def skipped(self, target: Target, decision: Decision, count: int = 1) -> None:
        """`count` calls were kept from a held target since the last line about it."""
        count = self._lines.due(("skipped", target, decision.reason), count)
        if count:
            _log.info(
                "skipped %s / %s: %s, %.1f s left (%d since the last line)",
                target.provider,
                target.model,
                decision.reason,
                decision.retry_in_s,
                count,
                extra={
                    "event": "skipped",
                    "provider": target.provider,
                    "model": target.model,
                    "reason": decision.reason,
                    "rule": decision.rule,
                    "scope": decision.scope,
                    "seconds": decision.retry_in_s,
                    "source": decision.source,
                    "count": count,
                },
            )

    def failed_over(self, target: Target, rank: int, route: str | None) -> None:
        """A target that was not the first choice answered."""
        count = self._lines.due(("failed_over", target, route))
        if count:
            _log.info(
                "failed over to %s / %s (choice %d%s; %d since the last line)",
                target.provider,
                target.model,
                rank + 1,
                f" of {route}" if route else "",
                count,
                extra={
                    "event": "failed_over",
                    "provider": target.provider,
                    "model": target.model,
                    "rank": rank,
                    "route": route,
                    "count": count,
                },
            )

    def degraded(self, name: str, reason: str, text: str) -> None:
        """Optional work took its fallback."""
        count = self._lines.due(("degraded", name, reason))
        if count:
            _log.warning(
                "degraded %s: %s (%d since the last line): %s",
                name or "an optional call",
                reason,
                count,
                text,
                extra={"event": "degraded", "route": name or None, "reason": reason, "count": count},
            )
