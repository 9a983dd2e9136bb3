"""Alerts as pure code, and one message sent once: to a real receiver on loopback, and to real commands."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import json
import logging
import re
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from alert_receiver import CLOSE, HANG, SECRET, Receiver
from cli_runs import sickbay
from paths import ROOT
from sickbay.alerts.grouping import WAITING_MAX, AlertBatch, Grouping, Waiting
from sickbay.alerts.message import TEXT_MAX, AlertMessage, message_of, sample_message, slack_body
from sickbay.alerts.send import Failed, alert_client, send
from sickbay.alerts.settings import Alerts, Way, is_wanted, read_alerts
from sickbay.alerts.settings import Receiver as Wanted
from sickbay.invalid import InvalidValue
from waiting import patience, until

ONE = Wanted(name="room", kind="slack")


def held(number: int, **fields: Any) -> dict[str, Any]:
    """A transition as the log of transitions has it."""
    return {
        "type": "held",
        "provider": "h",
        "model": f"m{number}",
        "rule": "breaker",
        "until": "2026-11-30T00:01:00Z",
        "at": f"2026-11-30T00:00:{number % 60:02d}Z",
        "id": f"log:{number}",
        "cause_seq": number,
        "time_ms": number,
        "kind": "timeout",
        **fields,
    }


def grouping(**settings: Any) -> Grouping:
    return Grouping(Alerts(receiver=[ONE], **settings), 0.0)


def test_two_hundred_holds_of_one_host_are_one_message() -> None:
    """Those within the window are one message with the count and the first ten named; another host's is its own."""
    found = grouping(window_s=30)
    for number in range(200):
        assert found.add(held(number, provider=f"h#team-{number % 3}"), f"ack{number}", number / 100)
    found.add(held(500, provider="other"), "ack500", 1.0)
    assert found.due(29.9) is None and found.next_s(29.9) == 30.0
    batch = found.due(30.0)
    assert batch is not None and found.due(30.0) is None
    message = message_of(batch, 10)
    assert (message.type, message.host, message.count, message.counts) == ("held", "h", 200, {"held": 200})
    assert [alert["model"] for alert in message.alerts] == [f"m{number}" for number in range(10)]
    assert "200 held: h" in message.text and "and 190 more" in message.text
    assert found.done(delivered=True) == [f"ack{number}" for number in range(200)]
    other = found.due(31.0)
    assert other is not None and message_of(other, 10).host == "other"


def test_what_the_rate_limit_holds_back_is_told_as_one_message_with_its_count() -> None:
    """With no token left nothing goes out; with the next one a single message tells of all that waited."""
    found = grouping(window_s=0, burst=2, per_hour=60)
    for number in range(2):
        found.add(held(number, provider=f"h{number}"), "", 0.0)
        assert found.due(0.0) is not None
        found.done(delivered=True)
    for number in range(10, 15):
        found.add(held(number, provider=f"h{number}"), f"ack{number}", 1.0)
    assert found.due(1.0) is None
    assert found.next_s(1.0) == pytest.approx(60.0)
    batch = found.due(60.1)
    assert batch is not None
    message = message_of(batch, 3)
    assert (message.host, message.count, message.held_back, len(message.alerts)) == (None, 5, 5, 3)
    assert "5 held: 5 hosts" in message.text and "held back by the limit" in message.text
    assert len(found.done(delivered=True)) == 5 and found.next_s(60.1) is None


def test_an_alert_that_comes_again_is_told_once() -> None:
    """While it waits, a redelivery only renews its handle; once it was told, the redelivery is acknowledged at once."""
    found = grouping(window_s=1)
    assert found.add(held(1), "first", 0.0) and found.add(held(1), "second", 0.5)
    batch = found.due(1.0)
    assert batch is not None and [one.handle for one in batch.alerts] == ["second"]
    assert found.add(held(1), "third", 1.1), "under way is not yet told"
    assert found.waiting == 0 and found.done(delivered=True) == ["third"]
    assert not found.add(held(1), "fourth", 2.0) and found.handles == []


def test_what_could_not_be_delivered_is_counted_in_the_next_message() -> None:
    """A message that was given up is not silence: the next one that arrives says how many alerts were lost."""
    found = grouping(window_s=0)
    found.add(held(1), "", 0.0)
    assert found.due(0.0) is not None
    found.done(delivered=False)
    found.add(held(2), "", 1.0)
    batch = found.due(1.0)
    assert batch is not None and message_of(batch, 1).not_delivered == 1
    assert "1 alert before could not be delivered" in message_of(batch, 1).text
    found.done(delivered=True)
    found.add(held(3), "", 2.0)
    last = found.due(2.0)
    assert last is not None and last.lost == 0


def test_a_flood_does_not_wait_for_its_window() -> None:
    """What waits is bounded: once it is full, no window is waited for."""
    found = grouping(window_s=3_600)
    for number in range(WAITING_MAX - 1):
        found.add(held(number), "", 0.0)
    assert found.due(1.0) is None
    found.add(held(WAITING_MAX), "", 1.0)
    batch = found.due(1.0)
    assert batch is not None and len(batch.alerts) == WAITING_MAX


def test_what_is_not_told_is_handed_back() -> None:
    """When another process takes over, everything but the message under way is its to tell."""
    found = grouping(window_s=0)
    found.add(held(1), "one", 0.0)
    assert found.due(0.0) is not None
    found.add(held(2), "two", 0.0)
    assert found.drop() == ["two"] and found.handles == ["one"]


@pytest.mark.parametrize(
    ("receiver", "fact", "wanted"),
    [
        ({}, held(1), True),
        ({}, {"type": "health", "provider": "h"}, False),
        ({"types": ["released"]}, held(1), False),
        ({"rules": ["quarantine"]}, held(1), False),
        ({"rules": ["breaker"]}, held(1), True),
        ({"providers": ["h"]}, held(1, provider="h#team"), True),
        ({"providers": ["h#team"]}, held(1, provider="h#team"), True),
        ({"providers": ["h#other"]}, held(1, provider="h#team"), False),
        ({}, held(5, old_end_ms=4), True),
        ({}, held(5, old_end_ms=6), False),
    ],
)
def test_a_receiver_gets_what_it_asked_for(receiver: dict[str, Any], fact: dict[str, Any], wanted: bool) -> None:
    """By type, rule and provider; a hold whose end was only moved is no news, one that begins again is."""
    text = '[[alerts.receiver]]\nname = "a"\nkind = "command"\nargv = ["true"]\n'
    text += "".join(f"{key} = {json.dumps(value)}\n" for key, value in receiver.items())
    assert is_wanted(read_alerts(text)[0].receiver[0], fact) is wanted


@pytest.mark.parametrize(
    ("line", "key", "says"),
    [
        ('kind = "slack"\nurl = "https://hooks.example/T0/SECRETSECRET"', "url", "env:NAME"),
        ('kind = "slack"\nurl = "env:ABSENT"', "url", "that is set"),
        ('kind = "webhook"\nurl = "https://x.example"', "secret", "env:NAME"),
        ('kind = "webhook"\nurl = "https://x.example"\nsecret = "SECRETSECRET"', "secret", "env:NAME"),
        ('kind = "webhook"\nurl = "https://x.example"\nsecret = "env:WEAK"', "secret", "whsec_"),
        ('kind = "webhook"\nurl = "https://u:SECRETSECRET@x.example"\nsecret = "env:KEY"', "url", "without user"),
        ('kind = "webhook"\nurl = "ftp://x.example"\nsecret = "env:KEY"', "url", "http"),
        ('kind = "command"', "argv", "as a list"),
        ('kind = "command"\nargv = ["true"]\nsecret = "env:KEY"', "secret", "nothing"),
        ('kind = "pager"', "kind", "Invalid enum value"),
        ('kind = "command"\nargv = ["true"]\ntypes = ["helt"]', "types", "Invalid enum value"),
        ('kind = "command"\nargv = ["true"]\nlimit_s = 0', "limit_s", "0.1"),
        ('kind = "command"\nargv = ["true"]\ncolour = 1', "receiver[0]", "unknown field"),
        ('kind = "webhook"\nurl = "https://x/"\ntoken = "SECRETSECRET"', "receiver[0]", "unknown field `token`"),
        ('url = "https://x.example/SECRETSECRET"', "receiver[0]", "missing required field `kind`"),
        ('kind = "command"\nargv = "https://x.example/SECRETSECRET"', "argv", "Expected `array`"),
        ('kind = "slack"\n[alert]\nurl = "https://x.example/SECRETSECRET"', "alert", "nothing else"),
    ],
)
def test_a_file_that_cannot_be_is_refused_by_its_key(line: str, key: str, says: str) -> None:
    """The error names key and accepted form, and repeats no secret."""
    with pytest.raises(InvalidValue) as refused:
        read_alerts(f'[[alerts.receiver]]\nname = "a"\n{line}\n', {"KEY": SECRET, "WEAK": "hunter2"})
    assert key in refused.value.what and says in str(refused.value)
    assert "SECRETSECRET" not in str(refused.value) and "hunter2" not in str(refused.value)


def test_a_name_from_outside_is_text_and_no_mention() -> None:
    """A model id may be anything: in a chat room it is neither a mention nor a link, and it stays on its line."""
    found = grouping(window_s=0)
    found.add(
        held(1, model="<!channel> <https://evil|x>\nsecond line & more", reason="x" * 9_000, actor="ana"), "", 0.0
    )
    batch = found.due(0.0)
    assert batch is not None
    text = slack_body(message_of(batch, 10))["text"]
    assert "<" not in text and "‹!channel›" in text and "\n" not in text and len(text) < TEXT_MAX


@pytest.mark.parametrize("where", ["provider", "model", "reason", "actor", "replica", "route", "signature"])
@pytest.mark.parametrize("name", ["@all", "[click](https://evil.test/)", "https://evil.test/login", "a\nb\x1b\u202e"])
def test_whatever_is_named_calls_nobody_and_leads_nowhere(where: str, name: str) -> None:
    """In every text of a message, also in that of a webhook, which a command may pass on to a room."""
    plain = {"provider": "h", "model": "m", "rule": "replica_suspect", "time_ms": 0}
    facts: list[dict[str, Any]] = [
        {**plain, "id": "1", "type": "warning", where: name},
        {**plain, "id": "2", "type": "held", "until": "x", "actor": "ana", "reason": "r", where: name},
        {**plain, "id": "3", "type": "released", "by": "clear", "actor": "ana", "reason": "r", where: name},
    ]
    found = message_of(AlertBatch([Waiting(fact, "") for fact in facts], 0, 0), 10)
    for text in (found.text, slack_body(found)["text"]):
        assert all(line.isprintable() for line in text.split("\n")) and len(text.split("\n")) == 4
        assert not any(part in text for part in ("@", "](", "://"))
    assert found.alerts[0][where] == name, "a machine gets the exact name"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


def _way(receiver: Receiver, path: str = "/hook/T0SECRETPATH") -> Way:
    return Way("http://127.0.0.1", receiver.url + path, base64.b64decode(SECRET.removeprefix("whsec_")))


async def test_a_webhook_is_signed_as_documented(receiver: Receiver) -> None:
    """Who has the secret can tell by id, time and body that it came from here, and how old it is."""
    async with alert_client() as http:
        said = await send(http, Wanted(name="a", kind="webhook"), _way(receiver), sample_message(5))
    got = receiver.next()
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    content = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
    expected = "v1," + base64.b64encode(hmac.new(key, content, sha256).digest()).decode()
    assert got.headers["webhook-signature"] == expected and said == "HTTP 200 ok"
    assert abs(int(got.headers["webhook-timestamp"]) - time.time()) < 60
    assert got.data["type"] == "test" and got.data["id"] == got.headers["webhook-id"]


async def test_the_page_s_own_check_of_a_signature_and_its_file_are_right(receiver: Receiver) -> None:
    """What docs/alerts.md shows to copy accepts what is sent, refuses what was changed, and its file is read."""
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (file,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    found, _ = read_alerts(file, {"SLACK_HOOK": "https://hooks.example/x", "PAGER_SECRET": SECRET})
    assert [one.kind for one in found.receiver] == ["slack", "webhook", "command"]
    defaults = Alerts(receiver=found.receiver)
    assert found == defaults, "what the page calls defaults are the code's"
    there: dict[str, Any] = {}
    exec(code, there)
    async with alert_client() as http:
        await send(http, Wanted(name="a", kind="webhook"), _way(receiver), sample_message(5))
    got = receiver.next()
    assert there["is_from_sickbay"](SECRET, got.headers, got.body)
    assert not there["is_from_sickbay"](SECRET, got.headers, got.body + b" ")
    assert not there["is_from_sickbay"](SECRET, {**got.headers, "webhook-timestamp": "1"}, got.body)


@pytest.mark.parametrize(
    ("answer", "says", "final"),
    [(500, "HTTP 500", False), (404, "HTTP 404", False), (400, "HTTP 400", True), (302, "HTTP 302", False),
     (CLOSE, "RemoteProtocolError", False), (HANG, "no answer in 1 s", False)],
)  # fmt: skip
async def test_what_is_not_taken_says_why_and_never_the_url(
    receiver: Receiver, answer: int, says: str, final: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Statuses, cut connections and silence: each named, bounded in time, without the secret path, in the log too."""
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpx").setLevel(logging.DEBUG)
    receiver.always, receiver.headers = answer, {"location": receiver.url + "/elsewhere"}
    receiver.says = b"Cannot POST /hook/T0SECRETPATH"  # as many servers answer
    async with alert_client() as http:
        with pytest.raises(Failed) as failed:
            await send(http, Wanted(name="a", kind="slack", limit_s=1), _way(receiver), sample_message(5))
    assert says in failed.value.why and failed.value.final is final
    assert receiver.next().path == "/hook/T0SECRETPATH" and receiver.got.empty(), "a redirect is not followed"
    assert "SECRETPATH" not in failed.value.why + caplog.text


async def test_a_receiver_may_say_when_to_come_again(receiver: Receiver) -> None:
    """Retry-After in seconds or as a date, as HTTP has it."""
    receiver.always = 429
    waits = []
    async with alert_client() as http:
        for text in ("7", "Mon, 30 Nov 2026 00:00:09 GMT", "soon"):
            receiver.headers = {"retry-after": text, "date": "Mon, 30 Nov 2026 00:00:00 GMT"}
            with pytest.raises(Failed) as failed:
                await send(http, Wanted(name="a", kind="slack"), _way(receiver), sample_message(5))
            waits.append(failed.value.retry_after_s)
    assert waits == [7.0, 9.0, None]


async def test_a_receiver_that_is_not_there_is_a_failure_with_a_cause() -> None:
    """A closed port says so at once."""
    way = Way("http://127.0.0.1:1", "http://127.0.0.1:1/SECRETPATH")
    async with alert_client() as http:
        with pytest.raises(Failed, match="ConnectError") as failed:
            await send(http, Wanted(name="a", kind="slack"), way, sample_message(5))
    assert "SECRETPATH" not in failed.value.why


def command(*argv: str, **fields: Any) -> Wanted:
    return Wanted(name="c", kind="command", argv=list(argv), **fields)


async def run(receiver: Wanted, message: AlertMessage | None = None) -> str:
    async with httpx.AsyncClient() as http:
        return await send(http, receiver, Way(receiver.argv[0]), message or sample_message(5))


async def test_a_command_gets_the_message_and_no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON on its standard input, no shell, and of the environment only what it needs and was named."""
    monkeypatch.setenv("SICKBAY_NATS", "nats://services:secret@x")
    monkeypatch.setenv("PAGER_TOKEN", "t")
    out = tmp_path / "out.json"
    code = (
        "import json, os, sys; json.dump([json.load(sys.stdin), dict(os.environ), sys.argv[2]], open(sys.argv[1], 'w'))"
    )
    one = command(sys.executable, "-c", code, str(out), "$HOME; `id`", environment=["PAGER_TOKEN"])
    assert await run(one) == "ended with code 0"
    message, environment, word = json.loads(out.read_text())
    assert message["type"] == "test" and word == "$HOME; `id`"
    assert environment["PAGER_TOKEN"] == "t" and not [name for name in environment if name.startswith("SICKBAY")]


def _open_pipes() -> set[str]:
    """Pipes that this process has open, by their kernel's name."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(str(path.readlink()))
    return {name for name in found if name.startswith("pipe:")}


def _alive(group: int) -> list[str]:
    """The processes of a group that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
            found += [path.parent.name] if int(its_group) == group and state != "Z" else []
    return found


async def test_a_command_that_fails_hangs_or_is_not_there_says_so(tmp_path: Path) -> None:
    """Its code with what it complained of, redacted; a hang ends with all that it started."""
    before = _open_pipes()
    with pytest.raises(Failed, match="code 3 no such pager"):
        await run(command("sh", "-c", "echo no such pager sk-abcdefghijklmnop >&2; exit 3"))
    with pytest.raises(Failed) as failed:
        await run(command("sh", "-c", "echo key sk-abcdefghijklmnop >&2; exit 3"))
    assert "abcdefgh" not in failed.value.why
    with pytest.raises(Failed, match="cannot be run: No such file"):
        await run(command("/no/such/pager"))
    assert await run(command("setsid", "-f", "sleep", "5")) == "ended with code 0"
    await asyncio.sleep(0)  # transports are closed in the loop's next turn
    assert not _open_pipes() - before, "what went into a session of its own keeps no pipe of ours"
    group = tmp_path / "group"
    began = time.monotonic()
    with pytest.raises(Failed, match=r"no answer in 0\.5 s"):
        await run(command("sh", "-c", f"echo $$ > {group}; sleep 60 & yes >&2", limit_s=0.5))
    assert time.monotonic() - began < patience(10), "it is not waited for"
    await until(lambda: not _alive(int(group.read_text())), "what it started ends with it")


def test_alerts_test_says_what_each_receiver_answered(receiver: Receiver, tmp_path: Path) -> None:
    """One test message to each: taken or not, and why; the exit code is 1 if one was not; no secret is printed."""
    file = tmp_path / "alerts.toml"
    file.write_text(
        '[[alerts.receiver]]\nname = "room"\nkind = "slack"\nurl = "env:HOOK"\n'
        f'[[alerts.receiver]]\nname = "hook"\nkind = "webhook"\nurl = "{receiver.url}/in"\nsecret = "env:KEY"\n'
        '[[alerts.receiver]]\nname = "pager"\nkind = "command"\nargv = ["false"]\n'
    )
    environment = {"HOOK": f"{receiver.url}/SECRETPATH", "KEY": SECRET}
    receiver.says = b"no_service"
    done = sickbay("alerts", "test", str(file), environment=environment)
    assert done.returncode == 1 and "NOT taken" in done.stdout and "no_service" in done.stdout
    assert "SECRETPATH" not in done.stdout + done.stderr and SECRET not in done.stdout
    found = json.loads(sickbay("alerts", "test", str(file), "--json", environment=environment).stdout)
    assert [(one["name"], one["ok"]) for one in found["receivers"]] == [
        ("room", True),
        ("hook", True),
        ("pager", False),
    ]
    assert {receiver.next().path for _ in range(4)} == {"/SECRETPATH", "/in"}
    missing = sickbay("alerts", "test", "/no/such.toml")
    assert missing.returncode == 2 and "SICKBAY_ALERTS" in missing.stderr
