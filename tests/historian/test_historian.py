"""The historian: whatever happens to it, to its file and to the log, its rows are the log's."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from sqlite_utils import Database

from cli_runs import CLEAN
from histories import history
from history_rig import built, closes_databases, contents, one, opened, subject_of  # noqa: F401 - a fixture
from nats_servers import NatsServer
from sickbay.bus.connect import NatsOptions
from sickbay.bus.jetstream import JetStreamApi
from sickbay.bus.link import Link
from sickbay.bus.topology import LOG, ensure
from sickbay.historian import schema
from sickbay.historian.errors import HistoryRefused, HistoryUnusable, RivalWriter
from sickbay.historian.historian import Historian
from sickbay.historian.store import Book, Keep, Position
from sickbay.log.snapshots import list_snapshots
from sickbay.projector import Projector
from sickbay_events import encode
from sickbay_projections import Recorded
from sickbay_projections.replay.history import Page
from waiting import patience, until


async def publish(client: Client, recorded: Sequence[Recorded]) -> int:
    """Into the log; its last sequence."""
    api = JetStreamApi(client, timeout_s=5.0)
    wanted = (await api.stream_at(LOG)).last_seq
    for each in recorded:
        subject, payload = subject_of(each), encode(each.event)
        if subject.startswith(("sickbay.override", "sickbay.policy")):
            continue  # these lie in the control stream and come by way of it
        await client.publish(subject, payload if each.seq % 97 else b"{no json")
        wanted += 1

    async def stored() -> bool:
        return (await api.stream_at(LOG)).last_seq >= wanted

    await until(stored, "all events are stored")
    return wanted


def position(path: Path) -> int:
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db,
    ):
        return int(db.execute("SELECT seq FROM position").fetchone()[0])
    return -1


@contextlib.asynccontextmanager
async def historian(url: str, path: Path, keep: Keep | None = None) -> AsyncIterator[Historian]:
    link = Link(NatsOptions.from_url(url))
    link.start()
    made = Historian(link, path, keep=keep)
    running = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        made.stop()
        await asyncio.wait_for(running, patience(20))
        await link.close()


async def at(path: Path, seq: int) -> None:
    async def there() -> bool:
        return position(path) >= seq

    await until(there, f"the history is at {seq}")


async def history_of(url: str, path: Path, seq: int) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of a history built from nothing."""
    async with historian(url, path):
        await at(path, seq)
    return contents(opened(path))


class Killable:
    """A historian in a process of its own."""

    def __init__(self, url: str, path: Path) -> None:
        command = [sys.executable, "-m", "sickbay", "historian", "--nats", url, "--history", str(path)]
        self.process = subprocess.Popen([*command, "--log-level", "ERROR"], env=CLEAN)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(patience(20))


@pytest.mark.parametrize("with_projector", [False, True])
async def test_killed_at_random_points_the_rows_are_those_of_a_history_built_from_nothing(
    nats_server: NatsServer,
    nats_client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    with_projector: bool,
) -> None:
    """Each SIGKILL hits another moment: reading, folding, writing. A projector brings snapshots to begin from."""
    await ensure(nats_client, None)
    monkeypatch.setattr("sickbay.projector.maintenance.SNAPSHOT_EVENTS", 400)
    rng, path, url = random.Random(7), tmp_path / "killed.db", nats_server.url
    recorded = history(7, 6000, targets=40)
    link = Link(NatsOptions.from_url(url))
    link.start()
    projector = Projector(link, name="p")
    folding = asyncio.create_task(projector.run()) if with_projector else None
    killed_at = set[int]()
    for begin in range(0, 6000, 1500):
        child = Killable(url, path)
        try:
            await publish(nats_client, recorded[begin : begin + 750])
            before = position(path)
            await until(partial(moved, path, before), "it writes")
            await publish(nats_client, recorded[begin + 750 : begin + 1500])
            await asyncio.sleep(rng.random() * 0.8)
        finally:
            child.end(signal.SIGKILL)
        killed_at.add(position(path))
    last = (await JetStreamApi(nats_client, timeout_s=5.0).stream_at(LOG)).last_seq
    child = Killable(url, path)
    try:
        await at(path, last)
    finally:
        assert child.end(signal.SIGTERM) == 0
    if folding is not None:
        assert await list_snapshots(nats_client), "there was something to begin from"
        projector.stop()
        await folding
    await link.close()
    assert len(killed_at) > 2, "the kills hit different moments"
    rows = contents(opened(path))
    assert rows == await history_of(url, tmp_path / "fresh.db", last)
    assert rows["holds"] and rows["unread"] and rows["calls_by_minute"]


async def moved(path: Path, before: int) -> bool:
    return position(path) > before


async def test_another_log_begins_another_history_and_keeps_the_one_before(
    nats_server: NatsServer, nats_client: Client, tmp_path: Path
) -> None:
    await ensure(nats_client, None)
    path = tmp_path / "history.db"
    async with historian(nats_server.url, path) as running:
        await at(path, await publish(nats_client, history(1, 300)))
        await JetStreamApi(nats_client, timeout_s=5.0).request(f"STREAM.DELETE.{LOG}")
        await ensure(nats_client, None)
        wanted = await publish(nats_client, history(2, 50))

        async def rebuilt() -> bool:
            return running.rebuilds == 1 and position(path) == wanted

        await until(rebuilt, "the history is the new log's")
    before = opened(tmp_path / "history.before-1.db")
    assert one(before, "SELECT seq FROM position") > wanted
    assert contents(opened(path)) == await history_of(nats_server.url, tmp_path / "fresh.db", wanted)


async def test_what_the_log_lost_while_nobody_read_is_said_and_the_rest_is_kept(
    nats_server: NatsServer, nats_client: Client, tmp_path: Path
) -> None:
    """A history reaches further back than the log: it is not thrown away for a gap."""
    await ensure(nats_client, None)
    path = tmp_path / "history.db"
    first = await publish(nats_client, history(1, 200))
    async with historian(nats_server.url, path):
        await at(path, first)
    last = await publish(nats_client, history(2, 200))
    await JetStreamApi(nats_client, timeout_s=5.0).request(f"STREAM.PURGE.{LOG}", {"seq": first + 101})
    async with historian(nats_server.url, path) as running:
        await at(path, last)
        assert running.rebuilds == 0
    db = opened(path)
    assert list(db.query("SELECT * FROM gaps")) == [
        {"first_seq": first + 1, "last_seq": first + 100, "reason": "trimmed"}
    ]
    assert one(db, "SELECT events FROM position") == last - 100


async def test_a_server_that_goes_and_comes_leaves_no_trace_in_the_rows(
    nats_server: NatsServer, nats_client: Client, tmp_path: Path
) -> None:
    await ensure(nats_client, None)
    path = tmp_path / "history.db"
    recorded = history(4, 900)
    async with historian(nats_server.url, path):
        for begin in range(0, 900, 300):
            wanted = await publish(nats_client, recorded[begin : begin + 300])
            nats_server.kill9()
            nats_server.restart()
            await until(partial(answers, nats_client), "the server is back")
        await at(path, wanted)
    assert contents(opened(path)) == await history_of(nats_server.url, tmp_path / "fresh.db", wanted)


async def answers(client: Client) -> bool:
    return bool((await JetStreamApi(client, timeout_s=0.5).stream_at(LOG)).created_at)


async def test_a_second_historian_waits_for_the_first(
    nats_server: NatsServer, nats_client: Client, tmp_path: Path
) -> None:
    await ensure(nats_client, None)
    path = tmp_path / "history.db"
    async with historian(nats_server.url, path) as first:
        await at(path, await publish(nats_client, history(1, 20)))
        async with historian(nats_server.url, path) as second:
            await until(lambda: says(second, "another historian"), "it says why it waits")
            assert second.position.seq == 0
            first.stop()
            await at(path, await publish(nats_client, history(2, 20)))


async def says(running: Historian, text: str) -> bool:
    return text in running.last_error


def test_who_writes_after_another_has_written_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    one_book, other = Book.open(path), Book.open(path)
    one_book.write([Page(1, 1)], Position(seq=1))
    rows = contents(one_book.db)
    with pytest.raises(RivalWriter, match="at 1 and not at 0"):
        other.write([Page(1, 1)], Position(seq=2))
    assert contents(one_book.db) == rows
    for book in (one_book, other):
        book.close()


def test_a_failed_write_leaves_nothing_of_it(tmp_path: Path) -> None:
    """Names that were given in it are given anew afterwards."""
    recorded = history(2, 400)
    path = tmp_path / "history.db"
    book = Book.open(path)
    whole = built(recorded)
    page = Page(1, 1)
    page.scopes["nowhere"] = None
    page.unread["reason"] = [2**70, 1]  # more than an integer holds: SQLite refuses the last statement
    with pytest.raises(OverflowError):
        book.write([page], Position(seq=1))
    book.close()
    again = built(recorded, path=path)
    assert contents(again.db) == contents(whole.db)
    again.close()


def test_a_database_of_the_version_before_is_carried_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its rows stay, what was added since is there, and it is said."""
    path = tmp_path / "history.db"
    connection = sqlite3.connect(path, isolation_level=None)
    schema.migrations.apply(Database(connection), stop_before="m002_search")
    connection.execute("INSERT INTO acts (seq, at_ms, action, reason, actor) VALUES (1, 2, 'hold', 'old words', 'ana')")
    connection.close()
    book = Book.open(path)
    assert [row["seq"] for row in book.db.table("acts").search("words")] == [1]
    assert one(book.db, "SELECT reason FROM operator_acts") == "old words"
    assert "carried over" in caplog.text
    book.close()


def test_a_history_of_a_later_version_or_a_damaged_one_is_no_history_to_go_on_with(tmp_path: Path) -> None:
    path = tmp_path / "later.db"
    book = Book.open(path)
    later = {"migration_set": schema.migrations.name, "name": "m999", "applied_at": "x"}
    book.db.table("_sqlite_migrations").insert(later)
    book.close()
    with pytest.raises(HistoryUnusable, match="later version"):
        Book.open(path)
    damaged = tmp_path / "damaged.db"
    built(history(1, 500), path=damaged).close()
    data = bytearray(damaged.read_bytes())
    data[200:] = bytes(len(data) - 200)
    damaged.write_bytes(data)
    with pytest.raises(HistoryUnusable):
        Book.open(damaged)


async def test_a_damaged_history_is_set_aside_and_built_anew(
    nats_server: NatsServer, nats_client: Client, tmp_path: Path
) -> None:
    await ensure(nats_client, None)
    wanted = await publish(nats_client, history(1, 300))
    path = tmp_path / "history.db"
    rows = await history_of(nats_server.url, path, wanted)
    data = bytearray(path.read_bytes())
    data[200:] = bytes(len(data) - 200)
    path.write_bytes(data)
    assert await history_of(nats_server.url, path, wanted) == rows
    assert (tmp_path / "history.before-1.db").read_bytes() == data


@pytest.mark.parametrize("made", ["another", "text"])
def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path, made: str) -> None:
    path = tmp_path / "mine.db"
    if made == "another":
        opened(path).table("precious").insert({"a": 1})
    else:
        path.write_text("a" * 5000)
    data = path.read_bytes()
    with pytest.raises(HistoryRefused, match=r"something else|no database") as refused:
        Book.open(path)
    assert not isinstance(refused.value, HistoryUnusable)
    assert path.read_bytes() == data


def test_a_reader_in_the_middle_of_a_query_does_not_stop_the_writer(tmp_path: Path) -> None:
    """Datasette or a person's shell may be reading; what it reads is one moment of the log."""
    path = tmp_path / "history.db"
    recorded = history(3, 600)
    built(recorded[:300], path=path).close()
    reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    reader.execute("BEGIN")
    before = reader.execute("SELECT seq FROM position").fetchone()
    book = Book.open(path)
    began_s = time.monotonic()
    book.write([Page(301, 1)], Position(seq=301))
    assert time.monotonic() - began_s < patience(5)
    assert reader.execute("SELECT seq FROM position").fetchone() == before
    reader.close()
    book.close()


@pytest.mark.parametrize("harm", ["delete", "replace", "damage"])
async def test_harm_to_the_file_is_noticed_while_it_is_written(
    nats_server: NatsServer, nats_client: Client, tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite goes on to write a file without a name, and reads damaged pages from its memory."""
    monkeypatch.setattr("sickbay.historian.store.CHECK_MIN_S", 0.0)
    monkeypatch.setattr("sickbay.historian.store.CHECK_SHARE", 0)  # a busy machine's slow look would put the next off
    await ensure(nats_client, None)
    wanted = await publish(nats_client, history(1, 300))
    path = tmp_path / "history.db"
    async with historian(nats_server.url, path):
        await at(path, wanted)
        if harm == "delete":
            for part in ("", "-wal", "-shm"):
                path.with_name(path.name + part).unlink(missing_ok=True)
        elif harm == "replace":
            path.replace(tmp_path / "elsewhere.db")
            opened(path).table("nothing").insert({"a": 1})
            path.unlink()
        else:
            with contextlib.closing(sqlite3.connect(path)) as other:
                other.execute("PRAGMA wal_checkpoint(FULL)").fetchall()
            data = bytearray(path.read_bytes())
            data[4096:] = bytes(byte ^ 0x55 for byte in data[4096:])
            path.write_bytes(data)
        last = await publish(nats_client, history(2, 50))
        await at(path, last)
    found = contents(opened(path))
    assert found == await history_of(nats_server.url, tmp_path / "again.db", last)
