"""Reading from NATS in bulk: one callback for all messages of a subscription that arrived together.

nats-py builds an object and passes a queue for each message, which limits a reader to some 20,000 messages a
second. The parser here replaces the client's own (the private `_ps`, so the minor version of nats-py is
pinned) and behaves the same, except for subscriptions that asked for bulk delivery.

    bulk = await subscribe_bulk(client, "sickbay.view.>", on_items)     # on_items(items), called in the loop
    ...
    await bulk.close()
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.errors import ProtocolError
from nats.protocol.parser import AWAITING_CONTROL_LINE, ERR_RE, Parser

STATUS_START = b"NATS/1.0 "  # an inline status follows; headers alone begin with b"NATS/1.0\r\n"
_HEADERS_START_BYTES = len(b"NATS/1.0")


Item = tuple[bytes, bytes, bytes | None, bytes]
"""One message as it came off the wire: subject, reply, headers, payload. The headers are the raw block with
its `NATS/1.0` line, or None. A plain tuple, because one is made for every message."""

Sink = Callable[[list[Item]], None]
"""Gets the messages of one subscription that arrived together, in order; runs inside the event loop, may not
block. What it raises goes to the client's error callback; the messages count as delivered."""


class BulkParser(Parser):
    """Drop-in for nats-py's protocol parser. `sinks` maps a subscription id to its `Sink`; status messages
    (100, 404, 408, 409, 503) go there too, with their header block. All other subscriptions, PING, PONG,
    INFO and -ERR are treated as nats-py's own parser does. `last_err` keeps the text of the last -ERR in
    its original case (nats-py hands it on in lower case, subject and all).
    """

    def __init__(self, client: Client) -> None:
        self.sinks: dict[int, Sink] = {}
        self.last_err = ""
        self._epoch = 0
        self._client: Any = client  # its private parts are what a parser works with
        super().__init__(client)

    def reset(self) -> None:
        """Forget a half-read message; nats-py calls this when a connection is lost or made."""
        super().reset()
        self._epoch += 1
        self.hold(b"", 0)

    def hold(self, rest: bytes, wanted_size: int) -> None:
        """Keep the beginning of a message. Nothing is parsed before `wanted_size` bytes are there, so that
        a payload of megabytes is joined once and not at every read."""
        self._held, self._held_size, self._wanted_size = [rest], len(rest), wanted_size

    async def parse(self, data: bytes = b"") -> None:
        """Take what was read from the socket, dispatch every whole message in it, keep the rest.

        Raises `nats.errors.ProtocolError` on bytes that are no NATS protocol; nats-py then reconnects.
        """
        if self._held_size:
            self._held.append(data)
            self._held_size += len(data)
            if self._held_size < self._wanted_size:
                return
            buf = b"".join(self._held)
            self.hold(b"", 0)
        else:
            buf = bytes(data)
        epoch, pos, wanted_end = self._epoch, 0, 0
        size, find, sinks = len(buf), buf.find, self.sinks
        run: list[Item] = []
        run_sid = 0
        line = b""
        while pos < size:
            eol = find(b"\r\n", pos)
            if eol < 0:
                break
            op = buf[pos : pos + 4]
            if op == b"MSG " or op == b"HMSG":  # noqa: PLR1714 - a set or tuple test costs more here
                args = buf[pos + 4 : eol].split()
                body = eol + 2
                try:
                    sid, end = int(args[1]), body + int(args[-1])
                    if op == b"HMSG":
                        payload_at = body + int(args[-2])
                        reply = args[2] if len(args) == 5 else b""
                    else:
                        payload_at = body
                        reply = args[2] if len(args) == 4 else b""
                except (IndexError, ValueError):
                    raise ProtocolError from None
                if end + 2 > size:
                    wanted_end = end + 2
                    break
                pos = end + 2
                item = (args[0], reply, buf[body:payload_at] if payload_at > body else None, buf[payload_at:end])
                if sid in sinks:
                    if sid != run_sid:
                        if run:
                            await self._deliver(run_sid, run)
                            run = []
                        run_sid = sid
                    run.append(item)
                    continue
            else:
                sid, item = 0, None
                line = buf[pos:eol]
                pos = eol + 2
            # Anything but bulk goes out at once, after the bulk that came before it.
            if run:
                await self._deliver(run_sid, run)
                run = []
            if item is None:
                await self._control(line)
            else:
                await self._client._process_msg(sid, item[0], item[1], item[3], item[2])
            if epoch != self._epoch:
                return  # the connection these bytes came from is gone
        if run:
            await self._deliver(run_sid, run)
        if pos < size and epoch == self._epoch:
            self.hold(buf[pos:], wanted_end - pos)

    async def _deliver(self, sid: int, run: list[Item]) -> None:
        sink = self.sinks.get(sid)
        stats = self._client.stats
        stats["in_msgs"] += len(run)
        stats["in_bytes"] += sum([len(item[3]) for item in run])
        if sink is None:
            return  # closed while this read was under way
        try:
            sink(run)
        except Exception as error:  # noqa: BLE001 - a reader's bug must not end the connection's reading
            await self._client._error_cb(error)

    async def _control(self, line: bytes) -> None:
        op = line[:4]
        if op == b"PING":
            await self._client._process_ping()
        elif op == b"PONG":
            pongs = self._client._pongs
            if pongs and pongs[0].done():  # who waited for it has given up: nats-py would raise, and stop reading
                pongs[0] = asyncio.get_running_loop().create_future()
            await self._client._process_pong()
        elif op == b"INFO":
            await self._client._process_info(json.loads(line[5:]))
        elif op == b"-ERR":
            match = ERR_RE.match(line + b"\r\n")
            self.last_err = (match[1] or b"").decode("utf-8", "replace") if match else ""
            await self._client._process_err(self.last_err.lower())
        elif line[:3] != b"+OK":
            raise ProtocolError


def bulk_parser(client: Client) -> BulkParser:
    """The client's bulk parser; put in place if it has none yet (also on a connected client, such as the
    one a FastStream broker manages: what its own parser had half read goes on in the new one)."""
    parser = client._ps
    if isinstance(parser, BulkParser):
        return parser
    if parser.state != AWAITING_CONTROL_LINE:
        # The old parser has already cut a control line off its buffer: write it again in front of the rest.
        arg, sizes = parser.msg_arg, b"%d" % parser.needed
        op = b"MSG"
        if parser.header_needed:
            op, sizes = b"HMSG", b"%d %d" % (parser.header_needed, parser.needed)
        words = [op, arg["subject"], b"%d" % arg["sid"], *([arg["reply"]] if arg["reply"] else []), sizes]
        head = b" ".join(words) + b"\r\n"
    else:
        head = b""
    bulk = BulkParser(client)
    bulk.hold(head + bytes(parser.buf), 0)
    parser.reset()  # should it stand in the middle of a dispatch, it finds nothing left to do
    client._ps = bulk
    return bulk


class BulkSubscription:
    """A subscription whose messages go to a `Sink`. Made by `subscribe_bulk`. It outlives reconnects of its
    client (nats-py subscribes again under the same id) but not the client itself."""

    def __init__(self, client: Client, subscription: Subscription) -> None:
        self.client = client
        self.subject = subscription.subject
        self._subscription = subscription

    async def close(self) -> None:
        """End it; after this call the sink is not called again. Never raises."""
        bulk_parser(self.client).sinks.pop(self._subscription._id, None)
        if self.client.is_closed or self._subscription._closed:
            return
        try:
            await self._subscription.unsubscribe()
        except (nats.errors.Error, OSError):
            pass  # the connection went away at this moment, and the subscription with it


async def subscribe_bulk(client: Client, subject: str, sink: Sink) -> BulkSubscription:
    """Subscribe to `subject` and hand whole runs of messages to `sink`.

    The server may know of the subscription only a moment after this returns: nothing confirms it but an
    answer to a later request on the same connection. Raises what `Client.subscribe` raises.
    """
    sinks = bulk_parser(client).sinks
    sid = client._sid + 1  # the id it will get; the sink must be there before the first message can be
    sinks[sid] = sink
    try:
        subscription = await client.subscribe(subject)
    except BaseException:
        sinks.pop(sid, None)
        raise
    return BulkSubscription(client, subscription)


_STATUS_LINE = re.compile(rb"NATS/1\.0 +(\d{3})(?: +([^\r\n]*))?")


def header_status(headers: bytes | None) -> int:
    """The inline status of a raw header block (100, 204, 404, 408, 409, 503 …), or 0 if it has none."""
    if headers is None or headers[:9] != STATUS_START:
        return 0
    match = _STATUS_LINE.match(headers)
    return int(match[1]) if match else 0


def status_text(headers: bytes) -> str:
    """The words after the inline status, such as "Consumer Deleted"; "" if there are none."""
    match = _STATUS_LINE.match(headers)
    return (match[2] or b"").decode("utf-8", "replace") if match else ""


def header_value(headers: bytes | None, name: bytes) -> bytes | None:
    """The value of one header in a raw block, or None. Names are compared with case, as NATS sends them."""
    if headers is None:
        return None
    start = headers.find(b"\r\n" + name + b":", _HEADERS_START_BYTES)
    if start < 0:
        return None
    start += len(name) + 3
    return headers[start : headers.find(b"\r\n", start)].strip()
