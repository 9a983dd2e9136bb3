"""A router's connection to the fleet: decide, attempt, record. Works before NATS is there and while it is gone.

async with sickbay.connect("nats://...", replica="router-1") as sb:
    decision = sb.decide(target)
    async with sb.attempt(target, limit_s=60) as attempt:
        ...
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Protocol, Self

from sickbay_events import CallOutcome, Decision, Skipped, Target

from .attempt import Attempt
from .bus.connect import NatsOptions
from .bus.link import Link
from .config import Settings
from .gate import Gate
from .logs import CallLog, HoldLog, silence
from .mirror import Mirror
from .outbox import Reportable
from .overlay import Overlay
from .reporter import CAPACITY, CLOSE_LIMIT_S, Counts, Left, Reporter
from .view import View

DEFAULT_URL: Final = "nats://127.0.0.1:4222"


class Outbox(Protocol):
    """Where outcomes go: a `Reporter`, or what `sickbay.testing` puts in its place."""

    def record(self, target: Target, event: Reportable) -> int:
        """Queue one event; its number, or 0 if it was rejected."""
        ...

    def start(self) -> None:
        """Begin to send."""
        ...

    async def close(self, limit_s: float = CLOSE_LIMIT_S) -> Left:
        """Hand over what is there; what is left."""
        ...

    @property
    def counts(self) -> Counts:
        """What became of all that was recorded."""
        ...


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
        keep_detail: bool = False,
    ) -> None:
        self.link, self.mirror, self.overlay, self.gate, self.reporter = link, mirror, overlay, gate, reporter
        self._keep_detail = keep_detail
        self._calls = CallLog()
        holds = HoldLog(mirror.now_ms, lambda: mirror.is_loaded)
        mirror.listen(changed=holds.changed, loaded=holds.loaded)
        mirror.listen(changed=overlay.cluster_changed, policy=overlay.set_policy, passed=overlay.checkpoint)
        gate.on_denied = self._calls.skipped
        silence()

    # The public face.

    def decide(self, target: Target) -> Decision:
        """May the target be called now? Synchronous, no I/O, never raises; about a microsecond."""
        return self.gate.decide(target)

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
        return Attempt(
            self,
            target,
            limit_s=limit_s,
            route=route,
            rank=rank,
            prompt_ascii=prompt_ascii,
            client_capped=client_capped,
            stream=stream,
            request_hash=request_hash,
            skipped=skipped,
        )

    def record(self, target: Target, event: Reportable) -> None:
        """Report what the caller judged by himself. Never blocks, never raises; bad input is counted and logged."""
        self._record(target, event, None)

    async def ready(self, timeout_s: float | None = None) -> bool:
        """Wait until the cluster's holds are known; False if that took longer. Nobody has to: without them the
        gate lets pass and says `stale`."""
        return await self.mirror.wait_loaded(timeout_s)

    async def close(self, limit_s: float = CLOSE_LIMIT_S) -> Left:
        """Hand over what was recorded within `limit_s` and close the connection; what is left. Never raises."""
        left = await self.reporter.close(limit_s)
        if getattr(self.reporter, "is_forked", False):
            return left  # a child process: even to close it here would take the socket from the parent's loop
        await self.mirror.stop()
        if self.link is not None:
            await self.link.close()
        return left

    async def __aenter__(self) -> Self:
        """Begin in the running loop; returns at once, whether or not NATS is there."""
        self.overlay.start()
        self.mirror.start()
        self.reporter.start()
        if self.link is not None:
            self.link.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, as `close()` does."""
        await self.close()

    # What an attempt asks of its desk.

    def seen(self) -> tuple[int, int]:
        """The largest log sequence known, and the overlay's own counter."""
        return self.mirror.seq, self.overlay.seq

    def finish(self, target: Target, outcome: CallOutcome, own_seen: int) -> None:
        """Take a finished attempt."""
        self._record(target, outcome, own_seen)
        if outcome.rank > 0 and outcome.kind == "ok":
            self._calls.failed_over(target, outcome.rank, outcome.route)

    @property
    def impatience_s(self) -> float:
        """From the policy in force."""
        return self.mirror.policy.breaker.impatience_s

    @property
    def keeps_detail(self) -> bool:
        """Whether the provider's error text is kept, redacted."""
        return self._keep_detail

    def _record(self, target: Target, event: Reportable, own_seen: int | None) -> None:
        known = self.gate.target_of(target) if isinstance(target, Target) else target
        with self.overlay.lock:
            n = self.reporter.record(known, event)
            if n:
                self.overlay.record(known, event, seen=own_seen, n=n)


def connect(
    url: str | None = None,
    replica: str | None = None,
    *,
    machine: str | None = None,
    capacity: int = CAPACITY,
    keep_detail: bool = False,
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
    nats_options  user, password, token, creds, tls_ca, tls_cert, tls_key, tls_hostname, inbox_prefix

    Raises `SettingRefused`, `OptionsError` or `NameRefused` for what cannot be used; never for a server that is
    not there.
    """
    settings = Settings.from_environment(nats=url, replica=replica, machine=machine)
    given = {"creds": settings.creds or None, "tls_ca": settings.tls_ca or None, "inbox_prefix": settings.inbox_prefix}
    name = settings.replica_name
    options = NatsOptions.from_url(
        settings.nats or _saved_url(settings) or DEFAULT_URL, **{**given, "name": f"sickbay {name}", **nats_options}
    )
    link = Link(options)
    mirror = Mirror(link)
    overlay = Overlay(now_ms=mirror.now_ms, cluster=mirror.entries, replica=name)
    gate = Gate(mirror, overlay, replica=name, machine=settings.machine_name)
    reporter = Reporter(link, replica=name, capacity=capacity, on_ack=overlay.acknowledged)
    return Sickbay(
        link=link, mirror=mirror, overlay=overlay, gate=gate, reporter=reporter, keep_detail=keep_detail
    )  # fmt: skip


def _saved_url(settings: Settings) -> str | None:
    """Where this machine's embedded server was last started; it runs on POSIX systems only."""
    with suppress(ImportError):
        from .bus.embedded import saved_url

        return saved_url(settings.data_folder)
    return None
