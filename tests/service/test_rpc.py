"""Questions by nats.micro: the whole counters with their sequence, an error for bad input, never silence."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from typing import Any

import msgspec
import nats.errors
import pytest
from nats.aio.client import Client

from cli_runs import NATS_CLI, Serve, needs_nats_cli, serve_fixture  # noqa: F401 - a fixture is used by its name
from nats_servers import NatsServer
from sickbay.bus.connect import connect_client
from sickbay.config import Settings
from sickbay.control.acts import make_override, publish_outcome, read_duration_s, scope_of
from sickbay.invalid import InvalidValue
from sickbay.service.rpc import ENDPOINTS, REPLY_BYTES_MAX, Rpc, StatusAsk, answer_status
from sickbay.service.services import Services
from sickbay_events import CallOutcome, Target
from waiting import patience, until

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")
NOW_MS = 1_796_000_000_000


class Answer:
    """One reply: `code` is the service error's, empty when there is none."""

    def __init__(self, code: str, why: str, body: Any) -> None:
        self.code, self.why, self.body = code, why, body


async def ask(client: Client, subject: str, body: bytes | dict[str, Any] = b"") -> Answer:
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = await client.request(subject, payload, timeout=patience(5))
    headers = reply.headers or {}
    return Answer(
        headers.get("Nats-Service-Error-Code", ""), headers.get("Nats-Service-Error", ""), json.loads(reply.data)
    )


async def hold(client: Client, services: Services, target: Target = TARGET) -> int:
    """Two rejections by two replicas; the sequence of the deciding one."""
    outcome = CallOutcome(kind="model_unavailable", status=404)
    acks = [await publish_outcome(client, target, outcome, replica=name) for name in ("r1", "r2")]
    assert services.projector is not None
    assert await services.projector.folded_to(acks[1].seq, 10)
    return acks[1].seq


async def test_status_has_what_is_held_with_its_sequence(nats_client: Client, services: Services) -> None:
    """Nothing held: nothing listed. Held: the counters, the time left, the sequence."""
    assert (await ask(nats_client, "sickbay.v1.status")).body["scopes"] == []
    seq = await hold(nats_client, services)
    found = (await ask(nats_client, "sickbay.v1.status")).body
    assert found["seq"] == seq and found["projector"]["phase"] == "writing" and found["next"] is None
    (scope,) = found["scopes"]
    assert (scope["provider"], scope["model"], scope["rejections"]) == (TARGET.provider, TARGET.model, 2)
    (held,) = scope["holds"]
    assert (held["rule"], held["began_seq"], held["count"], held["status"]) == ("quarantine", seq, 2, 404)
    assert 590 < held["left_s"] <= 600


async def test_decide_answers_with_the_whole_counters(nats_client: Client, services: Services) -> None:
    """The decision, the sequence it rests on, and the counters of host, credential and model."""
    question = {"provider": TARGET.provider, "model": TARGET.model, "replica": "r9"}
    unknown = (await ask(nats_client, "sickbay.v1.decide", question)).body
    assert unknown["allowed"] and unknown["reason"] == "ok" and unknown["counters"] == []
    seq = await hold(nats_client, services)
    found = (await ask(nats_client, "sickbay.v1.decide", question)).body
    assert (found["allowed"], found["reason"], found["rule"]) == (False, "quarantined", "quarantine")
    assert found["seq"] == seq and found["began_seq"] == seq
    assert 590 < found["retry_in_s"] <= 600 if found["trial"] else 0 < found["retry_in_s"] <= 1, "to its first trial"
    assert [counters["scope"] for counters in found["counters"]] == ["host", "credential", "model"]
    assert found["counters"][2]["outcomes"] == 2
    # An empty model is no target: allowed, and said so (Rule 1).
    assert (await ask(nats_client, "sickbay.v1.decide", {"provider": "h", "model": ""})).body["reason"] == "no_target"


@pytest.mark.parametrize(
    ("subject", "body", "names"),
    [
        ("sickbay.v1.decide", b"{}", "provider"),
        ("sickbay.v1.decide", b'{"provider":"h"}', "model"),
        ("sickbay.v1.decide", b'{"provider":7,"model":"m"}', "provider"),
        ("sickbay.v1.decide", b'{"provider":"h","model":"m","modle":"x"}', "modle"),
        ("sickbay.v1.decide", b"not json", "malformed"),
        ("sickbay.v1.decide", b"\xff\xfe", "malformed"),
        ("sickbay.v1.decide", b"[]", "object"),
        ("sickbay.v1.decide", json.dumps({"provider": "h", "model": "m" * 300}).encode(), "256 bytes"),
        ("sickbay.v1.status", b'{"limit":0}', "limit"),
        ("sickbay.v1.status", b'{"provider":""}', "provider"),
        ("sickbay.v1.explain", b'{"provider":"#a"}', "provider"),
        ("sickbay.operate.v1.hold", b'{"provider":"h","reason":"x","actor":"ana"}', "until"),
        ("sickbay.operate.v1.hold", b'{"provider":"h","reason":"","actor":"ana","for_s":5}', "reason"),
        ("sickbay.operate.v1.allow", b'{"provider":"h","reason":"x","actor":"ana","for_s":-5}', "for_s"),
        ("sickbay.operate.v1.clear", b'{"provider":"h","reason":"x","actor":"ana","for_s":5}', "until"),
    ],
)
async def test_bad_input_is_an_error_that_names_the_field(
    nats_client: Client, services: Services, subject: str, body: bytes, names: str
) -> None:
    """A service error 400 whose text has the field and an example; the body says the same; nothing is stored."""
    assert services.projector is not None
    before = services.projector.seq
    found = await ask(nats_client, subject, body)
    assert found.code == "400" and names in found.why and "example" in found.why
    assert found.body["error"]["code"] == "400" and names in found.body["error"]["why"]
    assert services.projector.seq == before


async def test_an_operator_acts_by_request(nats_client: Client, services: Services) -> None:
    """hold, allow and clear are stored in the control stream and take effect."""
    act = {"provider": TARGET.provider, "model": TARGET.model, "reason": "maintenance", "actor": "ana"}
    question = {"provider": TARGET.provider, "model": TARGET.model}

    async def reason() -> str:
        return str((await ask(nats_client, "sickbay.v1.decide", question)).body["reason"])

    for word, end, expected in (
        ("hold", {"for_s": 60}, "held_by_operator"),
        ("allow", {"until": "2031-01-01T00:00:00Z"}, "allowed_by_operator"),
        ("clear", {}, "ok"),
    ):
        ack = await ask(nats_client, f"sickbay.operate.v1.{word}", {**act, **end})
        assert ack.code == "" and ack.body["stream"] == "SICKBAY_CONTROL"

        async def reached(wanted: str = expected) -> bool:
            return await reason() == wanted

        await until(reached, expected)


async def test_the_service_describes_itself(nats_client: Client, services: Services) -> None:
    """PING, INFO and STATS as `nats micro` asks them: each endpoint with a schema and an example that works."""
    ping = (await ask(nats_client, "$SRV.PING.sickbay")).body
    assert (ping["name"], ping["metadata"]["instance"]) == ("sickbay", "box-1")
    info = (await ask(nats_client, "$SRV.INFO.sickbay")).body
    assert [endpoint["subject"] for endpoint in info["endpoints"]] == [row.subject for row in ENDPOINTS]
    assert {endpoint["queue_group"] for endpoint in info["endpoints"]} == {"sickbay"}
    for endpoint in info["endpoints"]:
        assert json.loads(endpoint["metadata"]["schema"])
        assert endpoint["metadata"]["errors"].startswith("400 ")
        answered = await ask(nats_client, endpoint["subject"], endpoint["metadata"]["example"].encode())
        assert answered.code == "", answered.why
    stats = (await ask(nats_client, "$SRV.STATS.sickbay")).body
    assert all(endpoint["num_requests"] >= 1 and not endpoint["num_errors"] for endpoint in stats["endpoints"])


async def test_two_instances_share_the_questions(
    nats_client: Client, services: Services, nats_server: NatsServer
) -> None:
    """A standby answers too: each question gets one reply, and both have work."""
    other = Services(Settings(nats=nats_server.url, replica="box-2"))
    await other.start()
    await other.ready()
    try:
        seq = await hold(nats_client, services)
        assert other.projector is not None and await other.projector.folded_to(seq, 10)
        names = set()
        for _ in range(60):
            found = (await ask(nats_client, "sickbay.v1.status")).body
            assert found["seq"] == seq and len(found["scopes"]) == 1
            names.add(found["projector"]["name"].split("/")[0])
        assert names == {"box-1", "box-2"}
    finally:
        await other.stop()


@needs_nats_cli
def test_two_processes_share_the_questions(nats_server: NatsServer, serve: Callable[..., Serve]) -> None:
    """`nats micro` sees both; each question is answered once, and both answer some."""
    for _ in range(2):
        serve("--nats", nats_server.url).ready()
    command = [str(NATS_CLI), "--server", nats_server.url]

    def nats(*arguments: str) -> str:
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, timeout=patience(60))
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    ids = {line.split()[1] for line in nats("micro", "ping", "sickbay").splitlines() if line.startswith("sickbay ")}
    assert len(ids) == 2
    listed = nats("micro", "ls")
    assert all(one in listed for one in ids)
    answers = [json.loads(line) for line in _asked(nats, 40)]
    assert len(answers) == 40 and len({answer["projector"]["name"] for answer in answers}) == 2
    counts = [
        endpoint["num_requests"]
        for line in nats("req", "$SRV.STATS.sickbay", "", "--raw", "--replies=2").splitlines()
        if line.strip()
        for endpoint in json.loads(line)["endpoints"]
        if endpoint["name"] == "status"
    ]
    assert len(counts) == 2 and sum(counts) == 40 and min(counts) > 0


def _asked(nats: Callable[..., str], count: int) -> list[str]:
    """The answers to that many questions for a status."""
    said = nats("req", "sickbay.v1.status", '{"limit":1}', "--raw", f"--count={count}")
    return [line for line in said.splitlines() if line.startswith("{")]


async def test_answers_go_on_after_the_server_closed_the_client(services: Services, nats_server: NatsServer) -> None:
    """A nats-py client that the server closed for good is replaced, and the new one answers questions."""
    assert services.projector is not None
    link = services.projector.state.link
    standing = link.client
    assert standing is not None
    await standing.publish("x" * 5_000, b"")  # over the server's control line: it answers -ERR, and the client closes
    await until(lambda: link.client not in (None, standing), "another client")
    client = await connect_client(nats_server.url)

    async def answered() -> bool:
        try:
            return (await ask(client, "sickbay.v1.status")).code == ""
        except (nats.errors.NoRespondersError, TimeoutError):
            return False

    await until(answered, "an answer by the new client")
    await client.close()


async def test_an_act_that_is_not_stored_is_an_error(nats_client: Client, services: Services) -> None:
    """With the control stream gone the reply is a service error 503 that says so."""
    await nats_client.request("$JS.API.STREAM.DELETE.SICKBAY_CONTROL", b"", timeout=patience(5))
    act = {"provider": "h", "reason": "x", "actor": "ana", "for_s": 60}
    found = await ask(nats_client, "sickbay.operate.v1.hold", act)
    # The services make a stream that is missing again; then the act is stored after all.
    assert (found.code, "SICKBAY_CONTROL" in found.why) in (("503", True), ("", False))


async def test_a_long_status_comes_in_pages(nats_client: Client, services: Services) -> None:
    """Every target is on one page and on one only, whatever the size of a page; a provider narrows it."""
    outcome = CallOutcome(kind="ok")
    targets = [Target(f"host-{n % 3}", f"model-{n}") for n in range(30)]
    acks = [await publish_outcome(nats_client, target, outcome, replica="r1") for target in targets]
    assert services.projector is not None and await services.projector.folded_to(acks[-1].seq, 10)
    seen: list[tuple[str, str]] = []
    after: str | None = ""
    while after is not None:
        page = (await ask(nats_client, "sickbay.v1.status", {"all": True, "limit": 7, "after": after})).body
        seen += [(one["provider"], one["model"]) for one in page["scopes"] if one["model"]]
        after = page["next"]
    assert sorted(seen) == sorted((target.provider, target.model) for target in targets)
    narrowed = (await ask(nats_client, "sickbay.v1.status", {"all": True, "provider": "host-1"})).body
    assert {one["provider"] for one in narrowed["scopes"]} == {"host-1"}
    assert sum(one["model"] is not None for one in narrowed["scopes"]) == 10


async def test_no_status_is_longer_than_a_message_may_be(nats_client: Client, services: Services) -> None:
    """A page ends before the server's limit, and what follows is named."""
    assert services.projector is not None
    outcome = CallOutcome(kind="ok")
    targets = [Target(f"host-{n}", "m" * 250) for n in range(40)]
    acks = [await publish_outcome(nats_client, target, outcome, replica="r1") for target in targets]
    assert await services.projector.folded_to(acks[-1].seq, 10)
    whole = answer_status(services.projector, StatusAsk(all=True, limit=1000))
    assert len(msgspec.json.encode(whole)) < REPLY_BYTES_MAX
    by_pages = []
    after: str | None = ""
    small = 20_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sickbay.service.rpc.REPLY_BYTES_MAX", small)
        while after is not None:
            page = answer_status(services.projector, StatusAsk(all=True, limit=1000, after=after))
            assert len(msgspec.json.encode(page["scopes"])) <= small + 100
            by_pages += [one["provider"] for one in page["scopes"]]
            after = page["next"]
    assert by_pages == [one["provider"] for one in whole["scopes"]]


async def test_a_question_without_reply_subject_disturbs_nobody(nats_client: Client, services: Services) -> None:
    """A publish to an endpoint is ignored; the next question is answered."""
    await nats_client.publish("sickbay.v1.status", b"{}")
    assert (await ask(nats_client, "sickbay.v1.status")).code == ""
    assert isinstance(services._rpc, Rpc)


@needs_nats_cli
async def test_the_nats_command_line_sees_the_service(services: Services, nats_server: NatsServer) -> None:
    """`nats micro ls` and `info` list it; `nats req` gets the answer."""
    command = [str(NATS_CLI), "--server", nats_server.url]

    async def run(*arguments: str) -> str:
        done = await asyncio.to_thread(
            subprocess.run, [*command, *arguments], capture_output=True, text=True, check=False, timeout=patience(30)
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    assert "sickbay" in await run("micro", "ls")
    assert "sickbay.v1.decide" in await run("micro", "info", "sickbay")
    asked = await run("req", "sickbay.v1.decide", '{"provider":"openrouter.ai","model":"m"}', "--raw")
    assert json.loads(asked)["allowed"] is True
    assert services.projector is not None


@pytest.mark.parametrize(
    ("text", "wanted"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("2d", 172_800), (" 0.5h ", 1800)]
)
def test_durations(text: str, wanted: float) -> None:
    """A number with a unit, or several of them."""
    assert read_duration_s(text) == wanted


@pytest.mark.parametrize("text", ["", "30", "m", "30 m", "-5m", "1h-5m", "soon", "0s", "31d", "1e3s"])
def test_durations_that_are_none(text: str) -> None:
    """Everything else is refused with the accepted form."""
    with pytest.raises(InvalidValue, match="accepted"):
        read_duration_s(text)


def test_an_act_is_checked_whole() -> None:
    """Reason, actor and end are checked before anything is sent; the end is by the log's clock."""
    given: dict[str, Any] = {"reason": "x", "actor": "ana", "now_ms": NOW_MS}
    made = make_override("hold", **given, for_s=60)
    assert made.until == "2026-11-30T00:54:20.000Z" and made.at == "2026-11-30T00:53:20.000Z"
    assert make_override("clear", **given).until is None
    for action, change, field in (
        ("hold", {}, "until"),
        ("hold", {"for_s": 60, "until": "2027-01-01T00:00:00Z"}, "until"),
        ("hold", {"for_s": True}, "for_s"),
        ("hold", {"until": "2020-01-01T00:00:00Z"}, "until"),
        ("hold", {"until": "tomorrow"}, "until"),
        ("hold", {"for_s": 60, "reason": " "}, "reason"),
        ("hold", {"for_s": 60, "actor": None}, "actor"),
        ("clear", {"until": "2027-01-01T00:00:00Z"}, "until"),
        ("stop", {}, "action"),
    ):
        with pytest.raises(InvalidValue) as caught:
            make_override(action, **{**given, **change})
        assert caught.value.what == field


def test_the_scope_a_person_names() -> None:
    """A host, a credential by its alias, a target without alias (Rule 4.7)."""
    assert scope_of("h", None).key == "h"
    assert scope_of("h#a", None).key == "h.a"
    assert scope_of("h", "m").key == "h.=.m"
    assert scope_of("h#a", "m").key == "h.a.m"
