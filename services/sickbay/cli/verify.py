"""The command that proves what is written by the log: verify."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import msgspec
import typer

from ..bus.view_names import view_names
from ..invalid import InvalidValue
from ..replay.compare_views import Compared, compare_views
from ..replay.verify import Verified, verify
from .base import AsJson, DataFolder, NatsUrl, connected, console, plain_table, print_json, rows, run, seconds, settings
from .progress import progress


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("verify")(verify_command)


def verify_command(
    *,
    view: Annotated[
        str | None, typer.Option(metavar="NAME", help="A view that is written beside the fleet's, instead of that.")
    ] = None,
    beside: Annotated[
        str | None, typer.Option(metavar="NAME", help="Compare the fleet's view with this one, without folding.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="From the newest snapshot, not the log's beginning.")] = False,
    nats: NatsUrl = None,
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Fold the log anew and compare: digests, gate entries, policy, documents. Exit code 1 if anything differs.

    Example: sickbay verify --quick
    """

    if view is not None and beside is not None:
        raise InvalidValue("--view, --beside", f"{view}, {beside}", "one of the two")
    fleets = view_names(settings(nats=nats, data=data).view)
    names = view_names(beside or view or "") if beside or view else fleets

    async def work() -> Verified:
        async with connected(nats, data) as client:
            with progress("verify") as shown:
                return await verify(client, names=names, is_beside=names != fleets, quick=quick, progress=shown)

    async def compare() -> Compared:
        async with connected(nats, data) as client:
            return await compare_views(client, fleets, names)

    if beside is not None:
        compared = run(compare())
        if as_json:
            print_json({"ok": compared.ok, **msgspec.to_builtins(compared)})
        else:
            _show_beside(compared)
        if not compared.ok:
            raise typer.Exit(1)
        return
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
    out.print(f"folded {found.folded} events from {begins} to sequence {found.seq} in {seconds(took_s)}")
    compared = f"compared {len(found.digests)} digests, {found.entries} gate entries, {found.documents} documents"
    out.print(compared + (f"; {found.moved_on} have moved on since" if found.moved_on else ""))
    if found.ok:
        out.print("all of it follows from the log")
        return
    cells = ((one.what, one.key, _short(one.written), _short(one.folded)) for one in found.differences)
    out.print(rows(plain_table("what", "where", "written", "by the log"), cells))
    out.print(f"{len(found.differences)} differ")


def _show_beside(found: Compared) -> None:
    out = console()
    sides = (
        (side.view or "(no name)", side.seq, side.fold, side.pinned[:8] or "the log's", side.entries, side.writer)
        for side in (found.one, found.other)
    )
    out.print(rows(plain_table("view", "sequence", "fold", "policy", "entries", "writer"), sides))
    if found.digests_equal is not None:
        word = "equal" if found.digests_equal else "DIFFER"
        out.print(f"the digests of the whole state at sequence {found.digest_seq} are {word}")
    else:
        out.print("no digests to compare: other versions or policies, or no sequence that both marked")
    if found.differences:
        cells = ((one.key, _short(one.written), _short(one.folded)) for one in found.differences)
        out.print(rows(plain_table("where", found.one.view or "(no name)", found.other.view), cells))
    out.print(f"{found.entries} entries compared, {len(found.differences)} differ")


def _short(value: Any) -> str:
    return "nothing" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
