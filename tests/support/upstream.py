"""An HTTP server that plays a provider for probes: its answers are the test's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from aiohttp import web

OPENAI: Final[dict[str, Any]] = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "OK."}, "finish_reason": "stop"}]
}
USAGE: Final[dict[str, Any]] = {"usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}}


class Upstream:
    """An HTTP server whose answers a test chooses; it keeps what it was asked."""

    def __init__(self) -> None:
        self.status, self.after_s = 200, 0.02
        self.body: dict[str, Any] = {**OPENAI, **USAGE}
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        text = await request.text()
        self.asked.append((request.method, request.path, dict(request.headers), json.loads(text) if text else None))
        await asyncio.sleep(self.after_s)
        return web.json_response(self.body, status=self.status)

    @property
    def ready(self) -> int:
        """How many readiness requests came."""
        return sum(method == "POST" for method, *_ in self.asked)


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    made = Upstream()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield made
    await runner.cleanup()
