"""Clients of a simulated manager's dag jobs, and what its shell does for them: keys, and jobs that have ended."""

from collections.abc import Callable
from functools import partial
from typing import Final

from talka.control.dags.flow import DagStep
from talka.control.dags.job import DagJob
from talka.control.dags.keeper import DagKeeper
from talka.control.tasks.store_effects import CallAnswered
from talka.errors import Invalid, Unavailable
from talka.testing.host import Host
from talka.testing.store_shell import ALL_ROWS, StoreListener, StoreShell, act_on, all_tasks, keepers_on, keyed_in
from talka.testing.world import Observer, World
from talka.units import MILLISECOND, SECOND
from talka.work.lifecycle import JobState, is_final
from tests.sim.checkers.dags import DagHistory
from tests.sim.dag_orders import DagErrand, Wish

PATIENCE_NS: Final = 5 * SECOND

Asking = Callable[[DagKeeper, int, int], list[object]]
"""With the keeper, the time and the number of the call."""


class DagJobSeen:
    """One errand as its client sees it."""

    def __init__(self, errand: DagErrand) -> None:
        self.errand = errand
        self.id = ""
        self.wishes = list(errand.wishes)
        self.asked: tuple[int, int] = (0, 0)
        """Boot of the manager and number of the call that is open; 0: none."""
        self.asked_at = 0
        self.what = ""


class DagClients(Observer, StoreListener):
    """Submit with a key until there is an answer; ask what they wish until it is granted or refused. What a store that
    was replaced does not have any more, they ask for once more."""

    def __init__(
        self, world: World, host: Host, shell: StoreShell, errands: tuple[DagErrand, ...], history: DagHistory
    ) -> None:
        self.jobs = [DagJobSeen(errand) for errand in errands]
        self.granted: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        self._world = world
        self._host = host
        self._shell = shell
        self._history = history
        self._rng = world.rng("dag clients")
        self._calls = 0
        self._open: dict[tuple[int, int], DagJobSeen] = {}
        self._wishes_then = [list(job.wishes) for job in self.jobs]
        """When the store was copied."""
        shell.listeners.append(self)

    @property
    def are_done(self) -> bool:
        """Whether every job was submitted, nothing is wished for any more, and all have ended."""
        return all(job.id and not job.wishes and self._has_ended(job) for job in self.jobs)

    def _has_ended(self, job: DagJobSeen) -> bool:
        row = self._shell.records.job(job.id)
        return row is not None and is_final(row.state)

    def backed_up(self) -> None:
        self._wishes_then = [list(job.wishes) for job in self.jobs]

    def put_back(self) -> None:
        for job, wishes in zip(self.jobs, self._wishes_then, strict=True):
            is_idle = bool(job.id) and not job.wishes
            is_there = bool(job.id) and self._shell.records.job(job.id) is not None
            job.wishes = list(wishes if is_there else job.errand.wishes)
            if not is_there:
                job.id = ""
            if is_idle and (not job.id or job.wishes):
                self._world.after(SECOND, partial(self._act, job))

    def begin(self) -> None:
        for job in self.jobs:
            self._world.at(job.errand.at_ns, partial(self._act, job))

    def _act(self, job: DagJobSeen) -> None:
        """A look at a job now and then."""
        world = self._world
        if job.id and not job.wishes:
            return
        world.after((150 + self._rng.randrange(300)) * MILLISECOND, partial(self._act, job))
        if job.what and world.now - job.asked_at < PATIENCE_NS and job.asked[0] == self._host.boot:
            return
        if self._host.state != "up" or keepers_on(self._host) is None:
            return
        if not job.id:
            self._submit(job)
        elif job.wishes[0].at_ns <= world.now:
            self._wish(job, job.wishes[0])

    def _submit(self, job: DagJobSeen) -> None:
        errand = job.errand
        known = self._shell.records.job_by_key(errand.key)
        if known is not None:
            self._acknowledged(job, known.id)
            return

        def ask(durable: DagKeeper, now: int, call: int) -> list[object]:
            keyed = keyed_in(self._shell.records, [task.key for task in errand.spec.tasks])
            return durable.submit(now, call, errand.spec, key=errand.key, keyed=keyed)

        self._ask(job, "submit", ask)

    def _wish(self, job: DagJobSeen, wish: Wish) -> None:
        def what(dag: DagJob, now: int) -> DagStep:
            match wish.what:
                case "pause":
                    return dag.pause(now)
                case "resume":
                    return dag.resume(now)
                case "cancel":
                    return dag.cancel(now, "planned")
                case _:
                    return dag.skip(now, wish.tasks)

        def ask(durable: DagKeeper, now: int, call: int) -> list[object]:
            if wish.what != "rerun":
                return durable.change(now, call, job.id, lambda dag: what(dag, now))
            records = self._shell.records
            row = records.job(job.id)
            ended = None
            if row is not None and durable.job(job.id) is None:
                streams = records.stream_sizes(row.number, 0, ALL_ROWS)
                ended = (row, all_tasks(records, row.number), streams, records.fans(row.number))
            return durable.rerun(now, call, job.id, wish.tasks, ended=ended)

        self._ask(job, wish.what, ask)

    def _ask(self, job: DagJobSeen, what: str, ask: Asking) -> None:
        host, boot = self._host, self._host.boot
        self._calls += 1
        number = self._calls

        def call(now: int) -> list[object]:
            keepers = keepers_on(host)
            if keepers is None:
                return []
            durable = keepers.of_job(job.id) if job.id else keepers.of_key(job.errand.key)
            if durable is None or job.asked != (boot, number):
                return []
            try:
                effects = ask(durable, now, number)
            except Unavailable:
                job.what = ""
                return []
            except Invalid:
                self._ended(job, what, self.refused)
                return []
            return act_on(host, now, effects)

        self._open[boot, number] = job
        job.what, job.asked_at, job.asked = what, self._world.now, (boot, number)
        host.act(call)

    # -- answers

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if type(effect) is not CallAnswered:
            return
        job = self._open.pop((host.boot, effect.call), None)
        if job is None or job.asked != (host.boot, effect.call):
            return
        if job.what == "submit":
            self._acknowledged(job, effect.job)
        else:
            self._ended(job, job.what, self.granted)

    def _acknowledged(self, job: DagJobSeen, id: str) -> None:
        job.id, job.what, job.asked = id, "", (0, 0)
        self._history.acknowledged(self._world, job.errand.key, id)

    def _ended(self, job: DagJobSeen, what: str, how: dict[str, int]) -> None:
        job.what = ""
        if what == "submit":
            return  # somebody else's key, for a moment
        how[what] = how.get(what, 0) + 1
        job.wishes.pop(0)


class Resumer(Observer):
    """Somebody who looks at jobs now and then, and resumes those that are paused for a task that took too long."""

    def __init__(self, host: Host) -> None:
        self.resumed = 0
        self._host = host

    def on_second(self, world: World) -> None:
        if world.now % (3 * SECOND) == 0 and self._host.state == "up":
            self._host.act(self._resume)

    def _resume(self, now: int) -> list[object]:
        effects: list[object] = []
        for keeper in keepers_on(self._host) or ():
            for id in [job.row.id for job in keeper.jobs.values() if job.state is JobState.PAUSED and job.reason]:
                self.resumed += 1
                effects += act_on(self._host, now, keeper.change(now, 0, id, lambda job: job.resume(now)))
        return effects
