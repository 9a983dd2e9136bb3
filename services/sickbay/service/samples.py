"""Samples of one process of the services: its projector, what the fold knows of the fleet, and what runs beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, get_args

from sickbay_events import KINDS
from sickbay_events.derived import RULES
from sickbay_events.errors import PoisonReason

from ..metrics.sample import Sample, build_sample, samples_by_label
from ..metrics.table import OTHER
from ..projector.health import CURRENT_PHASES, Phase
from .fleet_samples import FleetScan, fleet_samples

if TYPE_CHECKING:
    from ..projector import Projector
    from ..projector.health import ProjectorHealth
    from .services import Services

SLICE_S: Final = 0.002
"""How long the fold waits for a slice of a look."""
REASONS: Final = (*get_args(PoisonReason), "gap")
ANSWERS: Final = ("granted", "taken", "given_back", "refused", "silent")
PROBE_RESULTS: Final = ("passed", "failed", "own_fault", "suspicious", "no_lease", "held", "no_allowance", "lost")
WARNINGS: Final = (
    "novel_signature",
    "familiar_signature",
    "replica_suspect",
    "sustained_fallback",
    "wrong_endpoint",
    "charset_absent",
    "pipeline_suspect",
)
TRANSITIONS: Final = (
    *(("held", rule) for rule in RULES),
    *(("released", rule) for rule in RULES),
    ("health", "health"),
    *(("warning", rule) for rule in WARNINGS),
)


async def look_at(services: Services) -> FleetScan | None:
    """A look at all the state knows, between the chunks of the fold. None while the projector is not up with the log:
    one that still reads would tell of a past that is over."""
    projector = services.projector
    if projector is None or projector.health().phase not in CURRENT_PHASES:
        return None
    look = FleetScan(projector.fleet, projector.now_ms())
    while look.go_on(SLICE_S):  # noqa: ASYNC110 - nothing is waited for: it lets others go on
        await asyncio.sleep(0)
    return look


def service_samples(services: Services, look: FleetScan | None) -> Iterator[Sample]:
    """All samples as of now; what is known of the fleet as of the look."""
    yield build_sample()
    yield from samples_by_label("sickbay_trial_leases_total", services.trials, ANSWERS)
    if services.prober is not None:
        yield from samples_by_label("sickbay_probes_total", services.prober.counts, PROBE_RESULTS, OTHER)
    for relay in services.alerting.relays if services.alerting is not None else ():
        name = (relay.receiver.name,)
        yield Sample("sickbay_alert_receiver_failing", int(not relay.facts()["ok"]), name)
        yield Sample("sickbay_alerts_told_total", relay.told, name)
        yield Sample("sickbay_alerts_given_up_total", relay.not_delivered, name)
    if services.historian is not None:
        facts = services.historian.facts()
        yield Sample("sickbay_history_running", int(facts["running"]))
        yield Sample("sickbay_history_restarts_total", facts["restarts"])
    projector = services.projector
    if projector is None:
        yield Sample("sickbay_nats_connected", 0)
        return
    health = projector.health()
    yield from _projector_samples(projector, health)
    if look is not None:
        yield from _known_samples(projector)
        yield from fleet_samples(projector.fleet, look)


def _projector_samples(projector: Projector, health: ProjectorHealth) -> Iterator[Sample]:
    yield Sample("sickbay_nats_connected", int(health.connected))
    for phase in get_args(Phase):
        yield Sample("sickbay_projector_phase", int(phase == health.phase), (phase,))
    yield Sample("sickbay_projector_writer", int(health.is_writer))
    yield Sample("sickbay_projector_differs", int(health.differs))
    yield Sample("sickbay_projector_sequence", health.seq)
    waits = health.lag > 0 or not projector.state.is_caught_up
    lag_ms = max(0, projector.now_ms() - health.time_ms) if waits and health.time_ms else 0
    yield Sample("sickbay_projector_lag_events", health.lag)
    yield Sample("sickbay_projector_lag_seconds", lag_ms / 1000)
    yield Sample("sickbay_projector_folded_events_total", health.folded)
    yield Sample("sickbay_projector_rebuilds_total", health.rebuilds)
    yield Sample("sickbay_projector_commit_seconds", projector.state.counters.commits)
    yield Sample("sickbay_projector_puts_total", health.puts)
    yield Sample("sickbay_projector_puts_refused_total", health.puts_refused)
    yield Sample("sickbay_projector_mends_total", health.mends)
    yield Sample("sickbay_projector_snapshot_sequence", health.snapshot_seq)
    yield Sample("sickbay_projector_transitions_waiting", health.transitions_waiting)
    yield Sample("sickbay_checkpoint_age_seconds", health.checkpoint_age_s)
    yield Sample("sickbay_acts_waiting_seconds", health.acts_waiting_s)
    yield Sample("sickbay_policy_differences", len(health.policy_differs))


def _known_samples(projector: Projector) -> Iterator[Sample]:
    """What was counted of the log: by this process since it was up with it, or by the state from the log's beginning,
    so that it is the same for all projectors and goes on after a restart."""
    fleet, counters = projector.fleet, projector.state.counters
    yield Sample("sickbay_policy_sequence", fleet.policy_seq)
    yield from samples_by_label("sickbay_outcomes_total", counters.outcomes, tuple(KINDS))
    told = dict.fromkeys(TRANSITIONS, 0) | dict(counters.transitions)
    for labels, count in told.items():
        yield Sample("sickbay_transitions_total", count, labels)
    yield from samples_by_label("sickbay_dead_letters_total", fleet.skipped, REASONS, OTHER)
    yield Sample("sickbay_repeated_events_total", fleet.repeated)
    yield Sample("sickbay_dropped_events_total", fleet.counts["other"])
    yield Sample("sickbay_dropping_replicas", len(fleet.dropped(projector.now_ms())))
