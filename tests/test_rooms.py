"""The packages and their rooms, what each may import, read from the syntax tree; the router side stays light.

A room is a folder of a package. `ROOMS` is the one table of what a room may import besides itself and the ground.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import importlib.metadata
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
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
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

# What a pure package may use of the standard library: nothing here reads a clock, a network, a disk, the
# environment or a random source. Anything else needs a reason, and a line here.
PURE_STDLIB = frozenset(
    """__future__ abc array base64 binascii bisect codecs collections collections.abc contextlib copy dataclasses
    datetime difflib email.utils enum functools hashlib heapq html html.entities io ipaddress itertools json math
    operator re string struct textwrap tomllib types typing unicodedata urllib.parse zlib
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


@pytest.mark.parametrize("root", ["events", "projections", "services"])
def test_a_source_root_is_no_package(root: str) -> None:
    assert not (ROOT / root / "__init__.py").exists()
    assert not list((ROOT / root).glob("*.py")), "a module in the root would take a name that others own"


def test_events_import_msgspec_and_pure_standard_library_only() -> None:
    packages = frozenset({"msgspec", "sickbay_events"})
    assert [line for path in _modules(EVENTS) for line in _foreign(path, packages)] == []


def test_projections_import_events_and_pure_standard_library_only() -> None:
    packages = frozenset({"msgspec", "sickbay_events", "sickbay_projections"})
    assert [line for path in _modules(PROJECTIONS) for line in _foreign(path, packages)] == []


@pytest.mark.parametrize("package", [EVENTS, PROJECTIONS], ids=["events", "projections"])
def test_a_pure_package_calls_nothing_that_differs_from_run_to_run(package: Path) -> None:
    assert [line for path in _modules(package) for line in _impure(path)] == []


def test_the_checks_above_see_what_they_forbid(tmp_path: Path) -> None:
    """A check that cannot fail is none: here is a module that breaks each rule once."""
    module = tmp_path / "broken.py"
    module.write_text("import os\nfrom .names import token\nfrom time import time\nopen('x')\na.now()\nhash('x')\n")
    assert list(_foreign(module, frozenset())) == ["broken.py:1 imports os", "broken.py:3 imports time"]
    assert list(_impure(module)) == ["broken.py:4 calls open", "broken.py:5 calls a.now", "broken.py:6 calls hash"]


PACKAGES = {"sickbay_events": EVENTS, "sickbay_projections": PROJECTIONS, "sickbay": SERVICES}
GROUND = "durations invalid loggers throttled tomlfile when"
"""Modules that every room of the services may import; `config` is open to all but `bus`, on which it stands."""
RULE = """A room imports itself, sickbay_events, the ground (GROUND, and config except in bus) and the
rooms that its row of ROOMS names. Move the code to the room in which it belongs, or take what it needs as an argument.
A new arrow needs a reason, a word in the row and in the docstring of the room's __init__."""
ROOMS = {
    "config": "bus",
    "bus": "",
    "view": "bus",
    "router": "bus view projections",
    "integrations": "router",
    "log": "bus projections",
    "control": "bus",
    "metrics": "bus view router sync projections",
    "projector": "bus view log control projections",
    "historian": "bus log projections",
    "alerts": "bus",
    "doctor": "bus log control projections",
    "prober": "bus view control router projections",
    "service": "bus router log control metrics projector historian alerts doctor prober projections",
    "api": "bus view router log control historian metrics service projections",
    "replay": "bus log control router projections",
    "importers": "log",
    "nats_config": "bus",
    "cli": "*",
    # The faces: modules that people import, each a few lines before a room.
    "__init__": "router",
    "sync": "bus router",
    "httpx": "integrations",
    "testing": "bus view router projections",
    "tracing": "router",
    "app": "service",
    "__main__": "cli",
}
PURE_RULE = """In the projections a rule stands on the state, the face on the rules, replay on the face, never the other
way round: move the code down, or hand in what it needs as an argument."""
PURE_ROOMS = {
    "state": "",
    "rules": "state",
    "face": "state rules",
    "replay": "state rules face",
    "testing": "state face",
}
FACE = {"", "alone", "fold", "decide", "entries", "document", "weighing"}
ROUTER_SIDE = {"events", "projections", "bus", "view", "router", *GROUND.split(), "config"}


def _by_name() -> dict[str, Path]:
    """Every module of the product by its dotted name."""
    return {
        ".".join((package, *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__"): path
        for package, root in PACKAGES.items()
        for path in _modules(root)
    }


@cache
def _arrows() -> dict[str, dict[str, int]]:
    """Module -> the product's modules that it imports, with the line: also in functions, and for types alone."""
    modules = _by_name()
    found: dict[str, dict[str, int]] = {name: {} for name in modules}
    for name, path in modules.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                asked = [(alias.name, "") for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                inside = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                asked = [(".".join([*inside, *filter(None, [node.module])]), alias.name) for alias in node.names]
            else:
                continue
            for module, part in asked:
                at = f"{module}.{part}" if f"{module}.{part}" in modules else module
                if at in modules and at != name:
                    found[name].setdefault(at, node.lineno)
    return found


def _room(module: str) -> str:
    """The room of a module: a folder's name, or its own name where it is of the ground or a face."""
    package, _, inside = module.partition(".")
    if package == "sickbay_events":
        return "events"
    first = inside.partition(".")[0]
    if package == "sickbay_projections":
        return "projections." + ("face" if first in FACE else first)
    return first or "__init__"


def _seen(room: str) -> str:
    """A room as another package sees it: projections is one."""
    return room.partition(".")[0]


def _line(module: str, imported: str) -> str:
    return f"{_by_name()[module].relative_to(ROOT)}:{_arrows()[module][imported]} imports {imported}"


def test_a_room_imports_only_what_its_row_names() -> None:
    found: list[str] = []
    for module, arrows in _arrows().items():
        room = _room(module)
        if module.split(".")[0] != "sickbay" or ROOMS.get(room) == "*":
            continue
        allowed = {room, "events", *GROUND.split()}
        if room not in GROUND.split():
            allowed |= {*ROOMS[room].split()} | ({"config"} if room != "bus" else set())
        found += [_line(module, to) for to in arrows if _seen(_room(to)) not in allowed]
    assert not found, "\n".join([RULE, *found])


def test_a_rule_stands_on_the_state_and_the_face_on_the_rules() -> None:
    found = [
        _line(module, to)
        for module, arrows in _arrows().items()
        if module.startswith("sickbay_projections.")
        for room, other in [(_room(module).partition(".")[2], _room(to).partition(".")[2]) for to in arrows]
        if other and other != room and other not in PURE_ROOMS[room].split()
        for to in arrows
        if _room(to).endswith(f".{other}")
    ]
    assert not set(found), "\n".join([PURE_RULE, *sorted(set(found))])


def _circle(arrows: dict[str, Iterable[str]]) -> list[str]:
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert _circle({module: set(arrows) for module, arrows in _arrows().items()}) == []


def test_no_rooms_import_each_other_in_a_circle() -> None:
    rooms: dict[str, set[str]] = defaultdict(set)
    for module, arrows in _arrows().items():
        rooms[_room(module)] |= {_room(to) for to in arrows} - {_room(module)}
    assert _circle(dict(rooms)) == []


@pytest.mark.parametrize("room", sorted(room for room in ROOMS if (SERVICES / room).is_dir()))
def test_a_room_says_who_lives_in_it_and_what_it_may_import(room: str) -> None:
    """In the docstring of its `__init__`: one sentence that names the rooms of its row."""
    text = " ".join((importlib.import_module(f"sickbay.{room}").__doc__ or "").split())
    said = re.search(r"May import ([^.;]*?)[.;]", text)
    assert said is not None, f"{room}/__init__.py does not say what the room may import"
    assert text.index(said[0]) > 20, f"{room}/__init__.py does not say first who lives there"
    if ROOMS[room] != "*":
        assert set(re.findall(r"`(\w+)`", said[1])) == set(ROOMS[room].split())


def test_every_room_has_a_row() -> None:
    folders = {path.parent.name for path in SERVICES.glob("*/__init__.py")}
    modules = {path.stem for path in SERVICES.glob("*.py")}
    assert folders | modules <= set(ROOMS) | set(GROUND.split())


def test_the_architecture_page_lists_every_room_and_folders_of_tests_that_exist() -> None:
    rows = re.findall(r"^\| `([\w/]+)`[^|]* \| [^|]+ \| ([^|]+) \|$", ARCHITECTURE, re.MULTILINE)
    rooms = [path.parent.relative_to(ROOT) for package in PACKAGES.values() for path in package.glob("*/__init__.py")]
    listed = [room for room, tests in rows if "tests/" in tests]
    assert set(listed) == {*map(str, rooms), *(str(package.relative_to(ROOT)) for package in PACKAGES.values())}
    folders = re.findall(r"`(tests/\w+)`", "".join(tests for _, tests in rows))
    assert [folder for folder in folders if not any((ROOT / folder).glob("test_*.py"))] == []


def test_the_router_stands_on_the_ground_the_bus_and_the_view_alone(router_side: list[Path]) -> None:
    """What `import sickbay, sickbay.sync, sickbay.testing` loads is these rooms and the faces."""
    modules = {path: name for name, path in _by_name().items()}
    rooms = {_seen(_room(modules[path])) for path in router_side}
    assert rooms <= ROUTER_SIDE | {"__init__", "sync", "testing", "tracing"}


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


def test_the_version_is_the_distributions_and_read_when_asked_for() -> None:
    code = """
import sickbay
assert "__version__" not in vars(sickbay)
print(sickbay.__version__)
try: sickbay.no_such_name
except AttributeError as error: print(error)
"""
    lines = without_extras(code).stdout.splitlines()
    assert lines == [importlib.metadata.version("sickbay"), "module 'sickbay' has no attribute 'no_such_name'"]


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
