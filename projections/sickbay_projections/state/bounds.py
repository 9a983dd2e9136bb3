"""What keeps the state small, and a clock that steps back (Rules 4.8 and 6)."""

from __future__ import annotations

import heapq
from typing import NamedTuple

from . import points
from .limits import CLEAR_SHOWN_MS, OVERRIDE_MS_MAX, UNHEARD_MS
from .model import Node, Replica, ScopeState

EVICTED_AN_EVENT = 2
_TIMES = (
    "last_ms",
    "good_ms",
    "other_good_ms",
    "clean_ms",
    "other_clean_ms",
    "bad_ms",
    "fault_ms",
    "word_ms",
    "cleared_ms",
    "changed_ms",
)
"""Times of a scope that lie in the past."""


class Dropped(NamedTuple):
    """Events of one replica about targets for which the state had no room."""

    replica: str
    events: int
    since_ms: int
    """Log time of the first of them."""


class IdleQueue:
    """Targets by the time at which they are due to leave. Made from the states; no part of the state.

    A place may be too early, for its target has had events since: it is put right when it comes up, so an
    event costs nothing here. It is never too late: what brings a target's time forward says `sooner`.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, str]] = []

    def add(self, node: Node, idle_ms: int) -> None:
        """Give a target a place."""
        place = _due(node, idle_ms)
        node.due_ms = place[0]
        heapq.heappush(self._heap, place)

    def sooner(self, node: Node, idle_ms: int) -> None:
        """A hold or a record of the target ended: it may be due before its place says."""
        if _due(node, idle_ms)[0] < node.due_ms:
            self.add(node, idle_ms)

    @property
    def next_ms(self) -> int | None:
        """When the next one may be due."""
        return self._heap[0][0] if self._heap else None

    def due(self, nodes: dict[str, Node], now_ms: int, idle_ms: int) -> list[Node]:
        """Take out up to two of the oldest that are due."""
        heap, found = self._heap, list[Node]()
        while heap and heap[0][0] <= now_ms and len(found) < EVICTED_AN_EVENT:
            place = heapq.heappop(heap)
            node = nodes.get(place[2])
            if node is None or node.due_ms != place[0] or node in found:
                continue  # an older place of a target that got a sooner one, or has left
            if _due(node, idle_ms) == place:
                found.append(node)
            else:
                self.add(node, idle_ms)
        return found


class RefusedNames:
    """Targets that were only ever refused as unknown, by the sequence of their newest event: names that a client made
    up, most likely. Made from the states; no part of the state.

    A place may be too early, as in `IdleQueue`; who has been answered, or failed otherwise, is passed when it comes up.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []

    def add(self, node: Node) -> None:
        """Give a target a place; one that is none of these is passed over later."""
        heapq.heappush(self._heap, (node.state.last_seq, node.key))

    def take(self, nodes: dict[str, Node]) -> Node | None:
        """Take out the one whose newest event is the oldest; None if there is none. Who an operator named stays."""
        heap, named, found = self._heap, list[Node](), None
        while heap and found is None:
            seq, key = heapq.heappop(heap)
            node = nodes.get(key)
            if node is None or not is_unanswered(node.state):
                continue
            if node.state.last_seq != seq:
                self.add(node)
            elif node.state.operator is not None:
                named.append(node)
            else:
                found = node
        for node in named:
            self.add(node)
        return found


def is_unanswered(state: ScopeState) -> bool:
    """Whether a target was only ever refused as unknown. Who is not that any more never is again."""
    return state.outcomes > 0 and not state.answers and not state.failed_otherwise


def _due(node: Node, idle_ms: int) -> tuple[int, int, str]:
    state = node.state
    at_ms = state.last_ms + idle_ms
    for hold in (state.holds or {}).values():
        at_ms = max(at_ms, hold.shown_over_ms)
    if state.operator is not None:
        at_ms = max(at_ms, state.operator.end_ms)
    return at_ms, state.last_seq, node.key


def is_blank(state: ScopeState, now_ms: int) -> bool:
    """Whether a host or a credential without targets has nothing to say any more."""
    return (
        all(now_ms >= hold.shown_over_ms for hold in (state.holds or {}).values())
        and (state.ramp is None or now_ms >= state.ramp.end_ms)
        and (state.operator is None or now_ms >= state.operator.end_ms)
        and (not state.cleared_seq or now_ms >= max(state.cleared_ms + UNHEARD_MS, state.cleared_shown_ms))
    )


def unheard_boots(replica: Replica, now_ms: int) -> list[str]:
    """Boots that were not heard of for 48 h."""
    return [name for name, boot in replica.boots.items() if now_ms >= boot.heard_ms + UNHEARD_MS]


def ends(state: ScopeState) -> list[int]:
    """The ends that the scope's gate entry shows."""
    found = [
        end_ms
        for _, hold in sorted((state.holds or {}).items())
        for end_ms in (hold.end_ms, hold.shown_over_ms, hold.trial_from_ms)
    ]
    found.append(state.ramp.end_ms if state.ramp else 0)
    return [*found, state.operator.end_ms if state.operator else 0, state.cleared_shown_ms]


def step_back(node: Node, now_ms: int, caps_ms: dict[str, int]) -> None:
    """The log's clock is believed: stored times ahead of it become it, no end lies further than the rule's cap.

    `caps_ms`: by rule. What a rule remembers beside its holds, it steps back itself.
    """
    state = node.state
    for name in _TIMES:
        setattr(state, name, min(getattr(state, name), now_ms))
    state.cleared_shown_ms = min(state.cleared_shown_ms, now_ms + max(CLEAR_SHOWN_MS, OVERRIDE_MS_MAX))
    for hold in (state.holds or {}).values():
        ahead_ms = max(0, hold.began_ms - now_ms)
        hold.began_ms -= ahead_ms
        hold.evidence_ms = min(hold.evidence_ms, now_ms)
        hold.end_ms = min(hold.end_ms, now_ms + caps_ms[hold.rule])
        hold.first_ms = min(hold.first_ms, now_ms)
        hold.trial_from_ms = min(max(0, hold.trial_from_ms - ahead_ms), hold.end_ms)
        goes_on_ms = node.limits.probation_ms if hold.proof else 0
        hold.shown_over_ms = min(hold.shown_over_ms, max(hold.end_ms, now_ms) + goes_on_ms)
    for past in (state.past or {}).values():
        past.end_ms, past.over_ms = min(past.end_ms, now_ms), min(past.over_ms, now_ms)
    if state.operator is not None:
        state.operator.time_ms = min(state.operator.time_ms, now_ms)
        state.operator.end_ms = min(state.operator.end_ms, now_ms + OVERRIDE_MS_MAX)
    for slot in (state.points or {}).values():
        points.step_back(slot, now_ms, node.limits)
    if state.requests is not None:
        state.requests = {name: min(at_ms, now_ms) for name, at_ms in state.requests.items()}
    if state.ramp is not None and state.ramp.from_ms > now_ms:
        state.ramp.end_ms -= state.ramp.from_ms - now_ms
        state.ramp.from_ms = now_ms
