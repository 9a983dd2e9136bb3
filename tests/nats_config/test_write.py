"""`sickbay nats-config`: a configuration that a server takes, secrets where they belong, clear refusals."""

from __future__ import annotations

import hashlib
import json
import os
import re
import ssl
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from cli_runs import sickbay
from nats_servers import nats_server_binary
from secured_nats import read_env
from sickbay.invalid import InvalidValue
from sickbay.nats_config.certificates import Authority
from sickbay.nats_config.plan import Plan, nodes
from sickbay.nats_config.roles import roles
from sickbay.nats_config.write import write

SHAPES = {
    "one server": Plan(folder=Path()),
    "three on one host": Plan(folder=Path(), hosts=("nats.internal",), cluster=3),
    "three hosts": Plan(folder=Path(), hosts=("a.internal", "10.0.0.5", "fd00::5"), cluster=3, sync="always"),
    "named routers": Plan(folder=Path(), routers=("router-1", "eu.router_2")),
    "a view beside": Plan(folder=Path(), views=("next",)),
}


def planned(shape: str, folder: Path) -> Plan:
    return msgspec.structs.replace(SHAPES[shape], folder=folder)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_server_takes_each_configuration(shape: str, tmp_path: Path) -> None:
    """`nats-server -t` finds nothing to complain of, in any shape."""
    made = write(planned(shape, tmp_path / "made"))
    assert len(made.servers) == SHAPES[shape].cluster
    for path in made.servers:
        done = subprocess.run([nats_server_binary(), "-t", "-c", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("shape", SHAPES)
def test_secrets_stand_in_files_of_their_owner_alone(shape: str, tmp_path: Path) -> None:
    """A role's password is in its environment file and its context and nowhere else; no secret is for other users."""
    made = write(planned(shape, tmp_path / "made"))
    for role in made.roles:
        context = json.loads((tmp_path / f"made/nats/context/sickbay-{role.name}.json").read_text())
        holders = [path.name for path in made.files if context["password"] in path.read_text()]
        assert holders == [f"{role.name}.env", f"sickbay-{role.name}.json"]
        assert context["inbox_prefix"] == read_env(tmp_path / f"made/{role.name}.env")["SICKBAY_INBOX_PREFIX"]
    secret = [path for path in made.files if path.suffix not in (".pem",) and not path.name.startswith("nats")]
    assert len(secret) == 2 * len(made.roles) + len(made.servers) + 2
    for path in secret:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700


def test_no_two_roles_share_inbox_or_password(tmp_path: Path) -> None:
    """Nobody can read another's answers, nor come in as another."""
    made = write(planned("named routers", tmp_path))
    prefixes = [role.inbox_prefix for role in made.roles]
    assert len(set(prefixes)) == len(prefixes)
    assert not any(one != other and f"{other}.".startswith(f"{one}.") for one in prefixes for other in prefixes)
    urls = [read_env(tmp_path / f"{role.name}.env")["SICKBAY_NATS"] for role in made.roles]
    assert len(set(urls)) == len(urls)


def test_what_is_there_is_kept_unless_forced(tmp_path: Path) -> None:
    """A second run names the file that is in its way and changes nothing; --force makes everything anew."""
    write(Plan(folder=tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    refused = sickbay("nats-config", str(tmp_path))
    assert refused.returncode == 2 and "--force" in refused.stderr and str(tmp_path) in refused.stderr
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = sickbay("nats-config", str(tmp_path), "--force")
    assert done.returncode == 0, done.stderr
    for path, data in before.items():
        assert path.name == "nats.conf" or path.read_bytes() != data, path


def test_an_update_keeps_authority_and_passwords(tmp_path: Path) -> None:
    """A router more, a view more: whoever had a user is not told anything new, and the new one comes in beside."""
    write(Plan(folder=tmp_path, routers=("router-1",)))
    kept = [tmp_path / name for name in ("ca.pem", "ca.key", "router-router-1.env", "operator.env", "services.env")]
    before = [path.read_bytes() for path in kept]
    certificate = (tmp_path / "sickbay.pem").read_bytes()
    options = ("--router", "router-1", "--router", "router-2", "--view", "next")
    done = sickbay("nats-config", str(tmp_path), "--update", *options)
    assert done.returncode == 0, done.stderr
    assert [path.read_bytes() for path in kept] == before
    assert (tmp_path / "sickbay.pem").read_bytes() != certificate
    assert (tmp_path / "router-router-2.env").exists()
    assert "sickbay.views.next.>" in (tmp_path / "accounts.conf").read_text()
    nothing = sickbay("nats-config", str(tmp_path / "empty"), "--update")
    assert nothing.returncode == 2 and "--update" in nothing.stderr and not (tmp_path / "empty").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--host", "nats.internal:4222"], "--host"),
        (["--host", 'x"'], "--host"),
        (["--cluster", "2"], "--cluster"),
        (["--cluster", "3", "--host", "a", "--host", "b"], "--host"),
        (["--port", "70000"], "--port"),
        (["--router", "a b"], "--router"),
        (["--router", "../x"], "--router"),
        (["--router", "a", "--router", "a"], "--router"),
        (["--sync-interval", "10 s"], "--sync-interval"),
        (["--store-gib", "0"], "--store-gib"),
        (["--view", "a.b"], "view"),
        (["--update", "--force"], "--update"),
        (["--compose", "--cluster", "5"], "--compose"),
        (["--compose", "--store", "/data"], "--compose"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: list[str], named: str, tmp_path: Path) -> None:
    """The option and the accepted form are said, and no file is written."""
    done = sickbay("nats-config", str(tmp_path / "made"), *options)
    assert done.returncode == 2 and named in done.stderr and "accepted is" in done.stderr, done.stderr
    assert not (tmp_path / "made").exists()


def test_the_command_says_what_to_do_next_and_no_secret(tmp_path: Path) -> None:
    """Its output names roles, files and the next commands; passwords stand in files alone."""
    done = sickbay("nats-config", str(tmp_path), "--router", "router-1")
    assert done.returncode == 0, done.stderr
    for word in ("router-1.env", f"nats-server -c {tmp_path / 'nats.conf'}", "services.env", "--context"):
        assert word in done.stdout
    for role in roles(("router-1",)):
        password = json.loads((tmp_path / f"nats/context/sickbay-{role.name}.json").read_text())["password"]
        assert password not in done.stdout + done.stderr
    facts = json.loads(sickbay("nats-config", str(tmp_path), "--force", "--json").stdout)
    assert set(facts["roles"]) == {role.name for role in roles()}


def test_clients_try_every_server_of_a_cluster_by_a_name_on_its_certificate(tmp_path: Path) -> None:
    """One address for each server, each on the certificate that this server shows."""
    plan = planned("three hosts", tmp_path)
    write(plan)
    url = read_env(tmp_path / "router.env")["SICKBAY_NATS"]
    assert [part.rpartition("@")[2] for part in url.split(",")] == [
        "a.internal:4222",
        "10.0.0.5:4222",
        "[fd00::5]:4222",
    ]
    for node in nodes(plan):
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        context.load_cert_chain(tmp_path / f"{node.name}.pem", tmp_path / f"{node.name}.key")
    assert read_env(tmp_path / "services.env")["SICKBAY_STREAM_REPLICAS"] == "3"


def test_certificates_last_years_and_begin_before_now() -> None:
    """Five years, and no machine whose clock is some minutes behind refuses them."""
    made = Authority.make()
    assert made.valid_until > datetime.now(UTC) + timedelta(days=4 * 365)


def test_a_plan_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    """Also where it is made by code."""
    with pytest.raises(InvalidValue, match="--cluster"):
        write(Plan(folder=tmp_path / "x", cluster=4))
    assert not (tmp_path / "x").exists()


COMPOSE = Plan(folder=Path(), cluster=3, compose=True)


def test_what_compose_mounts_is_readable_there_and_the_rest_is_its_owners_alone(tmp_path: Path) -> None:
    """Whatever the umask: the folder is closed, and within it only what containers of other users read is open."""
    (tmp_path / "made").mkdir(mode=0o755)
    before = os.umask(0o077)
    try:
        made = write(msgspec.structs.replace(COMPOSE, folder=tmp_path / "made"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700
    modes = {str(path.relative_to(tmp_path / "made")): stat.S_IMODE(path.stat().st_mode) for path in made.files}
    public = {name for name, mode in modes.items() if mode == 0o644}
    nodes_own = {f"nats-{n}/{name}" for n in (1, 2, 3) for name in ("ca.pem", "server.pem", "nats.conf")}
    stores = {f"store/nats-{n}/.keep" for n in (1, 2, 3)}
    mounted = {"ca.pem", "api/tokens.toml", "prober/probes.toml", "prometheus/token"}
    assert public == {"compose.env", *mounted, *nodes_own, *stores}
    assert set(modes.values()) == {0o644, 0o600}
    for name in ("api", "prober", "prometheus"):
        assert stat.S_IMODE((tmp_path / "made" / name).stat().st_mode) == 0o755
    for role in made.roles:
        password = json.loads((tmp_path / f"made/nats/context/sickbay-{role.name}.json").read_text())["password"]
        holders = {str(path.relative_to(tmp_path / "made")) for path in made.files if password in path.read_text()}
        assert holders == {f"{role.name}.env", f"outside/{role.name}.env", f"nats/context/sickbay-{role.name}.json"}


def test_containers_and_the_machine_reach_the_servers_each_by_their_own_addresses(tmp_path: Path) -> None:
    """The services by the names of the compose file, all others by published ports, both on the certificates."""
    write(msgspec.structs.replace(COMPOSE, folder=tmp_path, hosts=("nats.internal",), routers=("router-1",)))
    hosts = {
        name: [part.rpartition("@")[2] for part in read_env(tmp_path / name)["SICKBAY_NATS"].split(",")]
        for name in ("services.env", "outside/router-router-1.env")
    }
    assert hosts["services.env"] == ["nats-1:4222", "nats-2:4222", "nats-3:4222"]
    assert hosts["outside/router-router-1.env"] == [f"nats.internal:{port}" for port in (4222, 4223, 4224)]
    assert read_env(tmp_path / "services.env")["SICKBAY_TLS_CA"] == "/etc/sickbay/ca.pem"
    assert read_env(tmp_path / "outside/services.env")["SICKBAY_TLS_CA"] == str(tmp_path / "ca.pem")
    for number in (1, 2, 3):
        certificate = x509.load_pem_x509_certificate((tmp_path / f"nats-{number}/server.pem").read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == [f"nats-{number}", "nats.internal"]


def test_what_is_owned_by_people_survives_an_update_and_even_new_passwords(tmp_path: Path) -> None:
    """Tokens and Grafana's password stay with --update; the file of probes and its keys stay in any case."""
    plan = msgspec.structs.replace(COMPOSE, folder=tmp_path)
    write(plan)
    (tmp_path / "prober/probes.toml").write_text("[probe]\nper_hour = 7\n")
    (tmp_path / "prober/keys.env").write_text("KEY=mine\n")
    (tmp_path / "store/nats-1/jetstream").mkdir()
    kept = [tmp_path / name for name in ("tokens/operator", "prometheus/token", "api/tokens.toml", "grafana.env")]
    theirs = [tmp_path / name for name in ("prober/probes.toml", "prober/keys.env")]
    before, mine = [path.read_bytes() for path in kept], [path.read_bytes() for path in theirs]
    write(plan, "update")
    assert [path.read_bytes() for path in (*kept, *theirs)] == [*before, *mine]
    write(plan, "overwrite")
    assert not [path for path, data in zip(kept, before, strict=True) if path.read_bytes() == data]
    assert [path.read_bytes() for path in theirs] == mine
    assert (tmp_path / "store/nats-1/jetstream").exists()
    digests = re.findall(r'sha256 = "(\w+)"', (tmp_path / "api/tokens.toml").read_text())
    tokens = [*(tmp_path / "tokens").iterdir(), tmp_path / "prometheus/token"]
    assert {hashlib.sha256(path.read_bytes()).hexdigest() for path in tokens} == set(digests)
