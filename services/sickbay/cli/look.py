"""The command that shows what is held now: status."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

import msgspec
import nats.errors
import typer
from nats.aio.client import Client
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from sickbay_events import GateEntry, rfc3339
from sickbay_events.view import CHECKPOINT_KEY, POLICY_KEY

from ..bus.connect import request
from ..bus.entries import read_entries
from ..bus.view_names import MAIN, ViewNames
from ..control.acts import log_now_ms
from .base import (
    AsJson,
    DataFolder,
    NatsUrl,
    SaysNo,
    ViewName,
    chosen_view,
    connected,
    console,
    json_text,
    line,
    plain_table,
    print_json,
    rows,
    run,
    seconds,
)
from .sentences import WARNINGS_MAX, cause_of, warning_line

RPC_TIMEOUT_S: Final = 5.0
WATCH_EVERY_S: Final = 1.0
UNWRITTEN_S: Final = 3.0
DROPPED_MAX: Final = 3
"""Replicas whose dropped events a status names."""
"""From this age of the checkpoint on a gate calls itself stale."""


def add(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(status)


async def ask(client: Client, subject: str, question: dict[str, Any]) -> dict[str, Any] | None:
    """Ask the services; None if none answers. Raises `SaysNo` with the reason of a refusal."""
    try:
        reply = await request(client, subject, json.dumps(question).encode(), timeout_s=RPC_TIMEOUT_S)
    except nats.errors.NoRespondersError:
        return None
    except TimeoutError:
        raise SaysNo(f"{subject}: no answer in {RPC_TIMEOUT_S:.0f} s") from None
    if reply.headers and "Nats-Service-Error" in reply.headers:
        raise SaysNo(reply.headers["Nats-Service-Error"])
    found: dict[str, Any] = json.loads(reply.data)
    return found


def status(
    *,
    everything: Annotated[bool, typer.Option("--all", help="Every target, not only those with a hold.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again every second until Ctrl-C.")] = False,
    view: ViewName = None,
    nats: NatsUrl = None,
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Show what is held now, by which rule, and for how long.

    Example: sickbay status --watch
    """

    names = chosen_view(view)

    async def work() -> None:
        async with connected(nats, data) as client:
            if not watch:
                found = await status_facts(client, everything=everything, names=names)
                print_json(found) if as_json else console().print(shown_status(found))
                return
            await _watch(lambda: status_facts(client, everything=everything, names=names), as_json=as_json)

    run(work())


async def _watch(facts: Callable[[], Awaitable[dict[str, Any]]], *, as_json: bool) -> None:
    out = console()
    if as_json or not sys.stdout.isatty():
        while True:
            found = await facts()
            sys.stdout.write(json_text(found) + "\n") if as_json else out.print(shown_status(found))
            sys.stdout.flush()
            await asyncio.sleep(WATCH_EVERY_S)
    with Live(console=out, auto_refresh=False) as live:
        while True:
            live.update(shown_status(await facts()), refresh=True)
            await asyncio.sleep(WATCH_EVERY_S)


async def status_facts(client: Client, *, everything: bool = False, names: ViewNames = MAIN) -> dict[str, Any]:
    """All pages of the services' status; where none answers, what the gates see in the bucket of this view."""
    question: dict[str, Any] = {"all": everything, "limit": 1000}
    # A router may ask the services, and not their streams: so the warnings are asked of them as well.
    found = await ask(client, "sickbay.v1.status", {**question, "warnings": True})
    if found is None:
        return {**await _view_facts(client, names), "warnings": []}
    while found["next"]:
        more = await ask(client, "sickbay.v1.status", {**question, "after": found["next"]})
        if more is None:
            break
        found["scopes"] += more["scopes"]
        found["next"] = more["next"]
    found["from"] = "services"
    return found


async def _view_facts(client: Client, names: ViewNames) -> dict[str, Any]:
    """The gates' view as the bucket has it, in the form of a status."""
    found = await read_entries(client, names.stream, f"{names.gate_prefix}>")
    now_ms = await log_now_ms(client)
    scopes: list[dict[str, Any]] = []
    checkpoint: dict[str, Any] = {}
    for entry in found.entries:
        key = entry.subject.decode().removeprefix(names.gate_prefix)
        if entry.gone or key == POLICY_KEY:
            continue
        if key == CHECKPOINT_KEY:
            checkpoint = json.loads(entry.payload)
            continue
        gate = msgspec.json.decode(entry.payload, type=GateEntry)
        holds = [
            {**msgspec.to_builtins(hold),
             "phase": "held" if now_ms < hold.end_ms else "probation" if hold.proof else "ramp",
             "left_s": max(0, hold.end_ms - now_ms) / 1000}
            for hold in gate.holds if now_ms < max(hold.end_ms, gate.expires_ms)
        ]  # fmt: skip
        if holds or gate.allow:
            scopes.append({"provider": gate.provider, "model": gate.model, "scope": gate.scope, "holds": holds})
    return {"from": "view", "seq": checkpoint.get("seq", 0), "at": rfc3339(now_ms), "projector": {},
            "checkpoint": checkpoint, "scopes": scopes, "next": None}  # fmt: skip


def shown_status(found: dict[str, Any]) -> RenderableType:
    """A status for people, 80 columns wide where names allow."""
    projector = found["projector"]
    if found["from"] == "services":
        doing = f"{projector['lag']} to fold, {projector['phase']} ({projector['name']})"
        head = [f"{found['at'][:19]}Z  log sequence {found['seq']}, {doing}"]
        if projector["phase"] == "writing" and (age_s := projector["checkpoint_age_s"]) > UNWRITTEN_S:
            head.append(f"nothing could be written for {seconds(age_s)}, so every gate is stale: is a disk full?")
        for lost in projector.get("dropped", [])[:DROPPED_MAX]:
            told = f"{lost['events']} events of {lost['replica']} found no room since {lost['since'][:19]}Z"
            head.append(f"{told}: its new targets are not watched")
    else:
        head = [f"{found['at'][:19]}Z  no service answers; this is what the gates last were told, at {found['seq']}"]
    cells = [cell for scope in found["scopes"] for cell in scope_cells(scope)]
    if shadow := _shadow(found):
        head.append(shadow)
    warnings = [line(warning_line(fact)) for fact in found["warnings"][:WARNINGS_MAX]]
    if not cells:
        return Group(*map(line, head), line("nothing is held"), *warnings)
    return Group(*map(line, head), held_table(cells, console().width), *warnings)


def _shadow(found: dict[str, Any]) -> str:
    """What of the policy is in shadow; empty where all of it is enforced."""
    shadow = found.get("shadow") or {}
    if shadow.get("all"):
        return "shadow: no rule is enforced; what is marked would be held, and calls pass"
    rules = shadow.get("rules")
    return f"shadow: {', '.join(rules)} not enforced; what is marked would be held" if rules else ""


HELD_COLUMNS: Final = ("provider", "model", "state", "since", "left", "because", "seq")
BECAUSE_MIN: Final = 16
"""Characters of the one column that may be folded."""


def held_table(cells: list[tuple[object, ...]], width: int) -> Table:
    """The rows of `scope_cells` as a table; where names and times do not fit side by side a name has its own line."""
    sizes = [max(len(str(row[at])) for row in [HELD_COLUMNS, *cells]) for at in range(len(HELD_COLUMNS))]
    because = HELD_COLUMNS.index("because")
    if sum(sizes) - sizes[because] + BECAUSE_MIN + 2 * len(sizes) <= width:
        made = plain_table(*HELD_COLUMNS)
        for at, column in enumerate(made.columns):
            column.no_wrap = at != because
        return rows(made, cells)
    made = plain_table("provider, model; state, since, left, because, seq")
    return rows(made, ([_lines_of(row, width)] for row in cells))


def _lines_of(row: tuple[object, ...], width: int) -> list[str]:
    provider, model, *others = map(str, row)
    names = [f"{provider} {model}"] if len(provider) + len(model) < width else [provider, model]
    return [*names, "  " + ", ".join(part for part in others if part)]


def _since(began_ms: int | None, at_ms: int | None) -> str:
    """The time of day, with the date where it was another day."""
    if not began_ms:
        return ""
    began, now = rfc3339(began_ms), rfc3339(at_ms or began_ms)
    return began[11:19] if began[:10] == now[:10] else f"{began[5:10]} {began[11:16]}"


def scope_cells(scope: dict[str, Any]) -> list[tuple[object, ...]]:
    """One row of `HELD_COLUMNS` a hold; one for a target without any that was ever heard of."""
    name = (scope["provider"], scope["model"] or ("(all of it)" if scope["scope"] == "host" else "(the credential)"))
    found: list[tuple[object, ...]] = []
    operator, at_ms = scope.get("operator"), scope.get("at_ms")
    if operator:
        because, since = f"{operator['actor']}: {operator['reason']}", _since(operator.get("began_ms"), at_ms)
        state = "held by operator" if operator["action"] == "hold" else "allowed by operator"
        found.append((*name, state, since, seconds(operator["left_s"]), because, operator["seq"]))
    for hold in scope["holds"]:
        if hold["rule"] == "operator" and operator:
            continue
        left = seconds(hold["left_s"]) if hold["phase"] == "held" else ""
        since = _since(hold.get("began_ms"), at_ms)
        found.append((*name, _state(hold), since, left, cause_of(hold), hold["began_seq"]))
    for own in scope.get("alone", ()):
        because = f"{own['replica']} alone keeps it from itself: {own['calls']} calls in a minute"
        found.append((*name, f"{own['rule']} (one replica)", "", seconds(own["left_s"]), because, own["seq"]))
    if not found and scope.get("last_event_seq") and (scope["outcomes"] or scope.get("health") != "unknown"):
        counted = scope["evidence"].get("strikes", {"points": 0})
        strikes = f"{counted['points']} of {counted['needed']} strikes" if counted["points"] else _word(scope)
        answered = f"{scope['answers']} of {scope['outcomes']} answered"
        found.append((*name, strikes, "", "", answered, scope["last_event_seq"]))
    return found


def _word(scope: dict[str, Any]) -> str:
    """A target without holds in a word; `live` is the one that needs saying what it leaves open."""
    word = scope.get("health", "usable")
    return "live: upstream unverified" if word == "live" else str(word)


def _state(hold: dict[str, Any]) -> str:
    word = hold.get("reason") if hold["rule"] != "operator" else "held by operator"
    state = str(word or hold["rule"]) if hold["phase"] == "held" else str(hold["phase"])
    return state if hold.get("enforced", True) else f"{state} (shadow)"
