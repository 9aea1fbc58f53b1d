"""Whatever happens in whatever order: cores arm, report, refuse, die and finish, people interrupt, time passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.load.core_effects import LoadEffect, StartCore, TellCore
from talka.control.load.load_job import ENDED
from talka.stats.tally import Tally
from talka.stats.windows import Window
from talka.wire.shards import Armed, Go, Refused
from talka.work.lifecycle import TASK_MOVES, TaskState
from talka.work.shapes import ConstantRate, ConstantVUs, IterationsPerVU, SharedIterations

if TYPE_CHECKING:
    from tests.control.conftest import Driven

quick = settings(deadline=None, derandomize=True, max_examples=40)
JobOf = Callable[..., "Driven"]
NAMES = ("A", "B", "C", "D")
STEPS = 50


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """Up to four workflows, each of which may depend on earlier ones."""
    workflows: dict[str, dict[str, Any]] = {}
    for name in NAMES[: draw(st.integers(1, 4))]:
        workflows[name] = {
            "shape": draw(
                st.sampled_from(
                    [
                        ConstantVUs(3, "5s"),
                        ConstantRate(7, "5s"),
                        IterationsPerVU(2, 10),
                        SharedIterations(2, 9, "8s"),
                    ]
                )
            ),
            "priority": draw(st.sampled_from(["low", "normal", "high", "exclusive", "auto"])),
            "is_test": draw(st.booleans()),
            "after": draw(st.sets(st.sampled_from(sorted(workflows)))) if workflows else set(),
            "timeout_s": draw(st.sampled_from([3, 6, None])),
            "thresholds": draw(st.sampled_from([[], ["iterations < 20 abort after 1s"]])),
        }
    return {"workflows": workflows, "cores": draw(st.integers(1, 4)), "grace_s": draw(st.sampled_from([0, 1]))}


class World:
    """The job, its cores, and everything that must hold at any time."""

    def __init__(self, driven: Driven) -> None:
        self.driven = driven
        self.armed: set[int] = set()
        self.going: set[int] = set()
        self.counted: dict[int, int] = {}
        self.sent: dict[int, list[Window]] = {}
        self.started_before = 0
        self.states_before = {name: run.state for name, run in driven.job.workflows.items()}
        self.follow(driven.start())

    def follow(self, effects: list[LoadEffect]) -> None:
        driven = self.driven
        for effect in effects:
            if isinstance(effect, TellCore) and isinstance(effect.message, Go):
                assert effect.attempt in self.armed and effect.attempt not in self.going, "go once, and only when armed"
                self.going.add(effect.attempt)
        under_way = [run for run in driven.job.workflows.values() if run.is_under_way]
        processes = {driven.starts[core].process for core in driven.alive}
        assert len(processes) <= driven.job.spec.cores
        assert not [run for run in driven.job.workflows.values() if run.state is TaskState.READY] or any(
            run.runs_alone for run in driven.job.workflows.values()
        ), "nobody waits for a core, except where one runs alone"
        if any(run.runs_alone for run in under_way):
            assert len(under_way) == 1
        if driven.job.interrupted_by or driven.job.aborted:
            assert not any(isinstance(effect, StartCore) for effect in effects)
        started = driven.job.tally().started
        assert started >= self.started_before
        assert started == sum(span.window.started for span in driven.job.timeline.spans()), "each window counts once"
        self.started_before = started
        for name, run in driven.job.workflows.items():
            assert run.state in reachable(self.states_before[name])
            self.states_before[name] = run.state
        assert driven.has_ended == (set(self.states_before.values()) <= ENDED)

    # What can happen.

    def happen(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        driven = self.driven
        core = draw(st.sampled_from(sorted(driven.alive))) if driven.alive else 0
        event = draw(st.sampled_from(["tick", "progress", "progress", "progress", "exit", "odd"]))
        if event == "tick":
            driven.later(draw(st.sampled_from([0, 0.1, 1, 20])))
            self.follow(driven.tick())
        elif event == "odd" and draw(st.booleans()):
            self.follow(driven.interrupt())
        elif event == "odd" and core and core not in self.armed and draw(st.booleans()):
            self.follow(driven.say(core, Refused("file", "no such step")))
        elif event == "exit" and core:
            self.follow(driven.exit(core))
        elif core:
            self.progress(core, draw(st.sampled_from([1, 4, 9, 0, 3, 5, 2, 6])))

    def progress(self, core: int, count: int) -> None:
        """The core does what comes next for it: arm, report, or finish when nothing is left to count."""
        driven = self.driven
        if core not in self.armed:
            self.armed.add(core)
            self.follow(driven.say(core, Armed()))
        elif core in self.going:
            self.counted[core] = self.counted.get(core, 0) + count
            sent = self.sent.setdefault(core, [])
            sent.append(Window(len(sent), started=count))
            tally = Tally(started=self.counted[core], iterations=self.counted[core])
            if count:
                self.follow(driven.report(core, tally, sent[-1:]))
            else:  # the last report repeats windows that may have arrived
                effects = driven.finish(core, tally, windows=sent[-2:])
                driven.alive.discard(core)
                self.follow(effects)

    def check_the_end(self) -> None:
        job = self.driven.job
        assert self.driven.has_ended
        assert not self.driven.alive, "no core is left behind"
        assert all(shard.gap is None for run in job.workflows.values() for shard in run.shards)
        for lost in job.lost:
            assert 0 <= lost.from_ns <= lost.to_ns
            shard = job.workflows[lost.workflow].shards[lost.shard].shard
            assert 0 <= lost.arrivals_missing <= shard.arrivals_total


def reachable(state: TaskState) -> set[TaskState]:
    """Where one event may lead: any chain of legal moves."""
    found, new = {state}, {state}
    while new:
        new = {after for before in new for after in TASK_MOVES[before]} - found
        found |= new
    return found


@given(job=jobs(), data=st.data())
@quick
def test_a_job_ends_once_its_cores_finish_whatever_happened_before(
    job_of: JobOf, job: dict[str, Any], data: st.DataObject
) -> None:
    world = World(job_of(**job))
    for _ in range(STEPS):
        world.happen(data.draw)

    for _ in range(1000):
        for core in sorted(world.driven.alive):
            world.progress(core, 0)
        if world.driven.has_ended:
            break
    world.check_the_end()


@given(job=jobs(), data=st.data())
@quick
def test_a_job_ends_in_time_even_if_its_cores_never_say_another_word(
    job_of: JobOf, job: dict[str, Any], data: st.DataObject
) -> None:
    world = World(job_of(**job))
    for _ in range(STEPS):
        world.happen(data.draw)

    # Each of four workflows may arm, run for an hour and a minute, and stop; replacements come within that time.
    for _ in range(1000):
        if world.driven.has_ended:
            break
        world.driven.later(30)
        world.follow(world.driven.tick())
    world.check_the_end()
