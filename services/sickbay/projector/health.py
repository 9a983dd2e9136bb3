"""How a projector is doing, for status, doctor and metrics."""

from __future__ import annotations

import time
from typing import Final, Literal, TypeAlias

import msgspec

from sickbay_events import rfc3339

from ..control.policies import differing_keys
from ..log.snapshots import compression
from .state import ProjectorState

Phase: TypeAlias = Literal["starting", "catching_up", "standby", "writing", "stopped"]
CURRENT_PHASES: Final = ("standby", "writing")
"""Phases in which the state is whole up to the log's end, so that questions can be answered from it."""


DROPPED_MAX: Final = 20


class DroppedFrom(msgspec.Struct, frozen=True):
    """Events of one replica about new targets that found no room. `since`: RFC 3339, log time of the first of them."""

    replica: str
    events: int
    since: str


class ProjectorHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One projector as it is now. Counts are since the process started."""

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
    """The holder of the checkpoint, as seen in the view; empty if there is none."""
    checkpoint_age_s: float
    acts_waiting_s: float
    """How long the oldest operator's act or policy has waited for NATS to pass it on to the log; 0: none waits.
    Only the writer looks."""
    differs: bool
    """This standby's state differs from the writer's: it is built anew, and takes over nothing until then."""
    policy_seq: int
    policy_differs: list[str]
    """Keys in which the file given to this process differs from the policy in force."""
    rebuilds: int
    last_rebuild: str
    """Why; empty if there was none."""
    folded: int
    poison: dict[str, int]
    dropped: list[DroppedFrom]
    """Of whose events some found no room in the state within the last hour (Rule 4.8), those with most first."""
    gaps: int
    """Sequences missing between events that the log has."""
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


def health_of(state: ProjectorState, phase: Phase) -> ProjectorHealth:
    """How this projector is doing now."""
    checkpoint = state.view.checkpoint
    return ProjectorHealth(
        name=state.me,
        phase=phase,
        is_writer=state.is_writer,
        connected=state.link.client is not None,
        seq=state.fleet.seq,
        time_ms=state.fleet.time_ms,
        lag=state.lag,
        log_created=state.log.created_at,
        writer=checkpoint.writer if checkpoint is not None else "",
        checkpoint_age_s=round(time.monotonic() - state.view.moved_s, 3),
        acts_waiting_s=round(state.control_lag.waiting_s, 3),
        differs=state.differs,
        policy_seq=state.fleet.policy_seq,
        policy_differs=differing_keys(state.policy_file, state.fleet.policy) if state.policy_file else [],
        rebuilds=state.rebuilds,
        last_rebuild=state.last_rebuild,
        folded=state.folded,
        poison=dict(state.dead.counts),
        dropped=[
            DroppedFrom(one.replica, one.events, rfc3339(one.since_ms))
            for one in state.fleet.dropped(state.writer.now_ms())[:DROPPED_MAX]
        ],
        gaps=state.gaps,
        puts=state.writer.puts,
        puts_refused=state.writer.refused,
        mends=state.writer.mends,
        view_loads=state.view.loads,
        transitions=state.transitions.published,
        transitions_waiting=state.transitions.waiting,
        dead_letters=state.dead.noted,
        snapshot_seq=state.snapshot_seq,
        snapshot_compression=compression(),
        last_error=state.last_error,
    )
