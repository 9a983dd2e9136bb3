"""The command that proves what is written by the log: verify."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import msgspec
import typer

from ..verify import Verified, verify
from .base import AsJson, DataFolder, NatsUrl, connected, console, print_json, rows, run, seconds, table
from .progress import progress


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("verify")(verify_command)


def verify_command(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="From the newest snapshot, not the log's beginning.")] = False,
    nats: NatsUrl = None,
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Fold the log anew and compare: digests, gate entries, policy, documents. Exit code 1 if anything differs.

    Example: sickbay verify --quick
    """

    async def work() -> Verified:
        async with connected(nats, data) as client:
            with progress("verify") as shown:
                return await verify(client, quick=quick, progress=shown)

    began_s = time.monotonic()
    found = run(work())
    took_s = time.monotonic() - began_s
    if as_json:
        print_json({"ok": found.ok, **msgspec.to_builtins(found), "took_s": round(took_s, 3)})
    else:
        _show(found, took_s)
    if not found.ok:
        raise typer.Exit(1)


def _show(found: Verified, took_s: float) -> None:
    out = console()
    begins = "the log's beginning" if found.begins == "beginning" else f"the snapshot at {found.from_seq}"
    out.print(f"folded {found.folded} events from {begins} to sequence {found.seq} in {seconds(took_s)}", markup=False)
    compared = f"compared {len(found.digests)} digests, {found.entries} gate entries, {found.documents} documents"
    out.print(compared + (f"; {found.moved_on} have moved on since" if found.moved_on else ""), markup=False)
    if found.ok:
        out.print("all of it follows from the log")
        return
    cells = ((one.what, one.key, _short(one.written), _short(one.folded)) for one in found.differences)
    out.print(rows(table("what", "where", "written", "by the log"), cells))
    out.print(f"{len(found.differences)} differ", markup=False)


def _short(value: Any) -> str:
    return "nothing" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
