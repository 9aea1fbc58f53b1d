"""Dag jobs over HTTP: whole ones, many at once, and everything that can be asked of one."""

import asyncio
import re
from typing import Final
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from talka.client.dag_kind import check_not_scheduled
from talka.client.dags import BULK_LIMIT, DAG_LIMIT_BYTES, WANTS_LIMIT, ReplayRequest
from talka.client.kinds import KindFacts
from talka.client.load_kind import LoadKind
from talka.client.requests import KEY_LIMIT, Malformed, NoSuchSchedule, NoSuchTask, Problem, problem_of
from talka.errors import Invalid, TalkaError
from talka.web.answers import ApiQuestion, json_answer, submitted, waited
from talka.web.bodies import check_json, key_in, page_in, read_body, read_json, read_json_if_any, wait_in
from talka.wire.output_tail import STREAMS
from talka.wire.task_views import (
    AttemptsPage,
    BackfillRequest,
    BackfillView,
    DagFacts,
    EventsPage,
    GraphView,
    LogPage,
    OutputView,
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
from talka.work.dags.dag import CONFIG_LIMIT_BYTES, decode_dag
from talka.work.lifecycle import TaskState

CHANGE_LIMIT_BYTES: Final = DAG_LIMIT_BYTES
REPLAY_LIMIT_BYTES: Final = CONFIG_LIMIT_BYTES + 1024
WANTS_LIMIT_BYTES: Final = 1024 * 1024
SCHEDULE_NAME_LIMIT: Final = 200
ID_LIMIT: Final = 128
TASK_ID: Final = re.compile(r"[A-Za-z0-9._:@/\[\]-]{1,128}")
EXECUTE_WORDS: Final = {"jobs": "tasks"}
TASK_WORDS: Final = {"type": "handler", "dependsOn": "depends_on"}
"""What `/v1/execute` takes beside our own words."""


# Submitting.


async def execute(asked: ApiQuestion) -> Response:
    dags = asked.dag_control
    check_json(asked.request)
    spec = decode_dag(translated(bytes(await read_body(asked.request, asked.limits.dag_bytes))))
    check_not_scheduled(spec)
    wait_s = wait_in(asked.request, asked.limits.wait_s)
    facts = await dags.submit_dag(spec, key_in(asked.request), asked.identity.name)
    return submitted(await waited(asked, facts, wait_s))


async def bulk(asked: ApiQuestion) -> list[DagFacts | Problem]:
    """Each is taken or refused for itself. With an idempotency key the n-th has that key, a slash and n."""
    dags, key, by = asked.dag_control, key_in(asked.request), asked.identity.name
    if len(key) > KEY_LIMIT - len(f"/{BULK_LIMIT}"):
        raise Invalid(f"an idempotency key for many has at most {KEY_LIMIT - len(f'/{BULK_LIMIT}')} characters")
    contents = await read_json(asked.request, list[msgspec.Raw], asked.limits.dag_bytes)
    if len(contents) > BULK_LIMIT:
        raise Invalid(f"{len(contents)} dags are too many at once: send at most {BULK_LIMIT}, or use a WebSocket")
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[DagFacts | TalkaError]] = []
    for n, content in enumerate(contents):
        future: asyncio.Future[DagFacts | TalkaError] = loop.create_future()
        waiting.append(future)

        def done(answer: DagFacts | TalkaError, future: asyncio.Future[DagFacts | TalkaError] = future) -> None:
            if not future.done():
                future.set_result(answer)

        try:
            spec = decode_dag(bytes(content))
            check_not_scheduled(spec)
            dags.submit_soon(spec, f"{key}/{n}" if key else "", by, done)
        except TalkaError as error:
            done(error)
    path = asked.request.url.path
    answers = [await future for future in waiting]
    return [answer if isinstance(answer, DagFacts) else problem_of(answer, path) for answer in answers]


def translated(content: bytes) -> bytes:
    """A body of `/v1/execute` in our own words. Configs are passed on as they are."""
    try:
        body = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        body = {EXECUTE_WORDS.get(name, name): value for name, value in body.items()}
        tasks = msgspec.json.decode(body.get("tasks", msgspec.Raw(b"[]")), type=list[dict[str, msgspec.Raw]])
    except msgspec.ValidationError as error:
        raise Invalid(f"the body does not match the schema: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"the body is not JSON: {error}") from None
    renamed = [{TASK_WORDS.get(name, name): value for name, value in task.items()} for task in tasks]
    return msgspec.json.encode({"kind": "dag", "name": "execute", **body, "tasks": renamed})


# Looking.


async def tasks(asked: ApiQuestion) -> TasksPage:
    state = asked.request.query_params.get("state", "")
    if state and state not in list(TaskState):
        raise Invalid(f"no task is ever {state[:50]!r}: states are {', '.join(TaskState)}")
    page = page_in(asked.request)
    return await (await asked.job_dags()).dag_tasks(asked.job, state, *page)


async def task(asked: ApiQuestion, end: str = "") -> TaskView:
    return await (await asked.job_dags()).dag_task(asked.job, task_of(asked, end))


async def why(asked: ApiQuestion) -> WhyView | TaskView:
    if is_named(asked, "why"):
        return await task(asked, "/why")
    return await (await asked.job_dags()).why(asked.job, task_of(asked))


async def logs(asked: ApiQuestion) -> LogPage | TaskView:
    if is_named(asked, "logs"):
        return await task(asked, "/logs")
    return await (await asked.job_dags()).task_logs(asked.job, task_of(asked), *page_in(asked.request))


async def attempts(asked: ApiQuestion) -> AttemptsPage | TaskView:
    if is_named(asked, "attempts"):
        return await task(asked, "/attempts")
    return await (await asked.job_dags()).task_attempts(asked.job, task_of(asked), *page_in(asked.request))


async def output(asked: ApiQuestion) -> OutputView | TaskView:
    if is_named(asked, "output"):
        return await task(asked, "/output")
    query = asked.request.query_params
    attempt, stream = query.get("attempt", ""), query.get("stream", "")
    if attempt and not (attempt.isascii() and attempt.isdecimal() and len(attempt) < 10 and int(attempt)):
        raise Invalid(f"attempt is a whole number from 1 on, not {attempt[:50]!r}")
    if stream and stream not in STREAMS:
        raise Invalid(f"no attempt has a stream {stream[:50]!r}: streams are {', '.join(STREAMS)}")
    return await (await asked.job_dags()).task_output(asked.job, task_of(asked), int(attempt or 0), stream)


async def events(asked: ApiQuestion) -> EventsPage:
    return await (await asked.job_dags()).dag_events(asked.job, *page_in(asked.request))


async def graph(asked: ApiQuestion) -> GraphView:
    return await (await asked.job_dags()).dag_graph(asked.job)


def task_of(asked: ApiQuestion, end: str = "") -> str:
    name: str = asked.request.path_params["task"] + end
    if not TASK_ID.fullmatch(name):
        raise NoSuchTask.named(asked.request.path_params["id"], repr(name[:64]))
    return name


def is_named(asked: ApiQuestion, word: str) -> bool:
    """Names of tasks may have slashes, which are then written %2F: `a%2Fwhy` is a task, `a/why` a question about
    one."""
    raw: bytes = asked.request.scope.get("raw_path", b"")
    return raw.lower().endswith(f"%2f{word}".encode())


# Changing.


async def pause(asked: ApiQuestion) -> DagFacts:
    await read_body(asked.request, 0)
    return await (await asked.job_dags()).pause_dag(asked.job)


async def resume(asked: ApiQuestion) -> KindFacts:
    await read_body(asked.request, 0)
    if isinstance(kind := await asked.kind, LoadKind):
        return await kind.control.resume(asked.job)
    return await (await asked.job_dags()).resume_dag(asked.job)


async def retry(asked: ApiQuestion) -> DagFacts:
    dags, job = await asked.job_dags(), asked.job
    request = await read_json_if_any(asked.request, RetryRequest(), CHANGE_LIMIT_BYTES)
    for id, config in request.config.items():
        if len(bytes(config)) > CONFIG_LIMIT_BYTES:
            raise Invalid(f"the config of task {id[:ID_LIMIT]} has more than {CONFIG_LIMIT_BYTES} bytes")
    return await dags.retry_dag(job, request)


async def retry_plan(asked: ApiQuestion) -> RetryPlan:
    dags, job = await asked.job_dags(), asked.job
    return await dags.retry_plan(job, await read_json_if_any(asked.request, RetryRequest(), CHANGE_LIMIT_BYTES))


async def skip(asked: ApiQuestion) -> DagFacts:
    dags, job = await asked.job_dags(), asked.job
    request = await read_json(asked.request, SkipRequest, CHANGE_LIMIT_BYTES)
    return await dags.skip_dag(job, request, asked.identity.name)


async def who_could_run(asked: ApiQuestion) -> list[TaskWorkers]:
    dags = asked.dag_control
    wants = await read_json(asked.request, list[TaskWants], WANTS_LIMIT_BYTES)
    if len(wants) > WANTS_LIMIT:
        raise Invalid(f"{len(wants)} kinds of tasks are too many at once: ask for at most {WANTS_LIMIT}")
    return await dags.who_could_run(wants)


async def replay(asked: ApiQuestion) -> DagFacts:
    dags, job, name = await asked.job_dags(), asked.job, task_of(asked)
    config = (await read_json_if_any(asked.request, ReplayRequest(), REPLAY_LIMIT_BYTES)).config
    return await dags.replay(f"{job}/{name}", None if isinstance(config, msgspec.UnsetType) else config)


async def put_schedule(asked: ApiQuestion) -> Response:
    dags = asked.dag_control
    check_json(asked.request)
    spec = decode_dag(bytes(await read_body(asked.request, asked.limits.dag_bytes)))
    if not spec.schedule:
        raise Invalid('a schedule needs a cron line: "schedule": "0 3 * * *" is every night at three, UTC')
    view = await dags.put_schedule(spec, asked.identity.name)
    return json_answer(view, headers={"location": f"/v1/schedules/{quote(view.name, safe='')}"})


async def drop_schedule(asked: ApiQuestion) -> Response:
    dags = asked.dag_control
    await read_body(asked.request, 0)
    await dags.drop_schedule(schedule_of(asked))
    return Response(status_code=204)


async def pause_schedule(asked: ApiQuestion) -> ScheduleView:
    dags = asked.dag_control
    await read_body(asked.request, 0)
    return await dags.pause_schedule(schedule_of(asked))


async def resume_schedule(asked: ApiQuestion) -> ScheduleView:
    dags = asked.dag_control
    await read_body(asked.request, 0)
    return await dags.resume_schedule(schedule_of(asked))


async def run_schedule(asked: ApiQuestion) -> Response:
    dags, key = asked.dag_control, key_in(asked.request)
    await read_body(asked.request, 0)
    return submitted(await dags.run_schedule(schedule_of(asked), key, asked.identity.name))


async def backfill(asked: ApiQuestion) -> BackfillView:
    dags = asked.dag_control
    request = await read_json(asked.request, BackfillRequest, CHANGE_LIMIT_BYTES)
    return await dags.backfill(schedule_of(asked), request, asked.identity.name)


def schedule_of(asked: ApiQuestion) -> str:
    name: str = asked.request.path_params["name"]
    if not 0 < len(name) <= SCHEDULE_NAME_LIMIT:
        raise NoSuchSchedule.named(repr(name[:64]))
    return name
