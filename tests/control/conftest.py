"""A load job whose cores do what a test says, at the time it says."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pytest

from talka.control.load_job import Effect, JobEnded, JobSpec, JobWorkflow, KillCore, LoadJob, Send, StartCore
from talka.stats.tally import Tally
from talka.stats.windows import Window
from talka.wire.jobs import AttemptResult
from talka.wire.shards import Arm, Armed, FileSource, FromCore, Settings, Totals
from talka.work.dsl import Priority
from talka.work.shapes import ConstantVUs, LoadShape
from talka.work.specs import default_timeout_ns
from talka.work.thresholds import parse_threshold

SECOND = 1_000_000_000
START_NS = 1_000 * SECOND


class Driven:
    """A job and its clock. Every effect is kept, and checked against what was started before."""

    def __init__(self, spec: JobSpec) -> None:
        self.job = LoadJob(spec)
        self.now = START_NS
        self.effects: list[Effect] = []
        self.arms: dict[int, Arm] = {}
        self.starts: dict[int, StartCore] = {}
        self.alive: set[int] = set()
        self.sequences: dict[int, int] = {}

    # What happens.

    def take(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            assert not self.has_ended, "nothing follows the end"
            match effect:
                case StartCore(core=core, arm=arm):
                    assert core not in self.arms, "a number is given to one core only"
                    self.arms[core] = arm
                    self.starts[core] = effect
                    self.alive.add(core)
                case Send(core=core):
                    assert core in self.alive, "a message to a core that does not live"
                case KillCore(core=core):
                    assert core in self.alive, "a core is killed that does not live"
                    self.alive.discard(core)
                case JobEnded():
                    pass
            self.effects.append(effect)
        return effects

    def start(self) -> list[Effect]:
        return self.take(self.job.start(self.now))

    def run(self) -> None:
        """Start, arm every core, and wait for the starting instant."""
        self.start()
        self.arm(*self.alive)
        self.now = self.job.origin_ns

    def later(self, seconds: float) -> "Driven":
        self.now += round(seconds * SECOND)
        return self

    def say(self, core: int, message: FromCore) -> list[Effect]:
        return self.take(self.job.on_message(self.now, core, message))

    def arm(self, *cores: int) -> list[Effect]:
        return [effect for core in cores for effect in self.say(core, Armed())]

    def report(
        self, core: int, tally: Tally | None = None, windows: Sequence[Window] = (), vus: int = 0, **more: Any
    ) -> list[Effect]:
        """The core's next report."""
        self.sequences[core] = self.sequences.get(core, 0) + 1
        return self.say(core, Totals(self.sequences[core], tally or Tally(), list(windows), vus, 0, **more))

    def finish(self, core: int, tally: Tally | None = None, **more: Any) -> list[Effect]:
        """The core's last report. Its process ends later, and that is no news."""
        return self.report(core, tally, final=True, ended_at_ns=self.now, **more)

    def result(
        self, core: int, tally: Tally | None = None, windows: Sequence[Window] = (), **more: Any
    ) -> list[Effect]:
        """The whole result of a task. Its instants are told since the start of the job."""
        more = {"ended_at_ns": self.now - self.job.origin_ns, **more}
        result = AttemptResult("job", core, tally or Tally(), list(windows), **more)
        return self.take(self.job.on_result(self.now, core, result))

    def exit(self, core: int, cause: str = "was killed by SIGKILL") -> list[Effect]:
        self.alive.discard(core)
        return self.take(self.job.on_exit(self.now, core, cause))

    def tick(self) -> list[Effect]:
        return self.take(self.job.tick(self.now))

    def interrupt(self) -> list[Effect]:
        return self.take(self.job.interrupt(self.now, "SIGINT"))

    # What is seen.

    def cores(self, workflow: str) -> list[int]:
        """The cores that were started for it, earliest first."""
        return [core for core, arm in self.arms.items() if arm.workflow == workflow]

    @property
    def states(self) -> dict[str, str]:
        return {name: str(run.state) for name, run in self.job.workflows.items()}

    @property
    def has_ended(self) -> bool:
        return JobEnded() in self.effects


def workflow_of(
    name: str,
    *,
    shape: LoadShape = ConstantVUs(4, "10s"),  # noqa: B008 - it never changes
    priority: Priority = "auto",
    is_test: bool = True,
    after: Collection[str] = (),
    timeout_s: float | None = None,
    thresholds: Sequence[str] = (),
    flows: Sequence[tuple[str, str]] = (),
) -> JobWorkflow:
    plan = shape.plan()
    return JobWorkflow(
        name=name,
        plan=plan,
        priority=priority,
        is_test=is_test,
        depends_on=frozenset(after),
        timeout_ns=default_timeout_ns(plan) if timeout_s is None else round(timeout_s * SECOND),
        thresholds=tuple(parse_threshold(rule) for rule in thresholds),
        flows=tuple(flows),
    )


@pytest.fixture(scope="session")
def job_of() -> Callable[..., Driven]:
    """Makes jobs of workflows: their names, and what is not as by default."""

    def make(
        workflows: Mapping[str, Mapping[str, Any]],
        *,
        cores: int = 4,
        grace_s: float = 2,
        thresholds: Sequence[str] = (),
        places: Mapping[str, int] | None = None,
    ) -> Driven:
        spec = JobSpec(
            job="job",
            source=FileSource("shop.py"),
            workflows=tuple(workflow_of(name, **more) for name, more in workflows.items()),
            cores=cores,
            settings=Settings(round(grace_s * SECOND)),
            thresholds=tuple(parse_threshold(rule) for rule in thresholds),
        )
        driven = Driven(spec)
        driven.job.places = None if places is None else dict(places)
        return driven

    return make
