"""What the owner of cores asks for. Carried out by the local runner, by a worker, or by the manager that leads the job.

See docs/decisions/0017-a-worker-is-a-core-to-its-manager.md.
"""

from typing import Literal, TypeAlias

import msgspec

from talka.wire.shards import ToCore


class StartCore(msgspec.Struct, frozen=True):
    """Start this attempt. Its owner's `arm_for` says what it is to run; None there: it was given up since."""

    attempt: int
    """Number of the attempt: the owner of the cores never gives it to another."""
    place: str = ""
    """The worker that runs it; empty: this machine."""
    process: int = 0
    """Number of the process on this machine that runs it, among others if it runs already; 0 on a worker."""


class TellCore(msgspec.Struct, frozen=True):
    """Tell the core that runs this attempt."""

    attempt: int
    message: ToCore


class KillCore(msgspec.Struct, frozen=True):
    """End an attempt. Its process ends with it when it runs no other."""

    attempt: int


class JobEnded(msgspec.Struct, frozen=True):
    """Every workflow of the job has ended. Nothing follows."""


LateNews: TypeAlias = Literal["given", "warned", "put aside", "resumed"]


class WorkflowLate(msgspec.Struct, frozen=True):
    """News: a workflow was given more time, was warned that it has none left, or was put aside for that, or a person
    resumed it."""

    workflow: str
    what: LateNews
    text: str
    """A clause that begins with what the workflow did or has: "it was late and ..."."""


CoreEffect: TypeAlias = StartCore | TellCore | KillCore
LoadEffect: TypeAlias = CoreEffect | WorkflowLate | JobEnded
