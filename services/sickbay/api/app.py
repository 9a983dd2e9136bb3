"""The HTTP interface as a Litestar application: paths, their roles, their answers.

    api = Api(settings, options)        # a client of NATS like any other, by the role `api`
    uvicorn.Config(api.asgi, lifespan="off")
    async with api: ...                 # begins in the running loop, whether or not NATS is there

What it answers is in the OpenAPI document at /openapi.json.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias

from litestar import Litestar
from litestar.datastructures import State

from ..bus.connect import NatsOptions
from ..config import Settings
from ..loggers import logger
from ..metrics import api_exposition
from .access import Access, guard_path
from .answers import HANDLERS
from .armor import Armor
from .desk import Operations
from .overview import Overview
from .pages import page_handlers
from .problems import handle
from .questions import BODY_BYTES_MAX
from .tokens import Tokens

_log = logger("sickbay.api")


Exposition: TypeAlias = Callable[[str], Awaitable[tuple[bytes, str]]]
"""Of an Accept header, the metrics as (body, content type)."""


class Api:
    """One process of the HTTP interface. `asgi` is what a server runs; its life is this object's."""

    def __init__(self, settings: Settings, options: NatsOptions, *, metrics: Exposition | None = None) -> None:
        """`metrics` writes them in the place of those of a process that only answers HTTP. Raises `InvalidValue`."""
        tokens = Tokens(Path(settings.http_tokens).expanduser() if settings.http_tokens else None)
        self.desk = Operations(settings, options)
        self.access = Access(settings, tokens)
        desk = self.desk
        overview = Overview(desk.ask, desk.link, desk.mirror.now_ms, settings.history_path)
        app = Litestar(
            route_handlers=[*HANDLERS, *page_handlers()],
            guards=[guard_path],
            exception_handlers={Exception: handle},
            openapi_config=None,
            request_max_body_size=BODY_BYTES_MAX,
            state=State(
                {
                    "desk": desk,
                    "overview": overview,
                    "access": self.access,
                    "metrics": metrics or self._metrics,
                }
            ),
            logging_config=None,
            debug=False,
            pdb_on_exception=False,
        )
        self.asgi: Final = Armor(app)

    async def _metrics(self, accept: str) -> tuple[bytes, str]:
        return await api_exposition(self.desk.link, self.desk.mirror, accept)

    async def end_streams(self) -> None:
        """End what everybody watches, and let nobody begin to. Never raises."""
        await self.desk.hub.stop()

    async def __aenter__(self) -> Self:
        """Begin."""
        self.desk.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """End every stream, then the connection."""
        await self.desk.stop()
