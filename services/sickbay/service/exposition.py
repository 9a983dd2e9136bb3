"""The services' metrics for Prometheus, and to whom they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ..config import Settings, is_loopback
from ..metrics import SERVICES, write_exposition
from .samples import look_at, service_samples
from .services import Services


async def exposition(services: Services, accept: str = "") -> tuple[bytes, str]:
    """The services' metrics as (body, content type): OpenMetrics where the Accept header asks for it, else Prometheus
    text. To be called in the services' event loop, in which the fold goes on meanwhile."""
    found = list(service_samples(services, await look_at(services)))
    return await asyncio.to_thread(write_exposition, SERVICES, lambda: found, accept)


def refused_scrape(scope: Mapping[str, Any], settings: Settings) -> bytes:
    """Why a request is not answered where no token can be checked, empty where it is: this machine may ask, by a name
    of its own, since any web page can have its name resolve to 127.0.0.1."""
    host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
    peer, *_ = scope.get("client") or ("",)
    if settings.http_anonymous == "read" or (is_loopback(peer) and is_loopback(host.rpartition(":")[0] or host)):
        return b""
    return b"no token can be checked here, so only this machine is answered, unless SICKBAY_HTTP_ANONYMOUS=read"
