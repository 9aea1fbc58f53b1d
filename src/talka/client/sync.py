"""`talka.Client`: a cluster from scripts and notebooks, without `await`."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypedDict, TypeVar, Unpack

import msgspec

from talka.client import code as travelling
from talka.client.client import Client as AsyncClient
from talka.client.dags import SubmitAnswer
from talka.client.kinds import AnyJob
from talka.client.ordering import OrderOptions, file_of, submission_of
from talka.client.requests import PAGE_LIMIT
from talka.client.sheets import JobSheet
from talka.control.load.planning import Overrides
from talka.errors import Invalid, TalkaError
from talka.report.document import ResultDocument, read
from talka.wire.task_views import (
    AttemptView,
    BackfillView,
    DagFacts,
    DeadLetter,
    EventView,
    GraphView,
    LogPage,
    OutputView,
    QueuesView,
    RetryPlan,
    RetryRequest,
    ScheduleView,
    SkipRequest,
    TaskView,
    TaskWants,
    TaskWorkers,
    WhyView,
)
from talka.wire.views import ClusterView, JobFacts, JobUpdate, WorkerView
from talka.work.dags.dag import DagSettings, DagSpec, Param, ParamValue, TaskSpec
from talka.work.dags.params import NO_PARAMS, NO_VALUES
from talka.work.dsl import Workflow

JOBS_LIMIT: Final = 10_000

Answer = TypeVar("Answer")
Item = TypeVar("Item")


class Page(Protocol[Item]):
    @property
    def items(self) -> list[Item]: ...
    @property
    def next(self) -> str: ...


class SubmitOptions(TypedDict, total=False):
    """What is given here replaces what the file says."""

    vus: int | None
    rate: str | float | None
    duration: str | float | None
    iterations: int | None
    thresholds: Sequence[str]
    cores: int
    grace: str | float
    seed: int | None
    engine: Literal["auto", "native", "python"]
    allow_partial: bool
    env: Mapping[str, str]
    workers_have: Sequence[str]
    name: str


def brought(spec: DagSpec, files: Sequence[str | os.PathLike[str]]) -> tuple[DagSpec, bytes]:
    travelling.check_not_importing()
    return travelling.with_files(spec, files) if files else (spec, b"")


class Client:
    """A cluster, asked from a program that does not await.

        with talka.Client("127.0.0.1:8470") as client:
            job = client.submit("shop.py", vus=50, duration="1m")
            print(client.result(job.id).totals.requests)

    One address is enough: other managers are learned from it.
    """

    def __init__(
        self, addresses: str | Sequence[str] = "127.0.0.1:8470", *, token: str | None = None, ca: str | None = None
    ) -> None:
        self._client = AsyncClient([addresses] if isinstance(addresses, str) else addresses, token, ca)
        # A loop of its own: where one is running already, as in a notebook, that one cannot be waited for.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="talka.Client", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the client's thread and close its connections. Calls made later raise `Invalid`."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def submit(
        self, what: str | os.PathLike[str] | type[Workflow] | Sequence[type[Workflow]], **options: Unpack[SubmitOptions]
    ) -> JobFacts:
        """Submit a test file, a URL, or workflow classes that are written in one file."""
        if unknown := options.keys() - SubmitOptions.__annotations__.keys():
            known = ", ".join(SubmitOptions.__annotations__)
            raise TypeError(f"submit() does not know {', '.join(sorted(unknown))}: it takes {known}")
        names: list[str] = []
        if isinstance(what, str | os.PathLike):
            path = os.fspath(what)
        else:
            classes = [what] if isinstance(what, type) else list(what)
            path, names = file_of(classes), [workflow.__name__ for workflow in classes]
        given: dict[str, Any] = dict(options)
        overrides = Overrides(*(given.pop(name, None) for name in ("vus", "rate", "duration", "iterations")))
        for name in ("thresholds", "workers_have"):
            given[name] = tuple(given.get(name, ()))
        submission = submission_of(path, names, OrderOptions(overrides=overrides, **given))
        return self._wait(self._client.submit(submission.order, bundle=submission.bundle))

    def watch(self, id: str, *, steps: bool = False) -> Iterator[JobUpdate]:
        """How the job stands, up to and with its final update."""
        return self._each(self._client.watch(id, steps))

    def result(self, id: str) -> ResultDocument:
        """The result of a job, once it has ended: this waits for it."""
        return read(self._wait(self._client.wait(id)))

    def cancel(self, id: str, reason: str = "") -> AnyJob:
        """Ask a job to stop, and return its facts; `stopped` is how many workflows or tasks that stops. A job that has
        ended is not changed."""
        return self._wait(self._client.cancel(id, reason))

    def resume(self, id: str) -> AnyJob:
        """Go on with a job that is paused: a pipeline, or a load job whose workflows were put aside when they were
        late."""
        return self._wait(self._client.resume(id))

    def job(self, id: str) -> JobFacts:
        """The state and the facts of one load job."""
        return self._wait(self._client.job(id))

    def jobs(self, state: str = "") -> list[JobFacts]:
        """Newest first."""
        return self._all(lambda cursor: self._client.jobs(state, cursor, PAGE_LIMIT))

    # Jobs of any kind.

    def submit_any(self, spec: Any, key: str = "") -> AnyJob:
        """Submit a job of any kind once, however often it must be said. The JSON of `spec` has its `kind`."""
        return self._wait(self._client.submit_any(spec, key))

    def all_jobs(self, state: str = "") -> list[AnyJob]:
        """Jobs of all kinds, newest first."""
        return self._all(lambda cursor: self._client.all_jobs(state, cursor, PAGE_LIMIT))

    def any_job(self, id: str) -> AnyJob:
        """The state and the facts of a job, and its kind."""
        return self._wait(self._client.any_job(id))

    def view(self, id: str) -> JobSheet:
        """What people are shown of a job: words and texts, and a table of its parts."""
        return self._wait(self._client.view(id))

    def watch_any(self, id: str) -> Iterator[AnyJob]:
        """How a job stands, up to its end."""
        return self._each(self._client.watch_any(id))

    # Dag jobs.

    def submit_dag(
        self, spec: DagSpec, key: str = "", *, with_files: Sequence[str | os.PathLike[str]] = ()
    ) -> DagFacts:
        """Submit a job once, however often it must be said. `with_files` hold handlers that travel with it."""
        spec, code = brought(spec, with_files)
        return self._wait(self._client.submit_dag(spec, key, code=code))

    def run_dag(self, spec: DagSpec, key: str = "", *, with_files: Sequence[str | os.PathLike[str]] = ()) -> DagFacts:
        """Submit a job once, and answer when it has ended. `with_files` hold handlers that travel with it."""
        spec, code = brought(spec, with_files)
        return self._wait(self._client.run_dag(spec, key, code=code))

    def submit_dags(self, specs: Sequence[DagSpec], key: str = "") -> list[DagFacts | TalkaError]:
        """Many at once, each taken or refused for itself."""
        return self._wait(self._client.submit_dags(specs, key))

    def stream_dag(
        self,
        name: str,
        tasks: Iterable[TaskSpec],
        settings: DagSettings | None = None,
        key: str = "",
        *,
        params: Mapping[str, Param] = NO_PARAMS,
        values: Mapping[str, ParamValue] = NO_VALUES,
        wait_for_workers: bool = False,
    ) -> DagFacts:
        """Submit a job of any size. Tasks depend on those before them; where they have placeholders, they are filled
        with `values` of `params`."""
        streaming = self._client.stream_dag(
            name, tasks, settings, key, params=params, values=values, wait_for_workers=wait_for_workers
        )
        return self._wait(streaming)

    def submit_many(self, jobs: Iterable[DagSpec | TaskSpec]) -> list[SubmitAnswer]:
        """Many on one connection, none of which waits for the one before. Raises what the first was refused with that
        was refused, when all were sent."""

        async def send() -> list[SubmitAnswer]:
            async with self._client.open_submit() as submits:
                answers = [await submits.submit(job) for job in jobs]
            return [await answer for answer in answers]

        return self._wait(send())

    def dag(self, id: str) -> DagFacts:
        """The state and the facts of one dag job."""
        return self._wait(self._client.dag(id))

    def wait_dag(self, id: str) -> DagFacts:
        """The job, once it has ended."""
        return self._wait(self._client.wait_dag(id))

    def watch_dag(self, id: str) -> Iterator[DagFacts]:
        """How the job stands whenever that changed, up to its end."""
        return self._each(self._client.watch_dag(id))

    def dag_tasks(self, id: str, state: str = "") -> list[TaskView]:
        """The tasks of a dag job in the order of its specification; with `state`, only tasks in that state."""
        return self._all(lambda cursor: self._client.dag_tasks(id, state, cursor, PAGE_LIMIT))

    def dag_task(self, id: str, task: str) -> TaskView:
        """One task of a dag job with its attempts."""
        return self._wait(self._client.dag_task(id, task))

    def dag_events(self, id: str) -> list[EventView]:
        """The events of a dag job, oldest first."""
        return self._all(lambda cursor: self._client.dag_events(id, cursor, PAGE_LIMIT))

    def dag_graph(self, id: str) -> GraphView:
        """The tasks of a dag job and the edges between them."""
        return self._wait(self._client.dag_graph(id))

    def why(self, id: str, task: str) -> WhyView:
        """Why a task has not started: the first obstacle for each worker."""
        return self._wait(self._client.why(id, task))

    def task_logs(self, id: str, task: str, cursor: str = "", limit: int = PAGE_LIMIT) -> LogPage:
        """One page of what the attempts at a task have logged. `cursor` comes from the page before."""
        return self._wait(self._client.task_logs(id, task, cursor, limit))

    def task_attempts(self, id: str, task: str) -> list[AttemptView]:
        """Every attempt at a task, the oldest first: how it ended, and how much it wrote."""
        return self._all(lambda cursor: self._client.task_attempts(id, task, cursor, PAGE_LIMIT))

    def task_output(self, id: str, task: str, attempt: int = 0, stream: str = "") -> OutputView:
        """The end of what an attempt wrote to stdout and stderr, and its traceback. Without a number, of the last
        attempt that wrote something; with `stream`, only that one."""
        return self._wait(self._client.task_output(id, task, attempt, stream))

    def cancel_dag(self, id: str, reason: str = "") -> DagFacts:
        """Cancel a dag job: no task starts, and tasks that run are stopped."""
        return self._wait(self._client.cancel_dag(id, reason))

    def pause_dag(self, id: str) -> DagFacts:
        """Start no more tasks of a dag job. Tasks that run go on."""
        return self._wait(self._client.pause_dag(id))

    def resume_dag(self, id: str) -> DagFacts:
        """Start tasks of a paused dag job again."""
        return self._wait(self._client.resume_dag(id))

    def retry_plan(self, id: str, request: RetryRequest | None = None) -> RetryPlan:
        """What `retry_dag` would run again. Changes nothing."""
        return self._wait(self._client.retry_plan(id, request))

    def retry_dag(self, id: str, request: RetryRequest | None = None) -> DagFacts:
        """Run tasks of a dag job again that failed; `request` can name them."""
        return self._wait(self._client.retry_dag(id, request))

    def skip_dag(self, id: str, request: SkipRequest) -> DagFacts:
        """Treat tasks of a dag job as skipped, so that the tasks that depend on them are decided."""
        return self._wait(self._client.skip_dag(id, request))

    def queues(self) -> QueuesView:
        """How many tasks wait, by queue and by limit."""
        return self._wait(self._client.queues())

    def who_could_run(self, wants: Sequence[TaskWants]) -> list[TaskWorkers]:
        """For each kind of task, by the workers that are known now. At most 200."""
        return self._wait(self._client.who_could_run(wants))

    def dead_letters(self) -> list[DeadLetter]:
        """Tasks that were given up, with their last error."""
        return self._all(lambda cursor: self._client.dead_letters(cursor, PAGE_LIMIT))

    def replay(self, id: str, config: msgspec.Raw | None = None) -> DagFacts:
        """Try a dead letter again, with another `config` if one is given. `id` is JOB/TASK."""
        return self._wait(self._client.replay(id, config))

    def schedules(self) -> list[ScheduleView]:
        """All schedules, and when each is due next."""
        return self._wait(self._client.schedules())

    def put_schedule(self, spec: DagSpec, *, with_files: Sequence[str | os.PathLike[str]] = ()) -> ScheduleView:
        """Add a schedule, or replace the one of the same name. `spec` says when it is due. `with_files` hold handlers
        that travel with each of its jobs."""
        spec, code = brought(spec, with_files)
        return self._wait(self._client.put_schedule(spec, code=code))

    def drop_schedule(self, name: str) -> None:
        """Remove a schedule. Jobs that it has submitted go on."""
        self._wait(self._client.drop_schedule(name))

    def pause_schedule(self, name: str) -> ScheduleView:
        """Submit nothing for this schedule until it is resumed."""
        return self._wait(self._client.pause_schedule(name))

    def resume_schedule(self, name: str) -> ScheduleView:
        """Follow a schedule again. What was due meanwhile is caught up with as the schedule says."""
        return self._wait(self._client.resume_schedule(name))

    def run_schedule(self, name: str, key: str = "") -> DagFacts:
        """Submit the job of a schedule now. The same `key` is the same job."""
        return self._wait(self._client.run_schedule(name, key))

    def backfill(self, name: str, begin: str, end: str, *, dry_run: bool = False) -> BackfillView:
        """Run what a schedule was due for from `begin` up to `end`, dates or instants in its zone, each once."""
        return self._wait(self._client.backfill(name, begin, end, dry_run=dry_run))

    # Workers and the cluster.

    def workers(self) -> list[WorkerView]:
        """The workers of the cluster: their state, their cores and what they run."""
        return self._wait(self._client.workers())

    def worker(self, name: str) -> WorkerView:
        """One worker, with the handlers that it has and the machine that it is on."""
        return self._wait(self._client.worker(name))

    def drain(self, name: str) -> WorkerView:
        """Give a worker no new work and let it finish what it has."""
        return self._wait(self._client.drain(name))

    def undrain(self, name: str) -> WorkerView:
        """Let a worker that was drained take new work again."""
        return self._wait(self._client.undrain(name))

    def cluster(self) -> ClusterView:
        """The members of the cluster, and which manager leads."""
        return self._wait(self._client.cluster())

    def _each(self, updates: AsyncGenerator[Item, None]) -> Iterator[Item]:
        try:
            while (update := self._wait(anext(updates, None))) is not None:
                yield update
        finally:
            self._wait(updates.aclose())

    def _all(self, ask: Callable[[str], Coroutine[Any, Any, Page[Item]]]) -> list[Item]:
        """Of all pages, up to a limit."""
        found: list[Item] = []
        cursor = ""
        while len(found) < JOBS_LIMIT:
            page = self._wait(ask(cursor))
            found += page.items
            cursor = page.next
            if not cursor:
                break
        return found

    def _wait(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        if self._loop.is_closed():
            work.close()
            raise Invalid("this client was closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C: what was asked for is no longer wanted
            raise
