"""Trials of a router: the leases of one attempt are acquired, renewed while it runs, and given back.

A hold on probation lets one router at a time call its target (Rule 5.2). The services grant the lease (`leases.py`).
If they do not answer in time, a replica may grant itself one: rarely, at a moment of its own. Leases of holds of this
replica's own overlay concern no other router, and are kept here.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from sickbay_events import KINDS, Decision, Target
from sickbay_events.kinds import Kind
from sickbay_events.lease_wire import Action, TrialAnswer, TrialAsk, ttl_s
from sickbay_events.outcome import DAY_MS, Lease
from sickbay_projections.weighing import LeaseNeeded

from ..bus.link import Link
from ..loggers import logger
from ..view.entries import View
from .leases import Key, SelfGrants, ask_services, key_of, name_of

_log = logger("sickbay.trials")

ASK_S: Final = 0.25
"""An attempt waits for the services at most so long."""
SILENCE_S: Final = 2.0
"""After an answer that did not come the services are not asked again for so long."""
TAKEN_S_MAX: Final = 0.25
"""A lease that another router holds is asked for again after so long: it may be given back at any moment."""
SETTLE_S: Final = 2.0
"""The lease of a trial that told something, or moved the next one out, is kept until the view has passed its outcome,
and at most so long: otherwise the next trial could begin before a failed one has begun the hold again."""
RUN_S_MAX: Final = 3_600.0
"""The lease of an attempt that is never left is renewed for at most so long."""
GIVE_BACK_S: Final = 2.0
CLOSE_S: Final = 0.5
REMEMBERED_MAX: Final = 1_000

Clock: TypeAlias = Callable[[], float]


class TrialGate(Protocol):
    """What trials ask of a `Gate`."""

    def wanted(self, target: Target) -> list[LeaseNeeded]:
        """The leases that a trial of the target needs, widest scope first."""
        ...

    def target_of(self, target: Target) -> Target:
        """The target as the log knows it."""
        ...


class Trial:
    """The leases of one attempt.

    leases         of the cluster's holds, as the outcome names them
    own            of this replica's own overlay's holds
    is_self_given  granted by this replica itself, because the services were silent
    fed_s          when the last bytes of the answer passed; None if nobody shows them
    """

    __slots__ = (
        "began_s",
        "fed_s",
        "held",
        "is_over",
        "is_self_given",
        "leases",
        "limit_ms",
        "own",
        "target",
        "timer",
        "token",
    )

    def __init__(self, target: Target, held: list[LeaseNeeded], limit_ms: int, began_s: float) -> None:
        self.target, self.held, self.limit_ms, self.began_s = target, held, limit_ms, began_s
        self.leases = [Lease(lease.rule, lease.began_seq) for lease in held if not lease.is_local]
        self.own = [Lease(lease.rule, lease.began_seq) for lease in held if lease.is_local]
        self.token = os.urandom(8).hex()
        self.is_self_given = self.is_over = False
        self.timer: asyncio.TimerHandle | None = None
        self.fed_s: float | None = None

    @property
    def proved(self) -> list[LeaseNeeded]:
        """Leases that a stream's first content ends: all but those of degraded output, which needs the whole text."""
        return [lease for lease in self.held if lease.rule != "degraded"]


class Settling(msgspec.Struct):
    """Leases of a conclusive trial, kept until the view has passed its outcome."""

    trial: Trial
    held: list[LeaseNeeded]
    timer: asyncio.TimerHandle
    log_seq: int | None = None


class Trials:
    """The trials of one process. `acquire` belongs to the link's event loop; all else may be used from any thread.

    link       None: there are no services, every lease is given here (`sickbay.testing`)
    counts     `asked`, `granted`, `denied`, `silent`, `self_given`, `given_back`, `renewed`, `lost`
    """

    def __init__(
        self, *, link: Link | None, view: View, gate: TrialGate, replica: str, monotonic: Clock = time.monotonic
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.loop_thread = 0
        self._link, self._view, self._gate, self._replica, self._monotonic = link, view, gate, replica, monotonic
        self._lock = threading.RLock()
        self._running: dict[Key, tuple[float, Trial]] = {}
        """Leases of this process: when each ends at the latest (by the monotonic clock), and the trial that has it."""
        self._held_by_others: dict[Key, float] = {}
        """Leases that other routers hold, and until when they are not asked for."""
        self._self_grants = SelfGrants(replica)
        self._silent_until_s = -math.inf
        self._settling: dict[int, Settling] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        view.listen(
            changed=lambda _key, _old, _new: self._give_back_passed(), passed=lambda _seq: self._give_back_passed()
        )

    def start(self) -> None:
        """Begin in the running loop, which is the link's."""
        self.loop, self.loop_thread = asyncio.get_running_loop(), threading.get_ident()

    async def close(self) -> None:
        """Give back the leases of trials that have ended. Never raises."""
        for n in list(self._settling):
            self._settled(n)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_S)
        for task in self._tasks:
            task.cancel()

    # Acquiring.

    async def acquire(self, target: Target, decision: Decision, limit_s: float | None) -> Trial | Decision | None:
        """The leases for one attempt of a target on probation, or None if by now it needs none. Returns a `Decision`
        if the attempt may not be made. Waits for the services at most `ASK_S` seconds."""
        trial = self._reserve(target, decision, limit_s)
        if not isinstance(trial, Trial):
            return trial
        try:
            denied = await self._ask_for(trial)
        except BaseException:
            self._end(trial, trial.held, give_back=True)
            raise
        if denied is not None:
            return self._denied(trial, decision, *denied)
        return trial

    def acquire_blocking(self, target: Target, decision: Decision, limit_s: float | None) -> Trial | Decision | None:
        """As `acquire`, without asking the services. If there are services, a target on probation is called at the
        caller's own risk, and an early trial of the cluster's hold is not made (Rule 5.2)."""
        trial = self._reserve(target, decision, limit_s)
        if isinstance(trial, Trial) and trial.leases and self._link is not None:
            others = [lease for lease in trial.held if not lease.is_local]
            self._end(trial, others, give_back=False)
            if not decision.allowed:
                self._end(trial, trial.held, give_back=False)
                return decision
            trial.leases = []
        return trial

    def _reserve(self, target: Target, decision: Decision, limit_s: float | None) -> Trial | Decision | None:
        """Take the leases within this process, so that it makes one trial at a time."""
        wanted = self._gate.wanted(target)
        if not wanted:
            return None if decision.allowed else decision
        limit_ms = DAY_MS if limit_s is None or not math.isfinite(limit_s) else round(max(0.0, limit_s) * 1000)
        now_s = self._monotonic()
        with self._lock:
            for lease in wanted:
                key = key_of(lease)
                running = self._running.get(key)
                left_s = max(running[0] if running else now_s, self._held_by_others.get(key, now_s)) - now_s
                if left_s > 0:
                    return self._held_by_another(decision, lease, left_s)
            trial = Trial(self._gate.target_of(target), wanted, min(limit_ms, DAY_MS), now_s)
            for lease in wanted:
                self._running[key_of(lease)] = now_s + ttl_s(trial.limit_ms, self._view.policy.trials), trial
        return trial

    async def _ask_for(self, trial: Trial) -> tuple[LeaseNeeded, float] | None:
        """Ask the services. None if the trial may be made, else which lease is missing and for how many seconds."""
        if not trial.leases or self._link is None:
            return None
        answer = None
        if self._monotonic() >= self._silent_until_s:
            self.counts["asked"] += 1
            answer = await self._ask(trial, "take", trial.held, ASK_S)
            if answer is None:
                self.counts["silent"] += 1
                self._silent_until_s = self._monotonic() + SILENCE_S
                # The lease may have been granted, and only the answer is late.
                self._later(self._ask(trial, "give_back", trial.held, GIVE_BACK_S))
        if answer is None:
            return self._grant_self(trial)
        if answer.granted:
            self.counts["granted"] += 1
            self._renew_in(trial, answer.expires_in_ms / 2000)
            return None
        self.counts["denied"] += 1
        named = [lease for lease in trial.held if not lease.is_local and name_of(lease) == answer.taken]
        lease = named[0] if named else trial.held[0]
        self._remember(self._held_by_others, key_of(lease), self._monotonic() + min(answer.retry_in_s, TAKEN_S_MAX))
        return lease, answer.retry_in_s

    def _grant_self(self, trial: Trial) -> tuple[LeaseNeeded, float] | None:
        others = [lease for lease in trial.held if not lease.is_local]
        policy = self._view.policy.trials
        denied = self._self_grants.acquire(others, self._view.now_ms(), round(policy.self_grant_s * 1000))
        if denied is None:
            self.counts["self_given"] += 1
            trial.is_self_given = True
        return denied

    def _denied(self, trial: Trial, decision: Decision, lease: LeaseNeeded, left_s: float) -> Decision:
        self._end(trial, trial.held, give_back=False)
        return self._held_by_another(decision, lease, left_s)

    def _held_by_another(self, decision: Decision, lease: LeaseNeeded, left_s: float) -> Decision:
        if not decision.allowed:
            return decision  # an early trial: the hold itself says why, and for how long
        return msgspec.structs.replace(
            decision,
            allowed=False,
            reason="trial_taken",
            scope=lease.scope,
            rule=lease.rule,
            began_seq=lease.began_seq,
            retry_in_s=left_s,
            trial=False,
        )

    # While it runs.

    def _renew_in(self, trial: Trial, seconds: float) -> None:
        assert self.loop is not None
        trial.timer = self.loop.call_later(seconds, lambda: self._later(self._renew(trial)))

    async def _renew(self, trial: Trial) -> None:
        held = [lease for lease in trial.held if not lease.is_local]
        now_s = self._monotonic()
        if trial.is_over or not held or now_s - trial.began_s > RUN_S_MAX:
            return
        if trial.fed_s is not None and now_s - trial.fed_s > trial.limit_ms / 1000:
            self._end(trial, held, give_back=True)  # a client forgot its stream
            return
        answer = await self._ask(trial, "renew", held, GIVE_BACK_S)
        now_s = self._monotonic()
        if trial.is_over:
            return
        if answer is not None and answer.granted:
            self.counts["renewed"] += 1
            with self._lock:
                for lease in trial.held:
                    self._running[key_of(lease)] = now_s + answer.expires_in_ms / 1000, trial
            self._renew_in(trial, answer.expires_in_ms / 2000)
        elif answer is None and any(self._is_running(lease, trial, now_s) for lease in held):
            self._renew_in(trial, 1.0)
        else:
            # Another router may have the lease by now: this call's outcome no longer counts as a trial's.
            self.counts["lost"] += 1
            _log.info("the lease of a trial was lost: %s / %s", trial.target.provider, trial.target.model)
            trial.leases = []
            self._end(trial, held, give_back=False)

    def _is_running(self, lease: LeaseNeeded, trial: Trial, now_s: float) -> bool:
        running = self._running.get(key_of(lease))
        return running is not None and running[1] is trial and now_s < running[0]

    # Its end.

    def answered(self, trial: Trial, n: int) -> None:
        """The first content of a stream arrived, and stands as event `n` of the reporter (0: it was rejected)."""
        if n:
            self._settle(trial, trial.proved, n)

    def finish(self, trial: Trial, kind: Kind, n: int) -> None:
        """The attempt is over, and stands as event `n` of the reporter (0: it was rejected)."""
        trial.is_over = True
        if not n or KINDS[kind].group == "neutral":
            # Before the end of its hold such a trial too moves the next one out, as soon as the view has passed it.
            kept = [lease for lease in trial.held if lease.early] if n else []
            self._end(trial, [lease for lease in trial.held if lease not in kept], give_back=True)
            if not kept:
                return
        self._settle(trial, trial.held, n)

    def acked(self, n: int, log_seq: int) -> None:
        """The reporter's event `n` stands in the log at `log_seq`."""
        settling = self._settling.get(n)
        if settling is not None:
            settling.log_seq = log_seq
            self._give_back_passed()

    def _settle(self, trial: Trial, held: list[LeaseNeeded], n: int) -> None:
        # This replica's own overlay has folded the outcome already: its leases need not be kept.
        is_alone = self._link is None or self.loop is None or trial.is_self_given
        self._end(trial, [lease for lease in held if lease.is_local or is_alone], give_back=False)
        others = [lease for lease in held if not lease.is_local and not is_alone]
        if others:
            self._in_loop(self._begin_to_settle, trial, others, n)

    def _begin_to_settle(self, trial: Trial, held: list[LeaseNeeded], n: int) -> None:
        assert self.loop is not None
        timer = self.loop.call_later(SETTLE_S, self._settled, n)
        self._settling[n] = Settling(trial, held, timer)

    def _give_back_passed(self) -> None:
        """Give back the leases of trials whose outcomes the view has passed."""
        if self._settling:
            seq = self._view.seq
            for n in [n for n, found in self._settling.items() if found.log_seq is not None and found.log_seq <= seq]:
                self._settled(n)

    def _settled(self, n: int) -> None:
        settling = self._settling.pop(n, None)
        if settling is not None:
            settling.timer.cancel()
            self._end(settling.trial, settling.held, give_back=True)

    def _end(self, trial: Trial, held: list[LeaseNeeded], *, give_back: bool) -> None:
        """These leases are no longer held here."""
        with self._lock:
            for lease in held:
                running = self._running.get(key_of(lease))
                if running is not None and running[1] is trial:
                    del self._running[key_of(lease)]
            trial.held = [lease for lease in trial.held if lease not in held]
        if not trial.held and trial.timer is not None:
            self._in_loop(trial.timer.cancel)
        others = [lease for lease in held if not lease.is_local]
        if give_back and others and self._link is not None and not trial.is_self_given:
            self.counts["given_back"] += 1
            self._in_loop(lambda: self._later(self._ask(trial, "give_back", others, GIVE_BACK_S)))

    # Helpers.

    async def _ask(self, trial: Trial, action: Action, held: list[LeaseNeeded], limit_s: float) -> TrialAnswer | None:
        """The services' answer; None if there is none, or if the services do not know."""
        names = [name_of(lease) for lease in held if not lease.is_local]
        if self._link is None or not names:
            return None
        ask = TrialAsk(
            replica=self._replica,
            provider=trial.target.provider,
            model=trial.target.model,
            leases=names,
            token=trial.token,
            limit_ms=trial.limit_ms,
            action=action,
        )
        return await ask_services(self._link, ask, limit_s)

    def _later(self, work: Coroutine[Any, Any, Any]) -> None:
        assert self.loop is not None
        task = self.loop.create_task(work, name="sickbay-trial")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _in_loop(self, function: Callable[..., object], *arguments: object) -> None:
        if self.loop is None:
            return
        if threading.get_ident() == self.loop_thread:
            function(*arguments)
            return
        with suppress(RuntimeError):  # the loop is closed: the lease runs out by itself
            self.loop.call_soon_threadsafe(function, *arguments)

    def _remember(self, among: dict[Key, float], key: Key, until_s: float) -> None:
        with self._lock:
            if len(among) >= REMEMBERED_MAX:
                now_s = self._monotonic()
                for old in [old for old, at_s in among.items() if at_s <= now_s] or list(among)[: REMEMBERED_MAX // 2]:
                    del among[old]
            among[key] = until_s
