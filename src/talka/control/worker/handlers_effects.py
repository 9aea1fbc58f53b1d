"""What a worker's pool of handler cores asks its shell to do, and how the shell tells it that a core has ended."""

import msgspec

from talka.wire.tasks import ToHandlers


class StartHandlers(msgspec.Struct, frozen=True):
    """Start a core of this number. A TellHandlers with its `Load` follows at once; numbers are never used again.

    One that cannot be started is told as one that has ended.
    """

    core: int
    memory_bytes: int = 0
    """Bounds of the one task that it is for; 0: none."""
    cpu_ms: int = 0
    files: int = 0
    """Open descriptors."""


class TellHandlers(msgspec.Struct, frozen=True):
    """Write this to the core. What is told to one that has ended is dropped."""

    core: int
    message: ToHandlers


class EndHandlers(msgspec.Struct, frozen=True):
    """`hard`: kill its process group now. Else: it has nothing to do; close its socket, and kill what is left of its
    group after a moment. Its exit is told either way."""

    core: int
    hard: bool


class ExitFacts(msgspec.Struct, frozen=True):
    """How a core has ended."""

    cause: str
    """A word for rules: oom, the signal's name, exit, or start when it never ran."""
    exit_code: int = 0
    signal: str = ""
    memory_bytes: int = 0
    """The most it used, as far as is known."""
    text: str = ""
    """A sentence for people."""
