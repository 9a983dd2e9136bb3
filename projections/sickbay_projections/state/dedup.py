"""The rule Once (Rule 4): an event that was seen before, or lies below the window, changes nothing."""

from __future__ import annotations

import re
from typing import Final

from .limits import BOOTS_MAX, ONCE_BITS, UNHEARD_MS
from .model import Boot, Replica

_ID: Final = re.compile(r"([0-9a-fA-F]{16})-([1-9][0-9]{0,17})")
_MASK: Final = (1 << ONCE_BITS) - 1
_RUN_ID_MAX: Final = 30
"""Counters that no process lives to fill: ids of a run never grow to another form."""


def is_first(replica: Replica, event_id: str | None, now_ms: int) -> bool:
    """Whether this event of the replica is to be folded; takes note of it.

    An event of an unbroken run is told by its id alone, in place where outcomes are folded (`Replica.next_id`).
    Ids of another form than `<boot>-<n>` are always new: raw publishers have the server's window only.
    """
    if event_id is None:
        return True
    boot = replica.boots.get(event_id[:16])
    if boot is None:
        return _is_first_of_boot(replica, event_id, now_ms)
    number = event_id[17:]
    # The boot is known, so only the rest of the form is left to check; this runs for every event.
    if not number.isdecimal() or number[0] == "0" or event_id[16] != "-" or len(number) > 18:
        return True
    n = int(number)
    ahead = n - boot.highest
    if ahead > 0:
        if boot.missing or ahead > 1:
            boot.missing = (boot.missing << ahead | (1 << ahead) - 2) & _MASK if ahead < ONCE_BITS else _MASK - 1
        boot.highest = n
        boot.heard_ms = now_ms
        _begin_run(replica, event_id, boot)
        return True
    replica.next_id = ""
    if now_ms >= boot.heard_ms + UNHEARD_MS:
        return _is_first_of_boot(replica, event_id, now_ms)
    if -ahead >= ONCE_BITS:
        return False
    bit = 1 << -ahead
    if not boot.missing & bit:
        return False
    boot.missing ^= bit
    boot.heard_ms = now_ms
    return True


def _begin_run(replica: Replica, event_id: str, boot: Boot) -> None:
    """Say by which id the run of this boot goes on; none where something is missing in it."""
    replica.run, replica.prefix = boot, event_id[:17]
    is_whole = not boot.missing and len(event_id) < _RUN_ID_MAX
    replica.next_id = f"{replica.prefix}{boot.highest + 1}" if is_whole else ""


def _is_first_of_boot(replica: Replica, event_id: str, now_ms: int) -> bool:
    match = _ID.fullmatch(event_id)
    if match is None:
        return True
    replica.next_id = ""
    boots, n = replica.boots, int(match[2])
    boots.pop(match[1], None)
    if len(boots) >= BOOTS_MAX:
        del boots[min(boots, key=lambda boot: (boots[boot].heard_ms, boot))]
    boots[match[1]] = Boot(n, (1 << min(n, ONCE_BITS)) - 2, now_ms)
    return True
