"""The fleet of one history: providers as they truly are, routers that call them, projectors, and who operates them."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from functools import lru_cache
from typing import Any, Final

import msgspec

from sickbay.bus.connect import BusError, NatsOptions
from sickbay.bus.link import Link
from sickbay.bus.topology import CONTROL, LOG
from sickbay.invalid import InvalidValue
from sickbay.projector import Projector
from sickbay.router.client import Sickbay, connect
from sickbay.router.errors import Held
from sickbay.service.leases import Leases, NotCurrent
from sickbay_events import (
    Override,
    Policy,
    PolicyChanged,
    Scope,
    Target,
    Verdict,
    classify,
    encode,
    override_subject,
)
from sickbay_events.codec import POLICY_SUBJECT
from sickbay_events.lease_wire import NOT_CURRENT, TrialAsk
from sickbay_events.lease_wire import SUBJECT as TRIAL_SUBJECT
from sickbay_events.times import rfc3339

from .client import SimClient
from .server import Server
from .virtual import Node, VirtualLoop

URL: Final = "nats://sim:4222"
TARGETS: Final = (
    Target("a.test#team", "m/one"),
    Target("a.test#team", "m/two"),
    Target("a.test#team", "m/three"),
    Target("b.test", "m/one"),
    Target("b.test", "m/four"),
)
TIMES: Final[dict[str, Any]] = {
    "rejections": {"first_s": 0.5, "trial_every_s": 1.5, "hold_s": 4.0, "cap_s": 8.0},
    "credential": {"window_s": 20.0, "hold_s": 3.0, "cap_s": 12.0},
    "throttles": {
        "hint_s": 1.0,
        "cap_s": 8.0,
        "window_s": 4.0,
        "first_s": 0.5,
        "trial_every_s": 1.0,
        "quota_hint_s": 6.0,
        "quota_cap_s": 8.0,
        "trial_max_s": 1.0,
        "quota_trial_max_s": 2.0,
    },
    "breaker": {"first_s": 0.5, "trial_every_s": 1.5, "hold_s": 3.0, "cap_s": 12.0, "impatience_s": 0.5,
                "spread_s": 10.0, "retry_after_cap_s": 20.0},
    "degraded": {"consecutive": 5, "first_s": 0.5, "trial_every_s": 1.5, "hold_s": 3.0, "cap_s": 12.0},
    "witnesses": {"good_answer_s": 3.0, "heard_s": 15.0},
    "evidence": {"record_s": 20.0, "window_s": 20.0, "same_request_s": 5.0, "took_s": 3.0, "forget_s": 15.0,
                 "probation_s": 120.0},
    "ramp": {"part": 4, "max_s": 3.0, "replicas": 3},
    "trials": {"grace_s": 1.0, "self_grant_s": 3.0, "pace_max_s": 3.0, "held_max_s": 2.0, "behind_s": 0.5},
}  # fmt: skip
"""The product's numbers with shorter times: a minute tells what an hour would."""
POLICY: Final = Policy.from_data(TIMES)
LIMIT_S: Final = 1.0

ANSWERS: Final[dict[str, tuple[int | None, str, str | None]]] = {
    "ok": (200, '{"choices":[{"message":{"content":"All is well."},"finish_reason":"stop"}]}', None),
    "gone": (404, '{"error":{"message":"The model `MODEL` does not exist","code":"model_not_found"}}', None),
    "down": (500, '{"error":{"message":"Internal server error"}}', None),
    "slow": (None, "", "timeout"),
    "network": (None, "", "connect"),
    "limited": (429, '{"error":{"message":"Rate limit reached","code":"rate_limit_exceeded"}}', None),
    "quota": (429, '{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}', None),
    "auth": (401, '{"error":{"message":"Incorrect API key provided","code":"invalid_api_key"}}', None),
    "empty": (200, '{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}', None),
    "tools": (200, '{"choices":[{"message":{"content":null,"tool_calls":[{"id":"1","type":"function","function":'
                   '{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}', None),
    "neutral": (400, '{"error":{"message":"Invalid value for temperature","type":"invalid_request_error"}}', None),
}  # fmt: skip
"""What a provider may answer: status, body, transport error."""
CONDITIONS: Final = ("gone", "gone", "down", "down", "slow", "network", "limited", "quota", "auth", "empty")


@lru_cache(maxsize=1_000)
def verdict_of(condition: str, target: Target) -> Verdict:
    """What the product's classifier makes of it."""
    status, body, error = ANSWERS[condition]
    headers = {"retry-after": "1"} if condition == "limited" else {}
    return classify(
        status=status,
        headers=headers,
        body=body.replace("MODEL", target.model),
        requested_model=target.model,
        provider=target.provider.partition("#")[0],
        error=error,
        prompt_ascii=True,
    )


class Router:
    """One router machine and what it calls. It may believe what is not so: `sees` wins over the truth."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.sees: str | None = None
        self.is_liar = False
        self.node: Node = world.node(name)
        self.sb: Sickbay | None = None
        self.trials = 0
        self.node.start(self._main(), "router")

    async def _main(self) -> None:
        self.sb = connect(URL, replica=self.name, machine=self.name)
        self.world.watch_router(self, self.sb)
        async with self.sb:
            while True:
                await asyncio.sleep(self.world.rng.expovariate(1 / self.world.pause_s))
                if self.world.is_calling:
                    self.node.start(self._call(self.sb, self.world.next_target(self)), "call")

    def kept_from(self) -> str:
        """Why this router does not call something freely now; "" if it calls everything."""
        if self.sb is None or self.sb.mirror.is_stale:
            return f"{self.name} is stale"
        for target in TARGETS:
            decision = self.sb.decide(target)
            if not decision.allowed or decision.trial:
                return f"{self.name} {target}: {decision}"
        return ""

    async def _call(self, sb: Sickbay, target: Target) -> None:
        rng = self.world.rng
        condition = self.sees or self.world.truth.get(target, "ok")
        if condition == "ok" and rng.random() < 0.25:
            condition = rng.choice(("tools", "neutral"))
        limit_s = LIMIT_S if rng.random() < 0.95 else 0.3
        took_s = limit_s if condition == "slow" else rng.choice((0.01, 0.05, 0.2, 0.6))
        same = f"{target.model}-{int(self.world.loop.time())}" if rng.random() < 0.3 else None
        for _ in range(rng.choice((1, 3)) if same and condition in ("slow", "empty") else 1):
            try:
                async with sb.attempt(target, limit_s=limit_s, request_hash=same) as attempt:
                    self.trials += attempt.trial is not None
                    try:
                        if condition == "ok" and took_s > 0.1:
                            await asyncio.sleep(0.05)
                            attempt.first_content()
                        await asyncio.sleep(took_s)
                    finally:
                        self.trials -= attempt.trial is not None
                    attempt.verdict = verdict_of(condition, target)
                self.world.counts[f"call {condition}"] += 1
            except Held as held:
                self.world.counts[f"held {held.decision.reason}"] += 1
                return


class Process:
    """One services process: a projector, and the endpoint that gives out leases."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.node: Node = world.node(name)
        self.projector: Projector | None = None
        self.node.start(self._main(), "projector")

    async def _main(self) -> None:
        link = Link(NatsOptions.from_url(URL))
        self.projector = projector = Projector(link, name=self.name, policy=POLICY)
        link.listen(connected=lambda client, fresh: self._serve(client, projector) if fresh else None)
        link.start()
        await projector.run()
        await link.close()

    def _serve(self, client: Any, projector: Projector) -> None:
        leases = Leases(
            client,
            fleet=lambda: projector.fleet,
            now_ms=projector.now_ms,
            is_current=lambda: projector.is_current,
        )

        def ask(item: Any) -> None:
            asyncio.get_running_loop().create_task(self._answer(client, leases, item))

        asyncio.get_running_loop().create_task(client.subscribe(TRIAL_SUBJECT, cb=ask))

    async def _answer(self, client: SimClient, leases: Leases, item: Any) -> None:
        try:
            answer = await leases.answer(msgspec.json.decode(item[3], type=TrialAsk))
        except (BusError, InvalidValue) as error:
            code = NOT_CURRENT if isinstance(error, NotCurrent) else "503"
            await client.publish(item[1].decode(), b"", headers={"Nats-Service-Error-Code": code, "Why": str(error)})
        else:
            await client.publish(item[1].decode(), msgspec.json.encode(answer))


class World:
    """Everything that takes part in one history."""

    def __init__(self, loop: VirtualLoop, server: Server, rng: random.Random) -> None:
        self.loop, self.server, self.rng = loop, server, rng
        self.counts: Counter[str] = Counter()
        self.truth: dict[Target, str] = {}
        """How each target really is; absent: well."""
        self.pause_s = rng.choice((0.08, 0.15, 0.3))
        self.is_calling = True
        self.round: dict[str, int] | None = None
        """Once the faults are over each router calls one target after the other."""
        self.routers: list[Router] = []
        self.processes: list[Process] = []
        self.acked: dict[str, dict[str, int]] = {}
        """By replica: ids that were acknowledged, and their sequence in the log."""

    def node(self, name: str) -> Node:
        """A machine with clocks of its own."""
        rng = self.rng
        return Node(name, self.loop, wall_s=rng.uniform(-5, 5), monotonic_s=rng.uniform(0, 100_000))

    async def start(self) -> None:
        """Projectors begin; routers once the policy stands, which a file seeds only into a log that is still empty."""
        for number in range(self.rng.choice((2, 2, 3))):
            self.processes.append(Process(self, f"p{number}"))
        while CONTROL not in self.server.streams or not self.server.streams[CONTROL].last_seq:
            await asyncio.sleep(0.05)
        for number in range(self.rng.choice((1, 3, 3, 4))):
            self.routers.append(Router(self, f"r{number}"))

    def restart(self, which: Router | Process) -> None:
        """A machine comes back, as a new process."""
        where: list[Any] = self.routers if isinstance(which, Router) else self.processes
        where[where.index(which)] = type(which)(self, which.name)

    def next_target(self, router: Router) -> Target:
        """Which target a router calls now."""
        if self.round is None:
            return self.rng.choice(TARGETS)
        at = self.round[router.name] = self.round.get(router.name, -1) + 1
        return TARGETS[at % len(TARGETS)]

    def watch_router(self, router: Router, sb: Sickbay) -> None:
        """Note what the reporter is told to be in the log."""
        reporter: Any = sb.reporter
        told, acked = reporter._on_ack, self.acked.setdefault(router.name, {})

        def on_ack(target: Target, event: Any, n: int, log_seq: int) -> None:
            acked[f"{reporter.boot}-{n}"] = log_seq
            told(target, event, n, log_seq)

        reporter._on_ack = on_ack

    # What operators do, and others by hand.

    def override(self, scope: Scope, action: Any, for_s: float) -> None:
        """An operator's act."""
        control = self.server.streams.get(CONTROL)
        if control is not None:
            until = None if action == "clear" else rfc3339(self.server.now_ns() // 10**6 + int(for_s * 1000))
            event = Override(action=action, reason="sim", actor="op", until=until)
            self.server.store(control, override_subject(scope), {}, encode(event))

    def set_policy(self, data: dict[str, Any]) -> None:
        """Another policy."""
        control = self.server.streams.get(CONTROL)
        if control is not None:
            self.server.store(control, POLICY_SUBJECT, {}, encode(PolicyChanged(policy=data, actor="op")))

    def raw(self, payload: bytes, target: Target = TARGETS[0], subject: str = "") -> bool:
        """Something that a stranger publishes."""
        log = self.server.streams.get(LOG)
        if log is not None:
            self.server.store(log, subject or f"sickbay.outcome.raw.{target.key}", {}, payload)
        return log is not None


POISON: Final = (
    b"rubbish",
    b'{"kind":"no such kind"}',
    b'{"kind":"ok","took_ms":-1}',
    b'{"type":"no such type","kind":"ok"}',
    b"",
)
UNKNOWN_VERSION: Final = json.dumps({"kind": "ok", "v": 7}).encode()
