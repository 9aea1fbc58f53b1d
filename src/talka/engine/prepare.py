"""Prepares the optimized arguments of a workflow: once, before the clock starts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from talka.engine.clients.requests import (
    PreparedFile,
    prepare_auth,
    prepare_cookies,
    prepare_data,
    prepare_file,
    prepare_headers,
    prepare_params,
)
from talka.engine.clients.urls import PreparedURL, parse_url
from talka.errors import Invalid
from talka.work.arguments import ArgumentKind
from talka.work.inspection import BadWorkflows, Problem, WorkflowSpec

FILES_LIMIT_BYTES = 256 * 1024 * 1024
"""Files are held in memory, once for each core; beyond this somebody named the wrong folder."""

Arguments = Mapping[str, Mapping[str, Any]]
"""Node to parameter to prepared value."""


def prepare(spec: WorkflowSpec) -> Arguments:
    """Every optimized argument of the workflow, or all that is wrong with them. Sends and resolves nothing."""
    base = Path(spec.file).resolve().parent if spec.file else Path.cwd()
    arguments: dict[str, dict[str, Any]] = {}
    problems: list[Problem] = []
    for node in spec.nodes:
        for name, (kind, default) in node.optimized.items():
            try:
                arguments.setdefault(node.name, {})[name] = prepared(kind, default, base)
            except Invalid as error:
                problems.append(Problem(f"{spec.name}.{node.name}, {name}: {error}", spec.file, node.line))
    if problems:
        raise BadWorkflows(problems)
    return arguments


def urls_in(arguments: Arguments) -> list[PreparedURL]:
    return [value for node in arguments.values() for value in node.values() if isinstance(value, PreparedURL)]


def prepared(kind: ArgumentKind, value: Any, base: Path) -> Any:
    if value is None:
        return None
    match kind:
        case "url":
            return parse_url(value)
        case "headers":
            return prepare_headers(value)
        case "data":
            return prepare_data(value)
        case "params":
            return prepare_params(value)
        case "cookies":
            return prepare_cookies(value)
        case "auth":
            return prepare_auth(value)
        case "file":
            return read_file(base / as_path(value))
        case "directory":
            folder = base / as_path(value)
            if not folder.is_dir():
                raise Invalid(f"there is no folder {folder}")
            return read_files(folder.iterdir(), f"the folder {folder} has no files")
        case "glob":
            pattern = as_path(value)
            return read_files(base.glob(pattern), f"no file matches {pattern} in {base}")


def as_path(value: Any) -> str:
    if not isinstance(value, str | Path):
        raise Invalid(f"{value!r} is not a path")
    return str(value)


def read_file(path: Path) -> PreparedFile:
    try:
        return prepare_file(str(path))
    except OSError as error:
        raise Invalid(f"the file {path} cannot be read: {error.strerror}") from None


def read_files(paths: Any, otherwise: str) -> tuple[PreparedFile, ...]:
    files = sorted(path for path in paths if path.is_file())
    if not files:
        raise Invalid(otherwise)
    if (total := sum(path.stat().st_size for path in files)) > FILES_LIMIT_BYTES:
        raise Invalid(f"these files have {total} bytes together: at most {FILES_LIMIT_BYTES} are held in memory")
    return tuple(read_file(path) for path in files)
