"""The compose file and the Dockerfile: valid, without default passwords, and true about what they start.

No engine is needed: the compose specification's own reader checks the file where it is at hand (.ci/run builds it and
says so in COMPOSE_GO); test_compose_topology.py runs what it starts.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from nats_servers import nats_server_binary
from paths import ROOT
from sickbay.cli import app
from sickbay.config import setting_rows as settings
from sickbay.nats_config.compose import TOKENS
from sickbay.nats_config.plan import Plan
from sickbay.nats_config.write import write
from topology.composed import FILE, VARIABLE, interpolated, loaded, services

TEXT = FILE.read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
OURS = [name for name, service in SERVICES.items() if service["image"].startswith("sickbay:")]
COMMANDS = [name for name in OURS if "entrypoint" not in SERVICES[name]]
REQUIRED = {"SICKBAY_CONFIG": "/made", "SICKBAY_USER": "1000:1000"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `sickbay nats-config DIR --compose` makes."""
    folder = tmp_path_factory.mktemp("made") / "secrets"
    write(Plan(folder=folder, cluster=3, compose=True))
    return folder


def service_commands() -> Iterator[tuple[str, list[str]]]:
    for name in COMMANDS:
        yield name, SERVICES[name]["command"]
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
        assert set(SERVICES[name].get("environment", {})) <= known, name
    assert set(re.findall(r"^\s+(SICKBAY_\w+)=", DOCKERFILE, re.MULTILINE)) <= known


def test_no_credential_stands_in_the_file() -> None:
    """What it asks for are a folder and a user, without defaults; credentials come from the files of that folder."""
    named = {found[1]: found[2] for found in VARIABLE.finditer(TEXT) if found[1]}
    assert {name for name, sign in named.items() if sign == "?"} == set(REQUIRED)
    assert {name for name in named if name not in REQUIRED} == {"NATS_LISTEN", "HTTP_LISTEN"}
    content = "\n".join(line for line in TEXT.splitlines() if not line.lstrip().startswith("#"))
    assert not re.search(r"password|secret|token=|PASSWORD|://\w+:", content, re.IGNORECASE)
    for name in REQUIRED:
        with pytest.raises(LookupError, match=name):
            loaded(TEXT, REQUIRED | {name: ""})


def test_each_role_has_a_container_of_its_own_and_no_other_ones_credential(made: Path) -> None:
    given = {one.name: one for one in services(loaded(TEXT, {**REQUIRED, "SICKBAY_CONFIG": str(made)}))}
    users = {name: one.environment["SICKBAY_NATS"].split("://")[1].split(":")[0]
             for name, one in given.items() if "SICKBAY_NATS" in one.environment}  # fmt: skip
    projectors = {"projector-1": "services", "projector-2": "services"}
    routers = {f"router-{number}": "router" for number in (1, 2, 3)}
    assert users == {**projectors, **routers, "historian": "historian", "api": "api", "prober": "prober"}
    for one in given.values():
        for mount in one.mounts:
            if mount.source.startswith(str(made)):
                path = Path(mount.source)
                inside = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
                assert inside, f"{one.name} mounts {path}, in which nothing is"
                assert not {"ca.key", "operator.env", "system.env"} & {file.name for file in inside}, one.name


def test_everything_that_is_mounted_or_read_is_there(made: Path) -> None:
    """Of the repository and of the folder that nats-config makes; no name of a mount is a slip of the pen."""
    composed = loaded(TEXT, {**REQUIRED, "SICKBAY_CONFIG": str(made)})
    volumes = set()
    for one in services(composed):  # reads every environment file
        for mount in one.mounts:
            if mount.is_volume:
                volumes.add(mount.source)
            else:
                assert (ROOT / mount.source).exists(), f"{one.name} mounts {mount.source}"
                assert mount.is_read_only or mount.target == "/data", f"{one.name} may write {mount.source}"
    assert volumes == set(composed["volumes"])
    tokens = {path.name for path in (made / "tokens").iterdir()} | {"prometheus"}
    assert tokens == set(TOKENS)


def test_images_are_pinned_and_services_run_without_rights() -> None:
    images = [service["image"] for service in SERVICES.values()]
    images += re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert len(images) > 10
    for image in images:
        assert re.search(r":v?\d+\.\d+\.\d+", image), f"{image} has no tag that stays what it is"
    assert re.search(r"^USER (?!root|0)\w+", DOCKERFILE, re.MULTILINE)
    for name, service in SERVICES.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is True, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not {"privileged", "cap_add", "network_mode", "pid"} & set(service), name


def test_every_service_has_limits() -> None:
    """Of memory, processor, processes and what it may log; one that grows takes nobody else with it."""
    for name, service in SERVICES.items():
        for limit in ("mem_limit", "cpus", "pids_limit"):
            assert service[limit], f"{name} has no {limit}"
        assert service["logging"]["options"]["max-size"], name
        assert service["restart"] == "unless-stopped", name


def test_ports_are_published_on_loopback_unless_somebody_says_otherwise() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(ports) == len(set(ports)) == 6
    assert all(interpolated(port, {}).startswith("127.0.0.1:") for port in ports)


def test_every_service_says_when_it_is_healthy_and_waits_for_what_it_needs() -> None:
    for name, service in SERVICES.items():
        assert service["healthcheck"]["test"][0] == "CMD", name
        for needed, how in service.get("depends_on", {}).items():
            # The specification's reader does not notice a name that is no service.
            assert needed in SERVICES
            assert how["condition"] == "service_healthy"
    projectors = [SERVICES[name]["environment"]["SICKBAY_REPLICA"] for name in SERVICES if name.startswith("projector")]
    assert len(set(projectors)) == 2
    assert SERVICES["router"]["deploy"]["replicas"] == 3


def test_what_the_image_copies_is_what_the_build_context_lets_in() -> None:
    let_in = set(re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE))
    copied = {name for line in re.findall(r"^COPY (?!--)(.*)", DOCKERFILE, re.MULTILINE) for name in line.split()[:-1]}
    assert copied == let_in
    assert all((ROOT / name).exists() for name in copied)
    assert re.search(r"^HEALTHCHECK .*\\\n\s+CMD ", DOCKERFILE, re.MULTILINE)


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


def filled(made: Path) -> str:
    """With values in place, since the reader's own program takes no variables from the environment; and with the
    example, as it knows no profiles. $$ stays, because it interpolates what it is given."""
    found = {**REQUIRED, "SICKBAY_CONFIG": str(made)}
    return interpolated(TEXT.replace("$$", "$$$$"), found).replace('profiles: ["example"]', "profiles: []")


def test_the_compose_specification_accepts_the_file(tmp_path: Path, made: Path) -> None:
    out, fault = read_by_compose_go(tmp_path, filled(made))
    assert fault == ""
    assert set(yaml.safe_load(out)["services"]) == set(SERVICES)


def test_the_compose_specification_refuses_the_file_without_a_folder(tmp_path: Path) -> None:
    _, fault = read_by_compose_go(tmp_path, TEXT)
    assert re.search(r"required variable SICKBAY_(CONFIG|USER) is missing", fault)


def test_the_compose_specification_refuses_what_it_does_not_know(tmp_path: Path, made: Path) -> None:
    """The check above can fail."""
    _, fault = read_by_compose_go(tmp_path, filled(made).replace("healthcheck:", "healthchek:"))
    assert "healthchek" in fault


def test_a_nats_server_accepts_each_configuration(tmp_path: Path, made: Path) -> None:
    """As its container sees it, but for the place: three servers that sync on purpose."""
    for number in (1, 2, 3):
        folder = made / f"nats-{number}"
        text = (folder / "nats.conf").read_text(encoding="utf-8")
        assert (
            f'server_name: "nats-{number}"' in text and 'sync_interval: "10s"' in text and 'store_dir: "/data"' in text
        )
        written = folder / "here.conf"
        written.write_text(text.replace("/etc/nats", str(folder)).replace("/data", str(tmp_path)), encoding="utf-8")
        done = subprocess.run([nats_server_binary(), "-t", "-c", written], capture_output=True, text=True, check=False)
        written.unlink()
        assert done.returncode == 0, done.stderr
