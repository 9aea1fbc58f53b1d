"""Keeps what a process has from others of the same user."""

import ctypes
import sys

PR_SET_DUMPABLE = 4


def hide() -> None:
    """Environment, memory and descriptors of this process are nobody's to read, however the kernel is asked. Whoever
    may trace every process still can. It holds until this process becomes another program."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
