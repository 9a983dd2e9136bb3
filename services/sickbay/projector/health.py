"""How a projector is doing, for status, doctor and metrics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from ..log.control import differing_keys
from ..log.snapshots import compression

if TYPE_CHECKING:
    from .loop import Projector

Phase: TypeAlias = Literal["starting", "catching_up", "standby", "writing", "stopped"]


class ProjectorHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One projector as it stands now. Counts are since the process started."""

    name: str
    """Name and boot."""
    phase: Phase
    is_writer: bool
    connected: bool
    seq: int
    """Last log sequence folded or passed."""
    time_ms: int
    """Log time of that event."""
    lag: int
    """Events in the log that are not folded yet, as last heard."""
    log_created: str
    writer: str
    """Who holds the checkpoint, as seen in the view; empty if nobody."""
    checkpoint_age_s: float
    acts_waiting_s: float
    """How long the oldest operator's act or policy that NATS has not passed on to the log has waited; 0: none does.
    Told by the writer alone."""
    differs: bool
    """A standby whose state differs from the writer's: it reloads and takes over nothing until then."""
    policy_seq: int
    policy_differs: list[str]
    """Keys in which the file given to this process differs from the policy in force."""
    rebuilds: int
    last_rebuild: str
    """Why; empty if there was none."""
    folded: int
    poison: dict[str, int]
    gaps: int
    """Sequences that the log no longer has inside."""
    puts: int
    puts_refused: int
    mends: int
    """Entries in the bucket that differed from the state and were put again."""
    view_loads: int
    transitions: int
    transitions_waiting: int
    dead_letters: int
    snapshot_seq: int
    """Sequence of the newest snapshot this process stored or started from."""
    snapshot_compression: str
    last_error: str


def health_of(p: Projector, phase: Phase) -> ProjectorHealth:
    """How this projector is doing now."""
    checkpoint = p.view.checkpoint
    return ProjectorHealth(
        name=p.me,
        phase=phase,
        is_writer=p.is_writer,
        connected=p.link.client is not None,
        seq=p.fleet.seq,
        time_ms=p.fleet.time_ms,
        lag=p.lag,
        log_created=p.log.created_at,
        writer=checkpoint.writer if checkpoint is not None else "",
        checkpoint_age_s=round(time.monotonic() - p.view.moved_s, 3),
        acts_waiting_s=round(p.keeper.acts.waiting_s, 3),
        differs=p.differs,
        policy_seq=p.fleet.policy_seq,
        policy_differs=differing_keys(p.file, p.fleet.policy) if p.file else [],
        rebuilds=p.rebuilds,
        last_rebuild=p.last_rebuild,
        folded=p.folded,
        poison=dict(p.dead.counts),
        gaps=p.gaps,
        puts=p.writer.puts,
        puts_refused=p.writer.refused,
        mends=p.writer.mends,
        view_loads=p.view.loads,
        transitions=p.transitions.published,
        transitions_waiting=p.transitions.waiting,
        dead_letters=p.dead.noted,
        snapshot_seq=p.keeper.snapshot_seq,
        snapshot_compression=compression(),
        last_error=p.last_error,
    )
