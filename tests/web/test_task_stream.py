"""Jobs that arrive in pieces: tasks line by line, and jobs frame by frame."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import websockets
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import connect

from talka.client.dags import DagEnd
from talka.client.requests import NobodyCanRun, Problem, TooBusy
from talka.errors import Unavailable
from talka.web.api_limits import ApiLimits
from talka.web.audit import ApiAudit
from talka.web.auth import Tokens
from talka.web.task_stream import Part, submission_in, tasks_in
from talka.work.dags.dag import BadDag, CodeBundle, DagSettings, Param, TaskSpec, encode_task
from talka.work.lifecycle import JobState
from tests.web.fake_control import LIMIT_S, Api, Apis
from tests.web.fake_dags import FakeDags

NDJSON = {"content-type": "application/x-ndjson"}
HEAD = b'{"kind": "dag", "name": "nightly", "settings": {"on_failure": "continue"}}\n'


def lines(*tasks: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(task).encode() + b"\n" for task in tasks)


def numbered(count: int, start: int = 0) -> bytes:
    return b"".join(b'{"id":"t%d","handler":"etl"}\n' % n for n in range(start, start + count))


async def send(api: Api, body: bytes, key: str = ""):
    return await api.ask("POST", "/v1/jobs", body, NDJSON | ({"idempotency-key": key} if key else {}))


def detail_of(answer) -> str:
    return msgspec.json.decode(answer.body, type=Problem).detail


# Tasks line by line.


async def test_a_streamed_job_is_what_its_lines_say(dag_api: Api, dags: FakeDags) -> None:
    body = HEAD + lines(
        {"id": "a", "handler": "etl", "config": {"n": 1}}, {"id": "b", "handler": "x", "depends_on": ["a"]}
    )

    answer = await send(dag_api, body, key="k")

    [draft] = dags.drafts.values()
    assert (answer.status, answer.headers["location"]) == (201, "/v1/jobs/dag1")
    assert (draft.head.name, draft.head.settings, draft.key) == ("nightly", DagSettings(on_failure="continue"), "k")
    assert [(task.id, task.depends_on) for task in draft.tasks] == [("a", ()), ("b", ("a",))]
    assert dags.dropped == []


@pytest.mark.parametrize(
    "body",
    [
        HEAD + numbered(3),
        HEAD + numbered(3).rstrip(b"\n"),
        (HEAD + numbered(3)).replace(b"\n", b"\r\n"),
        b"\n\n" + HEAD + b"\n" + numbered(2) + b"\n  \n" + numbered(1, 2) + b"\n\n",
    ],
    ids=range(4),
)
async def test_empty_lines_and_ends_of_lines_do_not_matter(dag_api: Api, dags: FakeDags, body: bytes) -> None:
    assert (await send(dag_api, body)).status == 201
    assert [task.id for task in dags.jobs["dag1"].tasks] == ["t0", "t1", "t2"]


async def test_many_tasks_come_in_parts(dag_api: Api, dags: FakeDags) -> None:
    answer = await send(dag_api, HEAD + numbered(2500))

    [draft] = dags.drafts.values()
    assert json.loads(answer.body)["tasks"] == 2500
    assert draft.parts == [999, 1000, 501]
    assert [task.id for task in draft.tasks] == [f"t{n}" for n in range(2500)]


async def test_large_tasks_come_in_parts_of_a_mebibyte(dag_api: Api, dags: FakeDags) -> None:
    large = lines(*({"id": f"t{n}", "handler": "etl", "config": "x" * 200_000} for n in range(20)))

    assert (await send(dag_api, HEAD + large)).status == 201

    [draft] = dags.drafts.values()
    assert len(draft.parts) >= 3 and sum(draft.parts) == 20


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "the body is empty"),
        (b"\n\n", "the body is empty"),
        (b"nonsense\n", "line 1: "),
        (b'{"kind": "dag"}\n', "line 1: name is missing"),
        (b'\n{"kind": "dag", "name": "n", "tasks": []}\n', "line 2: "),
        (HEAD + numbered(2) + b"nonsense\n", "line 4: "),
        (HEAD + numbered(2) + b"\n\n" + b'{"id": "a"}\n', "line 6: handler is missing"),
        (HEAD + numbered(1200) + b'{"id": "a", "handler": "x", "priority": 99}\n', "line 1202: priority"),
        (HEAD + numbered(3) + b'{"id": "a", "handler": "\xff"}\n', "line 5: this is not UTF-8"),
        (HEAD + b'{"id": "a", "handler": "x"} {"id": "b", "handler": "x"}\n', "line 2: "),
        (HEAD + b'{"id": "a",\n"handler": "x"}\n', "line 2: "),
        (HEAD + numbered(2) + b"\n" + numbered(1), "line 5: "),
        (HEAD + numbered(2) + b'\n{"id": "a", "handler": "x", "depends_on": ["later"]}\n', "line 5: "),
    ],
    ids=range(13),
)
async def test_a_bad_line_is_told_with_its_number_and_nothing_is_kept(
    dag_api: Api, dags: FakeDags, body: bytes, sentence: str
) -> None:
    answer = await send(dag_api, body)

    assert answer.status == 422
    assert detail_of(answer).startswith(sentence)
    assert (dags.jobs, dags.drafts) == ({}, {})


async def test_a_job_without_tasks_is_as_bad_as_one_that_never_came(dag_api: Api, dags: FakeDags) -> None:
    dags.errors["end_dag"] = BadDag("the job has no tasks")

    assert (await send(dag_api, HEAD)).status == 422
    assert dags.dropped == ["draft1"]


@pytest.mark.parametrize("dag_api", [ApiLimits(line_bytes=1000)], indirect=True)
async def test_a_line_beyond_the_limit_is_refused(dag_api: Api, dags: FakeDags) -> None:
    answer = await send(dag_api, HEAD + numbered(2) + b"x" * 200_000)

    assert (answer.status, dags.jobs) == (413, {})
    assert detail_of(answer).startswith("line 4 has more than")


async def test_a_line_that_nobody_could_run_is_told_as_what_it_is(dag_api: Api, dags: FakeDags) -> None:
    dags.errors["add_tasks"] = NobodyCanRun('task t1: no worker has the handler "etl"', "t1", index=1, field="handler")

    answer = await send(dag_api, HEAD + numbered(3))

    assert (answer.status, dags.jobs, dags.dropped) == (422, {}, ["draft1"])
    assert detail_of(answer) == 'line 3: task t1: no worker has the handler "etl"'
    assert msgspec.json.decode(answer.body, type=Problem).type == "urn:talka:problem:nobody-can-run"


@pytest.mark.parametrize("dag_api", [ApiLimits(lines=3000)], indirect=True)
async def test_lines_without_end_are_refused(dag_api: Api, dags: FakeDags) -> None:
    answer = await send(dag_api, HEAD + b"\n" * 5000)

    assert (answer.status, dags.dropped) == (413, ["draft1"])


@pytest.mark.parametrize("dag_api", [ApiLimits(chunk_s=0.05)], indirect=True)
async def test_a_body_that_stops_arriving_is_given_up(dag_api: Api, dags: FakeDags) -> None:
    reader, writer = await asyncio.open_connection(dag_api.address.host, dag_api.address.port)
    part = HEAD + numbered(1500)

    writer.write(
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(part), part)
    )

    assert b" 408 " in await reader.readline()
    assert (dags.dropped, dags.jobs) == (["draft1"], {})
    writer.close()
    await writer.wait_closed()


async def test_whoever_goes_in_the_middle_leaves_nothing(dag_api: Api, dags: FakeDags) -> None:
    _, writer = await asyncio.open_connection(dag_api.address.host, dag_api.address.port)
    part = HEAD + numbered(1500)
    dags.hold = asyncio.Event()

    writer.write(
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
        b"Content-Length: 1000000\r\n\r\n" + part
    )
    await writer.drain()
    writer.transport.abort()
    dags.hold.set()

    async with asyncio.timeout(LIMIT_S):
        while not dags.dropped:
            await dag_api.ask("GET", "/livez")
    assert dags.jobs == {}


async def test_a_store_that_is_full_is_told_and_nothing_is_kept(dag_api: Api, dags: FakeDags) -> None:
    dags.errors["add_tasks"] = TooBusy("too many tasks wait", 9)

    answer = await send(dag_api, HEAD + numbered(10))

    assert (answer.status, answer.headers["retry-after"], dags.dropped) == (429, "9", ["draft1"])


@pytest.mark.parametrize("dag_api", [ApiLimits(add_s=0.01)], indirect=True)
async def test_a_store_that_is_silent_is_given_up(
    dag_api: Api, dags: FakeDags, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(draft: str, tasks: Any) -> int:
        await asyncio.Event().wait()
        return 0

    monkeypatch.setattr(dags, "add_tasks", never)

    answer = await send(dag_api, HEAD + numbered(10))

    assert (answer.status, dags.dropped) == (503, ["draft1"])


async def test_without_a_store_nothing_of_a_stream_is_read(api: Api) -> None:
    assert (await send(api, HEAD + numbered(10))).status == 501


TASKS = st.builds(
    TaskSpec,
    id=st.from_regex(r"[a-z0-9._:@/-]{1,20}", fullmatch=True),
    handler=st.text(min_size=1, max_size=10),
    config=st.recursive(
        st.none() | st.integers(-(2**60), 2**60) | st.text(), lambda some: st.lists(some, max_size=3)
    ).map(lambda value: msgspec.Raw(msgspec.json.encode(value))),
)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.lists(TASKS | st.none(), max_size=20))
def test_whatever_was_written_a_task_a_line_is_read(tasks: list[TaskSpec | None]) -> None:
    part = Part(5, [b"" if task is None else encode_task(task) for task in tasks])

    found = tasks_in(part)

    filled = [(number, task) for number, task in enumerate(tasks, 5) if task is not None]
    assert [encode_task(task) for task in found] == [encode_task(task) for _, task in filled]
    assert [part.number_of(index) for index in range(len(found))] == [number for number, _ in filled]


# Jobs frame by frame.


@asynccontextmanager
async def submitting(api: Api, query: str = "", token: str = "") -> AsyncIterator[Any]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    uri = f"ws://{api.address}/v1/jobs/submit{query}"
    async with connect(uri, additional_headers=headers, proxy=None, compression=None, close_timeout=1) as websocket:
        async with asyncio.timeout(LIMIT_S):
            yield websocket


def task_frame(id: str, **more: object) -> str:
    return json.dumps({"task": {"id": id, "handler": "etl"}, **more})


async def test_each_frame_is_a_job(dag_api: Api, dags: FakeDags) -> None:
    async with submitting(dag_api) as websocket:
        await websocket.send(task_frame("a"))
        await websocket.send(task_frame("b", name="second").encode())
        await websocket.send(
            json.dumps({"kind": "dag", "name": "third", "tasks": [{"id": "c", "handler": "x"}], "key": "k"})
        )
        told = [json.loads(await websocket.recv()) for _ in range(3)]

    assert told == [{"n": n, "id": f"dag{n + 1}", "state": "queued"} for n in range(3)]
    assert [job.facts.name for job in dags.jobs.values()] == ["a", "second", "third"]
    assert [task.id for job in dags.jobs.values() for task in job.tasks] == ["a", "b", "c"]
    assert list(dags.keys) == ["k"]


async def test_a_frame_may_name_the_bundle_of_its_handlers(dag_api: Api, dags: FakeDags) -> None:
    bundle = {"digest": "c" * 64, "size_bytes": 9, "files": ["etl.py"], "handlers": ["etl"], "plain": ["etl"]}
    async with submitting(dag_api) as websocket:
        await websocket.send(task_frame("a", bundle=bundle, key="one"))
        await websocket.send(
            json.dumps({"name": "b", "tasks": [{"id": "c", "handler": "etl"}], "bundle": bundle, "key": "many"})
        )
        await websocket.send(task_frame("c", bundle=bundle | {"digest": "../etc/passwd"}, key="bad"))
        await websocket.send(task_frame("d", key="none"))
        told = [json.loads(await websocket.recv()) for _ in range(4)]

    assert [one["n"] for one in told if "problem" in one] == [2]
    code = CodeBundle("c" * 64, 9, ("etl.py",), ("etl",), plain=("etl",))
    assert {key: spec.bundle for key, (spec, _) in dags.keys.items()} == {"one": code, "many": code, "none": None}


async def test_answers_come_in_the_order_in_which_they_are_done(dag_api: Api, dags: FakeDags) -> None:
    dags.holds_submits = True
    async with submitting(dag_api) as websocket:
        for id in "abc":
            await websocket.send(task_frame(id))
        await dags.are_held(3)
        dags.let_go(3, last_first=True)

        assert [json.loads(await websocket.recv())["n"] for _ in range(3)] == [2, 1, 0]


async def test_answers_of_one_turn_come_as_one_array_to_who_wants_it(dag_api: Api, dags: FakeDags) -> None:
    dags.holds_submits = True
    async with submitting(dag_api, "?batch=1") as websocket:
        for id in "abcd":
            await websocket.send(task_frame(id))
        await dags.are_held(4)
        dags.let_go(3)
        first = json.loads(await websocket.recv())
        dags.let_go(1)
        second = json.loads(await websocket.recv())

    assert ([one["n"] for one in first], [one["n"] for one in second]) == ([0, 1, 2], [3])


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        ("nonsense", "this is not JSON"),
        ("", "this is not JSON"),
        (b'{"task": {"id": "a", "handler": "\xff"}}', "this is not UTF-8"),
        ('{"task": {"id": "a"}}', "handler is missing"),
        ("{}", "neither a task nor tasks"),
        ('{"tasks": [{"id": "a", "handler": "x"}]}', "name is missing"),
        ('{"task": {"id": "a", "handler": "x"}, "tasks": [{"id": "a", "handler": "x"}]}', "one or the other"),
        ('{"task": {"id": "a", "handler": "x"}, "settings": {"timeout": "soon"}}', "soon"),
        ('{"name": "n-${x}", "task": {"id": "a", "handler": "x"}}', 'name = "n-${x}" has ${: it would stay as it is'),
        ('{"task": {"id": "a", "handler": "x", "depends_on": ["b"]}}', "b"),
        ('{"x": ' + "[" * 100_000, ""),
        ('{"kind": "load"}', ""),
    ],
    ids=range(12),
)
async def test_a_bad_frame_is_told_and_the_next_one_taken(
    dag_api: Api, dags: FakeDags, frame: str | bytes, sentence: str
) -> None:
    async with submitting(dag_api) as websocket:
        await websocket.send(frame)
        await websocket.send(task_frame("a"))
        refused, taken = json.loads(await websocket.recv()), json.loads(await websocket.recv())

    assert (refused["n"], refused["problem"]["status"], taken["n"], taken["id"]) == (0, 422, 1, "dag1")
    assert sentence in refused["problem"]["detail"]


async def test_what_the_store_refuses_is_told_as_a_problem(dag_api: Api, dags: FakeDags) -> None:
    dags.errors["submit_soon"] = TooBusy("too many tasks wait")
    async with submitting(dag_api) as websocket:
        await websocket.send(task_frame("a"))

        assert json.loads(await websocket.recv())["problem"]["type"] == "urn:talka:problem:too-busy"


@pytest.mark.parametrize("dag_api", [ApiLimits(submits=8)], indirect=True)
async def test_no_more_is_read_while_too_many_wait(dag_api: Api, dags: FakeDags) -> None:
    dags.holds_submits = True
    async with submitting(dag_api, "?batch=1") as websocket:
        for n in range(20):
            await websocket.send(task_frame(f"t{n}"))
        await dags.are_held(8)
        for _ in range(5):
            await dag_api.ask("GET", "/livez")
        assert len(dags.held) == 8

        told = 0
        while told < 20:
            dags.let_go(8)
            told += len(json.loads(await websocket.recv()))

    assert [job.facts.name for job in dags.jobs.values()] == [f"t{n}" for n in range(20)]


async def test_whoever_goes_leaves_what_was_taken(dag_api: Api, dags: FakeDags) -> None:
    dags.holds_submits = True
    async with submitting(dag_api) as websocket:
        await websocket.send(task_frame("a"))
        await dags.are_held(1)
    dags.let_go(1)

    assert list(dags.jobs) == ["dag1"]
    assert (await dag_api.ask("GET", "/livez")).status == 200


async def test_a_frame_beyond_the_limit_ends_the_connection(dag_api: Api, dags: FakeDags) -> None:
    async with submitting(dag_api) as websocket:
        await websocket.send(json.dumps({"task": {"id": "a", "handler": "x", "config": "x" * 200_000}}))
        assert json.loads(await websocket.recv())["id"] == "dag1"
        with pytest.raises(websockets.ConnectionClosedError) as closed:
            await websocket.send("x" * (1024 * 1024 + 1))
            await websocket.recv()

    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009


async def refusal_of(api: Api, query: str = "", token: str = "") -> int:
    with pytest.raises(websockets.InvalidStatus) as refused:
        async with submitting(api, query, token):
            pass
    return refused.value.response.status_code


async def test_a_connection_is_refused_to_whoever_may_not_submit(apis: Apis, dags: FakeDags, tokens: Tokens) -> None:
    guarded, bare = await apis.start(dags=dags, auth=tokens), await apis.start()
    busy = await apis.start(dags=dags, limiter=lambda operation, client: 1.0 if operation == "submit_frames" else 0.0)

    assert await refusal_of(guarded) == 401
    assert await refusal_of(guarded, token=tokens.issue("ann", "viewer", 2**33)) == 403
    assert await refusal_of(bare) == 501
    assert await refusal_of(busy) == 429
    assert await refusal_of(await apis.start(dags=dags), "?batch=2") == 422
    async with submitting(guarded, token=tokens.issue("ann", "submitter", 2**33)) as websocket:
        await websocket.send(task_frame("a"))
        await websocket.recv()
    assert dags.jobs["dag1"].facts.submitted_by == "ann"


@pytest.mark.parametrize("dag_api", [ApiLimits(sockets=1)], indirect=True)
async def test_only_so_many_connections_are_open(dag_api: Api) -> None:
    async with submitting(dag_api) as websocket:
        await websocket.send(task_frame("a"))
        await websocket.recv()
        assert await refusal_of(dag_api) == 429


async def test_an_error_that_nobody_foresaw_ends_the_connection_and_no_more(
    dag_api: Api, dags: FakeDags, caplog: pytest.LogCaptureFixture
) -> None:
    dags.errors["submit_soon"] = RuntimeError("a bug")
    async with submitting(dag_api) as websocket:
        await websocket.send(task_frame("a"))
        with pytest.raises(websockets.ConnectionClosed):
            await websocket.recv()

    assert "submissions over a WebSocket failed" in caplog.text
    assert (await dag_api.ask("GET", "/livez")).status == 200


async def test_how_many_came_is_put_down_at_the_end(apis: Apis, dags: FakeDags, tmp_path) -> None:
    audit = ApiAudit(tmp_path / "audit.log")
    api = await apis.start(dags=dags, audit=audit)
    async with submitting(api) as websocket:
        for frame in (task_frame("a"), "nonsense", task_frame("b")):
            await websocket.send(frame)
            await websocket.recv()

    async with asyncio.timeout(LIMIT_S):
        while not (noted := await audit.tail(1)):
            await api.ask("GET", "/livez")
    assert (noted[0].what, noted[0].status, noted[0].text) == (
        "submit_frames",
        101,
        "2 jobs accepted, 1 refused",
    )


# The end of a job, on the socket on which it was submitted.


def asks_for_end(id: str) -> str:
    return task_frame(id, tell_end=True)


async def test_the_end_of_a_job_is_told_to_who_asks_for_it(dag_api: Api, dags: FakeDags) -> None:
    async with submitting(dag_api) as websocket:
        for frame in (asks_for_end("a"), task_frame("b"), asks_for_end("c")):
            await websocket.send(frame)
        told = [json.loads(await websocket.recv()) for _ in range(3)]
        dags.end("dag3", DagEnd(JobState.FAILED, "it broke", {"dead": 1}))
        dags.end("dag1", DagEnd(JobState.COMPLETED, "", {"completed": 1}))
        ends = [json.loads(await websocket.recv()) for _ in range(2)]

    assert told == [{"n": n, "id": f"dag{n + 1}", "state": "queued"} for n in range(3)]
    assert ends == [
        {"n": 2, "id": "dag3", "state": "failed", "has_ended": True, "reason": "it broke", "counts": {"dead": 1}},
        {"n": 0, "id": "dag1", "state": "completed", "has_ended": True, "counts": {"completed": 1}},
    ]
    assert list(dags.ends) == ["dag1", "dag3"]


async def test_an_end_that_cannot_be_told_is_told_as_a_problem(dag_api: Api, dags: FakeDags) -> None:
    async with submitting(dag_api) as websocket:
        await websocket.send(asks_for_end("a"))
        await websocket.recv()
        dags.end("dag1", Unavailable("this manager stops"))
        end = json.loads(await websocket.recv())

    assert (end["n"], end["id"], end["has_ended"], end["problem"]["detail"]) == (0, "dag1", True, "this manager stops")


async def test_who_goes_waits_for_no_end_any_more(dag_api: Api, dags: FakeDags) -> None:
    async with submitting(dag_api) as websocket:
        await websocket.send(asks_for_end("a"))
        await websocket.recv()
        assert len(dags.ends["dag1"]) == 1
    await dags.until(lambda: not dags.ends["dag1"])


async def test_who_went_before_its_job_was_taken_waits_for_no_end(apis: Apis, dags: FakeDags, tmp_path) -> None:
    audit = ApiAudit(tmp_path / "audit.log")
    api = await apis.start(dags=dags, audit=audit)
    dags.holds_submits = True
    async with submitting(api) as websocket:
        await websocket.send(asks_for_end("a"))
        await dags.are_held(1)
    async with asyncio.timeout(LIMIT_S):
        while not await audit.tail(1):  # put down when it is over
            await api.ask("GET", "/livez")
    dags.let_go(1)

    assert (list(dags.jobs), dags.ends) == (["dag1"], {})


@pytest.mark.parametrize("dag_api", [ApiLimits(ends=2)], indirect=True)
async def test_no_more_is_read_while_the_ends_of_too_many_are_waited_for(dag_api: Api, dags: FakeDags) -> None:
    async with submitting(dag_api) as websocket:
        for n in range(3):
            await websocket.send(asks_for_end(f"t{n}"))
        assert [json.loads(await websocket.recv())["n"] for _ in range(2)] == [0, 1]
        for _ in range(5):
            await dag_api.ask("GET", "/livez")
        assert len(dags.jobs) == 2
        dags.end("dag1", DagEnd(JobState.COMPLETED))
        told = [json.loads(await websocket.recv()) for _ in range(2)]

    assert {(one["n"], one.get("has_ended", False)) for one in told} == {(0, True), (2, False)}


async def test_a_streamed_job_has_params(dag_api: Api, dags: FakeDags) -> None:
    head = {"kind": "dag", "name": "n", "params": {"day": {"type": "date"}}, "values": {"day": "2026-11-16"}}

    answer = await send(dag_api, lines(head, {"id": "a", "handler": "etl", "config": "${day}"}))

    [draft] = dags.drafts.values()
    assert answer.status == 201
    assert (draft.head.params, draft.head.values) == ({"day": Param("date")}, {"day": "2026-11-16"})


def test_a_frame_has_params() -> None:
    frame = {"name": "n", "params": {"n": {"type": "int"}}, "values": {"n": 1}, "wait_for_workers": True}
    for more in ({"task": {"id": "a", "handler": "h"}}, {"tasks": [{"id": "a", "handler": "h"}]}):
        _, spec, _ = submission_in(json.dumps(frame | more))
        assert (spec.params, spec.values, spec.wait_for_workers) == ({"n": Param("int")}, {"n": 1}, True)
