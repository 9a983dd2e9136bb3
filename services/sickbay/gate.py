"""May this target be called now? Answered from memory: what the mirror holds, and what this replica saw itself."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal, NamedTuple

from sickbay_events import Decision, GateEntry, NameRefused, Target, TokenRefused
from sickbay_events.names import at_machine
from sickbay_projections import decide_entries

from .overlay import Overlay
from .view import STALE_S, View

_log = logging.getLogger("sickbay.gate")

KNOWN_MAX: Final = 131_072
"""Targets whose scope keys are kept; when there are more, all are learnt anew."""


class _Known(NamedTuple):
    """What is remembered of a target that was asked about."""

    keys: tuple[str, str, str]
    """Scope keys of host, credential and model."""
    canonical: Target | None


Denied = Callable[[Target, Decision], None]


class Gate:
    """One replica's decisions. `decide` may be called from any thread.

    replica, machine   names of this replica and of the machine it runs on
    counts             `no_target`, `name_refused`, `denied`, `shadow` (let pass, but a rule in shadow holds),
                       `failed` (a fault in here: the call was let pass)
    """

    def __init__(
        self,
        view: View,
        overlay: Overlay,
        *,
        replica: str = "",
        machine: str = "",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._view, self._overlay = view, overlay
        self._replica, self._machine = replica, machine
        self.on_denied: Denied | None = None
        """Told of each denial."""
        self._monotonic = monotonic
        self._entries = view.entries
        self._marked = overlay.marked
        self._keys: dict[Target, _Known] = {}
        # Targets of which nothing is held or pending. One look into this set is all that most decisions need; who
        # changes anything of a target takes it out. The generation settles races between threads: it is raised
        # between a change and the taking out.
        self._free: set[Target] = set()
        self._generation = 0
        view.listen(changed=lambda key, _old, _new: self._touch(key))
        overlay.on_marked = self._touch

    def decide(self, target: Target) -> Decision:
        """Decide by SPEC 5.1. No I/O, never raises; a fault in here lets the call pass, logged and counted."""
        try:
            if target in self._free or self._is_free(target):
                view = self._view
                age_s = self._monotonic() - view.fresh_at_s
                return Decision(
                    allowed=True,
                    reason="ok",
                    seq=view.seq,
                    age_s=age_s,
                    source="cluster" if view.is_heard and age_s <= STALE_S else "stale",
                )
            return self._weigh(target)
        except Exception:  # noqa: BLE001 - nothing on a router's request path raises
            self.counts["failed"] += 1
            if self.counts["failed"] in (1, 10, 100) or self.counts["failed"] % 1000 == 0:
                _log.exception("a decision failed (%d so far); the call is let pass", self.counts["failed"])
            return self._answer("ok")

    def target_of(self, target: Target) -> Target:
        """The target as the log knows it: a loopback provider gets this machine's name."""
        provider = at_machine(target.provider, self._machine)
        return target if provider is target.provider or provider == target.provider else Target(provider, target.model)

    def _answer(self, reason: str) -> Decision:
        age_s = self._view.age_s()
        return Decision(allowed=True, reason=reason, seq=self._view.seq, age_s=age_s, source=self._source())

    def _source(self) -> Literal["cluster", "stale"]:
        return "stale" if self._view.is_stale else "cluster"

    def _touch(self, key: str) -> None:
        """Something of this scope changed: its targets are looked at anew."""
        self._generation += 1
        if not self._free:
            return
        if key.count(".") < 2:
            self._free.clear()
        else:
            with suppress(TokenRefused):  # an entry under a key that no target has concerns nobody
                self._free.discard(Target.of_key(key))

    def _is_free(self, target: Target) -> bool:
        """Whether nothing is known of any of the target's scopes; remembers it if so."""
        generation = self._generation
        known = self._keys.get(target) or self._learn(target)
        if known is None:
            return False
        for key in known.keys:
            if key in self._entries or key in self._marked:
                return False
        if known.canonical is not None:
            self._free.add(known.canonical)
            if generation != self._generation:
                self._free.discard(known.canonical)
        return True

    def _learn(self, target: Target) -> _Known | None:
        """Scope keys of a target; None if it is none."""
        if target.is_empty:
            self.counts["no_target"] += 1
            return None
        try:
            named = self.target_of(target)
            keys = named.keys
        except NameRefused as error:
            if not self.counts["name_refused"]:
                _log.warning("asked about a target whose name cannot be used (further ones are counted): %s", error)
            self.counts["name_refused"] += 1
            return None
        if len(self._keys) >= KNOWN_MAX:
            self._keys.clear()
            self._free.clear()
        # Only a target that its key leads back to can be taken out of the free ones by that key.
        canonical = named if named == target and Target.of_key(keys[2]) == target else None
        known = self._keys[target] = _Known(keys, canonical)
        return known

    def _weigh(self, target: Target) -> Decision:
        known = self._keys.get(target)
        if known is None:
            return self._answer("no_target")
        keys = known.keys
        if self._overlay.is_pending:
            self._overlay.fold()
        now_ms = self._view.now_ms()
        cluster = [_alive(self._entries.get(key), now_ms) for key in keys]
        own = [self._overlay.entry(key, now_ms) if key in self._marked else None for key in keys]
        seq, age_s, source = self._view.seq, self._view.age_s(), self._source()
        replicas = self._view.checkpoint.replicas if self._view.checkpoint is not None else 0
        decision = decide_entries(
            cluster, now_ms, self._replica, replicas=replicas, seq=seq, age_s=age_s, source=source
        )
        if any(own) and decision.reason != "allowed_by_operator":
            local = decide_entries(own, now_ms, self._replica, seq=seq, age_s=age_s, source="local")
            decision = _stricter(decision, local)
        if any(
            not hold.enforced and now_ms < hold.end_ms for entry in (*cluster, *own) if entry for hold in entry.holds
        ):
            self.counts["shadow"] += 1
        if not decision.allowed:
            self.counts["denied"] += 1
            if self.on_denied is not None:
                self.on_denied(target, decision)
        return decision


def _alive(entry: GateEntry | None, now_ms: int) -> GateEntry | None:
    return entry if entry is not None and not 0 < entry.expires_ms <= now_ms else None


def _stricter(cluster: Decision, local: Decision) -> Decision:
    """Denied until the last end of both; on probation in either, a trial is wanted (SPEC 5.1)."""
    if not local.allowed:
        return local if cluster.allowed or local.retry_in_s > cluster.retry_in_s else cluster
    return local if cluster.allowed and local.trial and not cluster.trial else cluster
