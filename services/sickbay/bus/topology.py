"""The streams and buckets of Sickbay, as one table, and the names that go with them.

`ensure` creates what is missing and reports, field by field, where what exists differs from the table. It never
changes anything that exists: what a difference means is for an operator to judge.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import msgspec
import nats.errors
from nats.aio.client import Client

from ..loggers import logger
from .connect import BusError, PermissionDenied, request
from .link import Link
from .view_names import MAIN, ViewNames

_log = logger("sickbay.bus")

LOG = "SICKBAY_LOG"
CONTROL = "SICKBAY_CONTROL"
TRANSITIONS = "SICKBAY_TRANSITIONS"
DEAD = "SICKBAY_DEAD"

GATE_BUCKET = MAIN.bucket
TRIALS_BUCKET = "sickbay_trials"
SNAPSHOTS_BUCKET = MAIN.snapshots_bucket
GATE_STREAM = MAIN.stream
TRIALS_STREAM = f"KV_{TRIALS_BUCKET}"
SNAPSHOTS_STREAM = MAIN.snapshots_stream

GATE_PREFIX = MAIN.gate_prefix  # + scope key: a gate entry
TARGET_PREFIX = MAIN.target_prefix  # + scope key: the counters of a target, to be read by people
TRIALS_PREFIX = f"$KV.{TRIALS_BUCKET}."
VIEW_PREFIX = MAIN.view_prefix  # + scope key: a gate entry as it is republished, without the `gate.`

OUTCOME_PREFIX = "sickbay.outcome."  # + replica token . scope key
PROBE_PREFIX = "sickbay.probe."  # + replica token . scope key
OVERRIDE_PREFIX = "sickbay.override."  # + scope key
POLICY_SUBJECT = "sickbay.policy"
HELD_PREFIX = "sickbay.held."
RELEASED_PREFIX = "sickbay.released."
HEALTH_PREFIX = "sickbay.health."
WARNING_PREFIX = "sickbay.warning."
DEAD_PREFIX = "sickbay.dead."  # + reason

DAY_S = 86_400
GIB = 1 << 30
_NS = 1_000_000_000
_REQUEST_TIMEOUT_S = 5.0
_LEADER_RETRY_S = 0.5
_STREAM_NOT_FOUND, _STREAM_NAME_IN_USE = 10059, 10058
_STORAGE_EXCEEDED = (10047, 10023, 10028)
_NO_LEADER = (10005, 10008, 10009)  # no peers to place it on, not available at the moment, not the leader
_NO_JETSTREAM = (10039, 10076, 10035)  # not enabled for the account, not enabled, account not enabled


class NoJetStream(BusError):
    """The server answers, but has no JetStream (for this account)."""


class TopologyError(BusError):
    """A stream could not be read or created; the message says which and why. `stream`, `code` (the server's)."""

    def __init__(self, stream: str, code: int, message: str) -> None:
        self.stream = stream
        self.code = code
        super().__init__(f"stream {stream}: {message}")


class NoLeader(TopologyError):
    """The servers of a cluster have not agreed on a leader, or too few of them run: it may be otherwise in a moment."""


class StreamLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What an installation may choose. Ages in seconds, sizes in bytes; `replicas` 1, 3 or 5 (a cluster: 3)."""

    replicas: int = 1
    log_max_age_s: int = 7 * DAY_S
    log_max_bytes: int = 10 * GIB
    transitions_max_age_s: int = 90 * DAY_S
    dead_max_age_s: int = 30 * DAY_S
    dead_max_bytes: int = 1 * GIB

    def fitted(self, free_bytes: int) -> StreamLimits:
        """The same with the log and the dead letters cut to 1/2 and 1/20 of a disk's free bytes. A server
        grants a stream its whole `max_bytes` at once and refuses more than 3/4 of what is free."""
        return msgspec.structs.replace(
            self,
            log_max_bytes=min(self.log_max_bytes, free_bytes // 2),
            dead_max_bytes=min(self.dead_max_bytes, free_bytes // 20),
        )


class StreamDifference(msgspec.Struct, frozen=True):
    """One field of an existing stream that is not as the table has it. `serious`: Sickbay's guarantees depend
    on it; else it is the operator's choice (ages, sizes, replicas) and only worth a line."""

    stream: str
    field: str
    found: Any
    wanted: Any
    serious: bool

    def __str__(self) -> str:
        return f"{self.stream}: {self.field} is {_shown(self.found)}, wanted {_shown(self.wanted)}"


class StreamReport(msgspec.Struct, frozen=True):
    """What became of one stream. `state` is "created", "present" or "missing" (the last from `check_streams` only).
    `created_at` is the server's RFC 3339 time of its creation ("" when missing): the identity of a log."""

    name: str
    state: str
    created_at: str
    first_seq: int
    last_seq: int
    differences: tuple[StreamDifference, ...] = ()


class TopologyReport(msgspec.Struct, frozen=True):
    """What `ensure` and `check_streams` found, in the order of the table."""

    streams: tuple[StreamReport, ...]

    @property
    def ok(self) -> bool:
        """Every stream is there and none differs in a field that matters."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """One sentence for each missing stream and each serious difference."""
        missing = [f"{stream.name}: is missing" for stream in self.streams if stream.state == "missing"]
        return (*missing, *(str(difference) for difference in self._differences(serious=True)))

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence for each difference in ages, sizes and replicas."""
        return tuple(str(difference) for difference in self._differences(serious=False))

    @property
    def created(self) -> tuple[str, ...]:
        """Names of the streams that were created now."""
        return tuple(stream.name for stream in self.streams if stream.state == "created")

    def stream(self, name: str) -> StreamReport:
        """The report of one stream. Raises `KeyError`."""
        for stream in self.streams:
            if stream.name == name:
                return stream
        raise KeyError(name)

    def _differences(self, *, serious: bool) -> list[StreamDifference]:
        return [d for stream in self.streams for d in stream.differences if d.serious is serious]


OPERATORS_CHOICE = frozenset({"max_age", "max_bytes", "num_replicas"})
"""Fields whose difference is a note. All others of the table are serious."""


def streams(limits: StreamLimits | None = None, view: ViewNames = MAIN) -> tuple[dict[str, Any], ...]:
    """The table: each stream's configuration as the JetStream API has it (durations in nanoseconds), in the
    order of creation, since the log sources the control stream. `view`: whose bucket and snapshots."""
    limits = limits or StreamLimits()
    common = {
        "retention": "limits",
        "storage": "file",
        "num_replicas": limits.replicas,
        "allow_direct": True,
        # Said although they are the server's defaults, because each of them set otherwise would lose events.
        "max_msgs": -1,
        "max_msgs_per_subject": -1,
        "no_ack": False,
        "sealed": False,
        "mirror": None,
        "subject_transform": None,
    }
    bucket = {
        **common,
        "discard": "new",
        "max_msgs_per_subject": 1,  # the pager's `next_by_subj` and the compare-and-set rely on one value a key
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_msg_ttl": True,
    }
    return (
        {
            **common,
            "name": CONTROL,
            "description": "Sickbay: what operators decided, kept for ever",
            "subjects": [f"{OVERRIDE_PREFIX}>", POLICY_SUBJECT],
        },
        {
            **common,
            "name": LOG,
            "description": "Sickbay: every input event in one order; the only truth",
            "subjects": [f"{OUTCOME_PREFIX}>", f"{PROBE_PREFIX}>"],
            "sources": [{"name": CONTROL}],
            "discard": "old",
            "max_age": limits.log_max_age_s * _NS,
            "max_bytes": limits.log_max_bytes,
            "compression": "s2",
            "duplicate_window": 30 * _NS,
        },
        {
            **common,
            "name": TRANSITIONS,
            "description": "Sickbay: holds, releases, health and warnings, as derived from the log",
            "subjects": [f"{prefix}>" for prefix in (HELD_PREFIX, RELEASED_PREFIX, HEALTH_PREFIX, WARNING_PREFIX)],
            "discard": "old",
            "max_age": limits.transitions_max_age_s * _NS,
        },
        {
            **common,
            "name": DEAD,
            "description": "Sickbay: events that could not be read",
            "subjects": [f"{DEAD_PREFIX}>"],
            "discard": "old",
            "max_age": limits.dead_max_age_s * _NS,
            "max_bytes": limits.dead_max_bytes,
        },
        {
            **bucket,
            "name": view.stream,
            "description": "Sickbay: who may not be called now; a view of the log",
            "subjects": [f"$KV.{view.bucket}.>"],
            "subject_delete_marker_ttl": 60 * _NS,
            "republish": {"src": f"{view.gate_prefix}>", "dest": f"{view.view_prefix}>"},
        },
        {
            # No delete markers: with them a lease would stand for the marker's time as well.
            **bucket,
            "name": TRIALS_STREAM,
            "description": "Sickbay: leases of trials, each gone by its own time",
            "subjects": [f"$KV.{TRIALS_BUCKET}.>"],
            "subject_delete_marker_ttl": 0,
        },
        {
            **common,
            "name": view.snapshots_stream,
            "description": "Sickbay: states at a sequence, to start from",
            "subjects": [f"$O.{view.snapshots_bucket}.C.>", f"$O.{view.snapshots_bucket}.M.>"],
            "discard": "new",
            "allow_rollup_hdrs": True,
        },
    )


async def ensure(client: Client, limits: StreamLimits | None = None, view: ViewNames = MAIN) -> TopologyReport:
    """Create what is missing, compare what is there, change nothing.

    Raises `NoJetStream`, `TopologyError` (no room, no permission, subjects taken by another stream).
    """
    await require_jetstream(client)
    return TopologyReport(tuple([await _stream(client, config, create=True) for config in streams(limits, view)]))


async def ensure_when_led(
    link: Link, limits: StreamLimits | None, view: ViewNames, *, timeout_s: float
) -> tuple[Client, TopologyReport]:
    """As `ensure`, as soon as there is a connection and a cluster that begins has a leader; the client with it.

    Raises `BusError` with what was waited for after `timeout_s`, and at once what `ensure` does.
    """
    end_s = time.monotonic() + timeout_s
    said = False
    while True:
        client = await link.wait_connected(max(0.1, end_s - time.monotonic()))
        try:
            return client, await asyncio.wait_for(ensure(client, limits, view), max(0.1, end_s - time.monotonic()))
        except (NoLeader, nats.errors.Error, OSError) as error:
            why = str(error) or "no answer"
            if time.monotonic() + _LEADER_RETRY_S >= end_s:
                text = f"NATS answers, but its cluster had no leader for {timeout_s:.0f} s: do most of its servers run?"
                raise BusError(f"{text} ({why})") from error
            if not said:
                _log.warning("waiting for NATS: its cluster has no leader yet (%s)", why)
            said = True
        await asyncio.sleep(_LEADER_RETRY_S)


async def check_streams(client: Client, limits: StreamLimits | None = None, view: ViewNames = MAIN) -> TopologyReport:
    """As `ensure`, but creates nothing."""
    await require_jetstream(client)
    return TopologyReport(tuple([await _stream(client, config, create=False) for config in streams(limits, view)]))


async def require_jetstream(client: Client) -> None:
    """Raise `NoJetStream` unless the account of this connection has JetStream."""
    try:
        answer = await _request(client, "INFO", None, "account")
    except nats.errors.NoRespondersError:
        raise NoJetStream(
            "this NATS server has no JetStream, which keeps the event log: start it with -js and -sd FOLDER, "
            "or with a jetstream block in its configuration"
        ) from None
    if (code := _error_code(answer)) in _NO_JETSTREAM:
        raise NoJetStream(f"the account of this NATS user has no JetStream (error {code}): enable it for the account")


async def _stream(client: Client, config: dict[str, Any], *, create: bool) -> StreamReport:
    name = config["name"]
    answer = await _request(client, f"STREAM.INFO.{name}", None, name)
    if _error_code(answer) != _STREAM_NOT_FOUND:
        _raise_error(name, answer)
        return _report(answer, "present", stream_differences(config, answer["config"]))
    if not create:
        return StreamReport(name, "missing", "", 0, 0)
    answer = await _request(client, f"STREAM.CREATE.{name}", config, name)
    if _error_code(answer) == _STREAM_NAME_IN_USE:  # a rival has just made it, by another table
        return await _stream(client, config, create=False)
    _raise_error(name, answer, config)
    return _report(answer, "created" if answer.get("did_create", True) else "present", ())


def _report(info: dict[str, Any], state: str, found: tuple[StreamDifference, ...]) -> StreamReport:
    at = info["state"]
    return StreamReport(info["config"]["name"], state, info["created"], at["first_seq"], at["last_seq"], found)


def stream_differences(wanted: dict[str, Any], found: dict[str, Any]) -> tuple[StreamDifference, ...]:
    """Fields of `wanted` (a row of the table) that `found` (the server's answer) has otherwise. The description
    is not compared; a field that the server leaves out is at its zero value; what the table does not name is
    the operator's business."""
    differing: list[StreamDifference] = []
    for field, value in wanted.items():
        if field == "description":
            continue
        if not _same(value, found.get(field)):
            serious = field not in OPERATORS_CHOICE
            differing.append(StreamDifference(wanted["name"], field, found.get(field), value, serious))
    return tuple(differing)


def _same(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_same(value, found.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(found) != len(wanted):
            return False
        if all(isinstance(item, str) for item in wanted):
            return sorted(wanted) == sorted(found)
        return all(_same(one, other) for one, other in zip(wanted, found, strict=True))
    return bool((wanted or None) == (found or None))


async def _request(client: Client, api: str, body: dict[str, Any] | None, what: str) -> dict[str, Any]:
    payload = b"" if body is None else json.dumps({k: v for k, v in body.items() if v is not None}).encode()
    try:
        reply = await request(client, f"$JS.API.{api}", payload, timeout_s=_REQUEST_TIMEOUT_S)
    except PermissionDenied as error:
        raise TopologyError(what, 0, str(error)) from error
    except TimeoutError:
        text = f"no answer to {api} in {_REQUEST_TIMEOUT_S:.0f} s: the cluster has no leader"
        raise NoLeader(what, 0, text) from None
    answer: dict[str, Any] = json.loads(reply.data)
    return answer


def _error_code(answer: dict[str, Any]) -> int:
    error = answer.get("error")
    return int(error.get("err_code", error.get("code", 0))) if error else 0


def _raise_error(name: str, answer: dict[str, Any], config: dict[str, Any] | None = None) -> None:
    code = _error_code(answer)
    if not code:
        return
    text = answer["error"].get("description", "")
    if code in _STORAGE_EXCEEDED and config is not None:
        text = (
            f"the server has no room for {_shown(config.get('max_bytes', 0))} bytes ({text}): give the server more "
            "storage (max_file_store), or the stream a smaller limit"
        )
    raise (NoLeader if code in _NO_LEADER else TopologyError)(name, code, f"{text} (error {code})")


def _shown(value: Any) -> str:
    return "unset" if value is None else json.dumps(value)
