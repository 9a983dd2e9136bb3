"""Changes as they come, by server-sent events: all of them, to everybody who reads, for as long as it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from http_rig import TOKENS, House, Reader, by, write_tokens
from sickbay.api.watch import BACKLOG_BYTES_MAX, KEPT, Watcher
from sickbay.bus.connect import connect_client
from waiting import patience, until_sync

SLOW_S = 5.0
ROUNDS = 24
"""Of 400 kB each: more than the system keeps for a socket that nobody reads."""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with House(tmp_path_factory.mktemp("http")) as running:
        yield running


def is_entry(model: str, *, gone: bool | None = None) -> Any:
    def wanted(name: str, data: dict[str, Any]) -> bool:
        return name == "entry" and data["model"] == model and (gone is None or bool(data.get("gone")) == gone)

    return wanted


def is_transition(model: str, sort: str) -> Any:
    return lambda name, data: name == "transition" and (data["model"], data["type"]) == (model, sort)


def is_beat(name: str, _data: dict[str, Any]) -> bool:
    return name == "beat"


def test_who_comes_gets_what_stands_and_then_every_change(house: House) -> None:
    """First a reset and all that stands, then entry and transition of a hold, a beat each second."""
    house.held("before")
    with Reader(house.port) as reader:
        head = reader.head()
        assert " 200 " in head and "text/event-stream" in head and "no-store" in head and "nosniff" in head
        first = reader.until(is_beat)
        assert first[0][0] == "reset"
        standing = next(data for name, _, data in first if is_entry("before")(name, data))
        assert standing["holds"][0]["rule"] == "operator" and standing["holds"][0]["until"] and standing["key"]
        house.held("after")
        told = reader.until_all(is_entry("after"), is_transition("after", "held"))
        held = next(data for name, _, data in told if is_transition("after", "held")(name, data))
        assert (held["type"], held["rule"], held["actor"]) == ("held", "operator", "ana") and held["key"]
        began = time.monotonic()
        beats = [reader.until(is_beat)[-1] for _ in range(3)]
        assert 1.5 < time.monotonic() - began < patience(6)
        assert beats[-1][2]["age_s"] < 3 and beats[-1][2]["source"] == "cluster"
        ids = [number for _, number, _ in [*told, *beats]]
        assert ids == sorted(ids) and ids[-1] == beats[-1][2]["seq"]


def test_who_comes_back_gets_what_it_missed(house: House) -> None:
    """After its last event: no reset, and what changed meanwhile, once or again. With one that nobody knows: anew."""
    with Reader(house.port) as reader:
        reader.head()
        reader.until(is_beat)
        last = reader.last_id
    house.held("missed")
    with Reader(house.port, last_id=last) as reader:
        reader.head()
        again = reader.until(is_beat)
        assert again[0][0] != "reset" and any(is_entry("missed")(name, data) for name, _, data in again)
    for unknown in ("999999999", "-1", "nonsense", f"{last.partition('-')[0]}-of-another-process"):
        with Reader(house.port, last_id=unknown) as reader:
            reader.head()
            assert next(reader.events())[0] == "reset"


@pytest.mark.parametrize(("limit", "value"), [("streaming.SEND_S", 0.5), ("watch.BACKLOG_BYTES_MAX", 1 << 20)])
def test_who_does_not_read_is_dropped_and_nobody_waits_for_it(
    house: House, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    """A reader that takes nothing is let go of, by time or by what waits for it; one that reads gets all of it."""
    monkeypatch.setattr(f"sickbay.api.{limit}", value)

    async def flood(number: int) -> None:
        client = await connect_client(house.nats.url)
        try:
            for _ in range(100):
                await client.publish("sickbay.warning.h.=.m", b'{"type":"warning","text":"%s"}' % (b"x" * 4_000))
            await client.publish("sickbay.warning.h.=.m", b'{"type":"warning","text":"round %d"}' % number)
            await client.flush(10)
        finally:
            await client.close()

    with Reader(house.port, receive_bytes=4_096) as slow, Reader(house.port) as quick:
        quick.head()
        until_sync(lambda: house.api.desk.hub.watchers == 2, "both watch")
        for number in range(ROUNDS):
            asyncio.run(flood(number))
            began = time.monotonic()
            quick.until(lambda _, data, number=number: data.get("text") == f"round {number}")  # type: ignore[misc]
            assert time.monotonic() - began < patience(SLOW_S)
        until_sync(lambda: house.api.desk.hub.watchers == 1, "the slow one is dropped")
        quick.until(is_beat)
        assert slow.socket.fileno() > 0
    until_sync(lambda: house.api.desk.hub.watchers == 0, "who left is forgotten")


def test_who_is_cut_off_before_all_that_stands_has_come_begins_anew(house: House) -> None:
    """What stands has no id of its own: a reader that has half of it would else come back and never get the rest."""
    house.held("standing")
    with Reader(house.port) as reader:
        reader.head()
        for name, _, data in reader.events():
            assert reader.last_id == ""
            if is_entry("standing")(name, data):
                break
        reader.until(is_beat)
        assert reader.last_id


def test_much_that_stands_is_no_backlog() -> None:
    """Who is new gets all of it, however much, and it lies in memory once for all who are."""
    stands = (b"x" * 1_000_000,) * (2 * BACKLOG_BYTES_MAX // 1_000_000)
    watcher = Watcher(stands)
    watcher.put(b"beat")
    taken = list(iter(watcher.take, b""))
    assert not watcher.is_over and sum(map(len, taken)) == sum(map(len, stands)) + 4


def test_who_may_not_read_any_more_hears_no_more(house: House) -> None:
    """A stream ends within seconds when its token is taken out of the file; another one's goes on."""
    with Reader(house.port, who="rita") as withdrawn, Reader(house.port, who="ana") as other:
        for reader in (withdrawn, other):
            reader.head()
            reader.until(is_beat)
        write_tokens(house.tokens, {name: row for name, row in TOKENS.items() if name != "rita"})
        try:
            began = time.monotonic()
            assert all(time.monotonic() - began < patience(5) for _ in withdrawn.events())
            assert time.monotonic() - began < patience(5)
            other.until(is_beat)
        finally:
            write_tokens(house.tokens, TOKENS)
            until_sync(lambda: house.http.get("/v1/session", headers=by("rita")).status_code == 200, "she is back")


def test_a_crowd_without_a_token_leaves_room_for_those_with_one(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last places are for those who have signed in."""
    monkeypatch.setattr("sickbay.api.watch.WATCHERS_MAX", 1)
    monkeypatch.setattr("sickbay.api.watch.WATCHERS_NAMED", 1)
    refused = house.http.get("/v1/watch")
    assert refused.status_code == 503 and refused.headers["retry-after"] == "10"
    with Reader(house.port) as reader:
        assert " 200 " in reader.head()


def test_it_goes_on_over_an_outage(tmp_path: Path) -> None:
    """While NATS is away beats say stale with the age; what changes after it is told to those who watched before."""
    with House(tmp_path) as house, Reader(house.port) as reader:
        reader.head()
        reader.until(is_beat)
        house.nats.kill9()
        stale = reader.until(lambda name, data: name == "beat" and data["source"] == "stale")[-1][2]
        assert stale["age_s"] >= 2
        house.nats.restart()
        again = reader.until(lambda name, data: name == "beat" and data["source"] == "cluster")
        # What was told meanwhile did not come here: who watches is told to begin anew.
        assert any(name == "reset" for name, _, _ in again)
        house.held("later")
        reader.until_all(is_entry("later"), is_transition("later", "held"))


def test_it_ends_with_its_process(tmp_path: Path) -> None:
    """An open stream holds nobody up: it ends in order, and the process with it, at once."""
    with House(tmp_path) as house:
        reader = Reader(house.port)
        reader.head()
        reader.until(is_beat)
        began = time.monotonic()
    with reader:
        rest = list(reader.events())
    assert time.monotonic() - began < patience(4) and len(rest) < KEPT
