"""Writing to a client's socket at once, past nats-py's own buffer.

What stands in nats-py's buffer when a connection breaks is sent after the reconnect, seconds later. For a message that
is true only now (a compare-and-set put, an event with its time in the queue) that is too late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from nats.aio.client import Client
from nats.aio.transport import TcpTransport


def write_now(client: Client, data: bytes) -> bool:
    """Write protocol bytes to the client's socket. False if the connection is about to break: not written."""
    transport = client._transport
    if transport is None or not client.is_connected:
        return False
    if isinstance(transport, TcpTransport):
        writer = transport._io_writer
        if writer is None or writer.is_closing():
            return False
        writer.write(data)
        return True
    transport.write(data)  # a websocket only queues; its client's flusher sends it on
    client._pending_data_size += 1
    queue = client._flush_queue
    if queue is not None and queue.empty():
        queue.put_nowait(asyncio.get_running_loop().create_future())
    return True


def hpub(subject: str, reply: bytes, headers: Mapping[str, str], payload: bytes) -> bytes:
    """A publish with headers, as protocol bytes. Subject, reply and headers are not checked: the caller makes them,
    without spaces in a subject and without line ends."""
    block = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    head = f"NATS/1.0\r\n{block}\r\n".encode()
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (
        subject.encode(),
        reply,
        len(head),
        len(head) + len(payload),
        head,
        payload,
    )
