"""A child that an attempt's code forks has a copy of its whole core, and is not that core: it writes to the worker's
own output, tells the worker nothing, and ends where the attempt in its parent goes on.

Decision: docs/decisions/0047-the-last-words-of-an-attempt.md.
"""

import contextlib
import os
import sys
from typing import NoReturn

from talka.engine.handlers.attempt_output import traceback_of


def end_child(error: BaseException | None = None, own_file: str = "") -> NoReturn:
    """It has come back to `own_file`, which called the user's code: it ends as programs do, also by `sys.exit`."""
    status = 0 if error is None else 1
    try:
        if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
            status = (error.code or 0) & 0xFF
        elif isinstance(error, SystemExit):
            sys.stderr.write(f"{error.code}\n")
        elif error is not None:
            sys.stderr.write(traceback_of(error, own_file).decode())
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def take_from_child(fd: int) -> None:
    """Of a child that was just forked. The number stays taken: what still writes to it or reads from it, such as its
    copy of a loop, must not find what the child opens next."""
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, fd, inheritable=False)
        os.close(nowhere)
    except OSError:
        with contextlib.suppress(OSError):
            os.close(fd)
