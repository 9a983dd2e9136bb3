"""The streams: whether they are as the table has them, and what their limits drop."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Final

from sickbay_events import parse_rfc3339, rfc3339
from sickbay_projections import FOLD_VERSION

from ..bus.jetstream import JetStreamApi
from ..bus.topology import CONTROL, DEAD, LOG, TRANSITIONS, TopologyReport, check_streams
from ..bus.view_names import MAIN
from ..control.lag import WAIT_MAX_S, ControlLag
from ..log.snapshots import list_snapshots
from ..when import seconds
from .finding import REQUEST_S, Finding, Installation

LOG_HOURS_MIN: Final = 24.0
RATE_WINDOW: Final = 10_000
"""Messages back from a stream's end over which the present rate is taken."""
SUBJECTS_MAX: Final = 100_000
LATELY_S: Final = 86_400
BUCKET_PREFIX: Final = f"{MAIN.stream}-"
"""Of the stream of a view that has a name."""


async def topology(installation: Installation) -> list[Finding]:
    """Each stream against the table, and which other views there are."""
    found = await check_streams(installation.client, installation.settings.limits, installation.names)
    findings = [Finding(what="streams", level="bad", found=text, do=_hint(found)) for text in found.problems]
    findings += [
        Finding(what="streams", level="note", found=text, do="yours to choose; `sickbay serve` leaves it as it is")
        for text in found.notes
    ]
    if not found.problems:
        findings.insert(0, Finding(what="streams", level="ok", found=f"all {len(found.streams)} are there"))
    return [*findings, *await _views(installation)]


def _hint(found: TopologyReport) -> str:
    if any(stream.state == "missing" for stream in found.streams):
        return "start `sickbay serve` once against this NATS: it makes what is missing"
    return "set it with `nats stream edit`; Sickbay never changes a stream that exists"


async def _views(installation: Installation) -> list[Finding]:
    """Views by other names than the one looked at: somebody may follow or write the wrong one."""
    answer = await JetStreamApi(installation.client, timeout_s=REQUEST_S).request("STREAM.NAMES", {"subject": "$KV.>"})
    streams = answer.get("streams") or []
    names = [name.removeprefix(BUCKET_PREFIX) for name in streams if name.startswith(BUCKET_PREFIX)]
    others = [name for name in names if name != installation.names.name]
    looked_at = installation.names.name or "without a name"
    if not others:
        return []
    do = "`sickbay doctor --view NAME` looks at another; a view that nobody writes any more: `nats kv del BUCKET`"
    said = f"this is about the one {looked_at}; there is also {', '.join(others)}"
    return [Finding(what="views", level="note", found=said, do=do)]


async def hours(installation: Installation) -> list[Finding]:
    """How many hours log and transitions hold at the rate of their newest messages; whether acts are ever dropped."""
    findings: list[Finding] = []
    for name, what, do in (
        (LOG, "log", f"raise max_bytes of {LOG} (`nats stream edit`): a rebuild needs at least a day of events"),
        (
            TRANSITIONS,
            "transitions",
            f"raise the limits of {TRANSITIONS} (`nats stream edit`): warnings look a day back",
        ),
    ):
        info = await installation.stream(name)
        found, is_short = await _held(installation, name, info)
        if is_short or name == LOG:
            level = "warn" if is_short else "ok"
            findings.append(Finding(what=what, level=level, found=found, do=do if is_short else ""))  # type: ignore[arg-type]
        subjects = int(info["state"].get("num_subjects", 0))
        if name == LOG and subjects > SUBJECTS_MAX:
            do = "give replicas stable names (SICKBAY_REPLICA), not one per pod start"
            findings.append(Finding(what="subjects", level="warn", found=f"{subjects:,} subjects in the log", do=do))
    config = (await installation.stream(CONTROL))["config"]
    limits = [field for field in ("max_age", "max_bytes", "max_msgs") if int(config.get(field) or 0) > 0]
    if limits:
        do = f"take the limit off {CONTROL} (`nats stream edit`): a rebuild needs every override and policy"
        said = f"{CONTROL} drops operators' acts by {', '.join(limits)}"
        findings.append(Finding(what="control", level="bad", found=said, do=do))
    return findings


async def acts(installation: Installation) -> list[Finding]:
    """Whether what operators decided gets into the log, without which it is not in force."""
    found = ControlLag()
    await found.see(installation.client)
    if found.waiting_s < WAIT_MAX_S:
        return [Finding(what="acts", level="ok", found="the log has all of them")]
    said = f"an act or a policy has been stored for {seconds(found.waiting_s)} and is not in force: the log has it not"
    do = f"`nats stream cluster step-down {LOG}`, as the writer does once a minute; a server alone: restart it"
    return [Finding(what="acts", level="bad", found=said, do=do)]


async def _held(installation: Installation, name: str, info: dict[str, Any]) -> tuple[str, bool]:
    """What a stream holds in words, and whether that is less than a day's."""
    state, config = info["state"], info["config"]
    per_s, size = 0.0, 0.0
    found = f"{state['messages']} events"
    if state["messages"] >= 2:
        api = JetStreamApi(installation.client, timeout_s=REQUEST_S)
        back = await api.message_at(name, max(state["first_seq"], state["last_seq"] - RATE_WINDOW), or_next=True)
        assert back is not None
        span_s = max((parse_rfc3339(info["ts"]) * 1_000_000 - back.time_ns) / 1e9, 1.0)
        per_s, size = (state["last_seq"] - back.seq + 1) / span_s, state["bytes"] / state["messages"]
        found = f"{state['messages']:,} events, {state['bytes'] / 1e6:,.1f} MB, {per_s:,.1f} a second now"
    kept, limit = hours_held(per_s, size, config)
    if state["messages"] >= 2 or (kept is not None and kept < LOG_HOURS_MIN):
        found += f": holds {kept:,.0f} h (by {limit})" if kept is not None else ": no limit of age or size"
    return found, kept is not None and kept < LOG_HOURS_MIN


def hours_held(per_s: float, event_bytes: float, config: dict[str, Any]) -> tuple[float | None, str]:
    """Hours until the oldest event is dropped at a steady rate, and the limit that drops it."""
    limits: list[tuple[float, str]] = []
    if (age_ns := config.get("max_age", 0)) > 0:
        limits.append((age_ns / 3.6e12, "age"))
    if (size := config.get("max_bytes", -1)) > 0 and per_s > 0 and event_bytes > 0:
        limits.append((size / (per_s * event_bytes) / 3600, "size"))
    return min(limits, default=(None, ""))


async def dead(installation: Installation) -> list[Finding]:
    """Events that could not be read, and whether there were any lately."""
    state = (await installation.stream(DEAD))["state"]
    count = state["messages"]
    if not count:
        return [Finding(what="unreadable events", level="ok", found="none")]
    last_ms = parse_rfc3339(state["last_ts"])
    lately = time.time() * 1000 - last_ms < LATELY_S * 1000
    do = f"`nats sub 'sickbay.dead.>' --stream {DEAD} --all --raw --wait=1s` shows reason and beginning of each"
    if lately:
        do += "; reason version: upgrade the projectors first"
    said = f"{count} noted, the last at {rfc3339(last_ms)[:19]}Z"
    return [Finding(what="unreadable events", level="warn" if lately else "note", found=said, do=do)]


async def fold_versions(installation: Installation) -> list[Finding]:
    """Snapshots of another fold version: a start cannot begin from them, and rebuilds from the log."""
    found = Counter(one.info.fold for one in await list_snapshots(installation.client, installation.names))
    if not found or set(found) == {FOLD_VERSION}:
        return []
    others = ", ".join(f"{count} of version {fold}" for fold, count in sorted(found.items()) if fold != FOLD_VERSION)
    do = "bring every projector to one version; those of another are what a switch back starts from, and age out"
    if FOLD_VERSION in found:
        said = f"this is version {FOLD_VERSION}; there are also {others}"
        return [Finding(what="snapshots", level="note", found=said, do=do)]
    said = f"none of this fold version ({FOLD_VERSION}), but {others}: a start of this version folds the whole log anew"
    return [Finding(what="snapshots", level="warn", found=said, do=do)]
