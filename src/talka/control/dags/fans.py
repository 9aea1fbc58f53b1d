"""Tasks of a dag job that are fanned out, in memory: which they are, where their elements are, and what is run again
with what.

A fanned-out task waits for its elements as for tasks it depends on, and is completed when all of them have ended. Its
output is not kept: it is put together of theirs when it is asked for.

Decision: docs/decisions/0049-fan-out-over-a-result.md.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from talka.control.dags.book import ENDED, GONE, OUTPUT_BYTES, STOPPING, DagBook
from talka.control.dags.graph import downstream
from talka.control.dags.handler_counts import HandlerCounts
from talka.control.tasks.task import DagTask, packed, unpacked
from talka.errors import Invalid, Unavailable
from talka.work.dags.dag import DagSettings, TaskSpec, source_of
from talka.work.dags.elements import ElementMaker, with_config
from talka.work.dags.records import Change, DropElements, FanOut, FanRow, JobRow, Reset
from talka.work.lifecycle import JobState, TaskState

_PENDING, _COMPLETED = TaskState.PENDING, TaskState.COMPLETED


@dataclass(slots=True, eq=False)
class Fan:
    """A task with a `for_each`."""

    first: int = -1
    """The index of its first element; below 0: it is not fanned out yet."""
    count: int = 0
    asked: int = 0
    """A number of its own for each time that it is to be fanned out; 0: it is not now."""

    @property
    def is_out(self) -> bool:
        return self.first >= 0

    @property
    def elements(self) -> range:
        """Their indexes."""
        return range(self.first, self.first + self.count)


class FannedList:
    """What a task is to be fanned out over."""

    def __init__(self, source: DagTask, path: Sequence[str], after: bytes) -> None:
        self.source = source
        self.path = path
        """Where the list is in the output of `source`."""
        self.after = after
        """What elements get the outputs of, packed."""


class FanBook(DagBook):
    """The book of a job in which tasks may be fanned out."""

    def __init__(
        self,
        row: JobRow,
        settings: DagSettings,
        clock: Callable[[int], int],
        partition: int = 0,
        output_bytes: int = OUTPUT_BYTES,
        handlers: HandlerCounts | None = None,
    ) -> None:
        super().__init__(row, settings, clock, partition, output_bytes, handlers)
        self._fans: dict[int, Fan] = {}
        """By the index of the task."""
        self._asks = 0

    # -- tasks come in

    def add(self, now: int, specs: Sequence[TaskSpec], depends_on: Sequence[tuple[int, ...]]) -> list[DagTask]:
        added = super().add(now, specs, depends_on)
        for task, spec in zip(added, specs, strict=True):
            if spec.for_each:
                self._fans[task.index] = Fan()
        return added

    def restore_fans(self, rows: Iterable[FanRow]) -> None:
        """After all tasks were restored."""
        for row in rows:
            fan = self._fans[row.index] = Fan(row.first, row.count)
            for index in fan.elements:
                self.tasks[index].fan = row.index

    def asked(self, task: DagTask) -> int:
        """Under which number it is to be fanned out; 0: it is not."""
        fan = self._fans.get(task.index)
        return 0 if fan is None or task.state is not _PENDING or self.state in STOPPING else fan.asked

    def is_out(self, task: DagTask) -> bool:
        fan = self._fans.get(task.index)
        return fan is not None and fan.is_out

    def elements_of(self, task: DagTask) -> Sequence[DagTask] | None:
        fan = self._fans.get(task.index)
        return None if fan is None or not fan.is_out else self.tasks[fan.first : fan.first + fan.count]

    @property
    def to_fan_out(self) -> int:
        """How many tasks are to be fanned out. After a restart those are known that are ready for it."""
        return sum([not fan.is_out and self.tasks[index].state not in ENDED for index, fan in self._fans.items()])

    def elements_by_state(self, index: int) -> dict[str, int]:
        """Of the task with this index, as `counts` gives them."""
        found = Counter([one.state.value for one in self.elements_of(self.tasks[index]) or ()])
        return {state.value: found[state.value] for state in TaskState if found[state.value]}

    def is_read(self, task: DagTask) -> bool:
        """Whether anything gets its output."""
        return bool(self.dependents_of(task.index if task.fan < 0 else task.fan))

    def list_of(self, task: DagTask, spec: TaskSpec) -> FannedList:
        before = {self.tasks[index].id: self.tasks[index] for index in unpacked(task.after)}
        name, path = source_of(spec.for_each, before)
        after = task.after
        if name not in spec.depends_on:  # its list is what elements get of it
            after = packed(tuple([index for index in unpacked(task.after) if index != before[name].index]))
        return FannedList(before[name], path, after)

    def check_ids(self, task: DagTask) -> None:
        """Raises `Invalid` where an element would have the id of another task: of a job that was streamed it was not
        seen before."""
        start = f"{task.id}["
        for other in self.tasks:
            if other.id.startswith(start) and other.id[len(start) : -1].isdecimal() and other.id.endswith("]"):
                raise Invalid(
                    f"there is a task {other.id} already, which is the id of one of its elements: name that one"
                    " otherwise"
                )

    def element(self, task: DagTask, maker: ElementMaker, place: int, item: msgspec.Raw, after: bytes) -> DagTask:
        """One that is of the job once it is taken in, with all others of its task."""
        spec = maker.spec(place, item)
        index = len(self.tasks) + place
        one = DagTask(self, index, spec.id, _PENDING, spec.handler, spec.priority, after, fan=task.index)
        one.spec = spec
        self._terms.learn(one, spec)
        return one

    def _take_in(self, task: DagTask, elements: Sequence[DagTask]) -> FanOut:
        fan = self._fans[task.index]
        fan.first, fan.count, fan.asked = len(self.tasks), len(elements), 0
        self.tasks += elements
        self._counts[_PENDING] += fan.count
        for one in elements:
            self._handlers.row(one.handler).states[_PENDING] += 1
        self._open += fan.count
        task.waits_for = fan.count
        return FanOut(self.row.number, task.index, fan.first, fan.count, self.size)

    def _let_go(self, task: DagTask, changes: list[Change]) -> list[DagTask]:
        """It is to be fanned out anew: its elements, of which none runs, go. They are what is returned."""
        fan = self._fans[task.index]
        if not fan.is_out:
            return []
        first, gone = fan.first, self.tasks[fan.first : fan.first + fan.count]
        for one in gone:
            self._counts[one.state] -= 1
            self._uncount_one(one)
            self._open -= not one.is_settled
            self.tasks[one.index] = GONE
            one.is_settled, one.waits_for = True, 1  # whoever still has it does nothing with it
        fan.first, fan.count = -1, 0
        self._kept.let_go(gone)
        changes.append(DropElements(self.row.number, task.index, first, len(gone), self.size))
        return gone

    # -- what is run again

    def again(self, ids: Sequence[str], edited: Collection[str] = ()) -> list[DagTask]:
        """Which tasks are run again with these and with those `edited`, in the order of the job, or why they cannot be:
        all that depends on them too; no `ids`: all that ended without being completed. Not those elements of a task
        that is fanned out anew: others come in their place."""
        return self._chosen(ids, edited)[0]

    def _chosen(self, ids: Sequence[str], edited: Collection[str]) -> tuple[list[DagTask], dict[int, None]]:
        """And the indexes of those that are fanned out anew."""
        if self.state is JobState.SUBMITTED or self.state in STOPPING:
            raise Invalid(f"job {self.row.id} is {self.state}: nothing of it can be run again now")
        named = self._named([*ids, *edited])
        chosen = list(named)
        if not ids:
            chosen += [task for task in self.tasks if task.state in ENDED and task.state is not _COMPLETED]
        if not chosen:
            raise Invalid(f"no task of job {self.row.id} ended without being completed: name those to be run again")
        indexes = downstream([task.index for task in chosen], self.dependents_of)
        anew = self._fanned_anew(dict.fromkeys([task.index for task in named]), dict.fromkeys(indexes))
        for index in anew:
            indexes += self._fans[index].elements if self._fans[index].is_out else ()
        tasks = [self.tasks[index] for index in indexes]
        for task in tasks:
            if task.worker or (task.state is _COMPLETED and not task.is_settled):
                raise Invalid(f"task {task.id} is running: wait for it, or cancel the job")
        again = [task for task in tasks if task.fan not in anew]
        known = dict.fromkeys([task.id for task in again]) if edited else {}
        for name in edited:
            if name not in known:
                fan = name.rpartition("[")[0]
                raise Invalid(f"task {name} is made anew with all elements of {fan}: give {fan} the config")
        return again, anew

    def _again(
        self, ids: Sequence[str], configs: Mapping[str, msgspec.Raw]
    ) -> tuple[list[tuple[DagTask, TaskSpec | None]], list[DagTask]]:
        """With their new specs if they get any, and those of them that are fanned out anew."""
        tasks, anew = self._chosen(ids, configs)
        again: list[tuple[DagTask, TaskSpec | None]] = []
        for task in tasks:
            config = configs.get(task.id)
            if config is not None and task.spec is None:
                raise Unavailable(f"the spec of task {task.id} is not in memory: ask again in a moment")
            edited = None if config is None or task.spec is None else with_config(task.spec, config)
            again.append((task, edited))
        return again, [self.tasks[index] for index in anew]

    def _reset(self, task: DagTask, spec: TaskSpec | None) -> Reset | None:
        fan = self._fans.get(task.index)
        if fan is not None:
            fan.asked = 0  # what was asked for before is forgotten
        return super()._reset(task, spec)

    def _fanned_anew(self, named: Mapping[int, None], again: Mapping[int, None]) -> dict[int, None]:
        """Those of them that were asked for by name, or whose list may become another. The others keep their elements,
        and wait for those that are run again."""
        anew: dict[int, None] = {}
        for index in again:
            if index in self._fans and (
                index in named or any(before in again for before in unpacked(self.tasks[index].after))
            ):
                anew[index] = None
        return anew

    def _count_waits(self, tasks: Iterable[DagTask]) -> list[DagTask]:
        """How many each waits for, after its dependencies may have changed. Those that wait for none."""
        every = self.tasks
        free: list[DagTask] = []
        for task in tasks:
            if task.after:
                task.waits_for = sum([not every[index].is_settled for index in unpacked(task.after)])
            fan = self._fans.get(task.index)
            if fan is not None and fan.is_out:
                task.waits_for += sum([not every[index].is_settled for index in fan.elements])
            if not task.waits_for:
                free.append(task)
        return free
