"""Prometheus' configuration, alert rules and dashboard: valid by Prometheus' own tool, and true about our metrics."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from paths import ROOT
from sickbay import metrics
from sickbay.durations import BOUNDS_S

PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/dashboards/sickbay.json").read_text(encoding="utf-8"))
CONFIG: dict[str, Any] = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
CASES: list[dict[str, Any]] = [
    case
    for test in yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text(encoding="utf-8"))["tests"]
    for case in test["alert_rule_test"]
]
ROWS = {row.name: row for row in (*metrics.SERVICES, *metrics.ROUTER, *metrics.API)}
OF_A_SCRAPE = {"instance", "job"}


@pytest.fixture
def promtool() -> str:
    """Prometheus' own tool, of Debian's package `prometheus`."""
    found = shutil.which("promtool")
    if found is None:
        assert not os.environ.get("PROMTOOL_REQUIRED"), "promtool is required here, and is not on the PATH"
        pytest.skip("needs promtool (Debian's package prometheus)")
    return found


def run(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_scrape_configuration_is_valid(promtool: str, tmp_path: Path) -> None:
    """Whole, with the files it names: rules, targets, and the token where `sickbay nats-config` writes one."""
    folder = shutil.copytree(PROMETHEUS, tmp_path / "prometheus")
    token = tmp_path / "token"
    token.write_text("t")
    text = (folder / "prometheus.yml").read_text(encoding="utf-8")
    assert text.count("/etc/sickbay/prometheus/token") == 2
    (folder / "prometheus.yml").write_text(text.replace("/etc/sickbay/prometheus/token", str(token)))
    assert f"{len(ALERTS)} rules found" in run(promtool, "check", "config", folder / "prometheus.yml")


def test_the_rules_fire_when_they_should(promtool: str) -> None:
    """Their unit tests, by promtool: each alert fires on what it is for, and not on what is well."""
    run(promtool, "test", "rules", PROMETHEUS / "alerts_test.yml")


def test_a_rule_that_is_wrong_fails_its_test(promtool: str, tmp_path: Path) -> None:
    """The unit tests above can fail: each alert that never fires, and each that always does, is found out."""
    folder = shutil.copytree(PROMETHEUS, tmp_path / "prometheus")
    data = yaml.safe_load((folder / "alerts.yml").read_text(encoding="utf-8"))
    for wrong in ("vector(1) > 2", "vector(1)"):
        for group in data["groups"]:
            for rule in group["rules"]:
                rule["expr"] = wrong
        (folder / "alerts.yml").write_text(yaml.safe_dump(data), encoding="utf-8")
        command = [promtool, "test", "rules", str(folder / "alerts_test.yml")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = set(re.findall(r"alertname: (\w+)", done.stdout + done.stderr))
        assert done.returncode != 0 and found == {rule["alert"] for rule in ALERTS}, wrong


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_means_and_what_to_do(rule: dict[str, Any]) -> None:
    """A time, a severity, words, a section of the documentation, and a test of both ways."""
    assert "for" in rule and rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"] and rule["annotations"]["description"].endswith(".")
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert anchor == rule["alert"].lower()
    assert f"\n### {rule['alert']}\n" in (ROOT / page).read_text(encoding="utf-8")
    mine = [case for case in CASES if case["alertname"] == rule["alert"]]
    assert any(case.get("exp_alerts") for case in mine) and any(not case.get("exp_alerts") for case in mine)


def panels() -> Iterator[dict[str, Any]]:
    yield from (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def queries() -> Iterator[tuple[str, str]]:
    """Every query of dashboard and rules, with where it stands."""
    yield from ((panel["title"], target["expr"]) for panel in panels() for target in panel["targets"])
    yield from ((rule["alert"], rule["expr"]) for rule in ALERTS)


@pytest.mark.parametrize(("where", "query"), list(queries()))
def test_a_query_asks_for_what_is_told(where: str, query: str) -> None:
    """Each metric exists, with each label that is matched or grouped by, and each value that is of a list."""
    names = set(re.findall(r"\bsickbay_\w+", query))
    assert names or "up{" in query
    labels: set[str] = set(OF_A_SCRAPE)
    for name in names:
        row = ROWS.get(name) or ROWS[re.sub(r"_(bucket|sum|count)$", "", name)]
        assert row.name == name or row.sort == "histogram", f"{where}: {name}"
        labels |= {*row.labels, "le"} if row.sort == "histogram" else set(row.labels)
        if row.sort == "counter":
            assert re.search(rf"(rate|increase)\({name}", query), f"{where}: {name} counts up: ask for its increase"
    grouped = [word.strip() for inside in re.findall(r"\bby \(([^)]*)\)", query) for word in inside.split(",")]
    matched = re.findall(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)", query)
    assert {*grouped, *matched} <= labels, f"{where}: {query}"


def test_the_dashboards_queries_are_promql(promtool: str, tmp_path: Path) -> None:
    """Prometheus reads every one of them."""
    rules = [
        {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "1m")}
        for number, (_, query) in enumerate(queries())
    ]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
    assert f"{len(rules)} rules found" in run(promtool, "check", "rules", path)


def test_the_dashboard_is_whole() -> None:
    """Its data source is a variable, panels have a description and lie side by side, and every part is shown."""
    assert [variable["type"] for variable in DASHBOARD["templating"]["list"]] == ["datasource"]
    source = {"type": "prometheus", "uid": "${datasource}"}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids) >= 20
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
    for panel in panels():
        assert panel["description"] and panel["datasource"] == source
        assert all(target["datasource"] == source for target in panel["targets"])


def test_what_is_scraped_and_provisioned_is_what_compose_runs() -> None:
    """Targets are services of docker-compose.yml, jobs are those of the rules, paths those that it mounts."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    jobs = {job["job_name"]: job for job in CONFIG["scrape_configs"]}
    for job in jobs.values():
        for targets in job.get("static_configs", ()):
            assert {target.partition(":")[0] for target in targets["targets"]} <= compose["services"].keys()
    named = {
        name for rule in ALERTS for value in re.findall(r'job=~?"([^"]+)"', rule["expr"]) for name in value.split("|")
    }
    assert named <= jobs.keys()
    source = yaml.safe_load(
        (ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text(encoding="utf-8")
    )
    assert source["datasources"][0]["url"].removeprefix("http://").partition(":")[0] in compose["services"]
    provider = yaml.safe_load((ROOT / "deploy/grafana/provisioning/dashboards/sickbay.yml").read_text(encoding="utf-8"))
    mounts = {mount.split(":")[1] for mount in compose["services"]["grafana"]["volumes"]}
    assert provider["providers"][0]["options"]["path"] in mounts


def test_a_checkpoint_that_takes_as_long_as_its_lease_is_seen() -> None:
    """The histogram's bounds reach beyond the second for which a writer's word is good."""
    assert BOUNDS_S[0] < 0.005 and 1.0 in BOUNDS_S and BOUNDS_S[-1] > 1.0
