"""Names on the wire: providers, targets, scopes and their tokens (Rule 1)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from .errors import NameRefused, TokenRefused

NAME_BYTES_MAX: Final = 256
"""A longer name would bring a subject near the length at which a server closes its client."""
SCOPE_SEPARATOR: Final = "."
_SAFE: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_/")
_ESCAPED: Final = tuple(chr(byte) if byte in _SAFE else f"={byte:02X}" for byte in range(256))
_PIECE: Final = re.compile(r"=([0-9A-F]{2})|([A-Za-z0-9/_-]+)")
_LOOPBACK: Final = re.compile(r"(?:localhost|127(?:\.\d{1,3}){1,3}|\[?::1\]?)(?::\d+)?\Z")


@lru_cache(maxsize=65_536)
def token(name: str) -> str:
    """Spell a name as one NATS token and one KV key part.

    ASCII letters, digits, `-`, `_` and `/` stand for themselves, every other UTF-8 byte is `=XX`; the
    empty name is `=`. Raises `NameRefused` for a name of more than 256 bytes.
    """
    raw = name.encode("utf-8", "surrogatepass")
    if len(raw) > NAME_BYTES_MAX:
        raise NameRefused("name", name, f"at most {NAME_BYTES_MAX} bytes of UTF-8, this one has {len(raw)}")
    return "".join([_ESCAPED[byte] for byte in raw]) or "="


@lru_cache(maxsize=65_536)
def untoken(text: str) -> str:
    """Read a token back. Raises `TokenRefused` for anything that `token` would not have written."""
    if text == "=":
        return ""
    raw = bytearray()
    at = 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            raise TokenRefused(text, f"character {text[at]!r} at {at} is neither plain nor an =XX escape")
        escape, plain = piece.groups()
        raw += bytes.fromhex(escape) if escape else plain.encode()
        at = piece.end()
    try:
        name = raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise TokenRefused(text, "its bytes are not UTF-8") from error
    if not name or len(raw) > NAME_BYTES_MAX or token(name) != text:
        raise TokenRefused(text, "it is not the one spelling of its name, or too long")
    return name


def provider_of(url: str, machine: str = "") -> str:
    """Name the provider that answers at a URL: its host in lower case, with `:port` unless that is 443.

    An `http://` URL without a port is port 80. Path, query and user-info are dropped. What is not a URL
    with a host is a label and comes back as it is. A loopback host is another machine on every box: with
    `machine` it becomes `localhost:11434@box-7`. Reads no environment and never raises.
    """
    try:
        parts = urlsplit(url.strip())
        host = parts.hostname or ""
    except ValueError:
        return url
    if not host:
        return at_machine(url, machine)
    try:
        port = parts.port
    except ValueError:
        port = None
    if port is None and parts.scheme.lower() == "http":
        port = 80
    name = f"[{host}]" if ":" in host else host
    return at_machine(name if port in (None, 443) else f"{name}:{port}", machine)


def at_machine(provider: str, machine: str) -> str:
    """Add a machine's name to a loopback provider, before its alias; any other provider is returned as it is."""
    host, mark, alias = provider.partition("#")
    if machine and _LOOPBACK.match(host):
        return f"{host}@{machine}{mark}{alias}"
    return provider


class Scope(msgspec.Struct, frozen=True, order=True):
    """What a verdict holds for: a host, one credential at it, or one model there. Scopes nest.

    `alias` None means the host as a whole; `alias` "" is the provider named without `#`; `model` None
    means every model of that credential.
    """

    host: str
    alias: str | None = None
    model: str | None = None

    @property
    def key(self) -> str:
        """The scope's tokens joined by `.`; the depth says which scope it is."""
        parts = [part for part in (self.host, self.alias, self.model) if part is not None]
        return SCOPE_SEPARATOR.join([token(part) for part in parts])

    @property
    def name(self) -> Literal["host", "credential", "model"]:
        """`host`, `credential` or `model`."""
        return "host" if self.alias is None else "credential" if self.model is None else "model"

    @property
    def provider(self) -> str:
        """The provider as a router names it: the host, with `#alias` where there is one."""
        return f"{self.host}#{self.alias}" if self.alias else self.host

    @classmethod
    @lru_cache(maxsize=65_536)
    def of_key(cls, key: str) -> Scope:
        """Read a scope key back. Raises `TokenRefused` if it is none."""
        parts = key.split(SCOPE_SEPARATOR)
        if len(parts) > 3:
            raise TokenRefused(key, "a scope key has one to three tokens")
        names = [untoken(part) for part in parts]
        if not names[0] or (len(names) == 3 and not names[2]):
            raise TokenRefused(key, "a scope has a host, and a model's scope has a model")
        if "#" in names[0]:
            raise TokenRefused(key, "what follows # in a provider is the alias, the second token")
        return cls(*names)


class Target(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """A (provider, model): what one call is made to.

    `provider` is a host or a label, with `#alias` for one of several credentials; `model` is the exact id
    that was sent. Names longer than 256 bytes of UTF-8 are refused where they first become a key.
    """

    provider: str
    model: str

    @property
    def is_empty(self) -> bool:
        """Whether this is no target at all: an empty provider or an empty model."""
        return not self.provider.partition("#")[0] or not self.model

    @property
    def scope(self) -> Scope:
        """The target's own scope."""
        host, _, alias = self.provider.partition("#")
        return Scope(host, alias, self.model)

    @property
    def key(self) -> str:
        """The scope key of the target's own scope. Raises `NameRefused` for a name that is too long."""
        return _target_keys(self.provider, self.model)[2]

    @property
    def keys(self) -> tuple[str, str, str]:
        """The scope keys of host, credential and model, widest first. Raises as `key` does."""
        return _target_keys(self.provider, self.model)

    @classmethod
    def of_key(cls, key: str) -> Target:
        """The target whose scope key this is. Raises `TokenRefused` if it is not a model's."""
        scope = Scope.of_key(key)
        if scope.model is None:
            raise TokenRefused(key, "a target's key has three tokens")
        return cls(scope.provider, scope.model)


@lru_cache(maxsize=131_072)
def _target_keys(provider: str, model: str) -> tuple[str, str, str]:
    host, _, alias = provider.partition("#")
    host_key = token(host)
    credential_key = f"{host_key}.{token(alias)}"
    return host_key, credential_key, f"{credential_key}.{token(model)}"
