"""Commands about words: name, classify, settings. They need no NATS."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from sickbay_events import KINDS, Scope, Target, provider_of, token
from sickbay_events.codec import outcome_subject, override_subject, probe_subject
from sickbay_events.view import GATE_PREFIX, TARGET_PREFIX

from ..bus.topology import VIEW_PREFIX
from ..config import Settings
from ..config import setting_rows as settings_table
from ..invalid import InvalidValue
from .base import AsJson, console, facts, plain_table, print_json, rows

BODY_BYTES_MAX = 64 << 10
"""classify reads no further."""


def add(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(name)
    app.command("classify")(classify_command)
    app.command("settings")(settings_command)


def name(
    *,
    url: Annotated[str, typer.Argument(help="URL, host or label; #alias names one of several credentials.")],
    model: Annotated[str | None, typer.Argument(help="Model id exactly as it is sent.")] = None,
    replica: Annotated[str | None, typer.Option(help="Router whose subjects to show.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show how a provider and a model are spelled on the wire: tokens, keys, subjects.

    Example: sickbay name https://openrouter.ai/api/v1 z-ai/glm-5.3
    """
    base, mark, alias = url.partition("#") if "://" in url else (url, "", "")
    provider = provider_of(base) + mark + alias
    host, _, alias = provider.partition("#")
    if not host or model == "":
        raise InvalidValue("provider, model", f"{url} {model or ''}", "a host or label, and a model id or none")
    who = Settings.from_environment(replica=replica).replica_name
    scope = Scope(host, alias or None) if model is None else Target(provider, model).scope
    found: dict[str, object] = {
        "provider": provider,
        "model": model,
        "provider token": token(host),
        "credential token": token(alias),
        "model token": None if model is None else token(model),
        "scope key": scope.key,
        "gate key": GATE_PREFIX + scope.key,
        "target key": None if model is None else TARGET_PREFIX + scope.key,
        "outcome subject": None if model is None else outcome_subject(who, Target(provider, model)),
        "probe subject": None if model is None else probe_subject(who, Target(provider, model)),
        "override subject": override_subject(scope),
        "view subject": VIEW_PREFIX + scope.key,
    }
    if as_json:
        print_json({key.replace(" ", "_"): value for key, value in found.items() if value is not None})
    else:
        console().print(facts(found))


def classify_command(
    *,
    body: Annotated[str | None, typer.Argument(metavar="[FILE]", help="File with the body; - reads stdin.")] = None,
    status: Annotated[int | None, typer.Option(help="HTTP status; left out: there was no answer.")] = None,
    model: Annotated[str, typer.Option(help="The model id that was requested.")] = "",
    provider: Annotated[str, typer.Option(help="Host, URL or label of the provider.")] = "",
    header: Annotated[list[str] | None, typer.Option("--header", "-H", help="'Name: value'; repeatable.")] = None,
    text: Annotated[str | None, typer.Option("--body", help="The body itself, instead of a file.")] = None,
    error: Annotated[str | None, typer.Option(help="connect, dns, tls, reset, timeout or aborted.")] = None,
    stream: Annotated[bool, typer.Option("--stream", help="The answer was a stream.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what a provider's answer means, and about whom. Reads what `curl -i` printed as well.

    Example: curl -si https://api.openai.com/v1/models/gpt-9 | sickbay classify - --model gpt-9
    """
    from sickbay_events.classify import classify  # its tables are large, and no other command needs them

    if text is not None and body is not None:
        raise InvalidValue("FILE, --body", body, "one of the two")
    if error is not None and error not in _ERRORS:
        raise InvalidValue("--error", error, ", ".join(_ERRORS))
    data = text.encode() if text is not None else _read(body)
    headers = dict(_header(line) for line in header or [])
    if status is None and data.startswith(b"HTTP/"):
        status, found, data = _http(data)
        headers = {**found, **headers}
    if status is None and error is None:
        raise InvalidValue("--status", None, "an HTTP status, or --error if there was no answer")
    verdict = classify(
        status=status,
        headers=headers,
        body=data,
        requested_model=model,
        provider=provider_of(provider) if "://" in provider else provider,
        error=error,
        stream=stream,
    )
    plain = msgspec.to_builtins(verdict)
    if as_json:
        print_json(plain)
        return
    says = {"kind": verdict.kind, "says": KINDS[verdict.kind].says, **{k: v for k, v in plain.items() if k != "kind"}}
    console().print(facts(says))


_ERRORS = ("connect", "dns", "tls", "reset", "timeout", "aborted")


def _read(path: str | None) -> bytes:
    if path is None:
        return b""
    if path == "-":
        return sys.stdin.buffer.read(BODY_BYTES_MAX)
    with Path(path).open("rb") as file:
        return file.read(BODY_BYTES_MAX)


def _header(line: str) -> tuple[str, str]:
    key, colon, value = line.partition(":")
    if not colon or not key.strip():
        raise InvalidValue("--header", line, "'Name: value'")
    return key.strip(), value.strip()


def _http(data: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of what `curl -i` prints; interim answers (1xx, a proxy's 200) before it are skipped."""
    while True:
        head, _, rest = data.replace(b"\r\n", b"\n", 200).partition(b"\n\n")
        first, *lines = head.decode("latin-1").split("\n")
        words = first.split(maxsplit=2)
        if len(words) < 2 or not words[1].isdigit():
            raise InvalidValue("FILE", first[:80], "a body, or an answer that begins with a status line")
        if not rest.startswith(b"HTTP/"):
            return int(words[1]), dict(_header(line) for line in lines if ":" in line), rest
        data = rest


def settings_command(as_json: AsJson = False) -> None:
    """List every environment variable, its value now, what it accepts and does.

    Example: SICKBAY_NATS=nats://nats.internal:4222 sickbay settings
    """
    now = Settings.from_environment()
    found = list(settings_table())
    if as_json:
        print_json([{**row._asdict(), "value": _shown(now, row.field)} for row in found])
        return
    made = plain_table("variable", "value", "what it does (accepted)")
    cells = ((row.name, _shown(now, row.field) or row.default, f"{row.says} ({row.accepted})") for row in found)
    console().print(rows(made, cells))


def _shown(now: Settings, field: str) -> str:
    """A setting's value without the credentials that a URL may carry."""
    value = str(getattr(now, field))
    if field != "nats":
        return value
    return ",".join(
        part if "@" not in part else part.split("://")[0] + "://…@" + part.split("@")[-1] for part in value.split(",")
    )
