"""What an operator and a plain publisher do: one event into the log, acknowledged before the call returns.

    ack = await publish_override(client, scope, "hold", reason="maintenance", actor="ana", for_s=1800)
    ack = await publish_outcome(client, target, CallOutcome(kind="model_unavailable", status=404), replica="seed")

The command line and the service's operate endpoints share it. A router's reporter does not: it never waits.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from typing import Final, Literal, TypeAlias

import msgspec
import nats.errors
from nats.aio.client import Client

from sickbay_events import CallOutcome, Override, ProbeResult, Scope, Target, encode, parse_rfc3339, rfc3339
from sickbay_events.codec import outcome_subject, override_subject, probe_subject

from ..bus.connect import BusError, PermissionDenied, request
from ..bus.jetstream import JetStreamApi
from ..bus.topology import CONTROL, LOG, NoJetStream
from ..invalid import InvalidValue

Action: TypeAlias = Literal["hold", "allow", "clear"]

ACK_TIMEOUT_S: Final = 5.0
FORCE_TIMEOUT_S: Final = 2.0
NO_SERVICE: Final = "no service answers; it will be once `sickbay serve` runs"
UNTIL_MAX_S: Final = 30 * 86_400
"""An override that lasts longer is cut to this by the fold (Rule 2)."""
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION: Final = re.compile(r"(?:(\d+(?:\.\d+)?)([smhd]))")
DURATION_FORM: Final = "a number with s, m, h or d, such as 90s, 30m or 1h30m"


class NotStored(BusError):
    """The event was not acknowledged: it is not in the log, or nobody can say. `reason` says why, `code` is the
    server's error code, 0 where it said nothing."""

    def __init__(self, subject: str, reason: str, code: int = 0) -> None:
        self.subject, self.reason, self.code = subject, reason, code
        super().__init__(f"{subject} was not acknowledged: {reason}")


class StoredAct(msgspec.Struct, frozen=True, kw_only=True):
    """The server's word that an event is stored. `seq` counts in `stream`, which for an operator's act is
    SICKBAY_CONTROL; the log has its copy under a sequence of its own."""

    stream: str
    seq: int
    subject: str
    id: str
    duplicate: bool = False


class Force(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an operator's act is in force. `log_seq`: of its copy in the log, None while that has none. `why` not,
    in words; empty where it is."""

    in_force: bool
    log_seq: int | None = None
    why: str = ""


def scope_of(provider: str, model: str | None) -> Scope:
    """The scope a person names: a host, a credential (`host#alias`), or a model there (Rule 4.7).

    Raises `InvalidValue` naming the field.
    """
    host, mark, alias = provider.partition("#")
    if not host:
        raise InvalidValue("provider", provider, "a host or a label, such as openrouter.ai or openrouter.ai#team-a")
    if model is not None and not model:
        raise InvalidValue("model", model, "a model id, or nothing for the whole host")
    return Scope(host, alias if mark or model is not None else None, model)


def read_duration_s(text: str) -> float:
    """Seconds of `90s`, `30m`, `1h30m`, `2d`. Raises `InvalidValue`."""
    parts = _DURATION.findall(text.strip())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        raise InvalidValue("duration", text, DURATION_FORM)
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    if not 0 < seconds <= UNTIL_MAX_S:
        raise InvalidValue("duration", text, "more than zero and at most 30 days")
    return seconds


def make_override(
    action: str, *, reason: object, actor: object, now_ms: int, until: object = None, for_s: object = None
) -> Override:
    """An operator's act, every field checked. `now_ms` is the log's clock (`log_now_ms`).

    `hold` and `allow` need one of `until` (RFC 3339) and `for_s` (seconds); `clear` takes neither.
    Raises `InvalidValue` naming the field.
    """
    for field, value in (("reason", reason), ("actor", actor)):
        if not isinstance(value, str) or not value.strip():
            raise InvalidValue(field, value, "a text that says something")
    end: str | None = None
    if action == "clear":
        if until is not None or for_s is not None:
            raise InvalidValue("until", until or for_s, "nothing: a clear has no end")
    elif action in ("hold", "allow"):
        end = _end(until, for_s, now_ms)
    else:
        raise InvalidValue("action", action, "hold, allow or clear")
    return Override(action=action, reason=str(reason), actor=str(actor), until=end, at=rfc3339(now_ms))  # type: ignore[arg-type]


def _end(until: object, for_s: object, now_ms: int) -> str:
    if (until is None) == (for_s is None):
        raise InvalidValue("until", until, "either until or a duration: it must end, and only once")
    if for_s is not None:
        if isinstance(for_s, bool) or not isinstance(for_s, int | float) or not 0 < for_s <= UNTIL_MAX_S:
            raise InvalidValue("for_s", for_s, "seconds above 0 and up to 2,592,000 (30 days)")
        return rfc3339(now_ms + int(for_s * 1000))
    try:
        end_ms = parse_rfc3339(until)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        raise InvalidValue("until", until, "an RFC 3339 time with an offset, such as 2026-11-30T12:00:00Z") from None
    if end_ms <= now_ms:
        raise InvalidValue("until", until, f"a time ahead of the log's clock, which is at {rfc3339(now_ms)}")
    return rfc3339(end_ms)


async def log_now_ms(client: Client) -> int:
    """The clock by which the log stamps events, asked of the server.

    Raises `NotStored` where no stream answers (no services yet), `PermissionDenied`.
    """
    try:
        info = await JetStreamApi(client, timeout_s=ACK_TIMEOUT_S).request(f"STREAM.INFO.{CONTROL}")
    except PermissionDenied:
        raise
    except (BusError, nats.errors.Error, OSError) as error:
        raise NotStored(CONTROL, f"its stream does not answer ({_said(error)}); is `sickbay serve` running?") from error
    return parse_rfc3339(info["ts"])


async def publish_override(
    client: Client,
    scope: Scope,
    action: str,
    *,
    reason: object,
    actor: object,
    until: object = None,
    for_s: object = None,
    act_id: str | None = None,
) -> StoredAct:
    """Store an operator's act on a scope; with an `act_id` it counts once, however often it is sent.

    Raises `InvalidValue`, `NotStored`, `NameRefused`.
    """
    subject = override_subject(scope)
    now_ms = await log_now_ms(client)
    override = make_override(action, reason=reason, actor=actor, now_ms=now_ms, until=until, for_s=for_s)
    named = msgspec.structs.replace(override, id=act_id or new_id())
    assert named.id is not None
    return await publish(client, subject, encode(named), named.id)


async def await_force(client: Client, ack: StoredAct, *, timeout_s: float = FORCE_TIMEOUT_S) -> Force:
    """Wait until an act that was stored is in the log and folded, or say why it is not. Raises `PermissionDenied`."""
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            found = await _force(client, ack)
        except PermissionDenied:
            raise
        except (BusError, nats.errors.Error, OSError, ValueError, KeyError) as error:
            found = Force(in_force=False, why=f"nobody can say ({_said(error)})")
        if found.in_force or found.why == NO_SERVICE or time.monotonic() > end_s:
            return found
        await asyncio.sleep(0.02)


async def _force(client: Client, ack: StoredAct) -> Force:
    copy = await JetStreamApi(client, timeout_s=FORCE_TIMEOUT_S).last_message(LOG, ack.subject)
    if copy is None or copy.source_seq < ack.seq:
        return Force(in_force=False, why=f"NATS has not passed it on to {LOG}, which the services see to")
    try:
        reply = await request(client, "sickbay.v1.status", b'{"limit":1}', timeout_s=FORCE_TIMEOUT_S)
    except nats.errors.NoRespondersError:
        return Force(in_force=False, log_seq=copy.seq, why=NO_SERVICE)
    folded = int(json.loads(reply.data)["seq"])
    if folded < copy.seq:
        return Force(in_force=False, log_seq=copy.seq, why=f"the services are at {folded} of the log")
    return Force(in_force=True, log_seq=copy.seq)


async def publish_outcome(client: Client, target: Target, outcome: CallOutcome, *, replica: str) -> StoredAct:
    """Store one outcome, as a raw publisher would. Raises `InvalidValue` for an empty target, `NameRefused`,
    `NotStored`."""
    if target.is_empty:
        raise InvalidValue("provider, model", f"{target.provider} {target.model}", "a provider and a model, not empty")
    named = msgspec.structs.replace(outcome, id=outcome.id or f"{secrets.token_hex(8)}-1")
    assert named.id is not None
    return await publish(client, outcome_subject(replica, target), encode(named), named.id)


async def publish_probe(client: Client, target: Target, result: ProbeResult, *, replica: str) -> StoredAct:
    """Store the result of one active check; `result.id` tells it from others. Raises `NameRefused`, `NotStored`."""
    return await publish(client, probe_subject(replica, target), encode(result), result.id or new_id())


def new_id() -> str:
    """An id for an event of a publisher that counts nothing."""
    return secrets.token_hex(12)


async def publish(
    client: Client, subject: str, payload: bytes, msg_id: str, *, expect_seq: int | None = None
) -> StoredAct:
    """Publish into whichever stream takes the subject and wait for its word. Raises `NotStored`, `NoJetStream`,
    and `PermissionDenied` at once where the user may not publish it.

    `expect_seq`: only if the subject's last message has this sequence (0: there is none).
    """
    headers = {"Nats-Msg-Id": msg_id}
    if expect_seq is not None:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(expect_seq)
    try:
        reply = await request(client, subject, payload, timeout_s=ACK_TIMEOUT_S, headers=headers)
    except nats.errors.NoRespondersError:
        raise NotStored(subject, "no stream takes it; is `sickbay serve` running against this NATS?") from None
    except (TimeoutError, nats.errors.Error) as error:
        raise NotStored(subject, _said(error)) from error
    answer = json.loads(reply.data)
    if refusal := answer.get("error"):
        if refusal.get("err_code") in (10076, 10039):
            raise NoJetStream(refusal.get("description", "JetStream is not enabled"))
        code = int(refusal.get("err_code", 0))
        raise NotStored(subject, f"{refusal.get('description', '')} (error {code})", code)
    return StoredAct(
        stream=answer["stream"], seq=answer["seq"], subject=subject, id=msg_id, duplicate=answer.get("duplicate", False)
    )


def _said(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {ACK_TIMEOUT_S:.0f} s: the stream has no leader"
    return str(error) or type(error).__name__
