"""`sickbay doctor`: what is wrong with an installation, and what to do about each finding."""

from __future__ import annotations

import contextlib
import json
import time
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec
import nats.errors
import typer
from nats.aio.client import Client

from sickbay_events import parse_rfc3339

from ..bus.connect import BusError, ConnectError, NatsOptions, PermissionDenied, connect, request
from ..bus.jetstream import ApiError, JetStreamApi
from ..bus.topology import DEAD, GATE_STREAM, LOG, Limits, NoJetStream, TopologyReport, check, require_jetstream
from ..config import Settings
from .base import (
    CONNECT_TIMEOUT_S,
    AsJson,
    DataFolder,
    NatsUrl,
    console,
    nats_options,
    print_json,
    rows,
    run,
    seconds,
    settings,
    table,
)
from .look import status_facts

Level: TypeAlias = Literal["ok", "note", "warn", "bad"]

SERVER_MIN: Final = (2, 11)
"""Message TTLs and delete markers came with this version."""
SERVER_TESTED: Final = (2, 15)
LOG_HOURS_MIN: Final = 24.0
RATE_WINDOW: Final = 10_000
"""Events back from the log's end over which the present rate is taken."""
CLOCK_OFF_S: Final = 2.0
LAG_MAX: Final = 1_000
CHECKPOINT_AGE_MAX_S: Final = 3.0
SUBJECTS_MAX: Final = 100_000
REQUEST_S: Final = 5.0
NAMED_MAX: Final = 10
"""Targets that one finding names."""
PERMISSION_WAIT_S: Final = 1.0


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing looked at. `do` says what to do about it; empty when nothing is to be done."""

    what: str
    level: Level
    found: str
    do: str = ""


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(doctor)


def doctor(*, nats: NatsUrl = None, data: DataFolder = None, as_json: AsJson = False) -> None:
    """Examine NATS, the streams and the services, and say what to do about each finding. Exit code 1 if any is bad.

    Example: sickbay doctor --nats nats://nats.internal:4222
    """
    found = settings(nats=nats, data=data)
    findings = run(examine(nats_options(found, "sickbay-doctor"), found))
    bad = [finding for finding in findings if finding.level == "bad"]
    if as_json:
        print_json({"ok": not bad, "findings": msgspec.to_builtins(findings)})
    else:
        cells = ((one.level, one.what, one.found + (f"\n-> {one.do}" if one.do else "")) for one in findings)
        made = rows(table("", "", ""), cells)
        made.show_header = False
        console().print(made)
        warned = sum(one.level == "warn" for one in findings)
        console().print(f"{len(bad)} bad, {warned} to look at, {len(findings)} examined")
    if bad:
        raise typer.Exit(1)


async def examine(options: NatsOptions, wanted: Settings) -> list[Finding]:
    """All findings, in the order in which one rests on the other. Raises nothing that a server can cause."""
    denied: list[PermissionDenied] = []

    def note(error: Exception) -> None:
        if isinstance(error, PermissionDenied):
            denied.append(error)

    where = ", ".join(options.servers)
    try:
        client = await connect(options, timeout_s=CONNECT_TIMEOUT_S, on_error=note)
    except ConnectError as error:
        do = "start `sickbay serve` or NATS there, or name another with --nats"
        return [Finding(what="connection", level="bad", found=str(error), do=do)]
    try:
        findings = [Finding(what="connection", level="ok", found=f"{where}, {await _round_trip(client)}")]
        findings += await _examine(client, denied, wanted)
    finally:
        with contextlib.suppress(Exception):
            await client.close()
    return findings


async def _examine(client: Client, denied: list[PermissionDenied], wanted: Settings) -> list[Finding]:
    findings = [_version(client)]
    try:
        await require_jetstream(client)
    except NoJetStream as error:
        return [*findings, Finding(what="JetStream", level="bad", found=str(error), do="enable JetStream")]
    except BusError as error:
        return [*findings, Finding(what="JetStream", level="bad", found=str(error), do=_permission_hint(denied))]
    findings.append(Finding(what="JetStream", level="ok", found="enabled for this account"))
    for look in (
        partial(_topology, wanted.limits),
        _copies,
        _clock,
        _hours,
        partial(_disk_sync, wanted.data_folder),
        _permissions,
        _dead,
        _services,
        _unverified,
    ):
        try:
            findings += await look(client)
        except (BusError, nats.errors.Error, OSError) as error:
            name = look.func.__name__ if isinstance(look, partial) else look.__name__
            what = name.strip("_").replace("_", " ")
            hint = _permission_hint(denied) if denied else "see the message; the checks after it still ran"
            findings.append(Finding(what=what, level="warn", found=str(error) or type(error).__name__, do=hint))
    return findings


def _permission_hint(denied: list[PermissionDenied]) -> str:
    return f"{denied[0]}; doctor wants an operator's user" if denied else "look into the log of the NATS server"


async def _round_trip(client: Client) -> str:
    began_s = time.monotonic()
    await client.flush(timeout=2)
    return f"round trip {(time.monotonic() - began_s) * 1000:.1f} ms"


def _version(client: Client) -> Finding:
    text = str(client._server_info.get("version", "unknown"))
    digits = tuple(int(part) for part in text.split("-", maxsplit=1)[0].split(".")[:2] if part.isdigit())
    if digits < SERVER_MIN:
        do = f"update NATS to {SERVER_TESTED[0]}.{SERVER_TESTED[1]}: entries of the view need message TTLs"
        return Finding(what="server version", level="bad", found=text, do=do)
    if digits < SERVER_TESTED:
        do = f"tested with {SERVER_TESTED[0]}.{SERVER_TESTED[1]}; update when it suits"
        return Finding(what="server version", level="note", found=text, do=do)
    return Finding(what="server version", level="ok", found=text)


async def _topology(limits: Limits, client: Client) -> list[Finding]:
    found = await check(client, limits)
    findings = [Finding(what="streams", level="bad", found=text, do=_topology_hint(found)) for text in found.problems]
    findings += [
        Finding(what="streams", level="note", found=text, do="yours to choose; `sickbay serve` leaves it as it is")
        for text in found.notes
    ]
    if not found.problems:
        findings.insert(0, Finding(what="streams", level="ok", found=f"all {len(found.streams)} are there"))
    return findings


def _topology_hint(found: TopologyReport) -> str:
    if any(stream.state == "missing" for stream in found.streams):
        return "start `sickbay serve` once against this NATS: it makes what is missing"
    return "set it with `nats stream edit`; Sickbay never changes a stream that exists"


async def _clock(client: Client) -> list[Finding]:
    """The wall clock here against the server's, by half of the request's way."""
    began_s, began_ms = time.monotonic(), time.time() * 1000
    info = await _stream(client, GATE_STREAM)
    took_ms = (time.monotonic() - began_s) * 1000
    off_s = (parse_rfc3339(info["ts"]) - began_ms - took_ms / 2) / 1000
    if abs(off_s) > CLOCK_OFF_S:
        do = "set the clocks by NTP; holds go by the server's clock, `--until` by what you type"
        return [Finding(what="clock", level="warn", found=f"the server is {off_s:+.1f} s from here", do=do)]
    return [Finding(what="clock", level="ok", found=f"the server is {off_s * 1000:+.0f} ms from here")]


async def _copies(client: Client) -> list[Finding]:
    """In a cluster, whether the death of one server takes the log along."""
    info = await _stream(client, LOG)
    copies = int(info["config"].get("num_replicas", 1))
    if not info.get("cluster", {}).get("name") or copies > 1:
        return []
    do = f"`nats stream edit {LOG} --replicas 3`, so each SICKBAY stream; SICKBAY_STREAM_REPLICAS=3 for new ones"
    return [Finding(what="copies", level="warn", found="the cluster keeps the log on one server only", do=do)]


async def _hours(client: Client) -> list[Finding]:
    """How many hours the log holds at the rate of its newest events."""
    info = await _stream(client, LOG)
    state, config = info["state"], info["config"]
    subjects = int(state.get("num_subjects", 0))
    findings = []
    if subjects > SUBJECTS_MAX:
        do = "give replicas stable names (SICKBAY_REPLICA), not one per pod start"
        found = f"{subjects:,} subjects in the log"
        findings.append(Finding(what="subjects", level="warn", found=found, do=do))
    if state["messages"] < 2:
        return [Finding(what="log", level="ok", found=f"{state['messages']} events"), *findings]
    api = JetStreamApi(client, timeout_s=REQUEST_S)
    back = await api.message_at(LOG, max(state["first_seq"], state["last_seq"] - RATE_WINDOW), or_next=True)
    assert back is not None
    span_s = max((parse_rfc3339(info["ts"]) * 1_000_000 - back.time_ns) / 1e9, 1.0)
    per_s = (state["last_seq"] - back.seq + 1) / span_s
    hours, limit = hours_held(per_s, state["bytes"] / state["messages"], config)
    found = f"{state['messages']:,} events, {state['bytes'] / 1e6:,.1f} MB, {per_s:,.1f} a second now"
    found += f": holds {hours:,.0f} h (by {limit})" if hours is not None else ": no limit of age or size"
    if hours is not None and hours < LOG_HOURS_MIN:
        do = "raise max_bytes of SICKBAY_LOG (`nats stream edit`): a rebuild needs at least a day of events"
        return [Finding(what="log", level="warn", found=found, do=do), *findings]
    return [Finding(what="log", level="ok", found=found), *findings]


def hours_held(per_s: float, event_bytes: float, config: dict[str, Any]) -> tuple[float | None, str]:
    """Hours until the oldest event is dropped at a steady rate, and the limit that drops it."""
    limits: list[tuple[float, str]] = []
    if (age_ns := config.get("max_age", 0)) > 0:
        limits.append((age_ns / 3.6e12, "age"))
    if (size := config.get("max_bytes", -1)) > 0 and per_s > 0 and event_bytes > 0:
        limits.append((size / (per_s * event_bytes) / 3600, "size"))
    return min(limits, default=(None, ""))


async def _disk_sync(folder: Path, client: Client) -> list[Finding]:
    """`sync_interval` is known to the system account only, and to the embedded server's own folder."""
    url = client.connected_url
    with contextlib.suppress(OSError):
        config = (folder / "nats.conf").read_text(encoding="utf-8")
        if url is not None and f'listen: "127.0.0.1:{url.port}"' in config and url.hostname == "127.0.0.1":
            always = 'sync_interval: "always"' in config
            found = "every message before it is acknowledged" if always else "every 2 minutes"
            do = "" if always else "a power cut may lose acknowledged events: `sickbay serve --sync-always`"
            return [Finding(what="disk sync", level="ok" if always else "note", found=found, do=do)]
    try:
        reply = await request(client, "$SYS.REQ.SERVER.PING.JSZ", timeout_s=PERMISSION_WAIT_S)
        jetstream = json.loads(reply.data)["data"]["config"]
    except (BusError, nats.errors.Error, OSError, KeyError, ValueError):
        do = "look for sync_interval in the server's jetstream block; without it: every 2 minutes, `always` is safest"
        return [Finding(what="disk sync", level="note", found="only the system account may ask", do=do)]
    always = bool(jetstream.get("sync_always"))
    interval_s = jetstream.get("sync_interval", 0) / 1e9
    found = "every message before it is acknowledged" if always else f"every {seconds(interval_s)}"
    do = "" if always else "a power cut may lose acknowledged events: sync_interval: always"
    return [Finding(what="disk sync", level="ok" if always else "note", found=found, do=do)]


async def _permissions(client: Client) -> list[Finding]:
    """Whether this user may read the view and ask the services, as a router does."""
    findings: list[Finding] = []
    try:
        reply = await client.request(
            f"$JS.API.DIRECT.GET.{GATE_STREAM}", b'{"last_by_subj":"$KV.sickbay.gate.=.0"}', timeout=PERMISSION_WAIT_S
        )
        read = reply.headers is not None
    except (nats.errors.Error, OSError):
        read = False
    if read:
        findings.append(Finding(what="permissions", level="ok", found="may read the view"))
    else:
        do = f"allow publish on $JS.API.DIRECT.GET.{GATE_STREAM} and the answers under its inbox prefix"
        findings.append(Finding(what="permissions", level="bad", found="may not read the view", do=do))
    return findings


async def _dead(client: Client) -> list[Finding]:
    count = (await _stream(client, DEAD))["state"]["messages"]
    if not count:
        return [Finding(what="unreadable events", level="ok", found="none")]
    do = f"`nats stream view {DEAD}` shows subject, reason and beginning of each"
    return [Finding(what="unreadable events", level="note", found=f"{count} noted", do=do)]


async def _unverified(client: Client) -> list[Finding]:
    """Targets of which only a liveness check is known: an origin that answers, and nothing of the model."""
    found = await status_facts(client, everything=True)
    live = [f"{scope['provider']} {scope['model']}" for scope in found["scopes"] if scope.get("health") == "live"]
    if not live:
        return []
    more = f" and {len(live) - NAMED_MAX} more" if len(live) > NAMED_MAX else ""
    do = 'call them, or probe them with level = "readiness": a liveness check proves nothing of a model'
    text = f"only live, upstream unverified: {', '.join(live[:NAMED_MAX])}{more}"
    return [Finding(what="health", level="note", found=text, do=do)]


async def _services(client: Client) -> list[Finding]:
    """Who folds, how far behind, and how old the checkpoint is."""
    try:
        reply = await client.request("sickbay.v1.status", b'{"limit":1}', timeout=REQUEST_S)
    except nats.errors.NoRespondersError:
        do = "start `sickbay serve`: until then the gates go on with the last known holds and their own"
        return [Finding(what="services", level="bad", found="no service answers", do=do)]
    projector = json.loads(reply.data)["projector"]
    findings = [
        Finding(what="services", level="ok", found=f"{projector['name']} is {projector['phase']}"),
        _lag(projector),
        _checkpoint(projector),
    ]
    if projector["policy_differs"]:
        found = f"what serve was given differs from the one in force in {', '.join(projector['policy_differs'])}"
        do = "the log's policy counts: bring file and options in line with it, or `sickbay policy set`"
        findings.append(Finding(what="policy", level="warn", found=found, do=do))
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
    age_s = projector["checkpoint_age_s"]
    if age_s > CHECKPOINT_AGE_MAX_S or not projector["writer"]:
        do = "nobody writes the view: look into the services' log"
        return Finding(what="checkpoint", level="bad", found=f"{seconds(age_s)} old", do=do)
    return Finding(what="checkpoint", level="ok", found=f"{seconds(age_s)} old, by {projector['writer']}")


async def _stream(client: Client, name: str) -> dict[str, Any]:
    try:
        return await JetStreamApi(client, timeout_s=REQUEST_S).request(f"STREAM.INFO.{name}")
    except ApiError as error:
        raise BusError(f"stream {name}: {error}") from error
