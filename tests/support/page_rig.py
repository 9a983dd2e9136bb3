"""The operator's page in a real browser, before a real `sickbay serve` with its own NATS."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from nats.aio.client import Client
from playwright.async_api import Browser, BrowserContext, Page, Playwright, expect

from cli_runs import CLEAN
from nats_servers import free_port
from sickbay.bus.connect import connect_client
from sickbay.bus.embedded import saved_url
from sickbay.control.acts import publish_outcome, publish_override
from sickbay_events import CallOutcome, Scope, Target
from waiting import patience, until

CHROMIUM: Final = "/usr/bin/chromium"
needs_chromium = pytest.mark.skipif(
    not Path(CHROMIUM).exists() and "CHROMIUM_REQUIRED" not in os.environ, reason="no chromium is installed"
)
START_S: Final = 30.0
expect.set_options(timeout=15_000)
TOKENS: Final = {"ana": ["read", "operate"], "rita": ["read"], "rob": ["report"]}
FOREIGN: Final = "sickbay.test"
"""A name by which the browser finds this machine, and which is not this machine's own."""


def token_of(name: str) -> str:
    return f"sbk_token-of-{name}-for-tests-only"


class House:
    """`sickbay serve` with a file of tokens, on a port that stays the same when it is started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.foreign_url = f"http://{FOREIGN}:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self.client: Client | None = None
        self.allow(TOKENS)

    def allow(self, tokens: dict[str, list[str]]) -> None:
        """Who may do what from now on."""
        rows = (
            f"[[token]]\nname = {json.dumps(name)}\nroles = {json.dumps(roles)}\n"
            f'sha256 = "{hashlib.sha256(token_of(name).encode()).hexdigest()}"\n'
            for name, roles in tokens.items()
        )
        path = self.folder / "tokens.toml"
        path.touch(mode=0o600)
        path.write_text("\n".join(rows), encoding="utf-8")

    async def start(self) -> None:
        settings = {
            "SICKBAY_DATA": str(self.folder / "data"),
            "SICKBAY_HTTP": f"127.0.0.1:{self.port}",
            "SICKBAY_HTTP_TOKENS": str(self.folder / "tokens.toml"),
        }
        command = [sys.executable, "-m", "sickbay", "serve"]
        with (self.folder / "serve.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env={**CLEAN, **settings})
        await until(self._is_ready, "it is ready", START_S)
        url = saved_url(self.folder / "data")
        assert url is not None
        self.client = await connect_client(url)

    async def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "serve.log").read_text(encoding="utf-8")
        return await asyncio.to_thread(self._answers)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=patience(2)) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def nats_pid(self) -> int:
        """The NATS server that it runs."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="ascii")
        names = {int(pid): Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() for pid in children.split()}
        return next(pid for pid, name in names.items() if name.startswith("nats-server"))

    async def kill(self) -> None:
        """End it without a word, as a power cut does."""
        if self.client is not None:
            await self.client.close()
            self.client = None
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(patience(START_S))

    async def stop(self) -> None:
        if self.client is not None:
            await self.client.close()
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(patience(START_S))
            finally:
                self.process.kill()

    # What happens in the fleet.

    async def reject(self, provider: str, *models: str, replicas: Sequence[str] = ("router-1", "router-2")) -> None:
        """Replicas are told that models are not served: two such holds each for ten minutes."""
        assert self.client is not None
        outcome = CallOutcome(kind="model_unavailable", status=404)
        for model in models:
            for replica in replicas:
                await publish_outcome(self.client, Target(provider, model), outcome, replica=replica)

    async def act(self, action: str, scope: Scope, reason: str, for_s: float | None = None) -> None:
        """An operator's act, by the command line as it were."""
        assert self.client is not None
        await publish_override(self.client, scope, action, reason=reason, actor="bruno", for_s=for_s)


class Visitor:
    """Somebody with a browser of their own: a page, and all that the browser complained of."""

    def __init__(self, house: House, context: BrowserContext, page: Page) -> None:
        self.house, self.context, self.page = house, context, page
        self.complaints: list[str] = []
        self.refusals_expected = False
        """Chromium notes every answer that is an error; that is one's own doing where one asks for it."""
        page.on("console", lambda message: self._heard(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _heard(self, sort: str, text: str) -> None:
        if sort in ("error", "warning") and not (self.refusals_expected and "Failed to load resource" in text):
            self.complaints.append(text)

    async def open(self, place: str = "", *, url: str = "") -> Page:
        await self.page.goto(f"{url or self.house.url}/{place}")
        await expect(self.page.locator("body")).not_to_have_attribute("data-state", "connecting")
        return self.page

    async def sign_in(self, name: str) -> None:
        page = self.page
        await page.get_by_role("button", name="Sign in").first.click()
        await page.get_by_label("Token", exact=True).fill(token_of(name))
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Sign out").wait_for()


async def launch(playwright: Playwright) -> Browser:
    # Another name leads here too, as a web page that has its own resolved to 127.0.0.1 would have it.
    arguments = ["--no-sandbox", f"--host-resolver-rules=MAP {FOREIGN} 127.0.0.1"]
    if shutil.which(CHROMIUM) is None:
        pytest.fail("CHROMIUM_REQUIRED is set, and there is no chromium")
    return await playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)


# What is looked at on a page.


def place_of(provider: str, model: str | None = None) -> str:
    return f"#target/{quote(provider, safe='')}" + ("" if model is None else f"/{quote(model, safe='')}")


def row_of(page: Page, text: str) -> Any:
    return page.locator("#held-list tbody tr").filter(has_text=text)


async def has_no_sideways_scroll(page: Page) -> bool:
    found = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    return bool(found[0] <= found[1])


async def focused(page: Page) -> str:
    """What has the focus, in words, and that it can be seen to have it."""
    text, outline = await page.evaluate(
        """() => {
            const at = document.activeElement;
            const text = at.id || at.getAttribute("aria-label") || at.textContent.trim();
            return [`${at.tagName.toLowerCase()} ${text}`, getComputedStyle(at).outlineStyle];
        }"""
    )
    assert outline != "none", f"{text} has the focus and does not show it"
    return str(text)


async def tab_to(page: Page, what: str, *, most: int = 40) -> None:
    for _ in range(most):
        await page.keyboard.press("Tab")
        if what in await focused(page):
            return
    raise AssertionError(f"{what} was not reached by {most} tabs")


async def lacks_role(house: House, page: Page, name: str, role: str) -> bool:
    """Whether the server has read the file of tokens again."""
    bearer = {"Authorization": f"Bearer {token_of(name)}"}
    answer = await page.request.get(f"{house.url}/v1/session", headers=bearer)
    return role not in (await answer.json())["roles"]


CONTRASTS = """() => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
    const rgb = (layers) => {
        canvas.clearRect(0, 0, 1, 1);
        for (const layer of layers) { canvas.fillStyle = layer; canvas.fillRect(0, 0, 1, 1); }
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const light = (color) => {
        const part = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        const [r, g, b] = color.map((v) => part(v / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const poor = new Set();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    let seen = 0;
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.textContent.trim() || !element.checkVisibility()) continue;
        const behind = [];
        for (let at = element; at; at = at.parentElement) behind.unshift(getComputedStyle(at).backgroundColor);
        const [ink, paper] = [rgb([...behind, getComputedStyle(element).color]), rgb(behind)].map(light);
        const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
        seen += 1;
        const text = walker.currentNode.textContent.trim().slice(0, 30);
        if (ratio < 4.5) poor.add(`${ratio.toFixed(2)} ${element.className} ${text}`);
    }
    return [seen, [...poor]];
}"""
"""Texts that are shown, and those among them that stand out less than 4.5 to 1 from what is behind them."""
