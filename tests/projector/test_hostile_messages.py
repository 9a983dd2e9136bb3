"""Hostile messages in the log and at the services: each is noted, the fold goes on, questions are answered."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from nats.aio.client import Client

import sickbay
from nats_servers import NatsServer
from sickbay import Target
from sickbay.config import Settings
from sickbay.service.rpc import ENDPOINTS
from sickbay.service.services import Services
from waiting import patience

BODIES: Final = [
    b"",
    b"null",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"kind":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    b'{"kind":"ok","seen_seq":' + b"9" * 5_000 + b"}",
    b'{"kind":"ok","took_ms":NaN}',
    b'{"kind":"ok","took_ms":1e400}',
    b'{"kind":"ok","signature":"\\ud800"}',
    b'{"kind":"mangled_output","signature":"\\u0000\\u001b[2J"}',
    b'{"kind":"wrong_endpoint","route":"' + b"x" * 900_000 + b'"}',
    b'{"kind":"ok","kind":"model_unavailable"}',
    b'{"kind":"quota","retry_after_s":1e308}',
    b'{"kind":"ok","trial":[{"rule":"","began_seq":-9007199254740992}]}',
    b'{"kind":"ok"}{"kind":"ok"}',
]
SUBJECTS: Final = [
    "sickbay.outcome.r1.p.=.m",
    "sickbay.outcome.r1.p.=.=ED=A0=80",  # half of a surrogate pair: a name that no JSON document can hold
    "sickbay.outcome.=ED=A0=80.p.=.m",
    "sickbay.outcome.r1.=.0.m",
    "sickbay.outcome.r1.p",
    "sickbay.outcome.r1.p.=." + "=00" * 256,
    "sickbay.outcome." + "r" * 300 + ".p.=.m",
    "sickbay.probe.r1.=41.=.m",
    "sickbay.override.=ED=A0=80",
    "sickbay.override.=.0",
    "sickbay.policy",
]
QUESTIONS: Final = [b"", b"null", b"[" * 100_000, b"\xff", b'{"provider":5}', b'{"provider":"\\ud800","model":"m"}',
                    b'{"provider":"' + b"p" * 900_000 + b'"}', b'{"limit":1e300}', b'{"leases":[{}]}']  # fmt: skip


async def test_the_services_go_on_after_anything_that_was_published(nats_server: NatsServer) -> None:
    """Rule 2: poison is passed; the two strikes that follow it hold their target, and a router hears of it."""
    services = Services(Settings(nats=nats_server.url, replica="box-1"))
    await services.start()
    await services.ready()
    async with sickbay.connect(nats_server.url, replica="r9") as sb:
        assert await sb.ready(patience(10)) and sb.link is not None
        client = await sb.link.wait_connected(patience(10))
        for subject in SUBJECTS:
            for body in (*BODIES, b'{"kind":"model_unavailable"}', b'{"action":"clear","reason":"x","actor":"y"}'):
                await client.request(subject, body, timeout=patience(10))
        for body in BODIES:  # whoever may write the view can only make a gate let pass
            await client.publish("sickbay.view.gate.q.=.m", body)
        for row in ENDPOINTS:
            for question in QUESTIONS:
                assert (await _ask(client, row.subject, question)) in (None, "400"), (row.subject, question[:40])
        good = Target("good", "m")
        for replica in ("r1", "r2"):
            subject = f"sickbay.outcome.{replica}.{good.key}"
            await client.request(subject, b'{"kind":"model_unavailable"}', timeout=patience(10))
        async with asyncio.timeout(patience(20)):
            while sb.decide(good).allowed:
                await asyncio.sleep(0.01)
        assert sb.decide(good).source == "cluster"
        assert await _ask(client, "sickbay.v1.status", b'{"all":true}') is None
    await services.stop()


async def _ask(client: Client, subject: str, body: bytes) -> str | None:
    reply = await client.request(subject, body, timeout=patience(10))
    code: str | None = (reply.headers or {}).get("Nats-Service-Error-Code")
    found: Any = json.loads(reply.data)  # an error says in its body what it is about
    assert found
    return code
