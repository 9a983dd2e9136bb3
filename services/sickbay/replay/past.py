"""The state as it was at a place in the live log: from the nearest snapshot, or from the log's beginning.

    view = await state_at(client, Bound(time_ms=...))
    view.fleet, view.base.note

A snapshot is a shortcut and nothing else: where the log still has its beginning, the answer is the same without any.
Where the beginning was trimmed away, what came before the first event is in no state that is folded from there: the
base says so, and from when on a whole answer can be given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import msgspec
from nats.aio.client import Client

from sickbay_events import rfc3339
from sickbay_projections import FOLD_VERSION, Fleet

from ..bus.connect import BusError
from ..bus.entries import ReadError
from ..bus.jetstream import JetStreamApi, StoredMessage, StreamAt
from ..bus.link import BorrowedConnection
from ..bus.reader import CaughtUp, Chunk, Gap, LogChanged, LogReader
from ..bus.topology import LOG
from ..bus.view_names import MAIN, ViewNames
from ..log.control import lost_control_events
from ..log.folding import TO_THE_END, Bound, Folding
from ..log.snapshots import StoredSnapshot, list_snapshots, load, unfit

REQUEST_S: Final = 5.0
SETTLED_MS: Final = 48 * 3_600_000
"""What was unheard of for so long has left every state (Rule 4.8): a fold that began later knows all that counts."""
_NO_SUCH_STREAM: Final = 503


class OutOfReach(BusError):
    """The log, and what is kept beside it, can give no state at this place. Attributes: `why`, `from_text`: since when
    it can, empty if never."""

    def __init__(self, wanted: str, why: str, from_text: str = "") -> None:
        self.why, self.from_text = why, from_text
        can = f"; it can be given from {from_text} on" if from_text else ""
        super().__init__(f"the state at {wanted} cannot be given: {why}{can}")


class LogLost(BusError):
    """The log was replaced or trimmed under the reader."""


class Base(NamedTuple):
    """What a fold begins from."""

    fleet: Fleet
    time_ns: int
    """The server's time of the event at its position; 0 for none."""
    begins: Literal["beginning", "snapshot", "trimmed"]
    """`trimmed`: at the first event that the log still has, without what came before."""
    note: str = ""
    """What an answer lacks; empty if nothing."""


class PastView(NamedTuple):
    """A state, and what it was folded from."""

    fleet: Fleet
    base: Base
    base_seq: int
    folded: int


async def find_base(
    client: Client,
    log: StreamAt,
    end: Bound = TO_THE_END,
    *,
    oldest: bool = False,
    names: ViewNames = MAIN,
    pinned: str = "",
) -> Base:
    """The nearest state from which the log can be folded to `end`: the newest snapshot before it, or with `oldest` the
    log's beginning and a snapshot only where that is gone. `names`: whose snapshots; `pinned`: under which policy.

    Raises `OutOfReach`, and as `JetStreamApi` does.
    """
    if oldest and log.first_seq <= 1:
        return Base(Fleet(), 0, "beginning")
    stored = await stored_snapshots(client, names)
    fitting = [found for found in stored if await _serves(client, found, log, end, pinned)]
    for found in reversed(fitting) if oldest else fitting:
        if _is_before(found, end):
            try:
                fleet = await load(client, found, names)
            except (ValueError, msgspec.MsgspecError):
                continue  # damaged: the next one, or the log, says the same
            return Base(fleet, found.info.time_ns, "snapshot")
    if log.first_seq <= 1:
        return Base(Fleet(), 0, "beginning")
    return await _trimmed(client, log, end, fitting)


async def stored_snapshots(client: Client, names: ViewNames = MAIN) -> list[StoredSnapshot]:
    """All snapshots, newest first; none where their store is gone. Raises `ReadError`, `nats.errors.Error`."""
    try:
        return await list_snapshots(client, names)
    except ReadError as error:
        if error.status == _NO_SUCH_STREAM:
            return []
        raise


async def _serves(client: Client, found: StoredSnapshot, log: StreamAt, end: Bound, pinned: str) -> bool:
    info = found.info
    is_kin = info.fold == FOLD_VERSION and info.log_created == log.created_at and info.pinned == pinned
    if is_kin and info.seq == end.seq:
        return True  # it is the answer itself: nothing has to follow it
    return not await unfit(client, info, log, pinned)


def _is_before(found: StoredSnapshot, end: Bound) -> bool:
    info = found.info
    if end.seq is not None:
        return info.seq <= end.seq
    return end.time_ms is None or info.time_ms <= end.time_ms


async def _trimmed(client: Client, log: StreamAt, end: Bound, later: list[StoredSnapshot]) -> Base:
    """A fold from the first event that is left, if the place lies behind that."""
    first = await JetStreamApi(client, timeout_s=REQUEST_S).message_at(LOG, log.first_seq, or_next=True)
    if first is None:
        raise OutOfReach(_place(end), f"the log has lost all its events, up to sequence {log.last_seq}")
    first_ms = first.time_ns // 1_000_000
    begins = f"the log begins at sequence {first.seq}, {rfc3339(first_ms)}"
    whole_seq, whole_ms = min(((found.info.seq, found.info.time_ms) for found in later), default=(0, 0))
    whole = f"sequence {whole_seq}, {rfc3339(whole_ms)}," if whole_seq else rfc3339(first_ms + SETTLED_MS)
    if (end.seq is not None and end.seq < first.seq) or (end.time_ms is not None and end.time_ms < first_ms):
        raise OutOfReach(_place(end), begins, whole)
    note = f"{begins}, and no snapshot up to here fits: counts and holds from before that are missing; "
    return Base(Fleet(), 0, "trimmed", note + f"a whole answer can be given from {whole} on")


def _place(end: Bound) -> str:
    if end == TO_THE_END:
        return "its end"
    return f"sequence {end.seq}" if end.seq is not None else rfc3339(end.time_ms or 0)


async def fold_live(
    client: Client,
    folding: Folding,
    base: Base,
    log: StreamAt,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Fold the live log from a base, up to the folding's end or to what the log held when it was looked at.

    `progress` is told of messages. Raises `LogLost`, and as `LogReader` does.
    """
    fleet = folding.fleet
    reader = LogReader(
        BorrowedConnection(client),
        LOG,
        after_seq=fleet.seq,
        created_at=log.created_at,
        time_ns=base.time_ns,
        name="replay",
    )
    try:
        while fleet.seq < log.last_seq and not folding.is_over:
            item = await anext(reader)
            match item:
                case Chunk():
                    folding.take(item)
                case Gap(reason="trimmed"):
                    if fleet.seq:
                        raise LogLost(f"the log has lost events from {item.first} on while it was read")
                    lost = await lost_control_events(client, item.last + 1)
                    if lost:
                        folding.take_lost(_chunk(lost, item.last + 1))
                case Gap():
                    folding.gap(item.first, item.last)
                case LogChanged():
                    raise LogLost(f"the log was replaced while it was read ({item.reason})")
                case CaughtUp():
                    break
            if progress is not None:
                progress(folding.events)
    finally:
        await reader.close()
    folding.finish()


def _chunk(lost: list[StoredMessage], before_seq: int) -> Chunk:
    """Control events under the sequences that lie right below the log's first, as a rebuild folds them (Rule 7)."""
    return Chunk(
        subjects=[message.subject.encode() for message in lost],
        seqs=list(range(before_seq - len(lost), before_seq)),
        times_ns=[message.time_ns for message in lost],
        payloads=[message.payload for message in lost],
        headers=[None] * len(lost),
        pending=0,
        size=0,
    )


async def log_now(client: Client) -> StreamAt:
    """The log as it looks now. Raises `BusError` where there is none."""
    return await JetStreamApi(client, timeout_s=REQUEST_S).stream_at(LOG)


async def state_at(client: Client, end: Bound, progress: Callable[[int], None] | None = None) -> PastView:
    """The state at a place of the live log. Raises `OutOfReach`, `LogLost`, `BusError`."""
    log = await log_now(client)
    if end.seq is not None and end.seq > log.last_seq:
        raise OutOfReach(_place(end), f"the log ends at {log.last_seq}")
    base = await find_base(client, log, end)
    base_seq = base.fleet.seq
    folding = Folding(base.fleet, end=end)
    await fold_live(client, folding, base, log, progress)
    return PastView(base.fleet, base, base_seq, folding.events)
