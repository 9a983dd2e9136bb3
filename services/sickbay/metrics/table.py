"""Every metric there is: name, sort, labels, and what it says. HELP texts and docs/metrics.md are made from it.

Base units (seconds, events), and `_total` only where something counts up from the start of the process or, where that
is said, from the beginning of the log. Labels are of fixed lists, but for provider and model, which are capped.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

Sort: TypeAlias = Literal["gauge", "counter", "histogram"]

TARGETS_MAX: Final = 200
"""Series with a provider and a model, for each metric that has them; the rest is one series, `other`."""
PROVIDERS_MAX: Final = 50
"""The same for series with a provider alone."""
OTHER: Final = "other"


class Metric(NamedTuple):
    """One metric."""

    name: str
    sort: Sort
    says: str
    """Its HELP text."""
    labels: tuple[str, ...] = ()


BUILD: Final = Metric("sickbay_build_info", "gauge", "Always 1; which version runs here.", ("version", "fold"))
CONNECTED: Final = Metric("sickbay_nats_connected", "gauge", "1 while this process has a connection to NATS.")
CONNECTS: Final = Metric("sickbay_nats_connects_total", "counter", "How often a connection came to stand.")

SERVICES: Final = (
    BUILD,
    CONNECTED,
    Metric("sickbay_projector_phase", "gauge", "1 for the phase the projector is in.", ("phase",)),
    Metric("sickbay_projector_writer", "gauge", "1 for the projector that writes the view."),
    Metric("sickbay_projector_differs", "gauge", "1 where a standby's state differs from the writer's."),
    Metric("sickbay_projector_sequence", "gauge", "Log sequence up to which the state is folded."),
    Metric("sickbay_projector_lag_events", "gauge", "Events of the log that are not folded yet, as last heard."),
    Metric(
        "sickbay_projector_lag_seconds", "gauge", "Age of the newest event folded while others wait; 0 where none does."
    ),
    Metric("sickbay_projector_folded_events_total", "counter", "Events folded, those of a replay included."),
    Metric("sickbay_projector_rebuilds_total", "counter", "How often the state was built anew."),
    Metric("sickbay_projector_commit_seconds", "histogram", "Time in which NATS stored a checkpoint of this writer."),
    Metric("sickbay_projector_puts_total", "counter", "Gate entries sent to the view."),
    Metric("sickbay_projector_puts_refused_total", "counter", "Of those, not stored (and sent again)."),
    Metric("sickbay_projector_mends_total", "counter", "Entries of the view that differed from the state."),
    Metric("sickbay_projector_snapshot_sequence", "gauge", "Log sequence of the newest snapshot of this process."),
    Metric("sickbay_projector_transitions_waiting", "gauge", "Derived events not known to be published."),
    Metric("sickbay_checkpoint_age_seconds", "gauge", "Time since the view's checkpoint moved, by any writer."),
    Metric(
        "sickbay_acts_waiting_seconds",
        "gauge",
        "How long an operator's act or a policy has waited to be passed on to the log; told by the writer.",
    ),
    Metric("sickbay_policy_sequence", "gauge", "Log sequence of the policy in force; 0: the defaults."),
    Metric("sickbay_policy_differences", "gauge", "Keys in which this process's policy file differs from it."),
    Metric(
        "sickbay_outcomes_total",
        "counter",
        "Outcomes folded since this process was up with the log, by kind; repeats are left out.",
        ("kind",),
    ),
    Metric(
        "sickbay_transitions_total",
        "counter",
        "Derived events since then: held, released, health, warning, by rule or warning.",
        ("type", "rule"),
    ),
    Metric("sickbay_dead_letters_total", "counter", "Events of the log that could not be read.", ("reason",)),
    Metric("sickbay_repeated_events_total", "counter", "Events of the log that had come before; from its beginning."),
    Metric(
        "sickbay_dropped_events_total",
        "counter",
        "Events about new targets for which the state had no room; from the log's beginning.",
    ),
    Metric("sickbay_dropping_replicas", "gauge", "Replicas of which such events were dropped within the last hour."),
    Metric("sickbay_trial_leases_total", "counter", "Answers to routers that asked for a trial's lease.", ("answer",)),
    Metric("sickbay_probes_total", "counter", "Probes of this process by what came of them.", ("result",)),
    Metric("sickbay_replicas", "gauge", "Replicas heard of in the last ten minutes."),
    Metric("sickbay_routes_on_fallback", "gauge", "Routes warned of for sustained fallback in this hour."),
    Metric("sickbay_targets", "gauge", "Targets in the state by health.", ("health",)),
    Metric(
        "sickbay_target_health",
        "gauge",
        "1 for the health of a target; the worst and then the latest, capped; `other` counts the rest.",
        ("provider", "model", "health"),
    ),
    Metric(
        "sickbay_provider_targets",
        "gauge",
        "Targets by whether they are held, usable, or without an event for an hour.",
        ("provider", "state"),
    ),
    Metric("sickbay_held_scopes", "gauge", "Holds that deny now, be it one replica alone.", ("rule", "scope")),
    Metric(
        "sickbay_replica_held_targets",
        "gauge",
        "Targets that one replica alone keeps from itself, as its gate said in the last minutes; capped.",
        ("replica", "rule"),
    ),
    Metric("sickbay_shadow_held_scopes", "gauge", "Holds that would deny if their rule were enforced.", ("rule",)),
    Metric("sickbay_probation_scopes", "gauge", "Holds that are over and wait for proof.", ("rule", "scope")),
    Metric(
        "sickbay_hold_remaining_seconds",
        "gauge",
        "Time until a hold ends, model empty for a host's or a credential's; capped, `other` has the longest.",
        ("provider", "model", "scope", "rule"),
    ),
    Metric(
        "sickbay_mangled_output_warnings",
        "gauge",
        "Warnings of damaged text from a provider in the last 24 h.",
        ("provider",),
    ),
    Metric("sickbay_mangled_outputs", "gauge", "Damaged answers of a provider in the last 24 h.", ("provider",)),
    Metric(
        "sickbay_alert_receiver_failing",
        "gauge",
        "1 for a receiver of alerts that did not take the last message.",
        ("receiver",),
    ),
    Metric("sickbay_alerts_told_total", "counter", "Alerts that a receiver took.", ("receiver",)),
    Metric("sickbay_alerts_given_up_total", "counter", "Alerts that a receiver never took.", ("receiver",)),
    Metric("sickbay_history_running", "gauge", "1 while the historian beside this process runs."),
    Metric("sickbay_history_restarts_total", "counter", "How often it was started again."),
)

MIRROR: Final = (
    Metric("sickbay_mirror_age_seconds", "gauge", "Age of what the gate knows: time since a projector last wrote."),
    Metric("sickbay_mirror_stale", "gauge", "1 while decisions say that they are stale."),
    Metric("sickbay_mirror_sequence", "gauge", "Largest log sequence known."),
    Metric("sickbay_mirror_entries", "gauge", "Scopes of which the view has an entry."),
    Metric("sickbay_mirror_loads_total", "counter", "How often the whole view was read."),
    Metric("sickbay_mirror_events_total", "counter", "What was unreadable, missed or lost in the view.", ("event",)),
)

API: Final = (BUILD, CONNECTED, CONNECTS, *MIRROR)

ROUTER: Final = (
    BUILD,
    CONNECTED,
    CONNECTS,
    Metric(
        "sickbay_decisions_total",
        "counter",
        "Decisions that kept a call away, by reason. What was let pass is not counted: it would cost every call.",
        ("reason",),
    ),
    Metric("sickbay_shadow_decisions_total", "counter", "Decisions to let pass what a rule in shadow would have held."),
    Metric("sickbay_decision_failures_total", "counter", "Decisions that failed and let the call pass."),
    *MIRROR,
    Metric("sickbay_overlay_scopes", "gauge", "Scopes of which this replica knows something the fleet does not yet."),
    Metric("sickbay_trials_total", "counter", "Leases of trials, as this router met them.", ("event",)),
    Metric("sickbay_fallbacks_total", "counter", "Optional work that took its fallback.", ("reason",)),
    Metric("sickbay_outbox_depth", "gauge", "Outcomes that wait to be sent."),
    Metric("sickbay_outbox_unacknowledged", "gauge", "Outcomes sent and not acknowledged."),
    Metric(
        "sickbay_outbox_blocked",
        "gauge",
        "1 for the reason why the log takes nothing at present; `no` while it does.",
        ("why",),
    ),
    Metric("sickbay_outbox_recorded_total", "counter", "Outcomes taken from the caller."),
    Metric("sickbay_outbox_acked_total", "counter", "Outcomes that are in the log for certain."),
    Metric("sickbay_outbox_resent_total", "counter", "Outcomes sent again."),
    Metric("sickbay_outbox_rejected_total", "counter", "Bad input, by the field that was wrong.", ("field",)),
    Metric("sickbay_outbox_dropped_total", "counter", "Outcomes dropped for want of room.", ("kind",)),
    Metric("sickbay_outbox_given_up_total", "counter", "Outcomes that the server refused alone.", ("kind",)),
)
