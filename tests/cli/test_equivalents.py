"""What `sickbay` says NATS alone can do, NATS does; and a shell takes each line as one command."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable

import pytest
import typer.main

from cli_runs import NATS_CLI, Serve, needs_nats_cli, serve_fixture, sickbay  # noqa: F401 - a fixture is used by its name
from nats_servers import NatsServer
from sickbay.cli import app
from sickbay.cli.nats_equivalents import Named, equivalent_lines, example, table_of
from sickbay.control.acts import scope_of
from waiting import patience


def run(line: str, url: str) -> subprocess.CompletedProcess[str]:
    """One line as a shell runs it, with the NATS CLI of these tests."""
    program = f"{shlex.quote(str(NATS_CLI))} --server {url}"
    command = line.replace("nats ", f"{program} ", 1)
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=patience(30))


@needs_nats_cli
def test_each_line_does_something(nats_server: NatsServer, serve: Callable[..., Serve]) -> None:
    """Against running services each one is done, and the services accept what is asked of them."""
    serve("--nats", nats_server.url).ready()
    named = Named(scope_of("openrouter.ai", "z-ai/glm-5.3"), "router-1")
    order = ["report", "report", "hold", *(command for command in table_of(named) if command not in ("report", "hold"))]
    for command in order:
        for line in equivalent_lines(command, named):
            if "kv watch" in line or "--context" in line:
                continue  # goes on for ever, or is of a server with a system account: the runbook's test runs them
            done = run(line, nats_server.url)
            said = done.stdout + done.stderr
            assert done.returncode == 0, (line, said)
            assert '"error"' not in said and "Service-Error" not in said, (line, said)
            assert done.stdout.strip() or "Stored in Stream: SICKBAY_LOG" in said, (line, said)


def test_the_help_of_each_command_shows_its_lines() -> None:
    """One table feeds help, `sickbay nats` and the documentation."""
    root = typer.main.get_command(app)
    for command, found in table_of(example()).items():
        words = command.split()
        node = root
        for word in words:
            node = node.commands[word]  # type: ignore[attr-defined]
        shown = sickbay(*words, "--help").stdout
        assert found and all(line in shown for line in found), command
        assert sickbay("nats", command, "openrouter.ai", "z-ai/glm-5.3").returncode == 0


@pytest.mark.parametrize("model", ["it's $HOME `x`", "a b", 'q"q', "ft:gpt-4o:acme", "日本"])
def test_any_name_goes_through_a_shell(model: str) -> None:
    """Quotes, blanks and dollars arrive as they are."""
    for line in sickbay("nats", "hold", "openrouter.ai", model).stdout.splitlines():
        words = shlex.split(line)
        assert json.loads(words[3])["model"] == model
    for line in sickbay("nats", "explain", "openrouter.ai", model).stdout.splitlines():
        assert shlex.split(line)[0] == "nats"


def test_a_whole_host_and_what_has_no_line() -> None:
    """Without a model it is the host; an outcome needs one; a command without an equivalent is named."""
    assert "'gate.openrouter=2Eai' " in sickbay("nats", "explain", "openrouter.ai").stdout
    assert "openrouter=2Eai.>" in sickbay("nats", "explain", "openrouter.ai").stdout
    for words in (("report", "openrouter.ai"), ("serve",)):
        done = sickbay("nats", *words)
        assert done.returncode == 2 and "accepted is" in done.stderr
