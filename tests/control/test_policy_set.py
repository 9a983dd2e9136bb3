"""Setting the policy while everything runs (Rule 7): compare and set, taken up by services and gates, from files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

import sickbay as product
from cli_runs import Serve, serve_fixture, sickbay  # noqa: F401 - a fixture is used by its name
from nats_servers import NatsCluster, NatsServer
from sickbay.bus.connect import connect_client
from sickbay.bus.topology import StreamLimits, ensure
from sickbay.control.policies import PolicyMoved, current_policy, set_policy, to_toml
from sickbay.invalid import InvalidValue
from sickbay_events import CallOutcome, GateEntry, Policy, PolicyChanged, PolicyRefused, Target, encode
from sickbay_events.redact import looks_secret
from waiting import patience, until

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")
OTHER = Target("openrouter.ai", "other")
AT_HOST = Target("api.x.ai", "grok-4")
FILE = """
single_credential = ["api.x.ai"]
[rejections]
threshold = 3
[shadow]
rules = ["degraded"]
[ramp]
percents = [5, 20, 60]
[host."openrouter.ai".breaker]
consecutive = 9
[host."api.x.ai".rejections]
threshold = 1
[model."z-ai/glm-5.3".rejections]
threshold = 1
hold_s = 12.5
"""


def with_threshold(threshold: int) -> dict[str, Any]:
    return {"rejections": {"threshold": threshold}}


async def test_of_two_operators_who_edit_the_same_policy_one_is_told_of_the_other(nats_client: Client) -> None:
    """The second one's policy is refused, with both sequences and the name of the first; the first one's stands."""
    await ensure(nats_client)
    assert (await current_policy(nats_client)).seq == 0
    first = await set_policy(nats_client, with_threshold(3), expect=0, reason="load", actor="ana")
    assert first.changes == [("rejections.threshold", 2, 3)] and first.ack is not None
    with pytest.raises(PolicyMoved) as caught:
        await set_policy(nats_client, with_threshold(9), expect=0, reason="no load", actor="bo")
    assert (caught.value.expected, caught.value.found, caught.value.by) == (0, first.ack.seq, "ana")
    standing = await current_policy(nats_client)
    assert (standing.policy.rejections.threshold, standing.actor, standing.reason) == (3, "ana", "load")
    again = await set_policy(nats_client, with_threshold(9), expect=standing.seq, reason="no load", actor="bo")
    assert again.changes == [("rejections.threshold", 3, 9)]


async def test_of_many_at_the_same_moment_exactly_one_is_stored(nats_client: Client) -> None:
    """The server compares, not the client: eight that all read the same sequence leave one policy."""
    await ensure(nats_client)
    await eight_at_once(nats_client)


async def test_so_it_is_in_a_cluster(nats_cluster: NatsCluster) -> None:
    """Of eight at once on a control stream with three copies one is stored, and the others are told which."""
    client = await connect_client(nats_cluster.url)
    try:
        await ensure(client, StreamLimits(replicas=3))
        await eight_at_once(client)
    finally:
        await client.close()


async def eight_at_once(client: Client) -> None:
    done = await asyncio.gather(
        *(set_policy(client, with_threshold(n), expect=0, reason="r", actor=f"a{n}") for n in range(3, 11)),
        return_exceptions=True,
    )
    stored = [one for one in done if not isinstance(one, BaseException)]
    moved = [one for one in done if isinstance(one, PolicyMoved)]
    assert (len(stored), len(moved)) == (1, 7)
    standing = await current_policy(client)
    assert [(change[2]) for change in stored[0].changes] == [standing.policy.rejections.threshold]
    assert all(one.by == standing.actor and one.found == standing.seq for one in moved)


async def test_a_bad_policy_is_refused_as_a_whole_and_the_standing_one_stands(nats_client: Client) -> None:
    """One bad value among good ones stores nothing; no reason and no sequence are refused by name; a key is not
    repeated."""
    await ensure(nats_client)
    good = {"expect": 0, "reason": "r", "actor": "ana"}
    with pytest.raises(PolicyRefused) as caught:
        await set_policy(nats_client, {"rejections": {"threshold": 3}, "breaker": {"hold_s": 0}}, **good)
    assert (caught.value.key, caught.value.value) == ("breaker.hold_s", 0) and "0.001" in caught.value.accepted
    for field, value in (("reason", " "), ("actor", ""), ("expect", None), ("expect", True), ("expect", -1)):
        with pytest.raises(InvalidValue) as refused:
            await set_policy(nats_client, with_threshold(3), **{**good, field: value})
        assert refused.value.what == field
    secret = "sk-proj-4f9aK2mQx81LpZc7Rt5Vw3Yd"
    for data in ({"single_credential": [secret]}, {"host": {secret: {"breaker": {"hold_s": 5}}}}):
        with pytest.raises(PolicyRefused) as hidden:
            await set_policy(nats_client, data, **good)
        assert secret not in str(hidden.value) and "env:NAME" in str(hidden.value)
    assert (await current_policy(nats_client)).seq == 0
    same = await set_policy(nats_client, {}, **good)
    assert same.ack is None, "what changes nothing is not stored"


async def test_a_policy_that_cannot_be_read_is_passed_over_and_can_be_replaced(nats_client: Client) -> None:
    """A raw publisher's nonsense counts in the sequence to expect, while the policy before it stands."""
    await ensure(nats_client)
    await set_policy(nats_client, with_threshold(4), expect=0, reason="r", actor="ana")
    await nats_client.request("sickbay.policy", encode(PolicyChanged(policy={"nonsense": 1})), timeout=patience(5))
    standing = await current_policy(nats_client)
    assert (standing.seq, standing.policy.rejections.threshold) == (2, 4) and "nonsense" in standing.unreadable
    done = await set_policy(nats_client, with_threshold(4), expect=2, reason="mend", actor="ana")
    assert done.ack is not None and done.ack.seq == 3


@pytest.mark.parametrize("text", ["", FILE, '[model."a \\"quoted\\" ☃ name"]\n', "[shadow]\nall = true\n"])
def test_a_policy_as_a_file_reads_back_the_same(text: str) -> None:
    policy = Policy.from_toml(text)
    assert Policy.from_toml(to_toml(policy)) == policy
    assert (to_toml(policy).strip() == "") == (policy == Policy())


async def test_services_and_gates_take_up_a_policy_without_restart(
    nats_server: NatsServer,
    nats_client: Client,
    tmp_path: Path,
    serve: Callable[..., Serve],
) -> None:
    """With processes running: an override of one model changes what the fleet's fold and each gate's own fold do
    for that model, and for no other."""
    serve("--nats", nats_server.url).ready()
    file = tmp_path / "policy.toml"
    file.write_text(FILE)
    async with product.connect(nats_server.url, replica="r1") as one, product.connect(nats_server.url, "r2") as two:
        assert await one.ready(patience(10)) and await two.ready(patience(10))
        one.record(TARGET, CallOutcome(kind="model_unavailable"))
        assert one.decide(TARGET).allowed, "by the defaults one strike holds nothing"

        command = ("policy", "set", str(file), "--nats", nats_server.url, "--reason", "r", "--actor", "ana")
        missing = await asyncio.to_thread(sickbay, *command)
        assert missing.returncode == 2 and "expect" in missing.stderr and "now 0" in missing.stderr
        done = await asyncio.to_thread(sickbay, *command, "--expect", "0")
        assert done.returncode == 0, done.stderr
        row = next(line.split() for line in done.stdout.splitlines() if line.startswith("rejections.threshold"))
        assert row == ["rejections.threshold", "2", "3"]
        assert 'model."z-ai/glm-5.3".rejections.hold_s' in done.stdout
        wiped = await asyncio.to_thread(sickbay, *command, "--expect", "0")
        assert wiped.returncode == 1 and "sequence 0, but 1 stands, set by ana" in wiped.stderr

        async def taken_up() -> bool:
            return all(sb.mirror.policy.rejections.threshold == 3 for sb in (one, two))

        await until(taken_up, "both gates have the policy")
        two.record(TARGET, CallOutcome(kind="model_unavailable"))
        local = two.decide(TARGET)
        assert (local.allowed, local.source, local.reason) == (False, "local", "quarantined")
        own = two.overlay.entry(TARGET.key, two.mirror.now_ms())
        assert own is not None and length_ms(own) == 12_500, "the length that the override of this model says"

        async def held() -> bool:
            entry = one.mirror.entries.get(TARGET.key)
            return entry is not None and length_ms(entry) == 12_500 and one.decide(TARGET).source == "cluster"

        await until(held, "the fleet holds it by the same override")
        for sb in (one, two):
            sb.record(OTHER, CallOutcome(kind="model_unavailable"))
        assert one.decide(OTHER).allowed and two.decide(OTHER).allowed
        one.record(OTHER, CallOutcome(kind="model_unavailable"))

        async def others_held() -> bool:
            return not two.decide(OTHER).allowed

        await until(others_held, "the third strike, which the fleet's threshold asks for")
        one.record(AT_HOST, CallOutcome(kind="model_unavailable"))

        async def host_held() -> bool:
            return two.decide(AT_HOST).trial

        await until(
            host_held, "the first strike, by the override of its host: one replica's word, so a trial is wanted"
        )
        await all_tell_the_same(nats_server.url, tmp_path)


def length_ms(entry: GateEntry) -> int:
    """From the beginning of its one hold to the end."""
    (hold,) = entry.holds
    return hold.end_ms - hold.began_ms


async def all_tell_the_same(url: str, tmp_path: Path) -> None:
    """Status, a replay of the exported log and `policy show` in both forms know the policy that was set."""
    told = await asyncio.to_thread(sickbay, "status", "--json", "--all", "--nats", url)
    counted = {scope["model"]: scope["evidence"].get("strikes") for scope in json.loads(told.stdout)["scopes"]}
    thresholds = {model: strikes["needed"] for model, strikes in counted.items() if strikes}
    assert (thresholds[TARGET.model], thresholds[OTHER.model], thresholds[AT_HOST.model]) == (1, 3, 1)

    log = tmp_path / "log.jsonl"
    assert (await asyncio.to_thread(sickbay, "export", str(log), "--nats", url)).returncode == 0
    replayed = json.loads((await asyncio.to_thread(sickbay, "replay", str(log), "--json")).stdout)
    assert [hold["scope"] for hold in replayed["holds"]] == [TARGET.key, OTHER.key, AT_HOST.key]
    assert replayed["policy_seq"] == 2, "the policy is an event of the log, so a replay knows which rules held when"

    shown = await asyncio.to_thread(sickbay, "policy", "show", "--json", "--nats", url)
    facts = json.loads(shown.stdout)
    assert (facts["expect"], facts["pending"]) == (1, False)
    assert Policy.from_data(facts["policy"]) == Policy.from_toml(FILE)
    toml = await asyncio.to_thread(sickbay, "policy", "show", "--toml", "--nats", url)
    assert "--expect 1" in toml.stdout and Policy.from_toml(toml.stdout) == Policy.from_toml(FILE)


async def test_the_service_sets_a_policy_as_the_command_does(
    nats_server: NatsServer, nats_client: Client, serve: Callable[..., Serve]
) -> None:
    """By request and reply: shown with the sequence to expect, set, and refused with a code, a reason and both
    sequences in the body."""
    serve("--nats", nats_server.url).ready()

    async def ask(**question: Any) -> tuple[str, dict[str, Any]]:
        reply = await nats_client.request(
            "sickbay.operate.v1.policy", json.dumps(question).encode(), timeout=patience(5)
        )
        return (reply.headers or {}).get("Nats-Service-Error-Code", ""), json.loads(reply.data)

    code, standing = await ask()
    assert (code, standing["seq"], standing["policy"]["rejections"]["threshold"]) == ("", 0, 2)
    act = {"policy": with_threshold(5), "reason": "load", "actor": "ana"}
    code, done = await ask(**act, expect=0)
    assert (code, done["changed"]) == ("", {"rejections.threshold": {"old": 2, "new": 5}})
    code, refused = await ask(**act, expect=0)
    assert (code, refused["error"]["expected"], refused["error"]["found"]) == ("409", 0, done["ack"]["seq"])
    code, refused = await ask(**{**act, "policy": {"rejections": {"threshold": 0}}}, expect=1)
    assert code == "400" and "rejections.threshold: 0" in refused["error"]["why"], refused

    async def in_force() -> bool:
        return bool((await ask())[1]["in_force_seq"])

    await until(in_force, "the services have folded it")


def test_explain_tells_of_overrides_and_of_what_is_no_section() -> None:
    """A key within an override is explained as the key it is; the three tables beside the sections are too."""
    done = sickbay("policy", "explain", 'host."openrouter.ai".breaker.hold_s', "--json")
    assert [row["key"] for row in json.loads(done.stdout)] == ["breaker.hold_s"]
    for key in ("single_credential", "host", "model"):
        assert json.loads(sickbay("policy", "explain", key, "--json").stdout)[0]["says"]


@pytest.mark.parametrize(
    "name",
    [
        "accounts/fireworks/models/llama-v3p1-405b-instruct",
        "ft:gpt-4o-mini-2024-07-18:acme::9aBcDeFgHiJk",
        "us.anthropic.claude-3-5-sonnet-20241022-v2:0",
        "deployment-550e8400-e29b-41d4-a716-446655440000",
        "hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M",
        "localhost:11434@box-7.internal",
        "127.0.0.1:8000",
        "token-factory-instruct",
    ],
)
def test_names_of_models_and_hosts_are_no_secrets(name: str) -> None:
    """What looks like a key is refused; a name, however odd, is not."""
    assert not looks_secret(name)
    assert Policy.from_toml(f'[model."{name}".breaker]\nhold_s = 5\n').model


@pytest.mark.parametrize(
    "key",
    [
        "sk-ant-api03-AbCdEfGh1234567890abcdefXYZ",
        "AIzaSyA1234567890abcdefghijklmnopqrstu",
        "gsk_1234567890abcdefghijABCDEFGHIJ",
        "xai-1234567890abcdefghijklmnop",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc",
    ],
)
def test_keys_are(key: str) -> None:
    with pytest.raises(PolicyRefused, match="env:NAME"):
        Policy.from_toml(f'[model."{key}".breaker]\nhold_s = 5\n')
