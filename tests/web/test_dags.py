"""Dag jobs over HTTP: what is passed on, what comes back, and what becomes of bad input."""

import asyncio
import json

import msgspec
import pytest

from talka.client.dag_kind import DagKind
from talka.client.kinds import JobDirectory, SubmitBounds
from talka.client.load_kind import LoadKind
from talka.client.requests import Conflict, Problem, TooBusy
from talka.web.auth import Tokens
from talka.work.dags.dag import TaskSpec
from talka.work.lifecycle import JobState
from tests.web.fake_control import Api, Apis, FakeControl
from tests.web.fake_dags import FakeDags

JSON = {"content-type": "application/json"}
DAG = {
    "kind": "dag",
    "name": "nightly",
    "tasks": [{"id": "a", "handler": "etl", "config": {"rows": 3}}, {"id": "b", "handler": "etl", "depends_on": ["a"]}],
}
LATER_S = 2**33


def problem_in(answer) -> Problem:
    assert answer.headers["content-type"] == "application/problem+json"
    problem = msgspec.json.decode(answer.body, type=Problem)
    assert problem.status == answer.status
    return problem


async def post(api: Api, path: str, value: object, key: str = ""):
    headers = JSON | ({"idempotency-key": key} if key else {})
    return await api.ask("POST", path, json.dumps(value).encode(), headers)


# Submitting.


async def test_a_dag_is_submitted_and_can_be_found(dag_api: Api, dags: FakeDags) -> None:
    answer = await post(dag_api, "/v1/jobs", DAG, key="k1")

    told = json.loads(answer.body)
    assert (answer.status, answer.headers["location"]) == (201, "/v1/jobs/dag1")
    assert (told["id"], told["state"], told["kind"], told["tasks"]) == ("dag1", "queued", "dag", 2)
    assert dags.asked == [("submit_dag", "nightly", "k1", "")]
    assert bytes(dags.jobs["dag1"].tasks[0].config) == b'{"rows": 3}'
    assert json.loads((await dag_api.ask("GET", "/v1/jobs/dag1")).body) == told


async def test_the_same_key_is_the_same_job_and_another_dag_a_conflict(dag_api: Api) -> None:
    first = await post(dag_api, "/v1/jobs", DAG, key="k1")
    again = await post(dag_api, "/v1/jobs", DAG, key="k1")
    other = await post(dag_api, "/v1/jobs", DAG | {"name": "other"}, key="k1")

    assert again.body == first.body
    assert (other.status, problem_in(other).type) == (409, "urn:talka:problem:conflict")


async def test_the_submitter_is_whose_token_it_is(apis: Apis, dags: FakeDags, tokens: Tokens) -> None:
    api = await apis.start(dags=dags, auth=tokens)

    await api.ask("POST", "/v1/jobs", json.dumps(DAG).encode(), JSON, tokens.issue("ann", "submitter", LATER_S))

    assert dags.jobs["dag1"].facts.submitted_by == "ann"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": ""}, "name: must have at least 1 "),
        ({"tasks": []}, "tasks: must have at least 1 "),
        ({"tasks": [{"id": "a"}]}, "handler is missing"),
        ({"tasks": [{"id": "a", "handler": "x", "priority": 11}]}, ".priority: must be at most 10"),
        ({"tasks": [{"id": "a", "handler": "x", "depends_on": ["b"]}]}, "b"),
        ({"tasks": [{"id": "a", "handler": "x", "depends_on": ["a"]}]}, "a"),
        (
            {"tasks": [{"id": "a", "handler": "x", "capabilities": ["${n}"]}]},
            "only configs and keys of tasks are filled",
        ),
        ({"name": "n-${day}"}, 'name = "n-${day}" has ${: it would stay as it is'),
        ({"colour": "red"}, "unknown field"),
        ({"settings": {"on_failure": "panic"}}, "is not one of fail_fast, continue, skip_dependents"),
    ],
    ids=range(10),
)
async def test_a_dag_that_cannot_be_is_refused_with_a_sentence(
    dag_api: Api, dags: FakeDags, change: dict[str, object], sentence: str
) -> None:
    answer = await post(dag_api, "/v1/jobs", DAG | change)

    problem = problem_in(answer)
    assert (answer.status, problem.type) == (422, "urn:talka:problem:bad-dag")
    assert sentence in problem.detail
    assert dags.jobs == {}


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", JSON, 400),
        (b'{"kind": "dag", "name": "\xff"}', JSON, 400),
        (b'{"x": ' + b"[" * 100_000, JSON, 400),
        (b'{"kind": "tree"}', JSON, 422),
        (json.dumps(DAG).encode(), {"content-type": "text/plain"}, 415),
        (json.dumps(DAG).encode(), JSON | {"idempotency-key": "k" * 201}, 422),
    ],
    ids=range(6),
)
async def test_what_is_no_job_at_all_is_refused(
    dag_api: Api, dags: FakeDags, body: bytes, headers: dict[str, str], status: int
) -> None:
    assert (await dag_api.ask("POST", "/v1/jobs", body, headers)).status == status
    assert dags.jobs == {}


async def test_tasks_without_a_kind_are_refused_with_what_to_write(dag_api: Api, dags: FakeDags) -> None:
    body = {name: value for name, value in DAG.items() if name != "kind"}

    answer = await post(dag_api, "/v1/jobs", body)

    assert answer.status == 422
    assert problem_in(answer).detail == 'the body has tasks and no kind: write "kind": "dag" for a pipeline'
    assert dags.jobs == {}


async def test_a_body_of_100_mb_is_refused_before_it_is_read(dag_api: Api) -> None:
    head = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

    told = await dag_api.send(f"{head}Content-Length: 100000000\r\nConnection: close\r\n\r\n".encode())

    assert told.startswith(b"HTTP/1.1 413 ")


async def test_a_body_without_a_length_is_refused_at_the_limit(apis: Apis, dags: FakeDags) -> None:
    control = FakeControl()
    small = [DagKind(dags, SubmitBounds(1000, "submit_dag")), LoadKind(control, SubmitBounds(900, "submit"))]
    dag_api = await apis.start(control, kinds=JobDirectory(*small))
    head = (
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
    )

    told = await dag_api.send(head + b"Connection: close\r\n\r\n3e9\r\n" + b" " * 1001 + b"\r\n")

    assert told.startswith(b"HTTP/1.1 413 ")


async def test_a_load_job_goes_where_load_jobs_go(dag_api: Api, dags: FakeDags, order_of) -> None:
    control, order = dag_api.control, order_of()
    control.bundles[order.bundle.digest] = b"a bundle"
    said = json.loads(msgspec.json.encode(order))

    unsaid_kind = await post(dag_api, "/v1/jobs", said)
    said_kind = await post(dag_api, "/v1/jobs", said | {"kind": "load"})

    assert (unsaid_kind.status, said_kind.status) == (201, 201)
    assert [asked[0] for asked in control.asked] == ["submit", "submit"]
    assert dags.jobs == {}


async def test_a_load_job_is_no_larger_for_the_dags_beside_it(apis: Apis, dags: FakeDags, order_of) -> None:
    control = FakeControl()
    kinds = JobDirectory(DagKind(dags), LoadKind(control, SubmitBounds(100, "submit")))
    dag_api = await apis.start(control, kinds=kinds)

    answer = await dag_api.ask("POST", "/v1/jobs", msgspec.json.encode(order_of()), JSON)

    assert answer.status == 413


async def test_dag_and_load_jobs_are_counted_apart(apis: Apis, dags: FakeDags, order_of) -> None:
    seen: list[str] = []

    def limiter(operation: str, client: str) -> float:
        seen.append(operation)
        return 3.0 if operation == "submit" else 0.0

    api = await apis.start(dags=dags, limiter=limiter)

    load = await api.ask("POST", "/v1/jobs", msgspec.json.encode(order_of()), JSON)
    dag = await post(api, "/v1/jobs", DAG)

    assert (load.status, load.headers["retry-after"], dag.status) == (429, "3", 201)
    assert seen == ["submit_dag", "submit", "submit_dag"]


async def test_execute_takes_other_words_for_the_same(dag_api: Api, dags: FakeDags) -> None:
    body = {"jobs": [{"id": "a", "type": "etl", "config": {"n": 1e300}}, {"id": "b", "type": "x", "dependsOn": ["a"]}]}

    answer = await post(dag_api, "/v1/execute", body, key="k")

    [job] = dags.jobs.values()
    assert answer.status == 201
    assert (job.facts.name, [task.handler for task in job.tasks]) == ("execute", ["etl", "x"])
    assert (job.tasks[1].depends_on, bytes(job.tasks[0].config)) == (("a",), b'{"n": 1e+300}')


async def test_execute_takes_our_own_words_too(dag_api: Api, dags: FakeDags) -> None:
    assert (await post(dag_api, "/v1/execute", DAG)).status == 201
    assert [job.facts.name for job in dags.jobs.values()] == ["nightly"]


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b"[]", 422), (b'{"tasks": 3}', 422), (b"{}", 422)])
async def test_execute_refuses_what_is_no_dag(dag_api: Api, body: bytes, status: int) -> None:
    assert (await dag_api.ask("POST", "/v1/execute", body, JSON)).status == status


async def test_many_are_taken_or_refused_each_for_itself(dag_api: Api, dags: FakeDags) -> None:
    bad = DAG | {"tasks": []}

    answer = await post(dag_api, "/v1/jobs/bulk", [DAG, bad, DAG | {"name": "other"}], key="k")

    first, second, third = json.loads(answer.body)
    assert answer.status == 200
    assert (first["id"], third["name"]) == ("dag1", "other")
    assert (second["status"], second["type"]) == (422, "urn:talka:problem:bad-dag")
    assert list(dags.keys) == ["k/0", "k/2"]


async def test_many_are_answered_when_all_are_done(dag_api: Api, dags: FakeDags) -> None:
    dags.holds_submits = True

    asking = asyncio.create_task(post(dag_api, "/v1/jobs/bulk", [DAG, DAG | {"name": "other"}]))
    await dags.are_held(2)
    dags.let_go(2, last_first=True)

    assert [one["name"] for one in json.loads((await asking).body)] == ["nightly", "other"]


async def test_too_many_at_once_are_refused(dag_api: Api, dags: FakeDags) -> None:
    answer = await post(dag_api, "/v1/jobs/bulk", [DAG] * 1001)

    assert (answer.status, dags.jobs) == (422, {})
    assert "1001 dags are too many" in problem_in(answer).detail
    assert (await post(dag_api, "/v1/jobs/bulk", [DAG], key="k" * 198)).status == 422


async def test_a_full_store_says_when_to_come_back(dag_api: Api, dags: FakeDags) -> None:
    dags.errors["submit_dag"] = TooBusy("2,000,000 tasks wait already", 7)

    answer = await post(dag_api, "/v1/jobs", DAG)

    assert (answer.status, answer.headers["retry-after"]) == (429, "7")


# Without a store.


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/jobs", DAG),
        ("POST", "/v1/execute", DAG),
        ("POST", "/v1/jobs/bulk", [DAG]),
        ("GET", "/v1/jobs/job1/tasks", None),
        ("GET", "/v1/queues", None),
        ("GET", "/v1/dead-letters", None),
        ("POST", "/v1/dead-letters/job1/a/replay", None),
        ("PUT", "/v1/schedules", DAG),
    ],
    ids=range(8),
)
async def test_a_manager_without_a_store_says_so(api: Api, method: str, path: str, body: object) -> None:
    content, headers = (json.dumps(body).encode(), JSON) if body is not None else (b"", {})

    answer = await api.ask(method, path, content, headers)

    assert (answer.status, problem_in(answer).type) == (501, "urn:talka:problem:no-dags")
    assert problem_in(answer).detail == "this manager keeps no dag jobs: start it with --store"


# Looking.


async def test_jobs_of_both_kinds_are_listed_newest_first(dag_api: Api, dags: FakeDags) -> None:
    for n in range(3):
        await post(dag_api, "/v1/jobs", DAG | {"name": f"dag{n}"})
        dag_api.control.add_job(f"load{n}")

    page = json.loads((await dag_api.ask("GET", "/v1/jobs")).body)

    assert page["next"] == ""
    assert [job["id"] for job in page["items"]] == ["dag3", "dag2", "dag1", "load0", "load1", "load2"]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 500])
async def test_pages_of_both_kinds_lose_and_repeat_nothing(dag_api: Api, dags: FakeDags, limit: int) -> None:
    for n in range(5):
        dags.add(f"dag{n}")
    for n in range(7):
        dag_api.control.add_job(f"load{n}")

    found, cursor = list[str](), ""
    for _ in range(20):
        page = json.loads((await dag_api.ask("GET", f"/v1/jobs?limit={limit}&cursor={cursor}")).body)
        assert 0 < len(page["items"]) <= limit
        found += [job["id"] for job in page["items"]]
        cursor = page["next"]
        if not cursor:
            break

    assert sorted(found) == sorted([f"dag{n}" for n in range(5)] + [f"load{n}" for n in range(7)])


@pytest.mark.parametrize("cursor", ["7", "c1", "c1~q2", "~", "c1~c2~c3"])
async def test_a_cursor_that_is_not_ours_is_refused(dag_api: Api, cursor: str) -> None:
    assert (await dag_api.ask("GET", f"/v1/jobs?cursor={cursor}")).status == 422


async def test_a_job_is_found_whichever_kind_it_is(dag_api: Api, dags: FakeDags) -> None:
    dags.add("dag1")
    dag_api.control.add_job("load1")

    assert json.loads((await dag_api.ask("GET", "/v1/jobs/dag1")).body)["kind"] == "dag"
    assert json.loads((await dag_api.ask("GET", "/v1/jobs/load1")).body)["name"] == "shop.py"
    assert (await dag_api.ask("GET", "/v1/jobs/nojob")).status == 404


async def test_a_job_is_shown_to_people_whichever_kind_it_is(dag_api: Api, dags: FakeDags) -> None:
    dags.add("dag1", [TaskSpec("a", "etl"), TaskSpec("b", "etl")])
    dag_api.control.add_job("load1")

    dag = json.loads((await dag_api.ask("GET", "/v1/jobs/dag1/view")).body)
    load = json.loads((await dag_api.ask("GET", "/v1/jobs/load1/view")).body)

    assert (dag["kind"], dag["columns"][0], [line[0] for line in dag["lines"]]) == ("dag", "TASK", ["a", "b"])
    assert (load["kind"], load["lines"]) == ("load", []) and ["name", "shop.py"] in load["rows"]
    assert (await dag_api.ask("GET", "/v1/jobs/nojob/view")).status == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", path) for path in ("tasks", "tasks/a", "tasks/a/why", "tasks/a/logs", "events", "graph")),
        *(("GET", path) for path in ("tasks/a/attempts", "tasks/a/output")),
        *(("POST", path) for path in ("pause", "retry", "retry/plan")),
    ],
    ids=str,
)
async def test_what_only_dag_jobs_have_is_told_of_load_jobs(
    dag_api: Api, dags: FakeDags, method: str, path: str
) -> None:
    dag_api.control.add_job("load1")

    of_load = problem_in(await dag_api.ask(method, f"/v1/jobs/load1/{path}"))
    of_none = problem_in(await dag_api.ask(method, f"/v1/jobs/nojob/{path}"))

    assert (of_load.status, of_load.type) == (404, "urn:talka:problem:wrong-kind")
    assert of_load.detail == "job load1 is a load job: it has no tasks; its result is at /v1/jobs/load1/result"
    assert (of_none.status, of_none.type) == (404, "urn:talka:problem:no-such-job")
    assert dags.asked == []


async def test_a_load_job_that_is_paused_is_resumed(dag_api: Api, dags: FakeDags) -> None:
    job = dag_api.control.add_job("load1")
    refused = problem_in(await dag_api.ask("POST", "/v1/jobs/load1/resume"))
    job.facts = msgspec.structs.replace(job.facts, state=JobState.PAUSED, reason="Late is put aside")

    resumed = await dag_api.ask("POST", "/v1/jobs/load1/resume")

    assert (refused.status, resumed.status) == (409, 200)
    assert json.loads(resumed.body)["state"] == "running" and dags.asked == []
    assert problem_in(await dag_api.ask("POST", "/v1/jobs/nojob/resume")).status == 404


@pytest.mark.parametrize("what", ["order", "result"])
async def test_what_only_load_jobs_have_is_told_of_dag_jobs(dag_api: Api, dags: FakeDags, what: str) -> None:
    dags.add("dag1")
    dag_api.control.add_job("load1").result = b"{}"

    answer = await dag_api.ask("GET", f"/v1/jobs/dag1/{what}")

    assert (answer.status, problem_in(answer).type) == (404, "urn:talka:problem:no-result")
    assert "/v1/jobs/dag1/tasks" in problem_in(answer).detail
    assert (await dag_api.ask("GET", f"/v1/jobs/load1/{what}")).status == 200


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/jobs/dag1/tasks", ("dag_tasks", "dag1", "", "", "50")),
        ("/v1/jobs/dag1/tasks?state=dead&cursor=7&limit=3", ("dag_tasks", "dag1", "dead", "7", "3")),
        ("/v1/jobs/dag1/tasks/a", ("dag_task", "dag1", "a")),
        ("/v1/jobs/dag1/tasks/a/why", ("why", "dag1", "a")),
        ("/v1/jobs/dag1/tasks/a/logs?cursor=5", ("task_logs", "dag1", "a", "5", "50")),
        ("/v1/jobs/dag1/tasks/a/attempts?limit=2", ("task_attempts", "dag1", "a", "", "2")),
        ("/v1/jobs/dag1/tasks/a/output", ("task_output", "dag1", "a", "0", "")),
        ("/v1/jobs/dag1/tasks/a/output?attempt=1&stream=stderr", ("task_output", "dag1", "a", "1", "stderr")),
        ("/v1/jobs/dag1/tasks/x%2Foutput", ("dag_task", "dag1", "x/output")),
        ("/v1/jobs/dag1/tasks/x%2Fattempts", ("dag_task", "dag1", "x/attempts")),
        ("/v1/jobs/dag1/tasks/x%2Fy[1]", ("dag_task", "dag1", "x/y[1]")),
        ("/v1/jobs/dag1/tasks/x/y[1]/why", ("why", "dag1", "x/y[1]")),
        ("/v1/jobs/dag1/tasks/x%2fwhy", ("dag_task", "dag1", "x/why")),
        ("/v1/jobs/dag1/tasks/x%2Fwhy/why", ("why", "dag1", "x/why")),
        ("/v1/jobs/dag1/tasks/x%2Flogs", ("dag_task", "dag1", "x/logs")),
        ("/v1/jobs/dag1/events?limit=9", ("dag_events", "dag1", "", "9")),
        ("/v1/jobs/dag1/graph", ("dag_graph", "dag1")),
        ("/v1/queues", ("queues",)),
        ("/v1/dead-letters?cursor=c", ("dead_letters", "c", "50")),
        ("/v1/schedules", ("schedules",)),
    ],
    ids=range(20),
)
async def test_a_question_is_passed_on(dag_api: Api, dags: FakeDags, path: str, asked: tuple[str, ...]) -> None:
    dags.add("dag1", [TaskSpec(id, "etl") for id in ("a", "x/y[1]", "x/why", "x/logs", "x/output", "x/attempts")])

    answer = await dag_api.ask("GET", path)

    assert (answer.status, dags.asked) == (200, [asked])


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/v1/jobs/nojob/tasks", 404, "no-such-job"),
        ("/v1/jobs/no.job/tasks", 404, "no-such-job"),
        ("/v1/jobs/dag1/tasks/b", 404, "no-such-task"),
        ("/v1/jobs/dag1/tasks/b/why", 404, "no-such-task"),
        ("/v1/jobs/dag1/tasks/a/output?attempt=2", 404, "no-such-attempt"),
        ("/v1/jobs/dag1/tasks/a/output?attempt=0", 422, "invalid"),
        ("/v1/jobs/dag1/tasks/a/output?attempt=first", 422, "invalid"),
        ("/v1/jobs/dag1/tasks/a/output?stream=stdin", 422, "invalid"),
        ("/v1/jobs/dag1/tasks/", 404, "no-such-task"),
        ("/v1/jobs/dag1/tasks/%00", 404, "no-such-task"),
        ("/v1/jobs/dag1/tasks/" + "a" * 129, 404, "no-such-task"),
        ("/v1/jobs/dag1/tasks?state=merry", 422, "invalid"),
        ("/v1/jobs/dag1/tasks?limit=0", 422, "invalid"),
        ("/v1/jobs/dag1/tasks?limit=%C2%B2", 422, "invalid"),
        ("/v1/jobs/dag1/events?cursor=" + "c" * 201, 422, "invalid"),
    ],
    ids=range(15),
)
async def test_a_question_about_what_is_not_there_is_refused(
    dag_api: Api, dags: FakeDags, path: str, status: int, kind: str
) -> None:
    dags.add("dag1", [TaskSpec("a", "etl")])

    answer = await dag_api.ask("GET", path)

    assert (answer.status, problem_in(answer).type) == (status, f"urn:talka:problem:{kind}")


async def test_outputs_are_given_as_they_are(dag_api: Api, dags: FakeDags) -> None:
    dags.add("dag1", [TaskSpec("a", "etl")])

    assert json.loads((await dag_api.ask("GET", "/v1/jobs/dag1/tasks/a")).body)["output"] == {"rows": 3}


# Changing.


@pytest.mark.parametrize(
    ("path", "body", "asked"),
    [
        ("/v1/jobs/dag1/cancel", {"reason": "enough"}, ("cancel_dag", "dag1", "enough")),
        ("/v1/jobs/dag1/cancel", None, ("cancel_dag", "dag1", "cancelled by a user")),
        ("/v1/jobs/dag1/pause", None, ("pause_dag", "dag1")),
        ("/v1/jobs/dag1/resume", None, ("resume_dag", "dag1")),
        ("/v1/jobs/dag1/retry", None, ("retry_dag", "dag1")),
        ("/v1/jobs/dag1/retry", {"tasks": ["a"], "config": {"a": [1]}}, ("retry_dag", "dag1", "a", "a=[1]")),
        ("/v1/jobs/dag1/skip", {"tasks": ["a"]}, ("skip_dag", "dag1", "a")),
        ("/v1/dead-letters/dag1/a/replay", None, ("replay", "dag1/a", "")),
        ("/v1/dead-letters/dag1/x%2Fy/replay", {"config": {"n": 1}}, ("replay", "dag1/x/y", '{"n": 1}')),
        ("/v1/dead-letters/dag1/a/replay", {}, ("replay", "dag1/a", "")),
        ("/v1/dead-letters/dag1/a/replay", {"config": None}, ("replay", "dag1/a", "null")),
    ],
    ids=range(11),
)
async def test_a_change_is_passed_on(
    dag_api: Api, dags: FakeDags, path: str, body: object, asked: tuple[str, ...]
) -> None:
    dags.add("dag1", [TaskSpec("a", "etl"), TaskSpec("x/y", "etl")])

    answer = await (dag_api.ask("POST", path) if body is None else post(dag_api, path, body))

    assert (answer.status, dags.asked) == (200, [asked])
    assert json.loads(answer.body)["id"] == "dag1"


async def test_who_could_run_tasks_is_answered(dag_api: Api, dags: FakeDags) -> None:
    wants = [{"handler": "etl", "capabilities": ["gpu"], "min_memory": 5}, {"handler": "other"}]
    answer = await post(dag_api, "/v1/queues/check", wants)
    strange = await post(dag_api, "/v1/queues/check", [{"handler": ""}])
    many = await post(dag_api, "/v1/queues/check", wants * 101)

    assert (answer.status, dags.asked) == (200, [("who_could_run", "etl", "other")])
    worker = {"worker": "w1", "constraint": "", "text": "it can run here"}
    assert json.loads(answer.body) == [{"lack": "", "able": 1, "workers": [worker], "left_out": 0}] * 2
    assert (strange.status, many.status) == (422, 422)
    assert "202 kinds of tasks are too many at once: ask for at most 200" in many.body.decode()


async def test_what_a_retry_would_run_again_is_answered(dag_api: Api, dags: FakeDags) -> None:
    dags.add("dag1", [TaskSpec("a", "etl")])

    answer = await post(dag_api, "/v1/jobs/dag1/retry/plan", {"tasks": ["a"]})
    strange = await post(dag_api, "/v1/jobs/dag1/retry/plan", {"task": "a"})

    assert (answer.status, dags.asked) == (200, [("retry_plan", "dag1", "a")])
    assert json.loads(answer.body) == {"tasks": [{"id": "a", "state": "completed"}], "left_out": 0}
    assert strange.status == 422


async def test_a_load_job_is_cancelled_where_it_is(dag_api: Api) -> None:
    dag_api.control.add_job("load1")

    answer = await post(dag_api, "/v1/jobs/load1/cancel", {"reason": "enough"})

    assert (answer.status, json.loads(answer.body)["cancel"]) == (200, "enough")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/jobs/nojob/pause", None, 404),
        ("/v1/jobs/dag1/skip", None, 415),
        ("/v1/jobs/dag1/skip", {}, 422),
        ("/v1/jobs/dag1/retry", {"task": "a"}, 422),
        ("/v1/jobs/dag1/retry", {"config": {"a": "x" * 300_000}}, 422),
        ("/v1/jobs/dag1/pause", {}, 413),
        ("/v1/dead-letters/dag1/b/replay", None, 404),
        ("/v1/dead-letters/dag1/a/replay", {"config": "x" * 300_000}, 413),
    ],
    ids=range(8),
)
async def test_a_change_that_cannot_be_is_refused(
    dag_api: Api, dags: FakeDags, path: str, body: object, status: int
) -> None:
    dags.add("dag1", [TaskSpec("a", "etl")])

    answer = await (dag_api.ask("POST", path) if body is None else post(dag_api, path, body))

    assert problem_in(answer).status == status
    assert dags.jobs["dag1"].facts.state == JobState.RUNNING


async def test_what_contradicts_is_a_conflict(dag_api: Api, dags: FakeDags) -> None:
    dags.add("dag1")
    dags.errors["resume_dag"] = Conflict("job dag1 is not paused")

    assert (await dag_api.ask("POST", "/v1/jobs/dag1/resume")).status == 409


# Schedules.


async def test_a_schedule_is_put_listed_and_dropped(dag_api: Api, dags: FakeDags) -> None:
    body = json.dumps(DAG | {"name": "every night/1", "schedule": "0 3 * * *"}).encode()

    put = await dag_api.ask("PUT", "/v1/schedules", body, JSON)
    listed = json.loads((await dag_api.ask("GET", "/v1/schedules")).body)
    path = put.headers["location"]
    dropped = await dag_api.ask("DELETE", path)
    again = await dag_api.ask("DELETE", path)

    assert (put.status, path) == (200, "/v1/schedules/every%20night%2F1")
    assert [(one["name"], one["cron"]) for one in listed] == [("every night/1", "0 3 * * *")]
    assert (dropped.status, dropped.body) == (204, b"")
    assert (again.status, problem_in(again).type) == (404, "urn:talka:problem:no-such-schedule")


async def test_a_schedule_is_paused_resumed_run_now_and_backfilled(dag_api: Api, dags: FakeDags) -> None:
    body = json.dumps(DAG | {"name": "every/pause", "schedule": "0 3 * * *", "timezone": "Europe/Berlin"}).encode()
    path = (await dag_api.ask("PUT", "/v1/schedules", body, JSON)).headers["location"]

    paused = json.loads((await dag_api.ask("POST", f"{path}/pause")).body)
    resumed = json.loads((await dag_api.ask("POST", f"{path}/resume")).body)
    run = await dag_api.ask("POST", f"{path}/run", headers={"idempotency-key": "k"})
    asked = {"from": "2026-11-01", "to": "2026-11-02", "dry_run": True}
    backfilled = json.loads((await post(dag_api, f"{path}/backfill", asked)).body)

    assert (paused["name"], paused["paused"], resumed["paused"]) == ("every/pause", True, False)
    assert (run.status, run.headers["location"], json.loads(run.body)["id"]) == (201, "/v1/jobs/run0", "run0")
    assert [one["state"] for one in backfilled["runs"]] == ["due"]
    assert dags.asked[1:] == [
        ("pause_schedule", "every/pause"),
        ("resume_schedule", "every/pause"),
        ("run_schedule", "every/pause", ""),
        ("backfill", "every/pause", "2026-11-01", "2026-11-02", "True", ""),
    ]
    for word, content in (("pause", None), ("resume", None), ("run", None), ("backfill", asked)):
        missing = f"/v1/schedules/nobody/{word}"
        answer = await (dag_api.ask("POST", missing) if content is None else post(dag_api, missing, content))
        assert (answer.status, problem_in(answer).type) == (404, "urn:talka:problem:no-such-schedule")
    wrong = await post(dag_api, f"{path}/backfill", {"from": "2026-11-01"})
    assert wrong.status == 422 and "to" in problem_in(wrong).detail


async def test_a_zone_and_what_is_caught_up_with_need_a_schedule(dag_api: Api, dags: FakeDags) -> None:
    for field, value in (("timezone", "Europe/Berlin"), ("catch_up", "all")):
        answer = await post(dag_api, "/v1/jobs", DAG | {field: value})
        assert answer.status == 422
        assert f"{field}: belongs to a schedule, and there is none" in problem_in(answer).detail
    wrong = await post(dag_api, "/v1/jobs", DAG | {"schedule": "0 3 * * *", "catch_up": "some"})
    assert problem_in(wrong).detail == 'catch_up: "some" is not one of skip, one, all'
    assert dags.jobs == {}


async def test_a_schedule_needs_a_cron_line_and_a_submission_has_none(dag_api: Api, dags: FakeDags) -> None:
    scheduled = DAG | {"schedule": "0 3 * * *"}

    without = await dag_api.ask("PUT", "/v1/schedules", json.dumps(DAG).encode(), JSON)
    bad = await dag_api.ask("PUT", "/v1/schedules", json.dumps(DAG | {"schedule": "at three"}).encode(), JSON)
    answers = [await post(dag_api, path, scheduled) for path in ("/v1/jobs", "/v1/execute")]
    [one] = json.loads((await post(dag_api, "/v1/jobs/bulk", [scheduled])).body)

    assert (without.status, bad.status, one["status"]) == (422, 422, 422)
    assert [answer.status for answer in answers] == [422, 422]
    assert "put it at /v1/schedules" in problem_in(answers[0]).detail
    assert (dags.jobs, dags.plans) == ({}, {})
    assert (await dag_api.ask("DELETE", "/v1/schedules/" + "n" * 201)).status == 404


# A submission that waits for the end of its job.


async def test_a_submission_that_waits_is_answered_with_the_end_of_its_job(dag_api: Api, dags: FakeDags) -> None:
    for path, body in (("/v1/jobs?wait=60s", DAG), ("/v1/execute?wait=60s", {"jobs": [{"id": "a", "type": "etl"}]})):
        waiting = asyncio.create_task(post(dag_api, path, body))
        await dags.until(lambda: bool(dags.jobs))
        [id] = dags.jobs
        dags.tell(id, JobState.RUNNING)
        dags.tell(id, JobState.COMPLETED)
        answer = await waiting

        assert (answer.status, answer.headers["location"]) == (201, f"/v1/jobs/{id}")
        assert json.loads(answer.body)["state"] == "completed"
        dags.jobs.clear()
        dags.updates.clear()


async def test_a_stream_of_tasks_may_wait_too(dag_api: Api, dags: FakeDags) -> None:
    body = b'{"kind": "dag", "name": "n"}\n{"id": "a", "handler": "etl"}\n'
    headers = {"content-type": "application/x-ndjson"}
    waiting = asyncio.create_task(dag_api.ask("POST", "/v1/jobs?wait=60s", body, headers))
    await dags.until(lambda: bool(dags.jobs))
    dags.tell("dag1", JobState.PARTIAL)

    assert json.loads((await waiting).body)["state"] == "partial"


async def test_who_has_waited_long_enough_is_told_how_the_job_stands(dag_api: Api) -> None:
    answer = await post(dag_api, "/v1/jobs?wait=1ms", DAG)

    assert (answer.status, json.loads(answer.body)["state"]) == (201, "queued")


async def test_who_goes_away_while_it_waits_is_waited_for_no_longer(dag_api: Api, dags: FakeDags) -> None:
    body = json.dumps(DAG).encode()
    head = "POST /v1/jobs?wait=60s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    _, writer = await asyncio.open_connection(dag_api.address.host, dag_api.address.port)
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await dags.until(lambda: dags.watches == 1)

    writer.close()

    await dags.until(lambda: dags.watches == 0)
    assert list(dags.jobs) == ["dag1"], "it was taken all the same"


async def test_who_waits_when_the_node_stops_is_told_how_the_job_stands(apis: Apis, dags: FakeDags) -> None:
    api = await apis.start(dags=dags)
    waiting = asyncio.create_task(post(api, "/v1/jobs?wait=60s", DAG))
    await dags.until(lambda: dags.watches == 1)

    api.stop.set()

    answer = await waiting
    assert (answer.status, json.loads(answer.body)["state"]) == (201, "queued")


async def test_a_job_that_was_taken_is_answered_also_when_the_waiting_fails(dag_api: Api, dags: FakeDags) -> None:
    dags.errors["watch_dag"] = TooBusy("too many watch")

    assert (await post(dag_api, "/v1/jobs?wait=60s", DAG)).status == 201


@pytest.mark.parametrize(
    ("wait", "sentence"),
    [
        ("10m", "wait = 10m is too long: wait at most 300 s, and watch the job after that"),
        ("soon", 'wait = "soon" is not a duration'),
    ],
)
async def test_a_wait_that_cannot_be_is_refused_before_anything_is_taken(
    dag_api: Api, dags: FakeDags, wait: str, sentence: str
) -> None:
    answer = await post(dag_api, f"/v1/jobs?wait={wait}", DAG)

    assert answer.status == 422 and sentence in problem_in(answer).detail
    assert dags.jobs == {}


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/v1/jobs/submit", "/v1/jobs/submit is a WebSocket: ask for an upgrade of the connection, or submit one job "),
        ("/v1/jobs/dag1/watch", "/v1/jobs/{id}/watch is a WebSocket: ask for an upgrade of the connection"),
    ],
)
async def test_a_plain_request_for_a_websocket_is_told_so(dag_api: Api, path: str, sentence: str) -> None:
    answer = await dag_api.ask("GET", path)

    assert (answer.status, answer.headers["upgrade"]) == (426, "websocket")
    assert problem_in(answer).detail.startswith(sentence)


async def test_who_cancelled_a_job_and_who_skipped_a_task_is_passed_on(
    apis: Apis, dags: FakeDags, tokens: Tokens
) -> None:
    api, token = await apis.start(dags=dags, auth=tokens), tokens.issue("ann", "submitter", LATER_S)
    dags.add("dag1", [TaskSpec("a", "etl")])

    for body in (b"{}", b'{"reason": "wrong day"}'):
        await api.ask("POST", "/v1/jobs/dag1/cancel", body, JSON, token)
    await api.ask("POST", "/v1/jobs/dag1/skip", b'{"tasks": ["a"]}', JSON, token)

    assert dags.asked == [
        ("cancel_dag", "dag1", "cancelled by ann"),
        ("cancel_dag", "dag1", "wrong day (cancelled by ann)"),
        ("skip_dag", "dag1", "a", "ann"),
    ]
