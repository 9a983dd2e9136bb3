"""How a projector is doing, for status, doctor and metrics."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

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
