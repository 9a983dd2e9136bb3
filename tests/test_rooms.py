"""The three rooms and what each may import, read from the syntax tree; the router side stays light."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nats.aio.client import Client

from nats_servers import NatsServer
from paths import ROOT
from sickbay.bus.jetstream import JetStreamApi
from sickbay.bus.topology import LOG, ensure

EVENTS = ROOT / "events" / "sickbay_events"
PROJECTIONS = ROOT / "projections" / "sickbay_projections"
SERVICES = ROOT / "services" / "sickbay"

# What a pure room may use of the standard library: nothing here reads a clock, a network, a disk, the
# environment or a random source. Anything else needs a reason, and a line here.
PURE_STDLIB = frozenset(
    """__future__ abc array base64 binascii bisect codecs collections collections.abc contextlib copy dataclasses
    datetime difflib email.utils enum functools hashlib heapq html html.entities io itertools json math operator re
    string struct textwrap tomllib types typing unicodedata urllib.parse zlib
    """.split()  # noqa: SIM905
)
# Calls that reach the world, or differ from process to process (`hash` of a text, `id`), by their names.
IMPURE_CALLS = {"open", "print", "input", "hash", "id", "exec", "eval", "__import__", "breakpoint"}
IMPURE_METHODS = {"now", "utcnow", "today", "localtime", "formatdate", "make_msgid", "fromtimestamp"}
EXTRAS = (
    "faststream",
    "typer",
    "rich",
    "sqlite_utils",
    "uvloop",
    "uvicorn",
    "zstandard",
    "litestar",
    "prometheus_client",
)
ALSO_HEAVY = ("pydantic", "click", "aiohttp", "httpx", "yaml")
UNIX_ONLY = {"fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "syslog", "posix", "crypt", "spwd", "uvloop"}


def _modules(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.py"))
    assert found, f"{folder} holds no module: the test would prove nothing"
    return found


def _imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every absolute import as (module, line); what a package imports of itself by dots is its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or "", node.lineno


def _foreign(path: Path, packages: frozenset[str]) -> Iterator[str]:
    for module, line in _imports(ast.parse(path.read_text(encoding="utf-8"))):
        if module not in PURE_STDLIB and module.partition(".")[0] not in packages:
            yield f"{path.name}:{line} imports {module}"


def _impure(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if (isinstance(called, ast.Name) and called.id in IMPURE_CALLS) or (
            isinstance(called, ast.Attribute) and called.attr in IMPURE_METHODS
        ):
            yield f"{path.name}:{node.lineno} calls {ast.unparse(called)}"


@pytest.mark.parametrize("room", ["events", "projections", "services"])
def test_a_room_is_a_source_root_and_no_package(room: str) -> None:
    assert not (ROOT / room / "__init__.py").exists()
    assert not list((ROOT / room).glob("*.py")), "a module in the root would take a name that others own"


def test_events_import_msgspec_and_pure_standard_library_only() -> None:
    packages = frozenset({"msgspec", "sickbay_events"})
    assert [line for path in _modules(EVENTS) for line in _foreign(path, packages)] == []


def test_projections_import_events_and_pure_standard_library_only() -> None:
    packages = frozenset({"msgspec", "sickbay_events", "sickbay_projections"})
    assert [line for path in _modules(PROJECTIONS) for line in _foreign(path, packages)] == []


@pytest.mark.parametrize("room", [EVENTS, PROJECTIONS], ids=["events", "projections"])
def test_a_pure_room_calls_nothing_that_differs_from_run_to_run(room: Path) -> None:
    assert [line for path in _modules(room) for line in _impure(path)] == []


def test_the_checks_above_see_what_they_forbid(tmp_path: Path) -> None:
    """A check that cannot fail is none: here is a module that breaks each rule once."""
    module = tmp_path / "broken.py"
    module.write_text("import os\nfrom .names import token\nfrom time import time\nopen('x')\na.now()\nhash('x')\n")
    assert list(_foreign(module, frozenset())) == ["broken.py:1 imports os", "broken.py:3 imports time"]
    assert list(_impure(module)) == ["broken.py:4 calls open", "broken.py:5 calls a.now", "broken.py:6 calls hash"]


BLOCKER = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS + ALSO_HEAVY!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""
IMPORTS = f"""
import sickbay, sickbay.sync, sickbay.testing
for name in sickbay.__all__:
    getattr(sickbay, name)
loaded = {{name for name in sys.modules if name.partition(".")[0] in {EXTRAS + ALSO_HEAVY!r}}}
assert not loaded, loaded
print(*sorted(module.__file__ for name, module in sys.modules.items()
              if name.partition(".")[0] in ("sickbay", "sickbay_events", "sickbay_projections")), sep="\\n")
"""


def without_extras(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process in which none of the extras can be imported."""
    command = [sys.executable, "-I", "-W", "error", "-c", BLOCKER + code]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def router_side() -> list[Path]:
    """The modules that a router loads, from a process in which none of the extras can be imported."""
    done = without_extras(IMPORTS)
    assert done.returncode == 0, done.stderr
    return [Path(line) for line in done.stdout.split()]


def test_import_sickbay_works_without_the_extras_and_loads_none_of_them(router_side: list[Path]) -> None:
    assert SERVICES / "__init__.py" in router_side
    assert SERVICES / "cli" / "__init__.py" not in router_side


def test_the_command_says_what_to_install_where_only_a_routers_part_is() -> None:
    done = without_extras("sys.argv = ['sickbay', 'status']\nfrom sickbay.__main__ import main\nmain()")
    assert done.returncode == 1
    assert "sickbay[server]" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_a_router_loads_runs_on_windows_by_design(router_side: list[Path]) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in router_side
        for module, line in _imports(ast.parse(path.read_text(encoding="utf-8")))
        if module.partition(".")[0] in UNIX_ONLY
    ]
    assert found == []


async def test_a_router_works_where_nothing_is_that_only_unix_has(nats_server: NatsServer, nats_client: Client) -> None:
    """Import, connect, gate, attempt and record, in a loop and in threads, without fork and Unix-only modules."""
    code = f"""
import asyncio, os, signal, sys
for name in {sorted(UNIX_ONLY - {"posix"})!r}:  # os itself is built upon posix
    sys.modules[name] = None
for name in ("fork", "register_at_fork", "getuid", "uname", "killpg"):
    delattr(os, name)
del signal.SIGKILL, signal.SIGUSR1
import sickbay, sickbay.sync
os.environ["SICKBAY_DATA"] = "nowhere"
sickbay.connect()  # looks for a server of this machine's own, which Windows has none of
target = sickbay.Target("localhost:11434", "m")

async def main():
    async with sickbay.connect({nats_server.url!r}) as router:
        assert router.decide(target).allowed
        async with router.attempt(target) as attempt:
            attempt.response(200, {{}}, b"")
        return await router.close()

def left(): return asyncio.run(main())
assert left().total == 0
router = sickbay.sync.connect({nats_server.url!r}, replica="threads")
with router.attempt(target) as attempt:
    attempt.ok()
assert router.close().total == 0
"""
    await ensure(nats_client)
    done = await asyncio.to_thread(without_extras, code)
    assert done.returncode == 0, done.stderr
    assert (await JetStreamApi(nats_client, timeout_s=5).stream_at(LOG)).last_seq == 2


def test_what_a_router_loads_imports_only_nats_msgspec_and_the_standard_library(router_side: list[Path]) -> None:
    allowed = {"nats", "msgspec", "sickbay", "sickbay_events", "sickbay_projections"} | set(sys.stdlib_module_names)
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in router_side
        for module, line in _imports(ast.parse(path.read_text(encoding="utf-8")))
        if module.partition(".")[0] not in allowed
    ]
    assert found == []


@pytest.mark.parametrize("package", [EVENTS, PROJECTIONS, SERVICES], ids=lambda path: path.name)
def test_each_package_says_that_it_is_typed(package: Path) -> None:
    assert (package / "py.typed").exists()
