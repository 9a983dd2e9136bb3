"""Alerts from the log of transitions to receivers: real servers, real processes, receivers that fail."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.js.errors import NotFoundError

from alert_receiver import CLOSE, HANG, SECRET, Receiver
from cli_runs import Serve
from nats_servers import NatsServer
from sickbay.alerts.relay import ACK_WAIT_S, Alerting, Relay
from sickbay.alerts.settings import read_alerts
from sickbay.bus.connect import connect_client
from sickbay.bus.topology import HELD_PREFIX, TRANSITIONS, StreamLimits, ensure
from sickbay.bus.view_names import MAIN
from sickbay.control.acts import publish_outcome
from sickbay_events import CallOutcome, Target
from waiting import patience, until, until_sync


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
def receivers() -> Iterator[Callable[[], Receiver]]:
    made: list[Receiver] = []

    def make() -> Receiver:
        made.append(Receiver().__enter__())
        return made[-1]

    yield make
    for one in made:
        one.__exit__(None, None, None)


class Telling(Serve):
    """`sickbay serve --alerts` as a process; several tests share a NATS, so each has receivers of its own name."""

    def __init__(self, nats: NatsServer, folder: Path, text: str, **environment: str) -> None:
        file = folder / "alerts.toml"
        file.write_text(text)
        super().__init__("--nats", nats.url, "--alerts", str(file), KEY=SECRET, **environment)
        self.ready()

    def facts(self, name: str) -> dict[str, Any]:
        """What /healthz says of a receiver."""
        return next(one for one in self.health()["alerts"] if one["name"] == name)

    def until(self, name: str, **wanted: Any) -> dict[str, Any]:
        def fits() -> dict[str, Any] | None:
            facts = self.facts(name)
            return facts if all(facts[key] == value for key, value in wanted.items()) else None

        return until_sync(fits, f"{name} is {wanted}")


@pytest.fixture
def telling(nats: NatsServer, tmp_path: Path) -> Iterator[Callable[..., Telling]]:
    made: list[Telling] = []

    def start(text: str, **environment: str) -> Telling:
        made.append(Telling(nats, tmp_path, text, **environment))
        return made[-1]

    yield start
    for one in made:
        one.end(signal.SIGKILL)


async def hold(nats: NatsServer, host: str, models: int = 1) -> None:
    """Have so many models of a host quarantined."""
    client = await connect_client(nats.url)
    outcome = CallOutcome(kind="model_unavailable", status=404)
    targets = [Target(host, f"m{number}") for number in range(models)]
    # All at once, so that a window of seconds is enough on a busy machine, too.
    await asyncio.gather(
        *(publish_outcome(client, target, outcome, replica=name) for target in targets for name in ("r1", "r2"))
    )
    await client.close()


def webhook(name: str, receiver: Receiver, more: str = "") -> str:
    return (
        f'[[alerts.receiver]]\nname = "{name}"\nkind = "webhook"\nurl = "{receiver.url}"\nsecret = "env:KEY"\n{more}\n'
    )


async def test_many_holds_of_a_host_are_one_message_to_each_receiver(
    nats: NatsServer, telling: Callable[..., Telling], receivers: Callable[[], Receiver]
) -> None:
    """A receiver that hangs keeps no other waiting. Thirty models of one host are one message; a chat room gets its
    text while another receiver never answers; the fold goes on; a receiver that fails is said by log and health, and no
    secret is."""
    hook, room, dead = receivers(), receivers(), receivers()
    dead.always = HANG
    mine = 'providers = ["many.example"]\n'
    text = "[alerts]\nwindow_s = 2\n" + webhook("many", hook, mine) + webhook("dead", dead, mine + "limit_s = 0.5")
    text += f'[[alerts.receiver]]\nname = "room"\nkind = "slack"\nurl = "env:HOOK"\n{mine}'
    served = telling(text, HOOK=f"{room.url}/services/T0/SECRETPATH")
    await hold(nats, "elsewhere.example")
    await hold(nats, "many.example", 30)
    got = hook.next()
    assert (got.data["type"], got.data["host"], got.data["count"]) == ("held", "many.example", 30)
    assert len(got.data["alerts"]) == 10 and got.data["alerts"][0]["cause_seq"] > 0
    said = room.next()
    assert said.path == "/services/T0/SECRETPATH" and "30 held: many.example" in said.data["text"]
    facts = served.until("dead", ok=False)
    assert facts["waiting"] == 30 and "no answer in 0.5 s" in facts["last_error"] and not facts["not_delivered"]
    assert served.until("many", waiting=0)["told"] == 30
    found = served.get("metrics").decode().splitlines()
    assert 'sickbay_alert_receiver_failing{receiver="dead"} 1.0' in found
    assert 'sickbay_alerts_told_total{receiver="many"} 30.0' in found
    client = await connect_client(nats.url)
    for junk in (b"no json", b"[]", b'{"type":"held","id":1}', b'{"type":"held","id":"x","provider":"many.example"}'):
        await client.publish("sickbay.held.by-hand", junk)
    await client.close()
    await hold(nats, "many.example#late")
    assert hook.next().data["count"] == 1, "what somebody put among the transitions by hand ends nothing"
    assert room.next().data["text"].startswith("held: many.example#late m0 by quarantine until")
    _, log = served.end()
    assert "alerts do not arrive at dead" in log and "SECRETPATH" not in log and SECRET not in log
    assert "Traceback" not in log
    assert hook.got.empty() and room.got.empty(), "each was told once, and of its own provider only"


@asynccontextmanager
async def relaying(
    nats: NatsServer, text: str, *, is_active: Callable[[], bool] = lambda: True
) -> AsyncIterator[tuple[Relay, Client]]:
    """The one receiver of a file as `sickbay serve` tells it, in this process, with its connection."""
    settings, ways = read_alerts(text, {"KEY": SECRET})
    client = await connect_client(nats.url)
    await ensure(client, StreamLimits(), MAIN)
    alerting = Alerting(settings, ways, client=lambda: client, is_active=is_active)
    await alerting.prepare(client)
    task = asyncio.create_task(alerting.run())
    try:
        yield alerting.relays[0], client
    finally:
        task.cancel()
        await asyncio.wait([task])
        await client.close()


async def conclude(client: Client, name: str, provider: str) -> None:
    """Put a hold among the transitions, as a projector does."""
    fact = {"id": name, "type": "held", "provider": provider, "time_ms": 1_800_000_000_000, "rule": "breaker"}
    await client.request(f"{HELD_PREFIX}x.{name}", json.dumps(fact).encode(), timeout=patience(5))


async def test_a_receiver_that_fails_is_tried_again_until_it_takes_the_message(
    nats: NatsServer,
    receivers: Callable[[], Receiver],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """500, a cut connection and 429 with Retry-After: the same message, by the same id, until 200; then it is told no
    more, and the log says when it began to fail and when that was over. Its place on NATS is made anew where somebody
    deletes it, and dropped after a week without it, so that nobody is told a year of holds."""
    monkeypatch.setattr("sickbay.alerts.relay.RETRY_S", 0.02)
    caplog.set_level("INFO")
    hook = receivers()
    hook.answers.extend((500, CLOSE, 429))
    hook.headers = {"retry-after": "1"}
    text = "[alerts]\nwindow_s = 0\n" + webhook("again", hook, 'types = ["held"]\nproviders = ["again.example"]')
    async with relaying(nats, text) as (relay, client):
        stream = client.jetstream()
        made = (await stream.consumer_info(TRANSITIONS, "sickbay-alerts-to-again")).created
        await stream.delete_consumer(TRANSITIONS, "sickbay-alerts-to-again")
        async with asyncio.timeout(patience(20)):
            while True:
                with contextlib.suppress(NotFoundError):
                    if (await stream.consumer_info(TRANSITIONS, "sickbay-alerts-to-again")).created != made:
                        break
                await asyncio.sleep(0.02)
        began_s = time.monotonic()
        await conclude(client, "again-1", "again.example")
        tries = [await asyncio.to_thread(hook.next) for _ in range(4)]
        assert [one.answer for one in tries] == [500, CLOSE, 429, 200] and time.monotonic() - began_s >= 1
        assert len({one.headers["webhook-id"] for one in tries}) == 1 and len({one.body for one in tries}) == 1
        await until(lambda: relay.facts()["ok"] and relay.facts()["waiting"] == 0)
        assert (relay.delivered, relay.failures) == (1, 3)

        async def is_acknowledged() -> bool:
            place = await stream.consumer_info(TRANSITIONS, "sickbay-alerts-to-again")
            assert place.config.inactive_threshold == 7 * 86_400
            return bool(place.num_ack_pending == 0)

        await until(is_acknowledged, "the server has heard that it was taken")
    assert caplog.text.count("alerts do not arrive at again") == 1 and "alerts arrive at again again" in caplog.text
    assert hook.got.empty()


async def test_what_is_given_up_is_told_as_a_count(
    nats: NatsServer, receivers: Callable[[], Receiver], caplog: pytest.LogCaptureFixture
) -> None:
    """A message that is refused for good is said by log and health; the next one says how many were lost."""
    hook = receivers()
    hook.answers.append(400)
    text = "[alerts]\nwindow_s = 0\n" + webhook("lost", hook, 'types = ["held"]\nproviders = ["lost.example"]')
    async with relaying(nats, text) as (relay, client):
        await conclude(client, "lost-1", "lost.example")
        await until(lambda: relay.facts()["not_delivered"] == 1)
        await conclude(client, "lost-2", "lost.example")
        told = (await asyncio.to_thread(hook.taken)).data
        assert told["not_delivered"] == 1 and told["count"] == 1
        await until(lambda: relay.facts()["waiting"] == 0)
    assert "1 alerts for lost are given up" in caplog.text


async def test_what_a_receiver_refuses_is_told_by_the_next_writer_alone(
    nats: NatsServer, receivers: Callable[[], Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who writes no more stops trying and hands the message back, so that the one that took over tells it at once and
    nobody hears it twice."""
    monkeypatch.setattr("sickbay.alerts.relay.RETRY_S", 0.02)
    hook = receivers()
    hook.always = 503
    text = "[alerts]\nwindow_s = 0\n" + webhook("next", hook, 'types = ["held"]\nproviders = ["next.example"]')
    writer = 1
    async with (
        relaying(nats, text, is_active=lambda: writer == 1) as (first, client),
        relaying(nats, text, is_active=lambda: writer == 2) as (second, _),
    ):
        await conclude(client, "next-1", "next.example")
        await until(lambda: first.failures > 1)
        writer, hook.always = 2, 200
        began_s = time.monotonic()
        await until(lambda: second.delivered == 1)
        assert time.monotonic() - began_s < patience(ACK_WAIT_S - 1), "handed back, not waited for"
        facts = first.facts()
        assert facts["ok"] and facts["waiting"] == 0 and not first.delivered
        while not hook.got.empty():
            last = hook.got.get()
        assert last.answer == 200 and sum(one.delivered for one in (first, second)) == 1


async def test_of_two_services_the_writer_tells_and_kill_9_loses_and_repeats_nothing(
    nats: NatsServer, telling: Callable[..., Telling], receivers: Callable[[], Receiver]
) -> None:
    """Of two services with the same file one tells, so that a host's holds are one message; when it is killed the other
    tells what the dead one was still trying to tell and what came since, and nothing that was told."""
    hook = receivers()
    mine = 'types = ["held"]\nproviders = ["a.kill", "b.kill", "c.kill"]'
    text = "[alerts]\nwindow_s = 1\n" + webhook("pair", hook, mine)
    writer, standby = telling(text), telling(text)
    await hold(nats, "a.kill", 8)
    assert hook.taken().data["count"] == 8
    writer.until("pair", waiting=0)
    hook.always = 503
    await hold(nats, "b.kill")
    assert hook.next().data["host"] == "b.kill"
    writer.end(signal.SIGKILL)
    while not hook.got.empty():
        hook.got.get()
    hook.always = 200
    await hold(nats, "c.kill", 8)  # outcomes while nobody writes
    told = [hook.taken(30).data for _ in range(2)]
    assert {one["host"]: one["count"] for one in told} == {"b.kill": 1, "c.kill": 8}
    standby.until("pair", waiting=0)
    standby.end()
    assert hook.got.empty(), "a.kill was acknowledged"


async def test_a_stop_in_order_hands_back_what_is_not_told(
    nats: NatsServer, telling: Callable[..., Telling], receivers: Callable[[], Receiver]
) -> None:
    """After SIGTERM in the middle of a window the successor tells it at once, without waiting for a lost process."""
    hook = receivers()
    more = webhook("handed", hook, 'types = ["held"]\nproviders = ["handed.example"]')
    first = telling("[alerts]\nwindow_s = 3600\n" + more)
    await hold(nats, "handed.example")
    first.until("handed", waiting=1)
    first.end()
    began = time.monotonic()
    second = telling("[alerts]\nwindow_s = 0\n" + more)
    assert hook.taken().data["host"] == "handed.example" and time.monotonic() - began < patience(20)
    second.end()
