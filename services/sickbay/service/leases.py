"""Trial leases, as the services keep them: at most one holder of a hold's trial in the whole cluster (Rule 5.2).

A lease is one key of the trials bucket, `<scope key>.<rule>.<began_seq>`, made by compare-and-set with a TTL of the
attempt's limit plus 5 s. Whoever answers keeps nothing in memory: the key and the token in it say all, so any
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
from ..bus.topology import TRIALS_PREFIX, TRIALS_STREAM

TIMEOUT_S: Final = 2.0
"""For one request to the bucket's leader."""
TRIES_MAX: Final = 4
"""A key that expires while it is looked at is tried anew; nobody's key changes more often than this in one request."""
TOMBSTONE_TTL: Final = "1s"
_WRONG_LAST_SEQUENCE: Final = (10071, 10164)
"""The second is a cluster's, when the put that came first is still on its way to the other nodes."""
_ON_ITS_WAY_S: Final = 0.002
_LEASED_RULES: Final = tuple(rule for rule in RULES if rule != "operator")


class LeaseRefused(ValueError):
    """A request that names a lease which cannot be.

    Attributes: `field`, `value`, `accepted` (the accepted form in words).
    """

    def __init__(self, field: str, value: object, accepted: str) -> None:
        self.field, self.value, self.accepted = field, value, accepted
        super().__init__(f"{field}: {value!r} is not accepted; accepted is {accepted}")


class NotCurrent(BusError):
    """This instance reads the log first: it knows neither which holds stand nor for how long. Another one may."""


class BucketSilent(BusError):
    """The trials bucket did not store or tell: no leader, no stream, no connection."""


class Value(msgspec.Struct, frozen=True):
    """What stands under a key while it is held."""

    replica: str
    token: str
    limit_ms: int


class CurrentLease(NamedTuple):
    """What stands under a key now: `value` None for a tombstone; `seq` 0 for nothing at all."""

    seq: int
    value: Value | None = None
    time_ms: int = 0


class Leases:
    """Answers `TrialAsk`.

    fleet        the state of this instance: an early trial that it knows to be spent is not given again
    now_ms       log time
    is_current   whether both are true by now
    """

    def __init__(
        self, client: Client, *, fleet: Callable[[], Fleet], now_ms: Callable[[], int], is_current: Callable[[], bool]
    ) -> None:
        self._client, self._fleet, self._now_ms, self._is_current = client, fleet, now_ms, is_current
        self._api = JetStreamApi(client, timeout_s=TIMEOUT_S)

    async def answer(self, ask: TrialAsk) -> TrialAnswer:
        """Do what is asked. Raises `LeaseRefused`, `NameRefused`, `NotCurrent`, and `BucketSilent` when nobody can
        say."""
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
        """Take every lease, or renew it; what was taken is given back at once if a later one fails."""
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
        """Seconds until this replica may try the hold, if it stands here and wants no trial of its yet."""
        entry, now_ms = self._fleet().entry(name.scope), self._now_ms()
        for hold in entry.holds if entry is not None else ():
            if (hold.rule, hold.began_seq) == (name.rule, name.began_seq) and now_ms < hold.end_ms:
                from_ms = trial_from_ms(hold, replica, self._fleet().replicas(now_ms))
                if not denies(hold, now_ms, replica) or 0 < from_ms <= now_ms:
                    return 0.0
                return ((from_ms or hold.end_ms) - now_ms) / 1000
        return 0.0

    async def _take_one(self, name: LeaseName, value: Value, *, renew: bool) -> tuple[int, float]:
        """(sequence of the key, 0.0) if it is ours now, else (0, seconds for which another one may hold it)."""
        standing = CurrentLease(0)
        if renew:
            standing = await self._standing(name)
        for _ in range(TRIES_MAX):
            held = standing.value
            if held is not None and held.token != value.token:
                break
            if held is not None and not renew:
                return standing.seq, 0.0  # asked again, since the first answer was lost
            seq = await self._put(name, msgspec.json.encode(value), f"{self._ttl_s(value.limit_ms)}s", standing.seq)
            if seq:
                return seq, 0.0
            seen, standing = standing, await self._standing(name)
            if standing == seen:
                await asyncio.sleep(_ON_ITS_WAY_S)  # what came first cannot be read yet
        left_ms = 1000
        if standing.value is not None:
            left_ms = standing.time_ms + self._ttl_s(standing.value.limit_ms) * 1000 - self._now_ms()
        return 0, max(left_ms, 1) / 1000

    async def _give_back(self, name: LeaseName, token: str) -> None:
        for _ in range(TRIES_MAX):
            standing = await self._standing(name)
            if standing.value is None or standing.value.token != token or await self._bury(name, standing.seq):
                return
            await asyncio.sleep(_ON_ITS_WAY_S)  # its own renewal is on its way

    async def _undo(self, done: list[tuple[LeaseName, int]]) -> None:
        for name, seq in done:
            try:
                await self._bury(name, seq)
            except (ApiError, TimeoutError, nats.errors.Error, OSError):
                continue  # its TTL frees it

    async def _bury(self, name: LeaseName, seq: int) -> int:
        """Put a tombstone on a key, which the next one who takes it expects, or which is gone after a second."""
        return await self._put(name, b"", TOMBSTONE_TTL, seq, {"KV-Operation": "DEL"})

    async def _standing(self, name: LeaseName) -> CurrentLease:
        """What stands under a key, by the word of the bucket's leader."""
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
            value = Value("", "", 0)  # somebody else's key: it stands until its time is over
        return CurrentLease(message["seq"], value, parse_rfc3339_ns(message["time"]) // 1_000_000)

    async def _put(
        self, name: LeaseName, data: bytes, ttl: str, expected: int, more: dict[str, str] | None = None
    ) -> int:
        """Put a key if `expected` is its last sequence (0: there is none); its new sequence, or 0 if it is not."""
        headers = {"Nats-Expected-Last-Subject-Sequence": str(expected), "Nats-TTL": ttl, **(more or {})}
        reply = await self._client.request(_subject(name), data, timeout=TIMEOUT_S, headers=headers)
        answer = json.loads(reply.data)
        refusal = answer.get("error")
        if refusal is None:
            return int(answer["seq"])
        code = int(refusal.get("err_code", 0))
        if code in _WRONG_LAST_SEQUENCE:
            return 0
        raise ApiError(_subject(name), code, refusal.get("description", ""))


def _subject(name: LeaseName) -> str:
    return f"{TRIALS_PREFIX}{name.scope}.{name.rule}.{name.began_seq}"


def _check(ask: TrialAsk) -> None:
    target = Target(ask.provider, ask.model)
    if target.is_empty:
        raise LeaseRefused("provider, model", f"{ask.provider} {ask.model}", "a provider and a model, not empty")
    keys = target.keys
    for at, name in enumerate(ask.leases):
        if name.scope not in keys:
            raise LeaseRefused(f"leases[{at}].scope", name.scope, f"a scope key of the target: {', '.join(keys)}")
        if name.rule not in _LEASED_RULES:
            raise LeaseRefused(f"leases[{at}].rule", name.rule, f"one of {', '.join(_LEASED_RULES)}")
    if len(set(ask.leases)) < len(ask.leases):
        raise LeaseRefused("leases", ask.leases, "each lease once")
