"""docker-compose.yml read as compose reads it: variables, merges, environment files, replicas."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from paths import ROOT

FILE = ROOT / "docker-compose.yml"
VARIABLE = re.compile(r"\$\$|\$\{(\w+)(?::([-?])([^}]*))?\}")


def interpolated(text: str, environment: Mapping[str, str]) -> str:
    """For the forms that the file uses: `${X:?why}`, `${X:-default}`, `$$`. Raises `LookupError`."""

    def value(found: re.Match[str]) -> str:
        name, sign, rest = found.groups()
        if name is None:
            return "$"
        if not environment.get(name) and sign != "-":
            raise LookupError(name)
        return environment.get(name) or rest

    return VARIABLE.sub(value, text)


def loaded(text: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """The file's content with its variables in place; comments may name what they like."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    found: dict[str, Any] = yaml.safe_load(interpolated("\n".join(lines), environment))
    return found


def env_file(path: Path) -> dict[str, str]:
    """An environment file as compose and a shell read it."""
    words = shlex.split(path.read_text(encoding="utf-8"), comments=True)
    return dict(word.split("=", 1) for word in words)


class Mount(NamedTuple):
    """One mount. `source` is a folder or file of the machine, or a volume's name."""

    source: str
    target: str
    is_read_only: bool

    @property
    def is_volume(self) -> bool:
        """Whether compose keeps it."""
        return not self.source.startswith((".", "/"))


class Service(NamedTuple):
    """One container of the file."""

    name: str
    image: str
    entrypoint: list[str] | None
    command: list[str]
    environment: dict[str, str]
    mounts: list[Mount]
    health: list[str]
    needs: list[str]
    has_stdin: bool


def mount(text: str) -> Mount:
    """A mount in its short form."""
    source, target, *mode = text.split(":")
    return Mount(source, target, mode == ["ro"])


def containers(composed: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Service and name of every container: of one with replicas several, each with a number."""
    for name, given in composed["services"].items():
        replicas = given.get("deploy", {}).get("replicas", 1)
        yield from ((name, name if replicas == 1 else f"{name}-{number + 1}") for number in range(replicas))


def services(composed: dict[str, Any]) -> list[Service]:
    """Every container."""
    found: list[Service] = []
    for name, own in containers(composed):
        given = composed["services"][name]
        environment: dict[str, str] = {}
        for path in given.get("env_file", ()):
            environment |= env_file(Path(path))
        environment |= {key: str(value) for key, value in given.get("environment", {}).items()}
        found.append(
            Service(
                name=own,
                image=given["image"],
                entrypoint=given.get("entrypoint"),
                command=given.get("command", []),
                environment=environment,
                mounts=[mount(text) for text in given.get("volumes", ())],
                health=given["healthcheck"]["test"],
                needs=list(given.get("depends_on", ())),
                has_stdin=given.get("stdin_open", False),
            )
        )
    return found
