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
DECISIONS = {"control", "cluster", "wire"}
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
    "engine": ("load handlers", "bundle", "loader", "clients", "."),
    "store": ("dags history", "files", "."),
    "work": ("dags", "."),
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
TESTS = Path(__file__).parent
CONSTANT = re.compile(r"_*[A-Z][A-Z0-9_]+")
PATCHES = re.compile(r"""\b(setattr|object|patch)\(|^\s*\w+\.[A-Z0-9_]+ \+?= """, re.MULTILINE)
NAMED = re.compile(r"""["'.][A-Z_][A-Z0-9_]+(["']| \+?= )""")
# Folders whose tests patch constants, each with the reason.
KNOWN_PATCHES = {
    "e2e/next_version": "it is another version of the protocol, in processes of its own; none of it is a limit",
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


def test_only_the_table_of_stores_knows_which_engines_there_are() -> None:
    """Everybody else has a `Store`. The simulator stands on SQLite's blocking half: it has no threads."""
    users = {
        str(file)
        for file, _, module in imports()
        if module.startswith("talka.store.dags.sqlite") and not str(file).startswith("store/dags/sqlite")
    }
    assert users == {"store/dags/opening.py", "testing/store_shell.py"}
    named = {str(file) for file, _, tree in trees() for node in ast.walk(tree) if "Sqlite" in names_in(node)}
    assert {file for file in named if "/history/" not in file and "/dags/sqlite" not in file} == users


def names_in(node: ast.AST) -> str:
    """Also in annotations that are strings."""
    if isinstance(node, ast.Name):
        return node.id
    annotation = getattr(node, "annotation", None) or getattr(node, "returns", None)
    return ast.unparse(annotation) if isinstance(annotation, ast.AST) else ""


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


def is_idle(tree: ast.Module) -> bool:
    """Of a file that says that what is in it waits for its user."""
    return bool(re.search(r"No\s+node\s+uses\s+th(is|ese)", ast.get_docstring(tree) or ""))


def mentioned(part: ast.AST) -> Iterator[str]:
    for node in ast.walk(part):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.Constant(value=str() as text) if text.isidentifier():
                yield text  # an annotation in quotes


def test_every_decision_is_made_by_some_node_or_says_that_none_does_yet() -> None:
    """Classes and functions that nothing else in the package names. What only tests and the simulator use does not
    count: a protocol that is written and proven, and that no node speaks, looks like one that is there."""
    users: dict[str, set[tuple[str, str]]] = {}
    for file, home, tree in trees():
        if home == "testing" or is_idle(tree):
            continue
        for part in tree.body:
            if not isinstance(part, ast.Import | ast.ImportFrom):
                for name in mentioned(part):
                    users.setdefault(name, set()).add((str(file), getattr(part, "name", "")))
    idle = [
        f"{file}: {part.name}"
        for file, home, tree in trees()
        if home in DECISIONS and not is_idle(tree)
        for part in tree.body
        if isinstance(part, ast.ClassDef | ast.FunctionDef) and not part.name.startswith("_")
        if not users.get(part.name, set()) - {(str(file), part.name)}
    ]
    assert idle == []


def patched(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of what a file of tests puts something else in place of, where it is of this package."""
    names: dict[str, str] = {}
    loops: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=found):
                names.update({alias.asname or alias.name: alias.name for alias in found})
            case ast.ImportFrom(module=str(module), names=found):
                names.update({alias.asname or alias.name: f"{module}.{alias.name}" for alias in found})
            case ast.For(target=ast.Name(id=name), iter=values):
                texts = [one.value for one in ast.walk(values) if isinstance(one, ast.Constant)]
                loops.setdefault(name, []).extend(str(text) for text in texts)

    def owner_of(node: ast.expr) -> str:
        """As it was imported; of what is no import, as it is written."""
        text = ast.unparse(node)
        first, _, rest = text.partition(".")
        return ".".join(part for part in (names.get(first, f"?{first}"), rest) if part)

    def texts_of(node: ast.expr) -> list[str]:
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=[*_, ast.Constant(value=str(end))]):
                return [f"talka{end}"]
            case ast.Name(id=name):
                return loops.get(name, [])
        return []

    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="setattr" | "object"), args=[ast.expr() as owner, ast.expr() as name, _, *_]
            ):
                yield from ((node.lineno, f"{owner_of(owner)}.{text}") for text in texts_of(name))
            case ast.Call(func=ast.Name(id="setattr"), args=[owner, name, _]):
                yield from ((node.lineno, f"{owner_of(owner)}.{text}") for text in texts_of(name))
            case ast.Call(func=ast.Attribute(attr="setattr" | "patch") | ast.Name(id="patch"), args=[target, *_]):
                yield from ((node.lineno, text) for text in texts_of(target))
            case (
                ast.Assign(targets=[ast.Attribute(value=ast.Name() as owner, attr=name)])
                | ast.AugAssign(target=ast.Attribute(value=ast.Name() as owner, attr=name))
            ):
                yield node.lineno, f"{owner_of(owner)}.{name}"


def test_no_test_patches_a_limit() -> None:
    """What a test wants otherwise it hands in: docs/decisions/0043-limits-are-handed-in.md."""
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text()
        folder = path.relative_to(TESTS).parent.as_posix()
        if any(f"{folder}/".startswith(f"{known}/") for known in KNOWN_PATCHES):
            continue
        if not PATCHES.search(text) or not NAMED.search(text):  # most files; the others are parsed
            continue
        for line, name in patched(ast.parse(text)):
            owner, _, last = name.rpartition(".")
            if owner.startswith(("talka", "?")) and not owner.startswith("?self"):
                assert not CONSTANT.fullmatch(last), f"{path.relative_to(TESTS)}:{line} patches {name}: hand it in"


def test_what_a_test_patches_is_seen_however_it_does_it() -> None:
    source = """
import os
from unittest.mock import patch
from talka.net import streams as module
monkeypatch.setattr(module, "LINKS", 1)
monkeypatch.setattr("talka.net.streams.CLOSE_S", 1)
for room in ("a", "b"):
    monkeypatch.setattr(f"talka.net.{room}.LIMIT", 1)
for name in ("PAGE", "AGAIN_S"):
    monkeypatch.setattr(module, name, 1)
patch.object(module, "RETRIES", 1)
patch("talka.net.streams.IDLE_NS")
module.SWEEP_S = 1
module.MOST += 1
setattr(module, "STRANGERS", 1)
monkeypatch.setattr(os, "O_CLOEXEC", 0)
"""
    of_streams = ("LINKS", "PAGE", "AGAIN_S", "RETRIES", "SWEEP_S", "MOST", "STRANGERS", "CLOSE_S", "IDLE_NS")
    assert {name for _, name in patched(ast.parse(source))} == {
        *(f"talka.net.streams.{name}" for name in of_streams),
        "talka.LIMIT",
        "os.O_CLOEXEC",
    }
