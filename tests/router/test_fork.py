"""After a fork a child has its own boot and connection, or is told to make one; the parent notices nothing."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from collections import defaultdict
from typing import Any

import pytest

from nats_servers import NatsServer
from reporter_rig import prepare, read_log
from waiting import patience

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

PRELUDE = """
import asyncio, json, logging, multiprocessing, os, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)   # from 3.12 on: fork in a process with threads
import sickbay, sickbay.sync
from sickbay import CallOutcome, Target
T = Target("openrouter.ai", "m")
OK = CallOutcome(kind="ok")
URL = sys.argv[1]

def acked(sb, count):
    end = time.monotonic() + 60
    while sb.counts.acked < count:
        assert time.monotonic() < end, sb.counts
        time.sleep(0.005)

def wait_for(pid, limit_s=60):
    end = time.monotonic() + limit_s
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        assert time.monotonic() < end, "the child does not end"
        time.sleep(0.005)
"""


def run_script(server: NatsServer, body: str, timeout_s: float = 120) -> dict[str, Any]:
    """Run a script that prints one JSON object at its end; its standard error must be empty."""
    asyncio.run(prepare(server.url))
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(body), server.url],
        capture_output=True,
        text=True,
        timeout=patience(timeout_s),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    said["stderr"] = done.stderr
    return said


def stored_by_boot(server: NatsServer) -> dict[str, list[int]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for message in asyncio.run(read_log(server.url)):
        found[message.id.partition("-")[0]].append(message.n)
    return {boot: sorted(numbers) for boot, numbers in found.items()}


def test_a_forked_child_reports_under_its_own_boot(
    nats_server: NatsServer,
) -> None:
    """The parent's connection goes on."""
    said = run_script(
        nats_server,
        """
        sb = sickbay.sync.connect(URL, replica="r1")
        for _ in range(3):
            sb.record(T, OK)
        acked(sb, 3)
        parent_boot = sb.sickbay.reporter.boot
        pid = os.fork()
        if pid == 0:
            assert sb.decide(T).allowed
            sb.record(T, OK)
            sb.record(T, OK)
            good = sb.sickbay.reporter.boot != parent_boot and not sb.close(10) and sb.counts.acked == 2
            os._exit(0 if good else 9)
        code = wait_for(pid)
        sb.record(T, OK)
        acked(sb, 4)
        connects = sb.sickbay.link.connects
        left = sb.close()
        print(json.dumps({"code": code, "connects": connects, "left": left.total, "boot": parent_boot}))
        """,
    )
    assert (said["code"], said["connects"], said["left"], said["stderr"]) == (0, 1, 0, "")
    boots = stored_by_boot(nats_server)
    assert boots.pop(said["boot"]) == [1, 2, 3, 4]
    assert list(boots.values()) == [[1, 2]]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_children_that_just_end_hand_over_what_they_recorded(
    nats_server: NatsServer, method: str, tmp_path: Any
) -> None:
    """A child of multiprocessing runs no atexit."""
    script = tmp_path / "jobs.py"
    body = """
    SB = sickbay.sync.connect(URL, replica="r1")

    def job():
        for _ in range(20):
            SB.record(T, OK)

    if __name__ == "__main__":
        SB.record(T, OK)
        context = multiprocessing.get_context(sys.argv[2])
        children = [context.Process(target=job) for _ in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join(60)
        assert [child.exitcode for child in children] == [0, 0, 0]
        SB.record(T, OK)
        assert not SB.close()
    """
    script.write_text(PRELUDE + textwrap.dedent(body))
    asyncio.run(prepare(nats_server.url))
    done = subprocess.run(
        [sys.executable, str(script), nats_server.url, method],
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    boots = sorted(stored_by_boot(nats_server).values(), key=len)
    assert boots == [[1, 2], *[list(range(1, 21))] * 3]


def test_workers_of_a_preloading_server_answer_in_threads_and_end_by_sys_exit(nats_server: NatsServer) -> None:
    """As gunicorn does with preload_app: connect in the master, fork, serve in threads, exit on SIGTERM."""
    said = run_script(
        nats_server,
        """
        import signal
        sb = sickbay.sync.connect(URL, replica="r1")

        def worker():
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            def serve():
                for _ in range(50):
                    with sb.attempt(T) as attempt:
                        attempt.ok()
            threads = [threading.Thread(target=serve) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            os.kill(os.getppid(), 0)
            ready_w.send_bytes(b"x")
            while True:
                time.sleep(1)

        ready_r, ready_w = multiprocessing.Pipe(duplex=False)
        pids = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                worker()
            pids.append(pid)
        for _ in pids:
            assert ready_r.poll(60)
            ready_r.recv_bytes()
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        codes = [wait_for(pid) for pid in pids]
        print(json.dumps({"codes": codes, "recorded": sb.counts.recorded}))
        """,
    )
    assert (said["codes"], said["recorded"], said["stderr"]) == ([0, 0, 0], 0, "")
    assert list(stored_by_boot(nats_server).values()) == [list(range(1, 201))] * 3


def test_a_child_that_does_not_use_it_has_no_thread_and_no_connection(nats_server: NatsServer) -> None:
    said = run_script(
        nats_server,
        """
        sb = sickbay.sync.connect(URL, replica="r1")
        assert sb.ready(0.01) in (True, False)
        pid = os.fork()
        if pid == 0:
            threads = [thread.name for thread in threading.enumerate()]
            sys.exit(0 if threads == ["MainThread"] and not sb.close() else 9)
        code = wait_for(pid)
        sb.record(T, OK)
        print(json.dumps({"code": code, "left": sb.close().total}))
        """,
    )
    assert (said["code"], said["left"], said["stderr"]) == (0, 0, "")
    assert list(stored_by_boot(nats_server).values()) == [[1]]


def test_children_forked_while_other_threads_record_are_never_stuck(nats_server: NatsServer) -> None:
    """A lock that another thread held at the moment of the fork stays held in the child for ever."""
    said = run_script(
        nats_server,
        """
        sb = sickbay.sync.connect(URL, replica="r1", capacity=1000)
        stop = threading.Event()
        def hammer():
            while not stop.is_set():
                sb.record(T, OK)
                sb.decide(T)
        threads = [threading.Thread(target=hammer) for _ in range(3)]
        for thread in threads:
            thread.start()
        codes = []
        for _ in range(15):
            pid = os.fork()
            if pid == 0:
                sb.record(T, CallOutcome(kind="timeout"))
                sb.decide(T)
                os._exit(0 if not sb.close(15) else 9)
            codes.append(wait_for(pid))
        stop.set()
        for thread in threads:
            thread.join()
        print(json.dumps({"codes": codes, "left": sb.close(20).total}))
        """,
    )
    assert (said["codes"], said["left"]) == ([0] * 15, 0)
    boots = stored_by_boot(nats_server)
    assert sorted(map(len, boots.values()))[:15] == [1] * 15 and len(boots) == 16


def test_the_asyncio_connection_tells_a_forked_child_what_to_do(
    nats_server: NatsServer,
) -> None:
    """The parent's own connection is left alone."""
    said = run_script(
        nats_server,
        """
        async def until_acked(sb, count):
            async with asyncio.timeout(60):
                while sb.reporter.counts.acked < count:
                    await asyncio.sleep(0.005)

        async def main():
            async with sickbay.connect(URL, replica="r1") as sb:
                sb.record(T, OK)
                await until_acked(sb, 1)
                read, write = os.pipe()
                pid = os.fork()
                if pid == 0:
                    lines = []
                    handler = logging.Handler()
                    handler.emit = lambda record: lines.append(record.getMessage())
                    logging.getLogger("sickbay").addHandler(handler)
                    sb.record(T, OK)
                    with sb.attempt(T) as attempt:
                        attempt.ok()
                    try:
                        sb.close().send(None)
                        ended = False
                    except StopIteration as done:
                        ended = not done.value
                    told = {"lines": lines, "rejected": sb.reporter.counts.rejected, "ended": ended}
                    os.write(write, json.dumps(told).encode())
                    os._exit(0)  # never back into the parent's loop
                code = await asyncio.to_thread(wait_for, pid)
                told = json.loads(os.read(read, 100_000))
                sb.record(T, OK)
                await until_acked(sb, 2)
                return {"code": code, "connects": sb.link.connects, **told}

        print(json.dumps(asyncio.run(main())))
        """,
    )
    assert (said["code"], said["connects"], said["stderr"]) == (0, 1, "")
    assert said["rejected"] == {"forked": 2}
    assert said["ended"], "close() in the child returns at once and touches nothing"
    assert len(said["lines"]) == 1 and "call sickbay.connect() in the child" in said["lines"][0]
    assert list(stored_by_boot(nats_server).values()) == [[1, 2]]


def test_a_connection_made_before_a_fork_works_in_the_child(nats_server: NatsServer) -> None:
    """Gunicorn with preload imports the application, where `connect` is called, and forks; each worker then enters it.
    Every process has a boot of its own."""
    said = run_script(
        nats_server,
        """
        router = sickbay.connect(URL, replica="r1")
        router.record(T, OK)  # the parent's own, for which it never has a connection

        async def main():
            async with router:
                assert await router.ready(60) in (True, False)
                for _ in range(5):
                    async with router.attempt(T) as attempt:
                        attempt.ok()
                return (await router.close(30)).total

        pids = []
        for _ in range(2):
            if (pid := os.fork()) == 0:
                left = asyncio.run(main())
                os._exit(0 if not left and router.reporter.counts.acked == 5 else 9)
            pids.append(pid)
        codes = [wait_for(pid) for pid in pids]
        print(json.dumps({"codes": codes, "left": asyncio.run(main())}))
        """,
    )
    assert (said["codes"], said["left"], said["stderr"]) == ([0, 0], 0, "")
    assert sorted(map(len, stored_by_boot(nats_server).values())) == [5, 5, 6]
