"""What each role may not do, on a server as `sickbay nats-config` sets it up: refused at once, with the subject."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_runs import CLEAN
from secured_nats import SecuredNats, acting, serving
from sickbay.bus.entries import read_entries
from sickbay.bus.topology import CONTROL, GATE_STREAM, LOG, TRANSITIONS
from sickbay.control.acts import publish_override
from sickbay_events import Target
from sickbay_events.codec import outcome_subject
from upstream import Upstream
from waiting import patience, until

TARGET = Target("openrouter.ai", "z-ai/glm-5.3")
KEY = TARGET.key
WRITES = (
    f"$KV.sickbay.gate.{KEY}",
    f"$KV.sickbay.target.{KEY}",
    f"$KV.sickbay_trials.{KEY}.breaker.7",
    "$O.sickbay_snapshots.M.x",
    f"sickbay.view.{KEY}",
    f"sickbay.override.{KEY}",
    "sickbay.policy",
    f"sickbay.held.{KEY}",
    f"sickbay.released.{KEY}",
    "sickbay.dead.decode",
)
"""The view, acts, and what only the services conclude."""
STREAMS = tuple(
    f"$JS.API.STREAM.{verb}.{stream}"
    for verb in ("DELETE", "PURGE", "UPDATE", "MSG.DELETE", "SNAPSHOT", "RESTORE", "LEADER.STEPDOWN")
    for stream in (LOG, CONTROL, GATE_STREAM, TRANSITIONS)
)
STEP_DOWN = f"$JS.API.STREAM.LEADER.STEPDOWN.{LOG}"
"""The one change to a stream that the services may make: it makes NATS pass acts on to the log again."""
OTHERS = ("$SYS.REQ.SERVER.PING", "$JS.API.SERVER.REMOVE", "_INBOX_operator.x", "_INBOX_services.x")
REPORTS = (outcome_subject("r1", TARGET), f"sickbay.probe.r1.{KEY}")
QUESTIONS = ("sickbay.v1.status", "sickbay.v1.decide", "sickbay.v1.trial", "sickbay.operate.v1.hold")
CONSUMERS = (f"$JS.API.CONSUMER.CREATE.{GATE_STREAM}.mine", f"$JS.API.CONSUMER.CREATE.{CONTROL}.mine")
LOGS_CONSUMER = f"$JS.API.CONSUMER.CREATE.{LOG}.mine"
OUTSIDE = (*WRITES, *STREAMS, *OTHERS, *CONSUMERS, LOGS_CONSUMER, f"$JS.API.CONSUMER.DELETE.{LOG}.other")

MAY_NOT_PUBLISH = {
    "router": (*OUTSIDE, "sickbay.operate.v1.hold", f"$JS.API.STREAM.INFO.{LOG}", f"$JS.API.DIRECT.GET.{LOG}"),
    "prober": (*OUTSIDE, *REPORTS, outcome_subject("prober", TARGET), "sickbay.operate.v1.clear"),
    "reader": (*OUTSIDE, *REPORTS, "sickbay.v1.trial", "sickbay.operate.v1.hold"),
    "api": OUTSIDE,
    "historian": (*WRITES, *STREAMS, *OTHERS, *CONSUMERS, *REPORTS, *QUESTIONS),
    "services": (
        *(one for one in STREAMS if one != STEP_DOWN),
        *OTHERS,
        "$JS.API.STREAM.CREATE.OTHER",
        "$JS.API.ACCOUNT.PURGE.SICKBAY",
    ),
}
ANSWERS = ("sickbay.v1.decide", "sickbay.operate.v1.hold", "$JS.API.>", "$SRV.>")
"""Who subscribes to these answers in the services' or the server's place."""
EVERYTHING = (">", "sickbay.>", "sickbay.outcome.>", "$KV.sickbay.>", "_INBOX.>", "$SYS.>")
MAY_NOT_SUBSCRIBE = {
    role: (*EVERYTHING, *(ANSWERS if role != "services" else ("$JS.API.>",)))
    for role in ("router", "prober", "reader", "api", "historian", "services")
}


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNats]:
    with SecuredNats(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.mark.parametrize("role", MAY_NOT_PUBLISH)
async def test_a_role_can_do_nothing_beside_its_work(nats: SecuredNats, role: str) -> None:
    """Neither write what is another's, nor touch a stream, nor read or answer what is not for it."""
    others = [f"{other.inbox_prefix}.>" for other in nats.made.roles if other.name not in (role, "system")]
    assert len(others) >= 6
    async with acting(nats, role) as who:
        allowed = [subject for subject in MAY_NOT_PUBLISH[role] if not await who.is_denied("publish", subject)]
        assert not allowed, f"{role} may publish {allowed}"
        heard = (*MAY_NOT_SUBSCRIBE[role], *others)
        open_to_it = [subject for subject in heard if not await who.is_denied("subscribe to", subject)]
        assert not open_to_it, f"{role} may subscribe to {open_to_it}"


async def test_a_prober_probes_and_leaves_what_is_held_alone(
    nats: SecuredNats,
    upstream: Upstream,
    tmp_path: Path,
) -> None:
    """`sickbay prober` on its own credential: results are in the log under its name, an operator's hold ends them, and
    the server has denied it nothing."""
    file = tmp_path / "probes.toml"
    lines = ["[probe]", "interval_s = 1", "[[probe.target]]", f'model = "{TARGET.model}"']
    lines += [f'base_url = "{upstream.url}"', f'provider = "{TARGET.provider}"']
    file.write_text("\n".join(lines), encoding="utf-8")
    env = {**CLEAN, **nats.env("prober"), "SICKBAY_PROBES": str(file)}
    async with serving(nats), acting(nats, "operator") as operator:

        async def probes() -> int:
            ask = json.dumps({"subjects_filter": f"sickbay.probe.prober.{KEY}"}).encode()
            reply = await operator.client.request(f"$JS.API.STREAM.INFO.{LOG}", ask, timeout=patience(5))
            return int(sum(json.loads(reply.data)["state"].get("subjects", {}).values()))

        process = subprocess.Popen([sys.executable, "-m", "sickbay", "prober"], env=env, stderr=subprocess.PIPE)
        try:
            await until(probes, "a probe's result is in the log")
            await publish_override(operator.client, TARGET.scope, "hold", reason="a look", actor="ana", for_s=60)

            async def rests() -> bool:
                before = upstream.ready
                await asyncio.sleep(2.2)  # two intervals in which a prober that did not know would probe
                return upstream.ready == before

            await until(rests, "the prober leaves it alone")
        finally:
            process.terminate()
            said = (await asyncio.to_thread(process.communicate, timeout=patience(20)))[1].decode()
        assert process.returncode == 0 and "Traceback" not in said, said
        page = await read_entries(operator.client, LOG, "sickbay.probe.>")
        assert [entry.subject.decode() for entry in page.entries] == [f"sickbay.probe.prober.{KEY}"]
    assert not [line for line in nats.log().splitlines() if "Violation" in line and "sickbay-prober" in line]
