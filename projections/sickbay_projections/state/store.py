"""Where the states live: nodes and replicas, what changed in them, and who leaves when (Rules 4.8 and 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sickbay_events.names import Scope, Target
from sickbay_events.policy import Policy

from . import bounds
from .dedup import Acts
from .limits import HOUR_MS, NEW_TARGETS_ALL, UNHEARD_MS, RuleLimits
from .model import Node, Replica, Route

ROUTES_MAX: Final = 1_000
"""Chains whose answers are counted within one hour."""
_DIGEST_MASK: Final = (1 << 128) - 1


class Store:
    """Every scope and replica in the state, with the marks and queues that are made anew from it."""

    def __init__(self, policy: Policy) -> None:
        self.nodes: dict[str, Node] = {}
        self.replicas: dict[str, Replica] = {}
        self.routes: dict[str, Route] = {}
        self.acts = Acts()
        self.targets = 0
        self.other = 0
        """Events of targets for which the bounds left no room."""
        self.hour = self.new_targets = 0
        """New targets of all replicas in that hour."""
        self.swept_hour = 0
        self.due_ms = 0
        """When something may have to leave; nothing needs to be looked at before."""
        self._changed: dict[str, None] = {}
        self._dirty: list[Node] = []
        self._dirty_replicas: list[Replica] = []
        self._dirty_routes: list[Route] = []
        self._digest = 0
        self._limits: dict[tuple[str, str], RuleLimits] = {}
        self.set_policy(policy)

    # -- scopes and replicas -----------------------------------------------------------------------

    def node(self, scope: Scope, now_ms: int = 0) -> Node:
        """The node of a scope, made with those of its wider scopes where it is new."""
        key = scope.key
        node = self.nodes.get(key)
        if node is None:
            host = self.node(Scope(scope.host)) if scope.alias is not None else None
            credential = self.node(Scope(scope.host, scope.alias)) if scope.model is not None else None
            node = self.nodes[key] = Node(key, scope, self.limits_of(scope), host, credential)
            self._dirty.append(node)
            for wider in (host, credential):
                if wider is not None:
                    wider.children[key] = node
            if scope.model is not None:
                self.targets += 1
                node.state.last_ms = now_ms
                self._idle.add(node, self._idle_ms)
                self._set_due()
        return node

    def new_target(self, target: Target, replica: Replica, now_ms: int, *, is_refused: bool = False) -> Node | None:
        """A target that is new to the state; None if the bounds leave no room (Rule 4.8).

        Where there is none, the one that was only ever refused as unknown, and not lately, gives way. `is_refused`: so
        is this one, by what is known of it. It takes another's place in a full state, but never beyond an hour's limit.
        """
        limits, hour = self.policy.bounds, now_ms // HOUR_MS
        if replica.hour != hour:
            replica.hour, replica.new_targets = hour, 0
        if self.hour != hour:
            self.hour, self.new_targets = hour, 0
        hourly = limits.new_targets_per_hour
        is_beyond = replica.new_targets >= hourly or self.new_targets >= NEW_TARGETS_ALL * hourly
        if is_beyond or self.targets >= limits.targets:
            gives_way = None if is_beyond and is_refused else self._unanswered.take(self.nodes)
            if gives_way is None:
                self.other += 1
                replica.drop(now_ms)
                self.touch_replica(replica)
                return None
            self._drop(gives_way, now_ms)
            self._changed[gives_way.key] = None  # it may have been held
        replica.new_targets += 1
        self.new_targets += 1
        self.touch_replica(replica)
        return self.node(target.scope, now_ms)

    def told(self, node: Node) -> None:
        """The first outcome of a target was folded: it may be one of those that give way."""
        if bounds.is_unanswered(node.state):
            self._unanswered.add(node)

    def dropping(self, now_ms: int) -> list[Replica]:
        """Replicas of which something was dropped within the last hour, those with most first."""
        found = [one for one in self.replicas.values() if one.dropped and now_ms < one.dropped_ms + HOUR_MS]
        return sorted(found, key=lambda one: (-one.dropped, one.key))

    def replica(self, key: str) -> Replica:
        """The replica of this token, made where it is new."""
        replica = self.replicas.get(key)
        if replica is None:
            replica = Replica(key)
            self.add_replica(replica)
        return replica

    def add_replica(self, replica: Replica) -> None:
        """Take in a replica that the state does not have."""
        self.replicas[replica.key] = replica
        self._dirty_replicas.append(replica)

    def new_route(self, key: str) -> Route | None:
        """A chain that is new to the state; None if there are too many in this hour."""
        if len(self.routes) >= ROUTES_MAX:
            return None
        route = Route(key)
        self.add_route(route)
        return route

    def add_route(self, route: Route) -> None:
        """Take in a chain that the state does not have."""
        self.routes[route.key] = route
        self._dirty_routes.append(route)

    def heard(self, now_ms: int) -> int:
        """Replicas heard of in the last 10 min."""
        within_ms = round(self.policy.witnesses.heard_s * 1000)
        return sum(1 for replica in self.replicas.values() if now_ms < replica.heard_ms + within_ms)

    # -- what changed ------------------------------------------------------------------------------

    def touch(self, node: Node) -> None:
        """The state of this scope is another one than it was when it was last hashed."""
        if not node.dirty:
            node.dirty = True
            self._dirty.append(node)

    def touch_replica(self, replica: Replica) -> None:
        """The same for a replica."""
        if not replica.dirty:
            replica.dirty = True
            self._dirty_replicas.append(replica)

    def touch_route(self, route: Route) -> None:
        """The same for a chain."""
        if not route.dirty:
            route.dirty = True
            self._dirty_routes.append(route)

    def invalidate_fast_path(self, node: Node) -> None:
        """Of this scope and those below: the next success may do more than count."""
        node.is_quick = False
        for child in node.children.values():
            self.invalidate_fast_path(child)

    def entry_changed(self, node: Node, seq: int, now_ms: int) -> None:
        """The gate entry of this scope is another one from this event on."""
        state = node.state
        state.changed_seq, state.changed_ms = seq, now_ms
        if state.operator is not None and now_ms >= state.operator.end_ms:
            state.operator = None
        if state.ramp is not None and now_ms >= state.ramp.end_ms:
            state.ramp = None
        self._changed.pop(node.key, None)
        self._changed[node.key] = None
        self.touch(node)
        if node.scope.model is not None:
            self._idle.sooner(node, self._idle_ms)

    def take_changed(self) -> list[str]:
        """Scope keys whose entry changed since the last take, in order of change."""
        changed = list(self._changed)
        self._changed.clear()
        return changed

    def digest(self, rest: int) -> str:
        """Sum mod 2^128 of the hashes of all parts and of `rest`, in 32 hex digits; hashes what changed anew."""
        parts: list[Node | Replica | Route] = [node for node in self._dirty if self.nodes.get(node.key) is node]
        parts += [replica for replica in self._dirty_replicas if self.replicas.get(replica.key) is replica]
        parts += [route for route in self._dirty_routes if self.routes.get(route.key) is route]
        for part in parts:
            if part.dirty:
                self._digest -= part.hashed
                part.hashed = part.digest()
                self._digest += part.hashed
                part.dirty = False
        self._dirty, self._dirty_replicas, self._dirty_routes = [], [], []
        return f"{(self._digest + rest) & _DIGEST_MASK:032x}"

    # -- policy ------------------------------------------------------------------------------------

    def set_policy(self, policy: Policy) -> list[Node]:
        """Take up a policy; the nodes whose numbers are others now."""
        self.policy = policy
        self.policy_data = policy.to_data()
        self._limits.clear()
        changed = []
        for node in self.nodes.values():
            limits = self.limits_of(node.scope)
            if limits != node.limits:
                changed.append(node)
            node.limits, node.is_quick = limits, False
        self.queue_idle()
        return changed

    def limits_of(self, scope: Scope) -> RuleLimits:
        """The policy's numbers for a scope; one object for all that share them."""
        host, model = self.policy.host.keys() & {scope.host}, self.policy.model.keys() & {scope.model}
        names = (scope.host if host else "", scope.model or "" if model else "")
        limits = self._limits.get(names)
        if limits is None:
            limits = self._limits[names] = RuleLimits.of(self.policy.for_target(scope.host, scope.model or ""))
        return limits

    # -- time and bounds ---------------------------------------------------------------------------

    def clean(self, now_ms: int) -> None:
        """Evict up to two targets that are due, and once an hour (`swept_hour` moves) what was unheard of for 48 h."""
        for node in self._idle.due(self.nodes, now_ms, self._idle_ms):
            self._drop(node, now_ms)
        hour = now_ms // HOUR_MS
        if hour > self.swept_hour:
            self.swept_hour = hour
            self._sweep(now_ms)
        self._set_due()

    def _sweep(self, now_ms: int) -> None:
        for replica in list(self.replicas.values()):
            for boot in bounds.unheard_boots(replica, now_ms):
                del replica.boots[boot]
                replica.next_id = ""
                self.touch_replica(replica)
            if now_ms >= replica.heard_ms + UNHEARD_MS and not replica.boots:
                self._digest -= replica.hashed
                del self.replicas[replica.key]
        for route in [route for route in self.routes.values() if route.hour < now_ms // HOUR_MS]:
            self._digest -= route.hashed
            del self.routes[route.key]
        wide = [node for node in self.nodes.values() if node.scope.model is None]
        for node in sorted(wide, key=lambda node: node.scope.alias is None):
            self._drop_if_blank(node, now_ms)

    def _drop(self, node: Node, now_ms: int) -> None:
        """Let a scope leave the state, and wider ones that then have nothing to say."""
        del self.nodes[node.key]
        self._digest -= node.hashed
        node.gone = True
        if node.scope.model is not None:
            self.targets -= 1
        for wider in (node.credential, node.host):
            if wider is not None:
                del wider.children[node.key]
                self._drop_if_blank(wider, now_ms)

    def _drop_if_blank(self, node: Node, now_ms: int) -> None:
        if not node.gone and not node.children and bounds.is_blank(node.state, now_ms):
            self._drop(node, now_ms)

    def step_back(self, seq: int, now_ms: int, step_back: Callable[[Node, int], None]) -> None:
        """The log's clock went back by more than 2 s: it is believed (Rule 6). `step_back` does it to one scope."""
        self.swept_hour = min(self.swept_hour, now_ms // HOUR_MS)
        for node in self.nodes.values():
            before = bounds.ends(node.state)
            step_back(node, now_ms)
            node.health_unchanged_until_ms = 0
            self.touch(node)
            if bounds.ends(node.state) != before:
                self.entry_changed(node, seq, now_ms)
        for replica in self.replicas.values():
            replica.heard_ms = min(replica.heard_ms, now_ms)
            for boot in replica.boots.values():
                boot.heard_ms = min(boot.heard_ms, now_ms)
            replica.warned_hour = min(replica.warned_hour, now_ms // HOUR_MS)
            replica.dropped_ms = min(replica.dropped_ms, now_ms)
            replica.dropped_since_ms = min(replica.dropped_since_ms, now_ms)
            self.touch_replica(replica)
        self.acts.step_back(now_ms)
        for route in self.routes.values():
            route.hour = min(route.hour, now_ms // HOUR_MS)
            self.touch_route(route)
        self.queue_idle()

    def queue_idle(self) -> None:
        """Make the queue of those who leave when idle anew from the states."""
        self._idle_ms = round(self.policy.bounds.idle_s * 1000)
        self._idle, self._unanswered = bounds.IdleQueue(), bounds.RefusedNames()
        for node in self.nodes.values():
            if node.scope.model is not None:
                self._idle.add(node, self._idle_ms)
                if bounds.is_unanswered(node.state):
                    self._unanswered.add(node)
        self._set_due()

    def _set_due(self) -> None:
        sweep_ms = (self.swept_hour + 1) * HOUR_MS
        idle_ms = self._idle.next_ms
        self.due_ms = sweep_ms if idle_ms is None else min(sweep_ms, idle_ms)
