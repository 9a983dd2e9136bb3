"""The lag of operators' acts and policies behind the log, and what helps when NATS does not pass them on.

The log sources the control stream. After an outage its leader may try again only minutes later, and until then an act
that was acknowledged is not in force. The next leader begins at once.
"""

from __future__ import annotations

import time
from typing import Final

import nats.errors
from nats.aio.client import Client

from sickbay_events import parse_rfc3339

from ..bus.connect import PermissionDenied
from ..bus.jetstream import ApiError, JetStreamApi, StoredMessage
from ..bus.topology import CONTROL, LOG
from ..loggers import logger

_log = logger("sickbay.projector")

ACTS_EVERY_S: Final = 1.0
"""Between two looks, each of which asks for one stream's state."""
WAIT_MAX_S: Final = 10.0
"""A working source takes milliseconds: after this long it counts as stopped."""
STEP_DOWN_EVERY_S: Final = 60.0
_REQUEST_S: Final = 2.0


class ControlLag:
    """What the control stream has and the log has not. Used by the one projector that writes.

    `waiting_s` says for how long the first such act has waited, by the server's clock; 0 while there is none.
    """

    def __init__(self) -> None:
        self.waiting_s = 0.0
        self._arrived = (-1, "")  # last sequence of the control stream that is in the log, and which stream
        self._since_ms = 0
        self._stepped_s = -STEP_DOWN_EVERY_S
        self._said = False

    @property
    def look_in_s(self) -> float:
        """Seconds until the next look."""
        return ACTS_EVERY_S

    def forget(self) -> None:
        """Another projector looks after it now."""
        self.waiting_s, self._since_ms, self._said = 0.0, 0, False

    async def look(self, client: Client) -> None:
        """See whether something waits. If it has for too long, warn and have the log's leader step down.

        Raises `BusError`, `nats.errors.Error` or `TimeoutError`.
        """
        waited_s = self.waiting_s
        await self.see(client)
        if self.waiting_s >= WAIT_MAX_S:
            await self._heal(client)
        elif self._said and not self.waiting_s:
            self._said = False
            _log.warning("operators' acts and policies reach the log again, after %.0f s", waited_s)

    async def see(self, client: Client) -> None:
        """See whether something waits, and since when. Raises as `look` does."""
        api = JetStreamApi(client, timeout_s=_REQUEST_S)
        info = await api.request(f"STREAM.INFO.{CONTROL}")
        last_seq, now_ms = int(info["state"]["last_seq"]), parse_rfc3339(info["ts"])
        if self._arrived != (last_seq, info["created"]):
            act = await api.message_at(CONTROL, last_seq) if last_seq else None
            if act is not None and not await _is_in_log(api, act):
                self._since_ms = self._since_ms or act.time_ns // 1_000_000
                self.waiting_s = max(0.001, (now_ms - self._since_ms) / 1000)
                return
            self._arrived = last_seq, info["created"]
        self.waiting_s, self._since_ms = 0.0, 0

    async def _heal(self, client: Client) -> None:
        if not self._said:
            self._said = True
            _log.warning(
                "an operator's act or a policy has been stored for %.0f s and is not in force: NATS does not pass it on"
                " from %s to %s",
                *(self.waiting_s, CONTROL, LOG),
            )
        if time.monotonic() - self._stepped_s < STEP_DOWN_EVERY_S:
            return
        self._stepped_s = time.monotonic()
        try:
            await JetStreamApi(client, timeout_s=_REQUEST_S).request(f"STREAM.LEADER.STEPDOWN.{LOG}")
        except (ApiError, PermissionDenied, TimeoutError, nats.errors.Error) as error:
            _log.warning("%s could not get another leader (%s): restart the NATS server that leads it", LOG, error)
        else:
            _log.warning("%s gets another leader, which begins to take acts at once", LOG)


async def _is_in_log(api: JetStreamApi, act: StoredMessage) -> bool:
    """Whether the log has, or had, the copy of an act. Copies come in order, so one proves it of all before it."""
    copy = await api.last_message(LOG, act.subject)
    if copy is not None and copy.source_seq >= act.seq:
        return True
    at = await api.stream_at(LOG)
    if at.first_seq <= 1:
        return False
    first = await api.message_at(LOG, at.first_seq, or_next=True)
    return first is None or first.time_ns > act.time_ns  # the log has aged past it
