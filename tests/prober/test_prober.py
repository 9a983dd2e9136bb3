"""The prober (Rule 4.6) against HTTP servers that really answer, and services that really run."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from nats.aio.client import Client

from cli_runs import Serve, serve_fixture, sickbay  # noqa: F401 - a fixture is used by its name
from nats_servers import NatsServer
from sickbay.bus.jetstream import JetStreamApi
from sickbay.bus.topology import LOG
from sickbay.invalid import InvalidValue
from sickbay.prober.checks import SUSPICIOUS, UNPROVEN, probe_client, run_check
from sickbay.prober.prober import FoldFacts, Prober, probe_leases
from sickbay.prober.settings import Probe, ProbeSettings, ProbeTarget, has_usage, made_probe, read_probes
from sickbay_events import CallOutcome, Override, Policy, ProbeResult, Target
from sickbay_events.lease_wire import LeaseName, TrialAsk
from sickbay_projections import Fleet, Recorded
from upstream import OPENAI, USAGE, Upstream
from waiting import patience, until

MODEL: Final = "z-ai/glm-5.3"
NOT_FOUND: Final[dict[str, Any]] = {
    "error": {"message": f"The model `{MODEL}` does not exist", "code": "model_not_found"}
}
Start = Callable[..., Serve]


def probe_of(url: str, **more: Any) -> Probe:
    return made_probe(
        ProbeTarget(model=MODEL, base_url=url, provider="openrouter.ai", **more), ProbeSettings(limit_s=1.0)
    )


async def checked(probe: Probe) -> Any:
    async with probe_client() as http:
        return await run_check(http, probe)


# -- what a check proves ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "after_s", "level", "ok", "kind", "signature"),
    [
        (200, {**OPENAI, **USAGE}, 0.0, "readiness", True, "ok", None),
        (200, OPENAI, 0.03, "readiness", True, "ok", None),
        (200, {"status": "fine"}, 0.03, "liveness", True, "unknown", UNPROVEN),
        (404, NOT_FOUND, 0.0, "readiness", False, "model_unavailable", None),
        (500, {"error": {"message": "boom"}}, 0.0, "readiness", False, "server_error", None),
        (429, {"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}}, 0.0, "readiness", False,
         "rate_limited", None),
        (401, {"error": {"message": "Invalid API key", "code": "invalid_api_key"}}, 0.0, "liveness", True, "auth",
         None),
        (400, {"error": {"message": "max_tokens is too small", "type": "invalid_request_error"}}, 0.0, "liveness",
         True, "bad_request", None),
    ],
)  # fmt: skip
async def test_a_check_claims_no_more_than_it_proves(
    upstream: Upstream, status: int, body: Any, after_s: float, level: str, ok: bool, kind: str, signature: str | None
) -> None:
    """Ready is only what an upstream has generated; what is the probe's own fault says that the origin is live."""
    upstream.status, upstream.body, upstream.after_s = status, body, after_s
    found = await checked(probe_of(upstream.url))
    assert (found.level, found.ok, found.kind, found.status) == (level, ok, kind, status), found
    if signature is not None:
        assert found.signature == signature
    assert found.took_ms >= after_s * 1000


async def test_an_answer_that_no_upstream_can_have_given_so_fast_is_flagged(upstream: Upstream) -> None:
    """Under 10 ms and without token usage something in between has answered: live, and no more. With usage it is ready.

    A machine under load may need longer for it, so that it is tried several times.
    """
    upstream.body, upstream.after_s = OPENAI, 0.0
    for _ in range(50):
        found = await checked(probe_of(upstream.url))
        if found.signature == SUSPICIOUS:
            break
        assert found.level == "readiness" and found.took_ms >= 10
    assert (found.level, found.ok, found.kind, found.signature) == ("liveness", True, "unknown", SUSPICIOUS)
    event = found.event(probe_of(upstream.url), seen_seq=7, trial=[])
    assert (event.level, event.usage, event.signature) == ("liveness", False, SUSPICIOUS)
    upstream.body = {**OPENAI, **USAGE}
    assert (await checked(probe_of(upstream.url))).level == "readiness"


async def test_a_silent_upstream_is_a_timeout_and_a_closed_port_is_not_live(
    upstream: Upstream,
) -> None:
    """The limit is kept to; nobody at the port is the network's fault, in both
    levels."""
    upstream.after_s = 30.0
    found = await checked(probe_of(upstream.url, limit_s=0.2))
    assert (found.ok, found.kind) == (False, "timeout") and 200 <= found.took_ms < 1000
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        for level in ("readiness", "liveness"):
            probe = probe_of(f"http://127.0.0.1:{taken.getsockname()[1]}", level=level)
            found = await checked(probe)
            assert (found.level, found.ok, found.kind) == (level, False, "network")


async def test_liveness_asks_the_origin_without_a_key_and_takes_any_answer(
    upstream: Upstream,
) -> None:
    """Any answer but an error of its own: a 404 of the base URL is an origin that answers, a 503 is not."""
    probe = probe_of(upstream.url, level="liveness", headers={"X-Team": "a"})
    for status, ok in ((200, True), (404, True), (401, True), (503, False)):
        upstream.status = status
        found = await checked(probe)
        assert (found.level, found.ok) == ("liveness", ok)
    assert {(method, path) for method, path, *_ in upstream.asked} == {("GET", "/v1")}
    assert all("X-Team" not in headers for _, _, headers, _ in upstream.asked)


@pytest.mark.parametrize(
    ("family", "path", "where"),
    [
        ("openai-chat", "/v1/chat/completions", "max_tokens"),
        ("anthropic", "/v1/messages", "max_tokens"),
        ("gemini", "/v1/models/z-ai%2Fglm-5.3:generateContent", "generationConfig"),
        ("ollama", "/v1/api/chat", "options"),
    ],
)
async def test_each_family_asks_its_own_tiny_question(upstream: Upstream, family: Any, path: str, where: str) -> None:
    """Path, model, a bound on tokens and the header with its secret, as that API wants them."""
    one = ProbeTarget(
        model=MODEL, base_url=upstream.url, family=family, headers={"Authorization": "Bearer env:KEY"},
        body={"temperature": 0},
    )  # fmt: skip
    await checked(made_probe(one, ProbeSettings(), environ={"KEY": "sk-1234"}))
    ((method, asked, headers, body),) = upstream.asked
    assert (method, headers["Authorization"], body["temperature"]) == ("POST", "Bearer sk-1234", 0)
    assert asked in (path, path.replace("%2F", "/")) and where in body
    assert ("anthropic-version" in headers) == (family == "anthropic")
    assert body.get("model", MODEL) == MODEL and "OK" in json.dumps(body)


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        ({"usage": {"completion_tokens": 2}}, True),
        ({"usage": {"output_tokens": 2}}, True),
        ({"usageMetadata": {"totalTokenCount": 4}}, True),
        ({"eval_count": 3}, True),
        ({"usage": {"total_tokens": 0}}, False),
        ({"usage": None}, False),
        ({"usage": {"total_tokens": True}}, False),
        ([1], False),
    ],
)
def test_token_usage_is_a_count_above_zero(body: Any, usage: bool) -> None:
    assert has_usage(json.dumps(body).encode()) is usage
    assert not has_usage(b"no json")


# -- the file --------------------------------------------------------------------------------------------

GOOD: Final = """
[probe]
interval_s = 60
[[probe.target]]
model = "z-ai/glm-5.3"
base_url = "https://openrouter.ai/api/v1"
headers = { Authorization = "Bearer env:KEY" }
[[probe.target]]
provider = "localhost:11434"
model = "qwen4"
base_url = "http://localhost:11434"
family = "ollama"
interval_s = 5
"""


def test_a_file_of_targets() -> None:
    """Defaults come from [probe], the provider from the URL, and a loopback one gets the machine's name."""
    settings, (first, second) = read_probes(GOOD, machine="box-7", environ={"KEY": "k"})
    assert (settings.interval_s, settings.per_hour) == (60, 120)
    assert (first.target, first.interval_s) == (Target("openrouter.ai", MODEL), 60)
    assert (second.target, second.interval_s) == (Target("localhost:11434@box-7", "qwen4"), 5)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("[probe]", "[probes]", "probes"),
        ("interval_s = 60", "interval = 60", "probe"),
        ("interval_s = 60", "interval_s = 0", "probe.interval_s"),
        ("interval_s = 60", "per_hour = 0", "probe.per_hour"),
        ("interval_s = 5", "limit_s = 500", "probe.target[1].limit_s"),
        ('family = "ollama"', 'family = "olama"', "probe.target[1].family"),
        ('model = "qwen4"', 'model = ""', "probe.target[1].model"),
        ("https://openrouter.ai/api/v1", "openrouter.ai", "probe.target[0].base_url"),
        ("https://openrouter.ai/api/v1", "https://ana:hunter22@h/v1", "probe.target[0].base_url"),
        ("Bearer env:KEY", "Bearer env:MISSING", "probe.target[0].headers.Authorization"),
        ("Bearer env:KEY", "Bearer hunter22", "probe.target[0].headers.Authorization"),
        ("Authorization =", "X-Own =", ""),
        ('Authorization = "Bearer env:KEY"', 'X-Own = "sk-proj-4f9aK2mQx81LpZc7"', "probe.target[0].headers.X-Own"),
        ('model = "qwen4"', "model = ", "(file)"),
    ],
)
def test_a_bad_file_is_refused_with_the_key_and_never_a_secret(old: str, new: str, key: str) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    if not key:
        assert read_probes(text, environ={"KEY": "k"})
        return
    with pytest.raises(InvalidValue) as caught:
        read_probes(text, environ={"KEY": "k"})
    assert caught.value.what == key and caught.value.accepted
    assert "hunter22" not in str(caught.value) and "4f9aK2" not in str(caught.value)


def test_a_target_twice_is_refused() -> None:
    with pytest.raises(InvalidValue, match="each target once"):
        read_probes(GOOD + GOOD.replace("[probe]\ninterval_s = 60\n", ""), environ={"KEY": "k"})


# -- leases ----------------------------------------------------------------------------------------------

TARGET: Final = Target("openrouter.ai", MODEL)


def held_fleet(policy: Policy | None = None) -> Fleet:
    """A fleet in which the target is quarantined from 1,000 s on, for 600 s."""
    fleet = Fleet(policy or Policy())
    for seq in (1, 2):
        event = CallOutcome(kind="model_unavailable")
        fleet.apply(Recorded(event, target=TARGET, replica=f"r{seq}", seq=seq, time_ms=1_000_000))
    return fleet


def test_which_leases_a_probe_needs() -> None:
    """None before a hold wants its first trial and under an operator's; from then on the hold's; none where nothing is
    held, where an operator allows, and in shadow."""

    def wanted(fleet: Fleet, at_ms: int) -> list[LeaseName] | None:
        return probe_leases(TARGET, [fleet.entry(key) for key in TARGET.keys], at_ms)

    fleet = held_fleet()
    assert wanted(Fleet(), 1_000_000) == []
    assert wanted(fleet, 1_000_999) is None
    assert wanted(fleet, 1_001_000) == wanted(fleet, 1_599_999) == [LeaseName(TARGET.key, "quarantine", 2)]
    assert wanted(fleet, 1_600_000) == [LeaseName(TARGET.key, "quarantine", 2)]
    shadow = held_fleet(Policy.from_data({"shadow": {"all": True}}))
    assert wanted(shadow, 1_000_000) == wanted(shadow, 1_600_000) == []
    until_2031: dict[str, Any] = {"reason": "r", "actor": "ana", "until": "2031-01-01T00:00:00Z"}
    fleet.apply(Recorded(Override(action="allow", **until_2031), scope=TARGET.scope, seq=3, time_ms=1_000_001))
    assert wanted(fleet, 1_000_002) == []
    fleet.apply(Recorded(Override(action="hold", **until_2031), scope=TARGET.scope, seq=4, time_ms=1_000_003))
    assert wanted(fleet, 1_000_004) is None


# -- with services ---------------------------------------------------------------------------------------


async def probes_in(client: Client) -> list[dict[str, Any]]:
    """The probe results that the log has, oldest first."""
    api, seq, found = JetStreamApi(client, timeout_s=patience(5)), 1, []
    while (message := await api.message_at(LOG, seq, or_next=True, subject="sickbay.probe.>")) is not None:
        found.append({"seq": message.seq, **json.loads(message.payload)})
        seq = message.seq + 1
    return found


def file_for(tmp_path: Path, upstream: Upstream, interval_s: float = 1.0, **probe: Any) -> str:
    path = tmp_path / "probes.toml"
    head = "".join(f"{key} = {value}\n" for key, value in probe.items())
    path.write_text(
        f'[probe]\ninterval_s = {interval_s}\n{head}[[probe.target]]\nprovider = "openrouter.ai"\n'
        f'model = "{MODEL}"\nbase_url = "{upstream.url}"\n'
    )
    return str(path)


async def run(*arguments: str, code: int = 0) -> str:
    done = await asyncio.to_thread(sickbay, *arguments)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


async def test_services_probe_what_nobody_calls_and_leave_alone_what_is_called(
    nats_server: NatsServer, nats_client: Client, upstream: Upstream, tmp_path: Path, serve: Start
) -> None:
    """A silent target is probed every interval and its results are in the log; while calls are reported it is not."""
    url = nats_server.url
    serve("--nats", url, "--probes", file_for(tmp_path, upstream)).ready()

    async def two() -> list[dict[str, Any]] | None:
        found = await probes_in(nats_client)
        return found if len(found) >= 2 else None

    first, second = (await until(two, "two probes"))[:2]
    assert (first["level"], first["ok"], first["kind"], first["usage"]) == ("readiness", True, "ok", True)
    assert first["interval_s"] == 1.0 and first["limit_ms"] == 20_000 and "trial" not in first
    assert first["id"].partition("-")[0] == second["id"].partition("-")[0] and second["id"].endswith("-2")
    before = upstream.ready
    loop, began_s = asyncio.get_running_loop(), asyncio.get_running_loop().time()
    while loop.time() < began_s + 3.0:
        await run("report", "openrouter.ai", MODEL, "-k", "ok", "--nats", url)
        await asyncio.sleep(0.2)
    assert upstream.ready <= before + 1, "one may have been on its way when the first call was reported"

    async def again() -> bool:
        return upstream.ready > before + 1

    await until(again, "when the calls end it is probed again")


async def test_a_probe_of_a_held_target_is_its_trial(
    nats_server: NatsServer, nats_client: Client, upstream: Upstream, tmp_path: Path, serve: Start
) -> None:
    """Nothing is asked before a trial of the hold is wanted; then the probe takes the lease that any trial takes,
    waits while another one has it, and its success ends the hold."""
    url, policy = nats_server.url, tmp_path / "policy.toml"
    policy.write_text("[rejections]\nhold_s = 60\nfirst_s = 3\n")
    served = serve("--nats", url, "--policy", str(policy)).ready()
    for name in ("r1", "r2"):
        await run("report", "openrouter.ai", MODEL, "-k", "model_unavailable", "--replica", name, "--nats", url)

    async def hold() -> Any:
        found = json.loads(await run("status", "--json", "--nats", url))["scopes"]
        return found and found[0]["holds"][0]

    began_seq = (await until(hold, "the hold"))["began_seq"]
    file = file_for(tmp_path, upstream, 1.0)
    text = await run("probe", "openrouter.ai", MODEL, "--file", file, "--nats", url, code=1)
    assert "wants no trial now" in text and upstream.ready == 0

    async def trial_is_wanted() -> bool:
        return bool((await hold())["trial_from_ms"] <= time.time() * 1000)

    await until(trial_is_wanted, "the moment of its first trial")
    lease = LeaseName(TARGET.key, "quarantine", began_seq)
    ask = TrialAsk(replica="r9", provider=TARGET.provider, model=MODEL, leases=[lease], token="other", limit_ms=1_000)
    granted = await nats_client.request("sickbay.v1.trial", msgspec.json.encode(ask), timeout=patience(5))
    assert json.loads(granted.data)["granted"]
    text = await run("probe", "openrouter.ai", MODEL, "--file", file, "--nats", url, code=1)
    assert "another one's" in text and upstream.ready == 0
    assert (await asyncio.to_thread(served.end))[0] == 0

    serve("--nats", url, "--probes", file).ready()

    async def probed() -> Any:
        return await probes_in(nats_client)

    (result,) = await until(probed, "the lease of the other one runs out, and the target is probed")
    assert result["trial"] == [{"rule": "quarantine", "began_seq": began_seq}] and result["ok"]

    async def lifted() -> bool:
        return not json.loads(await run("status", "--json", "--nats", url))["scopes"][0]["holds"]

    await until(lifted, "its success ends the hold")


async def test_services_end_while_a_probe_is_under_way(
    nats_server: NatsServer, upstream: Upstream, tmp_path: Path, serve: Start
) -> None:
    """A signal ends them at once and without a word of error, whatever a slow upstream still owes."""
    upstream.after_s = 30.0
    served = serve("--nats", nats_server.url, "--probes", file_for(tmp_path, upstream)).ready()
    assert "1 targets" in served.said

    async def asked() -> bool:
        return bool(upstream.ready)

    await until(asked, "the probe is under way")
    code, errors = await asyncio.to_thread(served.end)
    assert (code, "ERROR" in errors, "Traceback" in errors) == (0, False, False), errors


async def test_the_allowance_of_an_hour_is_kept_to(upstream: Upstream, nats_client: Client) -> None:
    """With three probes allowed and an interval of milliseconds, three are made; the rest is counted."""
    fleet, clock = Fleet(), asyncio.get_running_loop()
    prober = Prober(
        ProbeSettings(per_hour=3),
        [probe_of(upstream.url)._replace(interval_s=0.02)],
        replica="r1",
        facts=FoldFacts(lambda: fleet, lambda: round(clock.time() * 1000)),
        is_active=lambda: True,
        client=lambda: nats_client,
    )
    task = asyncio.create_task(prober.run())

    async def refused() -> bool:
        return prober.counts["no_allowance"] >= 3

    await until(refused, "the allowance is spent")
    task.cancel()
    await asyncio.wait([task])
    assert upstream.ready == 3 and prober.counts["passed"] == 3


async def test_only_the_process_that_writes_probes(upstream: Upstream, nats_client: Client) -> None:
    """A standby makes no probe until it is its turn."""
    is_active, clock = False, asyncio.get_running_loop()
    prober = Prober(
        ProbeSettings(),
        [probe_of(upstream.url)],
        replica="r1",
        facts=FoldFacts(Fleet, lambda: round(clock.time() * 1000)),
        is_active=lambda: is_active,
        client=lambda: nats_client,
    )
    task = asyncio.create_task(prober.run())
    await asyncio.sleep(0.3)
    assert not upstream.asked
    is_active = True

    async def asked() -> bool:
        return bool(upstream.asked)

    await until(asked, "its turn")
    task.cancel()
    await asyncio.wait([task])


async def test_doctor_names_targets_of_which_only_the_origin_is_known(
    nats_server: NatsServer, upstream: Upstream, serve: Start
) -> None:
    """A liveness check makes a target `live`, which doctor lists with what to do; a readiness check takes it out."""
    url = nats_server.url
    serve("--nats", url).ready()
    await run("probe", f"{upstream.url}#a", MODEL, "--level", "liveness", "--nats", url)

    async def found() -> list[dict[str, Any]]:
        findings = json.loads(await run("doctor", "--json", "--nats", url))["findings"]
        return [one for one in findings if one["what"] == "health"]

    (finding,) = await until(found, "the finding")
    assert f"#a {MODEL}" in finding["found"] and "readiness" in finding["do"] and finding["level"] == "note"
    assert "upstream unverified" in await run("status", "--all", "--nats", url)
    await run("probe", f"{upstream.url}#a", MODEL, "--nats", url)

    async def gone() -> bool:
        return not await found()

    await until(gone, "it is verified")


def test_who_only_probes_is_no_replica_of_the_fleet() -> None:
    """A prober beside one router leaves it a fleet of one: three refusals of its key hold the credential."""
    fleet = Fleet()
    target = Target("openrouter.ai#team-a", MODEL)
    fleet.apply(Recorded(ProbeResult(level="readiness", ok=True), target=target, replica="p", seq=1, time_ms=10**6))
    for seq in (2, 3, 4):
        fleet.apply(Recorded(CallOutcome(kind="auth"), target=target, replica="r1", seq=seq, time_ms=10**6 + seq))
    assert fleet.replicas(10**6 + 5) == 1
    assert fleet.decide(target, 10**6 + 5).reason == "credential"


# -- the command -----------------------------------------------------------------------------------------


async def test_the_command_says_what_a_probe_proves(upstream: Upstream) -> None:
    """Ready, live or neither in words, as facts, and in the exit code; without NATS if that is wished."""
    by = ("--no-report", "-H", "X-Team: a")
    told = await run("probe", upstream.url, MODEL, *by)
    assert "ready: an upstream really answers, with token usage" in told
    facts = json.loads(await run("probe", upstream.url, MODEL, *by, "--json"))
    assert (facts["level"], facts["ok"], facts["asked"], facts["seq"]) == ("readiness", True, "readiness", None)
    upstream.body = {"status": "fine"}
    told = await run("probe", upstream.url, MODEL, *by, code=1)
    assert "live: the origin answers; nothing is proved of the model" in told and "token usage" in told
    assert "live: the origin" in await run("probe", upstream.url, MODEL, *by, "--level", "liveness")
    upstream.status, upstream.body = 404, NOT_FOUND
    assert "not ready: model_unavailable" in await run("probe", upstream.url, MODEL, *by, code=1)
    assert "base URL" in await run("probe", "openrouter.ai", MODEL, *by, code=2)
    assert "env:NAME" in await run("probe", upstream.url, MODEL, "-H", "Authorization: Bearer x", code=2)


async def test_the_command_puts_its_result_into_the_log(
    nats_server: NatsServer, nats_client: Client, upstream: Upstream, serve: Start
) -> None:
    """With NATS the result is an event like any other probe's, and says what was seen before it."""
    serve("--nats", nats_server.url).ready()
    facts = json.loads(await run("probe", upstream.url, MODEL, "--nats", nats_server.url, "--json"))
    (event,) = await probes_in(nats_client)
    assert event["seq"] == facts["seq"] and event["ok"] and event["level"] == "readiness" and "interval_s" not in event
