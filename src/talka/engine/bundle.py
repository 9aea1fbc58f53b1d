"""Packs a test for workers: the test file, the user's own modules and the data files it names, in one zip.

Whatever workers would miss is said before anything is sent: other people's modules, files that are not there, variables
that are set here and do not travel. The same files give the same bytes.

Decision: docs/decisions/0029-signed-by-managers-sealed-to-workers.md.
"""

import ast
import hashlib
import importlib.util
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import msgspec

from talka.engine.loader import as_path, import_root
from talka.engine.unpack import FILES_LIMIT, flaw_of_entry, flaw_of_name
from talka.errors import Invalid
from talka.wire.jobs import BLOB_LIMIT_BYTES
from talka.work.specs import BadWorkflows, SpecProblem, WorkflowSpec

LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)
"""The first instant a zip can tell: times must not make two bundles of the same files differ."""
REGULAR_FILE: Final = 0o100600 << 16
FOLDER: Final = 0o040700 << 16
UNIX: Final = 3
INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
"""Folders of modules that an installer put there: they are never the user's own."""
DISTRIBUTION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
IMPORT_ERRORS: Final = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})


class BundleLimits(msgspec.Struct, frozen=True):
    """What may travel with a test."""

    files: int = FILES_LIMIT
    file_bytes: int = 32 * 1024 * 1024
    total_bytes: int = 64 * 1024 * 1024
    """Bytes of all files, before they are packed."""
    bundle_bytes: int = BLOB_LIMIT_BYTES
    """Bytes of the bundle itself, which is a blob as any other."""
    problems: int = 100
    """Problems that are told; of more, only how many."""


BUNDLE_LIMITS: Final = BundleLimits()


class CannotTravel(BadWorkflows):
    """What workers would miss, all of it."""


class Bundle(msgspec.Struct, frozen=True):
    content: bytes
    digest: str
    file: str
    """The test file inside the bundle."""
    env: dict[str, str]
    """Variables that travel with it."""


def make_bundle(
    path: str,
    specs: Sequence[WorkflowSpec],
    sent_env: Mapping[str, str],
    *,
    allow_modules: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    limits: BundleLimits = BUNDLE_LIMITS,
) -> Bundle:
    """The bundle of a file whose workflows `specs` were loaded by this process.

    `allow_modules` names modules or distributions that are on every worker. `environment` is what is set here: this
    process's own when it is not given.
    """
    packer = Packer(path)
    scans = packer.add_sources()
    packer.add_data(specs)
    packer.problems += missing_modules(packer, scans, allow_modules)
    packer.problems += unsent_variables(packer, scans, sent_env, os.environ if environment is None else environment)
    content = finished(packer, limits)
    return Bundle(content, hashlib.sha256(content).hexdigest(), packer.file, dict(sent_env))


def finished(packer: "Packer", limits: BundleLimits) -> bytes:
    """The content of the bundle. Raises `CannotTravel` with all that is wrong."""
    packer.check_limits(limits)
    content = packer.packed() if not packer.problems else b""
    if len(content) > limits.bundle_bytes:
        packer.problem(f"its bundle has {len(content)} bytes: it may have {limits.bundle_bytes}")
    if packer.problems:
        unique = list(dict.fromkeys(packer.problems))
        if (more := len(unique) - limits.problems) > 0:
            unique = [*unique[: limits.problems], SpecProblem(f"and {more} more", packer.path)]
        raise CannotTravel(unique)
    return content


class VariableRead(NamedTuple):
    variable: str
    file: str
    line: int


class PackedHandlers(NamedTuple):
    """Files with handlers, and what they need."""

    content: bytes
    digest: str
    files: tuple[str, ...]
    """Those with handlers, inside."""
    reads: tuple[VariableRead, ...]
    """Variables that are set here and do not travel."""


def pack_handlers(
    paths: Sequence[str], *, allow_modules: Sequence[str] = (), limits: BundleLimits = BUNDLE_LIMITS
) -> PackedHandlers:
    """The bundle of files that this process has imported, with modules of the user's that they need. Files that are no
    Python travel along, as data.

    `allow_modules` is as in `make_bundle`. Variables do not travel: handlers have those of their worker.
    """
    python = [path for path in paths if path.endswith(".py")]
    packer = Packer(python[0])
    for path in python[1:]:
        packer.add_file(path)
    scans = packer.add_sources()
    for path in paths:
        if path not in python:
            packer.add_data_file(path)
    packer.problems += missing_modules(packer, scans, allow_modules)
    content = finished(packer, limits)
    reads = tuple(variables_set_here(packer, scans, os.environ))
    return PackedHandlers(content, hashlib.sha256(content).hexdigest(), tuple(packer.given), reads)


def names_in(content: bytes) -> list[str]:
    """The files of a bundle that was packed here."""
    with ZipFile(io.BytesIO(content)) as archive:
        return [info.filename for info in archive.infolist() if not info.is_dir()]


class Packer:
    """Collects the files of one bundle, each under its place below the root of the test's imports."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.problems: list[SpecProblem] = []
        test = Path(path).resolve()
        self.root, names = import_root(test)
        self.file = test.relative_to(self.root).as_posix()
        self.given = [self.file]
        """The files that are run, and not only imported by others."""
        self._package = names[0] if len(names) > 1 else ""
        self._files: dict[str, Path] = {}
        self._folders: dict[str, None] = {}

    def problem(self, text: str) -> None:
        self.problems.append(SpecProblem(text, self.path))

    # The user's own modules.

    def add_file(self, path: str) -> None:
        """Another one that is run. Workers import it from where they import the first one."""
        full = Path(path).resolve()
        root, _ = import_root(full)
        if root != self.root:
            text = f"is imported from {root}, and {self.path} from {self.root}: put both into one folder"
            self.problems.append(SpecProblem(text, path))
        elif (name := full.relative_to(root).as_posix()) not in self.given:
            self.given.append(name)

    def add_data_file(self, path: str) -> None:
        full = Path(path).resolve()
        if not full.is_file():
            text = "is a folder: name the files in it" if full.is_dir() else "there is no such file"
            self.problems.append(SpecProblem(text, path))
        elif not full.is_relative_to(self.root):
            text = f"is outside {self.root}, and only what is below that travels: put it beside {self.path}"
            self.problems.append(SpecProblem(text, path))
        else:
            self._files[full.relative_to(self.root).as_posix()] = full

    def add_sources(self) -> dict[str, "SourceReader"]:
        """Add the test file and every module of the user's that it needs; what each of them says, by its name."""
        scans: dict[str, SourceReader] = {}
        # Also those that were imported, and that no import statement names.
        loaded = [self._place(module) for module in sorted(sys.modules) if self.is_own(module)]
        open_names = [*self.given, *(place for place in loaded if place is not None)]
        while open_names:
            name = open_names.pop()
            if name in scans:
                continue
            self._files[name] = self.root / name
            scans[name] = scan(self._files[name], name.rpartition("/")[0].replace("/", "."))
            for found in scans[name].imports:
                open_names += self._places(found.module)
        return {name: scans[name] for name in sorted(scans)}

    def _places(self, module: str) -> list[str]:
        """The files of the user's that importing this module runs: its own, and those of the packages around it."""
        parts = module.split(".")
        if not self.is_own(parts[0]):
            return []
        names = [".".join(parts[: length + 1]) for length in range(len(parts))]
        return [place for name in names if (place := self._place(name)) is not None]

    def _place(self, module: str) -> str | None:
        """Where workers look for a module of this name, if its source is there."""
        base = module.replace(".", "/")
        for place in (f"{base}/__init__.py", f"{base}.py"):
            if (self.root / place).is_file():
                return place
        return None

    def is_own(self, module: str) -> bool:
        """Whether this name, a top-level one or one that is loaded, means a module of the user's below the root."""
        top = module.partition(".")[0]
        if is_everywhere(top) or (top != self._package and not INSTALLED.isdisjoint(self.root.parts)):
            return False
        file, folders = whereabouts(module)
        if file is None:
            return str(self.root / module.replace(".", "/")) in folders
        # Another module of the same name may come first.
        place = self._place(module)
        return place is not None and Path(file).resolve() == (self.root / place).resolve()

    def shown(self, name: str) -> str:
        """How a file of the bundle is named to the user."""
        return self.path if name == self.file else os.path.relpath(self.root / name)

    # Data.

    def add_data(self, specs: Sequence[WorkflowSpec]) -> None:
        base = PurePosixPath(self.file).parent
        for spec in specs:
            for name, feed in spec.feeds.items():
                self._add_named(f"{spec.name}.{name}", "file", feed.path, base)
            for node in spec.every_node:
                for name, (kind, value) in node.optimized.items():
                    if kind in ("file", "directory", "glob") and value is not None:
                        self._add_named(f"{spec.name}.{node.name}, {name}", kind, value, base)
        for spec in specs:
            if isinstance(spec.workflow.verify, str):
                self._add_authorities(f"{spec.name}.verify", spec.workflow.verify)

    def _add_named(self, parameter: str, kind: str, value: object, base: PurePosixPath) -> None:
        try:
            given = as_path(value)
            if os.path.isabs(given):
                raise Invalid(
                    f"{given} is an absolute path, which workers do not have: put it beside the test file and name it "
                    "relative to that"
                )
            for path in self._meant(given, self.root / base, kind):
                self._files[self._walked(path, base)] = self.root / base / path
        except Invalid as error:
            self.problem(f"{parameter}: {error}")

    def _meant(self, given: str, base: Path, kind: str) -> list[str]:
        """Every file that is meant, relative to the test file's folder."""
        try:
            match kind:
                case "file":
                    found = [base / given]
                case "directory":
                    found = list((base / given).iterdir())
                case _:
                    found = list(base.glob(given))
            found = sorted(path for path in found if path.is_file())
        except (OSError, ValueError, IndexError, NotImplementedError) as error:  # all but the first: of odd patterns
            raise Invalid(f"{given} cannot be looked up in {base}, the test file's folder: {error}") from None
        if not found:
            what = {"file": f"there is no file {given}", "directory": f"the folder {given} has no files"}
            raise Invalid(
                f"{what.get(kind, f'no file matches {given}')} in {base}, the test file's folder: put it there"
            )
        return [str(path.relative_to(base)) for path in found]

    def _walked(self, given: str, base: PurePosixPath) -> str:
        """The name a relative path leads to, taken step by step as the file system will: it must never leave the
        root."""
        parts = list(base.parts)
        for part in Path(given).parts:
            if part != "..":
                parts.append(part)
                continue
            if not parts:
                raise Invalid(
                    f"{given} is outside {self.root}, and only what is below that travels: "
                    "put it beside the test file and name it relative to that"
                )
            self._folders["/".join(parts)] = None  # it must be there to be left again
            parts.pop()
        return "/".join(parts)

    def _add_authorities(self, parameter: str, given: str) -> None:
        """Certificates are named relative to the current folder. On a worker that is the root of the bundle."""
        try:
            if os.path.isabs(given) or not os.path.isfile(given):
                raise Invalid(
                    f"{given} is not a file below the current folder: put it there and name it relative to that"
                )
            name = self._walked(given, PurePosixPath())
            if name in self._files and not os.path.samefile(self._files[name], given):
                raise Invalid(f"{given} is also the name of another file of this test: rename one of them")
            self._files[name] = Path(os.path.abspath(given))
        except Invalid as error:
            self.problem(f"{parameter}: {error}")

    # The zip.

    def check_limits(self, limits: BundleLimits) -> None:
        for name in [*self._files, *self._folders]:
            if flaw := flaw_of_name(name) or flaw_of_text(name):
                self.problem(f"{name!r} cannot travel: it {flaw}; rename it")
        entries = len(self._files) + len(self._folders)
        if entries > limits.files:
            self.problem(f"{entries} files would travel with it: at most {limits.files} may; name fewer")
            return
        total_bytes = 0
        for name, path in self._files.items():
            try:
                size = path.stat().st_size
            except OSError as error:
                self.problem(f"{name} cannot be read: {error.strerror}")
                continue
            total_bytes += size
            if size > limits.file_bytes:
                self.problem(f"{name} has {size} bytes: a file that travels may have {limits.file_bytes}")
        if total_bytes > limits.total_bytes:
            self.problem(f"its files have {total_bytes} bytes together: {limits.total_bytes} may travel")

    def packed(self) -> bytes:
        content, dense = self._zipped({})
        # Workers refuse what is packed too well: it might be made to fill their disks.
        return self._zipped(dense)[0] if dense else content

    def _zipped(self, stored: Mapping[str, None]) -> tuple[bytes, dict[str, None]]:
        """The zip, and the files in it that are packed too well."""
        buffer = io.BytesIO()
        with ZipFile(buffer, "w") as archive:
            for name in sorted([*self._files, *(f"{folder}/" for folder in self._folders)]):
                info = ZipInfo(name, LONG_AGO)
                info.create_system = UNIX
                info.external_attr = FOLDER if info.is_dir() else REGULAR_FILE
                info.compress_type = ZIP_STORED if info.is_dir() or name in stored else ZIP_DEFLATED
                archive.writestr(info, b"" if info.is_dir() else self._read(name))
            dense = {info.filename: None for info in archive.infolist() if flaw_of_entry(info)}
        return buffer.getvalue(), dense

    def _read(self, name: str) -> bytes:
        try:
            return self._files[name].read_bytes()
        except OSError as error:
            raise CannotTravel([SpecProblem(f"{name} cannot be read: {error.strerror}", self.path)]) from None


# Modules and variables.


def missing_modules(packer: Packer, scans: Mapping[str, "SourceReader"], allowed: Sequence[str]) -> list[SpecProblem]:
    missing: dict[tuple[str, str], int] = {}
    for name, found in scans.items():
        has_run = name in packer.given or module_of(name) in sys.modules
        for each in found.imports:
            top = each.module.partition(".")[0]
            # A statement that was passed over here, such as one for another version of Python, is so there too.
            is_needed = each.is_deferred or not has_run or top in sys.modules
            if is_needed and not each.is_guarded and not is_everywhere(top) and not packer.is_own(top):
                missing.setdefault((name, top), each.line)
    if not missing:
        return []
    distributions = metadata.packages_distributions()
    sure = {normal(name) for name in (*own_requirements(), *allowed)}
    return [
        SpecProblem(
            f"imports {top}, which workers may not have: put its source beside {packer.path}, "
            f"or install it on every worker and say --workers-have {top}",
            packer.shown(name),
            line,
        )
        for (name, top), line in missing.items()
        if sure.isdisjoint(normal(each) for each in (top, *distributions.get(top, ())))
    ]


def unsent_variables(
    packer: Packer, scans: Mapping[str, "SourceReader"], sent: Mapping[str, str], environment: Mapping[str, str]
) -> list[SpecProblem]:
    return [
        SpecProblem(
            f"reads the variable {read.variable}, which is set here and would not be on workers: "
            f"send it with --env {read.variable}, or unset it",
            read.file,
            read.line,
        )
        for read in variables_set_here(packer, scans, environment)
        if read.variable not in sent
    ]


def variables_set_here(
    packer: Packer, scans: Mapping[str, "SourceReader"], environment: Mapping[str, str]
) -> Iterator[VariableRead]:
    """Those that the sources read."""
    for name, found in scans.items():
        for variable, line in found.variables.items():
            if variable in environment:
                yield VariableRead(variable, packer.shown(name), line)


def is_everywhere(top: str) -> bool:
    return top == "talka" or top in sys.stdlib_module_names


def whereabouts(module: str) -> tuple[str | None, list[str]]:
    """The file of a module, and its folders when it is a package. Imports nothing."""
    if (loaded := sys.modules.get(module)) is not None:
        return getattr(loaded, "__file__", None), list(getattr(loaded, "__path__", ()))
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return None, []
    return spec.origin if spec.has_location else None, list(spec.submodule_search_locations or ())


def own_requirements() -> list[str]:
    """Distributions that are wherever Talka is, without those of its extras."""
    try:
        required = metadata.requires("talka") or []
    except metadata.PackageNotFoundError:  # run from its sources
        return []
    return [found[0] for text in required if "extra ==" not in text and (found := DISTRIBUTION.match(text))]


def normal(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def flaw_of_text(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        return "has characters in its name that are no text"
    return ""


def module_of(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


# What a source says without being run.


class Import(msgspec.Struct, frozen=True):
    module: str
    """Or a name in one: that is not told apart without running it."""
    line: int
    is_deferred: bool
    """Inside a function: it may not have run yet."""
    is_guarded: bool
    """The source itself says what happens without it."""


def scan(path: Path, package: str) -> "SourceReader":
    reader = SourceReader(package)
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return reader  # it was never run here, or it would have been refused already
    reader.visit(tree)
    return reader


class SourceReader(ast.NodeVisitor):
    """Reads the imports of a source and the variables it wants."""

    def __init__(self, package: str) -> None:
        """`package` is what relative imports start from."""
        self.imports: list[Import] = []
        self.variables: dict[str, int] = {}
        """Variables of the environment that it reads by name, each with the first line that does."""
        self._package = package
        self._functions = 0
        self._guards = 0
        # What stands for the module, its mapping and its function; imports come before uses.
        self._names: dict[str, str] = {}

    # Imports.

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._found(alias.name, node.lineno)
            if alias.name == "os" or (alias.name.startswith("os.") and alias.asname is None):
                self._names[alias.asname or "os"] = "os"

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level:
            around = self._package.split(".") if self._package else []
            if node.level > len(around):
                return  # it leads out of its package, and raises when it is run
            module = ".".join([*around[: len(around) - node.level + 1], *([module] if module else [])])
        self._found(module, node.lineno)
        for alias in node.names:
            if alias.name != "*":
                self._found(f"{module}.{alias.name}", node.lineno)
            if module == "os":
                self._names[alias.asname or alias.name] = f"os.{alias.name}"

    def _found(self, module: str, line: int) -> None:
        self.imports.append(Import(module, line, self._functions > 0, self._guards > 0))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._functions += 1
        self.generic_visit(node)
        self._functions -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING":
            self._visit_all(node.orelse)
        else:
            self.generic_visit(node)

    def visit_Try(self, node: ast.Try) -> None:
        if any(names_import_error(handler.type) for handler in node.handlers):
            # Either way may be the one that is taken.
            self._guards += 1
            self._visit_all([*node.body, *node.handlers])
            self._guards -= 1
            self._visit_all([*node.orelse, *node.finalbody])
        else:
            self.generic_visit(node)

    def visit_With(self, node: ast.With) -> None:
        is_guard = any(
            isinstance(item.context_expr, ast.Call)
            and called(item.context_expr) == "suppress"
            and any(names_import_error(argument) for argument in item.context_expr.args)
            for item in node.items
        )
        self._guards += is_guard
        self.generic_visit(node)
        self._guards -= is_guard

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    # Calls, and variables.

    def visit_Call(self, node: ast.Call) -> None:
        text = text_of(node.args[0]) if node.args else None
        if text:
            if called(node) in ("import_module", "__import__") and not text.startswith("."):
                self._found(text, node.lineno)
            if self._meaning(node.func) == "os.getenv":
                self._reads(text, node.lineno)
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop", "setdefault"):
                if self._meaning(node.func.value) == "os.environ":
                    self._reads(text, node.lineno)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.ctx, ast.Load) and self._meaning(node.value) == "os.environ":
            self._reads(text_of(node.slice), node.lineno)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if isinstance(node.ops[0], ast.In | ast.NotIn) and self._meaning(node.comparators[0]) == "os.environ":
            self._reads(text_of(node.left), node.lineno)
        self.generic_visit(node)

    def _meaning(self, node: ast.expr) -> str:
        """`os.environ` or `os.getenv`, by whatever name they are called here."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, "")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return f"os.{node.attr}" if self._names.get(node.value.id) == "os" else ""
        return ""

    def _reads(self, variable: str | None, line: int) -> None:
        if variable is not None:
            self.variables.setdefault(variable, line)


def text_of(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def called(node: ast.Call) -> str:
    """The last part of what is called: `suppress` of `contextlib.suppress(...)`."""
    return ast.unparse(node.func).rpartition(".")[2]


def names_import_error(node: ast.expr | None) -> bool:
    """Whether an `except` of this catches an import that fails."""
    if node is None:
        return True
    names = node.elts if isinstance(node, ast.Tuple) else [node]
    return any(ast.unparse(name) in IMPORT_ERRORS for name in names)
