"""Names on the wire: providers, targets, scopes and their tokens (Rule 1)."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from functools import lru_cache
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from .errors import NameRefused, TokenRefused
from .redact import MARK, looks_secret

NAME_BYTES_MAX: Final = 256
"""A longer name would bring a subject near the length at which a server closes its client."""
SCOPE_SEPARATOR: Final = "."
_SAFE: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_/")
_ESCAPED: Final = tuple(chr(byte) if byte in _SAFE else f"={byte:02X}" for byte in range(256))
_PIECE: Final = re.compile(r"=([0-9A-F]{2})|([A-Za-z0-9/_-]+)")
_BOX_LOCAL: Final = re.compile(
    # Loopback and the unspecified address, however they are written, and the names by which a container calls its box.
    r"(?:(?:[\w\-]{1,63}\.){0,8}localhost(?:\.localdomain)?|localhost6(?:\.localdomain6)?|ip6-(?:localhost|loopback)|"
    r"127(?:\.\d{1,3}){1,3}|0\.0\.0\.0|\[?::1?\]?|"
    r"(?:host|gateway|kubernetes|vm)\.(?:docker|containers|podman|lima|minikube|orb|rancher-desktop)\.internal|"
    r"docker\.for\.(?:mac|win)\.(?:host\.internal|http\.internal|localhost))(?::\d+)?\Z",
    re.I,
)
_PLAIN_URL: Final = re.compile(
    r"(\[[^\[\]/?#@\s]{2,80}\]|[^\s/?#@:\[\]]{1,253})(?::(\d{1,5}))?(@[^\s/?#]{1,128})?((?:/|\?).{0,2048})?", re.S
)
"""A host as people write it without a scheme: `API.example.com:443/v1`, `localhost:11434@box-7`."""
_KEY_IN_QUERY: Final = re.compile(
    r"(?:\A|[?&;])[^=&;]{0,32}(?:key|token|secret|password|passwd|signature|sig|auth|credential)[^=&;]{0,16}=[^&;]",
    re.I,
)
_NOT_IN_HOST: Final = re.compile(r"[\x00-\x20\x7f<>\"'\\^`{|}%*,;=()!$&+~]")
_LONG_WORD: Final = re.compile(r"[A-Za-z0-9*~+]{16}")
"""No key is without such a run: a quick look that spares ordinary names the patterns."""
PROVIDER_FORM: Final = (
    "a host such as api.example.com or gpu-1:8000, its URL, or a label; #alias for one of several keys"
)
SECRET_FORM: Final = "a name; this looks like a key or token, which never enters a log: use an alias of your own"  # noqa: S105


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

    A host is taken with and without a scheme; an `http://` URL without a port is port 80. Path, query and user-info
    are dropped, `#alias` is kept. International names get their ASCII form, IPv6 addresses their short one. What is
    no host is a label and comes back as it is. A host that means another machine on every box (loopback, a
    container's name for its own box) becomes `localhost:11434@box-7` with `machine`. Reads no environment.

    Raises `NameRefused` for a URL without a usable host or port, and for what looks like a key or token.
    """
    base, _, alias = url.strip().partition("#")
    base = base.strip()
    check_names(alias=alias)
    host, port, box = _address(base)
    name = base if host is None else (_host(host, url) + (f":{port}" if port not in (None, 443) else "") + box)
    check_names(provider=name)
    return _at_machine(name + ("#" + alias if alias else ""), machine)


def _address(base: str) -> tuple[str | None, int | None, str]:
    """(host, port, `@machine`) of a URL with or without scheme; the host is None for a label."""
    if "://" in base:
        try:
            parts = urlsplit(base)
            host, port, query = parts.hostname or "", parts.port, parts.query
        except ValueError:
            raise _refused("provider", base) from None  # its text repeats what may be a key
        if not host:
            raise _refused("provider", base)
        if port is None and parts.scheme.lower() == "http":
            port = 80
        box = ""
    else:
        if base.count(":") > 1 and base[0] != "[":
            base = f"[{base}]"
        found = _PLAIN_URL.fullmatch(base)
        if found is None or not (found[2] or found[3] or found[1][0] == "[" or "." in found[1]):
            return None, None, ""
        host, port, box, query = found[1], int(found[2]) if found[2] else None, found[3] or "", found[4] or ""
        if port is not None and port > 65_535:
            raise _refused("provider", base)
    if _KEY_IN_QUERY.search(query.partition("?")[2] or query):
        raise NameRefused("provider", MARK, SECRET_FORM)
    return host, port, box


def _host(host: str, url: str) -> str:
    """One spelling of a host: lower case, no trailing dot, ASCII, short IPv6. Raises `NameRefused`."""
    host = host.strip("[]")
    try:
        if ":" in host:
            address = ipaddress.IPv6Address(host)
            return str(address.ipv4_mapped) if address.ipv4_mapped is not None else f"[{address.compressed.lower()}]"
        if not host.isascii():
            host = unicodedata.normalize("NFKC", host).replace("\u3002", ".")
        host = host.lower().rstrip(".")
        if not host.isascii():
            labels = host.split(".")
            host = ".".join(one if one.isascii() else "xn--" + one.encode("punycode").decode() for one in labels)
    except ValueError:
        host = ""
    if not host or _NOT_IN_HOST.search(host):
        raise _refused("provider", url)
    return host


def _refused(field: str, value: str) -> NameRefused:
    return NameRefused(field, MARK if looks_secret(value) or "?" in value or "@" in value else value, PROVIDER_FORM)


def check_names(*, provider: str = "", alias: str = "", model: str = "") -> None:
    """Refuse what looks like a key or token in the place of a name, before it enters a log. Raises `NameRefused`,
    which does not repeat it.
    """
    for field, name in (("provider", provider), ("alias", alias), ("model", model)):
        if _LONG_WORD.search(name) and looks_secret(name):
            raise NameRefused(field, MARK, SECRET_FORM)


@lru_cache(maxsize=65_536)
def at_machine(provider: str, machine: str) -> str:
    """The provider as the log names it, with a machine's name if it means another machine on every box.

    Never raises: what `provider_of` refuses comes back as it is, and is refused where it would enter the log.
    """
    try:
        return provider_of(provider, machine)
    except NameRefused:
        return provider


def _at_machine(provider: str, machine: str) -> str:
    host, mark, alias = provider.partition("#")
    if machine and _BOX_LOCAL.match(host):
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
def checked_key(provider: str, model: str) -> str:
    """The scope key of a target on its way into the log. Raises `NameRefused`, also for what looks like a key."""
    host, _, alias = provider.partition("#")
    check_names(provider=host, alias=alias, model=model)
    return _target_keys(provider, model)[2]


@lru_cache(maxsize=131_072)
def _target_keys(provider: str, model: str) -> tuple[str, str, str]:
    host, _, alias = provider.partition("#")
    host_key = token(host)
    credential_key = f"{host_key}.{token(alias)}"
    return host_key, credential_key, f"{credential_key}.{token(model)}"
