"""The commands of `sickbay policy`: show, check, set, explain."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
import nats.errors
import typer
from nats.aio.client import Client
from rich.table import Table

from sickbay_events import Policy
from sickbay_events.policy import OTHER_KEYS, policy_differences
from sickbay_events.policy import keys as policy_keys
from sickbay_events.view import POLICY_KEY, PolicyInForce

from ..bus.connect import BusError
from ..bus.entries import read_entry
from ..bus.view_names import MAIN, ViewNames
from ..control.policies import CurrentPolicy, PolicySet, current_policy, set_policy, to_toml
from .act import Actor, Reason, login
from .base import (
    AsJson,
    DataFolder,
    NatsUrl,
    SaysNo,
    ViewName,
    chosen_view,
    connected,
    console,
    plain_table,
    print_json,
    rows,
    run,
)

Key = tuple[str, object, object]


def add(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    group = typer.Typer(
        help="The policy: show the one in force, check a file, set it, explain a key.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command("show")(policy_show)
    group.command("check")(policy_check)
    group.command("set")(policy_set)
    group.command("explain")(policy_explain)
    app.add_typer(group, name="policy")


def policy_show(
    *,
    as_toml: Annotated[bool, typer.Option("--toml", help="Print it as a file to edit.")] = False,
    view: ViewName = None,
    nats: NatsUrl = None,
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Show the policy in force, as the log has it: what differs from the defaults, or all of it as JSON.

    Example: sickbay policy show --toml > policy.toml
    """

    names = chosen_view(view)

    async def work() -> tuple[CurrentPolicy | None, PolicyInForce | None]:
        async with connected(nats, data) as client:
            return await _current(client), await policy_in_force(client, names)

    current, found = run(work())
    policy = Policy() if found is None else Policy.from_data(found.policy)
    pending = current is not None and bool(policy_differences(policy, current.policy))
    if as_json:
        print_json({
            "seq": 0 if found is None else found.seq,
            "expect": None if current is None else current.seq,
            "pending": pending,
            "policy": policy.to_data(),
        })  # fmt: skip
        return
    if as_toml:
        head = "" if current is None else f"# sickbay policy set FILE --expect {current.seq} --reason ...\n"
        sys.stdout.write(head + to_toml(current.policy if current is not None else policy))
        return
    changed = policy_differences(Policy(), policy)
    if changed:
        console().print(_table("default", "in force", changed))
    since = (
        f"in force since log sequence {found.seq}"
        if found is not None and found.seq
        else "the log has none, so the defaults hold"
    )
    console().print(f"{since}; {len(changed)} values differ from the defaults")
    if current is not None:
        who = f", by {current.actor}: {current.reason}" if current.seq else ""
        console().print(f"to change it: `sickbay policy set FILE --expect {current.seq}`{who}")
        if current.unreadable:
            console().print(f"the newest one cannot be used and is passed over: {current.unreadable}")
    if pending:
        console().print("another one is stored and not in force yet: the services have not folded it")


async def _current(client: Client) -> CurrentPolicy | None:
    """The newest policy as operators stored it; None where this user may not read it, or no stream is there."""
    try:
        return await current_policy(client)
    except (BusError, nats.errors.Error, OSError):
        return None


async def policy_in_force(client: Client, names: ViewNames = MAIN) -> PolicyInForce | None:
    """The policy as the gates of a view have it; None while nobody has written one."""
    entry = await read_entry(client, names.stream, names.gate_prefix + POLICY_KEY)
    return None if entry is None or entry.gone else msgspec.json.decode(entry.payload, type=PolicyInForce)


def policy_check(file: Annotated[Path, typer.Argument(help="Policy file, TOML.")], as_json: AsJson = False) -> None:
    """Check a policy file and list what differs from the defaults.

    Example: sickbay policy check policy.toml
    """
    changed = policy_differences(Policy(), Policy.from_toml(file.read_bytes()))
    if as_json:
        print_json({"ok": True, "changed": {key: value for key, _, value in changed}})
        return
    if changed:
        console().print(_table("default", "this file", changed))
    console().print(f"{file} is a good policy; {len(changed)} values differ from the defaults")


def policy_set(
    *,
    file: Annotated[Path, typer.Argument(help="Policy file, TOML: the whole policy; what is missing has its default.")],
    reason: Reason,
    expect: Annotated[
        int | None, typer.Option(metavar="SEQ", help="The policy you edited, as `policy show` says it; 0: none yet.")
    ] = None,
    actor: Actor = None,
    nats: NatsUrl = None,
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Put a policy in force: services and gates take it up at once, without a restart. Prints what differs.

    Example: sickbay policy set policy.toml --expect 4 --reason "a week of load tests"
    """
    values = Policy.from_toml(file.read_bytes()).to_data()

    async def work() -> PolicySet:
        async with connected(nats, data) as client:
            return await set_policy(client, values, expect=expect, reason=reason, actor=actor or login())

    done = run(work())
    if as_json:
        changed = {key: {"old": old, "new": new} for key, old, new in done.changes}
        print_json({"changed": changed, "ack": msgspec.to_builtins(done.ack)})
        return
    if done.ack is None:
        console().print(f"nothing differs from the policy of sequence {expect}, so nothing was stored")
        return
    console().print(_table("old", "new", done.changes))
    console().print(f"stored: {done.ack.stream} sequence {done.ack.seq}, which the next change is to expect")


def policy_explain(
    key: Annotated[str | None, typer.Argument(help="Dotted key, such as rejections.threshold; without it all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a key of the policy file does, its default and what it accepts.

    Example: sickbay policy explain rejections.threshold
    """
    wanted = None if key is None else _without_name(key)
    known = [*policy_keys(), *OTHER_KEYS]
    found = [row for row in known if wanted is None or row[0] == wanted or row[0].startswith(f"{wanted}.")]
    if not found:
        raise SaysNo(f"no policy key {key!r}; `sickbay policy explain` lists them all")
    if as_json:
        print_json([dict(zip(("key", "default", "accepted", "says"), row, strict=True)) for row in found])
        return
    made = plain_table("key", "default", "what it does (accepted)")
    cells = ((name, _shown(default), f"{says} ({accepted})") for name, default, accepted, says in found)
    console().print(rows(made, cells))


def _without_name(key: str) -> str:
    """`breaker.hold_s` of `host."openrouter.ai".breaker.hold_s`: an override does what its key does."""
    kind, dot, rest = key.partition(".")
    if kind not in ("host", "model") or not dot:
        return key
    sections = {row[0].partition(".")[0] for row in policy_keys()}
    parts = rest.split(".")
    at = next((at for at in range(1, len(parts)) if parts[at] in sections), None)
    return key if at is None else ".".join(parts[at:])


def _table(old: str, new: str, changes: Iterable[Key]) -> Table:
    return rows(plain_table("key", old, new), ((key, _shown(one), _shown(other)) for key, one, other in changes))


def _shown(value: object) -> object:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list | tuple) else value
