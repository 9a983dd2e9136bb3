"""Seeded chaos: projectors and server killed, stopped and robbed of their bucket, in any order. Exact in the end.

SICKBAY_CHAOS="FIRST:LAST" runs those seeds; without it one seed is run. What was done is in the failure.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from contextlib import suppress

import nats.errors
import pytest
from nats.aio.client import Client

from nats_servers import NatsServer
from projector_processes import Load, Process, assert_converged
from sickbay.bus.connect import BusError
from sickbay.bus.jetstream import JetStreamApi
from sickbay.bus.topology import GATE_STREAM, ensure
from waiting import patience

FIRST, _, LAST = os.environ.get("SICKBAY_CHAOS", "1:1").partition(":")
TURNS = 6
ENDLESS_MS = 9_999_999_999_999
LIE = json.dumps(
    {"provider": "p", "holds": [{"rule": "breaker", "began_seq": 1, "end_ms": ENDLESS_MS}], "expires_ms": ENDLESS_MS}
).encode()


@pytest.mark.parametrize("seed", range(int(FIRST), int(LAST or FIRST) + 1))
async def test_whatever_happens_in_whatever_order_it_is_exact_in_the_end(
    nats_server: NatsServer, nats_client: Client, seed: int
) -> None:
    dice = random.Random(seed)
    await ensure(nats_client)
    events = dice.choice([50, 300, 10_000])
    projectors = [Process(nats_server.url, name, SNAPSHOT_EVENTS=events, MARK_EVERY=64) for name in "abc"]
    done: list[str] = []
    try:
        await projectors[0].until(nats_client, "has the policy of the log", policy_seq=1)
        load = Load(nats_client, seed=seed, targets=dice.choice([3, 20, 200]))
        stop = asyncio.Event()
        flow = asyncio.create_task(load.go_on(stop))
        try:
            for _ in range(TURNS):
                await asyncio.sleep(dice.uniform(0.05, 2.0))
                done.append(await one_act(dice, nats_server, nats_client, projectors, load))
        finally:
            stop.set()
            await asyncio.wait_for(flow, patience(30))
        await assert_converged(nats_client, *projectors, deadline_s=60)
    except BaseException as error:
        error.add_note(f"seed {seed}: {done}")
        raise
    finally:
        for projector in projectors:
            projector.stop()


async def one_act(
    dice: random.Random, server: NatsServer, client: Client, projectors: list[Process], load: Load
) -> str:
    """Do one thing that can happen; what it was."""
    act = dice.choice(["kill", "kill", "sleep", "server", "bucket", "lie", "kill all", "poison"])
    victim = dice.choice(projectors)
    with suppress(BusError, nats.errors.Error, OSError):  # the server may be away: then it did not happen
        if act == "kill":
            victim.kill9()
            victim.start()
        elif act == "kill all":
            for projector in projectors:
                projector.kill9()
            for projector in projectors:
                projector.start()
        elif act == "sleep":
            victim.signal(signal.SIGSTOP)
            await asyncio.sleep(dice.uniform(0.5, 5.0))
            victim.signal(signal.SIGCONT)
        elif act == "server":
            server.kill9()
            await asyncio.sleep(dice.uniform(0, 1.0))
            server.restart()
        elif act == "bucket":
            await JetStreamApi(client, timeout_s=patience(2)).request(f"STREAM.DELETE.{GATE_STREAM}")
        elif act == "lie":
            await client.request(f"$KV.sickbay.gate.{dice.choice(load.targets).key}", LIE, timeout=patience(1))
        else:
            await client.request("sickbay.outcome.r1.p=2Etest.=.m1", b"rubbish", timeout=patience(1))
    return f"{act} ({victim.name})"
