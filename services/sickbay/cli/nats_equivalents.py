"""What NATS alone can do as well: one table of commands for the help, for `sickbay nats`, and for the documentation."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Final, NamedTuple

import typer

from sickbay_events import Scope, Target
from sickbay_events.codec import outcome_subject

from ..bus.topology import GATE_BUCKET
from ..config import Settings
from ..control.acts import scope_of
from ..invalid import InvalidValue
from .base import AsJson, print_json, provider_name

PROVIDER: Final = "openrouter.ai"
MODEL: Final = "z-ai/glm-5.3"
"""What an example is about where nothing else is named."""


class Named(NamedTuple):
    """What a line is about, as it goes into the line."""

    scope: Scope
    replica: str

    @property
    def key(self) -> str:
        """Scope key."""
        return self.scope.key

    @property
    def outcome(self) -> str:
        """Subject of an outcome of it."""
        return outcome_subject(self.replica, Target(self.scope.provider, self.scope.model or ""))

    def ask(self, **more: object) -> str:
        """Provider, model where there is one, and more, as JSON."""
        model = {} if self.scope.model is None else {"model": self.scope.model}
        return json.dumps({"provider": self.scope.provider, **model, **more}, ensure_ascii=False, separators=(",", ":"))


Lines = tuple[str, ...]
_WHO: Final = {"reason": "why", "actor": "who"}


def equivalent_lines(command: str, named: Named) -> Lines:
    """The `nats` commands that do what a `sickbay` command does. Raises `InvalidValue` for one that has none."""
    table = table_of(named)
    if command not in table:
        raise InvalidValue("COMMAND", command, ", ".join(table))
    return table[command]


def table_of(named: Named) -> dict[str, Lines]:
    """Every command that has an equivalent, with it."""
    scope = named.key
    outcomes = f"sickbay.outcome.*.{scope if named.scope.model is not None else f'{scope}.>'}"

    def act(word: str, **more: object) -> Lines:
        return (f"nats req sickbay.operate.v1.{word} {_word(named.ask(**more, **_WHO))} --raw",)

    return {
        "status": (
            f"nats kv ls {GATE_BUCKET} 'gate.*.*.*' -v --display-value",
            f"nats kv ls {GATE_BUCKET} 'gate.*' -v --display-value",
            f"nats kv watch {GATE_BUCKET} 'gate.*.*.*'",
            "nats req sickbay.v1.status '{}' --raw",
        ),
        "explain": (
            f"nats kv get {GATE_BUCKET} {_word(f'gate.{scope}')} --raw",
            f"nats req sickbay.v1.explain {_word(named.ask())} --raw",
            f"nats sub {_word(f'sickbay.*.{scope}')} --stream SICKBAY_TRANSITIONS --all --raw --wait=1s",
            f"nats sub {_word(outcomes)} --stream SICKBAY_LOG --all --raw --wait=1s",
        ),
        "history": ("nats sub 'sickbay.held.>' --stream SICKBAY_TRANSITIONS --since 24h --raw --wait=1s",),
        "hold": act("hold", for_s=1800),
        "allow": act("allow", for_s=600),
        "clear": act("clear"),
        "report": () if named.scope.model is None else (f"nats pub {_word(named.outcome)} {_word(_OUTCOME)} -J",),
        "export": ("nats sub 'sickbay.>' --stream SICKBAY_LOG --all --raw --wait=1s",),
        "policy show": ("nats req sickbay.operate.v1.policy '{}' --raw", f"nats kv get {GATE_BUCKET} gate.=.1 --raw"),
        "policy set": (f"nats req sickbay.operate.v1.policy {_word(_POLICY)} --raw",),
        "doctor": (
            "nats stream report",
            "nats micro stats sickbay",
            f"nats kv get {GATE_BUCKET} gate.=.0 --raw",
            "nats --context sickbay-system server report jetstream",
        ),
    }


_OUTCOME: Final = '{"kind":"model_unavailable","status":404}'
_POLICY: Final = '{"policy":{"rejections":{"threshold":3}},"expect":0,"reason":"why","actor":"who"}'


def _word(text: str) -> str:
    """One word of a shell, always in quotes: subjects and JSON are full of what shells act on."""
    return "'" + text.replace("'", "'\\''") + "'"


def example() -> Named:
    """What help and documentation show."""
    return Named(scope_of(PROVIDER, MODEL), "router-1")


def add(app: typer.Typer) -> None:
    """Add the command, and to the help of each other one what NATS alone does. To be called last."""
    app.command("nats")(nats_command)
    table = table_of(example())
    groups = [("", app), *((f"{group.name} ", group.typer_instance) for group in app.registered_groups)]
    for prefix, group in groups:
        for info in group.registered_commands if group is not None else ():
            name = info.name or (info.callback.__name__ if info.callback is not None else "")
            if found := table.get(prefix + name):
                info.epilog = "\b\nWith NATS alone (`sickbay nats` fills in your names):\n  " + "\n  ".join(found)


def nats_command(
    command: Annotated[str, typer.Argument(help="A command of sickbay: status, explain, hold, 'policy set', ...")],
    provider: Annotated[str, typer.Argument(help="Provider as routers name it, or its URL.")] = PROVIDER,
    model: Annotated[str | None, typer.Argument(help="Model id; without it the host as a whole.")] = None,
    *,
    replica: Annotated[str | None, typer.Option(help="Who reports; default $SICKBAY_REPLICA or the host.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the commands of the NATS CLI that do what a command of sickbay does.

    Example: sickbay nats hold openrouter.ai z-ai/glm-5.3
    """
    name = provider_name(provider)
    if command == "report" and model is None:
        raise InvalidValue("MODEL", model, "a model id: an outcome is of a model")
    found = equivalent_lines(
        command, Named(scope_of(name, model), Settings.from_environment(replica=replica).replica_name)
    )
    if as_json:
        print_json({"command": command, "nats": found})
    else:
        sys.stdout.write("".join(f"{line}\n" for line in found))
