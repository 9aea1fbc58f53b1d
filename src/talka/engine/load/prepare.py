"""Prepares the optimized arguments of a workflow: once, before the clock starts."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from talka.engine.clients.table import CLIENTS
from talka.engine.loader import as_path
from talka.errors import Invalid
from talka.work.arguments import ArgumentKind
from talka.work.specs import BadWorkflows, SpecProblem, WorkflowSpec

FILES_LIMIT_BYTES = 256 * 1024 * 1024
"""Files are held in memory, once for each core; beyond this somebody named the wrong folder."""

Arguments = Mapping[str, Mapping[str, Any]]
"""Node to parameter to prepared value."""
ENCODERS: Mapping[ArgumentKind, Callable[[Any], Any]] = {
    kind: encoder for client in CLIENTS.values() for kind, encoder in client.encoders.items()
}


def prepare(spec: WorkflowSpec, files_limit_bytes: int = FILES_LIMIT_BYTES) -> Arguments:
    """Every optimized argument of the workflow, or all that is wrong with them. Sends and resolves nothing."""
    base = Path(spec.file).resolve().parent if spec.file else Path.cwd()
    arguments: dict[str, dict[str, Any]] = {}
    problems: list[SpecProblem] = []
    for node in spec.every_node:
        for name, (kind, default) in node.optimized.items():
            try:
                arguments.setdefault(node.name, {})[name] = prepared(kind, default, base, files_limit_bytes)
            except Invalid as error:
                problems.append(
                    SpecProblem(f"{spec.name}.{node.name}, {name}: {error}", node.file or spec.file, node.line)
                )
    if problems:
        raise BadWorkflows(problems)
    return arguments


def prepared(kind: ArgumentKind, value: Any, base: Path, files_limit_bytes: int = FILES_LIMIT_BYTES) -> Any:
    if value is None:
        return None
    match kind:
        case "file":
            path = base / as_path(value)
            return read_files(lambda: [path], f"there is no file {path}", files_limit_bytes)[0]
        case "directory":
            folder = base / as_path(value)
            if not folder.is_dir():
                raise Invalid(f"there is no folder {folder}")
            return read_files(folder.iterdir, f"the folder {folder} has no files", files_limit_bytes)
        case "glob":
            pattern = Path(as_path(value))
            # Only relative patterns can be looked for, so an absolute one is taken as relative to the root.
            root, below = base / pattern.anchor, str(pattern.relative_to(pattern.anchor))
            return read_files(lambda: root.glob(below), f"no file matches {pattern} in {root}", files_limit_bytes)
        case _:
            return ENCODERS[kind](value)


def read_files(find: Callable[[], Iterable[Path]], otherwise: str, limit_bytes: int) -> tuple[Any, ...]:
    try:
        files = sorted(path for path in find() if path.is_file())
        total = sum(path.stat().st_size for path in files)
    except (OSError, ValueError, IndexError) as error:  # of the last two: patterns that are none
        raise Invalid(f"{otherwise}: {error}") from None
    if not files:
        raise Invalid(otherwise)
    if total > limit_bytes:
        raise Invalid(f"these files have {total} bytes together: at most {limit_bytes} are held in memory")
    return tuple(ENCODERS["file"](str(path)) for path in files)
