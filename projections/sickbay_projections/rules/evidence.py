"""What an event counts as, before any fold sees it: whose doing it was, and whether it says anything new."""

from __future__ import annotations

from typing import Final
from zlib import crc32

from sickbay_events.kinds import Kind
from sickbay_events.outcome import CallAnswered, CallOutcome, ProbeResult

from ..state.limits import RuleLimits
from ..state.model import ScopeState

REQUESTS_MAX: Final = 128
"""Request hashes remembered for one target."""


def as_outcome(event: CallAnswered | ProbeResult) -> CallOutcome:
    """A first content as a success, a leased probe as the outcome of its kind (SPEC 2 and 4)."""
    if isinstance(event, CallAnswered):
        return CallOutcome(kind="ok", queued_ms=event.queued_ms, seen_seq=event.seen_seq, trial=event.trial)
    return CallOutcome(
        kind=event.kind,
        status=event.status,
        took_ms=event.took_ms,
        limit_ms=event.limit_ms,
        queued_ms=event.queued_ms,
        seen_seq=event.seen_seq,
        trial=event.trial,
    )


def judged(event: CallOutcome, limits: RuleLimits, *, overlay: bool) -> Kind:
    """The kind as it counts: a caller's own doing, and what holds for nobody, is `unknown` (SPEC 3)."""
    kind = event.kind
    if event.scope == "none" and kind != "ok":
        return "unknown"
    if kind == "cancelled" and event.ttft_ms is None and (event.took_ms or 0) >= limits.impatience_ms:
        kind = "timeout"
    if kind == "timeout" and not overlay and event.limit_ms is not None and event.limit_ms < limits.impatience_ms:
        return "unknown"
    return kind


def is_repeat(state: ScopeState, event: CallOutcome, now_ms: int, limits: RuleLimits) -> bool:
    """Whether the target had an outcome of the same request less than 60 s ago; takes note of this one."""
    if event.request_hash is None:
        return False
    requests = state.requests
    if requests is None:
        requests = state.requests = {}
    name = f"{crc32(event.request_hash.encode('utf-8', 'surrogatepass')):08x}"
    before_ms = requests.get(name)
    requests[name] = now_ms
    if len(requests) > REQUESTS_MAX:
        newest = sorted(requests.items(), key=lambda item: (item[1], item[0]))[-(REQUESTS_MAX // 2) :]
        state.requests = {key: at_ms for key, at_ms in newest if now_ms < at_ms + limits.same_request_ms}
    return before_ms is not None and now_ms < before_ms + limits.same_request_ms
