"""Alerts from the log of transitions to receivers: real servers, real processes, receivers that fail."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.js.errors import NotFoundError

from alert_receiver import CLOSE, HANG, SECRET, Receiver
from cli_runs import CLEAN
from nats_servers import NatsServer, free_port
from sickbay.bus.connect import connect
from sickbay.bus.topology import TRANSITIONS
from sickbay.operate import publish_outcome
from sickbay_events import CallOutcome, Target


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


class Telling:
    """`sickbay serve --alerts` as a process; several tests share a NATS, so each has receivers of its own name."""

    def __init__(self, nats: NatsServer, folder: Path, text: str, **environment: str) -> None:
        folder.mkdir(exist_ok=True)
        file = folder / "alerts.toml"
        file.write_text(text)
        self.log_path = folder / f"log-{time.monotonic_ns()}"
        self.port = free_port()
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sickbay", "serve", "--nats", nats.url, "--alerts", str(file)],
                stdout=subprocess.PIPE, stderr=log,
                env={**CLEAN, "SICKBAY_HTTP": f"127.0.0.1:{self.port}", "KEY": SECRET, **environment},
            )  # fmt: skip
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if b"sickbay status" in line:
                return
        raise AssertionError(self.log())

    def log(self) -> str:
        return self.log_path.read_text()

    def facts(self, name: str) -> dict[str, Any]:
        """What /healthz says of a receiver."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=5) as reply:
            found = json.loads(reply.read())["alerts"]
        return next(one for one in found if one["name"] == name)

    def until(self, name: str, **wanted: Any) -> dict[str, Any]:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            facts = self.facts(name)
            if all(facts[key] == value for key, value in wanted.items()):
                return facts
            time.sleep(0.05)
        raise AssertionError(f"{wanted} did not come: {facts}\n{self.log()}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> str:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.communicate(timeout=20)
        return self.log()


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
    client = await connect(nats.url)
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


async def test_a_host_with_many_holds_is_one_message_to_each_receiver_and_one_that_hangs_keeps_none_waiting(
    nats: NatsServer, telling: Callable[..., Telling], receivers: Callable[[], Receiver]
) -> None:
    """Thirty models of one host are one message; a chat room gets its text while another receiver never answers; the
    fold goes on; a receiver that fails is said by log and health, and no secret is."""
    hook, room, dead = receivers(), receivers(), receivers()
    dead.always = HANG
    mine = 'providers = ["many.example"]\n'
    text = "[alerts]\nwindow_s = 3\n" + webhook("many", hook, mine) + webhook("dead", dead, mine + "limit_s = 0.5")
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
    client = await connect(nats.url)
    for junk in (b"no json", b"[]", b'{"type":"held","id":1}', b'{"type":"held","id":"x","provider":"many.example"}'):
        await client.publish("sickbay.held.by-hand", junk)
    await client.close()
    await hold(nats, "many.example#late")
    assert hook.next().data["count"] == 1, "what somebody put among the transitions by hand ends nothing"
    assert room.next().data["text"].startswith("held: many.example#late m0 by quarantine until")
    log = served.end()
    assert "alerts do not arrive at dead" in log and "SECRETPATH" not in log and SECRET not in log
    assert "Traceback" not in log
    assert hook.got.empty() and room.got.empty(), "each was told once, and of its own provider only"


async def test_a_receiver_that_fails_is_tried_again_until_it_takes_the_message(
    nats: NatsServer, telling: Callable[..., Telling], receivers: Callable[[], Receiver]
) -> None:
    """500, a cut connection and 429 with Retry-After: the same message, by the same id, until 200; then it is told no
    more, and the log says when it began to fail and when that was over."""
    hook = receivers()
    hook.answers.extend((500, CLOSE, 429))
    hook.headers = {"retry-after": "1"}
    served = telling(
        "[alerts]\nwindow_s = 0\n" + webhook("again", hook, 'types = ["held"]\nproviders = ["again.example"]')
    )
    client = await connect(nats.url)
    stream = client.jetstream()
    made = (await stream.consumer_info(TRANSITIONS, "sickbay-alerts-to-again")).created
    await stream.delete_consumer(TRANSITIONS, "sickbay-alerts-to-again")
    async with asyncio.timeout(20):  # somebody's mistake: it is made anew
        while True:
            with contextlib.suppress(NotFoundError):
                if (await stream.consumer_info(TRANSITIONS, "sickbay-alerts-to-again")).created != made:
                    break
            await asyncio.sleep(0.05)
    await client.close()
    await hold(nats, "again.example")
    tries = [hook.next() for _ in range(4)]
    assert [one.answer for one in tries] == [500, CLOSE, 429, 200]
    assert len({one.headers["webhook-id"] for one in tries}) == 1 and len({one.body for one in tries}) == 1
    facts = served.until("again", ok=True, delivered=1)
    assert facts["failures"] == 3 and facts["waiting"] == 0
    log = served.end()
    assert log.count("alerts do not arrive at again") == 1 and "alerts arrive at again again" in log


async def test_what_is_given_up_is_told_as_a_count(
    nats: NatsServer, telling: Callable[..., Telling], receivers: Callable[[], Receiver]
) -> None:
    """A message that is refused for good is said by log and health; the next one says how many were lost."""
    hook = receivers()
    hook.answers.append(400)
    served = telling(
        "[alerts]\nwindow_s = 0\n" + webhook("lost", hook, 'types = ["held"]\nproviders = ["lost.example"]')
    )
    await hold(nats, "lost.example", 1)
    assert hook.next().answer == 400
    served.until("lost", not_delivered=1)
    await hold(nats, "lost.example#team", 1)
    told = hook.taken().data
    assert told["not_delivered"] == 1 and told["count"] == 1
    assert "1 alerts for lost are given up" in served.end()


async def test_kill_9_loses_no_alert_and_repeats_none_that_was_acknowledged(
    nats: NatsServer, telling: Callable[..., Telling], receivers: Callable[[], Receiver]
) -> None:
    """What was told stays told; what the dead process was still trying to tell, and what came while nobody ran, is
    told by its successor."""
    hook = receivers()
    text = "[alerts]\nwindow_s = 0\n" + webhook(
        "killed", hook, 'types = ["held"]\nproviders = ["a.kill", "b.kill", "c.kill"]'
    )
    first = telling(text)
    await hold(nats, "a.kill")
    assert hook.taken().data["host"] == "a.kill"
    first.until("killed", waiting=0)
    hook.always = 503
    await hold(nats, "b.kill")
    assert hook.next().data["host"] == "b.kill"
    first.end(signal.SIGKILL)
    while not hook.got.empty():
        hook.got.get()
    await hold(nats, "c.kill")  # outcomes while no service runs
    hook.always = 200
    second = telling(text)
    hosts = {hook.taken(30).data["host"]}
    assert hosts == {"c.kill"}, "nobody waits for what the dead process had"
    assert hook.taken(90).data["host"] == "b.kill"
    second.until("killed", waiting=0)
    second.end()
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
    assert hook.taken().data["host"] == "handed.example" and time.monotonic() - began < 20
    second.end()


async def test_only_the_writer_tells(
    nats: NatsServer, telling: Callable[..., Telling], receivers: Callable[[], Receiver]
) -> None:
    """Of two services with the same file one tells, so that a host's holds are one message; when it is killed the other
    goes on."""
    hook = receivers()
    text = "[alerts]\nwindow_s = 2\n" + webhook("pair", hook, 'types = ["held"]\nproviders = ["pair.one", "pair.two"]')
    both = [telling(text), telling(text)]
    await hold(nats, "pair.one", 8)
    assert hook.next().data["count"] == 8
    both[0].until("pair", waiting=0)
    both[0].end(signal.SIGKILL)
    await hold(nats, "pair.two", 8)
    assert hook.next(30).data["count"] == 8 and hook.got.empty()


async def test_the_consumer_forgets_a_receiver_that_is_gone(nats: NatsServer) -> None:
    """Each receiver's place on NATS is dropped after a week without it, so that one that comes back after a year is not
    told a year of holds."""
    client = await connect(nats.url)
    found = await client.jetstream().consumers_info(TRANSITIONS)
    await client.close()
    mine = [one for one in found if one.name.startswith("sickbay-alerts-to-")]
    assert mine and all(one.config.inactive_threshold == 7 * 86_400 for one in mine)
    assert all(one.num_ack_pending == 0 for one in mine if one.name != "sickbay-alerts-to-dead")
