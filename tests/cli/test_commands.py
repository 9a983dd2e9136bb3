"""The command line without a server: help, exit codes, and the commands that need none."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from cli_runs import CLEAN, sickbay, sickbay_process
from sickbay.cli import app
from sickbay.cli.base import seconds
from sickbay.config import setting_rows as settings_table
from sickbay_events import KINDS, Policy, Target, token
from sickbay_events.codec import outcome_subject
from sickbay_events.policy import keys as policy_keys


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its full name."""

    def walk(prefix: str, group: Any) -> Iterator[tuple[str, Any]]:
        for name, command in group.commands.items():
            full = f"{prefix} {name}".strip()
            if hasattr(command, "commands"):
                yield from walk(full, command)
            else:
                yield full, command

    return walk("", typer.main.get_command(app))


def options(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts if option.startswith("-")}


@pytest.mark.parametrize(
    ("name", "command"), list(commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_command_has_an_example_that_exists(name: str, command: Any) -> None:
    """`--help` shows one example, which names this command and only options it has."""
    lines = [line.strip() for line in command.help.splitlines()]
    example = next(line.removeprefix("Example: ") for line in lines if line.startswith("Example: "))
    words = shlex.split(example[example.index("sickbay ") if "sickbay " in example else 0 :])
    # An example may be a pipe or set a variable first; what counts begins at the command's name.
    begin = len(words) - 1 - words[::-1].index("sickbay")
    assert words[begin + 1 : begin + 1 + len(name.split())] == name.split()
    used = {word for word in words[begin:] if word.startswith("-") and word != "-"}
    assert used <= options(command) | {"-"}
    facts = {"status", "explain", "doctor", "replay", "classify", "name", "policy explain", "settings", "policy check"}
    assert name not in facts or "--json" in options(command)


def test_the_commands_are_those_of_the_design() -> None:
    """What the documents promise is there."""
    assert {name.split()[0] for name, _ in commands()} >= {
        "serve", "demo", "status", "explain", "hold", "allow", "clear", "report", "classify", "name", "replay",
        "export", "policy", "doctor",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["hold", "openrouter.ai"], "--reason"),
        (["hold", "openrouter.ai", "--reason", "x"], "--for"),
        (["hold", "openrouter.ai", "--reason", "x", "--for", "soon"], "90s, 30m"),
        (["hold", "openrouter.ai", "--reason", "x", "--for", "5m", "--until", "2027-01-01T00:00:00Z"], "has to end"),
        (["hold", "#team", "--reason", "x", "--for", "5m"], "provider"),
        (["report", "openrouter.ai", "m", "--kind", "broken"], "model_unavailable"),
        (["classify", "--model", "m"], "--status"),
        (["classify", "--error", "gone"], "connect"),
        (["classify", "--status", "404", "--header", "nothing"], "Name: value"),
        (["name", ""], "host or label"),
        (["nonsense"], "nonsense"),
    ],
)
def test_usage_errors_exit_with_2_and_say_what_is_accepted(arguments: list[str], says: str) -> None:
    """A line that makes no sense: exit code 2, the accepted form on stderr, nothing on stdout, no traceback."""
    done = sickbay(*arguments)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr and done.stdout == "" and "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["status"], ["explain", "h"], ["doctor"], ["export", "/tmp/never-written"]])
def test_without_a_server_a_command_says_so_and_exits_with_1(arguments: list[str]) -> None:
    """No NATS named and none running here: a sentence that says what to do."""
    done = sickbay_process(*arguments)
    assert done.returncode == 1 and "sickbay serve" in done.stderr and "Traceback" not in done.stderr


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    """The error has the address, and no credentials."""
    done = sickbay("doctor", "--nats", "nats://ana:secret@127.0.0.1:1")
    assert done.returncode == 1 and "127.0.0.1:1" in done.stdout + done.stderr
    assert "secret" not in done.stdout + done.stderr


def test_a_bad_setting_is_a_usage_error() -> None:
    """An environment variable that cannot be read is named with its accepted form."""
    done = sickbay("settings", environment={"SICKBAY_PORT": "many"})
    assert done.returncode == 2 and "SICKBAY_PORT" in done.stderr and "'many'" in done.stderr


def test_settings_lists_every_variable_without_secrets() -> None:
    """Each setting is there with its value now; a URL's credentials are not."""
    done = sickbay("settings", "--json", environment={"SICKBAY_NATS": "nats://ana:secret@box:4222,tls://tok@other"})
    found = {row["name"]: row for row in json.loads(done.stdout)}
    assert set(found) == {row.name for row in settings_table()}
    assert found["SICKBAY_NATS"]["value"] == "nats://…@box:4222,tls://…@other"
    assert "secret" not in sickbay("settings", environment={"SICKBAY_NATS": "nats://ana:secret@box:4222"}).stdout


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("https://OpenRouter.ai/api/v1", "openrouter.ai"),
        ("openrouter.ai#team-a", "openrouter.ai#team-a"),
        ("https://openrouter.ai/api/v1#team-a", "openrouter.ai#team-a"),
        ("http://localhost:11434/v1", "localhost:11434"),
        ("xai", "xai"),
    ],
)
def test_name_shows_the_spelling_on_the_wire(url: str, provider: str) -> None:
    """Tokens, keys and subjects are those that the library uses."""
    done = sickbay("name", url, "z-ai/glm-5.3", "--replica", "r 1", "--json")
    found, target = json.loads(done.stdout), Target(provider, "z-ai/glm-5.3")
    assert found["provider"] == provider and found["scope_key"] == target.key
    assert found["model_token"] == token("z-ai/glm-5.3")
    assert found["gate_key"] == f"gate.{target.key}" and found["view_subject"] == f"sickbay.view.{target.key}"
    assert found["outcome_subject"] == outcome_subject("r 1", target)


def test_name_of_a_host_alone() -> None:
    """Without a model it is the host's, or the credential's."""
    assert json.loads(sickbay("name", "openrouter.ai", "--json").stdout)["scope_key"] == "openrouter=2Eai"
    assert json.loads(sickbay("name", "openrouter.ai#a", "--json").stdout)["scope_key"] == "openrouter=2Eai.a"


def test_a_name_too_long_is_refused() -> None:
    """Plain error, exit code 1."""
    done = sickbay("name", "openrouter.ai", "m" * 300)
    assert done.returncode == 1 and "256 bytes" in done.stderr


OPENAI_404 = (
    b'{"error":{"message":"The model `gpt-9` does not exist","type":"invalid_request_error","code":"model_not_found"}}'
)


def test_classify_reads_file_stdin_argument_and_curl(tmp_path: Path) -> None:
    """The same answer by four ways is the same verdict."""
    body = tmp_path / "body.json"
    body.write_bytes(OPENAI_404)
    plain = ["--status", "404", "--model", "gpt-9", "--provider", "https://api.openai.com/v1", "--json"]
    curl = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/2 404\r\ncontent-type: application/json\r\nretry-after: 7\r\n\r\n"
    ways = [
        sickbay("classify", str(body), *plain),
        sickbay("classify", "-", *plain, stdin=OPENAI_404),
        sickbay("classify", "--body", OPENAI_404.decode(), *plain),
        sickbay("classify", "-", "--model", "gpt-9", "--provider", "api.openai.com", "--json", stdin=curl + OPENAI_404),
    ]
    verdicts = [json.loads(done.stdout) for done in ways]
    assert {verdict["kind"] for verdict in verdicts} == {"model_unavailable"}
    assert {verdict["code"] for verdict in verdicts} == {"model_not_found"}
    shown = sickbay("classify", "--body", OPENAI_404.decode(), *plain[:-1])
    assert KINDS["model_unavailable"].says in shown.stdout


def test_classify_of_a_broken_connection() -> None:
    """No answer at all: `--error` says what failed."""
    assert json.loads(sickbay("classify", "--error", "dns", "--json").stdout)["kind"] == "network"


def test_policy_check_and_explain(tmp_path: Path) -> None:
    """A good file lists what it changes; a bad one is refused with key, value and accepted form."""
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text('[rejections]\nthreshold = 3\n[host."openrouter.ai".rejections]\nhold_s = 60\n')
    bad.write_text("[rejections]\nthreshold = 0\n")
    done = sickbay("policy", "check", str(good), "--json")
    changed = json.loads(done.stdout)["changed"]
    assert changed["rejections.threshold"] == 3 and any("openrouter.ai" in key for key in changed)
    refused = sickbay("policy", "check", str(bad))
    assert refused.returncode == 1 and "rejections.threshold" in refused.stderr and "0" in refused.stderr
    assert sickbay("policy", "check", str(tmp_path / "none.toml")).returncode == 1
    explained = json.loads(sickbay("policy", "explain", "rejections", "--json").stdout)
    assert [row["key"] for row in explained] == [row[0] for row in policy_keys() if row[0].startswith("rejections.")]
    assert sickbay("policy", "explain", "rejections.nothing").returncode == 1
    assert str(Policy().rejections.threshold) in sickbay("policy", "explain", "rejections.threshold").stdout


def test_replay_of_a_file_that_is_none(tmp_path: Path) -> None:
    """A plain error with the line's number; a missing file likewise."""
    path = tmp_path / "log.jsonl"
    path.write_text("{}\n")
    done = sickbay("replay", str(path))
    assert done.returncode == 1 and "line 1" in done.stderr and "Traceback" not in done.stderr
    assert sickbay("replay", str(tmp_path / "nothing")).returncode == 1


def test_replay_of_a_cut_file_uses_what_is_whole(tmp_path: Path) -> None:
    """The file of an export that broke off: its whole lines count, and the end is told."""
    line = (
        '{"seq":%d,"time":"2026-11-30T00:00:0%d.000000001Z","subject":"sickbay.outcome.r1.h.=.m",'
        '"headers":{},"data":{"kind":"model_unavailable"}}\n'
    )
    path = tmp_path / "log.jsonl"
    path.write_text(line % (1, 1) + line % (2, 2) + (line % (3, 3))[:60])
    done = sickbay("replay", str(path), "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["events"] == 2 and "line 3" in found["cut"] and "line 3" in done.stderr
    assert [(hold["rule"], hold["began_seq"]) for hold in found["holds"]] == [("quarantine", 2)]


def test_replay_of_lines_out_of_order_is_refused(tmp_path: Path) -> None:
    """A file that is not in the log's order is no log: nothing is folded from it in silence."""
    line = '{"seq":%d,"time":"2026-11-30T00:00:00Z","subject":"sickbay.outcome.r1.h.=.m","data":{"kind":"ok"}}\n'
    path = tmp_path / "log.jsonl"
    path.write_text(line % 2 + line % 1)
    done = sickbay("replay", str(path))
    assert done.returncode == 1 and "line 2" in done.stderr and "rising order" in done.stderr


def test_no_colours_in_a_pipe() -> None:
    """Output that is no terminal has no escape sequences and is not wrapped."""
    done = sickbay_process("policy", "explain")
    assert "\x1b" not in done.stdout
    assert all(row[3] in done.stdout for row in policy_keys())


def test_a_reader_that_has_enough_is_no_error() -> None:
    """`sickbay ... | head -1` ends quietly."""
    command = f"{sys.executable} -m sickbay policy explain --json | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False, env=CLEAN)
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (59.4, "59 s"),
        (552, "9 min 12 s"),
        (11_100, "3 h 5 min"),
        (187_200, "2 d 4 h"),
    ],
)
def test_seconds_are_said_as_people_say_them(value: float, text: str) -> None:
    """Times left are short and have two units at most."""
    assert seconds(value) == text
