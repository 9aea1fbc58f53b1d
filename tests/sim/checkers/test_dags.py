"""Checkers of dag jobs find what they are for, and nothing where all is well."""

from typing import Literal

import pytest

from talka.control.tasks.store_effects import Commit
from talka.testing.handler_cores import HandlerLedger, Script, SimulatedRun
from talka.testing.host import Host
from talka.testing.store_shell import StoreDisk, StoreShell, jobs_in
from talka.testing.world import World
from talka.wire.tasks import HandedTask
from talka.work.dags.dag import Limit, TaskSpec, encode_task
from talka.work.dags.records import (
    AttemptRow,
    Change,
    ClaimTask,
    Complete,
    DropJob,
    JobRow,
    MoveJob,
    PutAttempt,
    PutJob,
    PutTasks,
    Release,
    TaskRow,
)
from talka.work.lifecycle import JobState, TaskState
from tests.sim.checkers.dags import CountsFit, DagHistory, ResultsCountOnce, RunsAreInOrder, Specs
from tests.sim.quiet import Quiet


class LeasedRun(SimulatedRun):
    """On a worker that has a lease as long as the test says so."""

    __slots__ = ("is_leased",)

    @property
    def has_lease(self) -> bool:
        return self.is_leased


class Play:
    """A store with one job: b depends on a, and c and d share a limit."""

    def __init__(self) -> None:
        self.world = World(1)
        self.world.stop_at_first = False
        self.host = self.world.add_host("m", Quiet, disk=StoreDisk())
        self.host.start()
        self.shell = StoreShell(self.world, self.host, 0)
        self.ledger = HandlerLedger()
        self.specs = Specs()
        self.history = DagHistory(self.shell)
        self.results = ResultsCountOnce(self.world, self.shell, self.ledger, self.specs)
        self.runs = RunsAreInOrder(self.world, self.shell, self.ledger, self.specs)
        self.counts = CountsFit(self.world, self.host, self.shell)
        limits = (Limit("k", 1),)
        tasks = (
            TaskSpec(id="a", handler="h"),
            TaskSpec(id="b", handler="h", depends_on=("a",)),
            TaskSpec(id="c", handler="h", limits=limits),
            TaskSpec(id="d", handler="h", limits=(Limit("free"), *limits)),
        )
        row = JobRow(number=1, id="j", name="n", state=JobState.RUNNING, submitted_ms=1, settings=b"{}", tasks=4)
        rows = [
            TaskRow(job=1, index=index, id=task.id, state=TaskState.PENDING, spec=encode_task(task))
            for index, task in enumerate(tasks)
        ]
        self.put = (PutJob(row), PutTasks(tuple(rows)))
        self.specs.on_effect(self.world, self.host, Commit(1, self.put))
        self.specs.on_effect(self.world, self.host, "some other news")

    def applied(self, *changes: Change) -> None:
        self.shell.apply(changes)

    def begin(self, id: str, fence: int, *, is_leased: bool = True, **inputs: bytes) -> LeasedRun:
        task = HandedTask(fence, "j", id, "h", 1, b"{}", inputs)
        run = LeasedRun(self.host, 1, task, self.world.now)
        run.is_leased = is_leased
        self.ledger.add(run)
        self.runs.began(run)
        return run

    def finish(self, run: SimulatedRun, output: bytes = b"") -> None:
        run.output = output or b'{"fence":%d,"run":%d}' % (run.fence, run.number)
        self.ledger.end(run, self.world.now, "completed")
        self.runs.ended(run)

    @property
    def found(self) -> list[str]:
        return [violation.invariant for violation in self.world.violations]


@pytest.fixture
def play() -> Play:
    play = Play()
    play.applied(*play.put)
    return play


def completed(index: int, fence: int, output: bytes) -> Complete:
    return Complete(1, index, fence, TaskState.COMPLETED, 5, output)


def test_all_that_is_well_is_no_violation(play: Play) -> None:
    play.history.acknowledged(play.world, "key", "j")
    for index, id in enumerate("abcd"):
        inputs = {"a": b'{"fence":1,"run":1}'} if id == "b" else {}
        play.applied(ClaimTask(1, index, 1, index + 1, "w", 2))
        run = play.begin(id, index + 1, **inputs)
        play.finish(run)
        play.applied(completed(index, index + 1, run.output))
    play.applied(MoveJob(1, JobState.COMPLETED, 9, counts={"completed": 4}))
    play.counts.on_second(play.world)
    for observer in (play.history, play.counts):
        observer.on_crash(play.world, play.host)
        observer.at_end(play.world)
    assert play.found == []
    assert (play.results.completed, play.results.inputs, play.runs.begun, play.runs.limited) == (4, 1, 4, 2)
    assert play.counts.jobs == 1


def test_d1_an_acknowledged_job_is_there_after_a_crash(play: Play) -> None:
    play.history.acknowledged(play.world, "key", "j")
    play.applied(DropJob(1))
    play.history.on_crash(play.world, play.host)
    assert play.found == ["D1"]


def test_d1_one_key_is_one_job(play: Play) -> None:
    play.history.acknowledged(play.world, "key", "j")
    play.history.acknowledged(play.world, "key", "other")
    assert play.found == ["D1"]


def test_d1_every_job_ends(play: Play) -> None:
    play.history.acknowledged(play.world, "key", "j")
    play.history.at_end(play.world)
    assert play.found == ["D1"]


def test_d2_of_an_attempt_one_result_is_accepted(play: Play) -> None:
    row = AttemptRow(job=1, index=0, attempt=1, fence=1, worker="w", started_ms=1, ended_ms=2, cause="Boom")
    play.applied(ClaimTask(1, 0, 1, 1, "w", 2), PutAttempt(row), PutAttempt(row))
    assert play.found == ["D2"]


@pytest.mark.parametrize(
    "change", [completed(0, 9, b'{"fence":9}'), Release(1, 0, 9, 0, 1)], ids=["an end", "another try"]
)
def test_d2_the_store_refuses_nothing_that_the_manager_decided(play: Play, change: Change) -> None:
    play.applied(ClaimTask(1, 0, 1, 1, "w", 2), change)
    assert play.found == ["D2"]


def test_d3_nothing_begins_before_what_it_depends_on_has_ended_in_the_store(play: Play) -> None:
    play.begin("b", 2)
    assert play.found == ["D3"]


def test_d3_nothing_begins_of_a_job_that_the_store_does_not_have() -> None:
    play = Play()
    play.begin("b", 2)
    assert play.found == ["D3"]


def test_d4_no_result_of_an_earlier_attempt_is_accepted(play: Play) -> None:
    play.applied(ClaimTask(1, 0, 1, 1, "w", 2))
    play.finish(play.begin("a", 1))
    play.applied(Release(1, 0, 1, 0, 1), ClaimTask(1, 0, 2, 2, "w", 3))
    play.applied(completed(0, 2, b'{"fence":1}'))
    assert play.found == ["D4"]


def test_d4_what_was_not_run_has_an_output_that_counts(play: Play) -> None:
    play.applied(ClaimTask(1, 0, 1, 1, "w", 2))
    play.finish(play.begin("a", 1))
    output = b'{"fence":1,"run":1}'
    play.applied(completed(0, 1, output), completed(2, 0, output))
    assert play.found == []
    play.applied(completed(3, 0, b'{"fence":7,"run":7}'))
    assert play.found == ["D4"]


@pytest.mark.parametrize(("cause", "found"), [("Boom", ["D4"]), ("lost", [])])
def test_d4_an_attempt_that_runs_has_not_failed(play: Play, cause: str, found: list[str]) -> None:
    play.begin("a", 1)
    row = AttemptRow(job=1, index=0, attempt=1, fence=1, worker="w", started_ms=1, ended_ms=2, cause=cause)
    play.applied(PutAttempt(row))
    assert play.found == found


def test_d5_no_more_attempts_hold_a_key_than_may(play: Play) -> None:
    first = play.begin("c", 1)
    play.begin("d", 2)
    assert play.found == ["D5"]
    play.finish(first)
    play.begin("c", 3, is_leased=False)
    assert play.found == ["D5", "D5"], "whoever begins counts in any case"


def test_d5_an_attempt_whose_worker_has_no_lease_holds_what_it_has_while_it_runs(play: Play) -> None:
    play.begin("c", 1, is_leased=False)
    play.begin("d", 2)
    assert play.found == ["D5"]


def test_d6_nothing_runs_again_while_it_runs(play: Play) -> None:
    play.begin("a", 1)
    play.begin("a", 2)
    assert play.found == ["D6"]


def test_d6_an_attempt_begins_once(play: Play) -> None:
    play.finish(play.begin("a", 1))
    play.begin("a", 1)
    assert play.found == ["D6"]


def test_d6_what_a_worker_without_a_lease_still_runs_must_not_run_elsewhere(play: Play) -> None:
    play.begin("a", 1, is_leased=False)
    play.begin("a", 2)
    assert play.found == ["D6"] and play.runs.again == 1


def test_d7_a_job_ends_with_the_counts_of_its_tasks(play: Play) -> None:
    play.applied(MoveJob(1, JobState.PARTIAL, 9, counts={"completed": 4}))
    assert play.found == ["D7"]


def test_d8_an_accepted_result_was_made_from_accepted_outputs(play: Play) -> None:
    play.applied(ClaimTask(1, 0, 1, 1, "w", 2))
    play.finish(play.begin("a", 1))
    play.applied(completed(0, 1, b'{"fence":1,"run":1}'), ClaimTask(1, 1, 1, 2, "w", 3))
    run = play.begin("b", 2, a=b'{"fence":0}')
    play.finish(run)
    play.applied(completed(1, 2, run.output))
    assert play.found == ["D8"]


# A store that is replaced.

WORKER = "m#1#7"
"""As claims name the host on which all runs here are."""


def replaced(play: Play, how: Literal["backup", "rollback", "new"]) -> None:
    """By what it was when it was copied last."""
    play.world.run_until(play.world.now + 1)
    play.host.crash()
    play.shell.replace(how)


def test_d9_an_output_is_that_of_the_task_it_counts_for(play: Play) -> None:
    play.applied(ClaimTask(1, 0, 1, 1, WORKER, 2), ClaimTask(1, 2, 1, 2, WORKER, 2))
    run = play.begin("c", 1)
    play.finish(run)
    play.applied(completed(0, 1, run.output))
    assert play.found == ["D9"]


@pytest.mark.parametrize(
    ("how", "found"), [("backup", ["D9"]), ("rollback", [])], ids=["in another life", "rolled back in the same"]
)
def test_d9_what_was_given_out_before_the_copy_counts_in_the_same_life_alone(
    play: Play, how: Literal["backup", "rollback"], found: list[str]
) -> None:
    play.applied(ClaimTask(1, 0, 1, 1, WORKER, 2))
    run = play.begin("a", 1)
    play.shell.back_up()
    replaced(play, how)
    play.finish(run)
    play.applied(ClaimTask(1, 0, 1, 1, WORKER, 2), completed(0, 1, run.output))
    assert play.found == found


def test_d9_what_was_given_out_after_the_copy_counts_for_nothing(play: Play) -> None:
    """Also where the number was given out again, for the same task, to another worker."""
    play.shell.back_up()
    play.applied(ClaimTask(1, 0, 1, 1, WORKER, 2))
    run = play.begin("a", 1)
    replaced(play, "rollback")
    play.finish(run)
    play.applied(ClaimTask(1, 0, 1, 1, "v#1#7", 2), completed(0, 1, run.output))
    assert play.found == ["D9"]


def test_what_a_replaced_store_gave_out_is_in_nobodys_way(play: Play) -> None:
    play.applied(ClaimTask(1, 2, 1, 1, WORKER, 2))
    play.begin("c", 1)
    play.shell.back_up()
    replaced(play, "backup")
    play.begin("b", 9)
    play.applied(ClaimTask(1, 2, 1, 2, WORKER, 3))
    play.begin("c", 2)
    assert play.found == []
    assert play.runs.lost == 1


@pytest.mark.parametrize("how", ["backup", "new"])
def test_d1_what_the_copy_has_is_not_lost(play: Play, how: Literal["backup", "new"]) -> None:
    play.history.acknowledged(play.world, "key", "j")
    play.shell.back_up()
    play.history.acknowledged(play.world, "later", "k")
    replaced(play, how)
    assert list(play.history.jobs) == (["j"] if how == "backup" else [])
    play.history.acknowledged(play.world, "later", "l")
    play.applied(DropJob(1))
    play.history.on_crash(play.world, play.host)
    assert play.found == (["D1", "D1"] if how == "backup" else ["D1"])


def test_a_store_that_was_never_copied_is_replaced_by_a_new_one(play: Play) -> None:
    play.shell.on_boot(play.world, play.host)
    before = play.shell.lives[0]
    replaced(play, "rollback")
    assert jobs_in(play.shell.records) == []
    play.shell.on_boot(play.world, play.host)
    assert not play.shell.lives[0].is_of(before)


def test_a_backup_begins_a_life_of_its_own_and_a_disk_that_was_rolled_back_does_not(play: Play) -> None:
    play.shell.on_boot(play.world, play.host)
    before = play.shell.lives[0]
    play.shell.back_up()
    replaced(play, "rollback")
    play.shell.on_boot(play.world, play.host)
    assert play.shell.lives[0].is_of(before) and [row.id for row in jobs_in(play.shell.records)] == ["j"]
    play.host.start()
    replaced(play, "backup")
    play.shell.on_boot(play.world, play.host)
    assert not play.shell.lives[0].is_of(before) and play.shell.lives[0].store == before.store


def test_a_script_is_what_a_config_says() -> None:
    world = World(1)
    host: Host = world.add_host("w", Quiet)
    run = SimulatedRun(host, 1, HandedTask(1, "j", "a", "h", 1, b'{"ms":7,"fails":3}'), 0)
    assert run.script == Script(7, fails=3)
    assert not run.has_lease, "its host is down"
