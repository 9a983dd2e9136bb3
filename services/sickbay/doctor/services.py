"""The process that folds and writes: how far behind it is, and its health."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any, Final

import msgspec
import nats.errors

from sickbay_events import Checkpoint, parse_rfc3339
from sickbay_events.view import CHECKPOINT_KEY

from ..bus.connect import BusError
from ..bus.entries import read_entry
from ..config import is_loopback
from ..when import seconds
from .finding import REQUEST_S, Finding, Installation

LAG_MAX: Final = 1_000
CHECKPOINT_AGE_MAX_S: Final = 3.0
NAMED_MAX: Final = 10
"""Targets that one finding names."""
PAGE: Final = 1_000
HTTP_S: Final = 3.0
ANSWER_BYTES_MAX: Final = 1 << 20
EVERYWHERE: Final = ("0.0.0.0", "::", "[::]")  # noqa: S104 - read, not bound


async def ask_status(installation: Installation, **question: Any) -> dict[str, Any]:
    """The services' status. Raises `BusError`, `nats.errors.Error`, `TimeoutError`."""
    reply = await installation.client.request("sickbay.v1.status", json.dumps(question).encode(), timeout=REQUEST_S)
    if reply.headers and "Nats-Service-Error" in reply.headers:
        raise BusError(reply.headers["Nats-Service-Error"])
    found: dict[str, Any] = json.loads(reply.data)
    return found


async def folding(installation: Installation) -> list[Finding]:
    """The process that folds, how far behind it is, and how old the checkpoint is."""
    try:
        projector = (await ask_status(installation, limit=1))["projector"]
    except nats.errors.NoRespondersError:
        do = "start `sickbay serve`: until then the gates go on with the last known holds and their own"
        return [Finding(what="services", level="bad", found="no service answers", do=do)]
    findings = [
        Finding(what="services", level="ok", found=f"{projector['name']} is {projector['phase']}"),
        _lag(projector),
        _checkpoint(projector) if not installation.names.name else await _checkpoint_of(installation),
    ]
    if projector["policy_differs"]:
        found = f"what serve was given differs from the one in force in {', '.join(projector['policy_differs'])}"
        do = "the log's policy counts: bring file and options in line with it, or `sickbay policy set`"
        findings.append(Finding(what="policy", level="warn", found=found, do=do))
    if dropped := projector.get("dropped"):
        told = ", ".join(
            f"{one['events']} of {one['replica']} since {one['since'][:19]}Z" for one in dropped[:NAMED_MAX]
        )
        do = "look what names it reports (a client may make them up), or raise bounds.* by `sickbay policy set`"
        found = f"events about new targets find no room: {told}"
        findings.append(Finding(what="bounds", level="warn", found=found, do=do))
    if projector["differs"]:
        do = "it reloads by itself; if this stays, compare versions of the services"
        findings.append(Finding(what="fold", level="bad", found="a standby's state differs from the writer's", do=do))
    return findings


def _lag(projector: dict[str, Any]) -> Finding:
    if projector["lag"] > LAG_MAX:
        do = "it catches up by itself; if this stays, the machine is too slow for the rate"
        return Finding(what="lag", level="warn", found=f"{projector['lag']:,} events not folded yet", do=do)
    return Finding(what="lag", level="ok", found=f"{projector['lag']} events")


def _checkpoint(projector: dict[str, Any]) -> Finding:
    return _written(projector["checkpoint_age_s"], projector["writer"])


async def _checkpoint_of(installation: Installation) -> Finding:
    """The same of a view with a name, which other processes may write than those that answer."""
    names = installation.names
    entry = await read_entry(installation.client, names.stream, names.gate_prefix + CHECKPOINT_KEY)
    if entry is None or entry.gone:
        return _written(float("inf"), "")
    now_ms = parse_rfc3339((await installation.stream(installation.names.stream))["ts"])
    age_s = (now_ms - entry.time_ns / 1e6) / 1000
    return _written(max(0.0, age_s), msgspec.json.decode(entry.payload, type=Checkpoint).writer)


def _written(age_s: float, writer: str) -> Finding:
    if age_s > CHECKPOINT_AGE_MAX_S or not writer:
        do = "nobody writes the view: look into the services' log"
        found = f"{seconds(age_s)} old" if age_s != float("inf") else "there is none"
        return Finding(what="checkpoint", level="bad", found=found, do=do)
    return Finding(what="checkpoint", level="ok", found=f"{seconds(age_s)} old, by {writer}")


async def unverified(installation: Installation) -> list[Finding]:
    """Targets of which only a liveness check is known: an origin that answers, and nothing of the model."""
    live: list[str] = []
    after = ""
    while True:
        try:
            page = await ask_status(installation, all=True, limit=PAGE, after=after)
        except nats.errors.NoRespondersError:
            return []  # another check's finding
        live += [f"{scope['provider']} {scope['model']}" for scope in page["scopes"] if scope.get("health") == "live"]
        if not (after := page["next"] or ""):
            break
    if not live:
        return []
    more = f" and {len(live) - NAMED_MAX} more" if len(live) > NAMED_MAX else ""
    do = 'call them, or probe them with level = "readiness": a liveness check proves nothing of a model'
    text = f"only live, upstream unverified: {', '.join(live[:NAMED_MAX])}{more}"
    return [Finding(what="health", level="note", found=text, do=do)]


async def over_http(installation: Installation) -> list[Finding]:
    """What `sickbay serve` tells over HTTP of its children, and whether others may read there without a token."""
    address = installation.settings.http_address
    if address is None:
        return []
    host, port = address
    base = f"http://{'127.0.0.1' if host in EVERYWHERE else host}:{port}"
    status, health = await asyncio.to_thread(_get, f"{base}/healthz")
    if health is None:
        do = "a service with HTTP on this machine? SICKBAY_HTTP says where; nothing is wrong if it runs elsewhere"
        return [Finding(what="HTTP", level="note", found=f"nothing answers at {host}:{port}", do=do)]
    findings = [Finding(what="HTTP", level="ok", found=f"{host}:{port} answers {status}")]
    if not is_loopback(host):
        status, _ = await asyncio.to_thread(_get, f"{base}/v1/status")
        if status == 200:
            do = "SICKBAY_HTTP_ANONYMOUS=none, and `sickbay token NAME --roles read` for who is to read"
            said = f"whoever reaches {host}:{port} reads every name and hold without a token"
            findings.append(Finding(what="HTTP", level="warn", found=said, do=do))
    return [*findings, *_history(health.get("history")), *_alerts(health.get("alerts"))]


def _history(facts: Any) -> list[Finding]:
    if not facts or (facts["running"] and not facts["restarts"]):
        return []
    state = "it runs" if facts["running"] else "it does not run now"
    said = f"the historian was started again {facts['restarts']} times; {state}"
    do = "the services' log says why it ended; the file is made anew from the log when it is moved away"
    return [Finding(what="history", level="warn", found=said, do=do)]


def _alerts(facts: Any) -> list[Finding]:
    findings: list[Finding] = []
    for one in facts or ():
        if not one["ok"] or one["not_delivered"]:
            said = f"{one['name']}: {one['last_error'] or 'it works again'}; {one['waiting']} wait"
            said += f", {one['not_delivered']} were given up" if one["not_delivered"] else ""
            do = "`sickbay alerts test FILE` says what each receiver answers"
            findings.append(Finding(what="alerts", level="warn", found=said, do=do))
    return findings


def _get(url: str) -> tuple[int, dict[str, Any] | None]:
    """A status and a JSON object; None where nothing of ours answers. An address of this machine needs no proxy."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        try:
            with direct.open(url, timeout=HTTP_S) as reply:
                status, body = reply.status, reply.read(ANSWER_BYTES_MAX)
        except urllib.error.HTTPError as error:
            status, body = error.code, error.read(ANSWER_BYTES_MAX)
    except (OSError, HTTPException):  # the second where what listens there speaks no HTTP
        return 0, None
    try:
        found = json.loads(body)
    except ValueError:
        return status, None
    return status, found if isinstance(found, dict) else None
