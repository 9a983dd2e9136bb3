"""The FastStream application: it runs by FastStream's own command, and its event contract is whole."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli_runs import CLEAN, sickbay
from nats_servers import NatsCluster, NatsServer, free_port
from sickbay.bus.connect import BusError, ConnectError, connect_client
from sickbay.config import Settings
from sickbay.control.acts import publish_outcome
from sickbay.service.announce import Transition
from sickbay.service.app import app, make_app, services_of
from sickbay.service.asyncapi import asyncapi_document
from sickbay.service.services import Services
from sickbay_events import CallOutcome, Target
from sickbay_events.codec import encode_derived
from sickbay_events.derived import DerivedEvent, HealthChanged, Released, TargetHeld, WarningRaised
from sickbay_events.names import Scope
from waiting import patience, until, until_sync

FASTSTREAM = [sys.executable, "-m", "faststream"]
SCOPE = Scope("openrouter.ai", "", "z-ai/glm-5.3")
EXAMPLES: dict[str, DerivedEvent] = {
    "held": TargetHeld(
        scope=SCOPE, rule="quarantine", cause_seq=2, time_ms=5, began_seq=2, end_ms=9, kind="ok", status=4
    ),
    "released": Released(scope=SCOPE, rule="quarantine", cause_seq=3, time_ms=5, began_seq=2, end_ms=9, by="clear"),
    "health": HealthChanged(scope=Scope("h"), rule="health", cause_seq=3, time_ms=5, old="idle", new="healthy"),
    "warning": WarningRaised(scope=SCOPE, rule="replica_suspect", cause_seq=3, time_ms=5, replica="r1"),
}


def test_the_contract_has_every_subject() -> None:
    """Each subject of the design is a channel, with the right direction and a schema."""
    found = asyncapi_document(app.schema)
    channels = {channel["address"]: name for name, channel in found["channels"].items() if channel["messages"]}
    received = ("outcome.{replica}.{scope_key}", "probe.{replica}.{scope_key}", "override.{scope_key}", "policy")
    sent = ("held", "released", "health", "warning", "view")
    assert channels.keys() >= {f"sickbay.{rest}" for rest in received} | {
        f"sickbay.{word}.{{scope_key}}" for word in sent
    }
    directions = {
        operation["channel"]["$ref"].rsplit("/", 1)[1]: operation["action"]
        for operation in found["operations"].values()
    }
    assert {directions[channels[f"sickbay.{rest}"]] for rest in received} == {"receive"}
    assert {directions[channels[f"sickbay.{word}.{{scope_key}}"]] for word in sent} == {"send"}
    assert len(found["components"]["schemas"]) >= len(channels)


def test_the_contract_says_what_goes_over_the_wire() -> None:
    """Every field of a real derived event and of an outcome is in its schema, and what is required is there."""
    schemas = asyncapi_document(app.schema)["components"]["schemas"]
    for word, event in EXAMPLES.items():
        schema = next(value for name, value in schemas.items() if name.startswith(f"sickbay.{word}:"))
        body = json.loads(encode_derived(event, "2026-11-30T00:00:00Z"))
        assert set(body) <= set(schema["properties"]), word
        assert set(schema["required"]) <= set(body), word
    outcome = next(value for name, value in schemas.items() if name.startswith("outcome:"))
    kinds = [one for one in outcome["anyOf"] if one["title"] == "CallOutcome"]
    assert set(kinds[0]["properties"]) == set(CallOutcome.__struct_fields__)
    assert kinds[0]["required"] == ["kind"]


def test_the_contract_is_the_same_by_every_way(tmp_path: Path) -> None:
    """`sickbay asyncapi` and `faststream docs gen` agree, and no server's address is in the first."""
    ours = sickbay("asyncapi")
    assert ours.returncode == 0
    assert sickbay("asyncapi", "-o", str(tmp_path / "ours.json")).returncode == 0
    found = json.loads(ours.stdout)
    assert found == json.loads((tmp_path / "ours.json").read_text()) and "servers" not in found
    theirs = tmp_path / "theirs.json"
    done = subprocess.run(
        [*FASTSTREAM, "docs", "gen", "sickbay.app:app", "-o", str(theirs)],
        capture_output=True, text=True, check=False, env=CLEAN,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    generated = json.loads(theirs.read_text())
    assert generated["channels"].keys() == found["channels"].keys()
    assert generated["components"]["schemas"] == found["components"]["schemas"]


@pytest.mark.parametrize("word", EXAMPLES)
def test_the_alerts_read_every_transition(word: str) -> None:
    """What the projector publishes is what the subscriber decodes."""
    body = encode_derived(EXAMPLES[word], "2026-11-30T00:00:00Z")
    assert msgspec.json.decode(body, type=Transition).type == word


def test_importing_the_application_reads_no_environment() -> None:
    """Settings are read when it starts, so that `faststream docs gen` and the contract need none."""
    code = "import os; os.environ['SICKBAY_PORT'] = 'nonsense'; import sickbay.app"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=CLEAN)
    assert done.returncode == 0, done.stderr


def got(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=patience(5)) as reply:
        return bytes(reply.read())


def test_faststream_runs_it(nats_server: NatsServer) -> None:
    """`faststream run sickbay.app:app`: healthy, folding, answering; SIGTERM ends it in order."""
    port = free_port()
    process = subprocess.Popen(
        [*FASTSTREAM, "run", "sickbay.app:app", "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**CLEAN, "SICKBAY_NATS": nats_server.url},
    )  # fmt: skip
    try:
        facts = until_sync(lambda: json.loads(got(f"http://127.0.0.1:{port}/healthz")), "it is healthy")
        assert facts["ok"] and facts["connected"]
        for _ in range(2):
            assert sickbay("report", "h", "m", "-k", "model_unavailable", "--nats", nats_server.url).returncode == 0

        def scopes() -> Any:
            found = json.loads(sickbay("status", "--json", "--nats", nats_server.url).stdout)
            return found["from"] == "services" and found["scopes"]

        assert until_sync(scopes, "the services tell of the hold")[0]["holds"][0]["began_seq"] == 2
    finally:
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=patience(20))[0]
    # uvicorn raises the signal anew once all has ended in order.
    assert process.returncode in (0, -signal.SIGTERM, 128 + signal.SIGTERM), said
    assert "Traceback" not in said


async def test_the_application_begins_and_ends_in_process(nats_server: NatsServer) -> None:
    """Its life by its own context: services run inside, nothing is left outside."""
    made = make_app(Settings(nats=nats_server.url, replica="box"))
    async with made.start_lifespan_context():
        services = services_of(made)
        await services.ready()
        assert services.health()["ok"]
        client = await connect_client(nats_server.url)
        ack = await publish_outcome(client, Target("h", "m"), CallOutcome(kind="ok"), replica="r")
        assert services.projector is not None and await services.projector.folded_to(ack.seq, 10)
        await client.close()
    with pytest.raises(IndexError):
        services_of(made)
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("sickbay")] == []


async def test_a_policy_file_seeds_the_log_that_its_services_make(nats_server: NatsServer, tmp_path: Path) -> None:
    """Whatever event reaches the log first. A router that has waited for the log stores its outcomes the moment it is
    there: the file's policy is the first one all the same. A log that stood before keeps to its own."""
    policy = tmp_path / "policy.toml"
    policy.write_text("[rejections]\nthreshold = 7\n")
    client = await connect_client(nats_server.url)

    async def report() -> None:
        number = 0
        while True:
            number += 1
            with contextlib.suppress(Exception):
                outcome = CallOutcome(kind="ok", id=f"x-{number}")
                await publish_outcome(client, Target("h", "m"), outcome, replica="r")

    reporting = [asyncio.create_task(report()) for _ in range(8)]
    services = Services(Settings(nats=nats_server.url, policy=str(policy)))
    await services.start()
    await services.ready()
    for task in reporting:
        task.cancel()
    assert services.projector is not None and services.projector.fleet.policy.rejections.threshold == 7
    await services.stop()
    policy.write_text("[rejections]\nthreshold = 9\n")
    later = Services(Settings(nats=nats_server.url, policy=str(policy)))
    await later.start()
    await later.ready()
    assert later.projector is not None and later.projector.fleet.policy.rejections.threshold == 7
    await later.stop()
    await client.close()


async def test_services_without_a_server_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start is bounded: it names the server and what was tried."""
    monkeypatch.setattr("sickbay.service.services.CONNECT_TIMEOUT_S", 0.3)
    services = Services(Settings(nats="nats://127.0.0.1:1"))
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1"):
        await services.start()
    assert services.health() == {"ok": False, "why": "not started"}


async def test_an_alert_whose_handler_fails_comes_again(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ack policy is explicit: a handler that raises once gets the same transition again."""
    heard: list[Any] = []

    def failing(event: Transition) -> None:
        if event.type != "held":
            return
        heard.append(event)
        if len(heard) == 1:
            raise RuntimeError("the pager is down")

    monkeypatch.setattr("sickbay.service.announce.log_transition", failing)
    made = make_app(Settings(nats=nats_server.url))
    async with made.start_lifespan_context():
        await services_of(made).ready()
        client = await connect_client(nats_server.url)
        for replica in ("r1", "r2"):
            outcome = CallOutcome(kind="model_unavailable")
            await publish_outcome(client, Target("h", "m"), outcome, replica=replica)
        await until(lambda: len(heard) == 2, "it is told again")
        await client.close()
    assert heard[0] == heard[1] and heard[0].type == "held" and heard[0].cause_seq == 2


async def test_services_wait_for_a_leader_of_the_cluster_and_then_say_that_there_is_none(
    nats_cluster: NatsCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three servers are not up yet when the services start: they say what they wait for, and go on when there
    is a leader; where none comes in time they end with a plain sentence."""
    first, *others = nats_cluster.servers
    for server in others:
        server.kill9()
    settings = Settings(nats=first.url, stream_replicas=3, history="off")

    with monkeypatch.context() as patched:
        patched.setattr("sickbay.service.services.CONNECT_TIMEOUT_S", 3.0)
        with pytest.raises(BusError, match="its cluster had no leader for 3 s"):
            await Services(settings).start()

    caplog.clear()
    services = Services(settings)
    starting = asyncio.create_task(services.start())
    try:
        await until(lambda: starting.done() or "its cluster has no leader yet" in caplog.text)
        assert not starting.done()
        for server in others:
            server.restart()
        await starting
        await services.ready()
        assert caplog.text.count("its cluster has no leader yet") == 1
    finally:
        starting.cancel()
        await services.stop()
