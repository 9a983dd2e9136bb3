"""Status and explain say what each rule has counted, the word of health and what was warned of, in plain words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from nats.aio.client import Client

from cli_runs import Serve, serve_fixture, sickbay  # noqa: F401 - a fixture is used by its name
from nats_servers import NatsServer
from sickbay.bus.connect import connect_client
from sickbay_events import CallOutcome, ProbeResult, Target, encode, outcome_subject, probe_subject
from waiting import patience, until


async def publish(client: Client, provider: str, model: str, *kinds: Any, **fields: Any) -> None:
    """One outcome of each kind by the only replica; returns when the log has them."""
    for kind in kinds:
        outcome = CallOutcome(kind=kind, took_ms=1, **fields)
        await client.request(outcome_subject("r1", Target(provider, model)), encode(outcome), timeout=patience(5))


async def says(url: str, *command: str, wanted: tuple[str, ...]) -> None:
    """The command prints all of this, once the services have folded what was published."""

    async def prints() -> bool:
        printed = (await asyncio.to_thread(sickbay, *command, "--nats", url)).stdout
        missing = [words for words in wanted if words not in " ".join(printed.split())]
        if missing:
            raise TimeoutError(f"{missing} not in:\n{printed}")
        return True

    await until(prints, " ".join(command))


async def test_what_every_rule_has_counted_is_said_in_plain_words(
    nats_server: NatsServer, serve: Callable[..., Serve]
) -> None:
    served = await asyncio.to_thread(serve("--nats", nats_server.url).ready)
    client, url = await connect_client(nats_server.url), nats_server.url
    try:
        await publish(client, "faulty.test", "m", *["server_error"] * 3, status=500)
        await publish(client, "open.test", "m", *["server_error"] * 5, status=502)
        await publish(client, "busy.test", "m", *["rate_limited"] * 3, status=429)
        await publish(client, "empty.test", "m", "ok", *["empty_output"] * 12)
        await publish(client, "noisy.test", "m", *["server_error"] * 3, *["ok"] * 6, "server_error", status=500)
        await publish(client, "half.test", "m", "ok", "empty_output", "ok")
        await publish(client, "keys.test#a", "m", *["auth"] * 3, status=401)
        await publish(client, "key.test#a", "m", "auth", status=401)
        await publish(client, "odd.test", "m", "unknown", "unknown", signature="odd_page")
        probe = ProbeResult(level="liveness", ok=True, took_ms=5)
        await client.request(probe_subject("r1", Target("idle.test", "m")), encode(probe), timeout=patience(5))

        held = (
            "open.test m breaker_open",
            "5 x server_error (502)",
            "busy.test m throttled",
            "2 x rate_limited (429)",
            "empty.test m degraded",
            "12 x empty_output",
            "keys.test#a (the credential) credential",
            "3 x auth (401)",
            "odd.test m: new: odd_page",
        )
        await says(url, "status", wanted=held)
        faulty = (
            "health: degraded, faults below the threshold",
            "6 of 10 points for faults (3 by r1); 5 in a row hold it",
        )
        await says(url, "explain", "faulty.test", "m", wanted=(*faulty, "fault: 4 of 10 points"))
        noisy = (
            "2 of 12 points for faults (1 by r1); this target has got over 3 by itself since yesterday, so 6 in a row"
        )
        await says(url, "explain", "noisy.test", "m", wanted=(noisy,))
        opened = (
            "5 faults and 0 answers (5 by r1); 5 in a row are enough",
            "breaker not tried yet; the next trial from",
        )
        await says(url, "explain", "open.test", "m", wanted=opened)
        await says(url, "explain", "half.test", "m", wanted=("2 of 36 points for bad answers (1 by r1); 12 in a row",))
        await says(url, "explain", "key.test#a", "m", wanted=("1 refusals of the credential lately",))
        await says(url, "explain", "idle.test", "m", wanted=("health: live (upstream unverified), by its liveness",))
        await says(url, "explain", "odd.test", "m", wanted=("warning", "new: odd_page"))
        await says(url, "explain", "empty.test", "m", wanted=("last good answer", "bad answer: 33 of 36 points"))
    finally:
        await client.close()
    assert (await asyncio.to_thread(served.end))[0] == 0
