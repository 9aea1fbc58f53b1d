"""What must hold of tasks that are fanned out."""

from collections.abc import Sequence

import msgspec

from talka.testing.store_shell import StoreShell, job_numbered, task_at
from talka.testing.world import World
from talka.work.dags.elements import kept_element
from talka.work.dags.records import Change, Complete, DropElements, FanOut, FanRow, PutTasks, TaskRow
from talka.work.lifecycle import JobState, TaskState, is_final
from tests.sim.checkers.dags import Specs


class FansAreWhole:
    """D12: a task has one element for each of the list that its source returned, in order, each once, or none at all;
    and a job has as many tasks as it says. Looked at after every write."""

    def __init__(self, world: World, shell: StoreShell, specs: Specs) -> None:
        self.fanned = 0
        self.elements = 0
        self.dropped = 0
        self._world = world
        self._records = shell.records
        self._specs = specs
        shell.applied.append(self.applied)

    def applied(self, changes: Sequence[Change], changed: list[int]) -> None:
        jobs: dict[int, None] = {}
        for change in changes:
            if isinstance(change, PutTasks):
                jobs.update(dict.fromkeys(row.job for row in change.rows))
            elif isinstance(change, FanOut | DropElements):
                jobs[change.job] = None
                self.dropped += isinstance(change, DropElements)
        for job in jobs:
            self._check_size(job)
        for change in changes:
            fan = FanRow(change.index, change.first, change.count) if isinstance(change, FanOut) else None
            if isinstance(change, FanOut) and fan in self._records.fans(change.job):
                self._check_elements(change)
            elif isinstance(change, Complete) and change.state is TaskState.COMPLETED:
                self._check_end(change)

    def _check_size(self, job: int) -> None:
        row = job_numbered(self._records, job)
        if row is None or row.state is JobState.SUBMITTED:
            return
        found = sum(self._records.counts(job).values())
        if found != row.tasks:
            self._world.violate("D12", f"job {row.id} says that it has {row.tasks} tasks, and has {found}")

    def _check_end(self, change: Complete) -> None:
        row = task_at(self._records, (change.job, change.index))
        if row is None or row.state is not TaskState.COMPLETED:
            return  # run again in the same write
        for fan in self._records.fans(change.job):
            if fan.index == change.index:
                rows = self._records.tasks(change.job, (), fan.first - 1, fan.count)
                left = [one.id for one in rows if not is_final(one.state)]
                if left:
                    self._world.violate("D12", f"task {row.id} is completed, and its elements {left} are not")

    def _check_elements(self, change: FanOut) -> None:
        """While the output it was made from is there: it may be run again in the same write."""
        fan = task_at(self._records, (change.job, change.index))
        assert fan is not None
        wanted = self._list_of(fan)
        if wanted is None:
            return
        rows = self._records.tasks(change.job, (), change.first - 1, change.count)
        kept = [kept_element(row.spec) for row in rows]
        items = [bytes(one.item) if one is not None and one.fan == change.index else b"" for one in kept]
        names = [row.id for row in rows]
        if items != wanted or names != [f"{fan.id}[{place}]" for place in range(len(wanted))]:
            text = f"it was fanned out into {names} for {items}, and the list is {wanted}"
            self._world.violate("D12", f"task {fan.id} of job number {change.job}: {text}")
        self.fanned += 1
        self.elements += change.count

    def _list_of(self, fan: TaskRow) -> list[bytes] | None:
        """The elements of the list, as the store has it."""
        source = task_at(self._records, (fan.job, fan.depends_on[-1]))
        if source is None or source.state is not TaskState.COMPLETED:
            return None
        fans = [row for row in self._records.fans(fan.job) if row.index == source.index]
        if not fans:
            parts = msgspec.json.decode(source.output, type=dict[str, msgspec.Raw])["parts"]
            return [bytes(one) for one in msgspec.json.decode(parts, type=list[msgspec.Raw])]
        return outputs_of(self._records.tasks(fan.job, (), fans[0].first - 1, fans[0].count))


def outputs_of(elements: Sequence[TaskRow]) -> list[bytes]:
    return [row.output if row.state is TaskState.COMPLETED else b"null" for row in elements]
