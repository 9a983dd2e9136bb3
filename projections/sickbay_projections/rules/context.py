"""One event on its way through the folds."""

from __future__ import annotations

from sickbay_events.derived import DerivedEvent, Released, TargetHeld, WarningRaised
from sickbay_events.kinds import Group, Kind
from sickbay_events.names import Scope, untoken
from sickbay_events.outcome import CallOutcome

from ..state.limits import RuleLimits
from ..state.model import Hold, Node, ScopeState
from ..state.store import Store
from .columns import KindRow


def http_status(status: int | None) -> int | None:
    """A raw publisher's status may be any number; only one of three digits is kept."""
    return status if status is not None and 0 <= status <= 999 else None


class FoldContext:
    """The event being folded, its target's state and where to put what follows.

    A fleet has one and fills it anew for each event that does not leave by the quick exit: nothing is
    allocated for an event. An override fills `store`, `seq`, `now_ms` and `out` only.
    """

    __slots__ = (
        "event",
        "group",
        "is_attempt",
        "kind",
        "limits",
        "node",
        "now_ms",
        "out",
        "overlay",
        "queued_ms",
        "replica",
        "row",
        "seq",
        "state",
        "store",
    )

    store: Store
    overlay: bool
    """A gate's own fold: one witness is enough."""
    node: Node
    state: ScopeState
    limits: RuleLimits
    replica: str
    """Token of the replica's name."""
    event: CallOutcome
    kind: Kind
    """The event's kind, after the rules of Rule 3 on who is to blame."""
    group: Group
    is_attempt: bool
    """False for a first content: it proves something and is counted nowhere."""
    row: KindRow
    """The table's row of `group`, which is that of `kind`."""
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

    def changed(self, node: Node) -> None:
        """The gate entry of this scope is another one from this event on."""
        self.store.entry_changed(node, self.seq, self.now_ms)

    def held(self, node: Node, hold: Hold, numbers: dict[str, int], old_end_ms: int | None) -> None:
        """Tell that a hold of this scope began, or began again while one stood, until that end."""
        self.changed(node)
        self.out.append(
            TargetHeld(
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
                by=untoken(hold.by) if hold.by else None,
            )
        )

    def released(self, node: Node, hold: Hold, by: str) -> None:
        """Tell that a hold of this scope ended before its end, or its probation by proof."""
        self.changed(node)
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

    def warned(
        self,
        scope: Scope,
        rule: str,
        numbers: dict[str, int],
        *,
        replica: str | None = None,
        signature: str | None = None,
        route: str | None = None,
    ) -> None:
        """Tell what a person should know and what gates nothing. `replica` is a token."""
        self.out.append(
            WarningRaised(
                scope=scope,
                rule=rule,
                cause_seq=self.seq,
                time_ms=self.now_ms,
                numbers=numbers,
                signature=signature,
                replica=None if replica is None else untoken(replica),
                route=route,
            )
        )

    def held_alone(
        self, node: Node, rule: str, end_ms: int, numbers: dict[str, int], replica: str, *, proof: bool = True
    ) -> None:
        """Tell that the overlay of one replica holds this scope, and the fleet does not. `replica` is a token."""
        self.out.append(
            TargetHeld(
                scope=node.scope,
                rule=rule,
                cause_seq=self.seq,
                time_ms=self.now_ms,
                enforced=rule not in node.limits.shadowed,
                numbers=numbers,
                began_seq=self.seq,
                end_ms=end_ms,
                proof=proof,
                kind=self.kind,
                status=self.status,
                replica=untoken(replica),
            )
        )
