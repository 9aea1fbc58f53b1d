"""The calls of `DagControl` over HTTP."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from talka.client.any_calls import SUBMIT_S, AnyJobCalls, key_header, paged
from talka.client.calls import decoded, error_in, job_part
from talka.client.dags import PART_BYTES, ReplayRequest
from talka.client.http import ApiAddress, call
from talka.client.kinds import AnyJob
from talka.client.requests import PAGE_DEFAULT, CancelRequest, NoSuchTask, Problem, error_of
from talka.client.submitting import Submitting
from talka.errors import Invalid, TalkaError
from talka.wire.task_views import (
    AttemptsPage,
    BackfillRequest,
    BackfillView,
    DagFacts,
    DeadLettersPage,
    EventsPage,
    GraphView,
    LogPage,
    OutputView,
    QueuesView,
    RetryPlan,
    RetryRequest,
    ScheduleView,
    SkipRequest,
    TasksPage,
    TaskView,
    TaskWants,
    TaskWorkers,
    WhyView,
)
from talka.work.dags.dag import DagHead, DagSettings, DagSpec, Param, ParamValue, TaskSpec
from talka.work.dags.params import NO_PARAMS, NO_VALUES
from talka.work.dags.pipeline import Files
from talka.work.lifecycle import is_final

WAIT_S: Final = 5.0
"""For which a submission waits for the end of its job: less than a manager may take to answer at all."""
STREAM_S: Final = 4 * 3600.0
BACKFILL_S: Final = 600.0
"""For which a backfill is waited for: it may be many jobs, each on disk before the next."""
CHUNK_BYTES: Final = PART_BYTES // 4
ANSWER_LIMIT_BYTES: Final = 64 * 1024 * 1024
"""Outputs of tasks are large."""

Found = TypeVar("Found")
_encoder = msgspec.json.Encoder()


class DagCalls(AnyJobCalls):
    # Submitting.

    async def submit_dag(self, spec: DagSpec, key: str = "", *, code: bytes = b"", with_files: Files = ()) -> DagFacts:
        """Submit a job once, however often it must be said. One with a schedule is put with `put_schedule` instead.
        `code`: the bundle that it names; or `with_files` hold handlers that travel with it, and are imported here."""
        if with_files:
            from talka.client import code as travelling  # it needs the engine, which few callers do

            spec, code = travelling.with_files(spec, with_files)
        return await self._sent("POST", "/v1/jobs", DagFacts, spec, code, key_header(key))

    async def run_dag(self, spec: DagSpec, key: str = "", *, code: bytes = b"") -> DagFacts:
        """Submit a job once, and answer when it has ended: in one request, where it ends soon."""
        facts = await self._sent("POST", f"/v1/jobs?wait={WAIT_S:g}s", DagFacts, spec, code, key_header(key))
        return facts if is_final(facts.state) else await self.wait_dag(facts.id)

    async def _sent(
        self, method: str, path: str, kind: type[Found], spec: DagSpec, code: bytes, headers: dict[str, str]
    ) -> Found:
        await self.learn()

        async def send() -> Found:
            return await self._ask(method, path, kind, value=spec, headers=headers, patience_s=SUBMIT_S)

        return await self.with_bundle("" if spec.bundle is None else spec.bundle.digest, code, send)

    async def submit_dags(self, specs: Sequence[DagSpec], key: str = "") -> list[DagFacts | TalkaError]:
        """Many at once, each taken or refused for itself."""
        await self.learn()
        found = await self._ask(
            "POST", "/v1/jobs/bulk", list[msgspec.Raw], value=specs, headers=key_header(key), patience_s=SUBMIT_S
        )
        return [self._answer_in(one) for one in found]

    def _answer_in(self, content: msgspec.Raw) -> DagFacts | TalkaError:
        address, what = self.next_address, "gave an answer that does not match the API"
        if "status" in decoded(address, content, dict[str, msgspec.Raw], what):
            return error_of(decoded(address, content, Problem, what))
        return decoded(address, content, DagFacts, what)

    async def stream_dag(
        self,
        name: str,
        tasks: Iterable[TaskSpec] | AsyncIterable[TaskSpec],
        settings: DagSettings | None = None,
        key: str = "",
        *,
        params: Mapping[str, Param] = NO_PARAMS,
        values: Mapping[str, ParamValue] = NO_VALUES,
        wait_for_workers: bool = False,
    ) -> DagFacts:
        """Submit a job of any size. Tasks depend on those before them, and are read as fast as they are taken; where
        they have placeholders, they are filled with `values` of `params`.

        It is sent once: whoever wants to try again has the tasks. With the same key it is the same job.
        """
        await self.learn()
        address = self.next_address
        head = DagHead(
            name=name,
            settings=settings or DagSettings(),
            params=dict(params),
            values=dict(values),
            wait_for_workers=wait_for_workers,
        )
        answer = await call(
            address,
            "POST",
            "/v1/jobs",
            headers={**self.headers, **key_header(key), "content-type": "application/x-ndjson"},
            body=lines_of(head, tasks),
            timeout_s=STREAM_S,
            limit_bytes=ANSWER_LIMIT_BYTES,
            tls=self.tls,
        )
        if answer.status >= 300:
            raise error_in(address, answer)
        return decoded(address, answer.body, DagFacts, "gave an answer to a stream that does not match the API")

    def open_submit(self) -> Submitting:
        """A connection for many submissions, none of which waits for the one before.

        async with client.open_submit() as submits:
            answers = [await submits.submit(spec) for spec in specs]
            ids = [(await answer).id for answer in answers]
        """
        return Submitting(self)

    # Looking.

    async def dag(self, id: str) -> DagFacts:
        content = await self._ask("GET", f"/v1/jobs/{job_part(id)}", msgspec.Raw)
        return dag_in(id, self.next_address, content)

    async def watch_dag(self, id: str) -> AsyncGenerator[DagFacts, None]:
        """How the job stands whenever that changed, up to its end, whichever managers die in the meantime."""
        path = f"/v1/jobs/{job_part(id)}/watch"
        async with contextlib.aclosing(self._watch(path, partial(dag_in, id))) as updates:
            async for facts in updates:
                yield facts
                if is_final(facts.state):
                    return

    async def wait_dag(self, id: str) -> DagFacts:
        """The job, once it has ended."""
        async with contextlib.aclosing(self.watch_dag(id)) as updates:
            async for facts in updates:
                if is_final(facts.state):
                    return facts
        raise AssertionError("a watch ends with the end of its job or an error")

    async def dag_tasks(self, id: str, state: str = "", cursor: str = "", limit: int = PAGE_DEFAULT) -> TasksPage:
        return await self._ask(
            "GET",
            paged(f"/v1/jobs/{job_part(id)}/tasks", cursor, limit, state),
            TasksPage,
            limit_bytes=ANSWER_LIMIT_BYTES,
        )

    async def dag_task(self, id: str, task: str) -> TaskView:
        return await self._ask("GET", task_path(id, task), TaskView)

    async def dag_events(self, id: str, cursor: str = "", limit: int = PAGE_DEFAULT) -> EventsPage:
        return await self._ask("GET", paged(f"/v1/jobs/{job_part(id)}/events", cursor, limit), EventsPage)

    async def dag_graph(self, id: str) -> GraphView:
        path = f"/v1/jobs/{job_part(id)}/graph"
        return await self._ask("GET", path, GraphView, limit_bytes=ANSWER_LIMIT_BYTES)

    async def why(self, id: str, task: str) -> WhyView:
        return await self._ask("GET", f"{task_path(id, task)}/why", WhyView)

    async def task_logs(self, id: str, task: str, cursor: str = "", limit: int = PAGE_DEFAULT) -> LogPage:
        return await self._ask("GET", paged(f"{task_path(id, task)}/logs", cursor, limit), LogPage)

    async def task_attempts(self, id: str, task: str, cursor: str = "", limit: int = PAGE_DEFAULT) -> AttemptsPage:
        return await self._ask("GET", paged(f"{task_path(id, task)}/attempts", cursor, limit), AttemptsPage)

    async def task_output(self, id: str, task: str, attempt: int = 0, stream: str = "") -> OutputView:
        """What the last attempt that wrote something has written, or the attempt with this number."""
        asked = [f"attempt={attempt}"] if attempt else []
        asked += [f"stream={quote(stream, safe='')}"] if stream else []
        query = f"?{'&'.join(asked)}" if asked else ""
        return await self._ask("GET", f"{task_path(id, task)}/output{query}", OutputView)

    async def queues(self) -> QueuesView:
        return await self._ask("GET", "/v1/queues", QueuesView)

    async def who_could_run(self, wants: Sequence[TaskWants]) -> list[TaskWorkers]:
        """For each kind of task, by the workers that are known now. At most 200."""
        return await self._ask("POST", "/v1/queues/check", list[TaskWorkers], value=wants)

    async def dead_letters(self, cursor: str = "", limit: int = PAGE_DEFAULT) -> DeadLettersPage:
        path = paged("/v1/dead-letters", cursor, limit)
        return await self._ask("GET", path, DeadLettersPage, limit_bytes=ANSWER_LIMIT_BYTES)

    # Changing.

    async def cancel_dag(self, id: str, reason: str = "") -> DagFacts:
        return await self._ask("POST", f"/v1/jobs/{job_part(id)}/cancel", DagFacts, value=CancelRequest(reason))

    async def pause_dag(self, id: str) -> DagFacts:
        return await self._ask("POST", f"/v1/jobs/{job_part(id)}/pause", DagFacts)

    async def resume_dag(self, id: str) -> DagFacts:
        return await self._ask("POST", f"/v1/jobs/{job_part(id)}/resume", DagFacts)

    async def retry_dag(self, id: str, request: RetryRequest | None = None) -> DagFacts:
        """None: everything that did not complete."""
        return await self._ask("POST", f"/v1/jobs/{job_part(id)}/retry", DagFacts, value=request or RetryRequest())

    async def retry_plan(self, id: str, request: RetryRequest | None = None) -> RetryPlan:
        """What `retry_dag` would run again. Changes nothing."""
        path = f"/v1/jobs/{job_part(id)}/retry/plan"
        return await self._ask("POST", path, RetryPlan, value=request or RetryRequest(), limit_bytes=ANSWER_LIMIT_BYTES)

    async def skip_dag(self, id: str, request: SkipRequest) -> DagFacts:
        return await self._ask("POST", f"/v1/jobs/{job_part(id)}/skip", DagFacts, value=request)

    async def replay(self, id: str, config: msgspec.Raw | None = None) -> DagFacts:
        """`id` is of the dead letter: `JOB/TASK`."""
        job, _, task = id.partition("/")
        path = f"/v1/dead-letters/{job_part(job)}/{task_part(job, task)}/replay"
        return await self._ask("POST", path, DagFacts, value=ReplayRequest(msgspec.UNSET if config is None else config))

    async def schedules(self) -> list[ScheduleView]:
        return await self._ask("GET", "/v1/schedules", list[ScheduleView])

    async def put_schedule(self, spec: DagSpec, *, code: bytes = b"") -> ScheduleView:
        """`code`: as in `submit_dag`."""
        return await self._sent("PUT", "/v1/schedules", ScheduleView, spec, code, {})

    async def drop_schedule(self, name: str) -> None:
        await self._call("DELETE", schedule_path(name))

    async def pause_schedule(self, name: str) -> ScheduleView:
        return await self._ask("POST", f"{schedule_path(name)}/pause", ScheduleView)

    async def resume_schedule(self, name: str) -> ScheduleView:
        return await self._ask("POST", f"{schedule_path(name)}/resume", ScheduleView)

    async def run_schedule(self, name: str, key: str = "") -> DagFacts:
        return await self._ask(
            "POST", f"{schedule_path(name)}/run", DagFacts, headers=key_header(key), patience_s=SUBMIT_S
        )

    async def backfill(self, name: str, begin: str, end: str, *, dry_run: bool = False) -> BackfillView:
        """What was due in [begin, end). Asked again it submits what is missing."""
        request = BackfillRequest(begin, end, dry_run)
        path = f"{schedule_path(name)}/backfill"
        return await self._ask("POST", path, BackfillView, value=request, patience_s=BACKFILL_S)


def schedule_path(name: str) -> str:
    return f"/v1/schedules/{quote(name, safe='')}"


async def lines_of(head: DagHead, tasks: Iterable[TaskSpec] | AsyncIterable[TaskSpec]) -> AsyncIterator[bytes]:
    """In chunks that are worth a write."""
    lines = bytearray(_encoder.encode(head) + b"\n")
    async for task in tasks if isinstance(tasks, AsyncIterable) else each(tasks):
        lines += _encoder.encode(task) + b"\n"
        if len(lines) >= CHUNK_BYTES:
            yield bytes(lines)
            lines.clear()
    if lines:
        yield bytes(lines)


async def each(tasks: Iterable[TaskSpec]) -> AsyncIterator[TaskSpec]:
    for task in tasks:
        yield task


def dag_in(id: str, address: ApiAddress, content: bytes | msgspec.Raw) -> DagFacts:
    what = f"told of job {id} what does not fit"
    kind = decoded(address, content, AnyJob, what).kind
    if kind != "dag":
        raise Invalid(f"job {id} is a {kind} job, not a dag job")
    return decoded(address, content, DagFacts, what)


def task_part(job: str, task: str) -> str:
    """Names of tasks may have slashes; those that could be another path are none."""
    if not task or task in (".", ".."):
        raise NoSuchTask.named(job, repr(task))
    return quote(task, safe="")


def task_path(id: str, task: str) -> str:
    return f"/v1/jobs/{job_part(id)}/tasks/{task_part(id, task)}"
