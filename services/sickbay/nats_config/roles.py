"""Rights on NATS: one table of roles, each with no more than its work needs.

A publisher on NATS names the subject for the answer, and the responder publishes there, whatever the publisher's own
permissions say. In one account with the streams a router could have a stored message, or an acknowledgement, written
onto the view or among an operator's acts (tried). So the streams and the trusted roles are in one account. All other
roles are in another and import single subjects: there an answer goes to a subject of their own account, where only they
listen.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sickbay_events import token

from ..bus.topology import (
    CONTROL,
    DEAD,
    DEAD_PREFIX,
    GATE_BUCKET,
    GATE_PREFIX,
    GATE_STREAM,
    HEALTH_PREFIX,
    HELD_PREFIX,
    LOG,
    OUTCOME_PREFIX,
    OVERRIDE_PREFIX,
    POLICY_SUBJECT,
    PROBE_PREFIX,
    RELEASED_PREFIX,
    SNAPSHOTS_BUCKET,
    SNAPSHOTS_STREAM,
    TRANSITIONS,
    TRIALS_BUCKET,
    TRIALS_STREAM,
    VIEW_PREFIX,
    WARNING_PREFIX,
)
from ..bus.view_names import MAIN, ViewNames, view_names

SYSTEM, SICKBAY, ROUTERS, READERS, API = "SYS", "SICKBAY", "ROUTERS", "READERS", "API"
"""Names of the accounts. The streams are SICKBAY's."""

_STREAMS: Final = (LOG, CONTROL, TRANSITIONS, DEAD, GATE_STREAM, TRIALS_STREAM, SNAPSHOTS_STREAM)
_READABLE: Final = (LOG, CONTROL, TRANSITIONS, DEAD, GATE_STREAM)
_TRANSITIONS: Final = tuple(f"{prefix}>" for prefix in (HELD_PREFIX, RELEASED_PREFIX, HEALTH_PREFIX, WARNING_PREFIX))
_DERIVED: Final = (*_TRANSITIONS, f"{DEAD_PREFIX}>")
_REPORTS: Final = (f"{OUTCOME_PREFIX}>", f"{PROBE_PREFIX}>")
_ACTED: Final = (f"{OVERRIDE_PREFIX}>", POLICY_SUBJECT)
_VIEW: Final = f"{VIEW_PREFIX}>"
_QUESTIONS: Final = ("sickbay.v1.status", "sickbay.v1.decide", "sickbay.v1.explain")
_TRIAL: Final = "sickbay.v1.trial"
_ACTS: Final = "sickbay.operate.v1.>"
_SERVICES_API: Final = "$SRV.>"
_READ_VIEW: Final = (f"$JS.API.DIRECT.GET.{GATE_STREAM}", f"$JS.API.DIRECT.GET.{GATE_STREAM}.{GATE_PREFIX}>")
_READ: Final = (
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.LIST",
    *(
        subject
        for stream in _READABLE
        for subject in (
            f"$JS.API.STREAM.INFO.{stream}",
            f"$JS.API.STREAM.MSG.GET.{stream}",
            f"$JS.API.DIRECT.GET.{stream}",
            f"$JS.API.DIRECT.GET.{stream}.>",
        )
    ),
)
_DIRECT_GET: Final = "$JS.API.DIRECT.GET."


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """One user of the NATS server.

    publish, subscribe   subjects; outside of the account SICKBAY they are also what its account imports. Its own
                         inbox is not in the list, and nobody may read another one's
    answers              may answer requests, one message each
    replica              the only name under which it reports, None for any
    """

    name: str
    account: str
    says: str
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    answers: bool = False
    replica: str | None = None

    @property
    def inbox_prefix(self) -> str:
        """First part of the subjects on which it gets answers."""
        return f"_INBOX_{token(self.name)}"


def has_many_answers(subject: str) -> bool:
    """Whether a request may be answered by more than one message."""
    return subject == _SERVICES_API or (subject.startswith(_DIRECT_GET) and "." not in subject[len(_DIRECT_GET) :])


def consumers(*streams: str) -> tuple[str, ...]:
    """What reading streams by consumers takes. For trusted roles only: a consumer delivers to any subject."""
    return tuple(
        f"$JS.API.CONSUMER.{verb}.{stream}.>" for stream in streams for verb in ("CREATE", "INFO", "DELETE", "MSG.NEXT")
    )


def router_role(name: str | None = None) -> Role:
    """A fleet's routers, or the one router of that name, which reports under no other."""
    own = _REPORTS
    if name is not None:
        own = (f"{OUTCOME_PREFIX}{token(name)}.>", f"{PROBE_PREFIX}{token(name)}.>")
    return Role(
        name="router" if name is None else f"router-{name}",
        account=ROUTERS,
        says="routers: report outcomes, ask, read the view" if name is None else f"the router {name}",
        publish=(*own, *_QUESTIONS, _TRIAL, *_READ_VIEW),
        subscribe=(_VIEW,),
        replica=name,
    )


PROBER: Final = Role(
    name="prober",
    account=ROUTERS,
    says="`sickbay prober`: what a router may, for probes under its own name",
    publish=(f"{PROBE_PREFIX}prober.>", *_QUESTIONS, _TRIAL, *_READ_VIEW),
    subscribe=(_VIEW,),
    replica="prober",
)
SERVICES: Final = Role(
    name="services",
    account=SICKBAY,
    says="`sickbay serve`: folds, writes the view, answers (by HTTP too), probes",
    publish=(
        "$JS.API.INFO",
        "$JS.API.STREAM.NAMES",
        "$JS.API.STREAM.INFO.*",
        "$JS.API.STREAM.MSG.GET.*",
        "$JS.API.DIRECT.GET.*",
        "$JS.API.DIRECT.GET.*.>",
        *(f"$JS.API.STREAM.CREATE.{stream}" for stream in _STREAMS),
        f"$JS.API.STREAM.PURGE.{SNAPSHOTS_STREAM}",
        # What makes NATS pass acts on to the log again (control/lag.py); it changes nothing that is stored.
        f"$JS.API.STREAM.LEADER.STEPDOWN.{LOG}",
        *consumers(LOG, CONTROL, TRANSITIONS, DEAD),
        *(f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.>" for stream in (TRANSITIONS, DEAD)),
        *(f"$JS.ACK.{stream}.>" for stream in (TRANSITIONS, DEAD)),
        f"$KV.{GATE_BUCKET}.>",
        f"$KV.{TRIALS_BUCKET}.>",
        f"$O.{SNAPSHOTS_BUCKET}.>",
        *_DERIVED,
        *_REPORTS,
        f"{OVERRIDE_PREFIX}>",
        POLICY_SUBJECT,
        *_QUESTIONS,
        _TRIAL,
        # The HTTP interface that it answers itself is a client like any other.
        _ACTS,
    ),
    subscribe=("sickbay.v1.>", _ACTS, _SERVICES_API, _VIEW, *_DERIVED),
    answers=True,
)
HISTORIAN: Final = Role(
    name="historian",
    account=SICKBAY,
    says="`sickbay historian`: reads the log",
    publish=(
        "$JS.API.INFO",
        *(f"$JS.API.{verb}.{stream}" for stream in (LOG, CONTROL) for verb in ("STREAM.INFO", "STREAM.MSG.GET")),
        *consumers(LOG),
    ),
)
OPERATOR: Final = Role(
    name="operator",
    account=SICKBAY,
    says="people: look at all of it, hold, allow, clear, set the policy, keep the streams",
    publish=(
        "$JS.API.>",
        "$JS.ACK.>",
        "$JS.FC.>",
        "$JS.SNAPSHOT.>",
        *_REPORTS,
        *_ACTED,
        *_QUESTIONS,
        _TRIAL,
        _ACTS,
        _SERVICES_API,
    ),
    subscribe=("sickbay.>", f"$KV.{GATE_BUCKET}.>", "$JS.EVENT.>"),
)
READER: Final = Role(
    name="reader",
    account=READERS,
    says="read-only: status, explain, the streams message by message, live transitions",
    publish=(*_QUESTIONS, *_READ, _SERVICES_API),
    # No live outcomes: what came from another account as a request, NATS passes on to no third one.
    subscribe=(_VIEW, *_ACTED, *_DERIVED),
)
HTTP_API: Final = Role(
    name="api",
    account=API,
    says="the HTTP interface: reports for routers, asks, reads, carries operators' acts",
    publish=(*_REPORTS, *_QUESTIONS, _TRIAL, _ACTS, *_READ),
    subscribe=(_VIEW, *_DERIVED),
)
SYSTEM_USER: Final = Role(
    name="system",
    account=SYSTEM,
    says="people: the servers themselves (`nats server report ...`)",
    publish=(">",),
    subscribe=(">",),
)


def roles(routers: tuple[str, ...] = (), views: tuple[str, ...] = ()) -> tuple[Role, ...]:
    """Every role of an installation: with names of routers one for each of them, else one for all.

    `views`: names of views beside the one without a name, which they may then use in the same way. Raises
    `InvalidValue`.
    """
    fleet = tuple(router_role(name) for name in routers) or (router_role(),)
    found = (*fleet, PROBER, SERVICES, HISTORIAN, HTTP_API, OPERATOR, READER, SYSTEM_USER)
    others = [view_names(name) for name in views]
    return tuple(
        msgspec.structs.replace(role, publish=_with(role.publish, others), subscribe=_with(role.subscribe, others))
        for role in found
    )


def _with(subjects: tuple[str, ...], views: list[ViewNames]) -> tuple[str, ...]:
    """The subjects, and what they are for each of the views."""
    return tuple(dict.fromkeys(_of(subject, view) for view in (MAIN, *views) for subject in subjects))


def _of(subject: str, view: ViewNames) -> str:
    if subject.startswith(MAIN.view_prefix):
        return view.view_prefix + subject.removeprefix(MAIN.view_prefix)
    names = {
        MAIN.bucket: view.bucket,
        MAIN.stream: view.stream,
        MAIN.snapshots_bucket: view.snapshots_bucket,
        MAIN.snapshots_stream: view.snapshots_stream,
    }
    # Outside of the streams' subjects `sickbay` is the first word of all of ours, and no bucket's name.
    return ".".join([names.get(word, word) if at else word for at, word in enumerate(subject.split("."))])
