"""Whether the workers that are known could run the tasks of a job: asked before it is taken."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

import msgspec

from talka.client.requests import NobodyCanRun
from talka.clock import boottime_ns
from talka.control.tasks.dispatch import Dispatcher
from talka.control.tasks.known_workers import KnownWorkers, Lack, Wants
from talka.control.tasks.task import Needs
from talka.errors import Invalid, Unavailable
from talka.units import SECOND
from talka.wire.task_views import TaskWants, TaskWorkers
from talka.work.dags.dag import DagHead, DagSpec, TaskSpec, bytes_of

WORKERS_LIMIT: Final = 50
"""Listed of those that could run one kind of task, or could not."""
SOME_CODE: Final = "0" * 64
"""Stands for the digest of a bundle that may not be there yet: who takes code takes any."""
SETTLE_NS: Final = 5 * SECOND
"""After its start a manager has heard of every worker that could reach it."""


def bundled_in(spec: DagSpec | DagHead) -> Collection[str]:
    """Handlers that travel with the job: whoever takes code has them."""
    return spec.bundle.handlers if spec.bundle is not None else ()


class Stuck(msgspec.Struct, frozen=True):
    """Tasks that nobody could run, for one reason."""

    wants: Wants
    lack: Lack
    first: int
    """Index of the first."""
    tasks: int
    """How many there are."""


class RunnableCheck:
    """Of the manager that makes it: one that has just started is told of its workers in the first seconds."""

    def __init__(self, known: KnownWorkers, settle_ns: int = SETTLE_NS, clock: Callable[[], int] = boottime_ns) -> None:
        self._known = known
        self._clock = clock
        self._settle_ns = settle_ns
        self.begin()

    def begin(self) -> None:
        """From now on jobs can be taken, and workers be heard."""
        self._settled_at = self._clock() + self._settle_ns

    def check(self, tasks: Sequence[TaskSpec], bundled: Collection[str] = ()) -> None:
        """`bundled` are handlers that come with the job. Raises `NobodyCanRun`, of the first task nobody could run,
        or `Unavailable` while that may be because workers have not been heard of, or have not loaded theirs yet."""
        now = self._clock()
        kinds = {(task.handler, task.capabilities, task.min_memory) for task in tasks}
        if not bundled and len(kinds) == 1 and self._is_known(now, kinds.pop()):
            return  # most jobs: nothing needs to be counted
        for stuck in stuck_tasks(self._known, now, tasks, bundled):
            task, more = tasks[stuck.first], stuck.tasks - 1
            others = "" if not more else " (and 1 task more)" if more == 1 else f" (and {more:,} tasks more)"
            text = f"task {task.id}{others}: {stuck.lack.text}"
            if worker := self._known.loading(now, stuck.wants):
                raise Unavailable(f"{text}; {worker} still loads its handlers: try again in a moment")
            if now < self._settled_at:
                young = "this manager has just started, and workers may still be on their way to it"
                raise Unavailable(f"{text}; {young}: try again in a moment")
            text = f"{text}; start a worker that has it, or submit the job with --wait-for-workers"
            raise NobodyCanRun(text, task.id, index=stuck.first, field=stuck.lack.field)

    def _is_known(self, now: int, kind: tuple[str, tuple[str, ...], int | str]) -> bool:
        """Somebody could run such a task."""
        handler, capabilities, min_memory = kind
        return self._known.lack(now, Wants(handler, capabilities, _bytes(min_memory))) is None


def who_could_run(
    dispatcher: Dispatcher, now: int, wants: TaskWants, partition: int, workers_limit: int = WORKERS_LIMIT
) -> TaskWorkers:
    capabilities = tuple(wants.capabilities)
    handler = "" if wants.is_brought else wants.handler
    lack = dispatcher.workers.known.lack(now, Wants(handler, capabilities, wants.min_memory, wants.is_brought))
    bundle = SOME_CODE if wants.is_brought else ""
    needs = Needs(wants.handler, capabilities, wants.min_memory, partition=partition, bundle=bundle)
    found = [reason for reason in dispatcher.reasons(needs, now) if reason.worker]
    able = [reason for reason in found if reason.constraint in ("", "slots")]
    others = sorted([one for one in found if one.constraint not in ("", "slots")], key=lambda one: one.is_lasting)
    listed = [*able, *others][:workers_limit]
    return TaskWorkers("" if lack is None else lack.text, len(able), listed, len(found) - len(listed))


def stuck_tasks(
    known: KnownWorkers, now: int, tasks: Sequence[TaskSpec], bundled: Collection[str] = ()
) -> Iterator[Stuck]:
    for wants, (first, count) in wanted_by(tasks, bundled).items():
        if (lack := known.lack(now, wants)) is not None:
            yield Stuck(wants, lack, first, count)


def wanted_by(tasks: Sequence[TaskSpec], bundled: Collection[str] = ()) -> dict[Wants, tuple[int, int]]:
    """What tasks want of a worker, with the index of the first that does and how many do."""
    found: dict[tuple[str, tuple[str, ...], int | str], list[int]] = {}
    for index, task in enumerate(tasks):
        told = found.get((task.handler, task.capabilities, task.min_memory))
        if told is None:
            found[task.handler, task.capabilities, task.min_memory] = [index, 1]
        else:
            told[1] += 1
    wanted: dict[Wants, tuple[int, int]] = {}
    for (handler, capabilities, min_memory), (index, count) in found.items():
        is_brought = handler in bundled
        wants = Wants("" if is_brought else handler, capabilities, _bytes(min_memory), is_brought)
        first, others = wanted.get(wants, (index, 0))
        wanted[wants] = first, others + count
    return wanted


def _bytes(size: int | str) -> int:
    try:
        return bytes_of(size, "min_memory")
    except Invalid:
        return 0  # whoever checks the task says what is wrong with it
