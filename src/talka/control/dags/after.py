"""What follows once changes are durable."""

import msgspec

from talka.control.dags.job import DagJob
from talka.control.tasks.store_effects import CallAnswered
from talka.control.tasks.task import DagTask
from talka.work.lifecycle import JobState


class Keyed(msgspec.Struct, frozen=True):
    """A task that is done without being run: another with its idempotency key was."""

    task: DagTask
    output: bytes
    blob: str


class After(msgspec.Struct):
    """What follows once a commit holds."""

    answers: list[CallAnswered] = []
    took: dict[str, list[int]] = {}
    """By worker, the fences of results that are durable now."""
    hand: list[tuple[DagTask, int]] = []
    """With the fence that was claimed: it may have another since."""
    ended: list[tuple[DagJob, JobState, str]] = []
    """With how it ended: it may run again since."""

    def join(self, other: "After") -> None:
        """What follows from another commit follows too."""
        self.answers += other.answers
        self.hand += other.hand
        self.ended += other.ended
        for name, fences in other.took.items():
            self.took.setdefault(name, []).extend(fences)

    def __bool__(self) -> bool:
        return bool(self.answers or self.took or self.hand or self.ended)
