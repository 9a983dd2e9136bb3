"""Who may do what, on real servers as `sickbay nats-config` sets them up: over TLS, each role by its own credential."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.errors import NoRespondersError

import sickbay as router_side
from cli_runs import CLEAN, Serve, sickbay
from secured_nats import AT_ONCE_S, SecuredNats, acting, serving, settings_of
from sickbay.bus.connect import ConnectError, NatsOptions, PermissionDenied, connect_client, request
from sickbay.bus.entries import read_entries
from sickbay.bus.topology import CONTROL, GATE_STREAM, LOG, check_streams
from sickbay.control.acts import NotStored, log_now_ms, publish_outcome, publish_override
from sickbay.nats_config.write import write
from sickbay.service.services import Services
from sickbay_events import CallOutcome, Scope, Target
from sickbay_events.codec import outcome_subject
from waiting import patience, until, until_sync

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")
HELD = Target("openrouter.ai", "dead")
REJECTED = CallOutcome(kind="model_unavailable", status=404)


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[SecuredNats]:
    with SecuredNats(tmp_path / "nats") as running:
        yield running


async def held(nats: SecuredNats, services: Services) -> int:
    """HELD is quarantined by what two routers saw; the sequence that did it."""
    async with acting(nats, "router") as router:
        acks = [await publish_outcome(router.client, HELD, REJECTED, replica=name) for name in ("r1", "r2")]
    assert services.projector is not None and await services.projector.folded_to(acks[1].seq, 10)
    return acks[1].seq


async def stored(nats: SecuredNats) -> dict[str, dict[str, int]]:
    """How many messages each subject has of log, acts and gate entries, as the operator sees it."""
    async with acting(nats, "operator") as operator:
        found = {}
        for stream in (LOG, CONTROL, GATE_STREAM):
            asked = json.dumps({"subjects_filter": ">"}).encode()
            reply = await operator.client.request(f"$JS.API.STREAM.INFO.{stream}", asked, timeout=patience(5))
            subjects = json.loads(reply.data)["state"].get("subjects", {})
            found[stream] = {key: count for key, count in subjects.items() if not key.startswith("$KV.sickbay.target.")}
        return found


async def test_a_router_reports_reads_the_gate_asks_and_leases_trials(nats: SecuredNats) -> None:
    """All that the library does for a router works on its credential: record, the view, decide, trials."""
    async with serving(nats) as services:
        seq = await held(nats, services)
        async with a_router(nats) as sb:
            assert sb.decide(HELD).reason == "quarantined"
            sb.record(TARGET, CallOutcome(kind="ok"))
            async with asyncio.timeout(patience(10)):
                while sb.reporter.counts.acked < 1:
                    await asyncio.sleep(0.01)
        async with acting(nats, "router") as router:
            for subject, ask in (
                ("sickbay.v1.status", {}),
                ("sickbay.v1.decide", {"provider": HELD.provider, "model": HELD.model}),
                ("sickbay.v1.explain", {"provider": HELD.provider, "model": HELD.model}),
            ):
                reply = await router.client.request(subject, json.dumps(ask).encode(), timeout=patience(5))
                assert json.loads(reply.data)["seq"] >= seq
            lease = {"scope": TARGET.key, "rule": "breaker", "began_seq": 7}
            who = {"replica": "r3", "provider": TARGET.provider, "model": TARGET.model, "token": "t"}
            trial = {**who, "leases": [lease]}
            reply = await router.client.request("sickbay.v1.trial", json.dumps(trial).encode(), timeout=patience(5))
            assert json.loads(reply.data)["granted"] is True
            page = await read_entries(router.client, GATE_STREAM, "$KV.sickbay.gate.>")
            assert any(HELD.key.encode() in entry.subject for entry in page.entries)
            assert router.denied == []


async def test_a_router_can_do_nothing_else(nats: SecuredNats) -> None:
    """Neither the view nor acts nor streams nor anybody's answers; each is refused at once, with its subject."""
    async with serving(nats) as services, acting(nats, "router") as router:
        await held(nats, services)
        before = await stored(nats)
        for subject in (
            f"$KV.sickbay.gate.{TARGET.key}",
            f"$KV.sickbay_trials.{TARGET.key}.breaker.7",
            f"sickbay.view.{TARGET.key}",
            f"sickbay.override.{TARGET.key}",
            "sickbay.policy",
            "sickbay.operate.v1.hold",
            "sickbay.held.openrouter=2Eai",
            "sickbay.dead.decode",
            "$O.sickbay_snapshots.M.x",
            "$JS.API.INFO",
            f"$JS.API.STREAM.INFO.{LOG}",
            f"$JS.API.STREAM.DELETE.{LOG}",
            f"$JS.API.STREAM.PURGE.{LOG}",
            f"$JS.API.STREAM.MSG.GET.{LOG}",
            f"$JS.API.DIRECT.GET.{LOG}",
            f"$JS.API.CONSUMER.CREATE.{GATE_STREAM}",
            f"$JS.API.CONSUMER.CREATE.{LOG}.mine",
            "$SYS.REQ.SERVER.PING",
            "_INBOX_services.x",
        ):
            assert await router.is_denied("publish", subject), subject
        for subject in (
            ">",
            "_INBOX.>",
            "_INBOX_services.>",
            "_INBOX_operator.>",
            "sickbay.outcome.>",
            "sickbay.v1.decide",
            "sickbay.operate.v1.hold",
            "$KV.sickbay.>",
            "$SRV.>",
        ):
            assert await router.is_denied("subscribe to", subject), subject
        assert await stored(nats) == before


@asynccontextmanager
async def a_router(nats: SecuredNats) -> AsyncIterator[Any]:
    env = nats.env("router")
    async with router_side.connect(
        env["SICKBAY_NATS"], "r9", tls_ca=env["SICKBAY_TLS_CA"], inbox_prefix=env["SICKBAY_INBOX_PREFIX"]
    ) as sb:
        async with asyncio.timeout(patience(10)):
            while not sb.mirror.is_loaded:
                await asyncio.sleep(0.01)
        yield sb


async def test_no_answer_can_be_led_where_a_router_may_not_write(nats: SecuredNats) -> None:
    """Who asks names the subject of the answer, and a server does not compare it with what the asker may publish.
    In an account of their own routers reach no stream that way, and other routers' mirrors take no answer for news."""
    async with serving(nats) as services, acting(nats, "router") as router, a_router(nats) as sb:
        await held(nats, services)
        before, resyncs = await stored(nats), sb.mirror.resyncs
        direct = f"$JS.API.DIRECT.GET.{GATE_STREAM}"
        entry = f"$KV.sickbay.gate.{HELD.key}"
        question = json.dumps({"provider": HELD.provider, "model": HELD.model}).encode()
        page = json.dumps({"seq": 1, "next_by_subj": "$KV.sickbay.gate.>", "batch": 10}).encode()
        for reply in (
            f"$KV.sickbay.gate.{TARGET.key}",
            f"sickbay.view.{TARGET.key}",
            f"sickbay.view.{HELD.key}",
            f"sickbay.override.{TARGET.key}",
            "sickbay.policy",
            f"sickbay.outcome.somebody.{TARGET.key}",
            "sickbay.operate.v1.hold",
            f"$JS.API.STREAM.DELETE.{LOG}",
        ):
            await router.client.publish(f"{direct}.{entry}", b"", reply=reply)
            await router.client.publish(direct, page, reply=reply)
            await router.client.publish("sickbay.v1.decide", question, reply=reply)
        # What is asked last is answered last, so that everything before it has had its effect.
        await router.client.request("sickbay.v1.decide", question, timeout=patience(5))
        await router.client.request(f"{direct}.{entry}", b"", timeout=patience(5))
        after = await stored(nats)
        for stream in (LOG, CONTROL):
            assert after[stream] == before[stream]
        assert set(after[GATE_STREAM]) == set(before[GATE_STREAM])
        assert sb.decide(TARGET).allowed and sb.decide(HELD).reason == "quarantined"
        assert sb.mirror.resyncs == resyncs


async def test_a_router_with_a_name_reports_under_no_other(tmp_path: Path) -> None:
    """Its own subjects are taken; another's are refused at once, also by way of an answer."""
    with SecuredNats(tmp_path, routers=("router-1", "router-2")) as nats:
        async with serving(nats), acting(nats, "router-router-1") as one:
            await publish_outcome(one.client, TARGET, CallOutcome(kind="ok"), replica="router-1")
            for subject in (outcome_subject("router-2", TARGET), f"sickbay.probe.router-2.{TARGET.key}"):
                assert await one.is_denied("publish", subject)
            assert await one.is_denied("subscribe to", "_INBOX_router-router-2.>")
            question = json.dumps({"provider": TARGET.provider, "model": TARGET.model}).encode()
            await one.client.publish("sickbay.v1.decide", question, reply=outcome_subject("router-2", TARGET))
            await one.client.request("sickbay.v1.decide", question, timeout=patience(5))
            assert set((await stored(nats))[LOG]) == {outcome_subject("router-1", TARGET)}
        assert nats.env("router-router-1")["SICKBAY_REPLICA"] == "router-1"


async def test_a_router_is_added_while_the_servers_run(tmp_path: Path) -> None:
    """An update and a reload: the new router comes in, and nobody who was connected is cut off."""
    with SecuredNats(tmp_path, routers=("router-1",)) as nats:
        async with serving(nats), acting(nats, "router-router-1") as one:
            await publish_outcome(one.client, TARGET, CallOutcome(kind="ok"), replica="router-1")
            write(msgspec.structs.replace(nats.plan, routers=("router-1", "router-2")), "update")
            with pytest.raises(ConnectError):
                await connect_client(nats.options("router-router-2"), timeout_s=0.5)
            nats.reload()
            outcome = CallOutcome(kind="ok", id="0123456789abcdef-1")  # counts once, however often it is sent
            async with asyncio.timeout(patience(30)):
                while True:
                    try:
                        async with acting(nats, "router-router-2") as two:
                            await publish_outcome(two.client, TARGET, outcome, replica="router-2")
                            break
                    except (ConnectError, NotStored, OSError):
                        await asyncio.sleep(0.05)  # who comes in while a server reads its file anew may be cut off
            await publish_outcome(one.client, TARGET, CallOutcome(kind="ok"), replica="router-1")
            assert one.denied == []
            assert sum((await stored(nats))[LOG].values()) == 3


async def test_a_view_beside_is_written_and_followed_by_the_same_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `--view next` the services' user writes that view too, and a router's follows it, and writes it no more
    than the other."""
    with SecuredNats(tmp_path, views=("next",)) as nats:
        async with serving(nats) as services, serving(nats, "box-2", beside="next"):
            await held(nats, services)
            monkeypatch.setenv("SICKBAY_VIEW", "next")
            async with a_router(nats) as sb, asyncio.timeout(patience(10)):
                while sb.decide(HELD).reason != "quarantined":
                    await asyncio.sleep(0.02)
            async with acting(nats, "router") as router:
                for subject in (f"$KV.sickbay-next.gate.{TARGET.key}", f"sickbay.views.next.{TARGET.key}"):
                    assert await router.is_denied("publish", subject)
        assert not [line for line in nats.log().splitlines() if "Violation" in line and "user:services" in line]


async def test_a_reader_looks_and_does_not_act(nats: SecuredNats) -> None:
    """Questions, messages of the streams one by one, and live events; nothing that writes, and no consumer, which
    would deliver where its maker says."""
    async with serving(nats) as services, acting(nats, "reader") as reader:
        seq = await held(nats, services)
        reply = await reader.client.request("sickbay.v1.status", b"{}", timeout=patience(5))
        assert json.loads(reply.data)["scopes"]
        assert (await log_now_ms(reader.client)) > 0
        message = await reader.client.request(f"$JS.API.STREAM.MSG.GET.{LOG}", b'{"seq":%d}' % seq, timeout=patience(5))
        assert HELD.key in json.loads(message.data)["message"]["subject"]
        assert len((await read_entries(reader.client, GATE_STREAM, "$KV.sickbay.gate.>")).entries) >= 2
        live = await reader.client.subscribe("sickbay.released.>")
        await reader.client.flush()
        async with acting(nats, "operator") as operator:
            await publish_override(operator.client, HELD.scope, "clear", reason="it is back", actor="ana")
        assert HELD.key in (await live.next_msg(timeout=patience(5))).subject
        for subject in (
            outcome_subject("r1", TARGET),
            f"sickbay.override.{TARGET.key}",
            "sickbay.policy",
            "sickbay.v1.trial",
            "sickbay.operate.v1.clear",
            f"$KV.sickbay.gate.{TARGET.key}",
            f"$JS.API.CONSUMER.CREATE.{LOG}.x",
            f"$JS.API.STREAM.PURGE.{LOG}",
            f"$JS.API.DIRECT.GET.KV_sickbay_trials.$KV.sickbay_trials.{TARGET.key}.breaker.7",
        ):
            assert await reader.is_denied("publish", subject), subject


async def test_the_api_reports_reads_and_carries_acts_by_the_services(nats: SecuredNats) -> None:
    """It publishes outcomes of any router and asks for acts; it writes no act, no policy and no view itself."""
    async with serving(nats) as services, acting(nats, "api") as api:
        await held(nats, services)
        await publish_outcome(api.client, TARGET, CallOutcome(kind="ok"), replica="edge-1")
        act = {"provider": HELD.provider, "model": HELD.model, "reason": "checked", "actor": "ana"}
        reply = await api.client.request("sickbay.operate.v1.clear", json.dumps(act).encode(), timeout=patience(5))
        assert json.loads(reply.data)["stream"] == CONTROL
        for subject in (f"sickbay.override.{TARGET.key}", "sickbay.policy", f"$KV.sickbay.gate.{TARGET.key}"):
            assert await api.is_denied("publish", subject)


@pytest.mark.parametrize("role", ["router", "reader"])
async def test_a_denied_request_is_said_at_once_with_its_subject(nats: SecuredNats, role: str) -> None:
    """Not a time-out five seconds later: for an act, a request to the server, and one with an acknowledgement."""
    async with serving(nats), acting(nats, role) as who, asyncio.timeout(patience(AT_ONCE_S)):
        with pytest.raises(PermissionDenied, match=f"STREAM.DELETE.{LOG}"):
            await request(who.client, f"$JS.API.STREAM.DELETE.{LOG}", timeout_s=30)
        wanted = "STREAM.INFO.SICKBAY_CONTROL" if role == "router" else "sickbay.override"
        with pytest.raises(PermissionDenied, match=wanted):
            await publish_override(who.client, Scope("h"), "clear", reason="x", actor="ana")
        if role == "reader":
            with pytest.raises(PermissionDenied, match=r"sickbay\.outcome\.r1"):
                await publish_outcome(who.client, TARGET, REJECTED, replica="r1")


async def test_requests_that_are_allowed_are_answered_beside_one_that_is_not(nats: SecuredNats) -> None:
    """The refusal reaches whoever asked for that subject, and nobody else."""
    async with serving(nats) as services, acting(nats, "router") as router:
        refused, answered = await asyncio.gather(
            request(router.client, "sickbay.operate.v1.hold", b"{}", timeout_s=30),
            request(router.client, "sickbay.v1.status", b"{}", timeout_s=30),
            return_exceptions=True,
        )
        assert isinstance(refused, PermissionDenied) and refused.subject == "sickbay.operate.v1.hold"
        assert not isinstance(answered, BaseException) and json.loads(answered.data)["scopes"] == []
        await services.stop()
        with pytest.raises(NoRespondersError):
            await request(router.client, "sickbay.v1.status", timeout_s=30)


async def test_nobody_comes_in_without_tls_or_with_another_password(nats: SecuredNats) -> None:
    """A connection in clear, an unknown authority and a wrong password are all refused."""
    port = nats.plan.port
    right = nats.env("router")["SICKBAY_NATS"]
    for options in (
        NatsOptions.from_url(right),  # its authority is in no machine's store
        NatsOptions.from_url(f"tls://router:wrong@localhost:{port}", tls_ca=nats.env("router")["SICKBAY_TLS_CA"]),
        NatsOptions.from_url(f"nats://localhost:{port}"),
    ):
        with pytest.raises(ConnectError):
            client = await connect_client(options, timeout_s=1.5)
            await client.close()


async def test_a_cluster_finds_itself_over_tls_and_keeps_three_copies(tmp_path: Path) -> None:
    """Three servers of one plan, routes over TLS; services and routers work on their credentials."""
    with SecuredNats(tmp_path, cluster=3) as nats:
        async with acting(nats, "operator") as operator:
            async with asyncio.timeout(patience(20)):
                while True:  # until JetStream has found its leader
                    try:
                        await operator.client.request("$JS.API.INFO", b"", timeout=patience(1))
                        break
                    except (TimeoutError, NoRespondersError):
                        continue
            async with serving(nats) as services:
                await held(nats, services)
                found = await check_streams(operator.client, settings_of(nats.env("services")).limits)
                assert found.ok and found.notes == ()
                info = await operator.client.request(f"$JS.API.STREAM.INFO.{LOG}", b"", timeout=patience(5))
                assert len(json.loads(info.data)["cluster"]["replicas"]) == 2
                async with a_router(nats) as sb:
                    assert sb.decide(HELD).reason == "quarantined"


def test_serve_runs_on_its_credential_and_doctor_is_content(nats: SecuredNats, tmp_path: Path) -> None:
    """From an empty server: it makes streams, writes, answers, keeps history and logs transitions, and the server has
    denied it nothing. Doctor, as the operator, finds nothing bad and nothing to look at."""
    history = str(tmp_path / "history.db")
    with Serve(**nats.env("services"), SICKBAY_HTTP="off", SICKBAY_HISTORY=history) as served:
        for name in ("r1", "r2"):
            args = ("report", HELD.provider, HELD.model, "--kind", "model_unavailable", "--status", "404")
            done = sickbay(*args, "--replica", name, environment=nats.env("router"))
            assert done.returncode == 0, done.stderr
        reader, operator = nats.env("reader"), nats.env("operator")
        assert "quarantined" in sickbay("status", environment=reader).stdout
        told = sickbay("explain", HELD.provider, HELD.model, environment=reader)
        assert told.returncode == 0 and "quarantined" in told.stdout and "an operator's user" in told.stdout
        act = ("clear", HELD.provider, HELD.model, "--reason", "it is back")
        began = time.monotonic()
        refused = sickbay(*act, environment=reader)
        assert refused.returncode == 1 and f"'sickbay.override.{HELD.key}'" in refused.stderr
        assert time.monotonic() - began < patience(AT_ONCE_S)
        assert sickbay(*act, environment=operator).returncode == 0
        assert "clear: it is back" in sickbay("explain", HELD.provider, HELD.model, environment=operator).stdout
        found = json.loads(sickbay("doctor", "--json", environment=operator).stdout)
        assert found["ok"] and {one["level"] for one in found["findings"]} <= {"ok", "note"}, found
    assert "released: openrouter.ai dead from quarantine by clear" in served.log()
    assert "Traceback" not in served.log() and "may not" not in served.log()
    assert not [line for line in nats.log().splitlines() if "Violation" in line and "user:services" in line]


def test_the_historian_reads_the_log_on_its_credential(nats: SecuredNats, tmp_path: Path) -> None:
    """A process of its own builds the history, and the server denies it nothing."""
    path = tmp_path / "own.db"

    async def prepare() -> None:
        async with serving(nats) as services:
            await held(nats, services)

    asyncio.run(prepare())
    env = {**CLEAN, **nats.env("historian"), "SICKBAY_HISTORY": str(path)}
    process = subprocess.Popen([sys.executable, "-m", "sickbay", "historian"], env=env, stderr=subprocess.PIPE)
    try:
        until_sync(lambda: HELD.model in told(path), "the history tells of the hold")
    finally:
        process.terminate()
        process.communicate(timeout=patience(20))
    assert not [line for line in nats.log().splitlines() if "Violation" in line and "user:historian" in line]


def told(path: Path) -> str:
    """What the history says of the last day."""
    try:
        done = sickbay("history", HELD.provider, HELD.model, "--history", str(path), "--json")
    except sqlite3.OperationalError:
        return ""
    found = json.loads(done.stdout) if done.returncode == 0 else {}
    return HELD.model if found.get("holds") else ""


async def test_status_with_a_router_s_credential_shows_warnings_and_is_denied_nothing(tmp_path: Path) -> None:
    """The services read their stream for whoever asks: no look of a router is a violation."""
    with SecuredNats(tmp_path) as nats:
        async with serving(nats), acting(nats, "operator") as operator:
            for number in range(3):
                outcome = CallOutcome(kind="wrong_endpoint", status=404, id=f"{number:016x}-1")
                await publish_outcome(operator.client, HELD, outcome, replica="r1")

            async def shown() -> bool:
                done = await asyncio.to_thread(sickbay, "status", environment=nats.env("router"))
                assert done.returncode == 0, done.stderr
                return "by a route that does not exist there" in done.stdout

            await until(shown, "the warning is shown")
        assert not [line for line in nats.log().splitlines() if "Violation" in line]
