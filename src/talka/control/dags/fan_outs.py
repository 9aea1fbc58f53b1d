"""From tasks that are to be fanned out to their elements: lists are read, and elements made, a bounded number at a
time.

What becomes durable is one decision: the rows of all elements, and that the task has them.

Decision: docs/decisions/0049-fan-out-over-a-result.md.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from talka.control.dags.commits import Commits
from talka.control.dags.flow import DagStep
from talka.control.dags.job import DagJob, job_of
from talka.control.dags.keeper_limits import KeeperLimits
from talka.control.dags.rows import no_list_text
from talka.control.dags.shelf import DagShelf, NoRoomForJobs
from talka.control.tasks.delivery import Delivery
from talka.control.tasks.store_effects import ReadOutputs
from talka.control.tasks.task import DagTask
from talka.errors import Invalid
from talka.units import SECOND
from talka.work.dags.dag import TASKS_LIMIT, TaskSpec
from talka.work.dags.elements import ElementMaker, joined, listed
from talka.work.dags.records import PutTasks, TaskKey
from talka.work.lifecycle import TaskState

Follow: TypeAlias = Callable[[int, DagJob, DagStep], None]

NO_ROOM_NS: Final = 5 * SECOND
"""After which it is looked again whether there is room for the elements of a task."""
READ_COST: Final = 100
"""A list costs as much to read as so many elements to make."""


class _Fanning:
    """One task on its way."""

    def __init__(self, task: DagTask, number: int) -> None:
        self.task = task
        self.number = number
        self.job: DagJob = job_of(task)
        self.spec: TaskSpec | None = task.spec
        self.problem = ""
        self.outputs: dict[TaskKey, bytes] = {}
        self.unread: list[TaskKey] = []
        self.read_bytes = 0
        self.items: list[msgspec.Raw] | None = None
        self.elements: list[DagTask] = []
        self.rows: list[PutTasks] = []
        self._maker: ElementMaker | None = None
        self._after = b""

    @property
    def is_wanted(self) -> bool:
        return self.job.asked(self.task) == self.number

    def sources(self) -> Sequence[DagTask]:
        """Those whose outputs the list is in: one task, or the elements of one."""
        assert self.spec is not None
        source = self.job.list_of(self.task, self.spec).source
        elements = self.job.elements_of(source)
        return (source,) if elements is None else elements

    def keep(self, key: TaskKey, output: bytes, most: int) -> None:
        self.outputs[key] = output
        self.read_bytes += len(output)
        if self.read_bytes > most:
            self.problem = (
                f"the outputs it is to be fanned out over have more than {most:,} bytes together: let the tasks before"
                " it return where their data is"
            )

    def open(self, most: int) -> None:
        """Find the elements of the list."""
        assert self.spec is not None
        over = self.job.list_of(self.task, self.spec)
        source, number = over.source, self.job.row.number
        self._maker, self._after = ElementMaker(self.spec, self.task.index), over.after
        elements = self.job.elements_of(source)
        if source.state is not TaskState.COMPLETED:
            self.problem = no_list_text(source)
            return
        try:
            if elements is not None:
                content = joined([self._output(number, one) for one in elements])
            else:
                content = self._output(number, source) or b""
            self.items = listed(content, over.path, source.id, most=most)
            self.job.check_ids(self.task)
        except Invalid as error:
            self.problem = str(error)
        self.outputs = {}

    def _output(self, number: int, task: DagTask) -> bytes | None:
        if task.state is not TaskState.COMPLETED:
            return None
        found = self.outputs.get((number, task.index))
        if found is None:
            raise Invalid(f"the output of task {task.id} is lost: run that one again")
        return found

    @property
    def is_made(self) -> bool:
        return self.items is not None and len(self.elements) == len(self.items)

    def make(self, most: int) -> int:
        """The next elements, and how many."""
        assert self.items is not None and self._maker is not None
        first = len(self.elements)
        made = [
            self.job.element(self.task, self._maker, place, item, self._after)
            for place, item in enumerate(self.items[first : first + most], first)
        ]
        self.elements += made
        if made:
            self.rows.append(PutTasks(tuple(self.job.rows(made))))
        return len(made)


class FanOuts:
    """`ask` for a task once all it depends on is durable, hand over what was read with `on_fetched`, and `advance`
    while it `is_busy`."""

    def __init__(
        self, shelf: DagShelf, delivery: Delivery, commits: Commits, tickets: Iterator[int], limits: KeeperLimits
    ) -> None:
        self._shelf = shelf
        self._delivery = delivery
        self._commits = commits
        self._tickets = tickets
        self._partition = shelf.partition.number
        self._limits = limits
        self._reading: dict[int, _Fanning] = {}
        """By ticket."""
        self._waiting: deque[_Fanning] = deque()
        """Their lists are here. The first one has the turn."""

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting)

    def ask(self, task: DagTask, number: int) -> list[ReadOutputs]:
        """`number`: under which it is asked for. It is forgotten once the job wants it no more, or under another."""
        one = _Fanning(task, number)
        if not one.is_wanted:
            return []
        if one.spec is None:
            return [self._read(one, (one.job.row.number, task.index))]
        return self._find(one)

    def on_fetched(
        self, ticket: int, specs: Mapping[TaskKey, tuple[TaskSpec, bytes]], outputs: Mapping[TaskKey, bytes]
    ) -> list[ReadOutputs] | None:
        """None: this ticket is of something else."""
        one = self._reading.pop(ticket, None)
        if one is None:
            return None
        if not one.is_wanted:
            return []
        if one.spec is None:
            one.spec, _ = specs[one.job.row.number, one.task.index]
            return self._find(one)
        for key, output in outputs.items():
            one.keep(key, output, self._limits.delivery.inputs_bytes)
        return self._go_on(one)

    def _find(self, one: _Fanning) -> list[ReadOutputs]:
        number = one.job.row.number
        for source in one.sources():
            if source.state is TaskState.COMPLETED:
                key = (number, source.index)
                output = self._delivery.output(key)
                if output is None:
                    one.unread.append(key)
                else:
                    one.keep(key, output, self._limits.delivery.inputs_bytes)
        return self._go_on(one)

    def _go_on(self, one: _Fanning) -> list[ReadOutputs]:
        if one.unread and not one.problem:
            return [self._read(one)]
        self._waiting.append(one)
        return []

    def _read(self, one: _Fanning, spec: TaskKey | None = None) -> ReadOutputs:
        ticket = next(self._tickets)
        self._reading[ticket] = one
        most = self._limits.delivery.outputs_at_once
        now, one.unread = one.unread[:most], one.unread[most:]
        return ReadOutputs(ticket, () if spec is None else (spec,), tuple(now), self._partition)

    def advance(self, now: int, follow: Follow) -> None:
        """Make elements, as many as one step may. `follow` is given what comes of a task that has all of its own, or
        cannot have any; their rows are among the changes before."""
        left = self._limits.elements_at_once
        while self._waiting and left > 0:
            one = self._waiting[0]
            if one.is_wanted:
                if one.items is None and not one.problem:
                    one.open(min(self._limits.elements, TASKS_LIMIT - len(one.job.tasks)))
                    left -= READ_COST
                if not one.problem:
                    left -= one.make(max(left, 1))
                    if not one.is_made:
                        return
                follow(now, one.job, self._become(now, one))
            self._waiting.popleft()

    def _become(self, now: int, one: _Fanning) -> DagStep:
        if one.problem:
            return one.job.unlisted(now, one.task, one.problem)
        try:
            self._shelf.check_room(jobs=0, tasks=len(one.elements))
        except NoRoomForJobs:
            return one.job.postponed(now, one.task, NO_ROOM_NS)
        self._shelf.tasks += len(one.elements)
        for element in one.elements:
            self._delivery.keep_spec(element)
        self._delivery.drop_spec(one.task)
        self._commits.changes += one.rows
        return one.job.fanned(now, one.task, one.elements)
