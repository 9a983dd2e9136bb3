"""The command line against the services: real processes from `sickbay serve`, a real nats-server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli_runs import Serve, serve_fixture, sickbay  # noqa: F401 - a fixture is used by its name
from nats_servers import NatsServer
from sickbay.bus.connect import connect_client
from waiting import patience, until_sync

LIMIT_S = 20.0
Start = Callable[..., Serve]


def facts(*arguments: str, environment: dict[str, str] | None = None) -> Any:
    done = sickbay(*arguments, "--json", environment=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def data(tmp_path: Path, serve: Start) -> Iterator[str]:
    """A data folder with running services in it."""
    served = serve("--data", str(tmp_path / "data")).ready()
    yield str(tmp_path / "data")
    assert served.end()[0] == 0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """As `data`, for tests that need no log of their own."""
    folder = str(tmp_path_factory.mktemp("shared") / "data")
    with Serve("--data", folder) as served:
        yield folder
    assert served.process.returncode == 0


def test_from_report_to_replay(data: str, tmp_path: Path) -> None:
    """Two reports hold a target; status, explain, export and replay tell the same story with the same sequences."""
    target = ["openrouter.ai", "z-ai/glm-5.3"]
    report = ["report", *target, "--kind", "model_unavailable", "--status", "404", "--data", data]
    acks = [facts(*report, "--replica", replica) for replica in ("r1", "r2")]
    assert [ack["seq"] for ack in acks] == [1, 2] and acks[0]["stream"] == "SICKBAY_LOG"
    held = until_sync(lambda: facts("status", "--data", data)["scopes"], "the hold")
    assert [(hold["rule"], hold["began_seq"]) for hold in held[0]["holds"]] == [("quarantine", 2)]
    assert 590 < held[0]["holds"][0]["left_s"] <= 600

    told = facts("explain", *target, "--data", data)
    assert told["state"]["decision"]["reason"] == "quarantined"
    steps = [(step["seq"], step["replica"], step["what"]) for step in told["events"]]
    assert steps == [(1, "r1", "model_unavailable (404)"), (2, "r2", "model_unavailable (404)")]
    assert "strike 1 of 2" in told["events"][0]["effect"] and "held by quarantine" in told["events"][1]["effect"]
    shown = sickbay("explain", *target, "--data", data, environment={"COLUMNS": "80"}).stdout
    assert "quarantined" in shown and "strike 1 of 2" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())

    file = tmp_path / "log.jsonl.zst"
    exported = facts("export", str(file), "--data", data)
    assert (exported["events"], exported["first"], exported["last"], exported["gaps"]) == (2, 1, 2, 0)
    replayed = facts("replay", str(file))
    assert [(hold["scope"], hold["began_seq"], hold["end_ms"]) for hold in replayed["holds"]] == [
        (told["scope"], 2, held[0]["holds"][0]["end_ms"])
    ]
    assert facts("export", str(tmp_path / "one.jsonl"), "--from", "2", "--to", "2", "--data", data)["first"] == 2
    assert sickbay("export", str(file), "--data", data).returncode == 1, "a file is never written over"


def test_operators_acts(shared: str) -> None:
    """A hold, an allow and a clear are stored with their reason, take effect, and are part of the story."""
    by = ["--reason", "maintenance tonight", "--actor", "ana", "--data", shared]

    def decided() -> Any:
        return facts("explain", "api.openai.com", "gpt-5.2", "--data", shared)["state"]["decision"]

    done = facts("hold", "https://api.openai.com/v1", "--for", "30m", "--new", *by)
    held = decided()  # the command waits until its act is in force, and says from when on
    assert done["in_force"] and held["reason"] == "held_by_operator" and held["seq"] >= done["log_seq"]
    assert 1790 < held["retry_in_s"] <= 1800
    status = sickbay("status", "--data", shared, environment={"COLUMNS": "120"}).stdout
    assert "ana: maintenance tonight" in status and "held by operator" in status
    facts("clear", "api.openai.com", *by)
    until_sync(lambda: decided()["allowed"], "the clear")
    facts("allow", "api.openai.com", "gpt-5.2", "--until", "2031-01-01T00:00:00Z", "--new", *by)
    until_sync(lambda: decided()["reason"] == "allowed_by_operator", "the allow")
    story = facts("explain", "api.openai.com", "--data", shared)["events"]
    assert [step["replica"] for step in story] == ["ana", "ana"]
    past = sickbay("hold", "h", "--until", "2020-01-01T00:00:00Z", "--new", *by)
    assert past.returncode == 2 and "log's clock" in past.stderr


def test_doctor_finds_nothing_bad_with_fresh_services(data: str) -> None:
    """Every finding is there, none is bad; each that is not ok says what to do."""
    found = facts("doctor", "--data", data)
    assert found["ok"]
    assert {one["what"] for one in found["findings"]} >= {
        "connection", "server version", "JetStream", "streams", "clock", "log", "disk sync", "permissions",
        "unreadable events", "services", "lag", "checkpoint",
    }  # fmt: skip
    assert all(one["do"] for one in found["findings"] if one["level"] not in ("ok", "note"))
    shown = sickbay("doctor", "--data", data, environment={"COLUMNS": "80"}).stdout
    assert "0 bad" in shown and all(len(line) <= 80 for line in shown.splitlines())


def test_doctor_names_what_is_wrong(nats_server_factory: Callable[..., NatsServer]) -> None:
    """No JetStream, no streams, no services: each is a bad finding with a remedy, and the exit code is 1."""
    bare = sickbay("doctor", "--json", "--nats", nats_server_factory(jetstream=False).url)
    found = {one["what"]: one for one in json.loads(bare.stdout)["findings"]}
    assert bare.returncode == 1 and found["JetStream"]["level"] == "bad" and found["JetStream"]["do"]
    empty = sickbay("doctor", "--json", "--nats", nats_server_factory().url)
    found = {one["what"]: one for one in json.loads(empty.stdout)["findings"]}
    assert empty.returncode == 1 and found["streams"]["level"] == "bad" and "serve" in found["streams"]["do"]
    assert found["services"]["level"] == "bad"


def test_a_user_without_permissions_is_told_which(
    nats_server_factory: Callable[..., NatsServer], serve: Callable[..., Serve]
) -> None:
    """A command that the server refuses ends with the subject that was refused, not with a bare timeout."""
    config = (
        "authorization { users: [ { user: admin, password: pw }, { user: router, password: pw, permissions: {"
        ' publish: { allow: ["sickbay.outcome.>", "sickbay.v1.>"] }, subscribe: { allow: ["_INBOX.>"] } } } ] }'
    )
    server = nats_server_factory(config=config)
    url = server.url.replace("nats://", "nats://{}:pw@")
    served = serve("--nats", url.format("admin")).ready()
    router = {"SICKBAY_NATS": url.format("router")}
    assert facts("report", "h", "m", "-k", "ok", environment=router)["seq"] == 1
    assert facts("status", environment=router)["from"] == "services"
    done = sickbay("hold", "h", "--for", "5m", "--reason", "no", "--new", environment=router)
    assert done.returncode == 1 and "may not publish" in done.stderr and "SICKBAY_CONTROL" in done.stderr
    assert served.end()[0] == 0


def test_status_goes_on_without_services(nats_server: NatsServer, serve: Start) -> None:
    """When no service answers, status shows what the gates were last told, and says so."""
    served = serve("--nats", nats_server.url).ready()
    for _ in range(2):
        facts("report", "h", "m", "-k", "model_unavailable", "--nats", nats_server.url)
    until_sync(lambda: facts("status", "--nats", nats_server.url)["scopes"], "the hold")
    assert served.end(signal.SIGINT)[0] == 0
    left = facts("status", "--nats", nats_server.url)
    assert left["from"] == "view" and left["scopes"][0]["holds"][0]["rule"] == "quarantine"
    assert "no service answers" in sickbay("status", "--nats", nats_server.url).stdout
    assert sickbay("doctor", "--nats", nats_server.url).returncode == 1
    assert sickbay("explain", "h", "m", "--nats", nats_server.url).returncode == 0


def test_a_second_serve_stands_by_and_takes_over_when_the_first_is_killed(
    nats_server: NatsServer, serve: Start
) -> None:
    """One writes, the other folds along; after SIGKILL of the writer the other holds what is reported then."""
    url = nats_server.url
    both = [serve("--nats", url).ready() for _ in range(2)]

    def phases() -> list[str]:
        return [served.health()["projector"]["phase"] for served in both if served.process.poll() is None]

    until_sync(lambda: phases() == ["writing", "standby"], "one writes and one stands by")
    facts("report", "h", "m", "-k", "model_unavailable", "--nats", url)
    both[0].end(signal.SIGKILL)
    until_sync(lambda: phases() == ["writing"], "the other took over")
    facts("report", "h", "m", "-k", "model_unavailable", "--nats", url)
    scopes = until_sync(lambda: facts("status", "--nats", url)["scopes"], "the hold")
    assert scopes[0]["holds"][0]["count"] == 2, "the strike from before the takeover counts"
    assert both[1].end()[0] == 0


def test_serve_on_a_folder_in_use_is_refused(shared: str, serve: Start) -> None:
    """A second one on the same folder says who has it and ends with 1; the first goes on."""
    second = serve("--data", shared)
    code, errors = second.end(0)
    assert code == 1 and "in use" in errors and "Traceback" not in errors
    assert facts("status", "--data", shared)["projector"]["is_writer"]


def test_serve_takes_its_servers_along(tmp_path: Path, serve: Start) -> None:
    """After SIGTERM the exit code is 0, nothing is logged as an error, and no nats-server is left."""
    served = serve("--data", str(tmp_path)).ready()
    pid = int((tmp_path / "server.lock").read_text())
    os.kill(pid, 0)
    code, errors = served.end()
    assert code == 0 and "ERROR" not in errors and "Traceback" not in errors
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_serve_killed_takes_its_server_along(tmp_path: Path, serve: Start) -> None:
    """SIGKILL of the services ends the embedded server too, and the next start finds its log whole."""
    served = serve("--data", str(tmp_path)).ready()
    facts("report", "h", "m", "-k", "ok", "--data", str(tmp_path))
    pid = int((tmp_path / "server.lock").read_text())
    served.end(signal.SIGKILL)

    def gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    until_sync(gone, "the end of nats-server")
    again = serve("--data", str(tmp_path)).ready()
    assert facts("report", "h", "m", "-k", "ok", "--data", str(tmp_path))["seq"] == 2
    assert again.end()[0] == 0


def test_serve_waits_for_nothing_when_interrupted_at_its_start(tmp_path: Path, serve: Start) -> None:
    """A server that never answers: SIGTERM ends the waiting at once."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        served = serve("--nats", f"nats://127.0.0.1:{silent.getsockname()[1]}", "--data", str(tmp_path))
        silent.settimeout(patience(LIMIT_S))
        connection, _ = silent.accept()
        with connection:
            began = time.monotonic()
            assert served.end()[0] == 0 and time.monotonic() - began < patience(5)


def test_serve_refuses_what_it_cannot_use(tmp_path: Path, serve: Start) -> None:
    """A bad policy file, a bad address and a taken port are plain errors."""
    bad = tmp_path / "policy.toml"
    bad.write_text("[rejections]\nthreshold = 0\n")
    with NatsServer() as server:
        for arguments, code, says in (
            (["--policy", str(bad)], 1, "rejections.threshold"),
            (["--http", "nowhere"], 2, "host:port"),
            (["--http", f"127.0.0.1:{server.port}"], 1, "--http"),
        ):
            ended, errors = serve("--nats", server.url, *arguments).end(0)
            assert (ended, says in errors, "Traceback" in errors) == (code, True, False), errors


def test_a_policy_file_seeds_an_empty_log_only(
    nats_server: NatsServer, tmp_path: Path, serve: Callable[..., Serve]
) -> None:
    """The first serve writes the file's policy into the log; later another file changes nothing and is reported."""
    one, other = tmp_path / "one.toml", tmp_path / "other.toml"
    one.write_text("[rejections]\nthreshold = 1\n")
    other.write_text("[rejections]\nthreshold = 5\n")
    first = serve("--nats", nats_server.url, "--policy", str(one)).ready()
    facts("report", "h", "m", "-k", "model_unavailable", "--nats", nats_server.url)
    until_sync(lambda: facts("status", "--nats", nats_server.url)["scopes"], "the hold after one strike")
    in_force = facts("policy", "show", "--nats", nats_server.url)
    assert in_force["seq"] == 1 and in_force["policy"]["rejections"]["threshold"] == 1
    assert "rejections.threshold" in sickbay("policy", "show", "--nats", nats_server.url).stdout
    assert first.end()[0] == 0
    second = serve("--nats", nats_server.url, "--policy", str(other)).ready()
    findings = until_sync(
        lambda: [
            one
            for one in json.loads(sickbay("doctor", "--json", "--nats", nats_server.url).stdout)["findings"]
            if one["what"] == "policy"
        ],
        "the finding about the policy file",
    )
    assert "rejections.threshold" in findings[0]["found"]
    code, errors = second.end()
    assert code == 0 and "rejections.threshold" in errors


def test_health_over_http(nats_server: NatsServer, serve: Start) -> None:
    """200 with the facts while all is well; 503 when NATS is gone; 200 again when it is back."""
    served = serve("--nats", nats_server.url).ready()

    def health() -> tuple[int, Any]:
        try:
            return 200, served.health()
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    until_sync(lambda: health()[0] == 200, "health")
    assert health()[1]["projector"]["phase"] == "writing"
    nats_server.kill9()
    until_sync(lambda: health()[0] == 503, "ill health without NATS")
    nats_server.restart()
    until_sync(lambda: health()[0] == 200, "health after the restart")
    assert facts("status", "--nats", nats_server.url)["from"] == "services"
    assert json.loads(served.get("asyncapi.json"))["asyncapi"].startswith("3.")
    assert served.end()[0] == 0


def test_a_log_line_for_each_hold_and_release(nats_server: NatsServer, serve: Start) -> None:
    """The services' own log has a WARNING for a hold and an INFO for a release, and names unreadable events."""
    served = serve("--nats", nats_server.url).ready()
    by = ["--reason", "x", "--nats", nats_server.url]
    facts("hold", "h", "m", "--for", "5m", "--new", *by)
    facts("clear", "h", "m", *by)

    async def poison() -> None:
        client = await connect_client(nats_server.url)
        await client.request("sickbay.outcome.r1.h.=.m", b'{"kind":"nonsense"}', timeout=patience(5))
        await client.close()

    asyncio.run(poison())
    until_sync(lambda: "released: h m from operator" in served.log(), "the release in the log")
    until_sync(lambda: "could not be read: kind" in served.log(), "the dead letter in the log")
    text = served.log()
    assert "WARNING sickbay.services: held: h m by operator until " in text
    assert served.end()[0] == 0


def test_a_loopback_provider_is_named_as_this_machine_names_it(shared: str) -> None:
    """Routers add their machine's name to a loopback host, so an operator's act without one would reach nobody."""
    said = {"SICKBAY_MACHINE": "box-7"}
    act = ("hold", "http://localhost:11434/v1", "m", "--reason", "moved", "--for", "5m", "--new")
    held = sickbay(*act, "--data", shared, environment=said)
    assert held.returncode == 0 and "localhost:11434 is localhost:11434@box-7 in the log" in held.stderr
    explained = sickbay("explain", "localhost:11434@box-7", "m", "--data", shared, environment=said)
    assert "held_by_operator" in explained.stdout and explained.stderr == ""


def test_a_hold_that_would_not_end_says_which_option_is_missing() -> None:
    refused = sickbay("hold", "openrouter.ai", "--reason", "moved")
    assert refused.returncode == 2 and "neither" in refused.stderr and "--for 30m" in refused.stderr
