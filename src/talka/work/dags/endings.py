"""How an attempt can end without completing its task, and how many that may be until the task is given up: one table
for handlers of every kind, functions and commands.

Decision: docs/decisions/0046-one-table-of-endings.md.
"""

from typing import Final

import msgspec


class Ending(msgspec.Struct, frozen=True):
    """A row of the table."""

    name: str
    """As in the table of docs/pipelines.md."""
    tries: int | None
    """Where nothing is said of retries, a task is given up when so many of its attempts have failed and the last of
    them ended so. None: such an end is nobody's failure, and never counts."""
    signals: tuple[str, ...] = ()
    """Of those that killed the process."""


FAULT: Final = Ending("a fault", 2, ("SIGSEGV", "SIGILL", "SIGBUS", "SIGFPE"))
KILLED: Final = Ending("killed", 3, ("SIGKILL", "SIGABRT"))
OTHER_SIGNAL: Final = Ending("another signal", 3)
EXITED: Final = Ending("an exit", 3)
"""By itself, also with status 0 where that left no result: who begins it again can expect nothing else."""
TOLD_TO_STOP: Final = Ending("told to stop", None, ("SIGTERM", "SIGINT"))
TOO_LARGE: Final = Ending("an output", 1)
"""More than may be kept of one: the same work would make it again."""
FAILED: Final = Ending("a failure", 4)
"""The handler raised, took too long, or gave what is no JSON: its process is well."""

ENDINGS: Final = (FAULT, KILLED, OTHER_SIGNAL, EXITED, TOLD_TO_STOP, TOO_LARGE, FAILED)
BY_SIGNAL: Final = {signal: ending for ending in ENDINGS for signal in ending.signals}


def ending_of(*, has_died: bool, signal: str, exit_code: int, is_too_large: bool = False) -> Ending:
    """Of an attempt's process: the core that had it, or its command. `has_died`: there is none any more.
    `is_too_large`: it ended well, and its output cannot be kept."""
    if signal:
        return BY_SIGNAL.get(signal, OTHER_SIGNAL)
    if has_died or exit_code:
        return EXITED
    return TOO_LARGE if is_too_large else FAILED


def tries_text(counted: int, attempts: int) -> str:
    """How often a task was tried. `counted`: attempts that count against it, of so many in all: not those that were
    lost, refused or told to stop, and none of before it was run again."""
    word = "attempt" if counted == 1 else "attempts"
    if counted == attempts:
        return f"{counted:,} {word}"
    return f"{counted:,} {word} that count{'s' if counted == 1 else ''} ({attempts:,} in all)"
