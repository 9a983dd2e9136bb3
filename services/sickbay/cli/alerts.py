"""The command that tries the receivers of alerts: alerts test."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from .base import AsJson, SaysNo, console, plain_table, print_json, rows, run, settings


def add(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    group = typer.Typer(help="Alerts out: try the receivers.", no_args_is_help=True, rich_markup_mode=None)
    group.command("test")(alerts_test)
    app.add_typer(group, name="alerts")


def alerts_test(
    file: Annotated[Path | None, typer.Argument(help="Alerts' file (TOML); default $SICKBAY_ALERTS.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Send one test message to each receiver of a file and say what each answered. Exit code 1 if one did not take it.

    Example: sickbay alerts test alerts.toml
    """
    text = settings(alerts=None if file is None else str(file)).read("alerts")
    if text is None:
        raise SaysNo("no file of receivers is named: sickbay alerts test FILE, or SICKBAY_ALERTS")
    answers = run(_tested(text.decode()))
    if as_json:
        print_json({"ok": all(one["ok"] for one in answers), "receivers": answers})
    else:
        cells = ((one["name"], one["where"], "taken" if one["ok"] else "NOT taken", one["said"]) for one in answers)
        console().print(rows(plain_table("receiver", "where", "", "said"), cells))
    if not all(one["ok"] for one in answers):
        raise typer.Exit(1)


async def _tested(text: str) -> list[dict[str, Any]]:
    from ..alerts.message import sample_message
    from ..alerts.send import Failed, alert_client, send
    from ..alerts.settings import Receiver, read_alerts

    found, ways = read_alerts(text)
    message = sample_message(round(time.time() * 1000))

    async def one(receiver: Receiver) -> dict[str, Any]:
        facts = {"name": receiver.name, "kind": receiver.kind, "where": ways[receiver.name].where}
        try:
            return {**facts, "ok": True, "said": await send(http, receiver, ways[receiver.name], message)}
        except Failed as failed:
            return {**facts, "ok": False, "said": failed.why}

    async with alert_client() as http:
        return await asyncio.gather(*(one(receiver) for receiver in found.receiver))
