"""Trials as routers take them: one at a time in the fleet, proof at once, nothing stuck, no herd (Rule 5.2)."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import Context
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import past_rig
import sickbay
import sickbay.sync
import sickbay.testing
from nats_servers import NatsCluster, NatsServer
from sickbay import Held, Sickbay, Target
from sickbay.router import trials
from sickbay.service.services import Services
from sickbay_events import CallAnswered, CallOutcome, CallsRefused
from sickbay_events.outcome import Lease
from waiting import patience, until

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")
DEAD = json.dumps({"error": {"message": "No endpoints found for z-ai/glm-5.3.", "code": 404}}).encode()
GOOD = json.dumps({"choices": [{"message": {"content": "A good answer."}, "finish_reason": "stop"}]}).encode()
JSON = {"content-type": "application/json"}
HOLD_S = 1.0


@pytest.fixture(autouse=True)
def services_have_time_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that gets no answer grants itself a trial, which on a slow machine would be all of them."""
    monkeypatch.setattr(trials, "ASK_S", patience(trials.ASK_S))


@asynccontextmanager
async def serving(
    url: str, folder: Path, policy: dict[str, Any] | None = None, copies: int = 1
) -> AsyncIterator[Services]:
    """Services whose holds are short."""
    path = folder / "policy.toml"
    data = policy if policy is not None else {"rejections": {"hold_s": HOLD_S}}
    sections = [f"[{name}]\n" + "\n".join(f"{key} = {value}" for key, value in of.items()) for name, of in data.items()]
    path.write_text("\n".join(sections))
    async with past_rig.services(url, "box-1", policy=str(path), stream_replicas=copies) as running:
        yield running


@asynccontextmanager
async def fleet(url: str, count: int) -> AsyncIterator[list[Sickbay]]:
    async with AsyncExitStack() as stack:
        routers = [await stack.enter_async_context(sickbay.connect(url, replica=f"r{n}")) for n in range(count)]
        for router in routers:
            assert await router.ready(patience(10))
            await until(lambda router=router: router.mirror.policy_seq > 0)  # type: ignore[misc]
        yield routers


async def reject(sb: Sickbay) -> None:
    """One call that says the model is not there."""
    async with sb.attempt(TARGET, limit_s=1) as attempt:
        attempt.response(404, JSON, DEAD)


async def answered_trial(sb: Sickbay) -> bool:
    """Whether a call got a trial, and its good answer is told."""
    try:
        async with sb.attempt(TARGET, limit_s=1) as attempt:
            assert attempt.trial
            attempt.response(200, JSON, GOOD)
    except Held as held:
        assert held.decision.reason == "trial_taken"
        return False
    return True


async def clean_stream(sb: Sickbay, idle: Sickbay) -> bool:
    """Whether a stream got the trial, kept it from the idle replica past its first content, and ended well."""
    try:
        async with sb.attempt(TARGET, limit_s=60, stream=True) as attempt:
            attempt.first_content()
            with pytest.raises(Held) as held:
                await idle.attempt(TARGET).__aenter__()
            assert held.value.decision.reason == "trial_taken"
            attempt.output("A good answer.", finish_reason="stop", status=200)
    except Held:
        return False
    return True


async def on_probation(routers: list[Sickbay]) -> int:
    """Quarantine the target by two replicas and wait for the end; the hold's name."""
    await reject(routers[0])
    await reject(routers[-1])
    await until(lambda: all(TARGET.key in router.mirror.entries for router in routers))
    for router in routers:
        await until(lambda router=router: router.decide(TARGET).allowed)  # type: ignore[misc]
        assert router.decide(TARGET).trial
    return routers[0].mirror.entries[TARGET.key].holds[0].began_seq


async def test_of_eight_replicas_one_makes_the_trial(nats_server: NatsServer, tmp_path: Path) -> None:
    """The others are denied with `trial_taken` and the time left; the outcome names its lease and frees all."""
    async with serving(nats_server.url, tmp_path) as services, fleet(nats_server.url, 8) as routers:
        began_seq = await on_probation(routers)
        inside, denied, done = [], [], asyncio.Event()

        async def call(router: Sickbay) -> None:
            try:
                async with router.attempt(TARGET, limit_s=30) as attempt:
                    inside.append(attempt)
                    await done.wait()
                    attempt.response(200, JSON, GOOD)
            except Held as held:
                denied.append(held)
                if len(denied) == 7:
                    done.set()

        async with asyncio.timeout(patience(10)):
            await asyncio.gather(*[call(router) for router in routers])
        (attempt,) = inside
        assert attempt.outcome is not None and attempt.outcome.trial == [Lease("quarantine", began_seq)]
        assert attempt.outcome.seen_seq is not None and attempt.outcome.seen_seq >= began_seq
        assert {(held.decision.reason, held.decision.rule) for held in denied} == {("trial_taken", "quarantine")}
        assert all(30 < held.retry_in_s <= 35.1 for held in denied)
        await until(lambda: all(not router.decide(TARGET).trial for router in routers))
        assert services.projector is not None and not list(services.projector.fleet.entry(TARGET.key).holds)  # type: ignore[union-attr]


class Provider:
    """Counts the calls that reach it."""

    def __init__(self) -> None:
        self.calls = self.now = self.most = 0
        self.recovered = False

    async def call(self, router: Sickbay, took_s: float = 0.05, **options: Any) -> str:
        """One call through a router's gate: `held`, `good` or `dead`."""
        try:
            async with router.attempt(TARGET, limit_s=1, **options) as attempt:
                self.calls += 1
                self.now += 1
                self.most = max(self.most, self.now)
                try:
                    await asyncio.sleep(took_s)
                finally:
                    self.now -= 1
                if self.recovered:
                    attempt.response(200, JSON, GOOD)
                    return "good"
                attempt.response(404, JSON, DEAD)
                return "dead"
        except Held:
            return "held"


async def herd(url: str, folder: Path, copies: int) -> None:
    async with serving(url, folder, copies=copies), fleet(url, 8) as routers:
        await on_probation(routers)
        provider, stop = Provider(), asyncio.Event()

        async def busy(router: Sickbay) -> None:
            while not stop.is_set():
                if await provider.call(router) == "held":
                    await asyncio.sleep(0.002)

        tasks = [asyncio.create_task(busy(router)) for router in routers for _ in range(2)]
        # Two trials, one after the other, and it is held again; after its end two more.
        names: set[int] = set()

        def holds_seen() -> int:
            names.update(hold.began_seq for hold in routers[0].mirror.entries[TARGET.key].holds)
            return len(names)

        await until(lambda: holds_seen() >= 3, "nothing is stuck half-open")
        dead_calls, most_dead, holds = provider.calls, provider.most, holds_seen()
        provider.recovered = True
        await until(lambda: provider.calls > dead_calls + 50, "it is called again after its recovery")
        stop.set()
        await asyncio.gather(*tasks)
        assert most_dead == 1, "one trial at a time in the fleet"
        assert dead_calls <= 2 * holds, "each probation costs the two strikes that begin the next hold"


async def test_no_herd_and_nothing_stuck_on_one_server(nats_server: NatsServer, tmp_path: Path) -> None:
    """Sixteen busy callers on eight replicas: one call at a time while it is dead, and it comes back for all."""
    await herd(nats_server.url, tmp_path, 1)


async def test_no_herd_and_nothing_stuck_on_a_cluster(nats_cluster: NatsCluster, tmp_path: Path) -> None:
    """The same on three nodes."""
    await herd(nats_cluster.url, tmp_path, 3)


@pytest.mark.parametrize("end", ["neutral", "cancelled", "raised"])
async def test_what_tells_nothing_gives_the_lease_back_at_once(
    nats_server: NatsServer, tmp_path: Path, end: str
) -> None:
    """A caller's own error, a cancellation and an error of the caller's code leave no lease behind."""
    async with serving(nats_server.url, tmp_path), fleet(nats_server.url, 2) as (one, other):
        await on_probation([one, other])
        entered = asyncio.Event()

        async def call() -> None:
            async with one.attempt(TARGET, limit_s=60) as attempt:
                entered.set()
                assert attempt.trial
                if end == "neutral":
                    attempt.response(400, JSON, b'{"error":{"message":"messages: field required","code":400}}')
                elif end == "raised":
                    raise KeyError("own code")
                else:
                    await asyncio.sleep(60)

        task = asyncio.create_task(call())
        await entered.wait()
        task.cancel()
        await asyncio.wait([task])
        await until(partial(answered_trial, other), "the lease of 65 s was given back")


async def test_a_stream_proves_itself_at_its_first_content(nats_server: NatsServer, tmp_path: Path) -> None:
    """The hold is lifted while the stream still runs, and others call; its end is no second trial."""
    async with serving(nats_server.url, tmp_path), fleet(nats_server.url, 2) as (one, other):
        began_seq = await on_probation([one, other])
        async with one.attempt(TARGET, limit_s=600, stream=True) as attempt:
            with pytest.raises(Held):
                await other.attempt(TARGET).__aenter__()
            attempt.first_content()
            attempt.first_content()
            await until(lambda: not other.decide(TARGET).trial)
            async with other.attempt(TARGET) as second:
                second.response(200, JSON, GOOD)
            attempt.output("A good answer.", finish_reason="stop", status=200)
        assert attempt.outcome is not None and attempt.outcome.trial == [Lease("quarantine", began_seq)]
        await until(lambda: one.reporter.counts.acked == 3)  # the rejection, the first content, the outcome


async def test_the_first_content_of_a_degraded_holds_trial_proves_nothing(nats_server: NatsServer) -> None:
    """Degraded output is judged at the end: no CallAnswered names its lease, and the lease is kept till then."""
    sb = sickbay.testing.standalone()
    sb.hold(TARGET, for_s=1, rule="degraded")
    sb.advance(2)
    async with sb.attempt(TARGET, limit_s=60, stream=True) as attempt:
        attempt.first_content()
        assert sb.recorded == []
        with pytest.raises(Held) as held:  # of another caller: inside this attempt it would be the attempt itself
            await asyncio.create_task(sb.attempt(TARGET).__aenter__(), context=Context())
        assert held.value.decision.reason == "trial_taken"
        attempt.output("A good answer.", finish_reason="stop", status=200)
    ((_, outcome),) = sb.recorded
    assert isinstance(outcome, CallOutcome) and outcome.trial == [Lease("degraded", 1)]


async def test_under_two_holds_the_first_content_frees_the_breaker_alone() -> None:
    """Leases of both are taken together; the first content names the breaker's, the end both."""
    sb = sickbay.testing.standalone()
    sb.hold(TARGET.provider, for_s=1, rule="breaker")
    sb.hold(TARGET, for_s=1, rule="degraded")
    sb.advance(2)
    async with sb.attempt(TARGET, limit_s=60, stream=True) as attempt:
        assert attempt.trial == [Lease("breaker", 1), Lease("degraded", 2)], "widest first"
        attempt.first_content()
        attempt.output("A good answer.", finish_reason="stop", status=200)
    (_, answered), (_, outcome) = sb.recorded
    assert isinstance(answered, CallAnswered) and answered.trial == [Lease("breaker", 1)]
    assert isinstance(outcome, CallOutcome) and outcome.trial == [Lease("breaker", 1), Lease("degraded", 2)]


async def test_degraded_output_is_released_by_three_streams_judged_at_their_ends(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """One at a time, each holding its lease past its first content; the third clean one releases it (Rule 4.4)."""
    policy = {"degraded": {"consecutive": 2, "first_s": HOLD_S, "hold_s": HOLD_S}}
    async with serving(nats_server.url, tmp_path, policy), fleet(nats_server.url, 2) as (one, other):
        for router in (one, other):
            async with router.attempt(TARGET) as attempt:
                attempt.output("", finish_reason="stop", status=200)
        await until(lambda: all(router.decide(TARGET).reason == "degraded" for router in (one, other)))
        for turn, (router, idle) in enumerate([(one, other), (other, one), (one, other)]):
            await until(lambda router=router: router.decide(TARGET).trial and router.decide(TARGET).allowed)  # type: ignore[misc]
            await until(partial(clean_stream, router, idle), "its turn")
            assert turn == 2 or idle.decide(TARGET).trial, "not before the third"
        await until(lambda: not one.decide(TARGET).trial and not other.decide(TARGET).trial)


async def test_a_lease_is_renewed_while_its_call_runs(nats_server: NatsServer, tmp_path: Path) -> None:
    """A call that takes six seconds longer than its limit of one still has its lease; afterwards it is free."""
    async with serving(nats_server.url, tmp_path), fleet(nats_server.url, 2) as (one, other):
        await on_probation([one, other])
        async with one.attempt(TARGET, limit_s=1) as attempt:
            await asyncio.sleep(6.5)
            assert one.trials.counts["renewed"] >= 2
            with pytest.raises(Held) as held:
                await other.attempt(TARGET).__aenter__()
            assert held.value.decision.reason == "trial_taken"
            attempt.response(200, JSON, GOOD)
        await until(lambda: not other.decide(TARGET).trial)


HOLDER = """
import asyncio, sys
import sickbay
from sickbay import Target
async def main():
    async with sickbay.connect(sys.argv[1], replica="doomed") as sb:
        assert await sb.ready(60)
        async with sb.attempt(Target(*sys.argv[2:4]), limit_s=1) as attempt:
            print(attempt.trial, flush=True)
            await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_a_killed_holder_blocks_nobody_for_long(nats_server: NatsServer, tmp_path: Path) -> None:
    """SIGKILL in the middle of a trial: another replica has it after the limit plus 5 s at the latest."""
    async with serving(nats_server.url, tmp_path), fleet(nats_server.url, 2) as (one, other):
        await on_probation([one, other])
        command = [sys.executable, "-c", HOLDER, nats_server.url, TARGET.provider, TARGET.model]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            said = await asyncio.wait_for(process.stdout.readline(), patience(20))
            assert b"quarantine" in said
            with pytest.raises(Held):
                await other.attempt(TARGET).__aenter__()
            process.send_signal(signal.SIGKILL)
            await until(partial(answered_trial, other), "it is free after the limit and 5 s", within_s=1 + 5 + 1)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_without_services_a_replica_grants_itself_one_at_its_own_moment(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """Silence costs an attempt at most 0.25 s; each replica tries once in a span, at different moments, and says
    `local`."""
    policy = {"rejections": {"hold_s": HOLD_S}, "trials": {"self_grant_s": 2.0}}
    async with AsyncExitStack() as stack:
        async with serving(nats_server.url, tmp_path, policy):
            routers = await stack.enter_async_context(fleet(nats_server.url, 4))
            await on_probation(routers)
        provider, sources, moments = Provider(), [], []
        waits: list[float] = []
        end_s = time.monotonic() + 4.5

        async def busy(router: Sickbay) -> None:
            while time.monotonic() < end_s:
                began_s = time.monotonic()
                try:
                    async with router.attempt(TARGET, limit_s=1) as attempt:
                        waits.append(time.monotonic() - began_s)
                        assert attempt.decision is not None
                        sources.append(attempt.decision.source)
                        moments.append((time.monotonic(), router))
                        attempt.error(KeyError("tells nothing"))
                except Held as held:
                    waits.append(time.monotonic() - began_s)
                    assert held.decision.reason == "trial_taken" and 0 < held.retry_in_s <= 2.0
                await asyncio.sleep(0.01)

        await asyncio.gather(*[busy(router) for router in routers])
        assert provider.calls == 0 and set(sources) == {"local"}
        for router in routers:
            own = [at_s for at_s, who in moments if who is router]
            assert 1 <= len(own) <= 3, f"{len(own)} in two spans"
            assert all(later - sooner > 1.75 for sooner, later in pairwise(own))
        assert max(waits) < patience(0.35)
        first = sorted(min(at_s for at_s, who in moments if who is router) for router in routers)
        # A loaded machine may run two moments together that lie close; all four together would be the herd.
        assert first[-1] - first[0] > 0.25, "staggered"


async def test_the_facade_for_threads_takes_leases_too(nats_server: NatsServer, tmp_path: Path) -> None:
    """Two threaded replicas: one has the trial, the other is denied, and its success frees both."""
    async with serving(nats_server.url, tmp_path), fleet(nats_server.url, 2) as (one, other):
        began_seq = await on_probation([one, other])
        threads = [sickbay.sync.connect(nats_server.url, replica=f"t{n}") for n in range(2)]
        try:
            for sb in threads:
                assert await asyncio.to_thread(sb.ready, patience(10))
            entered, leave = threading.Event(), threading.Event()

            def hold() -> CallOutcome | None:
                with threads[0].attempt(TARGET, limit_s=30) as attempt:
                    entered.set()
                    assert leave.wait(patience(10))
                    attempt.response(200, JSON, GOOD)
                return attempt.outcome

            def denied() -> Held:
                with pytest.raises(Held) as held, threads[1].attempt(TARGET, limit_s=30):
                    pass
                return held.value

            holding = asyncio.create_task(asyncio.to_thread(hold))
            assert await asyncio.to_thread(entered.wait, 10)
            held = await asyncio.to_thread(denied)
            assert held.decision.reason == "trial_taken" and 20 < held.retry_in_s <= 35.1
            leave.set()
            outcome = await holding
            assert outcome is not None and outcome.trial == [Lease("quarantine", began_seq)]
            await until(lambda: not threads[1].decide(TARGET).trial and not one.decide(TARGET).trial)
        finally:
            for sb in threads:
                await asyncio.to_thread(sb.close)


async def test_a_dead_model_costs_one_call_for_each_trial(nats_server: NatsServer, tmp_path: Path) -> None:
    """Sixteen callers on eight replicas, each answer after 0.2 s: three trials 1 s apart, one at a time, then at
    doubling distances (Rule 4.0)."""
    async with serving(nats_server.url, tmp_path, {}), fleet(nats_server.url, 8) as routers:
        await reject(routers[0])
        await reject(routers[1])
        await until(lambda: all(not router.decide(TARGET).allowed for router in routers))
        provider = Provider()
        names: dict[int, int] = {}
        end_s = time.monotonic() + 6.0

        async def busy(router: Sickbay) -> None:
            while time.monotonic() < end_s:
                for hold in router.mirror.entries[TARGET.key].holds:
                    names[hold.began_seq] = hold.n
                if await provider.call(router, took_s=0.2) == "held":
                    await asyncio.sleep(0.005)

        await asyncio.gather(*[busy(router) for router in routers for _ in range(2)])
        assert provider.most == 1, "one trial at a time in the fleet"
        assert sorted(names.values()) == list(range(1, len(names) + 1)), "each failed trial begins it again, once"
        assert 2 <= provider.calls <= 4, "after 1, 2, 3 and 5 s"
        assert provider.calls in (len(names) - 1, len(names))


async def frozen(services: Services) -> None:
    """The fold stands still from now on, while leases are still given: what a slow projector looks like."""
    assert services.projector is not None and services._fold is not None
    services.projector.stop()
    await asyncio.wait([services._fold], timeout=patience(10))


async def test_a_trial_that_told_something_keeps_its_lease_until_the_view_has_heard(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """Given back at once, it would be another's before the hold has begun again; but nothing waits for ever."""
    async with serving(nats_server.url, tmp_path) as services, fleet(nats_server.url, 2) as (one, other):
        await on_probation([one, other])
        await frozen(services)
        await reject(one)
        over_s = time.monotonic()
        await until(partial(answered_trial, other), "the lease is given back")
        assert 1.5 < time.monotonic() - over_s < patience(4)


@pytest.mark.parametrize("status", [404, 400])
async def test_after_a_trial_before_the_end_nobody_makes_the_next_before_he_has_heard(
    nats_server: NatsServer, tmp_path: Path, status: int
) -> None:
    """While the view still says that one is wanted the lease is kept, by a rejected trial and by one that tells
    nothing, which moves the next one out too; but not for ever."""
    async with serving(nats_server.url, tmp_path, {}) as services, fleet(nats_server.url, 2) as routers:
        one, two = routers
        await reject(one)
        await reject(two)
        await until(lambda: all(router.decide(TARGET).trial for router in routers))
        await frozen(services)
        async with two.attempt(TARGET, limit_s=1) as attempt:
            assert attempt.trial
            attempt.response(status, JSON, DEAD if status == 404 else b'{"error":{"message":"messages: required"}}')
        provider, over_s = Provider(), time.monotonic()
        while await provider.call(one) == "held":
            assert one.decide(TARGET).trial, "it is the lease that denies it, not the view"
            await asyncio.sleep(0.02)
        assert 1.5 < time.monotonic() - over_s < patience(4)


async def test_a_long_throttle_is_tried_every_so_often(nats_server: NatsServer, tmp_path: Path) -> None:
    """A spent allowance for an hour wants one leased trial in each span; what it says moves the next one out, and an
    answer ends the hold."""
    policy = {"throttles": {"quota_trial_max_s": 1.5, "first_s": 1.5}}
    spent = json.dumps({"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}).encode()
    # Three, since a fleet of four has a ramp after it.
    async with serving(nats_server.url, tmp_path, policy), fleet(nats_server.url, 3) as routers:

        async def call(router: Sickbay, *, good: bool) -> bool:
            try:
                async with router.attempt(TARGET, limit_s=1) as attempt:
                    if good:
                        attempt.response(200, JSON, GOOD)
                    else:
                        attempt.response(429, {**JSON, "retry-after": "3600"}, spent)
                    return True
            except Held:
                return False

        assert await call(routers[0], good=False)
        await until(lambda: all(not router.decide(TARGET).allowed for router in routers))
        decision = routers[1].decide(TARGET)
        assert decision.reason == "throttled" and decision.retry_in_s <= 1.5 and not decision.trial
        for _ in range(2):
            told_s = time.monotonic()
            while not (trials := sum(await asyncio.gather(*[call(router, good=False) for router in routers]))):
                await asyncio.sleep(0.02)
            assert trials == 1 and time.monotonic() - told_s > 1.2
        await until(lambda: any(router.decide(TARGET).trial for router in routers))
        while not any(await asyncio.gather(*[call(router, good=True) for router in routers])):
            await asyncio.sleep(0.02)
        await until(lambda: all(router.decide(TARGET).allowed for router in routers))


async def test_a_mistaken_quarantine_lasts_one_call(nats_server: NatsServer, tmp_path: Path) -> None:
    """An early trial that is answered lifts the hold for everyone; who is denied it hears of the hold itself."""
    async with serving(nats_server.url, tmp_path, {}), fleet(nats_server.url, 3) as (one, two, three):
        await reject(one)
        await reject(two)
        await until(lambda: three.decide(TARGET).trial and two.decide(TARGET).trial)
        decision = three.decide(TARGET)
        assert (decision.allowed, decision.reason) == (False, "quarantined")
        async with three.attempt(TARGET) as attempt:
            with pytest.raises(Held) as held:
                await two.attempt(TARGET).__aenter__()
            assert held.value.decision.reason == "quarantined" and held.value.retry_in_s > 590
            attempt.response(200, JSON, GOOD)
        await until(lambda: all(router.decide(TARGET).allowed for router in (one, two, three)))


async def test_what_holds_keep_away_is_reported(nats_server: NatsServer, tmp_path: Path) -> None:
    """One event for target and rule with the count, at the end of the minute or at the close; never two at once."""
    async with serving(nats_server.url, tmp_path, {}) as services, fleet(nats_server.url, 2) as (one, other):
        await reject(one)
        await reject(other)
        await until(lambda: not one.decide(TARGET).allowed and TARGET.key in one.mirror.entries)
        before = one.gate.counts["denied"]
        one._report_denials()
        for _ in range(70):
            one.decide(TARGET)
        with pytest.raises(Held):
            await one.attempt(TARGET).__aenter__()
        assert one.gate.counts["denied"] == before + 71
        await one.close()
        client = other.link.client if other.link is not None else None
        assert client is not None and services.projector is not None
        found = []
        info = await client.jetstream().stream_info("SICKBAY_LOG")
        for seq in range(1, info.state.last_seq + 1):
            message = await client.jetstream().get_msg("SICKBAY_LOG", seq)
            body = json.loads(message.data or b"{}")
            if body.get("type") == "refused":
                found.append((message.subject, body["rule"], body["count"]))
                assert body["minute"].endswith(":00.000Z"), body
        subject = f"sickbay.outcome.r0.{TARGET.key}"
        assert found == [(subject, "quarantine", before), (subject, "quarantine", 71)]


async def test_refusals_are_told_when_the_minute_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate's own timer reports them, without anybody asking and only where there were some."""
    monkeypatch.setattr("sickbay.router.client.MINUTE_S", 1)
    async with sickbay.testing.standalone() as sb:
        sb.hold(TARGET)
        for _ in range(3):
            sb.decide(TARGET)
        await until(lambda: sb.recorded)
        await asyncio.sleep(1.1)
        ((target, event),) = sb.recorded
        assert target == TARGET and isinstance(event, CallsRefused)
        assert (event.count, event.rule) == (3, "quarantine")


def test_a_trial_by_a_plain_with_has_one_holder_in_its_process() -> None:
    """Without an event loop and services a second `with` is denied while the first one runs; neutral frees it."""
    sb = sickbay.testing.standalone()
    sb.hold(TARGET, for_s=1)
    sb.advance(2)
    with sb.attempt(TARGET) as attempt:
        assert attempt.trial == [Lease("quarantine", 1)]
        with pytest.raises(Held) as held:
            Context().run(sb.attempt(TARGET).__enter__)
        assert held.value.decision.reason == "trial_taken" and held.value.retry_in_s == 65.0
        attempt.error(KeyError("own code"))
    with sb.attempt(TARGET) as attempt:
        assert attempt.trial
