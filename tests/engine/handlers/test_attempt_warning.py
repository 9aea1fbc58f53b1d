"""The time of an attempt as its handler sees it: more of it is asked for, and it is warned before it is ended."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from talka.engine.handlers.attempt_warning import AttemptWarning
from talka.engine.handlers.inline import run_dag_inline
from talka.errors import Invalid
from talka.wire.tasks import HandlerProgress, Said, StopTasks, TellTime, TimeTold, TimeWanted, WarnTasks
from talka.work.dags.pipeline import Dag
from talka.work.handlers import GivenTime, HandlerTask
from tests.engine.handlers.test_handler_core import WAIT_S, Bench


def said(bench: Bench) -> list[Said]:
    return [message for message in bench.heard.messages if isinstance(message, Said)]


def wanted(bench: Bench) -> list[TimeWanted]:
    return [one for message in said(bench) for one in message.wanted]


def heeding(bench: Bench) -> list[int]:
    return [fence for message in said(bench) for fence in message.heeding]


def tell(bench: Bench, fence: int, call: int, granted_ms: int = 0, left: int = 3, why: str = "") -> None:
    bench.core.on_message(TellTime((TimeTold(fence, call, granted_ms, left, why),)))


def warn(bench: Bench, fence: int) -> None:
    bench.core.on_message(WarnTasks((fence,)))


class Told:
    """Instead of a core."""

    def __init__(self) -> None:
        self.wanted: list[TimeWanted] = []
        self.heeding: list[int] = []

    def wants(self, wanted: TimeWanted) -> None:
        self.wanted.append(wanted)

    def heeds(self, fence: int) -> None:
        self.heeding.append(fence)


async def test_an_async_handler_asks_for_more_time_and_awaits_the_answer() -> None:
    async def build(task: HandlerTask) -> list[Any]:
        task.heartbeat({"row": 1})
        given = await task.extend("30s", "the index is large", progress=0.4)
        return [given.granted_s, given.left, given.why_not]

    bench = Bench(build=build)
    fence = bench.hand("build", attempt_ms=30_000)
    await bench.heard.until(lambda: wanted(bench))
    assert wanted(bench) == [TimeWanted(fence, 1, 2, "the index is large (at 40%)", 30_000)]
    tell(bench, fence, 1, 15_000, 4)
    await bench.heard.until(lambda: bench.heard.results)

    assert bench.heard.results[0].output == b'[15.0,4,""]'


async def test_a_plain_handler_asks_for_more_time_and_waits_for_the_answer() -> None:
    def build(task: HandlerTask) -> list[Any]:
        given = task.extend(30).wait()
        return [given.granted_s, given.left, given.why_not]

    bench = Bench(build=build)
    fence = bench.hand("build", attempt_ms=30_000)
    await bench.heard.until(lambda: wanted(bench))
    tell(bench, fence, 1, why="it has not advanced")
    await bench.heard.until(lambda: bench.heard.results)

    assert bench.heard.results[0].output == b'[0.0,3,"it has not advanced"]'


async def test_what_is_reported_anew_advances_and_what_comes_again_does_not() -> None:
    async def rows(task: HandlerTask) -> None:
        for row in (1, 1, 2):
            task.heartbeat(row)
            await asyncio.sleep(0)

    bench = Bench(rows=rows)
    fence = bench.hand("rows")
    await bench.heard.until(lambda: bench.heard.results)

    progress = [one for message in said(bench) for one in message.progress]
    assert progress[-1] == HandlerProgress(fence, b"2", 2)


async def test_answers_that_nobody_waits_for_count_for_the_sentence_of_the_end() -> None:
    async def hang(task: HandlerTask) -> None:
        await asyncio.Event().wait()

    bench = Bench(hang=hang)
    fence = bench.hand("hang", attempt_ms=30_000)
    tell(bench, fence, 0, 15_000)
    tell(bench, 99, 0, 15_000)
    bench.core.on_message(StopTasks((fence,), "timeout"))
    await bench.heard.until(lambda: bench.heard.results)

    assert bench.heard.results[0].error == "it took longer than the 45s that an attempt may"


def test_an_answer_that_does_not_come_is_not_waited_for_for_ever() -> None:
    time = AttemptWarning(1, Told(), answer_s=0.001)

    assert time.ask("30s", "", None).wait() == GivenTime(
        0.0, 0, "nobody has answered for 0.001 s: its manager may be away"
    )

    async def wait() -> GivenTime:
        return await time.ask("30s", "", None)

    assert asyncio.run(wait()).granted_s == 0


@pytest.mark.parametrize(
    ("ask", "problem"),
    [
        (lambda time: time.ask("soon", "", None), 'more = "soon" is not a duration'),
        (lambda time: time.ask(0, "", None), 'more = 0 is no time: write how much longer it takes, such as "30s"'),
        (lambda time: time.ask("1s", "", 1.5), "progress = 1.5 is not between 0 and 1"),
        (lambda time: time.on_evict(3), "on_evict = 3 is not a function: give it one without arguments"),
    ],
)
def test_what_cannot_be_asked_is_told(ask: Callable[[AttemptWarning], object], problem: str) -> None:
    told = Told()
    with pytest.raises(Invalid, match=problem):
        ask(AttemptWarning(1, told))
    assert not told.wanted and not told.heeding


def test_only_progress_that_grows_is_an_advance() -> None:
    told = Told()
    time = AttemptWarning(1, told)
    for progress in (0.0, 0.5, 0.4, 0.5, 0.6):
        time.ask("1s", "", progress)

    assert [one.done for one in told.wanted] == [0, 1, 1, 1, 2]
    assert told.wanted[0].reason == "(at 0%)"


def test_so_many_functions_may_be_called_at_the_end_and_no_more() -> None:
    time = AttemptWarning(1, Told())
    for _ in range(64):
        time.on_evict(lambda: None)
    with pytest.raises(Invalid, match="on_evict has 64 functions already: give it one that calls the others"):
        time.on_evict(lambda: None)

    assert len(time.warn()) == 64 and time.warn() == [], "the first warning counts"


async def test_an_async_handler_is_warned_and_saves_what_it_has() -> None:
    async def build(task: HandlerTask) -> str:
        over = asyncio.Event()

        @task.on_evict
        async def save() -> None:
            task.heartbeat({"saved": 7})
            over.set()

        await over.wait()
        return "as far as it went"

    bench = Bench(build=build)
    fence = bench.hand("build", attempt_ms=30_000)
    await bench.heard.until(lambda: heeding(bench))
    assert heeding(bench) == [fence]
    warn(bench, fence)
    warn(bench, fence)
    warn(bench, 99)
    await bench.heard.until(lambda: bench.heard.results)

    (result,) = bench.heard.results
    assert (result.outcome, result.output) == ("completed", b'"as far as it went"')
    assert bench.heard.progress[-1] == {"saved": 7}


async def test_a_plain_handler_is_warned_beside_its_work_and_where_it_looks() -> None:
    called_in: list[str] = []
    over = threading.Event()

    def build(task: HandlerTask) -> bool:
        def saved() -> None:
            called_in.append(threading.current_thread().name)

        async def saved_too() -> None:
            called_in.append(threading.current_thread().name)
            over.set()

        task.on_evict(saved)
        task.on_evict(saved_too)
        assert not task.is_evicted
        task.heartbeat("ready")
        over.wait(WAIT_S)
        return task.is_evicted

    bench = Bench(build=build)
    fence = bench.hand("build", attempt_ms=30_000)
    await bench.heard.until(lambda: bench.heard.progress)
    warn(bench, fence)
    await bench.heard.until(lambda: bench.heard.results)

    assert bench.heard.results[0].output == b"true"
    assert called_in == ["on_evict", "on_evict"]
    assert heeding(bench) == [fence], "it is told once"


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_that_raises_when_it_is_called_at_the_end_is_in_the_log(is_async: bool) -> None:
    async def fails_late() -> None:
        raise KeyError("disk")

    def fails() -> None:
        raise KeyError("disk")

    async def build(task: HandlerTask) -> None:
        over = asyncio.Event()
        task.on_evict(fails_late if is_async else fails)
        task.on_evict(over.set)
        await over.wait()
        await asyncio.sleep(0)

    bench = Bench(build=build)
    fence = bench.hand("build", attempt_ms=30_000)
    await bench.heard.until(lambda: heeding(bench))
    warn(bench, fence)
    await bench.heard.until(lambda: bench.heard.results)

    assert bench.heard.lines == ["on_evict raised KeyError: 'disk'"]
    assert bench.heard.results[0].outcome == "completed"


@pytest.mark.parametrize(("on_timeout", "outcome"), [("kill", "timeout"), ("pause", "timeout"), ("notify", "failed")])
async def test_one_that_raises_once_it_was_warned_has_taken_too_long(on_timeout: str, outcome: str) -> None:
    async def build(task: HandlerTask) -> None:
        over = asyncio.Event()
        task.on_evict(over.set)
        await over.wait()
        raise RuntimeError("saved, and out")

    bench = Bench(build=build)
    fence = bench.hand("build", attempt_ms=30_000, on_timeout=on_timeout)
    await bench.heard.until(lambda: heeding(bench))
    warn(bench, fence)
    await bench.heard.until(lambda: bench.heard.results)

    (result,) = bench.heard.results
    assert result.outcome == outcome and "saved, and out" in result.error


async def test_a_function_that_goes_on_after_its_handler_is_ended_with_it() -> None:
    ended = asyncio.Event()

    async def save() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def build(task: HandlerTask) -> None:
        over = asyncio.Event()
        task.on_evict(save)
        task.on_evict(over.set)
        await over.wait()

    bench = Bench(build=build)
    fence = bench.hand("build")
    await bench.heard.until(lambda: heeding(bench))
    warn(bench, fence)
    async with asyncio.timeout(WAIT_S):
        await ended.wait()
    assert bench.heard.results[0].outcome == "completed"


async def test_a_forked_child_says_nothing_of_its_time() -> None:
    bench = Bench()
    bench.core._is_copy = True
    bench.core.wants(TimeWanted(1, 1))
    bench.core.heeds(1)
    bench.core._is_copy = False
    bench.core._tell_sayings()

    assert said(bench) == []


# In one process.


def inline(body: Callable[[HandlerTask], Any], **more: Any) -> Any:
    dag = Dag("late", retry={"max": 0}, timeouts={"attempt": "30s"}, **more)
    dag.task("a", "h")
    return run_dag_inline(dag, {"h": body})


def test_inline_an_attempt_that_advances_is_given_more_time_and_no_more_than_that() -> None:
    async def rows(task: HandlerTask) -> None:
        for row in range(100):
            task.heartbeat(row)
            await asyncio.sleep(1)

    run = inline(rows)
    assert (run.tasks["a"].cause, run.took_s) == ("timeout", 30 + 15 + 7.5 + 3.75 + 1.875 + 1)
    assert run.tasks["a"].error == "it took longer than the 59.125s that an attempt may"


def test_inline_a_handler_asks_and_is_answered() -> None:
    async def ask(task: HandlerTask) -> list[Any]:
        first = await task.extend("60s", "rows", progress=0.5)
        second = await task.extend("60s", "rows", progress=0.5)
        await asyncio.sleep(44)
        return [first.granted_s, second.granted_s, second.why_not]

    run = inline(ask)
    assert run.outputs == {"a": [15.0, 0.0, "it has not advanced since it was given more"]}


def test_inline_a_plain_handler_asks_and_is_answered() -> None:
    def ask(task: HandlerTask) -> float:
        task.heartbeat("half")
        return task.extend("60s").wait().granted_s

    assert inline(ask).outputs == {"a": 15.0}


def test_inline_one_that_heeds_has_ten_seconds_and_the_next_attempt_has_what_it_saved() -> None:
    async def save(task: HandlerTask) -> Any:
        if task.checkpoint is not None:
            return task.checkpoint
        task.on_evict(lambda: task.heartbeat("saved"))
        await asyncio.sleep(3600)
        return None

    dag = Dag("late", retry={"max": 1, "backoff": 0}, timeouts={"attempt": "30s"})
    dag.task("a", "h")
    run = run_dag_inline(dag, {"h": save})

    assert (run.outputs, run.took_s) == ({"a": "saved"}, 40.0)


def test_inline_one_that_is_only_notified_goes_on() -> None:
    seen: list[bool] = []

    async def work(task: HandlerTask) -> str:
        await asyncio.sleep(200)
        seen.append(task.is_evicted)
        return "done"

    assert inline(work, on_timeout="notify").outputs == {"a": "done"} and seen == [True]

    async def hang(task: HandlerTask) -> None:
        await asyncio.sleep(3600)

    run = inline(hang, on_timeout="notify")
    assert (run.tasks["a"].cause, run.took_s) == ("timeout", 300.0)


def test_inline_a_job_that_is_paused_for_a_task_is_given_back_as_it_is() -> None:
    async def hang(task: HandlerTask) -> None:
        await asyncio.sleep(3600 if task.id == "a" else 50)

    dag = Dag("late", timeouts={"attempt": "30s"}, on_timeout="pause")
    first = dag.task("a", "h")
    dag.task("b", "h", timeouts={"attempt": "60s"})
    dag.task("c", "h", after=first)
    run = run_dag_inline(dag, {"h": hang})

    assert (run.state, run.took_s) == ("paused", 50.0)
    assert run.states == {"a": "pending", "b": "completed", "c": "pending"}
    assert "resume the job to run the task again" in run.reason and run.tasks["a"].attempts == 1
