"""What is counted for each handler, held against the tasks in memory and against the rows of the store."""

from collections import Counter
from typing import Final

from talka.control.dags.book import GONE
from talka.control.dags.handler_counts import BEGUN, HandlerCounts
from talka.control.dags.keepers import DagKeepers
from talka.testing.host import Host
from talka.testing.store_shell import StoreShell, all_tasks, keepers_on
from talka.testing.world import Observer, World
from talka.work.dags.records import TASK_STATES
from talka.work.lifecycle import TaskState, is_final

SETTLED_LOOKS: Final = 10
"""What memory has and the store has not for so many seconds is not under way any more."""

Open = dict[tuple[str, bool], int]
"""Tasks that have not ended, by handler and whether they were given out."""


class QueuesFit(Observer):
    """D16: what is counted for each handler is what the tasks in memory are, and that is what the store has, except for
    what is just being written. So it is after a restart, too."""

    def __init__(self, host: Host, shell: StoreShell) -> None:
        self.looks = 0
        self.delayed = 0
        """Tasks that waited for their time when it was looked."""
        self._host = host
        self._shell = shell
        self._off: tuple[Open, Open] | None = None
        self._looks_off = 0

    def on_second(self, world: World) -> None:
        keepers = keepers_on(self._host)
        if keepers is None:
            return
        self.looks += 1
        counts = next(iter(keepers)).turns.handlers
        self._check_memory(world, keepers, counts)
        counted, kept = _counted(counts), self._kept()
        if counted == kept:
            self._off, self._looks_off = None, 0
            return
        self._looks_off = self._looks_off + 1 if self._off == (counted, kept) else 1
        self._off = counted, kept
        if self._looks_off == SETTLED_LOOKS:
            world.violate("D16", f"{counted} are counted, and the store has {kept}, for {SETTLED_LOOKS} s")

    def at_end(self, world: World) -> None:
        keepers = keepers_on(self._host)
        if keepers is None:
            return
        counted, kept = _counted(next(iter(keepers)).turns.handlers), self._kept()
        if counted != kept and not self._shell.is_writing:
            world.violate("D16", f"{counted} are counted in the end, and the store has {kept}")

    def _check_memory(self, world: World, keepers: DagKeepers, counts: HandlerCounts) -> None:
        now = self._host.local(world.now)
        found: Counter[tuple[str, TaskState]] = Counter()
        waiting: Counter[str] = Counter()
        later: Counter[str] = Counter()
        for task in [task for keeper in keepers for job in keeper.jobs.values() for task in job.tasks]:
            if task is GONE or is_final(task.state):
                continue
            found[task.handler, task.state] += 1
            if task.state is TaskState.PENDING and task.ready_at and not task.waits_for:
                waiting[task.handler] += 1
                later[task.handler] += task.ready_at > now
        counted: Counter[tuple[str, TaskState]] = Counter()
        for handler, row in counts.rows():
            counted.update({(handler, state): n for state, n in row.states.items() if n and not is_final(state)})
            self.delayed += row.delayed
            if not later[handler] <= row.delayed <= waiting[handler]:
                text = f"{row.delayed} are counted as delayed, of {later[handler]} to {waiting[handler]}"
                world.violate("D16", f"of {handler} {text}")
        if counted != found:
            world.violate("D16", f"{dict(counted)} are counted, and the tasks are {dict(found)}")

    def _kept(self) -> Open:
        records, found = self._shell.records, Counter[tuple[str, bool]]()
        for job in records.live_jobs():
            for task in all_tasks(records, job.number):
                state = TASK_STATES[task.state]
                if not is_final(state):
                    found[task.handler, state in BEGUN] += 1
        return dict(found)


def _counted(counts: HandlerCounts) -> Open:
    found: Counter[tuple[str, bool]] = Counter()
    for handler, row in counts.rows():
        found[handler, False] += row.states[TaskState.PENDING] + row.states[TaskState.READY]
        found[handler, True] += row.running
    return {key: n for key, n in found.items() if n}
