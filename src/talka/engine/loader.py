"""Imports a user's file and finds the workflows in it. What is wrong is said with file and line."""

import ast
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from talka.errors import Invalid
from talka.wire.shards import FileSource, MemorySource, Source, UrlSource
from talka.work.arguments import URL
from talka.work.dsl import Workflow, step
from talka.work.inspection import BadWorkflows, Problem, WorkflowSpec, inspect_workflows, no_such
from talka.work.responses import HTTPResponse
from talka.work.shapes import ConstantRate

# Classes that live only in this process, by the key of their `MemorySource`. Bounded by its one writer, which takes
# out what it put in when the job is over.
in_memory: dict[str, tuple[type[Workflow], ...]] = {}


class NoSuchFile(Invalid):
    """The command names a file or a class that is not there."""


def load(source: Source) -> tuple[WorkflowSpec, ...]:
    """Every workflow of the source, checked, dependencies first."""
    match source:
        case FileSource(path=path):
            return load_file(Path(path))
        case UrlSource(url=url):
            return inspect_workflows([url_workflow(url)])
        case MemorySource(key=key):
            return inspect_workflows(in_memory[key])


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
            raise NoSuchFile(f"{file} has no workflow {name}: {no_such('workflow', name, by_name)}")
        if name not in wanted:
            wanted.add(name)
            open_names.extend(by_name[name].depends_on)
    return tuple(spec for spec in specs if spec.name in wanted)


def load_file(path: Path) -> tuple[WorkflowSpec, ...]:
    if not path.exists():
        raise NoSuchFile(f"there is no file {path}")
    if path.is_dir():
        raise NoSuchFile(f"{path} is a folder: name a Python file")
    try:
        text = path.read_bytes()
        tree = ast.parse(text, filename=str(path))
    except SyntaxError as error:
        raise BadWorkflows([Problem(f"syntax error: {error.msg}", str(path), error.lineno)]) from None
    except (OSError, ValueError) as error:
        raise BadWorkflows([Problem(f"cannot be read: {error}", str(path))]) from None
    lines, duplicates = where_things_stand(tree)
    if duplicates:
        raise BadWorkflows(
            [Problem(f"there are two classes named {name}", str(path), line) for name, line in duplicates]
        )
    module = import_file(path)
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Workflow)
        and value.__module__ == module.__name__
        and not vars(value).get("abstract", False)
    ]
    if not classes:
        raise BadWorkflows([Problem("has no workflows: write a class that inherits from talka.Workflow", str(path))])
    return inspect_workflows(classes, file=str(path), lines=lines)


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


def attributes_of(node: ast.ClassDef) -> Iterator[tuple[str, int]]:
    for part in node.body:
        if isinstance(part, ast.Assign):
            yield from ((target.id, part.lineno) for target in part.targets if isinstance(target, ast.Name))
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part.target.id, part.lineno
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            yield part.name, part.lineno


def import_file(path: Path) -> ModuleType:
    """The module of the file; one that belongs to a package is imported as part of it."""
    path = path.resolve()
    root, names = path.parent, [path.stem]
    while (root / "__init__.py").exists():
        names.insert(0, root.name)
        root = root.parent
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    try:
        if len(names) > 1:
            return importlib.import_module(".".join(names))
        # A name of our own: a test called json.py must not hide the library's.
        name = f"talka_file_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise BadWorkflows([Problem("is not a Python file: its name must end in .py", str(path))])
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    except BadWorkflows:
        raise
    except SyntaxError as error:
        raise BadWorkflows([Problem(f"syntax error: {error.msg}", error.filename, error.lineno)]) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's file may raise anything when imported
        line = next(
            (f.lineno for f in reversed(traceback.extract_tb(error.__traceback__)) if f.filename == str(path)), None
        )
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise BadWorkflows([Problem(f"raised {text} when it was imported", str(path), line)]) from None


def url_workflow(address: str) -> type[Workflow]:
    """One GET of one URL: what `talka run URL` means."""

    class Url(Workflow):
        load = ConstantRate("50/s", "10s")

        @step()
        async def get(self, url: URL = address) -> HTTPResponse:
            return await self.client.http.get(url)

    return Url
