"""Reading the derived events from their stream, by direct get, newest last."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

import msgspec
from nats.aio.client import Client

from sickbay_events import Scope, parse_rfc3339, rfc3339

from ..bus.bulk import header_value
from ..bus.connect import BusError
from ..bus.entries import PAGE_ENTRIES, BucketEntry, read_entries, read_page
from ..bus.jetstream import JetStreamApi
from ..bus.topology import TRANSITIONS, WARNING_PREFIX

DAY_MS: Final = 86_400_000
SCANNED_MAX: Final = 20_000
"""Derived events among which warnings and a history are looked for: the newest, of a history those of its time."""
REQUEST_S: Final = 2.0


class _Told(msgspec.Struct):
    time_ms: int
    rule: str = ""


_told: Final = msgspec.json.Decoder(_Told).decode


def _time_ms(payload: bytes) -> int | None:
    """Its log time. None if it is no derived event: a client with the right to publish there can write anything."""
    try:
        return _told(payload).time_ms
    except msgspec.DecodeError:
        return None


class PastTransitions(msgspec.Struct, frozen=True, kw_only=True):
    """Transitions of a time. `known_from_ms`: everything from then on is here, nothing before it."""

    transitions: list[dict[str, Any]]
    known_from_ms: int


async def past_transitions(
    client: Client, scope: Scope | None, from_ms: int, to_ms: int, *, limit: int
) -> PastTransitions:
    """The newest `limit` derived events between two log times, of a scope with those around and below it, or of all.

    Raises `BusError`, `nats.errors.Error`, `TimeoutError`.
    """
    info = await JetStreamApi(client, timeout_s=REQUEST_S).request(f"STREAM.INFO.{TRANSITIONS}")
    state = info["state"]
    is_whole = state["first_seq"] <= 1
    known_ms = parse_rfc3339(info["created"] if is_whole or not state["messages"] else state["first_ts"])
    entries: list[BucketEntry] = []
    for subject in _subjects(scope):
        found, is_cut = await _between(client, subject, from_ms, to_ms, int(state["last_seq"]))
        entries += found
        if is_cut:
            known_ms = max(known_ms, found[0].time_ns // 1_000_000 if found else to_ms)
    entries.sort(key=lambda entry: entry.revision, reverse=True)
    taken: list[dict[str, Any]] = []
    for entry in entries:
        time_ms = _time_ms(entry.payload)
        if time_ms is None or not from_ms <= time_ms <= to_ms:
            continue
        if len(taken) == limit:
            known_ms = max(known_ms, int(taken[-1]["time_ms"]))
            break
        taken.append(fact_of(entry.subject, entry.payload, entry.revision))
    return PastTransitions(transitions=taken[::-1], known_from_ms=known_ms)


def _is_told(payload: bytes) -> bool:
    try:
        return bool(_told(payload).rule)
    except msgspec.DecodeError:
        return False


def fact_of(subject: bytes, payload: bytes, seq: int | None = None) -> dict[str, Any]:
    """A derived event with its scope's key, and its own sequence in its stream. Raises `ValueError`."""
    words = subject.decode().split(".", 2)
    if len(words) < 3:
        raise ValueError(f"{subject!r} is no derived event's subject")
    fact: dict[str, Any] = msgspec.json.decode(payload, type=dict[str, Any])
    return {"key": words[2], **({} if seq is None else {"told_seq": seq}), **fact}


async def _between(
    client: Client, subject: str, from_ms: int, to_ms: int, last_seq: int
) -> tuple[list[BucketEntry], bool]:
    """Messages of a subject stored from a time on and told up to another, and whether there were more than are read."""
    body = {"start_time": rfc3339(from_ms), "next_by_subj": subject, "batch": 1}
    first = await read_page(client, TRANSITIONS, body, timeout_s=REQUEST_S)
    if not first:
        return [], False
    seq, end_seq, is_cut = first[0].revision, last_seq + 1, False
    if int(header_value(first[0].headers, b"Nats-Num-Pending") or 0) > SCANNED_MAX:
        end_seq = await _seq_after(client, to_ms, seq, end_seq)
        is_cut = end_seq - seq > SCANNED_MAX
        seq = max(seq, end_seq - SCANNED_MAX)
    found: list[BucketEntry] = []
    while seq < end_seq:
        body = {"seq": seq, "next_by_subj": subject, "batch": PAGE_ENTRIES}
        page = await read_page(client, TRANSITIONS, body, timeout_s=REQUEST_S)
        if not page:
            break
        found += page
        seq = page[-1].revision + 1
    return found, is_cut


async def _seq_after(client: Client, to_ms: int, low: int, high: int) -> int:
    """The first sequence in [low, high) of what was told after a time, else `high`: told in the log's order."""
    while low < high:
        middle = (low + high) // 2
        body = {"seq": middle, "next_by_subj": "sickbay.>", "batch": 1}
        page = await read_page(client, TRANSITIONS, body, timeout_s=REQUEST_S)
        # What was put there by hand and has no time is passed, so that the search goes on.
        if page and ((time_ms := _time_ms(page[0].payload)) is None or time_ms <= to_ms):
            low = page[0].revision + 1
        else:
            high = middle
    return low


def _subjects(scope: Scope | None) -> list[str]:
    if scope is None:
        return ["sickbay.>"]
    around = dict.fromkeys((Scope(scope.host).key, scope.key))
    if scope.alias is not None:
        around[Scope(scope.host, scope.alias).key] = None
    below = [] if scope.model is not None else [f"sickbay.*.{scope.key}.>"]
    return [*(f"sickbay.*.{key}" for key in around), *below]


async def warnings_of(client: Client, scope: Scope | None, at: str) -> list[dict[str, Any]]:
    """The warnings of the 24 hours before `at` of a scope and those around it, or of all; each sort once, with how
    often, the latest first. None where their stream is out of reach: what is held matters more."""
    try:
        last_seq = (await JetStreamApi(client, timeout_s=REQUEST_S).stream_at(TRANSITIONS)).last_seq
        first = max(1, last_seq - SCANNED_MAX)
        found = await read_entries(client, TRANSITIONS, f"{WARNING_PREFIX}>", from_seq=first) if last_seq else None
    except BusError:
        return []
    around = None if scope is None else {scope.key, Scope(scope.host).key, Scope(scope.host, scope.alias).key}
    told: dict[tuple[Any, ...], dict[str, Any]] = {}
    for entry in found.entries if found is not None else ():
        if not _is_told(entry.payload):
            continue
        key, fact = entry.subject.decode().removeprefix(WARNING_PREFIX), json.loads(entry.payload)
        if fact["time_ms"] <= parse_rfc3339(at) - DAY_MS or (around is not None and key not in around):
            continue
        sort = (key, fact["rule"], fact.get("signature"), fact.get("replica"), fact.get("route"))
        times = told.pop(sort, {"times": 0})["times"] + 1
        where = Scope.of_key(key)
        told[sort] = {**fact, "provider": where.provider, "model": where.model, "times": times}
    return list(told.values())[::-1]


class End(NamedTuple):
    """Where the stream ends.

    created_at   of the stream
    mark         the latest cause of its messages that the log still has; 0 if there is none of this log
    told         id and log time of each event at its end
    floor        every event with an earlier cause was published, though it may have left the stream
    """

    created_at: str
    last_seq: int
    mark: int
    told: frozenset[tuple[str, int]]
    floor: int = 0

    @property
    def is_aged_out(self) -> bool:
        """Nothing stands there any more, or nothing of this log, though something did."""
        return self.last_seq > 0 and not self.mark
