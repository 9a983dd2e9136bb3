"""The compose file and the Dockerfile: valid, without default passwords, and true about what they start.

No engine is needed: the compose specification's own reader checks the file where it is at hand (.ci/run builds it and
says so in COMPOSE_GO), and the NATS configuration in it is run by a real nats-server.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from nats.aio.client import Client

from nats_servers import NatsServer, nats_server_binary
from sickbay.bus import topology
from sickbay.bus.connect import NatsOptions, connect
from sickbay.cli import app
from sickbay.config import table as settings
from sickbay_events import CallOutcome, Target, encode, outcome_subject

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PASSWORDS = {"NATS_SERVICE_PASSWORD": "servicepw", "NATS_ROUTER_PASSWORD": "routerpw"}
OURS = [name for name, service in COMPOSE["services"].items() if service["image"].startswith("sickbay:")]
VARIABLE = re.compile(r"\$\$|\$\{(\w+)(?::([-?])([^}]*))?\}")


def interpolated(text: str, environment: dict[str, str]) -> str:
    """As compose does it for the forms that the file uses: `${X:?why}`, `${X:-default}`, `$$`."""

    def value(found: re.Match[str]) -> str:
        name, sign, rest = found.groups()
        if name is None:
            return "$"
        if not environment.get(name) and sign == "?":
            raise LookupError(name)
        return environment.get(name) or rest

    return VARIABLE.sub(value, text)


def service_commands() -> Iterator[tuple[str, list[str]]]:
    for name in OURS:
        yield name, COMPOSE["services"][name]["command"]
    yield "Dockerfile", yaml.safe_load(DOCKERFILE.rpartition("\nCMD ")[2])


@pytest.mark.parametrize(("where", "arguments"), list(service_commands()))
def test_each_command_and_each_option_of_it_exists(where: str, arguments: list[str]) -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    command = commands[arguments[0]]
    options = {option for parameter in command.params for option in parameter.opts}
    assert {argument for argument in arguments[1:] if argument.startswith("-")} <= options, where
    assert '\nENTRYPOINT ["sickbay"]\n' in DOCKERFILE


def test_each_environment_name_is_one_that_the_code_reads() -> None:
    known = {row.name for row in settings()}
    for name in OURS:
        assert set(COMPOSE["services"][name]["environment"]) <= known, name
    assert set(re.findall(r"^\s+(SICKBAY_\w+)=", DOCKERFILE, re.MULTILINE)) <= known


def test_there_is_no_default_password() -> None:
    named = {found[1]: found[2] for found in VARIABLE.finditer(TEXT) if found[1] and "PASSWORD" in found[1]}
    assert named == dict.fromkeys(PASSWORDS, "?")
    for name in PASSWORDS:
        with pytest.raises(LookupError, match=name):
            interpolated(TEXT.partition("\nname:")[2], PASSWORDS | {name: ""})
    literal = [value for value in re.findall(r"password: *\"?([^\"\n]*)", TEXT) if not value.startswith("${")]
    assert literal == []


def test_images_are_pinned_and_services_run_without_rights() -> None:
    images = [service["image"] for service in COMPOSE["services"].values()]
    images += re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert len(images) > 3
    for image in images:
        assert re.search(r":\d+\.\d+\.\d+", image), f"{image} has no tag that stays what it is"
    assert re.search(r"^USER (?!root|0)\w+", DOCKERFILE, re.MULTILINE)
    for name in OURS:
        assert COMPOSE["services"][name]["cap_drop"] == ["ALL"]
        assert COMPOSE["services"][name]["read_only"] is True


def test_every_service_says_when_it_is_healthy_and_waits_for_what_it_needs() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["healthcheck"]["test"], name
        for needed, how in service.get("depends_on", {}).items():
            # The specification's reader does not notice a name that is no service.
            assert needed in COMPOSE["services"]
            assert how["condition"] == "service_healthy"
        for mount in service.get("volumes", ()):
            assert mount.partition(":")[0] in COMPOSE["volumes"]
    assert len({COMPOSE["services"][name]["environment"]["SICKBAY_REPLICA"] for name in OURS}) == len(OURS)


def test_what_the_image_copies_is_what_the_build_context_lets_in() -> None:
    let_in = set(re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE))
    copied = {name for line in re.findall(r"^COPY (?!--)(.*)", DOCKERFILE, re.MULTILINE) for name in line.split()[:-1]}
    assert copied == let_in
    assert all((ROOT / name).exists() for name in copied)


def compose_go() -> str:
    """The specification's reader; where COMPOSE_GO names one, it must be there."""
    named = os.environ.get("COMPOSE_GO")
    if named:
        assert Path(named).exists(), f"COMPOSE_GO names {named}, which does not exist"
        return named
    kept = ROOT / ".tools" / "bin" / "compose-go"
    if kept.exists():
        return str(kept)
    pytest.skip("compose-go is not here; .ci/run builds it where there is Go")


def read_by_compose_go(folder: Path, text: str) -> tuple[str, str]:
    (folder / "docker-compose.yml").write_text(text, encoding="utf-8")
    done = subprocess.run([compose_go(), "docker-compose.yml"], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout, done.stderr


def test_the_compose_specification_accepts_the_file(tmp_path: Path) -> None:
    # The reader's own program takes no variables from the environment, so it gets the file with values in place.
    # $$ stays, because it interpolates what it is given.
    filled = interpolated(TEXT.replace("$$", "$$$$"), PASSWORDS)
    out, fault = read_by_compose_go(tmp_path, filled)
    assert fault == ""
    assert set(yaml.safe_load(out)["services"]) == set(COMPOSE["services"])


def test_the_compose_specification_refuses_the_file_without_passwords(tmp_path: Path) -> None:
    _, fault = read_by_compose_go(tmp_path, TEXT)
    assert "required variable NATS_SERVICE_PASSWORD is missing" in fault


def test_the_compose_specification_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    """The check above can fail."""
    broken = interpolated(TEXT.replace("$$", "$$$$"), PASSWORDS).replace("healthcheck:", "healthchek:")
    _, fault = read_by_compose_go(tmp_path, broken)
    assert "healthchek" in fault


def nats_config(folder: Path) -> str:
    text = interpolated(COMPOSE["configs"]["nats"]["content"], PASSWORDS)
    # Its folder and its monitoring port are the container's own; here they would meet those of other tests.
    return text.replace('"/data"', f'"{folder}"').replace('http: "127.0.0.1:8222"\n', "")


def test_a_nats_server_accepts_the_configuration(tmp_path: Path) -> None:
    written = tmp_path / "nats.conf"
    written.write_text(nats_config(tmp_path), encoding="utf-8")
    done = subprocess.run([nats_server_binary(), "-t", "-c", written], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


async def test_a_router_may_report_and_read_the_view_and_nothing_else(tmp_path: Path) -> None:
    rights = nats_config(tmp_path).partition("authorization")[2]
    with NatsServer(config=f"authorization{rights}") as server:
        service = await connect(server.url.replace("//", f"//service:{PASSWORDS['NATS_SERVICE_PASSWORD']}@"))
        await topology.ensure(service, topology.Limits(log_max_bytes=1 << 26, dead_max_bytes=1 << 24))
        await service.jetstream().publish("$KV.sickbay.gate.h", b"{}")
        refused: list[str] = []
        options = NatsOptions.from_url(
            server.url.replace("//", f"//router:{PASSWORDS['NATS_ROUTER_PASSWORD']}@"), inbox_prefix="_INBOX_router"
        )
        router = await connect(options, on_error=lambda error: refused.append(str(error)))
        try:
            ack = await router.request(
                outcome_subject("r1", Target("h", "m")), encode(CallOutcome(kind="ok")), timeout=5
            )
            assert b'"seq":1' in ack.data
            entry = await router.request("$JS.API.DIRECT.GET.KV_sickbay.$KV.sickbay.gate.h", b"", timeout=5)
            assert entry.data == b"{}"
            feed = await router.subscribe("sickbay.view.>")
            await router.flush()
            assert refused == []
            await service.jetstream().publish("$KV.sickbay.gate.h", b'{"seq":2}')
            assert (await feed.next_msg(timeout=5)).data == b'{"seq":2}'
            await forbidden(router, refused)
        finally:
            await router.close()
            await service.close()


async def forbidden(router: Client, refused: list[str]) -> None:
    """Each of these is told to be a violation, before the next is tried."""
    for subject in (
        "$KV.sickbay.gate.h",
        "sickbay.override.h",
        "sickbay.policy",
        "sickbay.operate.v1.hold",
        "$JS.API.CONSUMER.CREATE.SICKBAY_LOG",
        "$JS.API.STREAM.DELETE.SICKBAY_LOG",
    ):
        await router.publish(subject, b"{}")
        await told(refused, subject)
    await router.subscribe("_INBOX.>")  # other people's answers
    await told(refused, "_INBOX.>")


async def told(refused: list[str], subject: str, limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while not any(f"'{subject}'" in text for text in refused):
            await asyncio.sleep(0.005)
