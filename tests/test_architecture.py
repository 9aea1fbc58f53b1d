"""The map of the package, as code. Moving a name here is a design decision."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import talka

# A name may import from the lines below its own; never from its own line or above.
MAP = """__init__ __main__
cli testing
web nodes
client
engine
net store report _native
clock
control
cluster
wire
work
stats
errors ids units version"""
LEVEL = {name: level for level, line in enumerate(MAP.splitlines()) for name in line.split()}
FORBIDDEN = {("engine", "store"), ("engine", "report")}  # below it on the map, and still not its business
PURE = {"control", "cluster", "wire", "work", "stats"}
IMPURE = set(
    "asyncio concurrent http logging multiprocessing os secrets select selectors signal"
    " socket sqlite3 ssl subprocess tempfile threading time urllib".split()
)
# A core may name these modules' types; it may not draw from the world through them.
DRAWS = re.compile(
    r"random\.(?!Random$)|uuid\.uuid|(datetime\.)?datetime\.now|date\.today|open$|.*\.(read|write)_(text|bytes)$"
)
ROOT = Path(talka.__file__).parent


def trees() -> Iterator[tuple[Path, str, ast.Module]]:
    """(file, its name on the map, its syntax tree)."""
    for path in sorted(ROOT.rglob("*.py")):
        file = path.relative_to(ROOT)
        home = file.parts[0].removesuffix(".py")
        assert home in LEVEL, f"{file}: {home} is not on the map"
        yield file, home, ast.parse(path.read_text())


def imports() -> Iterator[tuple[Path, str, str]]:
    """(file, name on the map, module it imports), also for imports inside functions."""
    for file, home, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from ((file, home, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0 and node.module != "talka", f"{file}: name the defining module"
                yield file, home, str(node.module)


def test_imports_point_down_the_map() -> None:
    for file, home, module in imports():
        top, _, rest = module.partition(".")
        target = rest.partition(".")[0]
        if top != "talka" or target == home:
            continue
        assert target in LEVEL, f"{file}: {module} is not on the map"
        assert LEVEL[home] < LEVEL[target], f"{file} may not import {module}"
        assert (home, target) not in FORBIDDEN, f"{file} may not import {module}"


def test_only_what_chooses_and_wraps_the_native_engine_imports_it() -> None:
    users = {str(file) for file, _, module in imports() if module == "talka._native"}
    assert users <= {"engine/load/native.py", "engine/clients/native_http.py"}


def test_decisions_import_no_io() -> None:
    for file, home, module in imports():
        assert home not in PURE or module.partition(".")[0] not in IMPURE, f"{file}: {module}"


def test_decisions_draw_nothing_from_the_world() -> None:
    for file, home, tree in trees():
        for node in ast.walk(tree):
            if home in PURE and isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert not DRAWS.match(called), f"{file}:{node.lineno}: {called}()"
