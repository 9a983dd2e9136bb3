"""Faults -> breaker: consecutive ones, or their share of a window (Rule 4.3)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, NamedTuple

from sickbay_events.names import untoken

from ..state import window
from ..state.limits import RuleLimits
from ..state.model import Faults, Node, ScopeState
from . import circuit, holds, ramp, spread, witnesses
from .circuit import NAME
from .context import FoldContext
from .rule import Rule

REPLICAS_MAX: Final = 16
"""Replicas whose faults are counted one by one; those of all others are counted together."""
SEVERAL: Final = ""
"""In place of a replica's name: more than one, or all beyond the first 16."""


class FaultCounts(NamedTuple):
    """What run and window of a target say at one moment."""

    run: int
    attempts: int
    by: dict[str, int]
    """Replica -> its faults in the window, none of them 0."""
    share_percent: int
    """The share of faults that opens at so many attempts."""

    @property
    def faults(self) -> int:
        """All faults in the window."""
        return sum(self.by.values())


def fold(case: FoldContext) -> None:
    """Fold one outcome of a target: `state.window`, `state.faults`, and the holds `breaker` of its scopes."""
    state, limits = case.state, case.limits
    if case.queued_ms > max(limits.run_ms, limits.window_ms):
        return
    faults = state.faults
    if faults is not None and not witnesses.is_empty(faults.witnesses):
        witnesses.age(faults.witnesses, case.now_ms, limits)
    cell = case.row.breaker
    if cell == "closes":
        _answered(case, state)
    elif cell == "begins_again":
        _fault(case, state)
    else:
        hold = circuit.breaker_hold(case.node)
        if hold is not None:
            holds.begins_again(case, case.node, hold)
        spread.told_nothing(case)


def take_back(case: FoldContext) -> None:
    """What a success does to faults that are remembered, where nothing is held: as `fold`, but for its count."""
    state, limits = case.state, case.limits
    faults = state.faults
    if faults is None or (not faults.run_ms and witnesses.is_empty(faults.witnesses)):
        return
    if faults.run_ms:
        case.node.health_unchanged_until_ms = 0  # the word may be another one without them
    witnesses.age(faults.witnesses, case.now_ms, limits)
    _no_run(case, state)


def evidence(state: ScopeState, now_ms: int, limits: RuleLimits) -> FaultCounts:
    """What counts at this log time."""
    faults, bucket = state.faults, now_ms // limits.bucket_ms
    attempts = window.total(state.window, bucket)
    share_percent = limits.low_share_percent if attempts >= limits.low_share_attempts else limits.share_percent
    if faults is None:
        return FaultCounts(0, attempts, {}, share_percent)
    run = sum(1 for at_ms in faults.run_ms if now_ms < at_ms + limits.run_ms)
    return FaultCounts(run, attempts, _totals(faults.by, bucket), share_percent)


# -- what came through ---------------------------------------------------------------------------------


def _answered(case: FoldContext, state: ScopeState) -> None:
    """What came through closes; a success is counted and ends the run as well."""
    spread.closed(case)
    hold = circuit.breaker_hold(case.node)
    if not holds.is_after(case, NAME, state):
        return
    if hold is not None:
        circuit.close(case, case.node, hold, ring_seq=hold.began_seq)
    if case.row.run != "success":
        return
    _no_run(case, state)
    if case.is_attempt and case.queued_ms <= case.limits.window_ms:
        bucket = case.now_ms // case.limits.bucket_ms
        state.window = window.add(state.window, bucket)
        if 0 < case.limits.slow_ttft_ms < (case.event.ttft_ms or 0):
            _slow(case, state, bucket)


def _no_run(case: FoldContext, state: ScopeState) -> None:
    """A success ends the run, and takes its replica's own word back."""
    faults = state.faults
    if faults is None or (not faults.run_ms and witnesses.is_empty(faults.witnesses)):
        return  # as the quick exit of the loop leaves it
    witnesses.forget_like(faults.witnesses, case.replica)
    if case.queued_ms <= case.limits.fresh_ms:
        faults.run_ms, faults.run_by = [], []
    bucket = case.now_ms // case.limits.bucket_ms
    is_counted = _totals(faults.by, bucket) or _totals(faults.slow_by, bucket)
    if not faults.run_ms and not is_counted and witnesses.is_empty(faults.witnesses):
        state.faults = None


def _slow(case: FoldContext, state: ScopeState, bucket: int) -> None:
    """A share of slow calls opens as a share of faults does. Other replicas' answers speak against one's word."""
    limits = case.limits
    faults = state.faults = state.faults or Faults()
    _note(faults.slow_by, case.replica, bucket)
    by, attempts = _totals(faults.slow_by, bucket), window.total(state.window, bucket)
    slow = sum(by.values())
    if attempts < limits.share_attempts or slow * 100 < limits.slow_percent * attempts:
        return
    alone = _only(by)
    if alone == SEVERAL or case.overlay or not witnesses.has_other_good(state, alone, case.now_ms, limits):
        numbers = {"slow": slow, "attempts": attempts, "replicas": len(by)}
        circuit.begin_open(case, case.node, slow, numbers)


# -- faults --------------------------------------------------------------------------------------------


def _fault(case: FoldContext, state: ScopeState) -> None:
    hold = circuit.breaker_hold(case.node)
    if hold is not None and case.now_ms < hold.end_ms:
        hold.later += 1
    elif holds.is_after(case, NAME, state):
        if circuit.is_trial(case, hold) if hold is not None else ramp.is_on(case, state, NAME):
            circuit.begin_open(case, case.node, 1, {"faults": 1})
        else:
            _count(case, state)
    spread.failed(case)
    hold = circuit.breaker_hold(case.node)
    if hold is not None and hold.began_seq == case.seq:
        spread.open_models(case)


def _count(case: FoldContext, state: ScopeState) -> None:
    """A fault that is no trial's: into the run if it is fresh, into the window unless it waited too long."""
    limits, bucket = case.limits, case.now_ms // case.limits.bucket_ms
    in_run, in_window = case.queued_ms <= limits.fresh_ms, case.queued_ms <= limits.window_ms
    if not in_run and not in_window:
        return
    faults = state.faults = state.faults or Faults()
    if in_window:
        state.window = window.add(state.window, bucket)
        _note(faults.by, case.replica, bucket)
    if in_run:
        faults.run_ms.append(case.now_ms)
        faults.run_by.append(case.replica)
    # Those too old for the run are in front; more than open are never needed.
    first = max(0, len(faults.run_ms) - limits.run_faults)
    for at_ms in faults.run_ms[first:]:
        if case.now_ms < at_ms + limits.run_ms:
            break
        first += 1
    if first:
        faults.run_ms, faults.run_by = faults.run_ms[first:], faults.run_by[first:]
    witnesses.note_like(faults.witnesses, case.replica, case.now_ms)
    _weigh(case, state, faults)


def _weigh(case: FoldContext, state: ScopeState, faults: Faults) -> None:
    """Open if a threshold is reached and it is not one replica's word against others (Rule 4, Two witnesses)."""
    limits, seen = case.limits, faults.witnesses
    confirms = witnesses.is_second(seen, case.replica)
    is_run, attempts = (
        len(faults.run_ms) >= limits.run_faults,
        window.total(state.window, case.now_ms // limits.bucket_ms),
    )
    if not confirms and not is_run and attempts < limits.share_attempts:
        return  # no threshold can be reached: most faults end here
    found = evidence(state, case.now_ms, limits)
    words = _words(case, state, found, faults)
    if not words and not confirms:
        return
    alone = SEVERAL if SEVERAL in words or case.overlay or confirms else words[0]
    numbers = {"run": found.run, "faults": found.faults, "attempts": found.attempts, "replicas": len(found.by)}
    if (
        alone == SEVERAL
        or witnesses.has_second(seen, alone)
        or not witnesses.has_other_good(state, alone, case.now_ms, case.limits)
    ):
        _warn(case, _suspect(case, state, found), numbers)
        circuit.begin_open(case, case.node, max(found.run, found.faults), numbers)
    else:
        _hold_alone(case, faults, alone, _suspect(case, state, found), numbers)


def _words(case: FoldContext, state: ScopeState, found: FaultCounts, faults: Faults) -> list[str]:
    """For each threshold that is reached, the replica whose word alone it is or `SEVERAL`."""
    limits, words = case.limits, []
    # Of a busy target five faults in a row are no news: there only shares open.
    if found.run >= limits.run_faults and found.attempts <= limits.shares_only_above:
        words.append(_only(set(faults.run_by)))
    if found.attempts >= limits.share_attempts and found.faults * 100 >= found.share_percent * found.attempts:
        words.append(_suspect(case, state, found) or _only(found.by))
    return words


def _suspect(case: FoldContext, state: ScopeState, found: FaultCounts) -> str | None:
    """The replica that has nearly all of the faults while the rest is under half the limit."""
    most = max(found.by, key=lambda name: (found.by[name], name), default=SEVERAL)
    if most == SEVERAL or case.overlay:
        return None
    if not witnesses.has_other_good(state, most, case.now_ms, case.limits):
        return None  # nobody to compare with
    own = found.by[most]
    # What the suspect itself got answered is counted with the rest: it has next to nothing.
    rest, rest_attempts = found.faults - own, found.attempts - own
    is_under = rest == 0 or rest * 200 < found.share_percent * rest_attempts
    return most if is_under and own * 100 >= case.limits.suspect_percent * found.faults else None


def _hold_alone(case: FoldContext, faults: Faults, replica: str, suspect: str | None, numbers: dict[str, int]) -> None:
    """One replica's word while others had good answers: its own overlay holds it."""
    length_ms = circuit.open_ms(case, case.node, 1)
    if not witnesses.note_alone(faults.witnesses, replica, case.now_ms, length_ms):
        return
    _warn(case, suspect, numbers)
    case.held_alone(case.node, NAME, case.now_ms + length_ms, numbers, replica)


def _warn(case: FoldContext, suspect: str | None, numbers: dict[str, int]) -> None:
    if suspect is not None:
        case.warned(case.node.scope, "replica_suspect", numbers, replica=suspect)


def _note(by: dict[str, list[int]], replica: str, bucket: int) -> None:
    """Count one of this replica, and drop those who have none in the window any more."""
    # Who has counts in the current bucket has them in the window.
    for name in [name for name, counts in by.items() if counts[0] != bucket and not window.total(counts, bucket)]:
        del by[name]
    name = replica if replica in by or len(by) < REPLICAS_MAX else SEVERAL
    by[name] = window.add(by.get(name), bucket)


def _totals(by: dict[str, list[int]], bucket: int) -> dict[str, int]:
    return {name: count for name, counts in by.items() if (count := window.total(counts, bucket))}


def _only(names: Collection[str]) -> str:
    return next(iter(names)) if len(names) == 1 else SEVERAL


def _clear(state: ScopeState) -> None:
    state.window = state.faults = None


def _step_back(node: Node, now_ms: int) -> None:
    state, bucket = node.state, now_ms // node.limits.bucket_ms
    faults = state.faults
    if state.window is not None:
        window.step_back(state.window, bucket)
    if faults is not None:
        faults.run_ms = [min(at_ms, now_ms) for at_ms in faults.run_ms]
        for counts in (*faults.by.values(), *faults.slow_by.values()):
            window.step_back(counts, bucket)
        witnesses.step_back(faults.witnesses, now_ms, _cap_ms(node.limits))


def _document(node: Node, state: ScopeState, at_ms: int) -> dict[str, Any]:
    found, faults, ramp_of = evidence(state, at_ms, node.limits), state.faults, state.ramp
    seen = faults.witnesses if faults is not None else None
    alone = seen.alone if seen is not None and at_ms < seen.alone_end_ms else None
    return {
        "fault_run": found.run,
        "window_attempts": found.attempts,
        "window_faults": found.faults,
        "window_faults_by": {untoken(name) if name else "(others)": found.by[name] for name in sorted(found.by)},
        "breaker_held_alone": untoken(alone) if alone is not None else None,
        "ramp_until_ms": ramp_of.end_ms if ramp_of is not None and at_ms < ramp_of.end_ms else None,
    }


def _cap_ms(limits: RuleLimits) -> int:
    jitter_ms = limits.breaker_cap_ms * limits.jitter_percent // 100
    return max(limits.breaker_cap_ms + jitter_ms, limits.retry_after_cap_ms)


def _concerns(case: FoldContext) -> bool:
    return case.row.run in ("success", "fault") or case.state.faults is not None


RULE: Final = Rule(
    name=NAME,
    clear=_clear,
    step_back=_step_back,
    document=_document,
    cap_ms=_cap_ms,
    concerns=_concerns,
    fold=fold,
    take_back=take_back,
)
