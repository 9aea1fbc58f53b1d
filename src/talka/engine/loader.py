"""Imports a user's file and finds the workflows in it. What is wrong is said with file and line."""

import ast
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import cast

from talka.engine.clients.table import CLIENTS
from talka.engine.unpack import unpack
from talka.errors import Invalid
from talka.units import SECOND
from talka.wire.shards import PLAIN_GET, BundleSource, FileSource, MemorySource, Source, UrlRequest, UrlSource
from talka.work.arguments import URL, Data, Headers
from talka.work.dsl import Workflow, WorkflowType, step
from talka.work.inspection import inspect_workflows, no_such
from talka.work.responses import HTTPResponse
from talka.work.shapes import ConstantRate
from talka.work.specs import BadWorkflows, SpecProblem, WorkflowSpec

LIBRARY = Path(ast.__file__).parent
"""Where Python's own modules are."""

# Classes that live only in this process, by the key of their `MemorySource`. Bounded by its one writer, which takes
# out what it put in when the job is over.
in_memory: dict[str, tuple[type[Workflow], ...]] = {}
# Files whose import is under way: one of them that starts a job would be imported by its cores, and so on.
being_imported: set[str] = set()


class NoSuchFile(Invalid):
    """The command names a file or a class that is not there."""


def load(source: Source) -> tuple[WorkflowSpec, ...]:
    """Every workflow of the source, checked, dependencies first."""
    match source:
        case FileSource(path=path):
            return load_file(Path(path))
        case UrlSource(url=url, request=request):
            return inspect_workflows([url_workflow(url, request)], clients=CLIENTS.keys())
        case MemorySource(key=key):
            classes = in_memory[key]
            beside = sys.modules.get(classes[0].__module__) if classes else None
            return inspect_workflows(classes, load=getattr(beside, "load", None), clients=CLIENTS.keys())
        case BundleSource():
            return load_file(unpack(source))


def select(specs: Sequence[WorkflowSpec], names: Sequence[str], file: str) -> tuple[WorkflowSpec, ...]:
    """The named workflows and those they depend on; all of them when none is named."""
    if not names:
        return tuple(specs)
    by_name = {spec.name: spec for spec in specs}
    wanted: set[str] = set()
    open_names = list(names)
    while open_names:
        name = open_names.pop()
        if name not in by_name:
            raise NoSuchFile(f"{file}: the workflow {name} is asked for, {no_such('workflow', name, by_name)}")
        if name not in wanted:
            wanted.add(name)
            open_names.extend(by_name[name].depends_on)
    wanted |= {spec.name for spec in specs if spec.is_teardown and spec.depends_on <= wanted}
    return tuple(spec for spec in specs if spec.name in wanted)


def load_file(path: Path) -> tuple[WorkflowSpec, ...]:
    if not path.exists():
        raise NoSuchFile(f"there is no file {path}")
    if path.is_dir():
        raise NoSuchFile(f"{path} is a folder: name a Python file")
    if path.suffix != ".py":
        raise BadWorkflows([SpecProblem("is not a Python file: its name must end in .py", str(path))])
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except SyntaxError as error:
        raise BadWorkflows([SpecProblem(f"syntax error: {error.msg}", str(path), error.lineno)]) from None
    except (OSError, ValueError) as error:
        raise BadWorkflows([SpecProblem(f"cannot be read: {error}", str(path))]) from None
    lines, duplicates = where_things_stand(tree)
    problems = [SpecProblem(f"there are two classes named {name}", str(path), line) for name, line in duplicates]
    problems += [SpecProblem(text, str(path), line) for text, line in bare_depends(tree)]
    specs: tuple[WorkflowSpec, ...] = ()
    try:
        module = import_file(path)
        load = getattr(module, "load", None)
        found = workflows_of(module, path)
        specs = inspect_workflows(found, file=str(path), lines=lines, load=load, clients=CLIENTS.keys())
    except BadWorkflows as error:
        problems += error.problems
    if problems:
        raise BadWorkflows(problems)
    return specs


def workflows_of(module: ModuleType, path: Path) -> list[type[Workflow]]:
    """The classes that are written in the module and meant to run, each once, whatever names it has there."""
    found = [
        value
        for value in dict.fromkeys(value for value in vars(module).values() if isinstance(value, type))
        if issubclass(value, Workflow)
        and value.__module__ == module.__name__
        and vars(value).get("abstract", False) is not True
    ]
    if not found:
        raise BadWorkflows(
            [SpecProblem("has no workflows: write a class that inherits from talka.Workflow", str(path))]
        )
    return found


def where_things_stand(tree: ast.Module) -> tuple[dict[str, int], list[tuple[str, int]]]:
    """Lines of classes and their attributes, and classes that hide an earlier one of the same name."""
    lines: dict[str, int] = {}
    duplicates: list[tuple[str, int]] = []
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        if node.name in lines:
            duplicates.append((node.name, node.lineno))
        lines[node.name] = node.lineno
        for name, line in attributes_of(node):
            lines[f"{node.name}.{name}"] = line
    return lines, duplicates


def bare_depends(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """`@depends` without parentheses takes the class for what it depends on, and the class is gone."""
    for node in [node for node in tree.body if isinstance(node, ast.ClassDef)]:
        for decorator in node.decorator_list:
            if ast.unparse(decorator).rpartition(".")[2] == "depends":
                yield f"@depends of {node.name} names no workflow: write @depends(Other)", decorator.lineno


def attributes_of(node: ast.ClassDef) -> Iterator[tuple[str, int]]:
    for part in node.body:
        if isinstance(part, ast.Assign):
            yield from ((target.id, part.lineno) for target in part.targets if isinstance(target, ast.Name))
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part.target.id, part.lineno
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            yield part.name, part.lineno


def import_file(given: Path) -> ModuleType:
    """The module of the file; one that belongs to a package is imported as part of it."""
    path = given.resolve()
    root, names = import_root(path)
    make_importable(root)
    being_imported.add(str(path))
    try:
        if len(names) > 1:
            module = importlib.import_module(".".join(names))
        else:
            module = import_alone(path)
    except SyntaxError as error:
        where = str(given) if error.filename == str(path) else error.filename
        raise BadWorkflows([SpecProblem(f"syntax error: {error.msg}", where, error.lineno)]) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's file may raise anything when imported
        frames = reversed(traceback.extract_tb(error.__traceback__))
        line = next((frame.lineno for frame in frames if frame.filename == str(path)), None)
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise BadWorkflows([SpecProblem(f"raised {text} when it was imported", str(given), line)]) from None
    finally:
        being_imported.discard(str(path))
    if Path(module.__file__ or "").resolve() != path:
        text = f"cannot be imported as {module.__name__}: that name belongs to {module.__file__}; rename one of them"
        raise BadWorkflows([SpecProblem(text, str(given))])
    return module


def import_root(path: Path) -> tuple[Path, list[str]]:
    """The folder above the packages the file belongs to, and the parts of its name from there."""
    root, names = path.parent, [path.stem]
    while (root / "__init__.py").exists():
        names.insert(0, root.name)
        root = root.parent
    return root, names


def import_alone(path: Path) -> ModuleType:
    # A name of our own: a test called json.py must not hide the library's.
    name = f"talka_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def make_importable(root: Path) -> None:
    """Let the file import its neighbours. Python's own library still comes first, for the reason given above."""
    if str(root) not in sys.path:
        own = {str(LIBRARY), str(LIBRARY / "lib-dynload")}
        behind = max((position + 1 for position, entry in enumerate(sys.path) if entry in own), default=0)
        sys.path.insert(behind, str(root))


def url_workflow(address: str, request: UrlRequest = PLAIN_GET) -> type[Workflow]:
    """One request of one URL: what `talka run URL` means."""
    if request == PLAIN_GET:

        class Url(Workflow):
            load = ConstantRate("50/s", "10s")

            @step()
            async def get(self, url: URL = address) -> HTTPResponse:
                return await self.client.http.get(url)

        return Url
    return requesting(address, request)


def requesting(address: str, request: UrlRequest) -> type[Workflow]:
    """The step is written out for each method: whoever reads it must see that it awaits nothing but the client."""
    named: Mapping[str, str] = request.headers
    body = request.body
    limit = request.timeout_ns / SECOND if request.timeout_ns else None

    async def get(self: Workflow, url: URL = address, headers: Headers = named, data: Data = body) -> HTTPResponse:
        return await self.client.http.get(url, headers=headers, data=data, timeout=limit)

    async def post(self: Workflow, url: URL = address, headers: Headers = named, data: Data = body) -> HTTPResponse:
        return await self.client.http.post(url, headers=headers, data=data, timeout=limit)

    async def put(self: Workflow, url: URL = address, headers: Headers = named, data: Data = body) -> HTTPResponse:
        return await self.client.http.put(url, headers=headers, data=data, timeout=limit)

    async def patch(self: Workflow, url: URL = address, headers: Headers = named, data: Data = body) -> HTTPResponse:
        return await self.client.http.patch(url, headers=headers, data=data, timeout=limit)

    async def delete(self: Workflow, url: URL = address, headers: Headers = named, data: Data = body) -> HTTPResponse:
        return await self.client.http.delete(url, headers=headers, data=data, timeout=limit)

    async def head(self: Workflow, url: URL = address, headers: Headers = named, data: Data = body) -> HTTPResponse:
        return await self.client.http.head(url, headers=headers, data=data, timeout=limit)

    async def options(self: Workflow, url: URL = address, headers: Headers = named, data: Data = body) -> HTTPResponse:
        return await self.client.http.options(url, headers=headers, data=data, timeout=limit)

    methods = (get, post, put, patch, delete, head, options)
    chosen = next((method for method in methods if method.__name__ == request.method.lower()), None)
    if chosen is None:
        raise Invalid(f"the client has no method {request.method!r}")
    body_of_class = {"load": ConstantRate("50/s", "10s"), "verify": request.verify, chosen.__name__: step()(chosen)}
    return cast(type[Workflow], WorkflowType("Url", (Workflow,), {**body_of_class, "__module__": __name__}))


def as_path(value: object) -> str:
    if not isinstance(value, str | Path):
        raise Invalid(f"{value!r} is not a path")
    return str(value)
