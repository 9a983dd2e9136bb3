"""A gate without NATS for users' own tests: hold this, allow that, what was recorded.

    sb = sickbay.testing.standalone()
    sb.hold(target, for_s=600)
    ...                                       # run the code under test with `sb`
    assert [event.kind for _, event in sb.recorded] == ["ok"]

Gate, overlay and classifier are the real ones. There is no network, and time stands still until `advance`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sickbay_events import GateEntry, Policy, Scope, Target, rfc3339
from sickbay_events.view import AllowView, HoldView
from sickbay_projections.entries import REASONS

from .router.client import Sickbay
from .router.gate import Gate
from .router.hooks import Hook
from .router.outbox import NotReportable, Reportable, fit
from .router.overlay import Overlay
from .router.reporter import CLOSE_LIMIT_S, Counts, Left
from .router.trials import Trials
from .view.entries import View

__all__ = ["Standalone", "standalone"]

BEGAN_MS = 1_800_000_000_000
"""What the clock of a standalone gate shows at first, ms since the epoch."""


class Recorder:
    """Keeps what would be sent."""

    is_forked = False

    def __init__(self) -> None:
        self.recorded: list[tuple[Target, Reportable]] = []
        self.rejected: list[str] = []

    def enqueue(self, target: Target, event: Reportable) -> int:
        """Keep one event; its number, or 0 for one that a reporter would reject."""
        try:
            self.recorded.append((target, fit(target, event)))
        except NotReportable as error:
            self.rejected.append(str(error))
            return 0
        return len(self.recorded)

    def start(self) -> None:
        """Nothing is sent."""

    async def close(self, limit_s: float = CLOSE_LIMIT_S) -> Left:  # noqa: ARG002 - a reporter's signature
        """Nothing is left."""
        return Left({})

    @property
    def counts(self) -> Counts:
        """As if all had arrived."""
        count = len(self.recorded)
        rejected = {"event": len(self.rejected)} if self.rejected else {}
        return Counts(
            recorded=count, acked=count, duplicates=0, resent=0, late=0, queued=0, unacknowledged=0,
            rejected=rejected, dropped={}, given_up={}, blocked="", why="",
        )  # fmt: skip


class Standalone(Sickbay):
    """A `Sickbay` without a network. The test sets its holds and its clock.

    recorded   (target, event) of everything that would have been sent, in order
    rejected   what would have been rejected, with the field and the accepted form
    """

    def __init__(
        self, *, replica: str = "test", machine: str = "test", policy: Policy | None = None, hooks: Sequence[Hook] = ()
    ) -> None:
        self._now_s = 0.0
        self._recorder = Recorder()
        self._seq = 0
        mirror = View(monotonic=lambda: self._now_s, wall=lambda: BEGAN_MS / 1000 + self._now_s)
        mirror.is_loaded = mirror.is_heard = True
        mirror.policy = policy or mirror.policy
        overlay = Overlay(now_ms=mirror.now_ms, cluster=mirror.entries, replica=replica)
        overlay.set_policy(mirror.policy)
        gate = Gate(mirror, overlay, replica=replica, machine=machine, monotonic=lambda: self._now_s)
        trials = Trials(link=None, view=mirror, gate=gate, replica=replica, monotonic=lambda: self._now_s)
        super().__init__(
            link=None, mirror=mirror, overlay=overlay, gate=gate, reporter=self._recorder, trials=trials, hooks=hooks
        )  # fmt: skip

    @property
    def recorded(self) -> list[tuple[Target, Reportable]]:
        """What would have been sent."""
        return self._recorder.recorded

    @property
    def rejected(self) -> list[str]:
        """What would have been rejected."""
        return self._recorder.rejected

    def hold(
        self,
        what: Target | str,
        *,
        for_s: float = 600.0,
        rule: str = "quarantine",
        status: int | None = None,
        kind: str | None = None,
    ) -> None:
        """Hold a target, or a whole provider by its name, as the cluster would. `kind` is that of the outcome that
        would have begun it: a throttle's `quota` is one with a stated reset."""
        end_ms = self.mirror.now_ms() + round(for_s * 1000)
        self._seq += 1
        hold = HoldView(
            rule=rule, began_seq=self._seq, end_ms=end_ms, until=rfc3339(end_ms), began_ms=self.mirror.now_ms(),
            status=status, kind=kind, count=1, proof=rule not in ("operator", "throttle"), over_ms=end_ms + 3_600_000,
        )  # fmt: skip
        self._put(what, holds=[hold], reason=REASONS[rule], until=hold.until, expires_ms=hold.over_ms)

    def allow(self, what: Target | str, *, for_s: float = 600.0) -> None:
        """Allow a target or a provider whatever else holds, as an operator would."""
        end_ms = self.mirror.now_ms() + round(for_s * 1000)
        self._seq += 1
        allow = AllowView(seq=self._seq, end_ms=end_ms, until=rfc3339(end_ms), reason="test", actor="test")
        old = self.mirror.entries.get(self._scope(what).key)
        self._put(what, holds=old.holds if old else [], allow=allow, reason="allowed_by_operator", expires_ms=end_ms)

    def release(self, what: Target | str) -> None:
        """End the holds of a target or a provider."""
        self._seq += 1
        self._put(what, reason="released", by="clear", cleared_seq=self._seq)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds
        self.mirror.fresh_at_s = self._now_s
        self.calls.waiters.wake_all()

    def _scope(self, what: Target | str) -> Scope:
        if isinstance(what, Target):
            return self.gate.target_of(what).scope
        host, mark, alias = what.partition("#")
        return Scope(host, alias if mark else None)

    def _put(self, what: Target | str, **fields: object) -> None:
        scope = self._scope(what)
        entry = GateEntry(
            provider=scope.provider, model=scope.model, scope=scope.name, seq=self._seq, time_ms=self.mirror.now_ms()
        )  # fmt: skip
        self.mirror.put(scope.key, msgspec.structs.replace(entry, **fields))


def standalone(
    *, replica: str = "test", machine: str = "test", policy: Policy | None = None, hooks: Sequence[Hook] = ()
) -> Standalone:
    """A gate without NATS. Use it as it is, or with `async with` in place of `sickbay.connect(...)`."""
    return Standalone(replica=replica, machine=machine, policy=policy, hooks=hooks)
