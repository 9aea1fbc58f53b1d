"""The machine that a worker is on, as the worker finds it or is told: what people are shown, and may choose workers by.

A tag is what somebody gave a worker to be told apart by. It is no capability: what a task needs is not looked for among
tags.

Decision: docs/decisions/0065-what-a-node-tells-of-itself.md.
"""

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

from talka.errors import Invalid
from talka.wire.leadership import Count
from talka.wire.security.roles import id_problem

TAGS_LIMIT: Final = 32
TAG_KEY_LIMIT: Final = 64
TAG_VALUE_LIMIT: Final = 256
GPUS_LIMIT: Final = 32
FLAGS_LIMIT: Final = 512
FLAG_LIMIT: Final = 32
TEXT_LIMIT: Final = 128

Line = Annotated[str, msgspec.Meta(max_length=TEXT_LIMIT)]
Tag = tuple[
    Annotated[str, msgspec.Meta(max_length=TAG_KEY_LIMIT)], Annotated[str, msgspec.Meta(max_length=TAG_VALUE_LIMIT)]
]


class GpuFacts(msgspec.Struct, frozen=True, array_like=True):
    name: Line
    memory_bytes: Count = 0


class WorkerMachine(msgspec.Struct, frozen=True, array_like=True):
    """Empty or 0 is what could not be found."""

    hostname: Annotated[str, msgspec.Meta(max_length=256)] = ""
    pid: Count = 0
    """Of the worker."""
    system: Line = ""
    """The operating system with its version."""
    architecture: Line = ""
    cpu_model: Line = ""
    cpu_flags: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=FLAG_LIMIT)], ...], msgspec.Meta(max_length=FLAGS_LIMIT)
    ] = ()
    cpus: Count = 0
    """Logical ones of the machine; of how many the worker makes use is said by its cores."""
    python: Line = ""
    disk_bytes: Count = 0
    """Of the file system that its state folder is in."""
    disk_free_bytes: Count = 0
    """As of when it last changed by much."""
    gpus: Annotated[tuple[GpuFacts, ...], msgspec.Meta(max_length=GPUS_LIMIT)] = ()
    tags: Annotated[tuple[Tag, ...], msgspec.Meta(max_length=TAGS_LIMIT)] = ()


class GpuView(msgspec.Struct, frozen=True):
    name: str
    memory_bytes: int = 0
    """0: not known."""


class MachineView(msgspec.Struct, frozen=True):
    """The machine that a worker is on. Empty or 0 is what could not be found."""

    hostname: str = ""
    pid: int = 0
    """Of the worker."""
    system: str = ""
    """The operating system with its version."""
    architecture: str = ""
    cpu_model: str = ""
    cpu_flags: list[str] = []
    cpus: int = 0
    """Logical ones of the machine."""
    python: str = ""
    disk_bytes: int = 0
    """Of the file system that its state folder is in."""
    disk_free_bytes: int = 0
    """As of when it last changed by a twentieth of the disk."""
    gpus: list[GpuView] = []
    tags: dict[str, str] = {}
    """What the worker was given with --tag."""

    @classmethod
    def of(cls, machine: WorkerMachine) -> "MachineView":
        return cls(
            machine.hostname,
            machine.pid,
            machine.system,
            machine.architecture,
            machine.cpu_model,
            list(machine.cpu_flags),
            machine.cpus,
            machine.python,
            machine.disk_bytes,
            machine.disk_free_bytes,
            [GpuView(gpu.name, gpu.memory_bytes) for gpu in machine.gpus],
            dict(machine.tags),
        )


def tags_of(given: Iterable[str], what: str = "a tag") -> tuple[Tag, ...]:
    """KEY or KEY=VALUE each. `what` is how the one who gave them knows them."""
    tags: dict[str, str] = {}
    for text in given:
        key, _, value = text.partition("=")
        if problem := id_problem(what, key):
            raise Invalid(problem)
        if len(value) > TAG_VALUE_LIMIT or not value.isprintable():
            raise Invalid(f"{what} {key} has a value that is no line of at most {TAG_VALUE_LIMIT} characters")
        if tags.setdefault(key, value) != value:
            raise Invalid(f"{what} {key} is given twice, as {tags[key]!r} and {value!r}: give it once")
    if len(tags) > TAGS_LIMIT:
        raise Invalid(f"{what} is given {len(tags)} times: a worker has at most {TAGS_LIMIT} tags")
    return tuple(tags.items())
