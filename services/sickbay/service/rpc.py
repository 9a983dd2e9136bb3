"""Questions to a process that folds along, by request and reply, and an operator's acts.

A nats.micro service named `sickbay`: `nats micro ls|info|stats` show it, several instances share the work by
queue group, and what is wrong with a request comes back as a service error with a code and the field's name.

    sickbay.v1.status      {"provider"?, "model"?, "all"?, "limit"?, "after"?, "warnings"?}   what is held, or all
                           targets by pages
    sickbay.v1.decide      {"provider", "model", "replica"?}          a decision with the target's whole counters
    sickbay.v1.explain     {"provider", "model"?, "near"?}            the documents of a scope and of those around it
    sickbay.v1.trial       {"replica", "provider", "model", "leases", "token", "limit_ms"?, "action"?}   a trial's lease
    sickbay.operate.v1.hold|allow|clear  {"provider", "model"?, "reason", "actor", "for_s"? or "until"?}
    sickbay.operate.v1.policy            {} shows it; {"policy", "expect", "reason", "actor"} sets it

Answers carry times left (`_s`), and the log sequence they rest on.
"""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from importlib.metadata import version
from itertools import islice
from typing import Annotated, Any, Final, Protocol, TypeAlias

import msgspec
import nats.errors
from msgspec import Meta
from nats.aio.client import Client
from nats.micro import add_service
from nats.micro.request import Request
from nats.micro.service import Service

from sickbay_events import NameRefused, PolicyRefused, Scope, Target, rfc3339
from sickbay_events.harmless import harmless
from sickbay_events.lease_wire import NOT_CURRENT, TrialAsk
from sickbay_projections import Fleet

from ..bus.connect import BusError
from ..control.acts import publish_override, scope_of
from ..control.policies import PolicyMoved, current_policy, set_policy
from ..invalid import InvalidValue
from ..log.transitions import warnings_of
from ..loggers import logger
from ..projector.health import ProjectorHealth
from .known import held_below, held_keys, is_anything_heard, is_known, near_names, told_document
from .leases import Leases, NotCurrent
from .turns import Turns, asker_of

_log = logger("sickbay.rpc")

NAME: Final = "sickbay"
QUEUE_GROUP: Final = "sickbay"
LIMIT_MAX: Final = 1_000
REPLY_BYTES_MAX: Final = 900_000
"""NATS refuses messages over 1 MB by default; a longer answer goes on at `next`."""
WARNINGS_MAX: Final = 100
"""Kinds of warnings in one answer."""
BAD_REQUEST: Final = "400"
MOVED: Final = "409"
NOT_STORED: Final = "503"
_ERRORS: Final = {
    NOT_CURRENT: "this instance reads the log first; another one may know",
    BAD_REQUEST: "a field is not accepted, and which",
    MOVED: "another policy stands than the one expected",
    NOT_STORED: "NATS did not store or tell it",
}

Name: TypeAlias = Annotated[str, Meta(max_length=1_024)]


class RpcRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of requests. An unknown field is an error, because a misspelled question would get a wrong answer."""


class StatusAsk(RpcRequest, kw_only=True):
    """What is held now; with `all`, every target."""

    provider: Name | None = None
    model: Name | None = None
    all: bool = False
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = 200
    after: str = ""
    """Scope key to go on after: `next` of the answer before."""
    digest: bool = False
    """Also the digest of the whole state at the answer's sequence."""
    warnings: bool = False
    """Also the warnings of the last 24 hours, the latest first: the caller needs no right to read them itself."""


class DecideAsk(RpcRequest, kw_only=True):
    """May this replica call this target now?"""

    provider: Name
    model: Name
    replica: Name = ""


class ExplainAsk(RpcRequest, kw_only=True):
    """Everything that is known about a scope and the scopes around it."""

    provider: Name
    model: Name | None = None
    near: bool = False
    """Also whether the name is `known`, whether anything was `heard` yet, and which known names are `near` it."""


class OperateAsk(RpcRequest, kw_only=True):
    """An operator's act. `reason` and `actor` say why and who."""

    provider: Name
    reason: str
    actor: str
    model: Name | None = None
    until: str | None = None
    for_s: float | None = None
    id: Annotated[str, Meta(pattern=r"^[!-~]{1,128}$")] | None = None
    """Sent again under the same id within two minutes it is done once."""


class PolicyAsk(RpcRequest, kw_only=True):
    """Set the policy in the place of the one with the sequence `expect`; without `policy` the one that stands."""

    policy: dict[str, Any] | None = None
    expect: int | None = None
    reason: str = ""
    actor: str = ""


class Folds(Protocol):
    """What is asked: a process that folds along (a `Projector`)."""

    @property
    def fleet(self) -> Fleet:
        """The whole state."""
        ...

    @property
    def is_current(self) -> bool:
        """Whether the state is at the log's end, and its time known."""
        ...

    def now_ms(self) -> int:
        """Log time now."""
        ...

    def health(self) -> ProjectorHealth:
        """Facts about this process."""
        ...


def answer_status(folds: Folds, ask: StatusAsk) -> dict[str, Any]:
    """Answer to `StatusAsk`: documents of what is held, or of all targets, one page."""
    fleet, now_ms = folds.fleet, folds.now_ms()
    wanted = None if ask.provider is None else scope_of(ask.provider, ask.model).key
    keys: Iterable[str] = fleet.keys() if ask.all else held_keys(fleet, now_ms)
    within = sorted(key for key in keys if key > ask.after and (wanted is None or _is_within(key, wanted)))
    documents: list[dict[str, Any]] = []
    last, size = "", 0
    for key in islice(within, ask.limit):
        found = told_document(fleet, key, now_ms)
        if found is not None:
            size += len(msgspec.json.encode(found))
            if documents and size > REPLY_BYTES_MAX:
                break
            documents.append(found)
        last = key
    more = bool(within) and last != within[-1]
    return {
        **_head(fleet, now_ms),
        "shadow": msgspec.to_builtins(fleet.policy.shadow),
        "projector": msgspec.to_builtins(folds.health()),
        "scopes": documents,
        "next": last if more else None,
        **({"digest": fleet.digest()} if ask.digest else {}),
    }


def answer_decide(folds: Folds, ask: DecideAsk) -> dict[str, Any]:
    """Answer to `DecideAsk`: the decision, and under `counters` the documents it rests on, widest scope first."""
    fleet, now_ms = folds.fleet, folds.now_ms()
    target = Target(ask.provider, ask.model)
    decision = fleet.decide(target, now_ms, replica=ask.replica)
    keys = () if target.is_empty else target.keys
    counters = [found for key in keys if (found := fleet.document(key, now_ms)) is not None]
    return {**_head(fleet, now_ms), **msgspec.to_builtins(decision), "seq": fleet.seq, "counters": counters}


def answer_explain(folds: Folds, ask: ExplainAsk) -> dict[str, Any]:
    """Answer to `ExplainAsk`: the decision where a model is named, and the documents of the scopes around it."""
    fleet, scope, now_ms = folds.fleet, scope_of(ask.provider, ask.model), folds.now_ms()
    answer = documents_around(fleet, scope, now_ms)
    if ask.near:
        answer["known"] = is_known(fleet, scope, now_ms)
        answer["heard"] = is_anything_heard(fleet)
        answer["near"] = [] if answer["known"] else near_names(fleet, scope)
    return answer


def documents_around(fleet: Fleet, scope: Scope, at_ms: int) -> dict[str, Any]:
    """The documents of a scope and of those around it at a log time; for a model the decision, else what is held
    `below`."""
    chain = [Scope(scope.host)]
    if scope.alias is not None:
        chain.append(Scope(scope.host, scope.alias))
    if scope.model is not None:
        chain.append(scope)
    found = [document for part in chain if (document := told_document(fleet, part.key, at_ms)) is not None]
    answer = {**_head(fleet, at_ms), "scope": scope.key, "scopes": found}
    if scope.model is not None:
        answer["decision"] = msgspec.to_builtins(fleet.decide(Target(scope.provider, scope.model), at_ms))
    else:
        answer["below"] = held_below(fleet, scope, at_ms)
    return answer


def _head(fleet: Fleet, now_ms: int) -> dict[str, Any]:
    return {"seq": fleet.seq, "policy_seq": fleet.policy_seq, "at": rfc3339(now_ms)}


def _is_within(key: str, wanted: str) -> bool:
    """Whether a scope is the wanted one, below it or around it."""
    return f"{key}.".startswith(f"{wanted}.") or f"{wanted}.".startswith(f"{key}.")


class Endpoint(msgspec.Struct, frozen=True):
    """One row of the table of endpoints."""

    subject: str
    ask: type[RpcRequest] | type[TrialAsk]
    example: str
    says: str

    @property
    def errors(self) -> tuple[str, ...]:
        """Codes of the service errors it answers with."""
        if self.ask is PolicyAsk:
            return BAD_REQUEST, MOVED, NOT_STORED
        if self.ask is TrialAsk:
            return BAD_REQUEST, NOT_CURRENT, NOT_STORED
        return (BAD_REQUEST,) if self.ask in _QUESTIONS else (BAD_REQUEST, NOT_STORED)

    @property
    def name(self) -> str:
        """Name of the endpoint: the last word of its subject."""
        return self.subject.rpartition(".")[2]


_TARGET_EXAMPLE: Final = '"provider":"openrouter.ai","model":"z-ai/glm-5.3"'
_TRIAL_EXAMPLE: Final = (
    f'{{"replica":"router-1",{_TARGET_EXAMPLE},"token":"4f1c","limit_ms":60000,'
    '"leases":[{"scope":"openrouter=2Eai.=.z-ai/glm-5=2E3","rule":"breaker","began_seq":4711}]}'
)
_ACT_EXAMPLE: Final = f'{{{_TARGET_EXAMPLE},"reason":"maintenance","actor":"ana"'
_POLICY_EXAMPLE: Final = '{"policy":{"rejections":{"threshold":3}},"expect":0,"reason":"load tests","actor":"ana"}'
ENDPOINTS: Final = (
    Endpoint("sickbay.v1.status", StatusAsk, "{}", "What is held now and for how long; with all, every target."),
    Endpoint("sickbay.v1.decide", DecideAsk, f"{{{_TARGET_EXAMPLE}}}", "May this target be called, and its counters."),
    Endpoint(
        "sickbay.v1.explain", ExplainAsk, f"{{{_TARGET_EXAMPLE}}}", "All that is known of a scope and its parents."
    ),
    Endpoint("sickbay.v1.trial", TrialAsk, _TRIAL_EXAMPLE, "Take, renew or give back the leases of a trial."),
    Endpoint("sickbay.operate.v1.hold", OperateAsk, f'{_ACT_EXAMPLE},"for_s":1800}}', "Keep every replica from it."),
    Endpoint("sickbay.operate.v1.allow", OperateAsk, f'{_ACT_EXAMPLE},"for_s":600}}', "Let calls pass in any case."),
    Endpoint("sickbay.operate.v1.clear", OperateAsk, f"{_ACT_EXAMPLE}}}", "End its holds, forget its counts."),
    Endpoint("sickbay.operate.v1.policy", PolicyAsk, _POLICY_EXAMPLE, "Set the policy, or say which one stands."),
)

_QUESTIONS: Final[dict[type, Callable[[Folds, Any], dict[str, Any]]]] = {
    StatusAsk: answer_status,
    DecideAsk: answer_decide,
    ExplainAsk: answer_explain,
}


_REFUSALS: Final = (NameRefused, InvalidValue, PolicyRefused)


class Rpc:
    """The service on one client. Belongs to the client's event loop; make another one for another client.

    trials   counts answers about trials' leases: `granted`, `taken`, `given_back`, `refused`, `silent`
    """

    def __init__(self, client: Client, folds: Folds, *, instance: str, trials: Counter[str] | None = None) -> None:
        self._client, self._folds, self._instance = client, folds, instance
        self._trials = Counter[str]() if trials is None else trials
        self._leases = Leases(
            client, fleet=lambda: folds.fleet, now_ms=folds.now_ms, is_current=lambda: folds.is_current
        )
        self._service: Service | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Take requests from now on. Raises `nats.errors.Error` when the connection is gone."""
        with warnings.catch_warnings():
            # nats-py's service calls datetime.utcnow(), which Python deprecates from 3.12 on.
            warnings.simplefilter("ignore", DeprecationWarning)
            service = await add_service(
                self._client,
                name=NAME,
                version=version("sickbay"),
                description="Which (provider, model) may be called now, and why.",
                queue_group=QUEUE_GROUP,
                metadata={"instance": self._instance},
            )
        self._service = service
        for row in ENDPOINTS:
            metadata = {
                "says": row.says,
                "example": row.example,
                "schema": _schema(row.ask),
                "errors": "; ".join(f"{code} {_ERRORS[code]}" for code in row.errors),
            }
            await service.add_endpoint(
                name=row.name, subject=row.subject, handler=self._handler(row), metadata=metadata
            )

    async def stop(self) -> None:
        """Take no more requests. Never raises."""
        service, self._service = self._service, None
        for task in self._tasks:
            task.cancel()
        if service is None:
            return
        try:
            await service.stop()
        except (nats.errors.Error, OSError):
            _log.debug("the service's subscriptions went with their connection")

    def _handler(self, row: Endpoint) -> Callable[[Request], Awaitable[None]]:
        decoder = msgspec.json.Decoder(row.ask)

        async def handle(request: Request) -> None:
            if not request._msg.reply:
                return  # published, not requested: no reply is expected
            if row.ask is TrialAsk:
                # nats-py hands an endpoint one request at a time, and a trial cannot wait for those before it.
                task = asyncio.create_task(reply(request), name="sickbay-trial")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                turns.add(asker_of(request._msg.reply), request)

        async def reply(request: Request) -> None:
            try:
                ask = decoder.decode(request.data or b"{}")
                answer = await self._answer(row, ask)
            except (msgspec.DecodeError, UnicodeDecodeError, *_REFUSALS) as error:
                await _refuse(request, BAD_REQUEST, f"{error}; an example is {row.example}")
            except PolicyMoved as error:
                await _refuse(request, MOVED, str(error), expected=error.expected, found=error.found)
            except NotCurrent as error:
                await _refuse(request, NOT_CURRENT, str(error))
            except BusError as error:
                await _refuse(request, NOT_STORED, str(error))
            else:
                await request.respond(msgspec.json.encode(answer))

        async def answer_one(request: Request) -> None:
            try:
                await reply(request)
            except (nats.errors.Error, OSError) as error:
                _log.debug("an answer did not go out: %s", error)  # the connection is lost, and its questions with it
            except Exception:  # noqa: BLE001 - one question must not end the answers to all others
                _log.exception("a question on %s could not be answered", row.subject)

        # Each endpoint has its own: a flood of questions keeps no operator's act waiting.
        turns = Turns(answer_one)
        if row.ask is not TrialAsk:
            self._tasks.add(asyncio.create_task(turns.run(), name=f"sickbay-{row.name}"))
        return handle

    async def _answer(self, row: Endpoint, ask: RpcRequest | TrialAsk) -> dict[str, Any]:
        question = _QUESTIONS.get(row.ask)
        if question is not None:
            answer = question(self._folds, ask)
            if isinstance(ask, StatusAsk) and ask.warnings:
                answer["warnings"] = (await warnings_of(self._client, None, answer["at"]))[:WARNINGS_MAX]
            return answer
        if isinstance(ask, TrialAsk):
            return await self._trial(ask)
        if isinstance(ask, PolicyAsk):
            return await self._policy(ask)
        assert isinstance(ask, OperateAsk)
        scope = scope_of(ask.provider, ask.model)
        said = {"reason": ask.reason, "actor": ask.actor, "until": ask.until, "for_s": ask.for_s}
        ack = await publish_override(self._client, scope, row.name, **said, act_id=ask.id)
        found: dict[str, Any] = msgspec.to_builtins(ack)
        return found

    async def _trial(self, ask: TrialAsk) -> dict[str, Any]:
        word = "silent"
        try:
            answer = await self._leases.answer(ask)
            word = "given_back" if ask.action == "give_back" else "granted" if answer.granted else "taken"
        except (InvalidValue, NameRefused):
            word = "refused"
            raise
        finally:
            self._trials[word] += 1
        found: dict[str, Any] = msgspec.to_builtins(answer)
        return found

    async def _policy(self, ask: PolicyAsk) -> dict[str, Any]:
        if ask.policy is None:
            current: dict[str, Any] = msgspec.to_builtins(await current_policy(self._client))
            return {**current, "in_force_seq": self._folds.fleet.policy_seq}
        done = await set_policy(self._client, ask.policy, expect=ask.expect, reason=ask.reason, actor=ask.actor)
        changed = {key: {"old": old, "new": new} for key, old, new in done.changes}
        return {"changed": changed, "ack": msgspec.to_builtins(done.ack)}


async def _refuse(request: Request, code: str, why: str, **facts: int) -> None:
    # A header is one line of printable ASCII; a name in it may hold anything.
    line = harmless(why, limit=1_000).encode("ascii", "backslashreplace").decode()[:1_000]
    await request.respond_error(code, line, msgspec.json.encode({"error": {"code": code, "why": why, **facts}}))


def _schema(ask: type) -> str:
    return msgspec.json.encode(msgspec.json.schema(ask)).decode()
