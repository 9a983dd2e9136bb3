"""Samples of a router: what its gate, mirror, reporter and trials count. Asked in any thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, get_args

from sickbay_events import KINDS, CallOutcome
from sickbay_projections.entries import REASONS

from ..bus.publish import Blocked
from ..router.client import Sickbay
from ..router.errors import Reason
from .sample import Sample, build_sample, samples_by_label
from .table import OTHER

if TYPE_CHECKING:
    from ..bus.link import Link
    from ..router.reporter import Counts
    from ..sync import SyncSickbay
    from ..view.entries import View

DENIALS: Final = (*REASONS.values(), "trial_taken", "ramp")
LABELS: Final = (*KINDS, "answered", "refused", "probe")
"""Under which the outbox counts events: kinds of outcomes, and what else goes through it."""
BLOCKED: Final = ("no", *(why for why in get_args(Blocked) if why))
MIRROR_EVENTS: Final = ("body", "version", "policy", "mismatch", "other_bucket", "silence", "filled")
TRIAL_EVENTS: Final = ("asked", "granted", "denied", "silent", "self_given", "given_back", "renewed", "lost")
FIELDS: Final = (
    *CallOutcome.__struct_fields__,
    "event",
    "target",
    "target.provider",
    "target.model",
    "closed",
    "forked",
)


class RouterSamples:
    """Samples of one connection as of now; of a `SyncSickbay` that of the process that asks."""

    def __init__(self, sb: Sickbay | SyncSickbay) -> None:
        self._sb = sb
        self._denials: Counter[str] = Counter()

    def __call__(self) -> Iterable[Sample]:
        """All of them."""
        sb = self._sb if isinstance(self._sb, Sickbay) else self._sb.sickbay
        yield build_sample()
        yield from link_samples(sb.link)
        yield from self._gate_samples(sb)
        yield from mirror_samples(sb.mirror)
        yield Sample("sickbay_overlay_scopes", len(sb.overlay.marked))
        yield from samples_by_label("sickbay_trials_total", dict(sb.trials.counts), TRIAL_EVENTS, OTHER)
        fallbacks: Counter[str] = Counter()
        for (_, reason), count in sb.degradations.items():
            fallbacks[reason] += count
        yield from samples_by_label("sickbay_fallbacks_total", fallbacks, get_args(Reason), OTHER)
        yield from _outbox_samples(sb.reporter.counts)

    def _gate_samples(self, sb: Sickbay) -> Iterator[Sample]:
        gate = sb.gate
        found = gate.denials.by_reason()
        found["no_target"] = gate.counts["no_target"] + gate.counts["name_refused"]
        # A denial is taken back where the call is made all the same; a counter that goes down would pass for one that
        # began anew.
        self._denials |= found
        yield from samples_by_label("sickbay_decisions_total", self._denials, (*DENIALS, "no_target"), OTHER)
        yield Sample("sickbay_shadow_decisions_total", gate.counts["shadow"])
        yield Sample("sickbay_decision_failures_total", gate.counts["failed"])


def link_samples(link: Link | None) -> Iterator[Sample]:
    """Whether there is a connection, and how often one came to stand."""
    yield Sample("sickbay_nats_connected", int(link is not None and link.client is not None))
    yield Sample("sickbay_nats_connects_total", 0 if link is None else link.connects)


def mirror_samples(mirror: View) -> Iterator[Sample]:
    """How fresh and how large a view is."""
    yield Sample("sickbay_mirror_age_seconds", max(0.0, mirror.age_s()))
    yield Sample("sickbay_mirror_stale", int(mirror.is_stale))
    yield Sample("sickbay_mirror_sequence", mirror.seq)
    yield Sample("sickbay_mirror_entries", len(mirror.entries))
    yield Sample("sickbay_mirror_loads_total", mirror.resyncs)
    yield from samples_by_label("sickbay_mirror_events_total", dict(mirror.counts), MIRROR_EVENTS, OTHER)


def _outbox_samples(counts: Counts) -> Iterator[Sample]:
    yield Sample("sickbay_outbox_depth", counts.queued)
    yield Sample("sickbay_outbox_unacknowledged", counts.unacknowledged)
    for why in BLOCKED:
        yield Sample("sickbay_outbox_blocked", int(why == (counts.blocked or "no")), (why,))
    yield Sample("sickbay_outbox_recorded_total", counts.recorded)
    yield Sample("sickbay_outbox_acked_total", counts.acked)
    yield Sample("sickbay_outbox_resent_total", counts.resent)
    rejected: Counter[str] = Counter()
    for field, count in counts.rejected.items():
        rejected[field if field in FIELDS else OTHER] += count
    yield from samples_by_label("sickbay_outbox_rejected_total", rejected, ("target", "kind", "event"))
    yield from samples_by_label("sickbay_outbox_dropped_total", counts.dropped, LABELS, OTHER)
    yield from samples_by_label("sickbay_outbox_given_up_total", counts.given_up, LABELS, OTHER)
