"""Files with handlers that travel with a pipeline: imported and checked here, and packed."""

import os
from collections.abc import Callable, Sequence

import msgspec

from talka.client.ordering import SubmittedByImport
from talka.engine.bundle import VariableRead, pack_handlers
from talka.engine.handlers.handler_core import load_handlers
from talka.engine.loader import being_imported
from talka.work.dags.dag import CodeBundle, DagSpec
from talka.work.handlers import BadHandlers
from talka.work.specs import SpecProblem


def with_files(
    spec: DagSpec,
    files: Sequence[str | os.PathLike[str]],
    *,
    workers_have: Sequence[str] = (),
    note: Callable[[VariableRead], None] | None = None,
) -> tuple[DagSpec, bytes]:
    """The job with handlers that travel with it, and the bundle that has to be there before it. Files that are no
    Python travel along, as data; `workers_have` names modules or distributions that are installed on every worker.

    Whoever is interested gets a `note` of each variable that is set here, is read and does not travel.

    Raises `BadWorkflows` with file and line: of what is wrong with handlers, and of all that workers would miss.
    """
    check_not_importing()
    paths = [os.fspath(file) for file in files]
    python = tuple(path for path in paths if path.endswith(".py"))
    if not python:
        raise BadHandlers([SpecProblem("is no Python file: name one with handlers, which ends in .py", paths[0])])
    handlers = load_handlers(python)
    if handlers.keys().isdisjoint(task.handler for task in spec.tasks):
        text = f"no task of {spec.name} names one of its handlers: there are {', '.join(sorted(handlers))}"
        raise BadHandlers([SpecProblem(text, python[0])])
    packed = pack_handlers(paths, allow_modules=workers_have)
    if note is not None:
        for read in packed.reads:
            note(read)
    bundle = CodeBundle(
        digest=packed.digest,
        size_bytes=len(packed.content),
        files=packed.files,
        handlers=tuple(handlers),
        plain=tuple(name for name, one in handlers.items() if not one.is_async),
    )
    return msgspec.structs.replace(spec, bundle=bundle), packed.content


def check_not_importing() -> None:
    if being_imported:
        raise SubmittedByImport('a file submits its own pipeline; do so under if __name__ == "__main__" only')
