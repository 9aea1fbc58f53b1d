"""Writes the reference of errors, from the code that raises and answers them, to stdout."""

import importlib
import inspect
import pkgutil
from typing import get_args, get_type_hints

import talka
from talka.cli.main import exit_code_of
from talka.client.requests import PROBLEM_PREFIX, PROBLEMS
from talka.errors import Invalid, Superseded, TalkaError, Unavailable, Untrusted
from talka.report.html.page import KINDS
from talka.stats.tally import ERROR_KINDS
from talka.wire.tasks import TaskResult
from talka.work.outcome import EXIT_CODES, ExitCode

TITLE = """# Errors

Written from the code by `make docs`. Every error that Talka raises is a sentence: what was wrong, where, and what to
do.

- [Branches](#branches): what the caller should do
- [Exit codes](#exit-codes) of commands
- [Problem documents](#problem-documents) of the HTTP API
- [Error kinds](#error-kinds) in results of load jobs
- [Outcomes of attempts](#outcomes-of-attempts) at tasks of dag jobs
- [Error classes](#error-classes) in Python
"""
BRANCHES = (Invalid, Untrusted, Unavailable, Superseded)
OUTCOMES = {
    "completed": "The handler returned. Its output is stored, and tasks that depend on it can run.",
    "failed": "The handler raised, or its output cannot be kept. The retry policy of the task decides.",
    "refused": (
        "The worker did not start it: it has no room, no such handler, or no lease. Another worker gets it, until the"
        " eleventh refusal that is not for the worker's own state (full, draining, without a lease) fails the task."
    ),
    "timeout": "The handler took longer than the attempt may take, and was stopped.",
    "cancelled": "The attempt was stopped because its job or its task was cancelled.",
    "died": (
        "The process ended while the handler ran. The task is tried again, alone in a process, until the table of"
        " [pipelines.md](pipelines.md#when-a-task-is-given-up) gives it up."
    ),
}
OPTIONAL = {"talka._native", "talka.store.history.postgres"}


def first_sentence(thing: type) -> str:
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return text if thing.__doc__ else ""


def error_classes() -> list[type[TalkaError]]:
    """Every error of the package, by module and name."""
    for module in pkgutil.walk_packages(talka.__path__, "talka."):
        if module.name not in OPTIONAL and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: set[type[TalkaError]] = set()
    waiting: list[type[TalkaError]] = [TalkaError]
    while waiting:
        error = waiting.pop()
        found.add(error)
        waiting += error.__subclasses__()
    return sorted(
        (error for error in found if error.__module__.startswith("talka.")),
        key=lambda error: (error.__module__, error.__name__),
    )


def branch_of(error: type[TalkaError]) -> str:
    return next((branch.__name__ for branch in BRANCHES if issubclass(error, branch)), "TalkaError")


def exit_code_by_error(error: type[TalkaError]) -> int:
    """With which code a command ends that raised it. The error is not initialised: its class decides."""
    return int(exit_code_of(error.__new__(error)))


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |")
    print()


def main() -> None:
    print(TITLE)
    print("## Branches\n\nEach error belongs to one branch of `talka.TalkaError` (`errors.py`).\n")
    table(
        ("Branch", "What to do", "Exit code"),
        [(f"`{branch.__name__}`", first_sentence(branch), str(exit_code_by_error(branch))) for branch in BRANCHES],
    )
    print("## Exit codes\n\n`talka help exit-codes` prints the same (`work/outcome.py`).\n")
    table(
        ("Code", "Name", "Meaning"),
        [(str(int(code)), f"`{ExitCode(code).name}`", text) for code, text in EXIT_CODES.items()],
    )
    print(
        "## Problem documents\n\nThe API answers a request that failed with `application/problem+json` (RFC 9457). "
        "Its `type` is one of these;\n`detail` is a sentence about the case (`client/requests.py`). Python clients "
        "raise the error class.\n"
    )
    table(
        ("Type", "Status", "Title", "Error class", "Exit code"),
        [
            (
                f"`{PROBLEM_PREFIX}{kind.name}`",
                str(kind.status),
                kind.title,
                f"`{kind.error.__name__}`",
                str(exit_code_by_error(kind.error)),
            )
            for kind in PROBLEMS
        ]
        + [("`about:blank`", "500", "Internal error", "–", "1")],
    )
    print("## Error kinds\n\nA request, step or check that fails is counted under one kind (`stats/tally.py`).\n")
    table(("Kind", "Meaning"), [(f"`{kind}`", KINDS[kind]) for kind in ERROR_KINDS])
    print("## Outcomes of attempts\n\nAn attempt at a task of a dag job ends with one outcome (`wire/tasks.py`).\n")
    outcomes = get_args(get_type_hints(TaskResult)["outcome"])
    table(("Outcome", "Meaning"), [(f"`{outcome}`", OUTCOMES[outcome]) for outcome in outcomes])
    print("## Error classes\n\nEvery class, with the module that raises it.\n")
    table(
        ("Class", "Branch", "Module", "Meaning"),
        [
            (
                f"`{error.__name__}`",
                branch_of(error),
                f"`{error.__module__.removeprefix('talka.')}`",
                first_sentence(error),
            )
            for error in error_classes()
            if error not in (TalkaError, *BRANCHES)
        ],
    )


if __name__ == "__main__":
    main()
