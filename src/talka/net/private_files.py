"""Files that only their owner may read: secrets, token keys and private keys. One that others can read is refused.

A file of this user must be closed to its group and to others. One of root may be readable, and no more, by the group of
the process: so Kubernetes and systemd hand out secrets to a process that is not root.
"""

import os
import stat
from pathlib import Path
from typing import Final

from talka.errors import Invalid

OPEN_TO_ANYBODY: Final = stat.S_IRWXG | stat.S_IRWXO
OPEN_TO_MORE_THAN_READERS: Final = stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO
ROOT: Final = 0


def openness(found: os.stat_result, path: str | os.PathLike[str], what: str) -> str:
    """Why the file must not be used, as a sentence; empty when it may. A pipe is nobody's but those who hold it."""
    if not stat.S_ISREG(found.st_mode):
        return ""
    is_handed_out = found.st_uid == ROOT and os.geteuid() != ROOT
    if not found.st_mode & (OPEN_TO_MORE_THAN_READERS if is_handed_out else OPEN_TO_ANYBODY):
        return ""
    return f"others than its owner may use {what} {os.fspath(path)}: chmod 600 {os.fspath(path)}"


def read_private(path: str | os.PathLike[str], what: str, limit_bytes: int) -> bytes:
    """The content, at most one byte above the limit. `OSError` when it cannot be read, `Invalid` when others can."""
    with Path(path).open("rb") as file:
        if problem := openness(os.fstat(file.fileno()), path, what):
            raise Invalid(problem)
        return file.read(limit_bytes + 1)
