"""Looks on while a history runs: who puts what into the view, who gets which lease (Rules 5.2 and 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from sickbay.bus.topology import GATE_PREFIX, GATE_STREAM, TRIALS_STREAM
from sickbay_events.lease_wire import SUBJECT as TRIAL_SUBJECT
from sickbay_events.lease_wire import LeaseName, TrialAnswer, TrialAsk
from sickbay_events.view import CHECKPOINT_KEY, Checkpoint

from .client import SimClient
from .server import Server, Stored, Stream

if TYPE_CHECKING:
    from .faults import Faults

CLAIM_S: Final = 1.0
"""How long one successful compare of the checkpoint lets its writer put: the checkpoint decides who writes."""
SILENT_S: Final = 3.0
ON_ITS_WAY_S: Final = 0.1
LEASE_SLACK_S: Final = 1.2
"""A key goes in whole seconds, and one given back is gone after one."""


class Watch:
    """Looks on."""

    def __init__(self, server: Server, faults: Faults) -> None:
        self.server, self.faults = server, faults
        self.grants = 0
        self.broken: list[str] = []
        self._claims: dict[Any, float] = {}
        self._bucket_s = 0.0
        self._writer: tuple[Stream | None, str, float] = (None, "", 0.0)
        """In which bucket who claimed the checkpoint last, and when."""
        self._asks: dict[str, tuple[TrialAsk, float]] = {}
        self._holders: dict[LeaseName, dict[str, float]] = {}
        """By lease: token and until when it is held."""
        self._returned: set[str] = set()
        """Tokens that were given back: a grant that is on its way then holds nothing."""
        self._keys: dict[str, float] = {}
        """By lease key: when something was last put there."""
        server.on_stored = self._stored
        server.on_message = self._message

    def _says(self, what: str) -> None:
        self.broken.append(f"at {self.server.loop.time():.3f} s: {what}")

    def _stored(self, stream: Stream, message: Stored, client: SimClient | None) -> None:
        now_s = self.server.loop.time()
        if stream.name == TRIALS_STREAM:
            self._keys[message.subject] = now_s
        elif stream.name == GATE_STREAM and client is not None and message.subject.startswith(GATE_PREFIX):
            if message.subject == GATE_PREFIX + CHECKPOINT_KEY:
                self._claims[client.node] = now_s
                self._claimed(stream, msgspec.json.decode(message.payload, type=Checkpoint).writer, now_s)
            elif now_s - self._claims.get(client.node, -9.0) > CLAIM_S + ON_ITS_WAY_S:
                # The checkpoint decides who writes: no put unless one's own
                # checkpoint compare succeeded within the last second.
                self._says(f"{client.node.name} put {message.subject} without having claimed the checkpoint")

    def _claimed(self, bucket: Stream, writer: str, now_s: float) -> None:
        where, before, before_s = self._writer
        if where is not bucket:
            self._bucket_s = now_s
        # In a bucket made anew revisions begin again, and who wrote into the old one may be the first.
        # How old a checkpoint is when it is read first, the server's clock says, which may have stepped.
        steady = not self.faults.counts["clock step in the log"]
        if (
            where is bucket
            and steady
            and now_s - self._bucket_s > SILENT_S
            and before not in ("", writer)
            and now_s - before_s < SILENT_S - ON_ITS_WAY_S
        ):
            # One writes: another one's checkpoint is claimed when it has not moved for 3 s.
            self._says(f"{writer} took the checkpoint, which {before} had claimed {now_s - before_s:.2f} s before")
        self._writer = (bucket, writer, now_s)

    def _message(self, subject: str, reply: str, payload: bytes) -> None:
        if subject == TRIAL_SUBJECT:
            ask = msgspec.json.decode(payload, type=TrialAsk)
            self._asks[reply] = ask, self.server.loop.time()
            if ask.action == "give_back":
                self._returned.add(ask.token)
                for name in ask.leases:
                    self._holders.get(name, {}).pop(ask.token, None)
        elif subject in self._asks and payload:
            self._answered(*self._asks.pop(subject), msgspec.json.decode(payload, type=TrialAnswer))

    def _answered(self, ask: TrialAsk, asked_s: float, answer: TrialAnswer) -> None:
        now_s = self.server.loop.time()
        if answer.granted:
            self.grants += ask.action == "take"
            for name in ask.leases:
                holders = self._holders.setdefault(name, {})
                others = {
                    token: until_s for token, until_s in holders.items() if token != ask.token and until_s > now_s
                }
                if others and lease_subject(name) not in self.faults.freed:
                    # Rule 5.2: at most one holder at a time in the cluster.
                    self._says(f"{name} was given to {ask.replica} ({ask.token}) while {others} have it")
                if ask.token not in self._returned:
                    holders[ask.token] = asked_s + answer.expires_in_ms / 1000
        elif ask.action == "take" and answer.taken is not None:
            name = answer.taken
            put_s = self._keys.get(lease_subject(name), -99.0)
            if now_s - put_s > 2 + LEASE_SLACK_S and not self._stands(name):
                # Rule 5.2: a killed holder blocks nobody for long; here a lease lasts 2 s.
                self._says(f"{name} was refused to {ask.replica}, {now_s - put_s:.1f} s after anybody had it")

    def _stands(self, name: LeaseName) -> bool:
        """Whether some process knows it before its end, where a trial need not be wanted, or by a newer name."""
        for process in self.faults.world.processes:
            if process.projector is None:
                continue
            entry = process.projector.fleet.entry(name.scope)
            slack_ms = 1_000 + 31_000 * bool(self.faults.counts["clock step in the log"])
            for hold in entry.holds if entry is not None else ():
                if hold.rule == name.rule and hold.began_seq > name.began_seq:
                    return True
                is_it = (hold.rule, hold.began_seq) == (name.rule, name.began_seq)
                if is_it and process.node.ask(process.projector.now_ms) < hold.end_ms + slack_ms:
                    return True
        return False


def lease_subject(name: LeaseName) -> str:
    """Where a lease stands in its bucket."""
    return f"$KV.sickbay_trials.{name.scope}.{name.rule}.{name.began_seq}"
