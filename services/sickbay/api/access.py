"""The caller of a request and its rights: bearer tokens, the page's cookie, and reading without either.

The browser sends the cookie with every request, also with one that a foreign page made. So an act by cookie has to come
from a page of this origin. A reader without a token on this machine has to name this machine in the Host header.
Otherwise any web page could let its own name resolve to 127.0.0.1 and read through its visitor's browser.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

import msgspec
from litestar import Request
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.handlers import BaseRouteHandler

from ..config import Settings, is_loopback
from .problems import Problem
from .tokens import Role, Tokens

COOKIE: Final = "sickbay_session"
COOKIE_MAX_S: Final = 12 * 3600
SAFE: Final = ("GET", "HEAD", "OPTIONS")
TOKEN_CHARS_MAX: Final = 512
_FORWARDED: Final = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@/\s]+)(?::\d{1,5})?")
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="sickbay"'}


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The caller of a request, and its roles."""

    name: str
    roles: frozenset[Role]
    replica: str = ""
    is_anonymous: bool = False


Asked: TypeAlias = Request[Caller, Any, State]
"""A request whose `user` is known."""


def request_host(header: str) -> str:
    """The host of a Host header, without its port; empty if it is none."""
    found = _HOST.fullmatch(header)
    return "" if found is None else found[1]


class Access:
    """Finds the caller of a request, by the tokens and the settings of this process."""

    def __init__(self, settings: Settings, tokens: Tokens) -> None:
        self._tokens = tokens
        address = settings.http_address
        self._is_loopback = address is not None and is_loopback(address[0])
        wanted = settings.http_anonymous or ("read" if self._is_loopback else "none")
        self._is_assumed = not settings.http_anonymous
        self.anonymous: frozenset[Role] = frozenset({"read"} if wanted == "read" else ())

    def find(self, presented: str) -> Caller | None:
        """Whose token this is."""
        if not 0 < len(presented) <= TOKEN_CHARS_MAX:
            return None
        found = self._tokens.find(presented)
        return None if found is None else Caller(name=found.name, roles=found.roles, replica=found.replica)

    def caller(self, connection: ASGIConnection[Any, Any, Any, Any]) -> Caller:
        """The caller of a request. Raises `Problem` for a token that is not known."""
        said = connection.headers.get("authorization")
        if said is not None:
            scheme, _, presented = said.partition(" ")
            found = self.find(presented.strip()) if scheme.lower() == "bearer" else None
            if found is None:
                raise Problem(401, "token-refused", "the token is not known here", headers=_CHALLENGE)
            return found
        found = self.find(connection.cookies.get(COOKIE, ""))
        if found is not None:
            if connection.scope.get("method") not in SAFE:
                check_origin(connection)
            return found
        roles = self.anonymous
        if self._is_loopback and not is_loopback(request_host(connection.headers.get("host", ""))):
            roles = frozenset()
        if self._is_assumed and any(name in connection.headers for name in _FORWARDED):
            roles = frozenset()  # a proxy on this machine asks for a client that may be anywhere
        return Caller(name="anonymous", roles=roles, is_anonymous=True)


def still_may(connection: ASGIConnection[Any, Any, Any, Any], wanted: frozenset[Role]) -> bool:
    """Whether the caller would be let in now: its token may have been taken out of the file since the request began."""
    access: Access = connection.app.state.access
    try:
        return bool(access.caller(connection).roles & wanted)
    except Problem:
        return False


def check_origin(connection: ASGIConnection[Any, Any, Any, Any]) -> None:
    """Raise a `Problem` unless the request comes from a page of this very origin."""
    origin = connection.headers.get("origin", "").partition("://")[2]
    if not origin or origin.lower() != connection.headers.get("host", "").lower():
        raise Problem(403, "foreign-origin", "an act by cookie has to come from a page of this origin")


def guard_path(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Litestar's guard of every path: sets `user`, and refuses a caller without any of the path's roles."""
    if handler.opt.get("open"):
        return
    wanted: frozenset[Role] | None = handler.opt.get("roles")
    access: Access = connection.app.state.access
    caller = access.caller(connection)
    connection.scope["user"] = caller
    if wanted is None or caller.roles & wanted:
        return
    need = " or ".join(sorted(wanted))
    if not caller.is_anonymous:
        raise Problem(403, "role-missing", f"the token of {caller.name} lacks the role {need}")
    if access.anonymous & wanted:
        raise Problem(403, "foreign-host", "without a token only requests to this machine's own name are answered")
    raise Problem(401, "token-missing", f"a token with the role {need} is required", headers=_CHALLENGE)
