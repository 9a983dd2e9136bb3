"""What reporting by HTTP costs beside publishing to NATS: events a second that the log has acknowledged.

.venv/bin/python bench/bench_http.py [--quick]

Loads `POST /v1/outcomes` by `wrk` where it is installed, else by a plain client, in batches as an edge would send
them and one by one; beside it the same events by the routers' reporter, in the same run on the same server.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import httpx

from http_rig import TOKENS, by, token_of, write_tokens
from nats_servers import NatsServer, free_port
from rows import Row, median, percentile, print_rows
from sickbay.bus.connect import NatsOptions
from sickbay.bus.link import Link
from sickbay.router.reporter import Reporter
from sickbay_events import CallOutcome, Target

BATCH: Final = 100
CONNECTIONS: Final = 16
START_S: Final = 30.0
OUTCOME: Final = {"provider": "openrouter.ai", "model": "z-ai/glm-5.3", "kind": "ok", "status": 200, "took_ms": 812}
_SCRIPT: Final = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer %s"
wrk.body = [==[%s]==]
local bad = 0
function response(status) if status ~= 200 then bad = bad + 1; print("refused " .. status) end end
"""


@contextmanager
def _api(folder: Path, nats: NatsServer) -> Iterator[str]:
    """`sickbay serve` with the HTTP interface in it, as a process of its own; its URL."""
    url = f"127.0.0.1:{free_port()}"
    tokens = write_tokens(folder / "tokens.toml", TOKENS)
    command = [sys.executable, "-m", "sickbay", "serve", "--nats", nats.url, "--http", url]
    environment = {**os.environ, "SICKBAY_HTTP_TOKENS": str(tokens)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    try:
        deadline = time.monotonic() + START_S
        while not _is_ready(f"http://{url}"):
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError("sickbay serve did not start")
            time.sleep(0.05)
        yield f"http://{url}"
    finally:
        process.terminate()
        process.wait(START_S)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def _by_wrk(url: str, items: int, seconds: int) -> float:
    """Outcomes a second that were answered with 200."""
    body = json.dumps([OUTCOME] * items if items > 1 else OUTCOME)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "post.lua"
        script.write_text(_SCRIPT % (token_of("edge"), body), encoding="utf-8")
        done = subprocess.run(
            ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", str(script), f"{url}/v1/outcomes"],
            capture_output=True, text=True, check=True, timeout=seconds + 30,
        )  # fmt: skip
    if "refused" in done.stdout or "Non-2xx" in done.stdout:
        raise RuntimeError(done.stdout)
    found = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    if found is None:
        raise RuntimeError(done.stdout)
    return float(found[1]) * items


async def _by_client(url: str, items: int, seconds: float) -> float:
    body = json.dumps([OUTCOME] * items if items > 1 else OUTCOME).encode()
    headers = {**by("edge"), "Content-Type": "application/json"}
    over = time.perf_counter() + seconds
    stored = 0

    async def send(http: httpx.AsyncClient) -> None:
        nonlocal stored
        while time.perf_counter() < over:
            found = await http.post("/v1/outcomes", content=body, headers=headers)
            found.raise_for_status()
            stored += items

    async with httpx.AsyncClient(base_url=url) as http:
        await asyncio.gather(*[send(http) for _ in range(CONNECTIONS)])
    return stored / seconds


async def _direct(url: str, events: int) -> float:
    """The same outcomes by the routers' reporter, from the first to the last acknowledgement."""
    link = Link(NatsOptions.from_url(url))
    reporter = Reporter(link, replica="bench", capacity=events)
    reporter.start()
    link.start()
    await link.wait_connected(10)
    target = Target("openrouter.ai", "z-ai/glm-5.3")
    began = time.perf_counter()
    for _ in range(events):
        reporter.enqueue(target, CallOutcome(kind="ok", status=200, took_ms=812))
    while reporter.counts.acked < events:
        await asyncio.sleep(0.002)
    took_s = time.perf_counter() - began
    await reporter.close()
    await link.close()
    return events / took_s


def _decide_ms(url: str, calls: int) -> list[float]:
    """Milliseconds of one `GET /v1/decide` over a connection that stands."""
    samples = []
    with httpx.Client(base_url=url) as http:
        for _ in range(calls):
            began = time.perf_counter()
            http.get("/v1/decide", params={"provider": "openrouter.ai", "model": "z-ai/glm-5.3"}, headers=by("edge"))
            samples.append((time.perf_counter() - began) * 1e3)
    return samples


def measure(quick: bool) -> list[Row]:
    """Bounded: some 10 s, 4 s when quick. Client, interface, services and NATS share this machine's cores."""
    seconds = 1 if quick else 3
    wrk = shutil.which("wrk") is not None
    with tempfile.TemporaryDirectory() as folder, NatsServer() as nats, _api(Path(folder), nats) as url:

        def load(items: int) -> float:
            if wrk:
                return _by_wrk(url, items, seconds)
            return asyncio.run(_by_client(url, items, seconds))

        direct = asyncio.run(_direct(nats.url, 5_000 if quick else 30_000))
        batched, single = load(BATCH), load(1)
        decided = _decide_ms(url, 200 if quick else 1_000)
    by_what = f"wrk, {CONNECTIONS} connections" if wrk else f"httpx, {CONNECTIONS} connections"
    return [
        Row("NATS: outcomes acknowledged, the reporter", direct, "events/s", better="higher"),
        Row(
            f"HTTP: outcomes acknowledged, {BATCH} a request", batched, "events/s",
            ratio_text=f"{batched / direct:.2f} of NATS directly ({by_what})", better="higher",
        ),
        Row(
            "HTTP: outcomes acknowledged, one a request", single, "events/s",
            ratio_text=f"{single / direct:.2f} of NATS directly", better="higher",
        ),
        Row(
            "HTTP: GET /v1/decide, one after the other", median(decided), "ms",
            ratio_text=f"p99 {percentile(decided, 0.99):.1f} ms, by httpx",
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    print_rows(measure(quick="--quick" in sys.argv))
