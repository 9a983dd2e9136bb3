"""One outcome on its way through the folds."""

from __future__ import annotations

from typing import Protocol

from sickbay_events.derived import DerivedEvent, Held, Released
from sickbay_events.kinds import Group
from sickbay_events.names import untoken
from sickbay_events.outcome import CallOutcome

from .limits import Limits
from .state import Hold, Node, ScopeState
from .table import Row


def http_status(status: int | None) -> int | None:
    """A raw publisher's status may be any number; only one of three digits is kept."""
    return status if status is not None and 0 <= status <= 999 else None


class FleetView(Protocol):
    """What a fold may ask of the fleet as a whole, and whom it tells of a changed gate entry."""

    overlay: bool

    def heard(self, now_ms: int) -> int:
        """Replicas heard of in the last 10 min."""
        ...

    def entry_changed(self, node: Node, seq: int, now_ms: int) -> None:
        """The gate entry of this scope is another one now."""
        ...


class Case:
    """The outcome being folded, its target's state and where to put what follows.

    A fleet has one and fills it anew for each outcome that does not leave by the quick exit: nothing is
    allocated for an event.
    """

    __slots__ = (
        "event",
        "fleet",
        "group",
        "limits",
        "node",
        "now_ms",
        "out",
        "queued_ms",
        "replica",
        "row",
        "seq",
        "state",
    )

    fleet: FleetView
    node: Node
    state: ScopeState
    limits: Limits
    replica: str
    """Token of the replica's name."""
    event: CallOutcome
    group: Group
    """The event's group, after the rules that make an outcome tell nothing."""
    row: Row
    """The table's row of `group`."""
    seq: int
    now_ms: int
    """Log time of the event."""
    queued_ms: float
    out: list[DerivedEvent]

    @property
    def status(self) -> int | None:
        """The HTTP status, if it is one."""
        return http_status(self.event.status)

    @property
    def replica_name(self) -> str:
        """The replica as people name it."""
        return untoken(self.replica)

    def held(self, node: Node, hold: Hold, numbers: dict[str, int], old_end_ms: int | None = None) -> None:
        """Tell that a hold of this scope began, began again or moved its end out."""
        self.fleet.entry_changed(node, self.seq, self.now_ms)
        self.out.append(
            Held(
                scope=node.scope,
                rule=hold.rule,
                cause_seq=self.seq,
                time_ms=self.now_ms,
                enforced=hold.rule not in node.limits.shadowed,
                numbers=numbers,
                began_seq=hold.began_seq,
                end_ms=hold.end_ms,
                old_end_ms=old_end_ms,
                proof=hold.proof,
                kind=hold.kind,
                status=hold.status,
            )
        )

    def released(self, node: Node, hold: Hold, by: str) -> None:
        """Tell that a hold of this scope ended before its end, or its probation by proof."""
        self.fleet.entry_changed(node, self.seq, self.now_ms)
        self.out.append(
            Released(
                scope=node.scope,
                rule=hold.rule,
                cause_seq=self.seq,
                time_ms=self.now_ms,
                enforced=hold.rule not in node.limits.shadowed,
                numbers={"count": hold.count, "later": hold.later},
                began_seq=hold.began_seq,
                end_ms=hold.end_ms,
                by=by,
            )
        )
