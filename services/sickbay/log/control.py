"""The control stream beside the log: the acts and policies whose copies the log has lost."""

from __future__ import annotations

from typing import Final

from nats.aio.client import Client

from sickbay_events import DerivedEvent, Poison, Policy, PolicyChanged, decode, read_subject
from sickbay_events.codec import POLICY_SUBJECT
from sickbay_projections import Fleet, Recorded

from ..bus.jetstream import JetStreamApi, StoredMessage
from ..bus.topology import CONTROL, LOG, OVERRIDE_PREFIX

_REQUEST_S: Final = 5.0


async def lost_control_events(client: Client, first_seq: int) -> list[StoredMessage]:
    """Control events whose copy lay in the log before `first_seq` and is gone, oldest first (Rule 7).

    Raises `BusError`, `nats.errors.Error` or `TimeoutError`.
    """
    if first_seq <= 1:
        return []
    request = JetStreamApi(client, timeout_s=_REQUEST_S)
    info = await request.request(f"STREAM.INFO.{CONTROL}")
    begin = await _first_copied(request, first_seq)
    if begin is None:
        # None is left in the log: all that were copied at all are gone; the rest is still to come.
        sources = (await request.request(f"STREAM.INFO.{LOG}")).get("sources", [])
        behind = sum(int(source.get("lag", 0)) for source in sources if source.get("name") == CONTROL)
        begin = int(info["state"]["last_seq"]) - behind + 1
    lost: list[StoredMessage] = []
    seq = max(1, int(info["state"]["first_seq"]))
    while seq < begin:
        message = await request.message_at(CONTROL, seq, or_next=True)
        if message is None or message.seq >= begin:
            break
        lost.append(message)
        seq = message.seq + 1
    return lost


async def fold_lost_control_events(
    client: Client, fleet: Fleet, first_seq: int, pinned: Policy | None = None
) -> list[DerivedEvent]:
    """Bring a new state to just before `first_seq`, the first event that the log still has.

    What operators decided before is folded under the sequences that lie right below, in their order: their own
    ones are not known any more. `pinned`: the policy that counts in the place of every one there. Raises as
    `lost_control_events` does.
    """
    derived: list[DerivedEvent] = []
    lost = await lost_control_events(client, first_seq)
    for seq, message in enumerate(lost, first_seq - len(lost)):
        time_ms = message.time_ns // 1_000_000
        try:
            event = decode(message.subject, message.payload)
        except Poison as poison:
            fleet.passed(seq, time_ms, poison.reason)
            continue
        if pinned is not None and isinstance(event, PolicyChanged):
            event = PolicyChanged(policy=pinned.to_data())
        scope = read_subject(message.subject).scope
        derived += fleet.apply(Recorded(event, scope=scope, seq=seq, time_ms=time_ms))
    return derived


async def _first_copied(request: JetStreamApi, first_seq: int) -> int | None:
    """Control sequence of the oldest control event that the log still has a copy of."""
    found: list[int] = []
    for subject in (f"{OVERRIDE_PREFIX}>", POLICY_SUBJECT):
        copy = await request.message_at(LOG, first_seq, or_next=True, subject=subject)
        if copy is not None and copy.source_seq:
            found.append(copy.source_seq)
    return min(found, default=None)
