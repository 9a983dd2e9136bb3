"""The file of tokens for the HTTP interface, which holds digests only.

[[token]]
name = "router-7"                       # who it is: an operator's acts are signed with it
sha256 = "5e88…"                        # of the token; or value_ref = "env:NAME", which holds the token itself
roles = ["report", "read"]              # report, read, operate
replica = "router-7"                    # under which name it reports; default the token's own
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from sickbay_events import NameRefused, token
from sickbay_events.redact import MARK

from ..invalid import InvalidValue
from ..loggers import logger
from ..tomlfile import secret_of

_log = logger("sickbay.api")

Role: TypeAlias = Literal["report", "read", "operate"]
ROLES: Final[tuple[Role, ...]] = ("report", "read", "operate")
PREFIX: Final = "sbk_"
"""Begins every token that `make_token` makes, so that one that got about is found."""
SECRET_CHARS_MIN: Final = 20
"""A token somebody chose must not be guessed."""
PER_NAME_MAX: Final = 2
"""The old and the new token of a name stand beside each other until all who use it have the new one."""
LOOK_EVERY_S: Final = 1.0
FORM: Final = '[[token]] with name, one of sha256 and value_ref = "env:NAME", roles, and replica if it is another'


_Stamp: TypeAlias = tuple[int, int, int] | None
"""What tells a file from the one that was read; None where there is none."""


def _refused(key: str, accepted: str) -> InvalidValue:
    """That a file of tokens cannot be used; never shows what a token is."""
    return InvalidValue(f"http_tokens: {key}", MARK, accepted)


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """One token: its owner's name and roles."""

    name: str
    digest: bytes
    """SHA-256 of the token."""
    roles: frozenset[Role]
    replica: str


class _Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    roles: Annotated[list[Role], Meta(min_length=1)]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}$")] | None = None
    value_ref: Annotated[str, Meta(pattern=r"^env:[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    replica: Annotated[str, Meta(min_length=1)] | None = None


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    token: list[_Row] = []


def make_token() -> str:
    """A new token: 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(text: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def read_tokens(path: Path, environ: Mapping[str, str] | None = None) -> tuple[Token, ...]:
    """The tokens of a file. Raises `InvalidValue`, `OSError`."""
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        rows = msgspec.convert(data, _File).token
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise _refused(str(path), f"TOML: {FORM}") from None
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        # A token that stands where its digest belongs is not said.
        raise _refused(where.rstrip("`") or "(file)", f"{FORM} ({what})") from None
    found = tuple(_token(f"token[{at}]", row, environ) for at, row in enumerate(rows))
    names, digests = Counter[str](), set[bytes]()
    rights = {one.name: (one.roles, one.replica) for one in reversed(found)}
    for at, one in enumerate(found):
        names[one.name] += 1
        where = f"token[{at}].name {one.name!r} of {path}"
        if names[one.name] > PER_NAME_MAX:
            raise _refused(where, f"{PER_NAME_MAX} tokens of a name, while one takes the other's place")
        if (one.roles, one.replica) != rights[one.name]:
            raise _refused(where, "the same roles and replica for each token of a name")
        if one.digest in digests:
            raise _refused(f"token[{at}] {one.name!r} of {path}", "each token once")
        digests.add(one.digest)
    return found


def _token(key: str, row: _Row, environ: Mapping[str, str] | None) -> Token:
    if (row.sha256 is None) == (row.value_ref is None):
        raise _refused(key, "either sha256 or value_ref")
    replica = row.replica or row.name
    try:
        token(replica)
    except NameRefused as error:
        raise _refused(f"{key}.replica", error.accepted) from None
    if row.sha256 is not None:
        digest = bytes.fromhex(row.sha256)
    else:
        value = secret_of(row.value_ref or "", f"{key}.value_ref", environ)
        if len(value) < SECRET_CHARS_MIN:
            raise _refused(f"{key}.value_ref", f"a variable with a token of {SECRET_CHARS_MIN} characters or more")
        digest = digest_of(value)
    return Token(name=row.name, digest=digest, roles=frozenset(row.roles), replica=replica)


class Tokens:
    """The tokens in force: of a file, read again when it has changed, or none.

    A file that cannot be used any more is said in the log, and what it held before stays in force.
    """

    def __init__(self, path: Path | None, *, monotonic: Any = time.monotonic) -> None:
        self._path, self._monotonic = path, monotonic
        self._tokens: tuple[Token, ...] = ()
        self._stamp: _Stamp = None
        self._look_at_s = 0.0
        if path is not None:
            self._stamp = _stamp(path)
            self._tokens = read_tokens(path)

    def find(self, presented: str) -> Token | None:
        """Whose token it is. Takes as long for each, and as long for none."""
        self._look()
        digest, found = digest_of(presented), None
        for one in self._tokens:
            if hmac.compare_digest(one.digest, digest):
                found = one
        return found

    def _look(self) -> None:
        """Read the file again if it is another; what is wrong with it is said once."""
        now_s = self._monotonic()
        if self._path is None or now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_EVERY_S
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            self._tokens = read_tokens(self._path)
        except (OSError, InvalidValue) as error:
            _log.error("the tokens that were in force stay so: %s", error)
        else:
            _log.info("tokens were read again: %d", len(self._tokens))


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
