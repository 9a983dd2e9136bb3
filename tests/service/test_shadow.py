"""Shadow (the policy's [shadow]): everything is folded and told, and nothing is kept from anybody. Real processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nats.aio.client import Client

import sickbay as product
from cli_runs import Serve, serve_fixture, sickbay  # noqa: F401 - a fixture is used by its name
from nats_servers import NatsServer
from sickbay.bus.jetstream import JetStreamApi
from sickbay.bus.topology import TRANSITIONS
from sickbay_events import CallOutcome, Target
from waiting import patience, until

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")
OTHER = Target("openrouter.ai", "other")
Start = Callable[..., Serve]


async def run(*arguments: str) -> Any:
    done = await asyncio.to_thread(sickbay, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


async def held_events(client: Client) -> list[dict[str, Any]]:
    """The holds that were told so far, oldest first."""
    api, seq, found = JetStreamApi(client, timeout_s=patience(5)), 1, []
    while (message := await api.message_at(TRANSITIONS, seq, or_next=True, subject="sickbay.held.>")) is not None:
        found.append(json.loads(message.payload))
        seq = message.seq + 1
    return found


async def set_policy(tmp_path: Path, url: str, text: str) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    expect = (await run("policy", "show", "--json", "--nats", url))["expect"]
    await run("policy", "set", str(file), "--expect", str(expect), "--reason", "r", "--nats", url)


async def test_a_first_week_in_shadow(
    nats_server: NatsServer, nats_client: Client, tmp_path: Path, serve: Start
) -> None:
    """`serve --shadow`: what would be held is told, marked in status and counted by the gates, and every call
    passes; an operator's hold holds; the policy set later is in force at once, and a restart keeps to it."""
    url = nats_server.url
    served = serve("--nats", url, "--shadow").ready()
    assert "no rule is enforced" in served.said
    async with product.connect(url, replica="r1") as one, product.connect(url, replica="r2") as two:
        assert await one.ready(patience(10)) and await two.ready(patience(10))
        for sb in (one, two, one):
            sb.record(TARGET, CallOutcome(kind="model_unavailable", status=404))

        async def told() -> list[dict[str, Any]]:
            return await held_events(nats_client)

        (event,) = await until(told, "the hold is told")
        assert (event["rule"], event["enforced"], event["numbers"]["failures"]) == ("quarantine", False, 2)

        async def counted() -> bool:
            return all(sb.decide(TARGET).allowed and sb.gate.counts["shadow"] > 0 for sb in (one, two))

        await until(counted, "both gates know of the hold, and count calls they let pass")
        assert one.gate.counts["denied"] == two.gate.counts["denied"] == 0
        async with one.attempt(TARGET) as attempt:
            attempt.ok()
        assert attempt.outcome is not None and attempt.outcome.trial is None
        status = await run("status", "--nats", url)
        assert "no rule is enforced" in status
        facts = await run("status", "--json", "--nats", url)
        assert facts["shadow"]["all"] is True

        await run("hold", "openrouter.ai", OTHER.model, "--for", "10m", "--reason", "r", "--new", "--nats", url)

        async def denied() -> bool:
            return not one.decide(OTHER).allowed

        await until(denied, "an operator's act is no rule's: it is enforced")

        for sb in (one, two):
            async with sb.attempt(TARGET) as attempt:
                attempt.response(404, {}, b'{"error":{"code":"model_not_found"}}')
            # The point that an ended hold leaves makes the first one hold on one word; the second knows of it.
            await until(lambda: all(map(_has_hold, (one, two))), "both gates know of it")
        assert attempt.outcome is not None and attempt.outcome.kind == "model_unavailable"
        await until(_marked(url), "status marks the hold of the new strikes")
        assert one.decide(TARGET).allowed
        await set_policy(tmp_path, url, "")

        async def in_force() -> bool:
            return all(not sb.decide(TARGET).allowed for sb in (one, two))

        await until(in_force, "without shadow the same hold denies, in every gate, without a restart")

    code, errors = await asyncio.to_thread(served.end)
    assert code == 0 and "shadow: not enforced" in errors
    again = serve("--nats", url, "--shadow").ready()
    assert "NOT in shadow" in again.said, "the log's policy wins over the option, and that is said"
    code, errors = await asyncio.to_thread(again.end)
    assert "shadow.all" in errors


def _has_hold(sb: product.Sickbay) -> bool:
    entry = sb.mirror.entries.get(TARGET.key)
    return entry is not None and bool(entry.holds)


def _marked(url: str) -> Callable[[], Any]:
    async def look() -> bool:
        rows = (await run("status", "--nats", url)).splitlines()
        return any("quarantined (shadow)" in row and TARGET.model in row for row in rows)

    return look


async def test_one_rule_in_shadow_and_the_others_enforced(
    nats_server: NatsServer, tmp_path: Path, serve: Start
) -> None:
    """A rule named in [shadow] lets pass; the others deny. One host or model alone can be in shadow too."""
    url, file = nats_server.url, tmp_path / "policy.toml"
    file.write_text('[shadow]\nrules = ["quarantine"]\n[model."other".shadow]\nall = true\n')
    serve("--nats", url, "--policy", str(file)).ready()
    async with product.connect(url, replica="r1") as sb:
        assert await sb.ready(patience(10))

        async def known() -> bool:
            return bool(sb.mirror.policy.shadow.rules)

        await until(known, "the gate has the policy")
        sb.record(TARGET, CallOutcome(kind="model_unavailable"))
        sb.record(TARGET, CallOutcome(kind="model_unavailable"))

        async def shadowed() -> bool:
            found = await run("status", "--json", "--nats", url)
            return [hold["enforced"] for scope in found["scopes"] for hold in scope["holds"]] == [False]

        await until(shadowed, "the quarantine is there, and is not enforced")
        assert sb.decide(TARGET).allowed
        for target in (TARGET, OTHER):
            for _ in range(5):
                sb.record(target, CallOutcome(kind="server_error", status=500))

        async def broken() -> bool:
            return sb.decide(TARGET).reason == "breaker_open"

        await until(broken, "the breaker is enforced")
        # Between the folding of the first and of the second no event lies but theirs.
        assert sb.overlay.entry(OTHER.key, sb.mirror.now_ms()) is not None and sb.decide(OTHER).allowed
        assert "quarantine not enforced" in await run("status", "--nats", url)


async def test_shadow_on_a_log_without_a_policy(nats_server: NatsServer, serve: Start) -> None:
    """A log that has events but never had a policy is put in shadow, by the defaults; a file changes nothing there."""
    url = nats_server.url
    served = serve("--nats", url).ready()
    await run("report", "h", "m", "-k", "ok", "--nats", url)
    assert (await asyncio.to_thread(served.end))[0] == 0
    assert "no rule is enforced" in serve("--nats", url, "--shadow").ready().said
    shown = await run("policy", "show", "--json", "--nats", url)
    assert shown["policy"]["shadow"]["all"] and shown["expect"] == 1
