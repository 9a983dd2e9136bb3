"""A client's made up names fill what the state takes: said by status, doctor and metrics, and a real name is held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from nats.aio.client import Client

from cli_runs import Serve, serve_fixture, sickbay  # noqa: F401 - a fixture is used by its name
from nats_servers import NatsServer
from sickbay_events import Target
from waiting import until

POLICY = "[bounds]\nnew_targets_per_hour = 50\n"
REAL = Target("real.example", "important")


async def test_what_finds_no_room_is_said_and_a_real_model_is_held_all_the_same(
    nats_server: NatsServer, nats_client: Client, serve: Callable[..., Serve], tmp_path: Path
) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    served = serve("--nats", nats_server.url, "--policy", str(tmp_path / "policy.toml")).ready()
    at = ("--nats", nats_server.url)

    async def report(replica: str, key: str, kind: str) -> None:
        await nats_client.publish(f"sickbay.outcome.{replica}.{key}", b'{"kind":"%b","took_ms":1}' % kind.encode())

    for n in range(80):
        await report("r1", Target("made.example", f"up-{n}").key, "model_unavailable")
    for replica in ("r1", "r2"):
        for _ in range(5):
            await report(replica, REAL.key, "server_error")
    await nats_client.flush()

    async def folded() -> bool:
        return bool((await asyncio.to_thread(served.health))["projector"]["seq"] >= 91)

    await until(folded, "all is folded")
    status = await asyncio.to_thread(sickbay, "status", *at)
    assert "30 events of r1 found no room since 2" in status.stdout
    assert "real.example" in status.stdout and "breaker_open" in status.stdout
    doctor = await asyncio.to_thread(sickbay, "doctor", *at)
    assert "events about new targets find no room: 30 of r1 since 2" in " ".join(doctor.stdout.split())
    metrics = (await asyncio.to_thread(served.get, "metrics")).decode()
    assert "\nsickbay_dropped_events_total 30" in metrics and "\nsickbay_dropping_replicas 1" in metrics
