"""Samples of what the fold knows: one pass over the state, series with names capped by interest."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from heapq import heappush, heappushpop, heapreplace, nlargest
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from sickbay_events.derived import RULES
from sickbay_projections import Fleet
from sickbay_projections.rules import holds, scopes
from sickbay_projections.rules.health import WORDS, health
from sickbay_projections.rules.samples import ENCODING
from sickbay_projections.state import buckets
from sickbay_projections.state.limits import DAY_MS, HOUR_MS
from sickbay_projections.state.model import Node

from ..metrics.sample import Sample
from ..metrics.table import OTHER, PROVIDERS_MAX, TARGETS_MAX

SCOPES: Final = ("model", "credential", "host")
"""From the narrowest to the widest."""
STATES: Final = ("held", "usable", "idle")
AT_ONCE: Final = 32
"""Scopes between two looks at the clock."""
EXACT_MAX: Final = 2_000
"""Targets whose health is worked out for one scrape; of more that are not plainly healthy the word last told counts.
It takes ten times as long as a plain look."""
REPLICAS_MAX: Final = 100
"""Series of replicas and rules."""
DAY_HOURS: Final = DAY_MS // HOUR_MS
_BADNESS: Final = {word: -place for place, word in enumerate(WORDS)}


class _Denial(NamedTuple):
    """A hold that denies now, what makes it interesting first: a wide scope, then a late end."""

    width: int
    end_ms: int
    provider: str
    model: str
    rule: str

    @property
    def labels(self) -> tuple[str, ...]:
        """Of its own series."""
        return self.provider, self.model, SCOPES[self.width], self.rule


class _Says(NamedTuple):
    """What one scope says of those below."""

    folds: bool = False
    """A rule denies."""
    operator: bool = False
    """An operator denies."""
    allow: bool = False


_Seen: TypeAlias = tuple[int, int, str, Node, str]
"""A target, what makes it interesting first: badness of its health, log time of its last event; key, node, word."""
_NOTHING: Final = _Says()


class FleetScan:
    """What one pass over the state finds, in slices, so that the fold need not wait for the whole."""

    def __init__(self, fleet: Fleet, now_ms: int) -> None:
        self.now_ms = now_ms
        self.held: Counter[tuple[str, str]] = Counter()
        self.shadow: Counter[str] = Counter()
        self.probation: Counter[tuple[str, str]] = Counter()
        self.denials: list[_Denial] = []
        """A heap of at most `TARGETS_MAX`; of all others the latest end."""
        self.other_ends_ms: dict[tuple[str, ...], int] = {}
        self.targets: list[_Seen] = []
        """A heap of at most `TARGETS_MAX`."""
        self.providers: dict[str, Counter[str]] = {}
        self.warned: dict[str, int] = {}
        self.damaged: dict[str, int] = {}
        self.words: Counter[str] = Counter()
        self._wide: dict[str, _Says] = {}
        self.exact = 0
        """Targets that the quick look did not do for."""
        self._left = iter(list(fleet.store.nodes.values()))

    def go_on(self, for_s: float = math.inf) -> bool:
        """Look at more scopes for about so long; whether any are left. What the fold has dropped is passed over."""
        end_s = time.perf_counter() + for_s
        while nodes := list(islice(self._left, AT_ONCE)):
            for node in nodes:
                if node.gone:
                    continue
                if node.scope.model is None:
                    self._wide_scope(node)
                else:
                    self._target(node)
            if time.perf_counter() >= end_s:
                return True
        return False

    def _target(self, node: Node) -> None:
        state, now_ms, host, credential = node.state, self.now_ms, node.host, node.credential
        wide = self._wide_scope(host) if host is not None else _NOTHING
        name = self._wide_scope(credential) if credential is not None else _NOTHING
        state_word = "idle" if now_ms - state.last_ms >= HOUR_MS else "usable"
        if (
            wide is _NOTHING
            and name is _NOTHING
            and node.is_quick
            and state.operator is None
            and state.word == "healthy"
            and now_ms < state.good_ms + node.limits.idle_ms
        ):
            word = "healthy"  # nothing stands against it or is counted, so that time alone has not changed the word
        else:
            own = self._scope(node)
            denied = (own.folds or name.folds or wide.folds) and not (own.allow or name.allow or wide.allow)
            if denied or own.operator or name.operator or wide.operator:
                state_word = "held"
            word = health(node, now_ms).word if self.exact < EXACT_MAX else state.word
            self.exact += 1
        self.words[word] += 1
        self._keep((_BADNESS[word], state.last_ms, node.key, node, word))
        provider = node.scope.provider
        counted = self.providers.get(provider)
        if counted is None:
            counted = self.providers[provider] = Counter()
        counted[state_word] += 1

    def _keep(self, seen: _Seen) -> None:
        """Keep the most interesting ones: most of a large fleet is healthy and never told by name."""
        if len(self.targets) < TARGETS_MAX:
            heappush(self.targets, seen)
        elif seen > self.targets[0]:
            heapreplace(self.targets, seen)

    def _wide_scope(self, node: Node) -> _Says:
        """A host or credential, looked at once."""
        found = self._wide.get(node.key)
        if found is None:
            found = self._wide[node.key] = self._scope(node)
            if node.state.notices is not None and node.scope.alias is None:
                self._notices(node)
        return found

    def _scope(self, node: Node) -> _Says:
        state, now_ms = node.state, self.now_ms
        if (state.holds is None and state.operator is None) or scopes.is_behind(node):
            return _NOTHING
        denies = False
        for hold in (state.holds or {}).values():
            if now_ms >= hold.end_ms:
                if hold.proof and now_ms < holds.over_ms(hold, node.limits):
                    self.probation[hold.rule, node.scope.name] += 1
            elif hold.rule in node.limits.shadowed:
                self.shadow[hold.rule] += 1
            else:
                denies = True
                self._deny(node, hold.rule, hold.end_ms)
        operator = state.operator
        if operator is None or now_ms >= operator.end_ms:
            return _Says(denies)
        if not operator.allow:
            self._deny(node, "operator", operator.end_ms)
        return _Says(denies, not operator.allow, operator.allow)

    def _deny(self, node: Node, rule: str, end_ms: int) -> None:
        scope = node.scope
        self.held[rule, scope.name] += 1
        denial = _Denial(SCOPES.index(scope.name), end_ms, scope.provider, scope.model or "", rule)
        if len(self.denials) < TARGETS_MAX:
            heappush(self.denials, denial)
            return
        least = heappushpop(self.denials, denial)
        labels = OTHER, OTHER, SCOPES[least.width], least.rule
        self.other_ends_ms[labels] = max(self.other_ends_ms.get(labels, 0), least.end_ms)

    def _notices(self, node: Node) -> None:
        """Warnings of damaged text, and how much of it there was, of a host (Rule 4.5)."""
        notices, provider, hour = node.state.notices, node.scope.provider, self.now_ms // HOUR_MS
        assert notices is not None
        warned = int(notices.no_charset_day == self.now_ms // DAY_MS)
        damaged = 0
        for name in ENCODING & notices.signatures.keys():
            seen = notices.signatures[name]
            damaged += buckets.total(seen.counts, hour, DAY_HOURS)
            warned += seen.warned_hour > hour - DAY_HOURS and seen.warned_hour >= 0
        if warned or damaged:
            self.warned[provider], self.damaged[provider] = warned, damaged


def fleet_samples(fleet: Fleet, look: FleetScan) -> Iterator[Sample]:
    """Samples of a state at the log time of a look that is done."""
    hour = look.now_ms // HOUR_MS
    yield Sample("sickbay_replicas", fleet.replicas(look.now_ms))
    on_fallback = sum(1 for route in fleet.store.routes.values() if route.warned and route.hour == hour)
    yield Sample("sickbay_routes_on_fallback", on_fallback)
    for rule in RULES:
        for scope in SCOPES:
            yield Sample("sickbay_held_scopes", look.held[rule, scope], (rule, scope))
            if rule != "operator":
                yield Sample("sickbay_probation_scopes", look.probation[rule, scope], (rule, scope))
        if rule != "operator":
            yield Sample("sickbay_shadow_held_scopes", look.shadow[rule], (rule,))
    yield from _alone_samples(fleet, look.now_ms)
    yield from _hold_samples(look)
    yield from _target_samples(look)
    yield from _provider_samples(look)
    yield from _capped("sickbay_mangled_output_warnings", look.warned)
    yield from _capped("sickbay_mangled_outputs", look.damaged)


def _alone_samples(fleet: Fleet, now_ms: int) -> Iterator[Sample]:
    """The replicas that keep most from themselves, by rule; of all others the sum."""
    counts = Counter((one.replica, one.rule) for one in fleet.held_alone(now_ms))
    told = counts.most_common(REPLICAS_MAX)
    for (replica, rule), count in told:
        yield Sample("sickbay_replica_held_targets", count, (replica, rule))
    if rest := counts.total() - sum(count for _, count in told):
        yield Sample("sickbay_replica_held_targets", rest, (OTHER, OTHER))


def _hold_samples(look: FleetScan) -> Iterator[Sample]:
    for denial in look.denials:
        yield Sample("sickbay_hold_remaining_seconds", (denial.end_ms - look.now_ms) / 1000, denial.labels)
    for labels, end_ms in look.other_ends_ms.items():
        yield Sample("sickbay_hold_remaining_seconds", (end_ms - look.now_ms) / 1000, labels)


def _target_samples(look: FleetScan) -> Iterator[Sample]:
    words = look.words
    for word in WORDS:
        yield Sample("sickbay_targets", words[word], (word,))
    rest = Counter(words)
    for _, _, _, node, word in look.targets:
        rest[word] -= 1
        yield Sample("sickbay_target_health", 1, (node.scope.provider, node.scope.model or "", word))
    for word, count in rest.items():
        if count:
            yield Sample("sickbay_target_health", count, (OTHER, OTHER, word))


def _provider_samples(look: FleetScan) -> Iterator[Sample]:
    """The providers with most that is held, then with most targets."""
    ranked = sorted(look.providers.items(), key=lambda one: (-one[1]["held"], -one[1].total(), one[0]))
    rest: Counter[str] = Counter()
    for provider, counted in ranked[:PROVIDERS_MAX]:
        for state in STATES:
            yield Sample("sickbay_provider_targets", counted[state], (provider, state))
    for _, counted in ranked[PROVIDERS_MAX:]:
        rest.update(counted)
    if rest:
        for state in STATES:
            yield Sample("sickbay_provider_targets", rest[state], (OTHER, state))


def _capped(name: str, counts: dict[str, int]) -> Iterator[Sample]:
    """The largest by provider, the rest as `other`."""
    told = nlargest(PROVIDERS_MAX, counts, key=lambda provider: counts[provider])
    for provider in told:
        yield Sample(name, counts[provider], (provider,))
    if rest := sum(counts.values()) - sum(counts[provider] for provider in told):
        yield Sample(name, rest, (OTHER,))
