"""What the parts of one projector share: the folded state, where it stands in the log, and the outputs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from sickbay_events import Policy
from sickbay_projections import Fleet
from sickbay_projections.state.model import hash_of

from ..bus.jetstream import StreamAt
from ..bus.link import Link
from ..bus.publish import AckedPublisher
from ..bus.topology import StreamLimits
from ..bus.view_names import view_names
from ..control.lag import ControlLag
from ..loggers import logger
from .counters import Counters
from .deadletters import DeadLetters
from .documents import Documents
from .transitions import NullTransitions, Transitions
from .view_feed import ProjectorView
from .writer import GateWriter

_log = logger("sickbay.projector")
T = TypeVar("T")


class ProjectorState:
    """The state of one projector, without a task of its own. The loop folds into it, the maintenance writes from it.

    The arguments are those of `Projector`. Everything belongs to one event loop.
    """

    def __init__(
        self,
        link: Link,
        *,
        name: str,
        policy: Policy | None,
        dead_letters: bool,
        limits: StreamLimits | None,
        view: str,
        beside: bool,
    ) -> None:
        self.me = f"{name}/{secrets.token_hex(4)}"
        self.link = link
        self.limits = limits
        self.is_beside = beside
        self.policy_override = policy if beside else None
        """The policy that counts in the place of every one in the log."""
        self.override_digest = "" if self.policy_override is None else policy_digest(self.policy_override)
        """Its digest; empty where the log's own policies count."""
        self.policy_file = None if beside else policy
        """Seeds an empty log; otherwise only compared with the policy in force."""

        self.fleet = self.new_fleet()
        self.log = StreamAt("", 0, 0)
        """The log as it was when reading last began."""
        self.time_ns = 0
        """The server's time of the event at the state's position; 0 if that position is a gap."""
        self.is_loaded = False
        self.is_caught_up = False
        self.was_at_end = False
        """The state has been at the log's end since it was loaded."""
        self.is_interrupted = False
        """Reading the log stopped, and the reader tries again: the stream may be gone."""
        self.lag = 0
        """Events in the log that are not folded yet, as last heard."""
        self.marks: dict[int, str] = {}
        """Digests of the whole state by log sequence, oldest first."""
        self.differs = False
        """The digest differs from the writer's at the same sequence."""
        self.is_live = False
        """As the writer: everything in the bucket was compared since the checkpoint was claimed."""
        self.snapshot_seq = 0
        """Sequence of the newest snapshot that this process stored or started from."""
        self.rebuilds = self.folded = self.gaps = 0
        self.last_rebuild = self.last_error = ""

        names = view_names(view)
        self.woken, self.claim_now = asyncio.Event(), asyncio.Event()
        """The maintenance has something to do now; entries wait for a fresh claim."""
        self.counters = Counters()
        self.control_lag = ControlLag()
        self.publisher = AckedPublisher(link)
        self.view = ProjectorView(names)
        self.transitions = NullTransitions(self.publisher) if beside else Transitions(self.publisher)
        self.documents = Documents(self.publisher, names)
        self.dead = DeadLetters(self.publisher, enabled=dead_letters and not beside)
        self.writer = GateWriter(self.publisher, self.view, self, wake=self.woken.set, claim_now=self.claim_now.set)
        self._folded_more = asyncio.Event()
        self._lost = asyncio.Event()
        link.listen(disconnected=self._lost.set)

    @property
    def is_writer(self) -> bool:
        """Whether this projector holds the checkpoint, as far as it knows."""
        return self.writer.is_writer

    @property
    def is_current(self) -> bool:
        """Whether the state has been at the log's end since it was loaded, and the server has told its time. Before
        that it has holds that may be over, and perhaps another policy than the one in force."""
        return self.is_loaded and self.was_at_end and self.view.clock.heard

    def new_fleet(self) -> Fleet:
        """A state that has folded nothing."""
        return Fleet(self.policy_override or Policy())

    def note_error(self, error: BaseException) -> None:
        """Log what the server did, once until something else happens."""
        text = f"{type(error).__name__}: {error}"
        if text != self.last_error:
            _log.info("%s", text)
        self.last_error = text

    def note_rebuild(self, why: str) -> None:
        """Count and log that the state is built anew."""
        self.rebuilds += 1
        self.last_rebuild = why
        _log.warning("the state is built anew: %s", why)

    def note_folded(self) -> None:
        """Wake those who wait in `folded_to`."""
        self._folded_more.set()

    async def folded_to(self, seq: int, timeout_s: float) -> bool:
        """Wait until the state is at `seq` or later. Returns False if it is not in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.fleet.seq < seq:
                    self._folded_more.clear()
                    await self._folded_more.wait()
        return self.fleet.seq >= seq

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work, but give up at once when the connection is lost, because no answer will come.

        Raises `ConnectionResetError` then.
        """
        self._lost.clear()
        task = asyncio.ensure_future(work)
        lost = asyncio.ensure_future(self._lost.wait())
        try:
            await asyncio.wait([task, lost], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise ConnectionResetError("the connection to NATS was lost")
        finally:
            for waiting in (task, lost):
                waiting.cancel()
            await asyncio.wait([task, lost])


def policy_digest(policy: Policy) -> str:
    """32 hex digits that identify a policy."""
    return f"{hash_of('policy', policy.to_data()):032x}"
