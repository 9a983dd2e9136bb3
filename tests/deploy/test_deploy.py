"""What `deploy/` has for systemd and Kubernetes is valid, and true about what it starts."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer.main
import yaml

from paths import ROOT
from sickbay.cli import app
from sickbay.config import setting_rows as settings

KUBERNETES = ROOT / "deploy" / "kubernetes"
UNIT = ROOT / "deploy" / "systemd" / "sickbay.service"
OBJECTS: list[dict[str, Any]] = [
    found
    for path in sorted(KUBERNETES.glob("*.yaml"))
    for found in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
PODS = [found["spec"]["template"] for found in OBJECTS if "template" in found["spec"]]
CONTAINERS = [container for pod in PODS for container in pod["spec"]["containers"]]
NAMES = [f"{found['kind']} {found['metadata']['name']}" for found in OBJECTS]
KNOWN = {row.name for row in settings()}


@pytest.mark.parametrize("found", OBJECTS, ids=NAMES)
def test_the_schema_of_kubernetes_accepts_each_object(found: dict[str, Any]) -> None:
    kubernetes_validate.validate(found, "1.34", strict=True)


def test_the_schema_refuses_what_it_does_not_know() -> None:
    """The check above can fail."""
    broken = copy.deepcopy(OBJECTS[NAMES.index("Deployment sickbay-services")])
    broken["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        kubernetes_validate.validate(broken, "1.34", strict=True)


@pytest.mark.parametrize("container", CONTAINERS, ids=lambda container: container["name"])
def test_each_container_starts_a_command_with_settings_that_exist(container: dict[str, Any]) -> None:
    assert container["args"][0] in typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert {row["name"] for row in container["env"]} <= KNOWN
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert f"docker build -t {container['image']} ." in dockerfile
    assert '\nENTRYPOINT ["sickbay"]\n' in dockerfile


def test_what_pods_mount_and_select_is_there() -> None:
    for found in OBJECTS:
        selector = found["spec"]["selector"].get("matchLabels", found["spec"]["selector"])
        assert any(selector.items() <= pod["metadata"]["labels"].items() for pod in PODS), found["metadata"]
    for found in OBJECTS:
        if "template" in found["spec"]:
            pod = found["spec"]["template"]["spec"]
            claims = {claim["metadata"]["name"] for claim in found["spec"].get("volumeClaimTemplates", ())}
            volumes = claims | {volume["name"] for volume in pod["volumes"]}
            mounts = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
            assert mounts == volumes


def test_each_secret_that_the_manifests_name_is_made_on_the_page() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    made = set(re.findall(r"create secret generic (\S+)", page))
    text = "\n".join(path.read_text(encoding="utf-8") for path in KUBERNETES.glob("*.yaml"))
    named = set(re.findall(r"secretRef: \{ name: (\S+) \}|secretName: ([\w-]+)", text))
    assert {first or second for first, second in named} == made


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not here")
    text = UNIT.read_text(encoding="utf-8")
    command = Path(sysconfig.get_path("scripts")) / "sickbay"
    assert "ExecStart=/opt/sickbay/bin/sickbay serve\n" in text

    def said(content: str) -> tuple[int, str]:
        path = tmp_path / UNIT.name
        path.write_text(content.replace("/opt/sickbay/bin/sickbay", str(command)), encoding="utf-8")
        done = subprocess.run([analyze, "verify", "--man=no", path], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    code, complaints = said(text)
    assert (code, [line for line in complaints.splitlines() if UNIT.name in line]) == (0, [])
    assert "ProtectSystm" in said(text.replace("ProtectSystem", "ProtectSystm"))[1], "the check can fail"
    assert set(re.findall(r"\b(SICKBAY_\w+)=", text)) <= KNOWN
