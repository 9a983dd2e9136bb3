"""Doctor finds each state that loses data, denies wrongly or opens a door: on real servers in that state."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from alert_receiver import SECRET, Receiver
from cli_runs import Serve, sickbay
from nats_servers import NatsServer, free_port
from secured_nats import SecuredNats
from sickbay.bus.connect import connect_client
from sickbay.bus.jetstream import JetStreamApi
from sickbay.bus.topology import CONTROL, LOG, TRANSITIONS, StreamLimits, ensure
from sickbay.bus.view_names import MAIN, view_names
from sickbay.config import Settings
from sickbay.control.acts import publish_outcome
from sickbay.doctor import servers
from sickbay.doctor.finding import Installation
from sickbay.doctor.machine import files
from sickbay.doctor.servers import clock_findings
from sickbay.doctor.streams import hours_held
from sickbay.log.snapshots import SnapshotInfo, store
from sickbay_events import CallOutcome, Target
from sickbay_projections import FOLD_VERSION
from waiting import patience, until_sync

Findings = dict[str, dict[str, Any]]


def examined(*arguments: str, environment: dict[str, str] | None = None) -> Findings:
    """What doctor finds, by name; every finding that is not well says what to do."""
    done = sickbay("doctor", "--json", *arguments, environment=environment)
    found = json.loads(done.stdout)
    assert done.returncode == (0 if found["ok"] else 1), done.stderr
    assert all(one["do"] for one in found["findings"] if one["level"] in ("warn", "bad"))
    return {one["what"]: one for one in found["findings"]}


def own_address() -> str:
    """An address of this machine that others could reach; loopback where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


OWN = own_address()
needs_network = pytest.mark.skipif(OWN.startswith("127."), reason="this machine has no address but loopback")


async def edit(nats: NatsServer, stream: str, **fields: Any) -> None:
    """Change a stream as `nats stream edit` does."""
    client = await connect_client(nats.url)
    api = JetStreamApi(client, timeout_s=patience(5))
    config = (await api.request(f"STREAM.INFO.{stream}"))["config"]
    await api.request(f"STREAM.UPDATE.{stream}", {**config, **fields})
    await client.close()


class Ill:
    """One installation in which much is wrong at once, and what doctor and `serve` say of it."""

    def __init__(self, folder: Path, receiver: Receiver) -> None:
        self.folder, self.receiver = folder, receiver
        self.nats = NatsServer().start()
        self.port = free_port()
        self.alerts = folder / "alerts.toml"
        self.alerts.write_text(
            f'[alerts]\nwindow_s = 0\n[[alerts.receiver]]\nname = "gone"\nkind = "webhook"\nurl = "{receiver.url}"\n'
            'secret = "env:KEY"\n'
        )
        self.alerts.chmod(0o666)
        self.environment = {
            "SICKBAY_NATS": self.nats.url, "SICKBAY_HTTP": f"{OWN}:{self.port}", "SICKBAY_HTTP_ANONYMOUS": "read",
            "SICKBAY_ALERTS": str(self.alerts), "SICKBAY_HISTORY": str(folder / "history.db"), "KEY": SECRET,
        }  # fmt: skip
        self.said = ""

    async def prepare(self) -> None:
        """Streams whose limits drop events, a snapshot of another version, another view."""
        client = await connect_client(self.nats.url)
        await ensure(client)
        await ensure(client, view=view_names("next"))
        info = SnapshotInfo(
            seq=1, time_ms=1, time_ns=1, fold=FOLD_VERSION + 1, policy_seq=0, digest="", log_created="x", mark=0,
            compression="zlib", size=1,
        )  # fmt: skip
        await store(client, info, b"{}")
        await client.close()
        hour_ns = 3_600 * 10**9
        for stream in (LOG, TRANSITIONS, CONTROL):
            await edit(self.nats, stream, max_age=hour_ns, duplicate_window=10**9)

    def serve(self) -> None:
        self.served = Serve(**self.environment).ready()

    def until(self, holds: Callable[[Any], bool]) -> None:
        until_sync(lambda: holds(self.served.health()), "its health says so")

    async def suffer(self) -> None:
        """An event that cannot be read, alerts that are refused, a historian that is killed."""
        self.receiver.always = 400
        client = await connect_client(self.nats.url)
        await client.jetstream().publish("sickbay.outcome.r.h.=.m", b"no json")
        for replica in ("r1", "r2"):
            await publish_outcome(client, Target("h", "m"), CallOutcome(kind="model_unavailable"), replica=replica)
        await client.close()
        self.until(lambda found: found["history"]["running"])
        pid = self.served.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        historian = [child for child in children if b"historian" in Path(f"/proc/{child}/cmdline").read_bytes()]
        os.kill(int(historian[0]), signal.SIGKILL)
        self.until(lambda found: found["history"]["restarts"] == 1 and found["history"]["running"])
        self.until(lambda found: found["alerts"][0]["not_delivered"] > 0)

    def end(self) -> None:
        self.served.end()
        self.nats.stop()


@pytest.fixture(scope="module")
def ill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ill, Findings]]:
    with Receiver() as receiver:
        made = Ill(tmp_path_factory.mktemp("ill"), receiver)
        try:
            asyncio.run(made.prepare())
            made.serve()
            asyncio.run(made.suffer())
            yield made, examined(environment=made.environment)
        finally:
            made.end()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children are read from /proc")
@pytest.mark.parametrize(
    ("what", "level", "found", "do"),
    [
        ("log", "warn", "holds 1 h (by age)", "SICKBAY_LOG"),
        ("transitions", "warn", "holds 1 h (by age)", "SICKBAY_TRANSITIONS"),
        ("control", "bad", "operators' acts by max_age", "SICKBAY_CONTROL"),
        ("snapshots", "warn", f"1 of version {FOLD_VERSION + 1}", "one version"),
        ("views", "note", "there is also next", "--view"),
        ("unreadable events", "warn", "1 noted", "sickbay.dead"),
        ("files", "bad", "can be written by other users", "chmod go-w"),
        ("history", "warn", "started again 1 times", "log"),
        ("alerts", "warn", "gone: HTTP 400", "sickbay alerts test"),
        ("disk sync", "note", "only the system account", "sync_interval"),
        pytest.param("HTTP", "warn", "without a token", "SICKBAY_HTTP_ANONYMOUS=none", marks=needs_network),
    ],
)
def test_doctor_names_each_ill_with_its_remedy(
    ill: tuple[Ill, Findings], what: str, level: str, found: str, do: str
) -> None:
    """Streams that drop too early, versions that do not fit, files and ports that are open, children that fail."""
    finding = ill[1][what]
    assert finding["level"] == level and found in finding["found"] and do in finding["do"], finding


def test_serve_says_as_it_starts_what_loses_events(ill: tuple[Ill, Findings]) -> None:
    """One line each with the remedy, by doctor's own checks; what loses nothing is not said there."""
    lines = [line for line in ill[0].served.log().splitlines() if " -> " in line]
    assert [line for line in lines if "WARNING" in line and "log: " in line and "holds 1 h" in line]
    assert [line for line in lines if "control: " in line and "take the limit off" in line]
    assert not [line for line in lines if "views" in line or "files" in line]


def test_a_view_by_a_name_is_looked_at_by_that_name(nats_server: NatsServer, tmp_path: Path) -> None:
    """status, doctor and policy show read the view they are told of: by option and by SICKBAY_VIEW."""
    served = Serve("--nats", nats_server.url, "--view", "next").ready()
    here = ("--nats", nats_server.url)
    try:
        for replica in ("r1", "r2"):
            sickbay("report", "h", "m", "-k", "model_unavailable", "--replica", replica, *here)
        found = examined("--view", "next", *here)
        assert found["checkpoint"]["level"] == "ok" and found["streams"]["level"] == "ok"
        assert examined(*here)["streams"]["level"] == "bad", "the view without a name was never made"
    finally:
        assert served.end()[0] == 0
    shown = json.loads(sickbay("status", "--json", "--view", "next", *here).stdout)
    assert shown["from"] == "view" and shown["scopes"][0]["holds"][0]["rule"] == "quarantine"
    environment = {"SICKBAY_VIEW": "next", "SICKBAY_NATS": nats_server.url}
    again = json.loads(sickbay("status", "--json", environment=environment).stdout)
    assert again["scopes"][0]["holds"][0]["began_seq"] == shown["scopes"][0]["holds"][0]["began_seq"]
    assert sickbay("policy", "show", environment=environment).returncode == 0
    assert sickbay("policy", "show", *here).returncode == 1
    gone = examined("--view", "never", *here)
    assert gone["streams"]["level"] == "bad" and "next" in gone["views"]["found"]
    assert sickbay("status", "--view", "no.name", *here).returncode == 2


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNats]:
    with SecuredNats(tmp_path_factory.mktemp("nats") / "nats") as servers:
        yield servers


async def test_a_router_s_credential_is_tried_for_what_it_must_not_do_without_effect(secured: SecuredNats) -> None:
    """The router's own user can do no more than it must; the services' and an operator's are far too much for one; and
    nothing was written by trying."""
    client = await connect_client(secured.options("operator"))
    await ensure(client)
    api = JetStreamApi(client, timeout_s=patience(5))
    streams = (*(stream for stream in (LOG, CONTROL, TRANSITIONS, MAIN.stream)),)
    before = [(await api.request(f"STREAM.INFO.{stream}"))["state"]["last_seq"] for stream in streams]
    found = {}
    for role in ("router", "services", "operator"):
        file = str(secured.folder / f"{role}.env")
        looked = await asyncio.to_thread(
            examined, "--router", file, "--system", str(secured.folder / "system.env"),
            environment=secured.env("operator"),
        )  # fmt: skip
        found[role] = looked["router"]
        assert looked["disk sync"]["level"] == "ok" and "every 10 s" in looked["disk sync"]["found"]
        assert looked["encryption"]["found"] == "TLS" and looked["storage"]["level"] == "ok"
    assert found["router"]["level"] == "ok"
    assert found["services"]["level"] == "bad" and "write the view, publish overrides" in found["services"]["found"]
    assert "change streams, delete streams" in found["operator"]["found"] and "nats-config" in found["operator"]["do"]
    assert [(await api.request(f"STREAM.INFO.{stream}"))["state"]["last_seq"] for stream in streams] == before
    await client.close()


def test_a_server_that_was_told_nothing_syncs_by_default(
    nats_server_factory: Callable[..., NatsServer], tmp_path: Path
) -> None:
    """Who may ask the servers is told of each that nobody set on purpose, and how full the account is."""
    config = (
        "system_account: SYS\naccounts { SYS { users: [ { user: sys, password: pw } ] }\n"
        "A { jetstream { max_file: 12MB }, users: [ { user: a, password: pw } ] } }"
    )
    server = nats_server_factory(config=config)
    url = server.url.replace("nats://", "nats://{}:pw@")
    (tmp_path / "system.env").write_text(f"SICKBAY_NATS={url.format('sys')}\n")

    async def fill() -> None:
        client = await connect_client(url.format("a"))
        await ensure(client, StreamLimits(log_max_bytes=1 << 20, dead_max_bytes=1 << 20))
        for _ in range(10):
            await client.jetstream().publish("sickbay.override.h", b"x" * 999_000)
        await client.close()

    asyncio.run(fill())
    found = examined("--nats", url.format("a"), "--system", str(tmp_path / "system.env"))
    assert found["disk sync"]["level"] == "warn" and "nobody chose" in found["disk sync"]["found"]
    assert found["storage"]["level"] in ("warn", "bad") and "the account is" in found["storage"]["found"]
    assert found["clock"]["level"] == "ok"


@needs_network
def test_a_server_on_the_network_without_tls_or_credentials_is_a_door(tmp_path: Path) -> None:
    """Everything in clear is to be looked at; that nobody needs a password there is bad."""
    port = free_port()
    config = tmp_path / "open.conf"
    config.write_text(f'listen: "0.0.0.0:{port}"\njetstream {{ store_dir: {json.dumps(str(tmp_path / "js"))} }}\n')
    with NatsServer(store=tmp_path / "unused") as binary:
        assert binary.process is not None
        program = str(binary.process.args[0])  # type: ignore[index]
    process = subprocess.Popen([program, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        found = examined("--nats", f"nats://{OWN}:{port}")
        assert found["encryption"]["level"] == "warn" and "in clear" in found["encryption"]["found"]
        assert found["credentials"]["level"] == "bad" and "nats-config" in found["credentials"]["do"]
        assert "credentials" not in examined("--nats", f"nats://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(patience(10))


async def test_a_clock_that_is_off_is_said(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's clock 5 s behind the server's is to be looked at."""
    client = await connect_client(nats_server.url)
    await ensure(client)
    shifted = SimpleNamespace(time=lambda: time.time() - 5, monotonic=time.monotonic)
    monkeypatch.setattr(servers, "time", shifted)
    found = await servers.clock(Installation(client, Settings(nats=nats_server.url), MAIN))
    await client.close()
    assert [one.level for one in found] == ["warn"] and "+5.0 s" in found[0].found


def test_servers_whose_clocks_differ_are_named() -> None:
    """A log that another server leads afterwards would step in time."""
    found = clock_findings({"n1": 0.1, "n2": -0.1, "n3": -3.0})
    assert [(one.what, one.level) for one in found] == [("clock", "warn"), ("clocks", "bad")]
    assert "n3 is 3.1 s behind n1" in found[1].found
    assert [one.level for one in clock_findings({"n1": 0.1, "n2": -0.1})] == ["ok"]


@pytest.mark.parametrize(
    ("field", "mode", "level"),
    [("creds", 0o600, "ok"), ("creds", 0o640, "bad"), ("http_tokens", 0o644, "warn"), ("probes", 0o644, "warn"),
     ("policy", 0o644, "ok"), ("policy", 0o664, "bad"), ("alerts", 0o400, "ok")],
)  # fmt: skip
async def test_files_are_as_closed_as_what_is_in_them(
    nats_server: NatsServer, tmp_path: Path, field: str, mode: int, level: str
) -> None:
    """A credential nobody else reads, a file that names a command nobody else writes; a policy may be read."""
    path = tmp_path / field
    path.touch()
    path.chmod(mode)
    client = await connect_client(nats_server.url)
    patient = Installation(client, Settings(data=str(tmp_path), **{field: str(path)}), MAIN)  # type: ignore[arg-type]
    found = files(patient)
    await client.close()
    assert [one.level for one in found] == [level]
    assert level == "ok" or (str(path) in found[0].found and found[0].do.startswith("chmod"))


def test_whatever_listens_where_http_should_be_ends_no_examination(nats_server: NatsServer) -> None:
    """What speaks no HTTP and what answers strange things are said, without any proxy, and all checks after it run."""

    class Strange(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"history": "yes", "alerts": 5}')

        def log_message(self, *_: object) -> None:
            pass

    environment = {"http_proxy": "http://127.0.0.1:1", "SICKBAY_HTTP": nats_server.url.removeprefix("nats://")}
    found = examined("--nats", nats_server.url, environment=environment)
    assert (found["HTTP"]["level"], found["services"]["level"]) == ("note", "bad")
    with HTTPServer(("127.0.0.1", 0), Strange) as strange:
        threading.Thread(target=strange.serve_forever, kwargs={"poll_interval": 0.02}).start()
        try:
            environment["SICKBAY_HTTP"] = f"127.0.0.1:{strange.server_port}"
            found = examined("--nats", nats_server.url, environment=environment)
        finally:
            strange.shutdown()
    assert found["HTTP"]["level"] == "warn" and "could not be looked at" in found["HTTP"]["found"]


def test_a_log_that_holds_less_than_a_day_is_counted_in_hours() -> None:
    """1,000 events a second of 300 bytes fill 10 GiB in some ten hours, long before the age of a week."""
    config = {"max_age": 7 * 86_400 * 10**9, "max_bytes": 10 << 30}
    hours, limit = hours_held(1000, 300, config)
    assert limit == "size" and hours is not None and 9 < hours < 11
    assert hours_held(1, 300, config) == (168.0, "age")
    assert hours_held(5, 300, {"max_age": 0, "max_bytes": -1}) == (None, "")


def test_version_is_said() -> None:
    """`sickbay --version`, as every command line has it."""
    assert sickbay("--version").stdout.startswith("sickbay ")


@pytest.mark.parametrize("setting", ["POLICY", "PROBES", "ALERTS", "CREDS", "TLS_CA"])
def test_serve_refuses_a_file_that_is_not_there_before_it_does_anything(setting: str) -> None:
    """The setting is named at once, whether or not any NATS is there."""
    began = time.monotonic()
    environment = {f"SICKBAY_{setting}": "/no/such/file", "SICKBAY_HTTP": "off"}
    done = sickbay("serve", "--nats", "nats://127.0.0.1:1", environment=environment)
    assert done.returncode == 2 and f"SICKBAY_{setting}" in done.stderr and "/no/such/file" in done.stderr
    assert time.monotonic() - began < patience(10)
