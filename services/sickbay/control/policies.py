"""The policy as operators handle it: read with the sequence that names it, compared, set, seeded (Rule 7).

    current = await current_policy(client)
    done = await set_policy(client, policy, expect=current.seq, reason="a busy week", actor="ana")

`seq` here is the sequence in SICKBAY_CONTROL; the copy in the log has one of its own. An operator who sets a policy
names the sequence of the policy that was edited, so that two operators cannot overwrite each other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.client import Client

from sickbay_events import Poison, Policy, PolicyChanged, decode, encode, rfc3339
from sickbay_events.codec import POLICY_SUBJECT
from sickbay_events.policy import dotted, policy_differences, quoted, refuse_secrets

from ..bus.connect import BusError
from ..bus.jetstream import JetStreamApi, StoredMessage
from ..bus.publish import WRONG_LAST_SEQUENCE
from ..bus.topology import CONTROL, LOG
from ..invalid import InvalidValue
from .acts import ACK_TIMEOUT_S, NotStored, StoredAct, log_now_ms, new_id, publish

SEQ_MAX: Final = 2**53
RIVAL_LOOKS: Final = 40
RIVAL_LOOK_S: Final = 0.05


class PolicyMoved(BusError):
    """Another policy stands than the one that was edited; nothing was stored.

    Attributes: `expected` and `found` (sequences in SICKBAY_CONTROL; 0: none), `by` (the actor of the current one).
    """

    def __init__(self, expected: int, found: int, by: str) -> None:
        self.expected, self.found, self.by = expected, found, by
        whose = f", set by {by}" if by else ""
        super().__init__(
            f"expect: you edited the policy of sequence {expected}, but {found} stands{whose}; nothing was stored. "
            "Bring your change into that one (`sickbay policy show --toml`) and expect its sequence"
        )


class CurrentPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The newest policy that operators stored. `seq` 0: none, so the defaults hold."""

    seq: int = 0
    policy: Policy = Policy()
    """What holds, or will when it is folded."""
    unreadable: str = ""
    """Why the newest one is passed over, so that `policy` is an older one; empty if it is not."""
    actor: str = ""
    reason: str = ""
    at: str = ""


class PolicySet(msgspec.Struct, frozen=True, kw_only=True):
    """What came of `set_policy`. Without changes nothing was stored, and `ack` is None."""

    changes: list[tuple[str, object, object]]
    """Dotted key, old value, new value."""
    ack: StoredAct | None


async def current_policy(client: Client) -> CurrentPolicy:
    """The newest policy, asked of the control stream's leader. Raises `NotStored` where nothing answers."""
    api = JetStreamApi(client, timeout_s=ACK_TIMEOUT_S)
    found: list[StoredMessage] = []
    try:
        message = await api.message_at(CONTROL, 1, or_next=True, subject=POLICY_SUBJECT)
        while message is not None:  # there are few, ever; the newest that can be read is among the last
            found.append(message)
            message = await api.message_at(CONTROL, message.seq + 1, or_next=True, subject=POLICY_SUBJECT)
    except (BusError, nats.errors.Error, OSError) as error:
        raise NotStored(
            POLICY_SUBJECT,
            f"{CONTROL} cannot be read ({str(error) or type(error).__name__}); is `sickbay serve` running?",
        ) from error
    unreadable = ""
    for message in reversed(found):
        try:
            event = decode(message.subject, message.payload)
        except Poison as poison:
            unreadable = unreadable or str(poison)
            continue
        assert isinstance(event, PolicyChanged)
        return CurrentPolicy(
            seq=found[-1].seq,
            policy=Policy.from_data(event.policy),
            unreadable=unreadable,
            actor=event.actor,
            reason=event.reason,
            at=rfc3339(message.time_ns // 1_000_000),
        )
    return CurrentPolicy(seq=found[-1].seq if found else 0, unreadable=unreadable)


async def set_policy(
    client: Client, data: Mapping[str, Any], *, expect: object, reason: object, actor: object
) -> PolicySet:
    """Store a policy in the place of the one with the sequence `expect`.

    Raises `PolicyRefused` (as a whole, for one bad value), `InvalidValue` naming the field, `PolicyMoved`,
    `NotStored`.
    """
    refuse_secrets(data)
    policy = Policy.from_data(data)
    for field, value in (("reason", reason), ("actor", actor)):
        if not isinstance(value, str) or not value.strip():
            raise InvalidValue(field, value, "a text that says something")
    current = await current_policy(client)
    if isinstance(expect, bool) or not isinstance(expect, int) or not 0 <= expect <= SEQ_MAX:
        accepted = f"the sequence of the policy that you edited, as `sickbay policy show` says it (now {current.seq})"
        raise InvalidValue("expect", expect, accepted)
    if expect != current.seq:
        raise PolicyMoved(expect, current.seq, current.actor)
    changes = policy_differences(current.policy, policy)
    if not changes and not current.unreadable:
        return PolicySet(changes=[], ack=None)
    at = rfc3339(await log_now_ms(client))
    event = PolicyChanged(policy=policy.to_data(), actor=str(actor), reason=str(reason), at=at, id=new_id())
    assert event.id is not None
    try:
        ack = await publish(client, POLICY_SUBJECT, encode(event), event.id, expect_seq=expect)
    except NotStored as error:
        if error.code not in WRONG_LAST_SEQUENCE:
            raise
        rival = await _rival(client, expect)
        raise PolicyMoved(expect, rival.seq, rival.actor) from error
    return PolicySet(changes=changes, ack=ack)


async def _rival(client: Client, expect: int) -> CurrentPolicy:
    """The policy that was quicker. In a cluster the loser may hear of it before it stands."""
    current = await current_policy(client)
    for _ in range(RIVAL_LOOKS - 1):
        if current.seq != expect:
            break
        await asyncio.sleep(RIVAL_LOOK_S)
        current = await current_policy(client)
    return current


def in_shadow(policy: Policy) -> Policy:
    """The policy with no rule enforced."""
    return msgspec.structs.replace(policy, shadow=msgspec.structs.replace(policy.shadow, all=True))


async def seed_policy(client: Client, policy: Policy, *, shadow: bool = False, fresh: bool = False) -> bool:
    """Write a file's policy into a log that has never held anything. Returns True if it was written.

    `fresh`: the caller has just made the log, so events that reached it since do not count.
    `shadow`: a log that has events, but never had a policy, gets the defaults in shadow; the file changes nothing
    there. The write is a compare-and-set, so of several processes that start at once one writes. Raises `BusError`,
    `nats.errors.Error`.
    """
    api = JetStreamApi(client, timeout_s=ACK_TIMEOUT_S)
    if not fresh and ((await api.stream_at(LOG)).last_seq or (await api.stream_at(CONTROL)).last_seq):
        if not shadow or await api.message_at(CONTROL, 1, or_next=True, subject=POLICY_SUBJECT) is not None:
            return False
        policy = in_shadow(Policy())
    actor, reason = ("--shadow", "a first week in shadow") if shadow else ("policy file", "seed of an empty log")
    event = PolicyChanged(policy=policy.to_data(), actor=actor, reason=reason, id=new_id())
    reply = await client.request(
        POLICY_SUBJECT,
        encode(event),
        timeout=ACK_TIMEOUT_S,
        headers={"Nats-Expected-Last-Subject-Sequence": "0", "Nats-Msg-Id": new_id()},
    )
    return "error" not in msgspec.json.decode(reply.data, type=dict)


def differing_keys(file: Policy, log: Policy) -> list[str]:
    """Dotted keys in which a file's policy differs from the one in force."""
    return [key for key, _, _ in policy_differences(log, file)]


def to_toml(policy: Policy) -> str:
    """A policy as a file: the values that are not the defaults, with their sections. Read back it is the same."""
    sections: dict[tuple[str, ...], dict[str, object]] = {(): {}}
    for key, _, value in policy_differences(Policy(), msgspec.structs.replace(policy, host={}, model={})):
        section, _, name = key.rpartition(".")
        sections.setdefault((section,) if section else (), {})[name] = value
    for kind, overrides in (("host", policy.host), ("model", policy.model)):
        for scope, tables in overrides.items():
            for section, values in tables.items():
                sections[kind, scope, section] = values
            if not tables:
                sections[kind, scope] = {}
    lines: list[str] = []
    for path, values in sections.items():
        lines += ["", f"[{dotted(path)}]"] if path else []
        lines += [f"{key} = {_toml(value)}" for key, value in values.items()]
    return "\n".join(lines).strip() + "\n"


def _toml(value: object) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(part) for part in value)}]"
    return json.dumps(value)
