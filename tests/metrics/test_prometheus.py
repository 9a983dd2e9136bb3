"""A real Prometheus scrapes real services and a router by our configuration, and answers every panel's query."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import yaml

import sickbay
import sickbay.sync
from cli_runs import CLEAN, Serve, serve_fixture
from nats_servers import NatsServer, free_port
from paths import ROOT
from sickbay import Target, metrics
from sickbay_events import CallOutcome
from waiting import patience

__all__ = ["serve_fixture"]

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")
DEADLINE_S = 40.0


class Prometheus:
    """One on a free port, with the repository's configuration, but for where to scrape and how often."""

    def __init__(self, folder: Path, served: str, router: str) -> None:
        here = shutil.copytree(ROOT / "deploy" / "prometheus", folder / "etc")
        config: dict[str, Any] = yaml.safe_load((here / "prometheus.yml").read_text(encoding="utf-8"))
        config["global"] = dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), "250ms")
        for job in config["scrape_configs"]:
            if "authorization" in job:
                job["authorization"]["credentials_file"] = str(folder / "token")
            if "static_configs" in job:
                job["static_configs"] = [{"targets": [served]}] if job["job_name"] == "sickbay" else []
        (here / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
        (here / "targets" / "routers.yml").write_text(yaml.safe_dump([{"targets": [router]}]), encoding="utf-8")
        self.address = f"127.0.0.1:{free_port()}"
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={here}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address={self.address}"],
                stderr=log, stdout=log,
            )  # fmt: skip

    def get(self, what: str, **asked: str) -> Any:
        """What `/api/v1/...` answers; None while it begins. Raises `HTTPError` for a query it refuses."""
        url = f"http://{self.address}/api/v1/{what}?{urllib.parse.urlencode(asked)}"
        try:
            with urllib.request.urlopen(url, timeout=patience(10)) as reply:
                return json.loads(reply.read())["data"]
        except (urllib.error.URLError, ConnectionError) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code != 503:
                raise
            return None

    def value(self, query: str) -> float | None:
        """The one value of a query, None while there is none."""
        found = self.get("query", query=query)
        return float(found["result"][0]["value"][1]) if found and found["result"] else None

    def until(self, query: str, wanted: float) -> None:
        """Wait until a query has this value."""
        deadline = time.monotonic() + patience(DEADLINE_S)
        while (found := self.value(query)) != wanted:
            assert self.process.poll() is None and time.monotonic() < deadline, (query, found, self.log.read_text())
            time.sleep(0.05)

    def end(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(patience(20))


@pytest.fixture
def prometheus() -> Iterator[Callable[[Path, str, str], Prometheus]]:
    if shutil.which("prometheus") is None:
        assert not os.environ.get("PROMTOOL_REQUIRED"), "prometheus is required here, and is not on the PATH"
        pytest.skip("needs Prometheus (Debian's package prometheus)")
    made: list[Prometheus] = []

    def start(folder: Path, served: str, router: str) -> Prometheus:
        made.append(Prometheus(folder, served, router))
        return made[-1]

    yield start
    for one in made:
        one.end()


def test_prometheus_scrapes_and_answers_every_panel(
    nats_server: NatsServer,
    serve: Callable[..., Serve],
    prometheus: Callable[[Path, str, str], Prometheus],
    tmp_path: Path,
) -> None:
    """Services, by the token made as the page says, and a router are up for it, what happens is in its answers, and no
    query of the dashboard is refused."""
    (made,) = re.findall(r"```sh\n(umask.*?)```", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8"), re.DOTALL)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["sh", "-ec", made], cwd=tmp_path, env={**CLEAN, "PATH": path}, check=True)
    address, port = f"127.0.0.1:{free_port()}", free_port()
    found = prometheus(tmp_path, address, f"127.0.0.1:{port}")  # first: it takes 5 s until it looks for its targets
    serve(
        "--nats", nats_server.url, SICKBAY_HTTP=address, SICKBAY_HTTP_ANONYMOUS="none",
        SICKBAY_HTTP_TOKENS=str(tmp_path / "tokens.toml"),
    ).ready()  # fmt: skip
    registry = prometheus_client.CollectorRegistry()
    with sickbay.sync.connect(nats_server.url, "r1") as sb:
        registry.register(metrics.collector(sb))
        http, thread = prometheus_client.start_http_server(port, addr="127.0.0.1", registry=registry)
        try:
            assert sb.ready(patience(20))
            found.until('count(up{job=~"sickbay|sickbay-router"} == 1)', 2)
            found.until("max(sickbay_projector_writer)", 1)
            for _ in range(2):
                sb.record(TARGET, CallOutcome(kind="model_unavailable", status=404))
            found.until('sickbay_held_scopes{rule="quarantine",scope="model"}', 1)
            found.until('sickbay_outcomes_total{kind="model_unavailable"}', 2)
            found.until('sickbay_outbox_acked_total{job="sickbay-router"}', 2)
            assert not sb.decide(TARGET).allowed
            found.until('sickbay_decisions_total{reason="quarantined"}', 1)
            found.until(f'ALERTS{{alertname="SickbayProviderHeld",provider="{TARGET.provider}"}}', 1)
            panels = json.loads((ROOT / "deploy/grafana/dashboards/sickbay.json").read_text(encoding="utf-8"))["panels"]
            for query in [target["expr"] for panel in panels for target in panel.get("targets", ())]:
                assert found.get("query", query=query.replace("$__rate_interval", "10s"))["resultType"] == "vector"
        finally:
            http.shutdown()
            http.server_close()
            thread.join()
