"""The rule Once (Rule 4): an event that was seen before, or lies below the window, changes nothing."""

from __future__ import annotations

import re
from typing import Final

from sickbay_events.outcome import Override, PolicyChanged
from sickbay_events.times import parse_rfc3339

from .limits import BOOTS_MAX, ONCE_BITS, UNHEARD_MS
from .model import Boot, Replica, hash_of

_ID: Final = re.compile(r"([0-9a-fA-F]{16})-([1-9][0-9]{0,17})")
_MASK: Final = (1 << ONCE_BITS) - 1
_RUN_ID_MAX: Final = 30
"""Counters that no process lives to fill: ids of a run never grow to another form."""
ACTS_MAX: Final = 256


class Acts:
    """The newest acts of operators and policies, to know one that the log brings again.

    A log that sources its control stream anew, as after a restore, repeats all of them in their order.
    """

    def __init__(self, times_ms: dict[str, int] | None = None, before_ms: int = 0) -> None:
        self.times_ms = times_ms or {}
        """Hash of its id, or of all of it where it has none -> the time that it says."""
        self.before_ms = before_ms
        """An act that says a time up to this and is not among them was seen before."""

    def is_first(self, event: Override | PolicyChanged, key: str, now_ms: int) -> bool:
        """Whether this act on a scope key (a policy's is empty) is to be folded; takes note of it.

        One that has neither id nor time cannot be told from another.
        """
        at_ms = min(_time_ms(event.at), now_ms)
        if not event.id and not at_ms:
            return True
        name = f"{hash_of(key, event.id or event):032x}"[:16]
        if name in self.times_ms or 0 < at_ms <= self.before_ms:
            return False
        self.times_ms[name] = at_ms
        if len(self.times_ms) > ACTS_MAX:
            oldest = min(self.times_ms, key=lambda one: (self.times_ms[one], one))
            self.before_ms = max(self.before_ms, self.times_ms.pop(oldest))
        return True

    def step_back(self, now_ms: int) -> None:
        """The log's clock went back: what is done by the new one is not old."""
        if self.before_ms >= now_ms:
            self.before_ms = 0
        self.times_ms = {name: min(at_ms, now_ms) for name, at_ms in self.times_ms.items()}


def _time_ms(text: str | None) -> int:
    try:
        return max(0, parse_rfc3339(text)) if text else 0
    except ValueError:
        return 0


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
