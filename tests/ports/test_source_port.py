"""The port from which a dispatcher draws ready tasks: a million of them without a million objects."""

import gc
import tracemalloc
from collections import deque
from pathlib import Path
from random import Random

from talka.control.dags.job import DagJob
from talka.control.tasks.dispatch import Dispatcher
from talka.control.tasks.source import DrawnRange
from talka.control.tasks.task import DagTask, Needs
from talka.control.tasks.worker_room import DispatchWorker
from talka.store.dags.sqlite import SqliteRecords
from talka.units import MILLISECOND
from talka.work.dags.dag import DagSettings
from talka.work.dags.records import ClaimRange, CompleteRange, JobRow, PutJob, PutTasks, TaskRow
from talka.work.lifecycle import JobState, TaskState
from tests.ports.files_that_run import files_that_run
from tests.ports.million_source import MillionTasks

MILLION = 1_000_000
WORKERS = 4
NEEDS = Needs("noop")
SHORT_NS = 10_000
ONCE_MORE = bytes(range(1, 256)) + b"\xff"


class Fleet:
    """Workers that run what they are given in the order in which they were given it."""

    def __init__(self, tasks: int, workers: int = WORKERS) -> None:
        self.source = MillionTasks(tasks, NEEDS)
        self.dispatcher = Dispatcher(Random(7))
        self.done = bytearray(tasks)
        """How often each task came to its end."""
        self.dag_done: list[DagTask] = []
        self.runs: deque[DrawnRange | DagTask] = deque()
        self.most_runs = 0
        for number in range(workers):
            self.start(f"w{number}")
        self.dispatcher.offer(0, self.source)

    def start(self, name: str) -> None:
        self.dispatcher.workers.set_worker(0, DispatchWorker(name=name, cores=2, handlers=("noop",), plain=("noop",)))

    def give_out(self) -> None:
        dispatcher = self.dispatcher
        self.runs += [task for task, _ in dispatcher.assign(0)]
        self.runs += dispatcher.drawn
        dispatcher.drawn.clear()
        self.most_runs = max(self.most_runs, len(self.runs))

    def run_one(self) -> None:
        run = self.runs.popleft()
        if isinstance(run, DagTask):
            self.dag_done.append(run)
            self.dispatcher.ended(0, run, SHORT_NS)
            return
        ran = slice(run.first, run.first + run.count)
        self.done[ran] = self.done[ran].translate(ONCE_MORE)
        self.dispatcher.ended_range(0, run, run.count, SHORT_NS)

    def run_all(self) -> None:
        self.give_out()
        while self.runs:
            self.run_one()
            self.give_out()

    def lose(self, name: str) -> int:
        """The worker is gone: what it had is drawn once more. How many tasks that is."""
        self.dispatcher.workers.remove_worker(0, name)
        lost = [run for run in self.runs if isinstance(run, DrawnRange) and run.worker == name]
        for run in lost:
            self.runs.remove(run)
            self.source.put_back(run.first, run.count)
            self.dispatcher.ended_range(0, run, run.count, None)
        self.dispatcher.offer(0, self.source)
        return sum(run.count for run in lost)


def test_a_million_tasks_run_to_their_end_without_a_million_objects() -> None:
    fleet = Fleet(MILLION)
    gc.collect()
    before = len(gc.get_objects())
    tracemalloc.start()
    try:
        fleet.run_all()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert fleet.done == b"\x01" * MILLION, "each of them ran, and none twice"
    assert (fleet.source.ready, fleet.dispatcher.queues(0).queues[0].active) == (0, 0)
    assert fleet.most_runs <= 4 * WORKERS, "objects are for what workers have"
    assert len(gc.get_objects()) - before < 100
    # What other threads of the test run allocate meanwhile is counted too.
    assert peak_bytes < MILLION // 2, "an object for each task would take a hundred times as much"


def test_what_a_lost_worker_had_is_drawn_again_and_ends_once() -> None:
    fleet = Fleet(50_000)
    fleet.give_out()
    for _ in range(20):
        fleet.run_one()
        fleet.give_out()

    assert fleet.lose("w1") > 0
    fleet.run_all()

    assert fleet.done == b"\x01" * 50_000
    assert fleet.dispatcher.workers.running("w1") == 0


def test_a_dag_job_beside_a_million_tasks_gets_its_half_of_the_workers() -> None:
    fleet = Fleet(MILLION)
    fleet.give_out()
    while fleet.done.count(1) < 5_000:  # it has all the workers, and knows how short its tasks are
        fleet.run_one()
        fleet.give_out()
    job = dag_job()
    tasks = [DagTask(job, index, f"t{index}", TaskState.READY, "noop", 5, b"", needs=NEEDS) for index in range(3_000)]
    already = fleet.done.count(1) + sum(run.count for run in fleet.runs if isinstance(run, DrawnRange))
    fleet.dispatcher.put(0, tasks)

    while len(fleet.dag_done) < len(tasks):
        fleet.run_one()
        fleet.give_out()

    assert len(set(fleet.dag_done)) == len(tasks)
    beside = fleet.done.count(1) - already
    room = 1024 * 2 * WORKERS
    assert len(tasks) - room <= beside <= len(tasks) + room, "as many as of the dag job, but for what workers have now"


def test_runs_of_a_source_are_claimed_and_completed_by_two_changes_each() -> None:
    tasks = 20_000
    fleet = Fleet(tasks)
    records = SqliteRecords(":memory:")
    rows = [TaskRow(job=1, index=index, id=f"t{index}", state=TaskState.PENDING, spec=b"{}") for index in range(tasks)]
    records.apply([PutJob(dag_job().row), PutTasks(tuple(rows))])
    fence, changes, ended = 1 << 32, 0, 0
    claims: dict[DrawnRange, ClaimRange] = {}
    lost: list[ClaimRange] = []
    fleet.give_out()
    while fleet.runs:
        for run in fleet.runs:
            assert isinstance(run, DrawnRange)
            if run not in claims:
                claims[run] = claim = ClaimRange(1, run.first, run.count, 1, fence, f"{run.worker}#1", 5)
                fence += run.count
                changes += 1
                assert records.apply([claim]) == [run.count]
        if not lost and ended > tasks // 2:
            lost = [claims[run] for run in fleet.runs if isinstance(run, DrawnRange) and run.worker == "w1"]
            assert fleet.lose("w1") == sum(claim.count for claim in lost)
        else:
            done = fleet.runs[0]
            assert isinstance(done, DrawnRange)
            fleet.run_one()
            changes += 1
            assert records.apply([end_of(claims[done])]) == [done.count]
            ended += done.count
        fleet.give_out()
    assert ended == tasks and records.counts(1) == {"completed": tasks}
    assert lost and records.apply([end_of(claim) for claim in lost]) == [0] * len(lost), "who was lost comes too late"
    assert changes < tasks // 20
    records.close()


def test_a_source_takes_one_file() -> None:
    with files_that_run() as files:
        fleet = Fleet(10_000)
        fleet.run_all()
    assert fleet.done == b"\x01" * 10_000
    assert set(files.of_tests) - {Path(__file__).name} == {"million_source.py"}
    assert "control/tasks/dispatch.py" in files.of_talka
    assert [file for file in files.of_talka if file.startswith("control/dags/")] == []


def dag_job() -> DagJob:
    row = JobRow(number=1, id="job-1", name="n", state=JobState.RUNNING, submitted_ms=0, settings=b"{}")
    return DagJob(row, DagSettings(), Random(1), lambda now: now // MILLISECOND)


def end_of(claim: ClaimRange) -> CompleteRange:
    return CompleteRange(1, claim.first, claim.count, claim.fence, TaskState.COMPLETED, 9, output=b"null")
