"""The HTTP interface as processes, on credentials that may do no more than they must."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli_runs import CLEAN, sickbay
from http_rig import TARGET, TOKENS, Reader, by, write_tokens
from nats_servers import free_port
from secured_nats import SecuredNats
from sickbay.api.access import Access
from sickbay.api.tokens import Tokens, read_tokens
from sickbay.config import Settings
from waiting import patience, until_sync

END_S = 15.0


@contextmanager
def running(command: str, *arguments: str, **environment: str) -> Iterator[tuple[httpx.Client, subprocess.Popen[str]]]:
    """`sickbay serve` or `sickbay api`, ready; ended by SIGTERM, which it has to heed."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "sickbay", command, "--http", f"127.0.0.1:{port}", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**CLEAN, **environment},
    )  # fmt: skip
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=patience(15)) as http:
            until_sync(lambda: process.poll() is not None or _is_ready(http), "it is ready", within_s=30)
            yield http, process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            said = process.communicate(timeout=patience(END_S))[0]
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[0] + "\nIT DID NOT END"
    assert process.returncode == 0 and "Traceback" not in said and "DID NOT END" not in said, said


def _is_ready(http: httpx.Client) -> bool:
    try:
        return http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def uses_all_of_it(http: httpx.Client, model: str) -> None:
    """Report, ask, act, read and watch by one process."""
    item = {"provider": "openrouter.ai", "model": model, "kind": "ok", "id": f"{model}-1"}
    for duplicates in (0, 1):
        done = http.post("/v1/outcomes", json=item, headers=by("edge"))
        assert done.json() == {"accepted": 1, "duplicates": duplicates, "rejected": []}, done.text
    with Reader(http.base_url.port or 0, who="rita") as reader:
        reader.head()
        reader.until(lambda name, _: name == "beat")
        act = {"provider": "openrouter.ai", "model": model, "reason": "tests", "for_s": 60}
        assert http.post("/v1/hold", json=act, headers=by("ana")).status_code == 200
        reader.until_all(
            lambda name, data: name == "entry" and data["model"] == model,
            lambda name, data: name == "transition" and data["model"] == model and data["type"] == "held",
        )
    asked = {"provider": "openrouter.ai", "model": model}
    assert http.get("/v1/decide", params=asked, headers=by("rob")).json()["reason"] == "held_by_operator"
    for path in ("/v1/status", "/v1/explain", "/v1/history", "/v1/overview", "/metrics"):
        params = asked if path in ("/v1/explain", "/v1/history") else {}
        found = http.get(path, params=params, headers=by("rita"))
        assert (found.status_code == 200 and model in found.text) or path == "/metrics", (path, found.text)
    assert http.post("/v1/clear", json={**asked, "reason": "tests"}, headers=by("ana")).status_code == 200
    until_sync(lambda: http.get("/v1/decide", params=asked, headers=by("rob")).json()["allowed"], "it is released")


def test_both_processes_need_no_right_that_they_do_not_have(tmp_path: Path) -> None:
    """`sickbay serve` on the services' credential and `sickbay api` on its own answer all of it over TLS; the server
    refused them nothing. One on a reader's credential reads, and says at once what it may not."""
    tokens = str(write_tokens(tmp_path / "tokens.toml", TOKENS))
    with SecuredNats(tmp_path / "nats") as nats:
        shared = {"SICKBAY_HTTP_TOKENS": tokens, "SICKBAY_HISTORY": str(tmp_path / "history.db")}
        with (
            running("serve", **nats.env("services"), **shared) as (served, _),
            running("api", **nats.env("api"), **shared) as (alone, _),
        ):
            uses_all_of_it(served, "by-serve")
            uses_all_of_it(alone, "by-api")
            assert "projector" in served.get("/healthz").json() and "projector" not in alone.get("/healthz").json()
            assert served.get("/asyncapi.json").json()["asyncapi"] and alone.get("/asyncapi.json").status_code == 404
            for http in (served, alone):
                overview = until_sync(lambda http=http: _with_replicas(http), "the historian has heard of both")  # type: ignore[misc]
                assert {one["replica"] for one in overview["replicas"]} >= {"edge-1"}
                assert http.get("/").status_code == 200
            with running("api", **nats.env("reader"), SICKBAY_HTTP_TOKENS=tokens) as (reading, _):
                says_at_once_what_it_may_not(reading)
        refused = [line for line in nats.log().splitlines() if "Violation" in line]
        assert [line for line in refused if "user:reader" not in line] == [] and len(refused) == 2


def _with_replicas(http: httpx.Client) -> Any:
    found = http.get("/v1/overview", headers=by("rita")).json()
    return found if found["replicas"] else None


def says_at_once_what_it_may_not(http: httpx.Client) -> None:
    """On a reader's credential it reads, and what else it is asked for is refused without a time-out."""
    assert http.get("/v1/status", headers=by("rita")).status_code == 200
    began = time.monotonic()
    report = http.post("/v1/outcomes", json={**TARGET, "kind": "ok"}, headers=by("edge"))
    act = http.post("/v1/hold", json={**TARGET, "reason": "t", "for_s": 9}, headers=by("ana"))
    assert time.monotonic() - began < patience(2)
    assert (report.status_code, act.status_code) == (503, 503)
    assert "may not" in report.json()["detail"] and "may not" in act.json()["detail"]


def test_serve_ends_at_once_with_open_streams_and_half_requests(tmp_path: Path) -> None:
    """SIGTERM with somebody watching and somebody in the middle of a body: it ends in order, as `running` checks."""
    tokens = str(write_tokens(tmp_path / "tokens.toml", TOKENS))
    with running("serve", "--data", str(tmp_path / "data"), SICKBAY_HTTP_TOKENS=tokens) as (http, process):
        assert http.get("/v1/session").json()["roles"] == ["read"]
        with Reader(http.base_url.port or 0) as reader, Reader(http.base_url.port or 0) as half:
            reader.head()
            reader.until(lambda name, _: name == "beat")
            half.socket.sendall(b"POST /v1/outcomes HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n[")
            process.send_signal(signal.SIGTERM)
            assert list(reader.events()) is not None
            process.wait(patience(END_S))


def test_a_token_is_made_once_and_known_by_its_lines(tmp_path: Path) -> None:
    """`sickbay token` prints the token on stderr and lines for the file on stdout, which know it and do not hold it."""
    made = sickbay("token", "router-7", "--roles", "report,read", "--replica", "pod 7")
    secret = made.stderr.split()[-1]
    path = tmp_path / "tokens.toml"
    path.write_text(made.stdout + sickbay("token", 'a "quoted" name').stdout)
    assert secret.startswith("sbk_") and secret not in made.stdout
    first, second = read_tokens(path)
    assert (first.name, first.replica, sorted(first.roles)) == ("router-7", "pod 7", ["read", "report"])
    assert (second.name, sorted(second.roles)) == ('a "quoted" name', ["read"])
    assert Tokens(path).find(secret) == first and Tokens(path).find(secret[:-1]) is None
    for arguments, field in ((("x", "--roles", "root"), "roles"), ((" ",), "name")):
        refused = sickbay("token", *arguments)
        assert refused.returncode == 2 and field in refused.stderr


def test_a_token_is_rotated_while_both_count(tmp_path: Path) -> None:
    """The new one has the name's rights; a third is refused until the older one is out; comments stay."""
    path = tmp_path / "tokens.toml"
    made = sickbay("token", "ana", "--roles", "operate,read", "--replica", "desk")
    path.write_text("# who may act\n" + made.stdout)
    path.chmod(0o600)
    rotated = sickbay("token", "ana", "--rotate", str(path))
    assert rotated.returncode == 0 and rotated.stdout == "" and "both tokens of ana count" in rotated.stderr
    old = made.stderr.split()[-1]
    new = next(word for word in rotated.stderr.split() if word.startswith("sbk_"))
    text, tokens = path.read_text(), Tokens(path)
    assert text.startswith("# who may act\n") and new not in text and path.stat().st_mode & 0o777 == 0o600
    found = [tokens.find(secret) for secret in (old, new)]
    assert [one and (one.name, one.replica, sorted(one.roles)) for one in found] == [
        ("ana", "desk", ["operate", "read"])
    ] * 2
    again = sickbay("token", "ana", "--rotate", str(path))
    assert again.returncode == 2 and "take the first of ana out" in again.stderr and path.read_text() == text
    for arguments, says in ((("bob",), "name"), (("ana", "--roles", "read"), "alone")):
        refused = sickbay("token", *arguments, "--rotate", str(path))
        assert refused.returncode == 2 and says in refused.stderr and path.read_text() == text
    assert sickbay("token", "ana", "--rotate", str(tmp_path / "none")).returncode == 1


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ('name = "ana"\nsha256 = "{}"\nroles = ["read"]\n', "the same roles"),
        ('name = "ana"\nsha256 = "{}"\nroles = ["operate"]\nreplica = "x"\n', "the same roles"),
        ('name = "ana"\n', "sha256"),
    ],
)
def test_a_bad_file_of_tokens_is_refused_before_anything_starts(tmp_path: Path, second: str, says: str) -> None:
    """Not after a server of its own runs: an operator at night restarts, and is told at once."""
    path = tmp_path / "tokens.toml"
    path.write_text(sickbay("token", "ana", "--roles", "operate").stdout + "[[token]]\n" + second.format("ab" * 32))
    data = tmp_path / "data"
    done = sickbay("serve", "--data", str(data), environment={"SICKBAY_HTTP_TOKENS": str(path)})
    assert done.returncode == 2 and says in done.stderr and "ab" * 32 not in done.stderr
    assert not data.exists()


@pytest.mark.parametrize(
    ("http", "anonymous", "roles"),
    [
        ("127.0.0.1:1", "", {"read"}), ("[::1]:1", "", {"read"}), ("localhost:1", "", {"read"}),
        ("0.0.0.0:1", "", set()), ("10.0.0.1:1", "", set()), ("[::]:1", "", set()), ("sickbay.test:1", "", set()),
        ("127.0.0.1:1", "none", set()), ("0.0.0.0:1", "read", {"read"}),
    ],
)  # fmt: skip
def test_nobody_reads_without_a_token_but_on_this_machine(http: str, anonymous: str, roles: set[str]) -> None:
    """Where it listens decides what who has no token may do, unless it is said; never to report or operate."""
    settings = Settings.from_environment({}, http=http, http_anonymous=anonymous or None)
    assert Access(settings, Tokens(None)).anonymous == roles


def test_api_says_what_it_lacks(tmp_path: Path) -> None:
    """No NATS to be found, HTTP off, a file of tokens that is none: a sentence each, no traceback."""
    (tmp_path / "tokens.toml").write_text("x")
    for arguments, code, says in (
        ((), 1, "no NATS is named"),
        (("--nats", "nats://127.0.0.1:1", "--http", "off"), 2, "SICKBAY_HTTP"),
        (("--nats", "nats://127.0.0.1:1", "--tokens", str(tmp_path / "tokens.toml")), 2, "http_tokens"),
        (("--nats", "nats://127.0.0.1:1", "--tokens", str(tmp_path / "none")), 1, "No such file"),
    ):
        done = sickbay("api", *("--http", "127.0.0.1:0") if "--http" not in arguments else (), *arguments)
        assert (done.returncode, says in done.stderr) == (code, True), done.stderr
        assert json.dumps(done.stderr).count("\\n") <= 2
