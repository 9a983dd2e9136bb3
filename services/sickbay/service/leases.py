"""Trial leases, as the services keep them: at most one holder of a hold's trial in the whole cluster (Rule 5.2).

A lease is one key of the trials bucket, `<scope key>.<rule>.<began_seq>`, made by compare-and-set with a TTL of the
attempt's limit plus 5 s. The services keep nothing of it in memory: the key and the token in it say all, so any
instance of the services can answer any request of any router. Routers ask; they never write the bucket.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import nats.errors
from nats.aio.client import Client

from sickbay_events import Target
from sickbay_events.derived import RULES
from sickbay_events.lease_wire import LeaseName, TrialAnswer, TrialAsk, ttl_s
from sickbay_projections import Fleet
from sickbay_projections.decide import denies, trial_from_ms

from ..bus.connect import BusError
from ..bus.jetstream import NO_MESSAGE_FOUND, ApiError, JetStreamApi, parse_rfc3339_ns
from ..bus.publish import WRONG_LAST_SEQUENCE
from ..bus.topology import TRIALS_PREFIX, TRIALS_STREAM
from ..invalid import InvalidValue

TIMEOUT_S: Final = 2.0
"""For one request to the bucket's leader."""
TRIES_MAX: Final = 4
"""A key that expires while it is read is tried anew. No key changes more often than this within one request."""
TOMBSTONE_TTL: Final = "1s"
_ON_ITS_WAY_S: Final = 0.002
_NEWER_S: Final = 0.05
"""Until then a router's view knows under which name the hold has begun again."""
_LEASED_RULES: Final = tuple(rule for rule in RULES if rule != "operator")


class NotCurrent(BusError):
    """This instance still reads the log, so it does not know the current holds. Another instance may."""


class BucketSilent(BusError):
    """The trials bucket did not answer: no leader, no stream, no connection."""


class Value(msgspec.Struct, frozen=True):
    """The content of a key while its lease is held."""

    replica: str
    token: str
    limit_ms: int


class CurrentLease(NamedTuple):
    """The current content of a key. `value` None: a tombstone. `seq` 0: nothing at all."""

    seq: int
    value: Value | None = None
    time_ms: int = 0


class Leases:
    """Answers `TrialAsk`.

    fleet        the state of this instance: an early trial that is spent there is not granted again
    now_ms       log time
    is_current   whether the state is at the log's end, and the time known
    """

    def __init__(
        self, client: Client, *, fleet: Callable[[], Fleet], now_ms: Callable[[], int], is_current: Callable[[], bool]
    ) -> None:
        self._client, self._fleet, self._now_ms, self._is_current = client, fleet, now_ms, is_current
        self._api = JetStreamApi(client, timeout_s=TIMEOUT_S)

    async def answer(self, ask: TrialAsk) -> TrialAnswer:
        """Answer one request.

        Raises `InvalidValue`, `NameRefused`, `NotCurrent`, and `BucketSilent` when the bucket does not answer.
        """
        _check(ask)
        if ask.action != "give_back" and not self._is_current():
            raise NotCurrent("this instance of the services has not read the log to its end yet")
        try:
            if ask.action == "give_back":
                for name in ask.leases:
                    await self._give_back(name, ask.token)
                return TrialAnswer(granted=False, token=ask.token)
            return await self._take(ask)
        except ApiError as error:
            raise BucketSilent(f"{TRIALS_STREAM}: {error}") from error
        except (TimeoutError, nats.errors.Error, OSError) as error:
            raise BucketSilent(f"{TRIALS_STREAM} does not answer: {error or type(error).__name__}") from error

    def _ttl_s(self, limit_ms: int) -> int:
        return ttl_s(limit_ms, self._fleet().policy.trials)

    async def _take(self, ask: TrialAsk) -> TrialAnswer:
        """Take or renew every lease. If one fails, those taken before it are given back at once."""
        value = Value(ask.replica, ask.token, ask.limit_ms)
        done: list[tuple[LeaseName, int]] = []
        try:
            for name in ask.leases:
                seq, left_s = 0, 0.0 if ask.action == "renew" else self._spent_s(name, ask.replica)
                if not left_s:
                    seq, left_s = await self._take_one(name, value, renew=ask.action == "renew")
                if left_s:
                    await self._undo(done)
                    return TrialAnswer(granted=False, token=ask.token, taken=name, retry_in_s=left_s)
                done.append((name, seq))
        except BaseException:
            await self._undo(done)
            raise
        return TrialAnswer(granted=True, token=ask.token, expires_in_ms=self._ttl_s(ask.limit_ms) * 1000)

    def _spent_s(self, name: LeaseName, replica: str) -> float:
        """Seconds until this replica may try the hold, if it wants no trial of its yet, or has begun again under a
        newer name: a router whose view does not know that yet would make the trial that has just failed once more."""
        entry, now_ms = self._fleet().entry(name.scope), self._now_ms()
        for hold in entry.holds if entry is not None else ():
            is_newer = hold.began_seq > name.began_seq
            if hold.rule != name.rule or hold.began_seq < name.began_seq or (now_ms >= hold.end_ms and not is_newer):
                continue
            from_ms = trial_from_ms(hold, replica, self._fleet().replicas(now_ms))
            is_wanted = not denies(hold, now_ms, replica) or 0 < from_ms <= now_ms
            if not is_wanted:
                return ((from_ms or hold.end_ms) - now_ms) / 1000
            return _NEWER_S if is_newer else 0.0
        return 0.0

    async def _take_one(self, name: LeaseName, value: Value, *, renew: bool) -> tuple[int, float]:
        """(sequence of the key, 0.0) if the caller has it now, else (0, seconds for which another may hold it)."""
        current = CurrentLease(0)
        if renew:
            current = await self._current(name)
        for _ in range(TRIES_MAX):
            held = current.value
            if held is not None and held.token != value.token:
                break
            if held is not None and not renew:
                return current.seq, 0.0  # asked again, since the first answer was lost
            seq = await self._put(name, msgspec.json.encode(value), f"{self._ttl_s(value.limit_ms)}s", current.seq)
            if seq:
                return seq, 0.0
            seen, current = current, await self._current(name)
            if current == seen:
                await asyncio.sleep(_ON_ITS_WAY_S)  # what came first cannot be read yet
        left_ms = 1000
        if current.value is not None:
            left_ms = current.time_ms + self._ttl_s(current.value.limit_ms) * 1000 - self._now_ms()
        return 0, max(left_ms, 1) / 1000

    async def _give_back(self, name: LeaseName, token: str) -> None:
        for _ in range(TRIES_MAX):
            current = await self._current(name)
            if current.value is None or current.value.token != token or await self._bury(name, current.seq):
                return
            await asyncio.sleep(_ON_ITS_WAY_S)  # its own renewal is on its way

    async def _undo(self, done: list[tuple[LeaseName, int]]) -> None:
        for name, seq in done:
            try:
                await self._bury(name, seq)
            except (ApiError, TimeoutError, nats.errors.Error, OSError):
                continue  # its TTL frees it

    async def _bury(self, name: LeaseName, seq: int) -> int:
        """Put a tombstone on a key: the next taker expects it, or the server removes it after a second."""
        return await self._put(name, b"", TOMBSTONE_TTL, seq, {"KV-Operation": "DEL"})

    async def _current(self, name: LeaseName) -> CurrentLease:
        """The content of a key, asked of the bucket's leader."""
        try:
            answer = await self._api.request(f"STREAM.MSG.GET.{TRIALS_STREAM}", {"last_by_subj": _subject(name)})
        except ApiError as error:
            if error.code == NO_MESSAGE_FOUND:
                return CurrentLease(0)
            raise
        message = answer["message"]
        data = b64decode(message.get("data", ""))
        if not data:
            return CurrentLease(message["seq"])
        try:
            value = msgspec.json.decode(data, type=Value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            value = Value("", "", 0)  # not written by Sickbay: it stands until it expires
        return CurrentLease(message["seq"], value, parse_rfc3339_ns(message["time"]) // 1_000_000)

    async def _put(
        self, name: LeaseName, data: bytes, ttl: str, expected: int, more: dict[str, str] | None = None
    ) -> int:
        """Put a key if `expected` is its last sequence (0: no key). Returns the new sequence, or 0 if it is not."""
        headers = {"Nats-Expected-Last-Subject-Sequence": str(expected), "Nats-TTL": ttl, **(more or {})}
        reply = await self._client.request(_subject(name), data, timeout=TIMEOUT_S, headers=headers)
        answer = json.loads(reply.data)
        refusal = answer.get("error")
        if refusal is None:
            return int(answer["seq"])
        code = int(refusal.get("err_code", 0))
        if code in WRONG_LAST_SEQUENCE:
            return 0
        raise ApiError(_subject(name), code, refusal.get("description", ""))


def _subject(name: LeaseName) -> str:
    return f"{TRIALS_PREFIX}{name.scope}.{name.rule}.{name.began_seq}"


def _check(ask: TrialAsk) -> None:
    target = Target(ask.provider, ask.model)
    if target.is_empty:
        raise InvalidValue("provider, model", f"{ask.provider} {ask.model}", "a provider and a model, not empty")
    keys = target.keys
    for at, name in enumerate(ask.leases):
        if name.scope not in keys:
            raise InvalidValue(f"leases[{at}].scope", name.scope, f"a scope key of the target: {', '.join(keys)}")
        if name.rule not in _LEASED_RULES:
            raise InvalidValue(f"leases[{at}].rule", name.rule, f"one of {', '.join(_LEASED_RULES)}")
    if len(set(ask.leases)) < len(ask.leases):
        raise InvalidValue("leases", ask.leases, "each lease once")
