"""Dag jobs through the client: the calls of the port, from elsewhere."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest

from talka.client.client import Client
from talka.client.dags import DagEnd, SubmitAnswer
from talka.client.http import ApiSilent
from talka.client.requests import (
    ClusterUnreachable,
    Forbidden,
    NoDags,
    NoSuchAttempt,
    NoSuchJob,
    NoSuchSchedule,
    NoSuchTask,
    NotAuthorised,
    TooBusy,
    TooLarge,
)
from talka.client.submitting import Submitting
from talka.errors import Invalid, Unavailable
from talka.web.auth import Tokens
from talka.wire.task_views import DagFacts, RetryRequest, SkipRequest, StreamText, StreamView, TaskWants
from talka.work.dags.dag import BadDag, CodeBundle, DagSettings, DagSpec, Param, TaskSpec
from talka.work.lifecycle import JobState
from tests.client.asked_first import asking_first
from tests.web.fake_control import LIMIT_S, Api, Apis, free_port
from tests.web.fake_dags import FakeDags

SPEC = DagSpec(name="nightly", tasks=(TaskSpec("a", "etl"), TaskSpec("b", "etl", depends_on=("a",))))


@pytest.fixture
def client(dag_api: Api) -> Client:
    return Client([str(dag_api.address)], question_s=LIMIT_S)


# Submitting.


async def test_a_dag_is_submitted_once_however_often_it_is_said(client: Client, dags: FakeDags) -> None:
    first, again = await client.submit_dag(SPEC, "k"), await client.submit_dag(SPEC, "k")

    assert first == again == await client.dag("dag1")
    assert (first.name, first.tasks, first.state) == ("nightly", 2, JobState.QUEUED)
    assert (await client.submit_dag(SPEC)).id == "dag2"
    keys = [asked[2] for asked in dags.asked if asked[0] == "submit_dag"]
    assert keys[:2] == ["k", "k"] and len(keys[2]) == 32


async def test_a_submission_survives_the_death_of_a_manager(apis: Apis, dags: FakeDags) -> None:
    with free_port() as port:
        api = await apis.start(dags=dags)
        client = asking_first(Client([f"127.0.0.1:{port}", str(api.address)]), f"127.0.0.1:{port}")

        assert (await client.submit_dag(SPEC)).id == "dag1"


async def test_what_is_wrong_is_the_same_error_here(client: Client, api: Api, dags: FakeDags) -> None:
    with pytest.raises(BadDag, match="b"):
        await client.submit_dag(DagSpec(name="n", tasks=(TaskSpec("a", "x", depends_on=("b",)),)))
    with pytest.raises(NoDags, match="start it with --store"):
        await Client([str(api.address)]).submit_dag(SPEC)
    dags.errors["submit_dag"] = TooBusy("too many tasks wait", 100)
    with pytest.raises(TooBusy):
        await client.submit_dag(SPEC)


async def test_many_are_taken_or_refused_each_for_itself(client: Client) -> None:
    bad = DagSpec(name="n", tasks=(TaskSpec("a", "x", depends_on=("a",)),))

    first, second, third = await client.submit_dags([SPEC, bad, SPEC])

    assert isinstance(first, DagFacts) and isinstance(third, DagFacts)
    assert isinstance(second, BadDag)
    assert (first.id, third.id) == ("dag1", "dag2")


async def test_params_and_what_is_waited_for_travel_over_every_way_to_submit(client: Client, dags: FakeDags) -> None:
    more: dict[str, Any] = {"params": {"n": Param("int")}, "values": {"n": 1}, "wait_for_workers": True}
    spec = DagSpec(name="a", tasks=(TaskSpec("t", "etl"),), **more)
    async with client.open_submit() as submits:
        await (await submits.submit(spec, "frame"))
    await client.submit_dag(spec, "one")
    await client.submit_dags([spec], "bulk")
    await client.stream_dag("a", spec.tasks, None, "stream", **more)
    [draft] = dags.drafts.values()
    assert draft.head.wait_for_workers
    assert [given for given, _ in (dags.keys[key] for key in ("frame", "one", "bulk/0"))] == [spec] * 3
    assert msgspec.structs.replace(dags.keys["stream"][0], wait_for_workers=True) == spec


async def test_the_bundle_of_a_job_travels_with_each_of_its_submissions(client: Client, dags: FakeDags) -> None:
    spec = msgspec.structs.replace(SPEC, bundle=CodeBundle("c" * 64, 9, ("etl.py",), ("etl",)))
    async with client.open_submit() as submits:
        await (await submits.submit(spec, "frame"))
        await (await submits.submit(SPEC, "without"))
    await client.submit_dag(spec, "one")
    await client.submit_dags([spec], "bulk")

    assert [dags.keys[key][0] for key in ("frame", "without", "one", "bulk/0")] == [spec, SPEC, spec, spec]


async def test_a_stream_is_one_job(client: Client, dags: FakeDags) -> None:
    tasks = [TaskSpec(f"t{n}", "etl", config=msgspec.Raw(b'"%b"' % (b"x" * 1000))) for n in range(2000)]

    facts = await client.stream_dag("large", iter(tasks), DagSettings(on_failure="continue"), "k")

    [draft] = dags.drafts.values()
    assert (facts.name, facts.tasks, draft.head.settings.on_failure, draft.key) == ("large", 2000, "continue", "k")
    assert [task.id for task in dags.jobs[facts.id].tasks] == [task.id for task in tasks]
    assert len(draft.parts) > 1


async def test_a_stream_may_be_made_while_it_is_sent(client: Client, dags: FakeDags) -> None:
    async def tasks() -> AsyncIterator[TaskSpec]:
        for n in range(500):
            yield TaskSpec(
                f"t{n}", "etl", depends_on=(f"t{n - 1}",) if n else (), config=msgspec.Raw(b'"%b"' % (b"x" * 999))
            )

    assert (await client.stream_dag("made", tasks())).tasks == 500


async def test_what_is_wrong_in_a_stream_is_told_with_its_line(client: Client, dags: FakeDags) -> None:
    with pytest.raises(BadDag, match="line 3: "):
        await client.stream_dag("n", [TaskSpec("a", "x"), TaskSpec("a", "x")])
    assert dags.jobs == {}


async def test_what_the_source_of_a_stream_raises_is_raised(client: Client, dags: FakeDags) -> None:
    def tasks() -> Iterator[TaskSpec]:
        yield TaskSpec("a", "x")
        raise ZeroDivisionError("of the source")

    with pytest.raises(ZeroDivisionError, match="of the source"):
        async with asyncio.timeout(LIMIT_S):
            await client.stream_dag("n", tasks())
    assert dags.jobs == {}


async def test_a_stream_that_is_refused_early_is_told_why(client: Client, dags: FakeDags) -> None:
    dags.errors["begin_dag"] = TooBusy("10,000 jobs live already", 3)

    with pytest.raises(TooBusy, match="10,000 jobs"):
        await client.stream_dag("n", (TaskSpec(f"t{n}", "x") for n in range(100_000)))


# Many on one connection.


async def test_submissions_do_not_wait_for_each_other(client: Client, dags: FakeDags) -> None:
    dags.holds_submits = True
    async with asyncio.timeout(LIMIT_S), client.open_submit() as submits:
        first = await submits.submit(SPEC, "k1")
        second = await submits.submit(TaskSpec("alone", "etl"))
        await dags.are_held(2)
        dags.let_go(2, last_first=True)
        await submits.drain()

    assert (first.result().n, first.result().id, first.result().state) == (0, "dag2", "queued")
    assert second.result().id == "dag1"
    assert [job.facts.name for job in dags.jobs.values()] == ["alone", "nightly"]
    assert list(dags.keys) == ["k1"]


async def test_thousands_are_submitted_in_order(client: Client, dags: FakeDags) -> None:
    async with asyncio.timeout(LIMIT_S), client.open_submit() as submits:
        answers = [await submits.submit(TaskSpec(f"t{n}", "etl")) for n in range(6000)]

    assert [answer.result().id for answer in answers] == [f"dag{n + 1}" for n in range(6000)]


async def test_no_more_are_sent_than_may_wait(client: Client, dags: FakeDags) -> None:
    dags.holds_submits = True
    async with asyncio.timeout(LIMIT_S), Submitting(client, submits_limit=4) as submits:
        for n in range(4):
            await submits.submit(TaskSpec(f"t{n}", "etl"))
        fifth = asyncio.create_task(submits.submit(TaskSpec("t4", "etl")))
        await dags.are_held(4)
        assert not fifth.done()
        dags.let_go(1)
        await dags.are_held(4)
        dags.holds_submits = False
        dags.let_go(4)
        await fifth

    assert len(dags.jobs) == 5


async def test_a_refused_submission_raises_what_it_was_refused_with(client: Client, dags: FakeDags) -> None:
    async with asyncio.timeout(LIMIT_S), client.open_submit() as submits:
        bad = await submits.submit(TaskSpec("a", "x", depends_on=("b",)))
        with pytest.raises(TooLarge, match="of a frame"):
            await submits.submit(TaskSpec("a", "x", config=msgspec.Raw(b'"%b"' % (b"x" * 2_000_000))))
        with pytest.raises(Invalid, match="put_schedule"):
            await submits.submit(msgspec.structs.replace(SPEC, schedule="@daily"))
        good = await submits.submit(SPEC)

    with pytest.raises(BadDag, match="b"):
        await bad
    assert (await good).id == "dag1"
    with pytest.raises(Invalid, match="was closed"):
        await submits.submit(SPEC)


async def test_when_the_connection_breaks_what_waits_is_told(client: Client, dag_api: Api, dags: FakeDags) -> None:
    dags.holds_submits = True
    async with asyncio.timeout(LIMIT_S), client.open_submit() as submits:
        answer = await submits.submit(SPEC, "k")
        await dags.are_held(1)
        await dag_api.kill()

        with pytest.raises(ApiSilent, match="under its key it is the same job"):
            await answer
        with pytest.raises(ApiSilent):
            await submits.submit(SPEC)


async def test_a_manager_that_is_silent_is_given_up(client: Client, dags: FakeDags) -> None:
    dags.holds_submits = True
    async with asyncio.timeout(LIMIT_S), Submitting(client, silent_s=0.05) as submits:
        with pytest.raises(ApiSilent):
            await (await submits.submit(SPEC))


async def test_a_connection_goes_to_whoever_is_there(apis: Apis, dags: FakeDags) -> None:
    with free_port() as port:
        api = await apis.start(dags=dags)
        client = Client([str(api.address), f"127.0.0.1:{port}"], question_s=LIMIT_S)
        asking_first(client, api.address)
        await client.cluster()
        asking_first(client, f"127.0.0.1:{port}")

        async with asyncio.timeout(LIMIT_S), client.open_submit() as submits:
            assert (await (await submits.submit(SPEC))).id == "dag1"


async def test_a_connection_that_is_refused_is_told_why(
    apis: Apis, dags: FakeDags, tokens: Tokens, impatient: Callable[..., Client]
) -> None:
    guarded, bare = await apis.start(dags=dags, auth=tokens), await apis.start()

    with pytest.raises(Forbidden):
        async with Client([str(guarded.address)], tokens.issue("ann", "viewer", 2**33)).open_submit():
            pass
    with pytest.raises(NotAuthorised):
        async with Client([str(guarded.address)], "nonsense").open_submit():
            pass
    with pytest.raises(NoDags):
        async with Client([str(bare.address)]).open_submit():
            pass
    with free_port() as port, pytest.raises(ClusterUnreachable):
        async with impatient(f"127.0.0.1:{port}").open_submit():
            pass


async def test_the_end_of_a_job_comes_on_the_connection_on_which_it_was_submitted(
    client: Client, dags: FakeDags
) -> None:
    async with asyncio.timeout(LIMIT_S), client.open_submit() as submits:
        first, second = await submits.run(SPEC, "k1"), await submits.run(TaskSpec("alone", "etl"))
        await submits.drain()
        assert not first.done()
        await dags.until(lambda: len(dags.ends) == 2)
        dags.end("dag2", DagEnd(JobState.FAILED, "it broke", {"dead": 1}))
        dags.end("dag1", DagEnd(JobState.COMPLETED))
        ends = await first, await second

    assert [(end.id, end.state, end.reason, end.counts) for end in ends] == [
        ("dag1", "completed", "", {}),
        ("dag2", "failed", "it broke", {"dead": 1}),
    ]


async def test_who_leaves_waits_for_the_ends_that_were_asked_for_and_are_still_wanted(
    client: Client, dags: FakeDags
) -> None:
    has_left, ends = asyncio.Event(), []

    async def submitting() -> None:
        async with client.open_submit() as submits:
            for name in ("a", "b", "unwanted"):
                ends.append(await submits.run(TaskSpec(name, "etl")))
            ends[2].cancel()
        has_left.set()

    async with asyncio.timeout(LIMIT_S):
        leaving = asyncio.create_task(submitting())
        await dags.until(lambda: len(dags.ends) == 3)
        for _ in range(3):
            await client.dag("dag1")  # a connection that is closed has gone by now
        dags.end("dag2", DagEnd(JobState.FAILED))
        assert (await ends[1]).state == "failed" and not has_left.is_set()
        dags.end("dag1", DagEnd(JobState.COMPLETED))
        await leaving

    assert ends[0].result().state == "completed"


async def test_who_leaves_waits_no_longer_when_the_connection_breaks(
    client: Client, dag_api: Api, dags: FakeDags
) -> None:
    async def submitting() -> "asyncio.Future[SubmitAnswer]":
        async with client.open_submit() as submits:
            return await submits.run(SPEC)

    async with asyncio.timeout(LIMIT_S):
        leaving = asyncio.create_task(submitting())
        await dags.until(lambda: bool(dags.ends))
        await dag_api.kill()
        with pytest.raises(ApiSilent):
            await (await leaving)


async def test_who_leaves_with_an_error_waits_for_nothing(client: Client, dags: FakeDags) -> None:
    with pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(LIMIT_S), client.open_submit() as submits:
            end = await submits.run(SPEC)
            raise ZeroDivisionError
    with pytest.raises(ApiSilent):
        await end


async def test_a_job_that_is_refused_has_no_end(client: Client, dag_api: Api, dags: FakeDags) -> None:
    async with asyncio.timeout(LIMIT_S), client.open_submit() as submits:
        with pytest.raises(BadDag, match="b"):
            await (await submits.run(TaskSpec("a", "x", depends_on=("b",))))
        lost = await submits.run(SPEC)
        await dags.until(lambda: bool(dags.ends))
        dags.end("dag1", Unavailable("this manager stops"))
        with pytest.raises(Unavailable, match="this manager stops"):
            await lost
        broken = await submits.run(SPEC)
        await submits.drain()
        await dag_api.kill()
        with pytest.raises(ApiSilent):
            await broken
    with pytest.raises(Invalid, match="was closed"):
        await submits.run(SPEC)


async def test_a_job_is_submitted_and_waited_for_in_one_request(client: Client, dags: FakeDags) -> None:
    waiting = asyncio.create_task(client.run_dag(SPEC))
    await dags.until(lambda: bool(dags.jobs))
    dags.tell("dag1", JobState.COMPLETED)

    assert (await waiting).state is JobState.COMPLETED
    assert [asked[0] for asked in dags.asked] == ["submit_dag", "watch_dag", "dag"]


async def test_a_job_that_takes_long_is_watched_to_its_end(
    client: Client, dags: FakeDags, monkeypatch: pytest.MonkeyPatch
) -> None:
    dags.errors["watch_dag"] = TooBusy("too many watch", 0)
    waiting = asyncio.create_task(client.run_dag(SPEC))
    await dags.until(lambda: bool(dags.jobs))
    await dags.until(lambda: ("dag", "dag1") in dags.asked or ("watch_dag", "dag1") in dags.asked)
    del dags.errors["watch_dag"]
    dags.tell("dag1", JobState.FAILED)

    assert (await waiting).state is JobState.FAILED


# Looking and changing.


async def test_every_question_of_the_port_can_be_asked(client: Client, dags: FakeDags) -> None:
    dags.add("dag1", [TaskSpec("a", "etl"), TaskSpec("x/why", "etl", depends_on=("a",))])

    assert [task.id for task in (await client.dag_tasks("dag1", limit=1)).items] == ["a"]
    assert (await client.dag_tasks("dag1", "ready", "1")).items[0].id == "x/why"
    assert bytes((await client.dag_task("dag1", "x/why")).output) == b'{"rows":3}'
    assert (await client.why("dag1", "x/why")).workers[0].constraint == "handler"
    assert (await client.task_logs("dag1", "a", "0", 10)).next == "1"
    (attempt,) = (await client.task_attempts("dag1", "a")).items
    assert (attempt.outcome, attempt.streams) == ("failed", [StreamView("stderr", 9, 4)])
    assert (await client.task_output("dag1", "a")).streams == [StreamText("stderr", 9, 4, "oops")]
    with pytest.raises(NoSuchAttempt, match="task a of job dag1 had no attempt 2"):
        await client.task_output("dag1", "a", 2, "stderr")
    assert (await client.dag_events("dag1")).items[0].kind == "submitted"
    assert (await client.dag_graph("dag1")).edges == [("a", "x/why")]
    assert (await client.queues()).queues[0].handler == "etl"
    assert (await client.dead_letters()).items[0].id == "dag1/a"
    assert [asked[0] for asked in dags.asked] == [
        *(
            "dag_tasks",
            "dag_tasks",
            "dag_task",
            "why",
            "task_logs",
            "task_attempts",
            "task_output",
            "task_output",
            "dag_events",
            "dag_graph",
            "queues",
            "dead_letters",
        ),
    ]


async def test_who_could_run_tasks_can_be_asked(client: Client, dags: FakeDags) -> None:
    [found] = await client.who_could_run([TaskWants("etl", ["gpu"], 5)])
    assert (found.able, found.workers[0].worker) == (1, "w1")


async def test_every_change_of_the_port_can_be_made(client: Client, dags: FakeDags) -> None:
    dags.add("dag1", [TaskSpec("a", "etl"), TaskSpec("x/y", "etl")])

    assert (await client.pause_dag("dag1")).state == JobState.PAUSED
    assert (await client.resume_dag("dag1")).state == JobState.RUNNING
    assert (await client.cancel_dag("dag1", "enough")).reason == "enough"
    await client.retry_dag("dag1")
    await client.retry_dag("dag1", RetryRequest(("a",), {"a": msgspec.Raw(b"[1]")}))
    plan = await client.retry_plan("dag1", RetryRequest(("a",)))
    assert [(task.id, task.state) for task in plan.tasks] == [("a", "completed")]
    await client.skip_dag("dag1", SkipRequest(("a",)))
    await client.replay("dag1/x/y")
    await client.replay("dag1/a", msgspec.Raw(b'{"n":1}'))
    view = await client.put_schedule(msgspec.structs.replace(SPEC, name="every night/1", schedule="0 3 * * *"))
    assert await client.schedules() == [view]
    assert (await client.pause_schedule("every night/1")).paused
    assert not (await client.resume_schedule("every night/1")).paused
    assert (await client.run_schedule("every night/1")).id == "run1"
    assert (await client.backfill("every night/1", "2026-11-01", "2026-11-02", dry_run=True)).runs[0].state == "due"
    await client.drop_schedule("every night/1")
    with pytest.raises(NoSuchSchedule):
        await client.drop_schedule("every night/1")

    assert dags.asked[3:9] == [
        ("retry_dag", "dag1"),
        ("retry_dag", "dag1", "a", "a=[1]"),
        ("retry_plan", "dag1", "a"),
        ("skip_dag", "dag1", "a"),
        ("replay", "dag1/x/y", ""),
        ("replay", "dag1/a", '{"n":1}'),
    ]


async def test_what_is_not_there_is_told(client: Client, dags: FakeDags) -> None:
    dags.add("dag1")

    with pytest.raises(NoSuchJob):
        await client.dag("nojob")
    with pytest.raises(NoSuchJob):
        await client.dag("../workers")
    with pytest.raises(NoSuchTask):
        await client.dag_task("dag1", "b")
    for task in ("", "..", "."):
        with pytest.raises(NoSuchTask):
            await client.why("dag1", task)
    with pytest.raises(NoSuchTask):
        await client.replay("dag1")


async def test_jobs_of_both_kinds_are_listed(client: Client, dag_api: Api, dags: FakeDags) -> None:
    dags.add("dag1")
    dag_api.control.add_job("load1")

    page = await client.all_jobs()

    assert [(job.id, job.kind) for job in page.items] == [("dag1", "dag"), ("load1", "load")]
    assert [job.id for job in (await client.jobs()).items] == ["dag1", "load1"]
    assert (await client.any_job("load1")).kind == "load"
    assert (await client.any_job("dag1")).kind == "dag"
    with pytest.raises(Invalid, match="load1 is a load job"):
        await client.dag("load1")


# Watching.


async def test_a_dag_is_watched_to_its_end(client: Client, dags: FakeDags) -> None:
    dags.add("dag1")
    seen = []

    async with asyncio.timeout(LIMIT_S):
        async for facts in client.watch_dag("dag1"):
            seen.append(facts.state)
            if len(seen) == 1:
                dags.tell("dag1", JobState.COMPLETING)
                dags.tell("dag1", JobState.PARTIAL)

    assert seen == [JobState.RUNNING, JobState.COMPLETING, JobState.PARTIAL]


async def test_the_end_of_a_dag_can_be_waited_for(client: Client, dags: FakeDags) -> None:
    dags.add("dag1", state=JobState.COMPLETED)

    assert (await client.wait_dag("dag1")).state == JobState.COMPLETED


async def test_a_watch_goes_on_at_another_manager(apis: Apis, dags: FakeDags) -> None:
    other = FakeDags()
    dags.add("dag1")
    other.add("dag1", state=JobState.COMPLETED)
    first, second = await apis.start(dags=dags), await apis.start(dags=other)
    client = asking_first(Client([str(first.address), str(second.address)], question_s=LIMIT_S), first.address)
    seen = []

    async with asyncio.timeout(LIMIT_S):
        async for facts in client.watch_dag("dag1"):
            seen.append(facts.state)
            if len(seen) == 1:
                await first.kill()

    assert seen == [JobState.RUNNING, JobState.COMPLETED]


async def test_a_watch_of_what_is_not_there_or_not_ours_is_refused(
    client: Client, dag_api: Api, apis: Apis, dags: FakeDags, tokens: Tokens
) -> None:
    with pytest.raises(NoSuchJob):
        await client.wait_dag("nojob")
    guarded = await apis.start(dags=dags, auth=tokens)
    with pytest.raises(NotAuthorised):
        await Client([str(guarded.address)], "nonsense").wait_dag("dag1")


async def test_a_load_job_can_still_be_watched_where_there_are_dags(client: Client, dag_api: Api) -> None:
    from talka.wire.views import JobUpdate

    job = dag_api.control.add_job("load1")
    await dag_api.control.tell(job, JobUpdate(job.facts, 1, final=True))

    assert [update.final async for update in client.watch("load1")] == [True]


# What answers strangely.


@pytest.mark.parametrize("body", [b"nonsense", b'{"id": 3}'])
async def test_answers_that_do_not_fit_are_told(
    dag_api: Api,
    dags: FakeDags,
    impatient: Callable[..., Client],
    monkeypatch: pytest.MonkeyPatch,
    body: bytes,
) -> None:
    class Odd:
        def __init__(self) -> None:
            self.value = json.loads(body) if body.startswith(b"{") else "nonsense"

    async def odd(*arguments: Any) -> Any:
        return Odd().value

    dags.add("dag1")
    monkeypatch.setattr(dags, "dag", odd)

    with pytest.raises(ClusterUnreachable, match="same version"):
        await impatient(str(dag_api.address)).dag("dag1")
