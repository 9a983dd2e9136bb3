"""One active check of a target over HTTP, and what it proves.

    liveness    the origin answers anything at all: it costs nothing and says nothing of the model
    readiness   a tiny request truly round-trips, through to an upstream that generates

What is not proved is not claimed: an answer that no upstream can have given so fast counts as liveness.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import httpx

from sickbay_events import KINDS, ProbeResult, classify
from sickbay_events.kinds import Kind
from sickbay_events.lease_wire import LeaseName
from sickbay_events.outcome import Lease

from ..router.bodies import BODY_BYTES_MAX
from ..router.faults import fault_of
from .settings import Level, Probe, has_usage

FAST_MS: Final = 10
"""No upstream generates an answer in less; without token usage it came from something in between."""
SUSPICIOUS: Final = "suspiciously_fast"
UNPROVEN: Final = "unproven"
"""Signature of a 2xx in which neither an answer nor token usage was found."""
HTTP_S_MAX: Final = 150.0
"""httpx's own limit; each probe's is shorter."""
_FAILS: Final = ("rejection", "fault", "degraded", "throttle")
"""Groups of kinds that are a failed readiness check; the others are the probe's own set-up."""


class Checked(NamedTuple):
    """What one check found. `ok` None: the fault lies on this side, and nothing is said of the target."""

    level: Level
    ok: bool | None
    kind: Kind
    took_ms: int
    status: int | None = None
    usage: bool = False
    signature: str | None = None
    why: str = ""

    def event(self, probe: Probe, *, seen_seq: int | None, trial: Sequence[LeaseName]) -> ProbeResult:
        """It as an event of the log."""
        return ProbeResult(
            level=self.level,
            ok=bool(self.ok),
            kind=self.kind,
            status=self.status,
            took_ms=self.took_ms,
            limit_ms=round(probe.limit_s * 1000),
            usage=self.usage,
            signature=self.signature,
            trial=[Lease(lease.rule, lease.began_seq) for lease in trial] or None,
            seen_seq=seen_seq,
            interval_s=probe.interval_s,
        )


class Sent:
    """When a request began to be sent, on a connection that stood by then."""

    at_s = 0.0

    async def note(self, what: str, _info: dict[str, object]) -> None:
        """Told by httpx of each step."""
        if what.endswith(".send_request_headers.started"):
            self.at_s = time.monotonic()


def probe_client() -> httpx.AsyncClient:
    """The client that all checks of a process share."""
    return httpx.AsyncClient(follow_redirects=False, timeout=HTTP_S_MAX)


async def run_check(http: httpx.AsyncClient, probe: Probe, level: Level | None = None) -> Checked:
    """Make one check. Raises nothing that the network or the provider can cause."""
    level = level or probe.level
    asked = probe.ready if level == "readiness" else probe.live
    began_s, body, sent = time.monotonic(), bytearray(), Sent()
    try:
        async with (
            asyncio.timeout(probe.limit_s),
            http.stream(
                asked.method,
                asked.url,
                headers=asked.headers,
                content=asked.body or None,
                extensions={"trace": sent.note},
            ) as answer,
        ):
            if level == "readiness":
                async for piece in answer.aiter_bytes():
                    body += piece
                    if len(body) >= BODY_BYTES_MAX:
                        break
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        return _broken(error, level, probe, _ms(began_s))
    took_ms = _ms(began_s)
    if level == "liveness":
        return _live(answer.status_code, took_ms)
    return _ready(probe, answer, bytes(body), took_ms, _ms(sent.at_s or began_s))


def _broken(error: Exception, level: Level, probe: Probe, took_ms: int) -> Checked:
    fault = fault_of(error)
    text = f"{type(error).__name__}: {error}"
    if fault is None:
        return Checked(level, None, "unknown", took_ms, why=text)
    verdict = classify(status=None, headers={}, body=b"", requested_model=probe.target.model, error=fault)
    return Checked(level, False, verdict.kind, took_ms, signature=fault, why=text)


def _live(status: int, took_ms: int) -> Checked:
    if status < 500:
        return Checked("liveness", True, "unknown", took_ms, status, why=f"HTTP {status}")
    return Checked("liveness", False, "server_error", took_ms, status, why=f"HTTP {status}")


def _ready(probe: Probe, answer: httpx.Response, body: bytes, took_ms: int, answered_ms: int) -> Checked:
    """What an answer to the tiny request proves. `answered_ms`: from its sending on, without the connection."""
    status = answer.status_code
    verdict = classify(
        status=status,
        headers=answer.headers,
        body=body,
        requested_model=probe.target.model,
        provider=probe.target.provider.partition("#")[0],
        prompt_ascii=True,
        client_capped=True,
    )
    usage, why = has_usage(body), f"HTTP {status}"
    if verdict.kind == "ok" and 200 <= status < 300:
        if not usage and answered_ms < FAST_MS:
            why = f"HTTP {status} after {answered_ms} ms and without token usage: no upstream answers so fast"
            return Checked("liveness", True, "unknown", took_ms, status, usage, SUSPICIOUS, why)
        if not usage and not verdict.checkable:
            why = f"HTTP {status} without an answer or token usage in it"
            return Checked("liveness", True, "unknown", took_ms, status, usage, UNPROVEN, why)
        return Checked("readiness", True, "ok", took_ms, status, usage, verdict.signature, why)
    if KINDS[verdict.kind].group in _FAILS:
        return Checked("readiness", False, verdict.kind, took_ms, status, usage, verdict.signature, why)
    # The request is refused, not the target: that is the probe's own key, path or body.
    why = f"HTTP {status}, {verdict.kind}: the probe's own request is at fault"
    return Checked("liveness", status < 500, verdict.kind, took_ms, status, usage, verdict.signature, why)


def _ms(began_s: float) -> int:
    return round((time.monotonic() - began_s) * 1000)
