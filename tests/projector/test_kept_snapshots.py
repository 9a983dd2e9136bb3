"""Parts of the projector that need no server: what is kept of snapshots, and the map of the view."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from sickbay.bus.view_names import MAIN
from sickbay.log.snapshots import SnapshotInfo, StoredSnapshot, compress, compression, decompress, to_drop
from sickbay.projector.view_feed import BEHIND_S, ProjectorView
from sickbay.view.digest_map import Change, ViewMap

HOUR_MS = 3_600_000
NOW_MS = 1_796_000_000_000


def snapshot(time_ms: int) -> StoredSnapshot:
    info = SnapshotInfo(
        seq=1,
        time_ms=time_ms,
        time_ns=0,
        fold=1,
        policy_seq=0,
        digest="",
        log_created="",
        mark=0,
        compression="zlib",
        size=0,
    )
    return StoredSnapshot(info, str(time_ms), "", "")


def test_of_snapshots_the_newest_three_one_an_hour_and_one_a_day_are_kept() -> None:
    ages_ms = [minute * 60_000 for minute in range(0, 100 * 24 * 60, 10)]
    found = [snapshot(NOW_MS - age_ms) for age_ms in ages_ms]
    dropped = {one.name for one in to_drop(found, NOW_MS)}
    kept = [one.info.time_ms for one in found if one.name not in dropped]
    assert kept[:3] == [one.info.time_ms for one in found[:3]]
    week = {time_ms // HOUR_MS for time_ms in kept if NOW_MS - time_ms < 7 * 24 * HOUR_MS}
    assert len(week) in (7 * 24, 7 * 24 + 1)
    days = [time_ms // (24 * HOUR_MS) for time_ms in kept if NOW_MS - time_ms >= 8 * 24 * HOUR_MS]
    assert len(days) == len(set(days)) and 81 <= len(days) <= 83
    assert min(kept) > NOW_MS - 91 * 24 * HOUR_MS


def test_what_is_compressed_comes_back_and_says_how() -> None:
    data = b"state " * 1_000
    assert decompress(compress(data), compression()) == data
    assert len(compress(data)) < 200


CHANGES = st.lists(st.tuples(st.sampled_from(["=.0", "=.1", "a", "b.=", "b.=.m"]), st.binary(max_size=3)), max_size=60)


@given(CHANGES, st.integers(0, 60), st.integers(1, 3))
def test_a_map_loaded_amid_changes_is_the_map_that_followed_them_all(
    writes: list[tuple[str, bytes]], at: int, page: int
) -> None:
    """One is loaded by pages, the other has followed from the beginning. Pages are read one after the other while the
    feed goes on: once it has passed them, number and digest are those of whoever followed all along, at every revision
    that both remember."""
    changes = [Change(key, revision, value or None) for revision, (key, value) in enumerate(writes, 1)]
    whole = ViewMap()
    for change in changes:
        assert whole.apply(change, 0.0) == "new"
    loaded = ViewMap()
    loaded.begin_load()
    # Each page shows the bucket a few changes later than the one before; the feed lags behind both.
    pages: list[Change] = []
    at = seen = min(at, len(changes))
    low = 1
    while True:
        newest = {change.key: change for change in changes[:seen]}
        part = sorted((c for c in newest.values() if c.revision >= low), key=lambda c: c.revision)[:page]
        if not part:
            break
        pages += part
        low = part[-1].revision + 1
        seen = min(seen + page, len(changes))
    fed = changes[at:]
    half = len(fed) // 2
    for change in fed[:half]:
        loaded.apply(change, 0.0)
    loaded.finish_load(pages, 0.0)
    for change in fed[half:]:
        loaded.apply(change, 0.0)
    if loaded.settled and loaded.revision == whole.revision:
        assert loaded.counted() == whole.counted()
        assert loaded.standing == whole.standing
    for revision in range(1, len(changes) + 1):
        counted = loaded.counted_at(revision)
        if counted is not None:
            assert counted == whole.counted_at(revision)


def test_a_revision_that_steps_back_is_another_bucket() -> None:
    view = ViewMap()
    assert view.apply(Change("a", 7, b"x"), 0.0) == "new"
    assert view.apply(Change("a", 3, b"y"), 0.0) == "other_bucket"


def test_a_bucket_made_anew_before_the_first_message_came_by_is_another_one() -> None:
    """What lies below the pages belongs to them for a moment only: later it is of a bucket whose revisions began again,
    and its checkpoints must not pass for silence."""

    def checkpoint(revision: int) -> tuple[bytes, bytes, bytes, bytes]:
        headers = (
            f"NATS/1.0\r\nNats-Subject: {MAIN.gate_prefix}=.0\r\nNats-Sequence: {revision}\r\n"
            "Nats-Last-Sequence: 0\r\nNats-Time-Stamp: 2026-11-30T00:00:00.000000000Z\r\n\r\n"
        )
        return f"{MAIN.view_prefix}=.0".encode(), b"", headers.encode(), b"{}"

    feed = ProjectorView(MAIN)
    feed.map.begin_load()
    feed.map.finish_load([Change("=.0", 24, b"{}")], 0.0)
    feed.loaded, feed._loaded_s = True, time.monotonic()
    feed._on_items([checkpoint(1)])
    assert feed.loaded, "it may have been on its way"
    feed._loaded_s -= BEHIND_S
    feed._on_items([checkpoint(2)])
    assert not feed.loaded
