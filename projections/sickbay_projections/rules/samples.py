"""What an answer says of a target's output, and the shares that such samples make (Rule 4.4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, TypeAlias

from sickbay_events.outcome import CallOutcome

from ..state import buckets
from ..state.limits import SAMPLE_BUCKETS, RuleLimits
from ..state.model import NEVER, Bad, Node, ScopeState
from . import scopes, witnesses
from .context import FoldContext

Says: TypeAlias = Literal["clean", "bad", "damage", "unchecked", "nothing"]
"""`bad` is the model's own, `damage` damaged encoding; `unchecked` was answered but proves nothing either way."""
ENCODING: Final = frozenset({"double_encoded", "replacement_char"})
"""Signatures of damaged encoding."""
REPLICAS_MAX: Final = 16
"""Replicas whose bad samples are counted one by one; those of all others are counted together."""
SEVERAL: Final = ""
"""In place of a replica's name: more than one, or all beyond the first 16."""


class SampleShare(NamedTuple):
    """One share of a scope at one moment."""

    by: dict[str, int]
    """Replica -> its bad samples, none of them 0."""
    of: int
    """The samples of which those are a share."""

    @property
    def bad(self) -> int:
        """All bad samples."""
        return sum(self.by.values())

    def is_share(self, limits: RuleLimits) -> bool:
        """Whether the bad ones are as large a share as holds."""
        return self.bad > 0 and self.bad * 100 >= limits.bad_percent * self.of

    def is_enough(self, limits: RuleLimits) -> bool:
        """Whether they are that of as many samples as a hold needs."""
        return self.bad >= limits.bad and self.of >= limits.checkable and self.is_share(limits)

    def is_over_half(self, limits: RuleLimits) -> bool:
        """Whether the share lies over half of what holds."""
        return self.bad * 200 > limits.bad_percent * self.of


def says(case: FoldContext) -> Says:
    """What this outcome is as a sample.

    Damaged encoding that may be an echo of the prompt proves nothing: a model that echoes what it was given
    behaves correctly (Rule 3).
    """
    if case.row.sample == "none":
        return "nothing"
    if not case.event.checkable:
        return "unchecked"
    if case.row.sample == "clean":
        return "clean"
    if is_encoding(case.event):
        return "damage" if case.event.attributable else "unchecked"
    return "bad"


def is_encoding(event: CallOutcome) -> bool:
    """Whether the text was damaged on its way through an encoding."""
    return event.kind == "mangled_output" and (event.signature in ENCODING or event.scope == "host")


def plain(state: ScopeState, now_ms: int, limits: RuleLimits) -> SampleShare:
    """The model's own bad output among what could be checked."""
    return _evidence(state.bad, state.checked, now_ms, limits)


def over_half_ms(bad: Bad | None, of: list[int] | None, now_ms: int, limits: RuleLimits) -> int:
    """Log time from which the share may lie over half of what holds, if only good samples come: now or later.

    As clean samples age out of the window a share grows by itself. `NEVER` if there are no bad samples.
    """
    if bad is None:
        return NEVER
    bucket, count = now_ms // limits.sample_ms, 0
    for counts in bad.by.values():
        count += buckets.total(counts, bucket, SAMPLE_BUCKETS)
    if not count:
        return NEVER
    left, over = buckets.total(of, bucket, SAMPLE_BUCKETS), count * 200
    if over > limits.bad_percent * left or of is None or of[-2] > bucket:
        return now_ms
    for at in range(0, len(of), 2):
        if of[at] > bucket - SAMPLE_BUCKETS:
            left -= of[at + 1]
            if over > limits.bad_percent * left:
                return (of[at] + SAMPLE_BUCKETS) * limits.sample_ms
    return NEVER


def encoding(state: ScopeState, now_ms: int, limits: RuleLimits) -> SampleShare:
    """Damaged encoding among what was attributable."""
    return _evidence(state.damage, state.attributed, now_ms, limits)


def of_host(host: Node, now_ms: int) -> tuple[SampleShare, int]:
    """The damaged encoding of all models of a host, and how many of them have 3 bad and their share each.

    A model that is held for it is one of them, with what its hold rests on.
    """
    by, of, models = dict[str, int](), 0, 0
    for model in live_models(host):
        found = encoding(model.state, now_ms, model.limits)
        hold = (model.state.holds or {}).get("degraded")
        if hold is not None and hold.encoding:
            found.by[hold.by] = found.by.get(hold.by, 0) + hold.count
            found = found._replace(of=found.of + hold.of)
        of += found.of
        for name, count in found.by.items():
            by[name] = by.get(name, 0) + count
        models += found.bad >= host.limits.host_bad and found.is_share(model.limits)
    return SampleShare(by, of), models


def live_models(host: Node) -> Iterator[Node]:
    """The models of a host that no clear of a wider scope has made void."""
    return (model for model in _models(host) if not scopes.is_behind(model))


def has_other_clean(case: FoldContext, scope: Node, replica: str) -> bool:
    """Whether a replica other than this one had a clean sample of this scope lately."""
    models = (scope,) if scope.scope.model is not None else live_models(scope)
    return any(
        0 < clean_ms <= case.now_ms < clean_ms + scope.limits.good_answer_ms
        for clean_ms in (witnesses.other_clean_ms(model.state, replica) for model in models)
    )


def count_clean(state: ScopeState, event: CallOutcome, now_ms: int, limits: RuleLimits) -> None:
    """Count one clean sample. The quick exit of the loop does the same in place."""
    bucket = now_ms // limits.sample_ms
    state.checked = buckets.add(state.checked, bucket, SAMPLE_BUCKETS)
    if event.attributable:
        state.attributed = buckets.add(state.attributed, bucket, SAMPLE_BUCKETS)


def note_bad(case: FoldContext, says: Says) -> Bad:
    """Count one bad sample of its sort; where those are kept."""
    state, bucket = case.state, case.now_ms // case.limits.sample_ms
    if says == "damage":
        state.attributed = buckets.add(state.attributed, bucket, SAMPLE_BUCKETS)
        found = state.damage = state.damage or Bad()
    else:
        state.checked = buckets.add(state.checked, bucket, SAMPLE_BUCKETS)
        found = state.bad = state.bad or Bad()
    by = found.by
    # Who has counts in the current bucket has them in the window.
    for name in [
        name
        for name, counts in by.items()
        if counts[-2] != bucket and not buckets.total(counts, bucket, SAMPLE_BUCKETS)
    ]:
        del by[name]
    name = case.replica if case.replica in by or len(by) < REPLICAS_MAX else SEVERAL
    by[name] = buckets.add(by.get(name), bucket, SAMPLE_BUCKETS)
    witnesses.note_like(found.witnesses, case.replica, case.now_ms)
    return found


def are_enough(of: list[int] | None, now_ms: int, limits: RuleLimits) -> bool:
    """Whether there are as many samples as a hold needs, whatever they say."""
    return buckets.total(of, now_ms // limits.sample_ms, SAMPLE_BUCKETS) >= limits.checkable


def spend(case: FoldContext, scope: Node) -> None:
    """What a hold of this scope rests on is used up, and so is what came on its probation."""
    if scope.scope.model is not None:
        scope.state.checked = scope.state.bad = None
        models = iter((scope,))
    else:
        models = _models(scope)
    for model in models:
        model.state.attributed = model.state.damage = None
        case.store.touch(model)
    scope.state.damage = None


def _models(host: Node) -> Iterator[Node]:
    return (child for child in host.children.values() if child.scope.model is not None)


def _evidence(bad: Bad | None, of: list[int] | None, now_ms: int, limits: RuleLimits) -> SampleShare:
    bucket = now_ms // limits.sample_ms
    by = {
        name: count
        for name, counts in (bad.by.items() if bad is not None else ())
        if (count := buckets.total(counts, bucket, SAMPLE_BUCKETS))
    }
    return SampleShare(by, buckets.total(of, bucket, SAMPLE_BUCKETS))
