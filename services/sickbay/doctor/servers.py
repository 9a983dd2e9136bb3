"""The NATS servers: version, encryption, copies, how often they sync, room on the disk, clocks."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from contextlib import suppress
from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from sickbay_events import parse_rfc3339

from ..bus.connect import BusError
from ..bus.jetstream import JetStreamApi
from ..bus.topology import CONTROL, DEAD, LOG, TRANSITIONS, TRIALS_STREAM
from ..config import is_loopback
from ..when import seconds
from .finding import REQUEST_S, Finding, Installation

SERVER_MIN: Final = (2, 11)
"""Message TTLs and delete markers came with this version."""
SERVER_TESTED: Final = (2, 15)
CLOCK_OFF_S: Final = 2.0
"""From here: what `--until` may be off. Between servers: a step back of the log's time that is believed."""
SYNC_DEFAULT_S: Final = 120.0
"""What a server does that was told nothing."""
FULL_WARN, FULL_BAD = 0.80, 0.95
DISK_FREE_MIN: Final = 1 << 30
ANSWERS_S: Final = 0.3
"""From the last server's answer on, how long another one is waited for."""
GIB: Final = 1 << 30


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """One server as it tells the system account."""

    name: str
    sync_s: float
    """0: before each acknowledgement."""
    used: int
    max_bytes: int
    off_s: float
    """How far its clock is ahead of the one here."""


def version(installation: Installation) -> list[Finding]:
    """Whether the server can do what the view needs."""
    text = str(installation.client._server_info.get("version", "unknown"))
    digits = tuple(int(part) for part in text.split("-", maxsplit=1)[0].split(".")[:2] if part.isdigit())
    if digits < SERVER_MIN:
        do = f"update NATS to {SERVER_TESTED[0]}.{SERVER_TESTED[1]}: entries of the view need message TTLs"
        return [Finding(what="server version", level="bad", found=text, do=do)]
    if digits < SERVER_TESTED:
        do = f"tested with {SERVER_TESTED[0]}.{SERVER_TESTED[1]}; update when it suits"
        return [Finding(what="server version", level="note", found=text, do=do)]
    return [Finding(what="server version", level="ok", found=text)]


def encryption(installation: Installation) -> list[Finding]:
    """Whether what goes to another machine, credentials first, can be read on the way."""
    info, url = installation.client._server_info, installation.client.connected_url
    transport: Any = installation.client._transport
    stream = getattr(transport, "_io_writer", None)
    is_tls = (stream is not None and stream.get_extra_info("ssl_object") is not None) or (
        url is not None and url.scheme == "wss"
    )
    found: list[Finding] = []
    away = url is not None and not is_loopback(url.hostname)
    if is_tls:
        found.append(Finding(what="encryption", level="ok", found="TLS"))
    elif away:
        do = "`sickbay nats-config` writes a configuration with TLS; then tls:// and SICKBAY_TLS_CA"
        said = "passwords and events go over the network in clear"
        found.append(Finding(what="encryption", level="warn", found=said, do=do))
    else:
        found.append(Finding(what="encryption", level="ok", found="none, within this machine"))
    if away and not info.get("auth_required"):
        do = "`sickbay nats-config` writes accounts and a user for each role"
        said = "the server asks for no credentials: whoever reaches it may hold, clear and delete"
        found.append(Finding(what="credentials", level="bad", found=said, do=do))
    return found


async def copies(installation: Installation) -> list[Finding]:
    """In a cluster, whether the death of one server takes the log along."""
    info = await installation.stream(LOG)
    count = int(info["config"].get("num_replicas", 1))
    if not info.get("cluster", {}).get("name") or count > 1:
        return []
    do = f"`nats stream edit {LOG} --replicas 3`, so each SICKBAY stream; SICKBAY_STREAM_REPLICAS=3 for new ones"
    return [Finding(what="copies", level="warn", found="the cluster keeps the log on one server only", do=do)]


async def disk_sync(installation: Installation) -> list[Finding]:
    """How often messages reach the disk: known of the embedded server, and to the system account."""
    if installation.is_embedded:
        config = (installation.settings.data_folder / "nats.conf").read_text(encoding="utf-8")
        if 'sync_interval: "always"' in config:
            return [_sync("ok", "every message before it is acknowledged")]
        do = "a power cut may lose acknowledged events: `sickbay serve --sync-always`"
        return [_sync("note", "every 2 minutes", do)]
    found = await servers(installation)
    if not found:
        do = "look for sync_interval in the jetstream block of each server (2 minutes without it), or --system FILE"
        return [_sync("note", "cannot be seen: only the system account may ask", do)]
    by_default = [server.name for server in found if server.sync_s == SYNC_DEFAULT_S]
    if by_default:
        do = "set sync_interval in the jetstream block on purpose: always, or such as 10s with three copies"
        said = f"every 2 minutes, which nobody chose: {', '.join(by_default)}; a power cut may lose as much"
        return [_sync("warn", said, do)]
    each = (
        f"{server.name} {'before each acknowledgement' if not server.sync_s else f'every {seconds(server.sync_s)}'}"
        for server in found
    )
    return [_sync("ok", ", ".join(each))]


def _sync(level: Any, found: str, do: str = "") -> Finding:
    return Finding(what="disk sync", level=level, found=found, do=do)


async def storage(installation: Installation) -> list[Finding]:
    """Room: of the account, of each server, of streams that refuse when they are full, of this machine's disk."""
    used: list[tuple[str, float]] = []
    info = await JetStreamApi(installation.client, timeout_s=REQUEST_S).request("INFO")
    if (most := int(info["limits"]["max_storage"])) > 0:
        used.append(("the account", int(info["storage"]) / most))
    used += [
        (f"server {one.name}", one.used / one.max_bytes) for one in await servers(installation) if one.max_bytes > 0
    ]
    for name in (CONTROL, installation.names.stream, TRIALS_STREAM, installation.names.snapshots_stream):
        with suppress(BusError):  # a missing stream is another check's finding
            of = await installation.stream(name)
            if int(of["config"].get("max_bytes", -1)) > 0:
                used.append((f"stream {name}", of["state"]["bytes"] / of["config"]["max_bytes"]))
    findings = [_fullness(name, share) for name, share in used if share >= FULL_WARN]
    if installation.is_embedded:
        disk = shutil.disk_usage(installation.settings.data_folder)
        share = disk.used / (disk.used + disk.free)
        if share >= FULL_BAD or disk.free < DISK_FREE_MIN:
            said = f"{disk.free / GIB:,.1f} GiB free where the events are, {share:.0%} used"
            do = "free some: a full disk stops every write, and the server wants a restart afterwards"
            findings.append(Finding(what="storage", level="bad", found=said, do=do))
    return findings or [Finding(what="storage", level="ok", found="there is room")]


def _fullness(name: str, share: float) -> Finding:
    do = "raise the limit (max_file_store, max_bytes, the account's), or `nats stream edit SICKBAY_LOG --max-bytes`"
    return Finding(
        what="storage", level="bad" if share >= FULL_BAD else "warn", found=f"{name} is {share:.0%} full", do=do
    )


async def clock(installation: Installation) -> list[Finding]:
    """The servers' clocks against the one here, by half of a request's way, and against each other.

    The leader of a stream answers for it, so without the system account no more servers are seen than lead one.
    """
    offs = {server.name: server.off_s for server in await servers(installation)}
    for name in (LOG, CONTROL, installation.names.stream, TRANSITIONS, DEAD):
        began_s, began_ms = time.monotonic(), time.time() * 1000
        with suppress(BusError):
            info = await installation.stream(name)
            took_ms = (time.monotonic() - began_s) * 1000
            leader = str(info.get("cluster", {}).get("leader", ""))
            offs.setdefault(leader, (parse_rfc3339(info["ts"]) - began_ms - took_ms / 2) / 1000)
    if not offs:
        raise BusError("no stream tells its server's time")
    return clock_findings(offs)


def clock_findings(offs: dict[str, float]) -> list[Finding]:
    """By how many seconds each server's clock is ahead of the one here."""
    worst = max(offs.values(), key=abs)
    if abs(worst) > CLOCK_OFF_S:
        do = "set the clocks by NTP; holds go by the server's clock, `--until` by what you type"
        findings = [Finding(what="clock", level="warn", found=f"the server is {worst:+.1f} s from here", do=do)]
    else:
        findings = [Finding(what="clock", level="ok", found=f"the server is {worst * 1000:+.0f} ms from here")]
    behind, ahead = min(offs, key=lambda name: offs[name]), max(offs, key=lambda name: offs[name])
    if (apart := offs[ahead] - offs[behind]) > CLOCK_OFF_S:
        do = "set them by NTP: when another server leads the log, log time steps, and with it the end of each hold"
        said = f"{behind} is {apart:.1f} s behind {ahead}"
        findings.append(Finding(what="clocks", level="bad", found=said, do=do))
    return findings


async def servers(installation: Installation) -> list[Server]:
    """Every server as it tells the system account; none where nobody here may ask."""
    client = installation.system
    if client is None:
        return []
    found: list[Server] = []
    began_s, began_ms = time.monotonic(), time.time() * 1000
    for reply in await _all_answers(client, "$SYS.REQ.SERVER.PING.JSZ"):
        with suppress(KeyError, ValueError, TypeError):
            told = json.loads(reply.data)
            data, took_ms = told["data"], (time.monotonic() - began_s) * 1000
            config = data["config"]
            off_s = (parse_rfc3339(data["now"]) - began_ms) / 1000
            found.append(
                Server(
                    name=str(told["server"]["name"]),
                    sync_s=0.0 if config.get("sync_always") else config.get("sync_interval", 0) / 1e9,
                    used=int(data.get("storage", 0)),
                    max_bytes=int(config.get("max_storage", 0)),
                    # The answer came some time within the wait: what that explains is no offset.
                    off_s=off_s - min(max(off_s, 0.0), took_ms / 1000),
                )
            )
    return sorted(found, key=lambda server: server.name)


async def _all_answers(client: Client, subject: str) -> list[Msg]:
    """What every server answers, until none has answered for a while."""
    inbox = client.new_inbox()
    replies = await client.subscribe(inbox)
    found: list[Msg] = []
    try:
        await client.publish(subject, b"", reply=inbox)
        with suppress(TimeoutError, nats.errors.Error):
            while True:
                reply = await asyncio.wait_for(replies.next_msg(), ANSWERS_S if found else 2.0)
                if reply.headers is None or "Status" not in reply.headers:
                    found.append(reply)
    finally:
        await replies.unsubscribe()
    return found
