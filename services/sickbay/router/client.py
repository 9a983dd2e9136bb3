"""A router's connection to the fleet: decide, attempt, record. Works before NATS is there and while it is gone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack, overload

from sickbay_events import CallAnswered, CallOutcome, CallsRefused, Decision, Skipped, Target, rfc3339
from sickbay_events.outcome import Lease

from ..bus.link import Link
from ..bus.view_names import view_names
from ..config import Settings
from ..loggers import logger
from ..view.entries import View
from ..view.mirror import Mirror
from .attempt import Attempt
from .attempt_host import AttemptOptions
from .calls import Calls, ChainCall
from .chain import NO_FALLBACK, CallOptions, CallResult, Usable
from .chain_check import ChainCheck
from .errors import Held
from .gate import Gate
from .hooks import Hook, notify
from .logs import CallLog, HoldLog, silence
from .outbox import Reportable
from .overlay import Overlay
from .reporter import CAPACITY, CLOSE_LIMIT_S, Left, Outbox, Reporter
from .sdk_shapes import holds_output
from .streams import StreamingAnswer
from .trials import ASK_S, Trial, Trials

_log = logger("sickbay.client")

DEFAULT_URL: Final = "nats://127.0.0.1:4222"
MINUTE_S: Final = 60

T = TypeVar("T")
F = TypeVar("F")


class Sickbay:
    """Made by `connect`. `decide`, `record` and a plain `with attempt(...)` may be used from any thread; the rest
    belongs to the event loop in which it was entered.
    """

    def __init__(
        self,
        *,
        link: Link | None,
        mirror: View,
        overlay: Overlay,
        gate: Gate,
        reporter: Outbox,
        trials: Trials,
        keep_detail: bool = False,
        hooks: Sequence[Hook] = (),
    ) -> None:
        self.hooks = tuple(hooks)
        self.link, self.mirror, self.overlay, self.gate, self.reporter = link, mirror, overlay, gate, reporter
        self.trials = trials
        self._minute = 0
        self._minute_timer: asyncio.TimerHandle | None = None
        self._keep_detail = keep_detail
        self._call_log = CallLog()
        holds = HoldLog(mirror.now_ms, lambda: mirror.is_loaded)
        mirror.listen(changed=holds.changed, loaded=holds.loaded)
        mirror.listen(changed=overlay.cluster_changed, policy=overlay.set_policy)
        gate.on_denied = self._call_log.skipped
        self._chain_check = ChainCheck(link, gate.target_of)
        self.calls = Calls(self, self._call_log, self._chain_check)
        silence()

    # The public face.

    def decide(self, target: Target) -> Decision:
        """May the target be called now? Synchronous, no I/O, never raises; about a microsecond."""
        if not self.hooks:
            return self.gate.decide(target)
        began_s = time.perf_counter()
        decision = self.gate.decide(target)
        self.tell_hooks("decided", target, decision, time.perf_counter() - began_s)
        return decision

    def attempt(
        self,
        target: Target,
        limit_s: float | None = 60.0,
        *,
        route: str | None = None,
        rank: int = 0,
        prompt_ascii: bool | None = None,
        client_capped: bool | None = None,
        stream: bool = False,
        request_hash: str | None = None,
        skipped: list[Skipped] | None = None,
    ) -> Attempt:
        """One attempt, as a context manager; entering it raises `Held` if the target may not be called.

        limit_s         the time the caller gives the call (it is reported, not enforced); None if there is none
        route, rank     which chain the call belongs to, and which choice this target is (0 = first)
        prompt_ascii    whether the prompt was pure ASCII: only then can damaged text be the provider's fault
        client_capped   whether the caller set a cap on the answer's length
        request_hash    salted, by the caller: says that two calls were the same request, and nothing else
        """
        options = AttemptOptions(
            limit_s=limit_s,
            route=route,
            rank=rank,
            prompt_ascii=prompt_ascii,
            client_capped=client_capped,
            stream=stream,
            request_hash=request_hash,
            skipped=skipped,
        )
        return Attempt(self, target, options)

    def usable(self, targets: Sequence[Target]) -> Usable:
        """Those of the targets that may be called now, in their order; `.skipped` says why not the others.

        For callers that go along a chain by themselves; `call` does all of that.
        """
        return Usable((target, self.decide(target)) for target in targets)

    @overload
    async def call(
        self,
        targets: Sequence[Target],
        attempt_fn: Callable[[Target, Attempt], Awaitable[T]],
        **options: Unpack[CallOptions],
    ) -> CallResult[T]: ...

    @overload
    async def call(
        self,
        targets: Sequence[Target],
        attempt_fn: Callable[[Target, Attempt], Awaitable[T]],
        *,
        fallback: F,
        **options: Unpack[CallOptions],
    ) -> CallResult[T | F]: ...

    async def call(
        self,
        targets: Sequence[Target],
        attempt_fn: Callable[[Target, Attempt], Awaitable[T]],
        *,
        fallback: Any = NO_FALLBACK,
        **options: Unpack[CallOptions],
    ) -> CallResult[Any]:
        """Call the first of the targets that may be called, and the next ones as long as there is no answer.

        attempt_fn   async: gets the target and its `Attempt`, calls, tells the attempt what came (`attempt.response`,
                     `output`, `ok`), and returns the value. What it does not tell counts as ok, what it raises is
                     classified; both an exception and a verdict that is no answer lead to the next candidate. It is
                     cancelled at `attempt.limit_s`.
        fallback     makes the work optional: taken as the value if there is no answer, and nothing is raised
        options      `budget_s` 120, `attempt_s` 60, `wait_s` 0, `forced` "never", `route`, `at_hand`, `prompt_ascii`,
                     `client_capped`, `request_hash`; see `CallOptions`

        Raises `Exhausted` if there is no answer and no fallback, and `ValueError` for an option that is not accepted;
        after a first content (`attempt.first_content()`) what broke it, since no other candidate can take over then.
        """
        return await self.calls.call(targets, attempt_fn, fallback, **options)

    def stream(
        self,
        targets: Sequence[Target],
        stream_fn: Callable[[Target, Attempt], AsyncIterable[T]],
        *,
        fallback: Any = NO_FALLBACK,
        is_content: Callable[[T], object] = holds_output,
        **options: Unpack[CallOptions],
    ) -> StreamingAnswer[T]:
        """The chunks of the first candidate that begins to answer: `async with sb.stream(...) as answer`.

        stream_fn    an async generator of the target and its `Attempt`
        fallback     makes the work optional: the only chunk if no candidate begins (None: no chunk at all)
        is_content   which chunks are content (a text that is not empty, an SDK's chunk with more than a role); those
                     before the first are kept back until it comes. The limits of
                     `call` hold up to then. A stream that ends without content is an empty answer, unless it was
                     said to be one (`attempt.ok(checkable=False)` for a turn with tool calls).

        What breaks it after the first content is recorded as `truncated` and raised. Else as `call`.
        """
        return StreamingAnswer(ChainCall(self.calls, targets, fallback, options), stream_fn, is_content)

    def record(self, target: Target, event: Reportable) -> None:
        """Report what the caller judged itself. Never blocks, never raises; bad input is counted and logged."""
        self._report(target, event, None)

    async def ready(self, timeout_s: float | None = None) -> bool:
        """Wait until the cluster's holds are known; False if that took longer. Waiting is optional: until then
        the gate allows every call and says `stale`."""
        return await self.mirror.wait_loaded(timeout_s)

    async def close(self, limit_s: float = CLOSE_LIMIT_S) -> Left:
        """Hand over what was recorded within `limit_s` and close the connection; what is left. Never raises."""
        if self._minute_timer is not None:
            self._minute_timer.cancel()
        if not self.reporter.is_forked:
            self._report_denials()
            await self.trials.close()
            await self._chain_check.close()
        left = await self.reporter.close(limit_s)
        if self.reporter.is_forked:
            return left  # a child process: closing here would take the socket from the parent's loop
        await self.mirror.stop()
        if self.link is not None:
            await self.link.close()
        return left

    async def __aenter__(self) -> Self:
        """Begin in the running loop; returns at once, whether or not NATS is there."""
        self.overlay.start()
        self.mirror.start()
        self.reporter.start()
        self.trials.start()
        self._chain_check.start()
        self._next_minute()
        if self.link is not None:
            self.link.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, as `close()` does."""
        await self.close()

    # What an attempt asks of its host.

    def seen(self) -> tuple[int, int]:
        """The largest log sequence known, and the overlay's own counter."""
        return self.mirror.seq, self.overlay.seq

    async def acquire(self, target: Target, decision: Decision, limit_s: float | None) -> Trial | None:
        """The leases of a trial. Raises `Held`."""
        loop = self.trials.loop
        try:
            work = self.trials.acquire(target, decision, limit_s)
            if loop is not None and loop.is_running() and loop is not asyncio.get_running_loop():
                # The connection lives in another thread (`sickbay.sync`), and so do its leases.
                found = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
            else:
                found = await work
        except Exception:  # noqa: BLE001 - an error in the trials costs a lease, not a call
            found = self._without(decision)
        return self._entered(target, decision, found)

    def acquire_blocking(self, target: Target, decision: Decision, limit_s: float | None) -> Trial | None:
        """The same for a plain `with`: it waits where it may, which is not in the event loop. Raises `Held`."""
        loop = self.trials.loop
        try:
            if loop is None or not loop.is_running() or self.trials.loop_thread == threading.get_ident():
                found = self.trials.acquire_blocking(target, decision, limit_s)
            else:
                future = asyncio.run_coroutine_threadsafe(self.trials.acquire(target, decision, limit_s), loop)
                try:
                    found = future.result(2 * ASK_S)
                except TimeoutError:  # the loop itself stands still
                    future.cancel()
                    found = None if decision.allowed else decision
        except Exception:  # noqa: BLE001 - see acquire
            found = self._without(decision)
        return self._entered(target, decision, found)

    def _without(self, decision: Decision) -> Decision | None:
        _log.exception("no lease could be taken")
        return None if decision.allowed else decision

    def _entered(self, target: Target, decision: Decision, found: Trial | Decision | None) -> Trial | None:
        if isinstance(found, Decision):
            if decision.allowed:
                self.gate.count_denial(target, found)
            raise Held(target, found)
        if not decision.allowed:
            self.gate.uncount_denial(target, decision)
        return found

    def answered(self, target: Target, event: CallAnswered, own_seen: int, trial: Trial) -> None:
        """The first content of a streaming trial came."""
        self.trials.answered(trial, self._report(target, event, own_seen, trial.own))

    def finish(self, target: Target, outcome: CallOutcome, own_seen: int, trial: Trial | None) -> None:
        """Take a finished attempt."""
        n = self._report(target, outcome, own_seen, trial.own if trial is not None else None)
        if trial is not None:
            self.trials.finish(trial, outcome.kind, n)
        if outcome.rank > 0 and outcome.kind == "ok":
            self._call_log.failed_over(target, outcome.rank, outcome.route)

    def drop(self, trial: Trial) -> None:
        """Give back the leases of an attempt that called nobody."""
        self.trials.finish(trial, "cancelled", 0)

    def later(self, function: Callable[[], None]) -> None:
        """Call it in the connection's loop: a finalizer may run in the midst of anything."""
        loop = self.trials.loop
        if loop is None or loop.is_closed():
            function()
            return
        with suppress(RuntimeError):  # it was closed at this moment
            loop.call_soon_threadsafe(function)

    def tell_hooks(self, event: str, *arguments: object) -> None:
        """Call the method `event` of every hook."""
        notify(self.hooks, event, *arguments)

    @property
    def degradations(self) -> dict[tuple[str, str], int]:
        """How often optional work took its fallback, by (route, reason); a budget's (feature, `budget_spent`) once."""
        return dict(self.calls.degradations)

    @property
    def impatience_s(self) -> float:
        """From the policy in force."""
        return self.mirror.policy.breaker.impatience_s

    @property
    def keeps_detail(self) -> bool:
        """Whether the provider's error text is kept, redacted."""
        return self._keep_detail

    def _report(
        self, target: Target, event: Reportable, own_seen: int | None, own_trial: list[Lease] | None = None
    ) -> int:
        """Queue one event for the log, and fold it in the overlay; its number, or 0 if it was rejected.

        Both happen under the overlay's lock. The reporter's loop may send the event and have it acknowledged at once,
        and `Overlay.acknowledged` takes the same lock: so it always finds the number that `observe` noted. The
        reporter in turn calls no listener while it holds its own lock.
        """
        try:
            known = self.gate.target_of(target)
        except (AttributeError, TypeError):
            known = target  # not a target: the reporter says which field is wrong
        try:
            with self.overlay.lock:
                n = self.reporter.enqueue(known, event)
                if n:
                    self.overlay.observe(known, event, seen=own_seen, trial=own_trial or None, n=n)
        except Exception:  # noqa: BLE001 - nothing on a router's request path raises
            _log.exception("an event could not be recorded")
            return 0
        return n

    # Denials.

    def _next_minute(self) -> None:
        now_s = time.time()
        self._minute = int(now_s) // MINUTE_S
        wait_s = (self._minute + 1) * MINUTE_S - now_s
        self._minute_timer = asyncio.get_running_loop().call_later(wait_s, self._minute_over)

    def _minute_over(self) -> None:
        self._report_denials()
        self._next_minute()

    def _report_denials(self) -> None:
        """Report the calls that holds kept away in this minute, one event for each target and rule: only statistics."""
        minute = rfc3339((self._minute or int(time.time()) // MINUTE_S) * MINUTE_S * 1000)
        for target, rule, count, until_ms in self.gate.take_denials():
            event = CallsRefused(count=count, rule=rule, minute=minute, alone_until_ms=until_ms or None)
            self.reporter.enqueue(target, event)


def connect(
    url: str | None = None,
    replica: str | None = None,
    *,
    machine: str | None = None,
    capacity: int = CAPACITY,
    keep_detail: bool = False,
    hooks: Sequence[Hook] = (),
    **nats_options: Any,
) -> Sickbay:
    """A router's connection, to be entered with `async with`. Reads settings; opens nothing yet.

    url           one or several NATS URLs; default `$SICKBAY_NATS`, else the server that `sickbay serve` runs on
                  this machine, else nats://127.0.0.1:4222
    replica       this router machine's name in the fleet, unique and stable; default `$SICKBAY_REPLICA`, else the
                  host's name
    machine       name added to loopback providers; default `$SICKBAY_MACHINE`, else the host's name
    capacity      outcomes that wait here while NATS is away
    keep_detail   report up to 200 characters of a provider's error text, redacted
    hooks         each a `sickbay.Hook`, told of every decision and attempt
    nats_options  user, password, token, creds, tls_ca, tls_cert, tls_key, tls_hostname, inbox_prefix

    Raises `SettingRefused`, `OptionsError` or `NameRefused` for what cannot be used, `TracingUnavailable` for traces
    without opentelemetry-api; never for a server that is not there.
    """
    settings = Settings.from_environment(nats=url, replica=replica, machine=machine)
    name = settings.replica_name
    link = Link(settings.nats_options(f"sickbay {name}", settings.nats_url or DEFAULT_URL, **nats_options))
    mirror = Mirror(link, names=view_names(settings.view))
    overlay = Overlay(now_ms=mirror.now_ms, cluster=mirror.entries, replica=name)
    gate = Gate(mirror, overlay, replica=name, machine=settings.machine_name)
    trials = Trials(link=link, view=mirror, gate=gate, replica=name)

    def acknowledged(target: Target, event: Reportable, n: int, log_seq: int) -> None:
        overlay.acknowledged(target, event, n, log_seq)
        trials.acked(n, log_seq)

    reporter = Reporter(link, replica=name, capacity=capacity, on_ack=acknowledged)
    sb = Sickbay(
        link=link,
        mirror=mirror,
        overlay=overlay,
        gate=gate,
        reporter=reporter,
        trials=trials,
        keep_detail=keep_detail,
        hooks=hooks,
    )
    if settings.traces:
        from .tracing import enable

        enable(sb)
    return sb
