"""A JetStream-like server, as far as the product uses one (and as it was tried against the real one): streams with
sequences, a dedupe window, compare-and-set by subject and by stream, TTL and markers, republish, sourcing, direct get,
stream requests and pull consumers. What a fault needs (a restart, a lost tail, a stream gone) is here too."""

from __future__ import annotations

import json
import random
import time
from base64 import b64encode
from collections import Counter, deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from sickbay.bus.topology import CONTROL, GATE_PREFIX, GATE_STREAM, LOG, TRIALS_STREAM

from .client import OUTSIDE, Connection, SimClient
from .virtual import BEGAN_S, Node, VirtualLoop

HEARTBEAT_S = 0.5
HORIZON_S = 600.0
"""What expires later than this expires after every history's end."""
DEDUPE_S = 2.0
"""Shorter than a reporter's second sending, so that repeats reach the log and the fold's own rule has work."""
WRONG_LAST, NOT_FOUND, NO_STREAM = 10071, 10037, 10059


class Stored:
    """One message of a stream."""

    __slots__ = ("headers", "payload", "seq", "subject", "time_ns")

    def __init__(self, seq: int, subject: str, headers: dict[str, str], payload: bytes, time_ns: int) -> None:
        self.seq, self.subject, self.headers, self.payload, self.time_ns = seq, subject, headers, payload, time_ns

    @property
    def is_gone(self) -> bool:
        """A marker or tombstone."""
        return "Nats-Marker-Reason" in self.headers or self.headers.get("KV-Operation") in ("DEL", "PURGE")


class Consumer:
    """A pull consumer without acknowledgements."""

    def __init__(self, name: str, next_seq: int) -> None:
        self.name, self.next_seq, self.count = name, next_seq, 0
        self.pulls: deque[list[Any]] = deque()  # [left, expires at, inbox]
        self.sent_s = 0.0


class Stream:
    """One stream."""

    def __init__(self, config: dict[str, Any], created: str) -> None:
        self.config, self.created = config, created
        self.name: str = config["name"]
        self.messages: dict[int, Stored] = {}
        self.first_seq, self.last_seq = 1, 0
        self.newest: dict[str, int] = {}
        """By subject: sequence of the newest message."""
        self.ids: dict[str, tuple[float, int]] = {}
        self.consumers: dict[str, Consumer] = {}
        self.sourced_seq = 0

    def remove(self, seq: int) -> None:
        message = self.messages.pop(seq, None)
        if message is not None and self.newest.get(message.subject) == seq:
            del self.newest[message.subject]
            if self.config.get("max_msgs_per_subject") != 1:
                older = [s for s, m in self.messages.items() if m.subject == message.subject]
                if older:
                    self.newest[message.subject] = max(older)

    def cut_tail(self, count: int) -> list[Stored]:
        """Lose the last messages; their sequences will be given again."""
        lost = [m for s, m in self.messages.items() if s > self.last_seq - count]
        self.last_seq = max(self.first_seq - 1, self.last_seq - count)
        for message in reversed(lost):
            self.remove(message.seq)
        self.ids = {name: at for name, at in self.ids.items() if at[1] <= self.last_seq}
        sources = [m.headers["Nats-Stream-Source"] for m in self.messages.values() if "Nats-Stream-Source" in m.headers]
        self.sourced_seq = max([int(source.split()[1]) for source in sources], default=0)
        return lost


class Server:
    """The server. `on_stored` is told of each message that a stream takes, with who sent it (None: the server)."""

    def __init__(self, loop: VirtualLoop, rng: random.Random) -> None:
        self.loop, self.rng = loop, rng
        self.downs = 0
        """Reasons why it is down at present."""
        self.clock_s = 0.0
        """What its clock is ahead of true time."""
        self.slow: dict[Node, float] = {}
        """Nodes whose network is slow, and by how many seconds at most."""
        self.cut_off: set[Node] = set()
        self.lose_acks: dict[Node, float] = {}
        """Nodes to which answers to publishes get lost, with which probability."""
        self.dedupe_first = rng.random() < 0.5
        """Whether a repeated id is seen before the compare of the stream's last sequence, or after."""
        self.streams: dict[str, Stream] = {}
        self.connections: dict[Connection, None] = {}
        self.clients = 0
        self.counts: Counter[str] = Counter()
        self.on_stored: Callable[[Stream, Stored, SimClient | None], None] = lambda *_: None
        self.on_message: Callable[[str, str, bytes], None] = lambda *_: None
        """Told of each message that no stream takes: subject, reply, payload."""
        self.again: dict[Node, float] = {}
        """Nodes whose publishes arrive a second time, some seconds later, with which probability."""
        self._sent_s: tuple[float, Node | None] = (0.0, None)
        self._exact: dict[str, list[tuple[Connection, int]]] = {}
        self._below: dict[str, list[tuple[Connection, int]]] = {}
        self._last_ns = 0

    @property
    def is_up(self) -> bool:
        """Whether anybody can connect."""
        return not self.downs

    def delay_s(self, node: Node) -> float:
        """How long the next message takes between a node and here."""
        worst_s = self.slow.get(node, 0.0)
        return self.rng.uniform(0.0002, 0.002) if not worst_s else self.rng.uniform(0.0, worst_s)

    def now_ns(self) -> int:
        """The server's clock; no two messages are stored at the same nanosecond."""
        now_ns = int((BEGAN_S + self.loop.time() + self.clock_s) * 1e9)
        if 0 <= self._last_ns - now_ns < 1_000_000:
            now_ns = self._last_ns + 1
        self._last_ns = now_ns
        return now_ns

    # Faults.

    def break_all(self) -> None:
        """Every connection breaks, what was on its way is lost; consumers, which live in memory, are gone."""
        for connection in list(self.connections):
            connection.client.lose(up=False)
        for stream in self.streams.values():
            stream.consumers.clear()

    def delete_stream(self, name: str) -> None:
        stream = self.streams.pop(name, None)
        for consumer in stream.consumers.values() if stream is not None else ():
            for _, _, inbox in consumer.pulls:
                self._to(inbox, (inbox.encode(), b"", b"NATS/1.0 409 Consumer Deleted\r\n\r\n", b""))

    # What clients send.

    def take(self, connection: Connection, operation: tuple[Any, ...], sent_s: float) -> None:
        """One operation of a client."""
        if operation[0] == "SUB":
            _, sid, subject = operation
            if subject.endswith((".>", ".*")):
                self._below.setdefault(subject[:-1], []).append((connection, sid))
            else:
                self._exact.setdefault(subject, []).append((connection, sid))
        elif operation[0] == "UNSUB":
            for table in (self._exact, self._below):
                for subject in [s for s, subs in table.items() if (connection, operation[1]) in subs]:
                    table[subject].remove((connection, operation[1]))
                    if not table[subject]:
                        del table[subject]
        else:
            if operation[1].startswith("sickbay.outcome."):
                self._note_order(connection.client.node, sent_s)
                if self.rng.random() < self.again.get(connection.client.node, 0.0):
                    self.counts["sent_again"] += 1
                    self.loop.call_later(DEDUPE_S + 0.5, self._published, None, *operation[1:], context=OUTSIDE)
            self._published(connection.client, *operation[1:])

    def _note_order(self, node: Node, sent_s: float) -> None:
        """Count what one replica sent before another did, and arrives after it."""
        before_s, before = self._sent_s
        self.counts["reordered"] += before is not None and before is not node and sent_s < before_s
        self._sent_s = (max(before_s, sent_s), node if sent_s > before_s else before)

    def _published(
        self, client: SimClient | None, subject: str, reply: str, headers: dict[str, str], payload: bytes
    ) -> None:
        if subject.startswith("$JS.API."):
            self._api(subject[8:], reply, payload)
        elif subject == "$PING":
            self.send(reply, b"")
        elif (stream := self._stream_of(subject)) is not None:
            answer = self.store(stream, subject, headers, payload, client)
            if client is not None and self.rng.random() < self.lose_acks.get(client.node, 0.0):
                self.counts["lost_ack"] += 1
            elif reply:
                self.send(reply, json.dumps(answer).encode())
        else:
            self.on_message(subject, reply, payload)
            subscribers = self._subscribers(subject)
            if subscribers:
                connection, sid = self.rng.choice(subscribers)
                item = (subject.encode(), reply.encode(), block(headers) if headers else None, payload)
                connection.down(sid, item)
            elif reply:
                self._to(reply, (reply.encode(), b"", b"NATS/1.0 503\r\n\r\n", b""))

    def send(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> None:
        """A message to whoever has subscribed."""
        self._to(subject, (subject.encode(), b"", block(headers) if headers else None, payload))

    def _to(self, subject: str, item: tuple[bytes, bytes, bytes | None, bytes]) -> bool:
        subscribers = self._subscribers(subject)
        for connection, sid in subscribers:
            connection.down(sid, item)
        return bool(subscribers)

    def _subscribers(self, subject: str) -> list[tuple[Connection, int]]:
        found = self._exact.get(subject)
        if found is None:
            found = self._below.get(subject[: subject.rfind(".") + 1])
        return [sub for sub in found if sub[0].is_open] if found else []

    # Streams.

    def _stream_of(self, subject: str) -> Stream | None:
        name = _stream_name(subject)
        return self.streams.get(name) if name else None

    def store(
        self, stream: Stream, subject: str, headers: dict[str, str], payload: bytes, client: SimClient | None = None
    ) -> dict[str, Any]:
        """Store a message, if what it expects holds; the answer."""
        now_s = self.loop.time()
        msg_id = headers.get("Nats-Msg-Id")
        known = stream.ids.get(msg_id) if msg_id else None
        repeat = None
        if known is not None and now_s - known[0] < stream.config.get("sim_dedupe_s", DEDUPE_S):
            repeat = {"stream": stream.name, "seq": known[1], "duplicate": True}
        expected = headers.get("Nats-Expected-Last-Subject-Sequence")
        if expected is not None and int(expected) != stream.newest.get(subject, 0):
            return _error(400, WRONG_LAST, f"wrong last sequence: {stream.newest.get(subject, 0)}")
        if repeat is not None and self.dedupe_first:
            self.counts["deduped"] += 1
            return repeat
        expected = headers.get("Nats-Expected-Last-Sequence")
        if expected is not None and int(expected) != stream.last_seq:
            return _error(400, WRONG_LAST, f"wrong last sequence: {stream.last_seq}")
        if repeat is not None:
            self.counts["deduped"] += 1
            return repeat
        message = self._append(stream, subject, headers, payload, client)
        if msg_id:
            stream.ids[msg_id] = (now_s, message.seq)
        return {"stream": stream.name, "seq": message.seq}

    def _append(
        self, stream: Stream, subject: str, headers: dict[str, str], payload: bytes, client: SimClient | None
    ) -> Stored:
        old = stream.newest.get(subject)
        if old is not None and stream.config.get("max_msgs_per_subject") == 1:
            del stream.messages[old]
        stream.last_seq += 1
        message = Stored(stream.last_seq, subject, headers, payload, self.now_ns())
        stream.messages[message.seq] = message
        stream.newest[subject] = message.seq
        ttl = headers.get("Nats-TTL")
        if ttl and (ttl_s := int(ttl.rstrip("s"))) < HORIZON_S:
            self.loop.call_at(self.loop.time() + ttl_s, self._expire, stream, message, context=OUTSIDE)
        self.on_stored(stream, message, client)
        if stream.name == GATE_STREAM and subject.startswith(GATE_PREFIX):
            self._republish(stream, message, old or 0)
        elif stream.name == CONTROL:
            self.loop.call_later(0.003, self.source, context=OUTSIDE)
        for consumer in stream.consumers.values():
            self._deliver(stream, consumer)
        return message

    def _expire(self, stream: Stream, message: Stored) -> None:
        if self.streams.get(stream.name) is not stream or stream.messages.get(message.seq) is not message:
            return
        stream.remove(message.seq)
        marker_ns = stream.config.get("subject_delete_marker_ttl") or 0
        if marker_ns and not message.is_gone:
            headers = {"Nats-Marker-Reason": "MaxAge", "Nats-TTL": f"{marker_ns // 10**9}s"}
            self._append(stream, message.subject, headers, b"", None)

    def _republish(self, stream: Stream, message: Stored, last_seq: int) -> None:
        headers = {
            **message.headers,
            "Nats-Stream": stream.name,
            "Nats-Subject": message.subject,
            "Nats-Sequence": str(message.seq),
            "Nats-Time-Stamp": rfc3339_ns(message.time_ns),
            "Nats-Last-Sequence": str(last_seq),
        }
        subject = "sickbay.view." + message.subject[len(GATE_PREFIX) :]
        item = (subject.encode(), b"", block(headers), message.payload)
        for connection, sid in self._below.get("sickbay.view.", ()):
            connection.down(sid, item)

    def source(self) -> None:
        """Copy what the log has not got of the control stream."""
        log, control = self.streams.get(LOG), self.streams.get(CONTROL)
        while log is not None and control is not None and log.sourced_seq < control.last_seq:
            log.sourced_seq += 1
            message = control.messages.get(log.sourced_seq)
            if message is not None:
                source = {"Nats-Stream-Source": f"{CONTROL} {message.seq} > > {message.subject}"}
                self._append(log, message.subject, {**message.headers, **source}, message.payload, None)

    # Requests.

    def _api(self, what: str, reply: str, payload: bytes) -> None:
        words = what.split(".")
        body = json.loads(payload) if payload else {}
        verb = ".".join(words[:2])
        if what == "INFO":
            answer: dict[str, Any] = {"type": "account"}
        elif verb == "DIRECT.GET":
            self._direct(words[2], reply, body)
            return
        elif verb == "CONSUMER.MSG":
            self._pull(words[3], words[4], reply, body)
            return
        elif verb == "STREAM.CREATE":
            answer = self._create(body)
        else:
            stream = self.streams.get(words[3] if verb == "STREAM.MSG" else words[2])
            if stream is None:
                answer = _error(404, NO_STREAM, "stream not found")
            elif verb == "STREAM.INFO":
                answer = self._info(stream, body)
            elif verb == "STREAM.MSG":
                answer = self._get(stream, body)
            elif verb == "STREAM.PURGE":
                for seq in [seq for seq, m in stream.messages.items() if _under(m.subject, body["filter"])]:
                    stream.remove(seq)
                answer = {"success": True}
            elif verb == "CONSUMER.CREATE":
                config = body["config"]
                consumer = stream.consumers[config["name"]] = Consumer(config["name"], config["opt_start_seq"])
                self.loop.call_later(HEARTBEAT_S, self._beat, stream, consumer, context=OUTSIDE)
                answer = {"num_pending": sum(seq >= consumer.next_seq for seq in stream.messages)}
            elif verb == "CONSUMER.DELETE":
                stream.consumers.pop(words[3], None)
                answer = {"success": True}
            else:
                raise AssertionError(f"a request that the simulated server does not know: {what}")
        self.send(reply, json.dumps(answer).encode())

    def _create(self, config: dict[str, Any]) -> dict[str, Any]:
        name = config["name"]
        if name not in self.streams:
            self.streams[name] = Stream(config, rfc3339_ns(self.now_ns()))
            if name == LOG:
                self.loop.call_later(0.003, self.source, context=OUTSIDE)
            return {**self._info(self.streams[name]), "did_create": True}
        return self._info(self.streams[name])

    def _info(self, stream: Stream, body: dict[str, Any] | None = None) -> dict[str, Any]:
        info: dict[str, Any] = {
            "config": stream.config,
            "created": stream.created,
            "state": {"first_seq": stream.first_seq, "last_seq": stream.last_seq, "messages": len(stream.messages)},
            "ts": rfc3339_ns(self.now_ns()),
        }
        if body and "subjects_filter" in body:
            under = [subject for subject in stream.newest if _under(subject, body["subjects_filter"])]
            info["state"]["subjects"] = dict.fromkeys(under, 1)
        control = self.streams.get(CONTROL)
        if stream.name == LOG and control is not None:
            info["sources"] = [{"name": CONTROL, "lag": control.last_seq - stream.sourced_seq}]
        return info

    def _get(self, stream: Stream, body: dict[str, Any]) -> dict[str, Any]:
        if "last_by_subj" in body:
            message = stream.messages.get(stream.newest.get(body["last_by_subj"], 0))
        elif "next_by_subj" in body:
            wanted = (
                m for s, m in stream.messages.items() if s >= body["seq"] and _under(m.subject, body["next_by_subj"])
            )
            message = next(wanted, None)
        else:
            message = stream.messages.get(body["seq"])
        if message is None:
            return _error(404, NOT_FOUND, "no message found")
        told = {"seq": message.seq, "subject": message.subject, "time": rfc3339_ns(message.time_ns)}
        told["data"] = b64encode(message.payload).decode()
        if message.headers:
            told["hdrs"] = b64encode(block(message.headers)).decode()
        return {"message": told}

    def _direct(self, name: str, reply: str, body: dict[str, Any]) -> None:
        stream = self.streams.get(name)
        if stream is None:
            self._to(reply, (reply.encode(), b"", b"NATS/1.0 503\r\n\r\n", b""))
            return
        if "last_by_subj" in body:
            newest = stream.newest.get(body["last_by_subj"])
            found = [stream.messages[newest]] if newest else []
        else:
            wanted = body["next_by_subj"]
            found = [m for s, m in stream.messages.items() if s >= body["seq"] and _under(m.subject, wanted)]
            found.sort(key=lambda m: m.seq)
        if not found:
            self._to(reply, (reply.encode(), b"", b"NATS/1.0 404 Message Not Found\r\n\r\n", b""))
            return
        page = found[: body.get("batch", 1)]
        for message in page:
            headers = {
                **message.headers,
                "Nats-Stream": name,
                "Nats-Subject": message.subject,
                "Nats-Sequence": str(message.seq),
                "Nats-Time-Stamp": rfc3339_ns(message.time_ns),
            }
            self._to(reply, (message.subject.encode(), b"", block(headers), message.payload))
        if "batch" in body:
            end = f"NATS/1.0 204 EOB\r\nNats-Num-Pending: {len(found) - len(page)}\r\n\r\n"
            self._to(reply, (reply.encode(), b"", end.encode(), b""))

    # Consumers.

    def _pull(self, name: str, consumer_name: str, reply: str, body: dict[str, Any]) -> None:
        stream = self.streams.get(name)
        consumer = stream.consumers.get(consumer_name) if stream is not None else None
        if stream is None or consumer is None:
            self._to(reply, (reply.encode(), b"", b"NATS/1.0 503\r\n\r\n", b""))
            return
        consumer.pulls.append([body["batch"], self.loop.time() + body["expires"] / 1e9, reply])
        self._deliver(stream, consumer)

    def _deliver(self, stream: Stream, consumer: Consumer) -> None:
        while consumer.pulls and consumer.next_seq <= stream.last_seq:
            message = stream.messages.get(consumer.next_seq)
            if message is None:
                consumer.next_seq += 1
                continue
            pull = consumer.pulls[0]
            pending = stream.last_seq - message.seq
            numbers = f"1.{message.seq}.{consumer.count + 1}.{message.time_ns}.{pending}"
            ack = f"$JS.ACK.{stream.name}.{consumer.name}.{numbers}"
            headers = block(message.headers) if message.headers else None
            if not self._to(pull[2], (message.subject.encode(), ack.encode(), headers, message.payload)):
                consumer.pulls.popleft()  # nobody listens any more
                continue
            consumer.count += 1
            consumer.next_seq += 1
            consumer.sent_s = self.loop.time()
            pull[0] -= 1
            if not pull[0]:
                consumer.pulls.popleft()

    def _beat(self, stream: Stream, consumer: Consumer) -> None:
        if stream.consumers.get(consumer.name) is not consumer:
            return
        now_s = self.loop.time()
        while consumer.pulls and consumer.pulls[0][1] <= now_s:
            left, _, inbox = consumer.pulls.popleft()
            status = f"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: {left}\r\n\r\n"
            self._to(inbox, (inbox.encode(), b"", status.encode(), b""))
        if consumer.pulls and now_s - consumer.sent_s >= HEARTBEAT_S / 2:
            inbox = consumer.pulls[0][2]
            if not self._to(inbox, (inbox.encode(), b"", b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", b"")):
                return
        self.loop.call_later(HEARTBEAT_S, self._beat, stream, consumer, context=OUTSIDE)

    # For the checker.

    def standing(self, name: str, prefix: str) -> dict[str, Stored]:
        """What stands in a bucket below a prefix, by the rest of the subject."""
        stream = self.streams[name]
        return {
            m.subject[len(prefix) :]: m
            for m in stream.messages.values()
            if m.subject.startswith(prefix) and not m.is_gone and m.payload
        }


_ROOTS = {
    "sickbay.outcome": LOG,
    "sickbay.probe": LOG,
    "sickbay.override": CONTROL,
    "sickbay.policy": CONTROL,
    "sickbay.held": "SICKBAY_TRANSITIONS",
    "sickbay.released": "SICKBAY_TRANSITIONS",
    "sickbay.health": "SICKBAY_TRANSITIONS",
    "sickbay.warning": "SICKBAY_TRANSITIONS",
    "sickbay.dead": "SICKBAY_DEAD",
    "$KV.sickbay": GATE_STREAM,
    "$KV.sickbay_trials": TRIALS_STREAM,
    "$O.sickbay_snapshots": "OBJ_sickbay_snapshots",
}


@lru_cache(maxsize=65_536)
def _stream_name(subject: str) -> str | None:
    return _ROOTS.get(".".join(subject.split(".", 2)[:2]))


def _under(subject: str, pattern: str) -> bool:
    return subject.startswith(pattern[:-1]) if pattern.endswith(">") else subject == pattern


def _error(code: int, err_code: int, text: str) -> dict[str, Any]:
    return {"error": {"code": code, "err_code": err_code, "description": text}}


def block(headers: dict[str, str]) -> bytes:
    """Headers as they stand on the wire."""
    return "".join(["NATS/1.0\r\n", *[f"{k}: {v}\r\n" for k, v in headers.items()], "\r\n"]).encode()


@lru_cache(maxsize=4_096)
def _second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def rfc3339_ns(time_ns: int) -> str:
    """A server's time as NATS writes it."""
    return f"{_second(time_ns // 10**9)}.{time_ns % 10**9:09d}Z"
