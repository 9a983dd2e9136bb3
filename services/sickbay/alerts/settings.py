"""Which receiver gets which alerts: the services' own file of receivers, never part of the log's policy.

    [alerts]
    window_s = 30

    [[alerts.receiver]]
    name = "room"
    kind = "slack"
    url = "env:SLACK_HOOK"

Secrets stand in it as references to environment variables; a chat room's URL is one. Nothing here touches the network.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from sickbay_events.redact import MARK

from ..invalid import InvalidValue
from ..tomlfile import REFERENCE, read_table, secret_of

Kind: TypeAlias = Literal["webhook", "slack", "command"]
Word: TypeAlias = Literal["held", "released", "warning"]

RECEIVERS_MAX: Final = 20
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - how a secret begins, not one
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64


class Receiver(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One receiver, and which alerts it gets."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,32}$")]
    kind: Kind
    url: str = ""
    """Of a webhook or a chat room; `env:NAME` for the variable that has it."""
    secret: str = ""
    """`env:NAME` of the key by which a webhook's messages are signed."""
    argv: Annotated[list[str], Meta(max_length=100)] = []
    """A command and its arguments; no shell."""
    environment: list[str] = []
    """Names of variables that a command gets beside PATH, HOME, LANG and TZ."""
    types: Annotated[tuple[Word, ...], Meta(min_length=1)] = ("held", "released", "warning")
    rules: list[str] = []
    """Rules, or names of warnings; none: all."""
    providers: list[str] = []
    """Hosts, or providers with their alias; none: all."""
    limit_s: Annotated[float, Meta(ge=0.1, le=60)] = 10.0
    """The time that one delivery may take."""


class Alerts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file as a whole. What it bounds, it bounds for each receiver by itself."""

    receiver: Annotated[list[Receiver], Meta(min_length=1, max_length=RECEIVERS_MAX)]
    window_s: Annotated[float, Meta(ge=0, le=3_600)] = 30.0
    """What is of one type and host within so long after the first is one message."""
    named: Annotated[int, Meta(ge=1, le=100)] = 10
    """Alerts that a message names; the others are counted."""
    burst: Annotated[int, Meta(ge=1, le=1_000)] = 5
    """Messages that may go out at once after a calm time."""
    per_hour: Annotated[float, Meta(ge=1, le=100_000)] = 60.0
    """Messages in the long run; what comes beyond is put together into one."""
    give_up_s: Annotated[float, Meta(ge=1, le=86_400)] = 900.0
    """How long one message is tried again."""


class Way(NamedTuple):
    """How a receiver is reached, secrets in clear: never shown, but for `where`."""

    where: str
    """For people: the host of a URL, the name of a command."""
    url: str = ""
    key: bytes = b""


def read_alerts(text: str, environ: Mapping[str, str] | None = None) -> tuple[Alerts, dict[str, Way]]:
    """An alerts' file, every value of it checked, and each receiver's way by its name. Raises `InvalidValue`."""
    found = read_table(text, "alerts", Alerts, "[[alerts.receiver]]")
    ways: dict[str, Way] = {}
    for at, one in enumerate(found.receiver):
        path = f"alerts.receiver[{at}]"
        if one.name in ways:
            raise InvalidValue(f"{path}.name", one.name, "each name once")
        ways[one.name] = _way(one, path, environ)
    return found, ways


def _way(one: Receiver, path: str, environ: Mapping[str, str] | None) -> Way:
    _only(one, path)
    if one.kind == "command":
        if not one.argv or not one.argv[0]:
            raise InvalidValue(f"{path}.argv", one.argv, "a command and its arguments as a list")
        return Way(one.argv[0])
    url = one.url
    if one.kind == "slack" or REFERENCE.fullmatch(url):
        url = secret_of(url, f"{path}.url", environ)
    try:
        parts = urlsplit(url)
        where = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        parts, where = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or not url.isascii():
        raise InvalidValue(f"{path}.url", MARK, "an http or https URL without user and password, or env:NAME of one")
    key = _key(secret_of(one.secret, f"{path}.secret", environ), path) if one.kind == "webhook" else b""
    return Way(where, url, key)


def _only(one: Receiver, path: str) -> None:
    """Refuse what a receiver of this kind makes no use of."""
    foreign = {"webhook": ("argv", "environment"), "slack": ("argv", "environment", "secret")}
    for name in foreign.get(one.kind, ("url", "secret")):
        if getattr(one, name):
            raise InvalidValue(f"{path}.{name}", MARK, f"nothing: a {one.kind} has none")


def _key(secret: str, path: str) -> bytes:
    """The key that a secret writes: `whsec_` and its bytes in base64."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(SECRET_PREFIX) or not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
        accepted = f"a variable with {SECRET_PREFIX} and 24 to 64 random bytes in base64 (openssl rand -base64 32)"
        raise InvalidValue(f"{path}.secret", MARK, accepted)
    return key


def is_wanted(receiver: Receiver, fact: Mapping[str, object]) -> bool:
    """Whether a transition, as the log of transitions has it, is one for this receiver.

    A hold whose end was moved while it stood is told by its beginning already.
    """
    if fact.get("type") not in receiver.types:
        return False
    old_end_ms, at_ms = fact.get("old_end_ms"), fact.get("time_ms")
    if isinstance(old_end_ms, int) and isinstance(at_ms, int) and old_end_ms > at_ms:
        return False
    if receiver.rules and fact.get("rule") not in receiver.rules:
        return False
    provider = str(fact.get("provider", ""))
    return not receiver.providers or bool({provider, url_host(provider)} & set(receiver.providers))


def url_host(provider: str) -> str:
    """A provider without its alias."""
    return provider.partition("#")[0]
