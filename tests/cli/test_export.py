"""Export and plain replay: the same state as live, digest by digest, with poison, gaps and operators in the log."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest
from nats.aio.client import Client

from cli_runs import sickbay
from nats_servers import NatsServer
from past_rig import history, settled
from projector_processes import replay as rebuild
from sickbay.bus.jetstream import JetStreamApi
from sickbay.bus.topology import LOG
from sickbay.cli.base import SaysNo
from sickbay.cli.demo.run import live_holds
from sickbay.cli.files import export_log, headers_of
from sickbay.cli.replay import hold_fact
from sickbay.config import Settings
from sickbay.control.acts import publish_outcome, publish_override
from sickbay.log.file import LogFile
from sickbay.log.folding import replay
from sickbay.replay.story import trace
from sickbay.service.services import Services
from sickbay_events import CallOutcome, Kind, Scope, Target, TargetHeld
from sickbay_events.codec import outcome_subject
from waiting import patience

KINDS: tuple[Kind, ...] = ("ok", "ok", "model_unavailable", "server_error", "bad_request", "rate_limited")
TARGET = Target("openrouter.ai", "z-ai/glm-5.3")


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
async def test_a_replay_of_the_exported_log_is_the_live_state(
    nats_client: Client, services: Services, tmp_path: Path, suffix: str
) -> None:
    """Whatever is in the log, the digest of the state after a replay equals the live one at the same sequence."""
    seed = random.randrange(1 << 30)
    await history(nats_client, seed, 150)
    last = await settled(nats_client, services)
    file = tmp_path / f"log{suffix}"
    found = await export_log(nats_client, file)
    done = replay(LogFile(file))
    assert services.projector is not None
    live = services.projector.fleet
    assert (found["events"], done.events, done.fleet.seq, live.seq) == (last, last, last, last)
    assert sum(done.poison.values()) >= 5, f"seed {seed}"
    assert done.fleet.digest() == live.digest() and done.fleet.encode() == live.encode(), f"seed {seed}"
    folded = [hold_fact(event) for event in done.derived if isinstance(event, TargetHeld)]
    assert folded == await live_holds(nats_client), f"seed {seed}"


async def test_events_deleted_by_hand_are_gaps_in_both(
    nats_client: Client, services: Services, nats_server: NatsServer, tmp_path: Path
) -> None:
    """Sequences missing inside the log are counted in the export, passed in the replay, and the state is the one
    of a projector that met the same gaps."""
    await history(nats_client, 7, 40)
    last = await settled(nats_client, services)
    for seq in (5, 6, 20):
        await nats_client.request(
            f"$JS.API.STREAM.MSG.DELETE.{LOG}", json.dumps({"seq": seq}).encode(), timeout=patience(5)
        )
    await services.stop()
    # Its snapshot knows the events that are gone: only a fold from the log's beginning meets the gaps.
    await nats_client.request("$JS.API.STREAM.PURGE.OBJ_sickbay_snapshots", b"", timeout=patience(5))
    fresh = Services(Settings(nats=nats_server.url, replica="other"))
    await fresh.start()
    await fresh.ready()
    try:
        assert fresh.projector is not None and await fresh.projector.folded_to(last, 10)
        file = tmp_path / "log.jsonl"
        found = await export_log(nats_client, file)
        done = replay(LogFile(file))
        assert (found["gaps"], done.gaps, found["events"]) == (3, 3, last - 3)
        assert done.fleet.digest() == fresh.projector.fleet.digest()
    finally:
        await fresh.stop()


async def test_a_part_of_the_log(nats_client: Client, services: Services, tmp_path: Path) -> None:
    """--from and --to are sequences, both included; what lies beyond the end is no error, an empty part neither."""
    await history(nats_client, 3, 12)
    last = await settled(nats_client, services)
    for first, end, wanted in ((1, None, last), (4, 6, 3), (last, last + 9, 1), (last + 5, None, 0)):
        file = tmp_path / f"{first}-{end}.jsonl"
        found = await export_log(nats_client, file, first=first, last=end)
        seqs = [line.seq for line in LogFile(file)]
        assert found["events"] == wanted == len(seqs)
        assert not seqs or (seqs[0], seqs[-1]) == (first, min(end or last, last))


async def test_a_log_that_has_lost_its_head_is_exported_with_what_a_rebuild_needs(
    nats_client: Client, services: Services, tmp_path: Path
) -> None:
    """Policy and operators' acts outlive their copies in the log, and the file's replay is the live rebuild."""
    for model in ("a", "b"):
        await publish_override(nats_client, Scope("h", "", model), "hold", reason="x", actor="ana", for_s=600)
    await settled(nats_client, services)  # their copies are the first events of the log
    await history(nats_client, 4, 30)
    last = await settled(nats_client, services)
    whole = await export_log(nats_client, tmp_path / "whole.jsonl")
    assert (whole["trimmed"], whole["control"]) == (0, 0)
    await JetStreamApi(nats_client, timeout_s=patience(5)).request(f"STREAM.PURGE.{LOG}", {"seq": 10})

    file = tmp_path / "log.jsonl"
    found = await export_log(nats_client, file)
    assert found == {"events": last - 9 + 2, "first": 8, "last": last, "gaps": 0, "trimmed": 9, "control": 2}
    rebuilt, _ = await rebuild(nats_client)
    assert replay(LogFile(file)).fleet.digest() == rebuilt.digest()
    at_ms = rebuilt.time_ms
    assert rebuilt.decide(Target("h", "a"), at_ms).reason == "held_by_operator"

    done = await asyncio.to_thread(sickbay, "export", f"{file}.zst", "--nats", nats_client.connected_url.geturl())  # type: ignore[union-attr]
    assert "lost its first 9 events, but for 2 policies and operators' acts" in " ".join(done.stderr.split())
    part = await export_log(nats_client, tmp_path / "part.jsonl", first=12)
    assert (part["first"], part["control"]) == (12, 0), "who asks for a part gets that part"


async def test_headers_are_kept(nats_client: Client, services: Services, tmp_path: Path) -> None:
    """Message ids and the mark of a sourced event are in the file."""
    await publish_override(nats_client, Scope("h"), "clear", reason="x", actor="ana")
    outcome = CallOutcome(kind="ok", id="0123456789abcdef-1")
    await publish_outcome(nats_client, TARGET, outcome, replica="r1")
    await settled(nats_client, services)
    await export_log(nats_client, tmp_path / "log.jsonl")
    lines = {line.subject: line for line in LogFile(tmp_path / "log.jsonl")}
    assert lines[outcome_subject("r1", TARGET)].headers["Nats-Msg-Id"] == "0123456789abcdef-1"
    assert str(lines["sickbay.override.h"].headers["Nats-Stream-Source"]).startswith("SICKBAY_CONTROL 1")


def test_a_header_that_comes_twice_is_a_list() -> None:
    """As NATS allows it."""
    block = b"NATS/1.0\r\nA: 1\r\nB: x:y\r\nA: 2\r\n\r\n"
    assert headers_of(block) == {"A": ["1", "2"], "B": "x:y"} and headers_of(None) == {}


async def test_a_log_replaced_under_an_export_leaves_no_file(
    nats_client: Client, services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream is deleted and made anew between the look at it and the reading: an error, and no half file."""
    await history(nats_client, 5, 10)
    await settled(nats_client, services)
    real = JetStreamApi.stream_at

    async def another(self: JetStreamApi, stream: str) -> object:
        at = await real(self, stream)
        monkeypatch.undo()
        return type(at)("2020-01-01T00:00:00Z", at.first_seq, at.last_seq)

    monkeypatch.setattr(JetStreamApi, "stream_at", another)
    with pytest.raises(SaysNo, match="recreated"):
        await export_log(nats_client, tmp_path / "log.jsonl")
    assert list(tmp_path.iterdir()) == []


async def test_the_story_of_a_hold_has_its_events(nats_client: Client, services: Services) -> None:
    """A success that cleared a strike, the strikes after it, the hold, and what was counted since: each with its
    sequence and its effect; plain successes are no part of it."""
    kinds: tuple[Kind, ...] = ("ok", "model_unavailable", "ok", "ok", "model_unavailable", "model_unavailable")
    for n, kind in enumerate((*kinds, "model_unavailable")):
        await publish_outcome(nats_client, TARGET, CallOutcome(kind=kind), replica=f"r{n % 2}")
    await settled(nats_client, services)
    steps = [(step.seq, step.what, step.effect.split(" until")[0]) for step in await trace(nats_client, TARGET.scope)]
    assert steps[:4] == [
        (2, "model_unavailable", "strike 1 of 2"),
        (3, "ok", "clears the strikes"),
        (5, "model_unavailable", "strike 1 of 2"),
        (6, "model_unavailable", "held by quarantine"),
    ]
    assert steps[4][:2] == (7, "model_unavailable") and len(steps) == 5


async def test_the_story_of_a_host_has_those_of_its_models(nats_client: Client, services: Services) -> None:
    """Asked about a host, the events of every model there are told, and an operator's act with its author."""
    for model in ("a", "b"):
        for replica in ("r1", "r2"):
            outcome = CallOutcome(kind="model_unavailable")
            await publish_outcome(nats_client, Target("h", model), outcome, replica=replica)
    await publish_outcome(nats_client, Target("other", "a"), CallOutcome(kind="model_unavailable"), replica="r1")
    await publish_override(nats_client, Scope("h"), "clear", reason="new models", actor="ana")
    await settled(nats_client, services)
    steps = await trace(nats_client, Scope("h"))
    assert [step.seq for step in steps] == [1, 2, 3, 4, 6]
    assert steps[-1].replica == "ana" and "ends every hold" in steps[-1].effect
