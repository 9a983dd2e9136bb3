"""The operator's page at `/`: files of this package, served as they are, and the headers that keep it to itself.

The page holds nothing of the fleet: it asks the API, which checks the reader's rights. So everyone may load it.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final

import msgspec
from litestar import Response, get
from litestar.exceptions import NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from .access import Asked

FOLDER: Final = "page"
INDEX: Final = "index.html"
TYPES: Final = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        # A text can become markup nowhere, not even by a mistake made later: the browser has no way to do it.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Asked for each time and answered by 304: after an upgrade no old module runs beside a new one.
    "Cache-Control": "no-cache",
}


class Asset(msgspec.Struct, frozen=True):
    """One file of the page."""

    body: bytes
    content_type: str
    etag: str


def assets() -> dict[str, Asset]:
    """Every file of the page by its name. Raises `OSError` where the installation lacks them."""
    found: dict[str, Asset] = {}
    for entry in (files(__package__ or __name__) / FOLDER).iterdir():
        kind = TYPES.get(entry.name.rpartition(".")[2])
        if kind is not None:
            body = entry.read_bytes()
            found[entry.name] = Asset(body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found


def page_handlers() -> list[HTTPRouteHandler]:
    """Handlers of `/` and of the files beside it, for the application that mounts them."""
    found = assets()

    @get("/", opt={"open": True}, include_in_schema=False, sync_to_thread=False)
    def index(request: Asked) -> Response[bytes]:
        return _answer(request, found[INDEX])

    @get("/page/{name:str}", opt={"open": True}, include_in_schema=False, sync_to_thread=False)
    def asset(request: Asked, name: FromPath[str]) -> Response[bytes]:
        if name not in found or name == INDEX:
            raise NotFoundException("the page has no such file")
        return _answer(request, found[name])

    return [index, asset]


def _answer(request: Asked, asset: Asset) -> Response[bytes]:
    headers = {**HEADERS, "ETag": asset.etag}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(b"", status_code=304, headers=headers, media_type=asset.content_type)
    return Response(asset.body, headers=headers, media_type=asset.content_type)
