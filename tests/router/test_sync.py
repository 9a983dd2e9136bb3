"""The facade for code without an event loop: same answers, same log, nothing lost when a script simply ends."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from typing import Any

import pytest

import sickbay.sync
from nats_servers import NatsServer, free_port
from reporter_rig import TARGET, prepare, read_log
from sickbay import CallOutcome, Held, Target
from sickbay_events import NameRefused
from waiting import patience

DEAD_MODEL = b'{"error":{"message":"The model `z-ai/glm-5.3` does not exist","code":"model_not_found"}}'


def run_script(body: str, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a script as a user would, to its end."""
    script = "import sys, os, logging, sickbay.sync\nfrom sickbay import *\nT = Target('openrouter.ai', 'm')\n"
    return subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", script + textwrap.dedent(body), *arguments],
        capture_output=True,
        text=True,
        timeout=patience(timeout_s),
        check=False,
    )


def prepared(server: NatsServer) -> str:
    asyncio.run(prepare(server.url))
    return server.url


def test_threads_decide_attempt_and_record_and_each_outcome_is_stored_once(nats_server: NatsServer) -> None:
    url = prepared(nats_server)
    failed: list[BaseException] = []

    with sickbay.sync.connect(url, replica="r1") as sb:

        def work(number: int) -> None:
            try:
                target = Target("openrouter.ai", f"model-{number}")
                for _ in range(100):
                    assert sb.decide(target).allowed
                    sb.record(target, CallOutcome(kind="ok"))
                    with sb.attempt(target, limit_s=10, route="brief") as attempt:
                        attempt.ok(status=200)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        boot = sb.sickbay.reporter.boot  # type: ignore[attr-defined]
        left = sb.close(10)
        assert not failed, failed
        assert not left and sb.counts.acked == 1600 and not sb.counts.rejected
    stored = asyncio.run(read_log(url))
    assert Counter(message.id for message in stored) == {f"{boot}-{n}": 1 for n in range(1, 1601)}
    assert sum(message.body.get("route") == "brief" for message in stored) == 800


def test_what_a_thread_saw_itself_holds_at_once_and_entering_an_attempt_raises_held(nats_server: NatsServer) -> None:
    """Rule 5.3: the overlay needs no round trip, and Rule 4.1: two rejections."""
    with sickbay.sync.connect(prepared(nats_server), replica="r1") as sb:
        for _ in range(2):
            with sb.attempt(TARGET) as attempt:
                attempt.response(404, {"content-type": "application/json"}, DEAD_MODEL)
        with pytest.raises(Held) as caught, sb.attempt(TARGET):
            pytest.fail("a held target is not called")
        assert caught.value.decision.source == "local" and caught.value.decision.reason == "quarantined"


def test_without_a_server_decisions_say_stale_and_close_keeps_its_limit() -> None:
    """Decisions are made at once."""
    began = time.monotonic()
    sb = sickbay.sync.connect(f"nats://127.0.0.1:{free_port()}", replica="r1")
    decision = sb.decide(TARGET)
    sb.record(TARGET, CallOutcome(kind="timeout"))
    assert time.monotonic() - began < patience(0.5)
    assert (decision.allowed, decision.reason, decision.source) == (True, "ok", "stale")
    assert sb.ready(0.05) is False
    left = sb.close(0.2)
    assert time.monotonic() - began < patience(1.5)
    assert left.by_kind == {"timeout": 1}
    assert not sb.close(5), "a second close hands over nothing more"
    assert sb.decide(TARGET).allowed, "decisions go on after the end"
    sb.record(TARGET, CallOutcome(kind="ok"))
    assert sb.counts.rejected == {"closed": 1}
    assert "sickbay" not in {thread.name for thread in threading.enumerate()}


def test_what_cannot_be_used_is_said_by_connect_and_leaves_no_thread() -> None:
    with pytest.raises(NameRefused, match="replica"):
        sickbay.sync.connect("nats://127.0.0.1:4222", "r" * 300)
    assert "sickbay" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    ("ending", "code"),
    [("", 0), ("sys.exit(3)", 3), ("raise KeyError('boom')", 1), ("del sb", 0)],
    ids=["end", "exit", "exception", "forgotten"],
)
def test_a_script_that_ends_without_close_hands_over_what_it_recorded(
    nats_server: NatsServer, ending: str, code: int
) -> None:
    """Seeders and cron jobs: the connection may not even stand yet when the script is through."""
    url = prepared(nats_server).replace("127.0.0.1", "localhost")
    done = run_script(
        f"""
        sb = sickbay.sync.connect(sys.argv[1], replica="cron-1")
        for number in range(300):
            sb.record(T, CallOutcome(kind="ok"))
        {ending}
        """,
        url,
    )
    assert done.returncode == code, done.stderr
    assert done.stderr == "" or "boom" in done.stderr, done.stderr
    assert sorted(message.n for message in asyncio.run(read_log(nats_server.url))) == list(range(1, 301))


def test_a_script_without_a_server_ends_and_its_log_says_what_is_left() -> None:
    """It ends within the limit that it was given."""
    done = run_script(
        """
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
        sb = sickbay.sync.connect(sys.argv[1], replica="cron-1", exit_limit_s=0.5)
        sb.record(T, CallOutcome(kind="timeout"))
        sb.record(T, CallOutcome(kind="ok"))
        """,
        f"nats://127.0.0.1:{free_port()}",
        timeout_s=6,
    )
    assert done.returncode == 0
    assert "WARNING sickbay.reporter closed with 2 outcomes left: 1 timeout, 1 ok" in done.stderr


def test_a_connection_s_thread_that_cannot_be_stopped_keeps_nobody_from_ending(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback of somebody else that blocks the loop: close gives up after its limit."""
    sb = sickbay.sync.connect(prepared(nats_server), replica="r1")
    assert sb.ready(0.01) in (True, False)
    side: Any = sb._side
    free = threading.Event()
    side.loop.call_soon_threadsafe(free.wait, 20)
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        left = sb.close(0.1)
    assert time.monotonic() - began < patience(8)
    assert left.total == 0
    free.set()
    side._thread.join(patience(5))
    assert not side._thread.is_alive()
