"""The mirror on a real server: follows, notices loss by the digest, is whole again after a restart, knows its age."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import msgspec
import pytest
from nats.aio.client import Client

from nats_servers import NatsServer
from sickbay.bus.bulk import bulk_parser
from sickbay.bus.connect import NatsOptions
from sickbay.bus.link import Link
from sickbay.bus.topology import GATE_PREFIX, GATE_STREAM, ensure
from sickbay.view.clock import LogClock
from sickbay.view.mirror import Mirror
from sickbay_events import GateEntry, Policy, Target
from view_writer import ViewWriter, hold_entry, release_entry
from waiting import patience, until

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")
FAR_MS = int(time.time() * 1000) + 3_600_000


@asynccontextmanager
async def mirror_on(url: str) -> AsyncIterator[Mirror]:
    link = Link(NatsOptions.from_url(url))
    mirror = Mirror(link)
    mirror.start()
    link.start()
    try:
        yield mirror
    finally:
        await mirror.stop()
        await link.close()


@contextmanager
def deaf(mirror: Mirror) -> Iterator[None]:
    """Messages that arrive in here are lost to the mirror."""
    assert mirror._link.client is not None
    sinks = bulk_parser(mirror._link.client).sinks
    sid = next(sid for sid, sink in sinks.items() if sink == mirror._feed._on_items)
    lost: list[object] = []
    sinks[sid] = lost.extend
    yield
    sinks[sid] = mirror._feed._on_items


@pytest.fixture
async def writer(nats_client: Client) -> ViewWriter:
    await ensure(nats_client)
    return ViewWriter(nats_client)


async def test_entries_put_before_and_after_the_start_are_both_known(
    nats_server: NatsServer, writer: ViewWriter
) -> None:
    """What stood in the bucket is loaded, what is put later arrives by the feed."""
    await writer.put(TARGET.key, hold_entry(TARGET, end_ms=FAR_MS, seq=41))
    other = Target("api.x.ai", "grok")
    async with writer.signing(), mirror_on(nats_server.url) as mirror:
        assert await mirror.wait_loaded(patience(5))
        assert mirror.entries[TARGET.key].holds[0].began_seq == 41
        await writer.put(other.key, hold_entry(other, end_ms=FAR_MS, seq=42))
        await until(lambda: other.key in mirror.entries)
        await writer.put(other.key, release_entry(other, seq=43))
        await until(lambda: not mirror.entries[other.key].holds)
        assert mirror.seq == 43
        assert mirror.resyncs == 1


async def test_an_entry_of_the_feed_arrives_with_its_listener_told(nats_server: NatsServer, writer: ViewWriter) -> None:
    """A listener gets scope key, old and new entry of each change, in order."""
    seen: list[tuple[str, int, int]] = []

    def changed(key: str, old: GateEntry | None, new: GateEntry | None) -> None:
        seen.append((key, old.seq if old else 0, new.seq if new else 0))

    async with writer.signing(), mirror_on(nats_server.url) as mirror:
        mirror.listen(changed=changed)
        assert await mirror.wait_loaded(patience(5))
        await writer.put(TARGET.key, hold_entry(TARGET, end_ms=FAR_MS, seq=5))
        await writer.put(TARGET.key, release_entry(TARGET, seq=6))
        await until(lambda: len(seen) == 2)
        assert seen == [(TARGET.key, 0, 5), (TARGET.key, 5, 6)]


async def test_a_mirror_waits_for_a_bucket_that_does_not_exist_yet(
    nats_server: NatsServer, nats_client: Client
) -> None:
    """Started on an empty server, it is neither loaded nor failed, and loads when the bucket is made."""
    async with mirror_on(nats_server.url) as mirror:
        await until(lambda: mirror._retry_at_s > 0, what="it has asked once")
        assert not mirror.is_loaded
        assert mirror.is_stale
        await ensure(nats_client)
        writer = ViewWriter(nats_client)
        await writer.put(TARGET.key, hold_entry(TARGET, end_ms=FAR_MS))
        async with writer.signing():
            await until(lambda: TARGET.key in mirror.entries)
            await until(lambda: not mirror.is_stale)


async def test_no_resync_while_200_changes_a_second_flow(nats_server: NatsServer, writer: ViewWriter) -> None:
    """The digest is compared at the checkpoint's revision, so changes in flight are no mismatch."""
    async with writer.signing(0.05), mirror_on(nats_server.url) as mirror:
        assert await mirror.wait_loaded(patience(5))
        targets = [Target("openrouter.ai", f"m{n}") for n in range(50)]
        began = time.monotonic()
        for n in range(600):
            target = targets[n % 50]
            await writer.put(target.key, hold_entry(target, end_ms=FAR_MS, seq=100 + n))
            await asyncio.sleep(max(0.0, began + n / 200 - time.monotonic()))
        await until(lambda: mirror.entries[targets[-1].key].seq == 699)
        assert mirror.resyncs == 1
        assert mirror.counts["mismatch"] == 0
        assert mirror._map.counted().digest == writer.checkpoint().digest


async def test_what_the_feed_lost_is_noticed_at_the_next_checkpoint(
    nats_server: NatsServer, writer: ViewWriter
) -> None:
    """An entry that stands in the bucket but never came by the feed is paged in after one checkpoint."""
    async with mirror_on(nats_server.url) as mirror:
        await writer.sign()
        assert await mirror.wait_loaded(patience(5))
        await writer.sign()
        await until(lambda: mirror._map.settled)
        with deaf(mirror):
            await writer.put(TARGET.key, hold_entry(TARGET, end_ms=FAR_MS))
            await asyncio.sleep(0.05)
        assert TARGET.key not in mirror.entries
        await writer.sign()
        await until(lambda: TARGET.key in mirror.entries)
        assert mirror.counts["mismatch"] == 1
        await writer.sign()
        await writer.sign()
        await asyncio.sleep(0.1)
        assert mirror.resyncs == 2, "paged once, and no more once it fits"


@pytest.mark.parametrize("kill", [True, False])
async def test_whole_again_soon_after_a_server_restart(nats_server: NatsServer, writer: ViewWriter, kill: bool) -> None:
    """From the moment the server answers again, an entry put while the mirror was away is soon known."""
    async with writer.signing(), mirror_on(nats_server.url) as mirror:
        assert await mirror.wait_loaded(patience(5))
        for n in range(200):
            target = Target("openrouter.ai", f"m{n}")
            await writer.put(target.key, hold_entry(target, end_ms=FAR_MS, seq=100 + n))
        await until(lambda: mirror.seq == 299)
        nats_server._end(signal.SIGKILL if kill else signal.SIGTERM)
        await until(lambda: mirror._link.client is None)
        nats_server.start()
        await until(lambda: mirror._link.client is not None)
        while True:
            try:
                await asyncio.wait_for(writer.put(TARGET.key, hold_entry(TARGET, end_ms=FAR_MS, seq=400)), 0.5)
                break
            except Exception:
                await asyncio.sleep(0.005)
        await until(lambda: TARGET.key in mirror.entries, within_s=0.5)


async def test_a_change_missed_during_an_interruption_is_read_without_paging(
    nats_server: NatsServer, writer: ViewWriter
) -> None:
    """After a reconnect the mirror reads what changed since, at once, though no checkpoint tells of it yet."""
    async with mirror_on(nats_server.url) as mirror:
        await writer.put(TARGET.key, release_entry(TARGET, seq=8))
        await writer.sign()
        assert await mirror.wait_loaded(patience(5))
        await writer.sign()
        await until(lambda: mirror._map.settled)
        link = mirror._link
        assert link is not None and link.client is not None
        resyncs, connects = mirror.resyncs, link.connects
        with deaf(mirror):
            await writer.put(TARGET.key, hold_entry(TARGET, end_ms=FAR_MS, seq=9))
        # The transport is cut under the client, as a network does.
        link.client._transport._io_writer.transport.abort()  # type: ignore[union-attr]
        await until(lambda: link.connects > connects)
        await until(lambda: mirror.entries[TARGET.key].holds, within_s=0.5)
        await writer.sign()
        await until(lambda: mirror.checkpoint and mirror.checkpoint.revision == writer.revision)
        assert mirror.counts["mismatch"] == 0
        assert mirror.counts["filled"] == 1
        assert mirror.resyncs == resyncs


async def test_a_recreated_bucket_is_noticed_and_its_old_entries_dropped(
    nats_server: NatsServer, writer: ViewWriter, nats_client: Client
) -> None:
    """After a delete and a new bucket with lower revisions, nothing of the old one stands."""
    gone = Target("old.example", "m")
    async with mirror_on(nats_server.url) as mirror:
        for n in range(20):
            await writer.put(gone.key, hold_entry(gone, end_ms=FAR_MS, seq=100 + n))
        await writer.sign()
        await until(lambda: gone.key in mirror.entries)
        await nats_client.jetstream().delete_stream(GATE_STREAM)
        await ensure(nats_client)
        fresh = ViewWriter(nats_client)
        await fresh.put(TARGET.key, hold_entry(TARGET, end_ms=FAR_MS, seq=200))
        async with fresh.signing():
            await until(lambda: TARGET.key in mirror.entries and gone.key not in mirror.entries)
            await until(lambda: mirror._map.counted().digest == fresh.checkpoint().digest)


async def test_deletes_and_the_brooms_markers_remove_an_entry(nats_server: NatsServer, writer: ViewWriter) -> None:
    """A delete and an expired entry's marker both leave nothing, and the digest stays right."""
    js = writer.js
    short = Target("openrouter.ai", "short")
    async with mirror_on(nats_server.url) as mirror:
        await writer.sign()
        assert await mirror.wait_loaded(patience(5))
        await writer.put(TARGET.key, hold_entry(TARGET, end_ms=FAR_MS))
        body = msgspec.json.encode(hold_entry(short, end_ms=FAR_MS))
        ack = await js.publish(GATE_PREFIX + short.key, body, msg_ttl=1)
        writer.revision = ack.seq
        await until(lambda: short.key in mirror.entries and TARGET.key in mirror.entries)
        ack = await js.publish(GATE_PREFIX + TARGET.key, b"", headers={"KV-Operation": "DEL"})
        await until(lambda: TARGET.key not in mirror.entries)
        await until(lambda: short.key not in mirror.entries, what="the marker came")
        writer.values.clear()
        writer.revision = mirror._map.revision
        await writer.sign()
        await until(lambda: mirror._checkpoint_revision > writer.revision)
        assert mirror.counts["mismatch"] == 0
        assert mirror._map.counted().entries == 0


async def test_malformed_and_future_entries_are_counted_and_ignored(
    nats_server: NatsServer, writer: ViewWriter, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither one disturbs the digest or anything else, and neither takes a model from anybody."""
    async with mirror_on(nats_server.url) as mirror:
        await writer.sign()
        assert await mirror.wait_loaded(patience(5))
        await writer.put("a.=.m", b"{not json")
        await writer.put("b.=.m", b'{"provider":"b","v":2,"holds":"other"}')
        await writer.put("c.=.m", msgspec.json.encode(msgspec.structs.replace(hold_entry(TARGET, end_ms=FAR_MS), v=2)))
        await writer.put("=.1", b'{"seq":3,"policy":{"rejections":{"threshold":"many"}}}')
        await writer.put(TARGET.key, hold_entry(TARGET, end_ms=FAR_MS))
        await writer.sign()
        await until(lambda: TARGET.key in mirror.entries and mirror.checkpoint)
        await until(lambda: mirror._checkpoint_revision > writer.revision)
        assert set(mirror.entries) == {TARGET.key}
        assert mirror.counts["body"] == 2 and mirror.counts["version"] == 1 and mirror.counts["policy"] == 1
        assert mirror.counts["mismatch"] == 0
        assert mirror.policy == Policy()
        assert "rejections.threshold" in caplog.text


async def test_the_policy_in_force_is_taken_up(nats_server: NatsServer, writer: ViewWriter) -> None:
    """A changed policy reaches the listeners without a restart."""
    taken: list[tuple[int, int]] = []
    async with mirror_on(nats_server.url) as mirror:
        mirror.listen(policy=lambda policy, seq: taken.append((policy.rejections.threshold, seq)))
        assert await mirror.wait_loaded(patience(5))
        await writer.policy(Policy.from_data({"rejections": {"threshold": 4}}), seq=7)
        await until(lambda: taken)
        assert taken == [(4, 7)]
        assert mirror.policy.rejections.threshold == 4 and mirror.policy_seq == 7


async def test_age_counts_from_the_last_live_checkpoint(nats_server: NatsServer, writer: ViewWriter) -> None:
    """Rule 5.3: the age grows though the feed stands, so a dead projector shows; one that only catches up counts as
    dead."""
    async with mirror_on(nats_server.url) as mirror:
        async with writer.signing(0.1):
            await until(lambda: not mirror.is_stale)
            assert mirror.age_s() < patience(1.0)
        await writer.sign(live=False)
        before_s = mirror.age_s()
        await until(lambda: mirror.checkpoint and not mirror.checkpoint.live)
        assert mirror.age_s() >= before_s
        await until(lambda: mirror.is_stale)
        await writer.sign()
        await until(lambda: not mirror.is_stale)


async def test_a_checkpoint_that_was_fetched_is_as_old_as_it_is(nats_server: NatsServer, writer: ViewWriter) -> None:
    """A gate that starts after the projector died does not take its last checkpoint for news."""
    await writer.sign()
    await asyncio.sleep(1.2)
    async with mirror_on(nats_server.url) as mirror:
        assert await mirror.wait_loaded(patience(5))
        assert 1.1 < mirror.age_s() < patience(4)
        assert mirror.is_stale, "nothing was heard by the feed"
        assert not mirror.clock.heard, "times of fetched messages are not the feed's (Rule 6)"


async def test_without_a_projector_the_bucket_is_paged_ever_more_rarely(
    nats_server: NatsServer, writer: ViewWriter
) -> None:
    """Silence makes a mirror page, but not again and again."""
    await writer.sign()
    async with mirror_on(nats_server.url) as mirror:
        assert await mirror.wait_loaded(patience(5))
        await until(lambda: mirror._page_wait_s >= 2.0)
        assert 2 <= mirror.resyncs <= 6


async def test_a_feed_that_does_not_tell_while_a_projector_lives_is_subscribed_again(
    nats_server: NatsServer, writer: ViewWriter
) -> None:
    """The connection stands, the bucket moves, nothing comes: the mirror pages, makes a new subscription and hears."""
    async with writer.signing(0.1), mirror_on(nats_server.url) as mirror:
        await until(lambda: not mirror.is_stale)
        before = mirror._feed.subscription
        assert before is not None and mirror._link.client is not None
        # The server is told to forget the subscription, behind the client's back.
        await mirror._link.client._send_command(f"UNSUB {before._subscription._id}\r\n".encode())
        await mirror._link.client.flush()
        await writer.put(TARGET.key, hold_entry(TARGET, end_ms=FAR_MS, seq=50))
        await until(lambda: TARGET.key in mirror.entries)
        await until(lambda: mirror._feed.subscription is not before)
        pages = mirror.resyncs
        await writer.put(TARGET.key, release_entry(TARGET, seq=51))
        await until(lambda: not mirror.entries[TARGET.key].holds)
        await asyncio.sleep(2)
        assert mirror.resyncs - pages <= 1, "it follows the feed again"


async def test_a_digest_that_never_fits_is_not_paged_for_at_every_checkpoint(
    nats_server: NatsServer, writer: ViewWriter
) -> None:
    """A projector of another make (another hash) costs each router a page now and then, not one a second."""
    async with mirror_on(nats_server.url) as mirror:
        assert await mirror.wait_loaded(patience(5))
        for _ in range(30):
            await writer.sign(digest="0" * 31 + "1")
            await asyncio.sleep(0.1)
        assert mirror.counts["mismatch"] >= 1
        assert mirror.resyncs <= 6


async def test_an_entry_that_says_nothing_any_more_is_dropped_by_the_own_clock(
    nats_server: NatsServer, writer: ViewWriter
) -> None:
    """The broom is not needed: past `expires_ms` the mirror drops the entry."""
    async with writer.signing(), mirror_on(nats_server.url) as mirror:
        assert await mirror.wait_loaded(patience(5))
        await writer.put(TARGET.key, hold_entry(TARGET, end_ms=1, expires_ms=mirror.now_ms() + 300))
        await until(lambda: TARGET.key in mirror.entries)
        await until(lambda: TARGET.key not in mirror.entries)
        assert mirror.counts["mismatch"] == 0, "the digest still counts what stands in the bucket"


async def test_two_thousand_entries_load_by_pages(nats_server: NatsServer, writer: ViewWriter) -> None:
    """More entries than one page holds are all there."""
    targets = [Target("openrouter.ai", f"m{n}") for n in range(2_500)]
    bodies = [(GATE_PREFIX + t.key, msgspec.json.encode(hold_entry(t, end_ms=FAR_MS))) for t in targets]
    for at in range(0, len(bodies), 100):
        await asyncio.gather(*[writer.js.publish(subject, body) for subject, body in bodies[at : at + 100]])
    async with mirror_on(nats_server.url) as mirror:
        assert await mirror.wait_loaded(patience(5))
        assert len(mirror.entries) == 2_500


def test_the_log_clock_keeps_the_largest_offset_of_sixty_seconds() -> None:
    """Slow deliveries do not set the clock back; after 60 s an old offset is forgotten (Rule 6)."""
    own_s = 100.0
    clock = LogClock(lambda: own_s, lambda: 5.0)
    assert clock.now_ms() == 5_000 and not clock.heard
    clock.hear(1_000_000, own_s)
    own_s = 101.0
    clock.hear(1_000_500, own_s)  # delivered half a second late
    assert clock.now_ms() == 1_001_000
    own_s = 159.0
    clock.hear(1_058_500, own_s)
    assert clock.now_ms() == 1_059_000
    own_s = 161.0
    clock.hear(1_060_500, own_s)
    assert clock.now_ms() == 1_060_500, "the first message is more than 60 s old"
