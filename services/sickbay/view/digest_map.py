"""A map of the gate's view: which entry stands under which key, and the digest of all.

The projector and every router's mirror use this one class. A checkpoint has the number and digest of the entries as of
a bucket revision, so each of them can compare its own map at that revision. No network and no clock in here: messages,
pages and the caller's monotonic time come in as arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, Literal, NamedTuple, TypeAlias

from sickbay_events.view import CHECKPOINT_KEY

from ..bus.bulk import Item, header_value
from ..bus.view_names import MAIN, ViewNames

HISTORY_S: Final = 10.0
"""How long a digest is remembered by its revision; a checkpoint is on its way for less than that."""
_MOD: Final = 1 << 128

Applied: TypeAlias = Literal["new", "known", "other_bucket"]


class Change(NamedTuple):
    """One message of the bucket. `value` is None for a marker, a delete or a purge."""

    key: str
    """The scope key; `=.0` is the checkpoint, `=.1` the policy in force."""
    revision: int
    value: bytes | None
    hashed: int = 0
    """`entry_hash` of it, if the caller has computed it already, else 0."""


class Counted(NamedTuple):
    """Number and digest (32 hex digits) of the entries other than the checkpoint, as of a revision."""

    revision: int
    entries: int
    digest: str


def entry_hash(key: str, value: bytes) -> int:
    """One entry's share of the additive digest."""
    return int.from_bytes(blake2b(b"%b\0%b" % (key.encode(), value), digest_size=16).digest(), "big")


def read_change(item: Item, names: ViewNames = MAIN) -> Change | None:
    """Read a republished message, or one that a direct get answered; None if it is neither.

    An empty payload is a marker of the server's TTL sweep, or a delete: nothing stands there any more. A direct get can
    send its answer to any subject, so a message under a view's subject counts only if it is no such answer: it was
    stored under the key in its subject, has the sequence before it, and no number of messages to follow.
    """
    subject, _, headers, payload = item
    sequence = header_value(headers, b"Nats-Sequence")
    if sequence is None:
        return None
    if not subject.startswith(names.raw_view_prefix):
        # A direct get answers to an inbox or under the stored subject; the header has the subject in both.
        subject = header_value(headers, b"Nats-Subject") or subject
        if not subject.startswith(names.raw_gate_prefix):
            return None
        key = subject[len(names.raw_gate_prefix) :]
    else:
        key = subject[len(names.raw_view_prefix) :]
        stored = header_value(headers, b"Nats-Subject")
        answer = header_value(headers, b"Nats-Last-Sequence") is None or header_value(headers, b"Nats-Num-Pending")
        if stored != names.raw_gate_prefix + key or answer:
            return None
    try:
        return Change(key.decode(), int(sequence), payload or None)
    except ValueError:  # the key is no text or the revision no number: no projector wrote it
        return None


class ViewMap:
    """Which entry stands under which key, by hash and revision, with the digest of the last 10 s.

    Feed it with `apply` in the order of arrival. To load: `begin_load`, page through the bucket while
    `apply` goes on, `finish_load` with all pages; it swaps and says what differs from before. `revision` is
    the bucket revision as of which the map stands.
    """

    def __init__(self) -> None:
        self.standing: dict[str, tuple[int, int]] = {}
        """By key: revision and hash of the entry that stands there. Markers are not in it."""
        self.revision = 0
        self.feed_revision = 0
        """Largest revision that came by the feed; the feed only steps back with another bucket."""
        self._sum = 0
        self._history: deque[tuple[float, int, int, int]] = deque()
        self._loading: dict[str, Change] | None = None
        self._floor: dict[str, int] = {}

    @property
    def settled(self) -> bool:
        """False from a load until the feed has passed the newest revision on its pages. Until then each key is right,
        but the keys together are not those of any one revision."""
        return not self._floor

    @property
    def entries(self) -> int:
        """Number of entries that stand, the checkpoint not counted."""
        return len(self.standing) - (CHECKPOINT_KEY in self.standing)

    def counted(self) -> Counted:
        """Number and digest as of now, as the projector signs it; only while the map is `settled`."""
        return Counted(self.revision, self.entries, f"{self._sum:032x}")

    def counted_at(self, revision: int) -> Counted | None:
        """Number and digest as of that revision; None if the map does not reach back so far."""
        for _, at, entries, total in reversed(self._history):
            if at <= revision:
                return Counted(at, entries, f"{total:032x}")
        return None

    def apply(self, change: Change, now_s: float) -> Applied:
        """Take one republished message. `now_s` is the caller's monotonic clock.

        `other_bucket`: its revision is not above the last one's, so this is another bucket or an older
        store; the map no longer says what stands there and must be loaded again.
        """
        if change.revision <= self.feed_revision:
            self.feed_revision = change.revision
            if self._loading is None:
                return "other_bucket"
            # The bucket changed under the load: what came before is another bucket's.
            self._loading.clear()
        self.feed_revision = change.revision
        if self._loading is not None:
            self._loading[change.key] = change
        if change.revision <= self.revision:
            # The feed is still behind the pages. They were read one after the other, so a change of a key on an early
            # page can have a lower revision than the newest one on a late page.
            if change.revision <= self._floor.get(change.key, 0 if self._floor else self.revision):
                known: Applied = "known"
            else:
                self._floor[change.key] = change.revision
                self._set(change)
                known = "new"
            if change.revision == self.revision:
                self._settle(now_s)
            return known
        self._settle(now_s)
        self._set(change)
        self.revision = change.revision
        self._remember(now_s)
        return "new"

    def begin_load(self) -> None:
        """From here on messages are also kept for the merge. Call it before the first page is asked for."""
        self._loading = {}
        self.feed_revision = 0

    @property
    def is_loading(self) -> bool:
        """Between `begin_load` and `finish_load`."""
        return self._loading is not None

    def finish_load(self, pages: Iterable[Change], now_s: float, *, keep: bool = False) -> list[Change]:
        """Swap to what the pages and the messages since `begin_load` say; return what differs from before.

        Of page and message the higher revision counts. Entries that are gone come as changes without a
        value. The history begins anew: which revisions the pages passed through is not known. With `keep`
        the pages hold only what changed after a revision (a feed that was interrupted), and the rest stands.
        """
        merged = {change.key: change for change in pages}
        for key, change in (self._loading or {}).items():
            if key not in merged or merged[key].revision < change.revision:
                merged[key] = change
        before = self.standing
        self._loading = None
        if keep:
            self.standing = dict(before)
        else:
            self.standing, self._sum = {}, 0
        self._history.clear()
        self.revision = max((change.revision for change in merged.values()), default=self.revision if keep else 0)
        self._floor = {key: held[0] for key, held in self.standing.items()}
        for change in merged.values():
            self._set(change)
            self._floor[change.key] = change.revision
        if self.feed_revision >= self.revision:
            self._floor = {}
            self._remember(now_s)
        changed = [merged[key] for key in merged if key in self.standing and before.get(key) != self.standing[key]]
        gone = [Change(key, self.revision, None) for key in before if key not in self.standing]
        return changed + gone

    def _settle(self, now_s: float) -> None:
        if self._floor:
            self._floor = {}
            self._remember(now_s)

    def _set(self, change: Change) -> None:
        key = change.key
        old = self.standing.pop(key, None)
        new = change.hashed or entry_hash(key, change.value) if change.value is not None else 0
        if change.value is not None:
            self.standing[key] = (change.revision, new)
        if key != CHECKPOINT_KEY:
            self._sum = (self._sum + new - (old[1] if old else 0)) % _MOD

    def _remember(self, now_s: float) -> None:
        history = self._history
        history.append((now_s, self.revision, self.entries, self._sum))
        # The newest one older than the limit stays: it is the state at the beginning of the ten seconds.
        while len(history) > 1 and history[1][0] < now_s - HISTORY_S:
            history.popleft()
