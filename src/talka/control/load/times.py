"""When a job and its workflows began and ended, and what their rates are over."""

from collections.abc import Mapping
from typing import Generic, TypeVar

from talka.wire.orders import WorkflowOrder
from talka.work.lifecycle import TaskState


class LoadTimes:
    """Instants are 0 until they have come."""

    def __init__(self) -> None:
        self.origin_ns = 0
        """When its load began, or that of its first workflow."""
        self.ended_ns = 0

    def elapsed_ns(self, now: int) -> int:
        return max(0, (self.ended_ns or now) - self.origin_ns) if self.origin_ns else 0


class WorkflowTimes(LoadTimes):
    def __init__(self, spec: WorkflowOrder) -> None:
        super().__init__()
        self.spec = spec
        self.state = TaskState.PENDING
        self.failure: str | None = None
        self.notes: list[str] = []
        self.stopped_ns = 0
        """From when on it starts nothing new: it was told to stop, or its plan is over."""

    @property
    def is_under_way(self) -> bool:
        return self.state in (TaskState.ASSIGNED, TaskState.RUNNING)

    def span_ns(self, now: int) -> int:
        """What rates are over: the plan as far as it came, without the time in which the last iterations ended."""
        lengths = [self.elapsed_ns(now)]
        if self.spec.plan.length_ns is not None:
            lengths.append(self.spec.plan.length_ns)
        if self.stopped_ns:
            lengths.append(max(0, self.stopped_ns - self.origin_ns))
        return min(lengths)


Run = TypeVar("Run", bound=WorkflowTimes)


class JobTimes(LoadTimes, Generic[Run]):
    workflows: Mapping[str, Run]

    def span_ns(self, now: int) -> int:
        """From the first start to where the last of its plans ended."""
        ends = [run.origin_ns + run.span_ns(now) for run in self.workflows.values() if run.origin_ns]
        return max(ends, default=self.origin_ns) - self.origin_ns
