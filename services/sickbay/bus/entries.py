"""Reading a bucket's current entries: all of them by pages, or one.

Both use direct get, which needs no consumer and no right on the JetStream API but `$JS.API.DIRECT.GET.<stream>`.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import msgspec
from nats.aio.client import Client

from .bulk import Item, header_status, header_value, status_text, subscribe_bulk
from .connect import BusError
from .jetstream import parse_rfc3339_ns

PAGE_ENTRIES = 1_000
_IDENTITY = re.compile(rb"\r\nNats-Subject: ([^\r\n]*)\r\nNats-Sequence: (\d+)\r\nNats-Time-Stamp: ([^\r\n]*)\r\n")


class ReadError(BusError):
    """A bucket could not be read; the message says why. `status` is the server's (0: no answer)."""

    def __init__(self, stream: str, status: int, why: str) -> None:
        self.stream = stream
        self.status = status
        super().__init__(f"{stream} could not be read: {why}")


class BucketEntry(msgspec.Struct, frozen=True, gc=False):
    """The current message of one key. `subject` in full (`$KV.<bucket>.<key>`), `revision` its sequence, `time`
    the server's RFC 3339 time as it stands in the header, `payload`, `headers` the raw block."""

    subject: bytes
    revision: int
    time: bytes
    payload: bytes
    headers: bytes

    @property
    def gone(self) -> bool:
        """It is no value but the trace of one: deleted, purged, or ended by its TTL."""
        return (
            header_value(self.headers, b"KV-Operation") in (b"DEL", b"PURGE")
            or header_value(self.headers, b"Nats-Marker-Reason") is not None
        )

    @property
    def time_ns(self) -> int:
        """`time` as nanoseconds since the epoch."""
        return parse_rfc3339_ns(self.time.decode())


class Entries(msgspec.Struct, frozen=True):
    """All entries under a subject, by rising revision, traces of deleted ones included. `last_seq` is the revision of
    the newest (0: there is none): every change of these keys up to it is in them. A key that changed while pages were
    read may appear twice; the later one counts."""

    entries: list[BucketEntry]
    last_seq: int


async def read_entries(
    client: Client, stream: str, subject: str, *, timeout_s: float = 2.0, page: int = PAGE_ENTRIES, from_seq: int = 1
) -> Entries:
    """Page through the current entries of `stream` under `subject` (e.g. `KV_sickbay`, `$KV.sickbay.gate.>`).

    With `from_seq` only those that changed at or after that sequence. The stream must keep one message a subject.
    Raises `ReadError` when there is no such stream, a page does not come within `timeout_s`, or the connection changed
    meanwhile: what was sent on the one before is lost.
    """
    pager = _Pager(client, stream)
    subscription = await subscribe_bulk(client, pager.inbox, pager.on_items)
    try:
        seq = from_seq
        while True:
            body = {"seq": seq, "next_by_subj": subject, "batch": page}
            more = await pager.page(body, timeout_s)
            if not more:
                return Entries(pager.entries, pager.entries[-1].revision if pager.entries else 0)
            seq = pager.entries[-1].revision + 1
    finally:
        await subscription.close()


async def read_entry(client: Client, stream: str, subject: str, *, timeout_s: float = 1.0) -> BucketEntry | None:
    """The current entry of one subject, or None if it has none. In a cluster any replica may answer, so it can
    be a moment old. Raises `ReadError`."""
    pager = _Pager(client, stream)
    subscription = await subscribe_bulk(client, pager.inbox, pager.on_items)
    try:
        await pager.page({"last_by_subj": subject}, timeout_s, single=True)
        return pager.entries[0] if pager.entries else None
    finally:
        await subscription.close()


async def read_page(client: Client, stream: str, body: dict[str, Any], *, timeout_s: float) -> list[BucketEntry]:
    """One page of a stream as `body` asks for it, which has a `batch`: by sequence, subject or `start_time`. Each
    entry's headers say in Nats-Num-Pending how many come after it. Raises `ReadError`."""
    pager = _Pager(client, stream)
    subscription = await subscribe_bulk(client, pager.inbox, pager.on_items)
    try:
        await pager.page(body, timeout_s)
        return pager.entries
    finally:
        await subscription.close()


class _Pager:
    def __init__(self, client: Client, stream: str) -> None:
        self.inbox = client.new_inbox()
        self.entries: list[BucketEntry] = []
        self._client = client
        self._stream = stream
        self._single = False
        self._done: asyncio.Future[bool] | None = None

    async def page(self, body: dict[str, Any], timeout_s: float, *, single: bool = False) -> bool:
        """Ask for one page and wait for its end; True if there may be more."""
        self._single = single
        self._done = asyncio.get_running_loop().create_future()
        reconnects = self._client.stats["reconnects"]
        subject = f"$JS.API.DIRECT.GET.{self._stream}"
        await self._client.publish(subject, json.dumps(body).encode(), reply=self.inbox)
        try:
            more = await asyncio.wait_for(self._done, timeout_s)
        except TimeoutError:
            raise ReadError(self._stream, 0, f"no answer in {timeout_s} s (gone away, or no permission)") from None
        if self._client.stats["reconnects"] != reconnects or not self._client.is_connected:
            raise ReadError(self._stream, 0, "the connection was lost while a page came")
        return more

    def on_items(self, items: list[Item]) -> None:
        """The sink: entries and, at the end of a page, a status."""
        done = self._done
        if done is None or done.done():
            return
        for _, _, headers, payload in items:
            status = header_status(headers)
            if status:
                self._end(done, status, headers or b"")
                return
            match = _IDENTITY.search(headers or b"")
            if match is None or headers is None:
                done.set_exception(ReadError(self._stream, 0, "an answer without sequence: the server is too old"))
                return
            self.entries.append(BucketEntry(match[1], int(match[2]), match[3], payload, headers))
            if self._single:
                done.set_result(False)
                return

    def _end(self, done: asyncio.Future[bool], status: int, headers: bytes) -> None:
        if status == 204:
            done.set_result(int(header_value(headers, b"Nats-Num-Pending") or 0) > 0)
        elif status == 404:
            done.set_result(False)
        elif status == 503:
            done.set_exception(ReadError(self._stream, status, "no such stream, or it does not allow direct get"))
        else:
            done.set_exception(ReadError(self._stream, status, status_text(headers) or str(status)))
