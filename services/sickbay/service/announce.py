"""Transitions and dead letters as lines of the services' own log, each event once for all processes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Final, TypeAlias

import msgspec
from faststream import AckPolicy
from faststream.nats import JStream, NatsBroker
from nats.js.api import ConsumerConfig, DeliverPolicy

from ..bus.topology import DEAD, DEAD_PREFIX, TRANSITIONS
from ..loggers import logger
from ..projector.deadletters import Letter
from .asyncapi import Doc, schema_of

_log = logger("sickbay.services")
Handler: TypeAlias = Callable[..., Awaitable[None]]

GROUP: Final = "sickbay-alerts"
"""The queue groups begin with it, each a durable consumer: one process gets each event, also after all were down."""


class Transition(msgspec.Struct, kw_only=True):
    """A derived event as people read it; every field that a line of the log needs."""

    type: str
    provider: str
    rule: str
    cause_seq: int
    model: str | None = None
    until: str | None = None
    enforced: bool = True
    kind: str | None = None
    status: int | None = None
    replica: str | None = None
    reason: str | None = None
    actor: str | None = None
    by: str | None = None
    old: str | None = None
    new: str | None = None
    signature: str | None = None
    numbers: dict[str, int] = {}


def subscribe_log_lines(broker: NatsBroker) -> None:
    """Subscribers that put transitions and dead letters into the services' own log.

    The ack policy is explicit, since FastStream's default drops an event for good when a handler raises.
    """

    def subscribe(subject: str, stream: str, name: str, says: str) -> Callable[[Handler], object]:
        return broker.subscriber(
            subject,
            queue=f"{GROUP}-{name}",
            stream=JStream(stream, declare=False),
            config=ConsumerConfig(deliver_policy=DeliverPolicy.NEW),
            ack_policy=AckPolicy.NACK_ON_ERROR,
            title=f"alerts.{name}",
            description=says,
        )

    async def transition(event: Annotated[Transition, Doc(schema_of(Transition))]) -> None:
        log_transition(event)

    async def dead(event: Annotated[Letter, Doc(schema_of(Letter))]) -> None:
        _log.warning("an event could not be read: %s at %d, %s", event.reason, event.seq, event.why)

    subscribe("sickbay.*.>", TRANSITIONS, "transitions", "Holds, releases, health and warnings.")(transition)
    subscribe(f"{DEAD_PREFIX}>", DEAD, "dead", "Events that could not be read.")(dead)


def log_transition(event: Transition) -> None:
    """One line for one transition: WARNING for what denies or warns, INFO for the rest."""
    what = event.provider if event.model is None else f"{event.provider} {event.model}"
    facts = {key: value for key, value in msgspec.to_builtins(event).items() if value is not None}
    extra = {"sickbay": facts}
    if event.type == "held":
        shadow = "" if event.enforced else " (shadow: not enforced)"
        _log.warning("held: %s by %s until %s%s", what, event.rule, event.until, shadow, extra=extra)
    elif event.type == "released":
        _log.info("released: %s from %s by %s", what, event.rule, event.by, extra=extra)
    elif event.type == "warning":
        _log.warning("%s: %s %s", event.rule, what, event.signature or event.replica or "", extra=extra)
    else:
        _log.info("%s: %s is %s, was %s", event.type, what, event.new, event.old, extra=extra)
