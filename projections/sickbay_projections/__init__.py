"""What follows from the events. Pure: no clock, network, disk, random source or environment."""

from __future__ import annotations

from sickbay_events.view import Decision

from .decide import decide_entries
from .fold import Fleet
from .rules.health import Health
from .state.model import Recorded
from .state.snapshot import FOLD_VERSION

__all__ = ["FOLD_VERSION", "Decision", "Fleet", "Health", "Recorded", "decide_entries"]
