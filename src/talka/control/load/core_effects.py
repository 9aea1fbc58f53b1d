"""What the owner of cores asks for. Carried out by the local runner, by a worker, or by the manager that leads the job."""

from typing import TypeAlias

import msgspec

from talka.wire.shards import Arm, ToCore


class StartCore(msgspec.Struct, frozen=True):
    """Start an attempt at this shard; with a `place`, an attempt at so many shards from this one on at that worker."""

    core: int
    """Number of the attempt."""
    arm: Arm
    place: str = ""
    iterations_done: tuple[int, ...] = (0,)
    """Iterations done, per shard."""
    process: int = 0
    """The process it runs in: one that holds others already, if there is one of this number. 0: one of its own."""


class TellCore(msgspec.Struct, frozen=True):
    core: int
    message: ToCore


class KillCore(msgspec.Struct, frozen=True):
    """End an attempt. Its process ends with it when it holds no other."""

    core: int


class JobEnded(msgspec.Struct, frozen=True):
    pass


Effect: TypeAlias = StartCore | TellCore | KillCore | JobEnded
