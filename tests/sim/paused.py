"""Jobs that are put aside, people who resume them, and managers and workers that fall meanwhile.

One seed is one history, as in `jobs`.
"""

from collections.abc import Callable
from typing import Final

from talka.control.member.leader_calls import CallEnded
from talka.testing.host import Host
from talka.testing.world import Observer, World
from talka.units import SECOND
from talka.wire.manager_calls import ResumeJob
from talka.wire.views import JobUpdate
from talka.work.lifecycle import JobState, TaskState
from tests.sim import jobs
from tests.sim.checkers.jobs import manager_on
from tests.sim.checkers.pauses import PausedJobsStandStill
from tests.sim.job_clients import Clients, Job
from tests.sim.job_orders import paused

WORKERS: Final = (1, 2, 1)
MOMENTS: Final = ("owner of a paused job", "leader over a paused job", "owner that resumes", "owner that puts aside")


class People(Clients):
    """They resume a job some seconds after they saw that it is paused, as often as it is."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.resumed = 0
        self._resume_at: dict[str, int] = {}

    def _updated(self, job: Job, host: Host, number: int, update: JobUpdate) -> None:
        super()._updated(job, host, number, update)
        if update.job.state is not JobState.PAUSED:
            self._resume_at.pop(job.name, None)
        elif job.name not in self._resume_at:
            self._resume_at[job.name] = self._world.now + self._rng(job).randrange(1, 24) * SECOND

    def _act(self, job: Job) -> None:
        is_due = self._world.now >= self._resume_at.get(job.name, self._world.now + 1)
        if is_due and not job.what and not job.is_final:
            self._ask(job, ResumeJob(job.name))
        super()._act(job)

    def _answered(self, job: Job, key: tuple[str, int, int], ended: CallEnded) -> None:
        if job.asked == key and job.what == "resume":
            job.what = ""
            self._resume_at.pop(job.name, None)
            self.resumed += not ended.problem
            return  # what was seen to be paused may run again by then: somebody was quicker
        super()._answered(job, key, ended)


class Falls(Observer):
    """Crashes a manager, once, as soon as it sees there what it waits for; with it a worker, in half of the seeds."""

    def __init__(self, story: jobs.Story, moment: str, *, with_worker: bool) -> None:
        self.fell = ""
        self._story = story
        self._moment = moment
        self._with_worker = with_worker
        story.world.observers.append(self)

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if self.fell or manager_on(host) is None or not self._is_due(host):
            return
        self.fell = host.name
        world.after(1, host.crash)
        world.after(4 * SECOND, host.start)
        if self._with_worker:
            worker = world.hosts[f"w{self._story.plan.seed % len(WORKERS)}"]
            world.after(SECOND, worker.crash)
            world.after(3 * SECOND, worker.start)

    def _is_due(self, host: Host) -> bool:
        manager = manager_on(host)
        assert manager is not None
        if self._moment == MOMENTS[1]:
            registry = manager.registry
            written = {} if registry is None else registry.book.written
            return any(entry.state is JobState.PAUSED for entry in written.values())
        for led in manager.led.values():
            run = None if led.job is None else led.job.workflows.get("Late")
            if run is None:
                continue
            match self._moment:
                case "owner of a paused job":
                    is_due = led.facts().state is JobState.PAUSED
                case "owner that resumes":
                    is_due = run.behind_ns > 0 and run.state in (TaskState.ASSIGNED, TaskState.RUNNING)
                case _:
                    is_due = bool(run.put_aside_for) and run.state is TaskState.RUNNING
            if is_due:
                return True
        return False


class PausedStory(jobs.Story):
    ends_latest = 240 * SECOND

    def __init__(self, seed: int, verbose: Callable[[str], None] | None = None) -> None:
        """Half of the seeds have the faults that they draw, too."""
        classes = () if seed // 4 % 2 else jobs.plan_of(seed).classes
        errands = (paused(0, at_ns=3 * SECOND), paused(1, at_ns=9 * SECOND))
        super().__init__(jobs.plan_for(seed, errands, WORKERS, classes=classes), verbose, clients=People)
        self.pauses = PausedJobsStandStill(self.world, self.ledger)
        self.cores.listeners.append(self.pauses.ran)
        self.world.observers.append(self.pauses)
        self.falls = Falls(self, MOMENTS[seed % 4], with_worker=bool(seed // 8 % 2))

    @property
    def people(self) -> People:
        assert isinstance(self.clients, People)
        return self.clients


def run(seed: int, *, verbose: Callable[[str], None] | None = None) -> World:
    return PausedStory(seed, verbose).run()
