"""The runbook is true: each of its commands is run by the real CLI on real servers, and prints what stands there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from cli_runs import CLEAN, NATS_CLI, Serve, needs_nats_cli
from paths import ROOT
from secured_nats import SecuredNats
from sickbay.nats_config.plan import MONITOR_APART
from waiting import patience

RUNBOOK = ROOT / "docs" / "runbook.md"
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND_S = 60.0


class Step(NamedTuple):
    """One command and the lines that it prints. `live`: it goes on until it is ended."""

    command: str
    expected: tuple[str, ...]
    live: bool


def steps() -> list[Step]:
    """Every command of the runbook, in order."""
    found: list[Step] = []
    for kind, body in FENCE.findall(RUNBOOK.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            command, *expected = part.rstrip("\n").split("\n")
            found.append(Step(command, tuple(expected), kind == "console live"))
    return found


def matches(expected: str, line: str) -> bool:
    """`…` stands for anything; runs of blanks count as one, since columns are as wide as what is in them."""
    pieces = [re.escape(" ".join(piece.split(" "))) for piece in expected.split("…")]
    pattern = re.sub(r"(\\ )+", r"\\s+", ".*".join(pieces))
    return re.fullmatch(rf"\s*{pattern}\s*", line) is not None


def missing(expected: tuple[str, ...], printed: list[str]) -> str | None:
    """The first expected line that is not printed in its place; None if all are. A lone `…` is any number of lines."""
    at, loose = 0, False
    for wanted in expected:
        if wanted.strip() == "…":
            loose = True
            continue
        here = range(at, len(printed)) if loose else range(at, min(at + 1, len(printed)))
        found = next((index for index in here if matches(wanted, printed[index])), None)
        if found is None:
            return wanted
        at, loose = found + 1, False
    return None if loose or at == len(printed) else f"nothing more after line {at}: {printed[at]!r}"


class Shell:
    """A shell in which the runbook's commands run one after the other, as a person's do."""

    def __init__(self, folders: dict[str, str]) -> None:
        assert NATS_CLI is not None, "CI must have the nats command line: .ci/run builds it"
        self._folders = folders
        tools = os.pathsep.join([str(Path(sys.executable).parent), str(Path(NATS_CLI).parent)])
        self.env = {**CLEAN, "PATH": f"{tools}{os.pathsep}{CLEAN['PATH']}"}
        self._bash = subprocess.Popen(
            ["bash"], env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, command: str) -> list[str]:
        """The lines it prints, blank ones left out."""
        bash = self._bash
        assert bash.stdin is not None and bash.stdout is not None
        bash.stdin.write(f"{{ {self._placed(command)} \n}} </dev/null\necho; echo runbook-end\n")
        bash.stdin.flush()
        watchdog = threading.Timer(COMMAND_S, bash.kill)
        watchdog.start()
        lines = []
        for line in bash.stdout:
            if line == "runbook-end\n":
                break
            lines.append(line.rstrip("\n"))
        else:
            raise AssertionError(f"{command} did not end: {lines}")
        watchdog.cancel()
        return [line for line in lines if line.strip()]

    def begin(self, command: str, out: Path) -> int:
        """Start a command that goes on, its output in a file; its process id."""
        out.touch()
        (pid,) = self.run(f"{command} >{out} 2>&1 & echo $!")
        return int(pid)

    def _placed(self, command: str) -> str:
        for name, path in self._folders.items():
            command = command.replace(name, path)
        return command

    def close(self) -> None:
        self._bash.kill()
        self._bash.communicate()


class Fleet:
    """The fleet of the runbook: its servers, the ones it moves to, and what its routers reported."""

    def __init__(self, folder: Path) -> None:
        self.old, self.new = SecuredNats(folder / "old"), SecuredNats(folder / "new")
        self.backups = folder / "backups"
        self.backups.mkdir()
        self.served: list[Serve] = []

    @property
    def folders(self) -> dict[str, str]:
        """What the runbook's folders are here."""
        return {
            "/etc/sickbay/nats": str(self.old.folder),
            "/etc/sickbay/new": str(self.new.folder),
            "/var/backups/sickbay": str(self.backups),
        }

    def serve(self, nats: SecuredNats) -> None:
        """Start services and wait until they answer."""
        made = Serve(**nats.env("services"), SICKBAY_HTTP="off", SICKBAY_REPLICA="services-1")
        self.served.append(made)
        made.ready()

    def report(self, replica: str, target: str, body: str) -> None:
        """One outcome, as the NATS CLI publishes it."""
        assert NATS_CLI is not None
        command = [NATS_CLI, "--context", "sickbay-router", "pub", f"sickbay.outcome.{replica}.{target}", body, "-J"]
        subprocess.run(command, env=self.old.nats_env(), check=True, capture_output=True)

    def close(self) -> None:
        for served in self.served:
            served.end()
        self.old.stop()
        self.new.stop()


GLM = "openrouter=2Eai.=.z-ai/glm-5=2E3"
GPT = "api=2Eopenai=2Ecom.=.gpt-5=2E2"
GROK = "api=2Ex=2Eai.=.grok-5"
REJECTED = '{"kind":"model_unavailable","status":404}'


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    try:
        made.old.start()
        made.new.start()
        made.serve(made.old)
        made.report("router-1", GLM, REJECTED)
        made.report("router-2", GLM, REJECTED)
        made.report("router-2", GPT, '{"kind":"ok"}')
        made.report("router-2", GLM, '{"kind":"nonsense"}')
        yield made
    finally:
        made.close()


@pytest.fixture
def shell(fleet: Fleet) -> Iterator[Shell]:
    made = Shell(fleet.folders)
    yield made
    made.close()


def is_subscribed(fleet: Fleet, command: str) -> bool:
    """Whether the server has the subscription that a live command makes."""
    subject = re.findall(r"'([^']*)'", command)[0]
    url = f"http://127.0.0.1:{fleet.old.plan.port + MONITOR_APART}/connz?subs=1"
    with urllib.request.urlopen(url, timeout=patience(5)) as answer:
        found = json.load(answer)["connections"]
    return any(subject in one.get("subscriptions_list", ()) for one in found)


def happens(fleet: Fleet, command: str) -> None:
    """What a live command of the runbook waits for."""
    if "sickbay.outcome.>" in command:
        fleet.report("router-1", GROK, '{"kind":"overloaded","status":503}')
    elif "sickbay.held.>" in command:
        for replica in ("router-1", "router-2"):
            fleet.report(replica, GROK, REJECTED)


def watch(step: Step, fleet: Fleet, shell: Shell, out: Path) -> list[str]:
    """Run a live command until it has printed what it should; what it printed."""
    pid = shell.begin(step.command, out)
    try:
        deadline, told = time.monotonic() + patience(20), False
        while True:
            printed = [line for line in out.read_text(errors="replace").splitlines() if line.strip()]
            if missing(("…", *step.expected, "…"), printed) is None or time.monotonic() > deadline:
                return printed
            if not told and is_subscribed(fleet, step.command):
                happens(fleet, step.command)
                told = True
            time.sleep(0.05)
    finally:
        os.kill(pid, signal.SIGTERM)  # a shell without a terminal starts what runs beside it deaf to Ctrl-C


@needs_nats_cli
def test_every_command_of_the_runbook_prints_what_stands_below_it(fleet: Fleet, shell: Shell, tmp_path: Path) -> None:
    """From top to bottom in one shell: who is held and why, who said so, release and undo, backup and move."""
    for number, step in enumerate(steps()):
        if step.live:
            printed = watch(step, fleet, shell, tmp_path / f"live-{number}")
            wrong = missing(("…", *step.expected, "…"), printed)
            if "sickbay.held.>" in step.command:
                shell.run("sickbay clear api.x.ai grok-5 --reason 'an example'")
        else:
            printed = settled(step, shell)
            wrong = missing(step.expected, printed)
        shown = "\n".join(printed)
        assert wrong is None, f"$ {step.command}\n{shown}\n\nwithout: {wrong}"
        if step.expected == ("the same",):
            fleet.serve(fleet.new)


def settled(step: Step, shell: Shell) -> list[str]:
    """What a command prints. One that only looks is asked again for a while: an act before it may be under way."""
    looks = any(word in step.command for word in ("status", "explain", "kv get", "kv ls", "nats sub", "doctor"))
    deadline = time.monotonic() + (patience(10) if looks else 0)
    while True:
        printed = shell.run(step.command)
        if missing(step.expected, printed) is None or time.monotonic() > deadline:
            return printed
        time.sleep(0.1)


def test_the_runbook_has_no_command_that_is_not_run() -> None:
    """Every block is one whose commands are run, and each begins with a prompt."""
    blocks = FENCE.findall(RUNBOOK.read_text(encoding="utf-8"))
    assert {kind for kind, _ in blocks} == {"console", "console live"}
    assert all(body.startswith("$ ") for _, body in blocks)
    assert len(steps()) > 40


@pytest.mark.parametrize(
    ("expected", "printed", "is_there"),
    [
        (("a", "b"), ["a", "b"], True),
        (("a", "b"), ["a", "x", "b"], False),
        (("a", "…", "b"), ["a", "x", "b"], True),
        (("a",), ["a", "more"], False),
        (("a", "…"), ["a", "more"], True),
        (("seq … of …",), ["seq 1 of 2"], True),
        (("a  b",), ["a b"], True),
        (("b", "a"), ["a", "b"], False),
        ((), ["a"], False),
    ],
)
def test_output_is_compared_line_by_line(expected: tuple[str, ...], printed: list[str], is_there: bool) -> None:
    """What the comparison takes for the same, and what not."""
    assert (missing(expected, printed) is None) is is_there
