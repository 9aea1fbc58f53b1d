"""The map of the package, as code. Moving a name here is a design decision."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
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
# A room of a package imports rooms of the lines below its own; a dot stands for the files beside the rooms.
# Rooms without a line below them and the files beside them may import each other.
ROOMS = {
    "control": ("manager", "dags jobs worker clients", "tasks load blobs member"),
    "cluster": ("membership leadership", "."),
    "engine": ("load handlers", "clients", "."),
    "store": ("dags history", "files", "."),
    "cli": ("demo importers live nodes",),
    "report": ("html outputs",),
}
# Edges that still point the wrong way, each with the reason why it stands.
KNOWN_EDGES: dict[tuple[str, str], str] = {}
MOST_LINES_OF_A_CLASS = 500
MOST_FILES_OF_A_FOLDER = 25
KNOWN_LARGE_CLASSES: set[str] = set()
KNOWN_LARGE_FOLDERS = {"store/sql/tasks"}
KNOWN_FILE_NAMES = {"records.py", "effects.py"}  # each room names its effects in a file of that name
# Public class names that two modules have, each with the reason.
SHARED_CLASS_NAMES = {
    "Client": "the same calls with `await` (client/client.py) and without (client/sync.py)",
    **dict.fromkeys(
        ("Check", "Metric", "Step", "Threshold", "Totals", "Workflow"),
        "the words of the result document are those of the language (report/document.py)",
    ),
}


@cache
def trees() -> list[tuple[Path, str, ast.Module]]:
    """(file, its name on the map, its syntax tree)."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        file = path.relative_to(ROOT)
        home = file.parts[0].removesuffix(".py")
        assert home in LEVEL, f"{file}: {home} is not on the map"
        found.append((file, home, ast.parse(path.read_text())))
    return found


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
    assert users <= {"engine/load/native.py", "engine/load/native_executor.py", "engine/clients/native_http.py"}


def test_decisions_import_no_io() -> None:
    for file, home, module in imports():
        assert home not in PURE or module.partition(".")[0] not in IMPURE, f"{file}: {module}"


def test_decisions_draw_nothing_from_the_world() -> None:
    for file, home, tree in trees():
        for node in ast.walk(tree):
            if home in PURE and isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert not DRAWS.match(called), f"{file}:{node.lineno}: {called}()"


def room_of(parts: tuple[str, ...]) -> str:
    """The room of a file or module, given as the parts of its path inside the package."""
    rooms = {room for line in ROOMS.get(parts[0], ()) for room in line.split()}
    return f"{parts[0]}/{parts[1] if len(parts) > 1 and parts[1] in rooms else '.'}"


def test_rooms_import_the_lines_below_their_own_and_never_each_other() -> None:
    lines = {f"{top}/{room}": n for top, all_ in ROOMS.items() for n, line in enumerate(all_) for room in line.split()}
    wrong = {}
    for file, home, module in imports():
        target = module.removeprefix("talka.").split(".")
        if home not in ROOMS or not module.startswith("talka.") or target[0] != home:
            continue
        ours, theirs = room_of(file.with_suffix("").parts), room_of(tuple(target))
        if ours != theirs and ours in lines and theirs in lines and lines[ours] >= lines[theirs]:
            wrong.setdefault((ours, theirs), f"{file} may not import {module}")
    assert [said for edge, said in wrong.items() if edge not in KNOWN_EDGES] == []


def test_every_room_is_on_the_map() -> None:
    for top, lines in ROOMS.items():
        rooms = {path.parent.name for path in (ROOT / top).glob("*/__init__.py")}
        assert rooms - {"sql"} <= set(" ".join(lines).split()), f"{top} has a room that its lines do not name"


def test_no_folder_has_too_many_files() -> None:
    counts = {
        str(folder.relative_to(ROOT)): sum(
            file.suffix not in (".so", ".pyc") and file.name != "__init__.py"
            for file in folder.iterdir()
            if file.is_file()
        )
        for folder in [ROOT, *ROOT.rglob("*")]
        if folder.is_dir()
    }
    large = {folder: count for folder, count in counts.items() if count > MOST_FILES_OF_A_FOLDER}
    assert set(large) <= KNOWN_LARGE_FOLDERS, large


def test_no_class_is_too_long() -> None:
    long = {
        node.name: f"{file}: {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for file, _, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= MOST_LINES_OF_A_CLASS
    }
    assert [said for name, said in long.items() if name not in KNOWN_LARGE_CLASSES] == []


def test_no_file_name_is_used_three_times() -> None:
    counts = Counter(path.name for path in ROOT.rglob("*.py") if path.name != "__init__.py")
    assert {name for name, count in counts.items() if count > 2} <= KNOWN_FILE_NAMES


def test_no_public_class_name_is_in_two_modules() -> None:
    modules: dict[str, list[str]] = {}
    for file, _, tree in trees():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules.setdefault(node.name, []).append(str(file))
    shared = {name: files for name, files in modules.items() if len(files) > 1}
    assert {name: files for name, files in shared.items() if name not in SHARED_CLASS_NAMES} == {}
