"""Pipelines in one process: the same decisions as on a cluster, in no time."""

import asyncio
import socket
import threading
import time
from types import ModuleType
from typing import Any

import pytest

from talka.engine.handlers.inline import InlineRun, run_dag_inline
from talka.errors import Invalid
from talka.work.dags.dag import BadDag, DagSpec, Retry, TaskSpec
from talka.work.dags.pipeline import Dag
from talka.work.handlers import HandlerTask
from talka.work.lifecycle import JobState


async def hour(task: HandlerTask) -> str:
    await asyncio.sleep(3600)
    return "an hour"


async def fail(task: HandlerTask) -> None:
    raise KeyError("gone")


async def third(task: HandlerTask) -> Any:
    """Completes at the third attempt."""
    task.log(f"attempt {task.attempt}")
    seen = task.checkpoint
    task.heartbeat({"attempt": task.attempt})
    if task.attempt < 3:
        raise ValueError("not yet")
    return seen


def add(task: HandlerTask) -> int:
    return int(sum(task.inputs.values()) + task.config)


HANDLERS = {"hour": hour, "fail": fail, "third": third, "add": add}


def test_outputs_are_handed_on_and_plain_functions_run_too() -> None:
    dag = Dag("sum")
    one, two = dag.task("one", "add", 1), dag.task("two", "add", 2)
    dag.task("three", "add", 10, after=[one, two])

    run = run_dag_inline(dag, HANDLERS)

    assert (run.state, run.reason, run.took_s) == (JobState.COMPLETED, "", 0.0)
    assert run.outputs == {"one": 1, "two": 2, "three": 13}
    assert run.states == {"one": "completed", "two": "completed", "three": "completed"}
    assert run.tasks["three"].attempts == 1


def test_hours_take_no_time() -> None:
    dag = Dag("long", timeouts={"attempt": "2h"})
    dag.task("b", "hour", after=dag.task("a", "hour", delay="30m"))

    began_s = time.monotonic()
    run = run_dag_inline(dag, HANDLERS)

    assert run.took_s == 9000.0
    assert time.monotonic() - began_s < 60


def test_a_task_is_tried_again_and_sees_what_it_told_before() -> None:
    dag = Dag("again", retry={"max": 2, "backoff": "10m", "cap": "10m"})
    dag.task("a", "third")

    run = run_dag_inline(dag, HANDLERS)

    task = run.tasks["a"]
    assert (task.state, task.attempts, task.output) == ("completed", 3, {"attempt": 2})
    assert task.log == ("attempt 1", "attempt 2", "attempt 3")
    assert task.progress == {"attempt": 3}
    assert (task.error, task.cause) == ("", "")
    assert 0 < run.took_s <= 1200


def test_the_same_seed_is_the_same_run() -> None:
    dag = Dag("again", retry={"max": 5, "backoff": "1h"})
    for number in range(5):
        dag.task(f"a{number}", "third")

    runs = [run_dag_inline(dag, HANDLERS, seed=seed) for seed in (1, 1, 2)]

    assert runs[0] == runs[1]
    assert runs[0].took_s != runs[2].took_s


@pytest.mark.parametrize(
    ("policy", "state", "states"),
    [
        ("fail_fast", "failed", {"bad": "dead", "after": "cancelled", "beside": "cancelled"}),
        ("skip_dependents", "partial", {"bad": "dead", "after": "skipped", "beside": "completed"}),
        ("continue", "partial", {"bad": "dead", "after": "completed", "beside": "completed"}),
    ],
)
def test_the_failure_policy_is_that_of_a_manager(policy: Any, state: str, states: dict[str, str]) -> None:
    dag = Dag("policy", on_failure=policy, retry={"max": 0}, timeouts={"attempt": "2h"})
    dag.task("after", "add", 1, after=dag.task("bad", "fail"))
    dag.task("beside", "hour")

    run = run_dag_inline(dag, HANDLERS)

    assert (run.state, run.states) == (state, states)
    assert "KeyError: 'gone'" in run.reason
    assert run.tasks["bad"].cause == "KeyError"


def test_an_exception_named_in_never_is_not_tried_again() -> None:
    dag = Dag("never", retry=Retry(max=5, never=("LookupError",)))
    dag.task("a", "fail")

    assert run_dag_inline(dag, HANDLERS).tasks["a"].attempts == 1


def test_an_attempt_that_takes_too_long_is_stopped() -> None:
    dag = Dag("slow", retry={"max": 1, "backoff": "0s"}, timeouts={"attempt": "5s"})
    dag.task("a", "hour")

    run = run_dag_inline(dag, HANDLERS)

    assert (run.tasks["a"].attempts, run.tasks["a"].cause, run.took_s) == (2, "timeout", 10.0)


def test_a_job_that_takes_too_long_is_stopped() -> None:
    dag = Dag("slow", timeout="1m", timeouts={"attempt": "2h"})
    dag.task("b", "add", 1, after=dag.task("a", "hour"))

    run = run_dag_inline(dag, HANDLERS)

    assert (run.state, run.states, run.took_s) == ("timeout", {"a": "cancelled", "b": "cancelled"}, 60.0)


def test_a_task_that_waits_too_long_for_its_turn_is_given_up() -> None:
    dag = Dag("queue", on_failure="continue", timeouts={"attempt": "2h"})
    dag.task("a", "hour", priority=9)
    dag.task("b", "hour", timeouts={"queue": "10s"})
    dag.task("c", "hour", timeouts={"total": "90m", "attempt": "2h"})

    run = run_dag_inline(dag, HANDLERS, at_once=1)

    assert run.states == {"a": "completed", "b": "timeout", "c": "timeout"}
    assert run.took_s == 5400.0


def test_a_key_that_was_completed_is_not_run_again() -> None:
    dag = Dag("key")
    dag.task("b", "third", key="k", after=dag.task("a", "add", 5, key="k"))

    run = run_dag_inline(dag, HANDLERS)

    assert run.outputs == {"a": 5, "b": 5}
    assert run.tasks["b"].attempts == 0


def test_higher_priority_comes_first() -> None:
    order: list[str] = []

    def note(task: HandlerTask) -> None:
        order.append(task.id)

    dag = Dag("priority")
    for id, priority in (("low", 1), ("high", 10), ("middle", 5)):
        dag.task(id, "note", priority=priority)
    run_dag_inline(dag, {"note": note}, at_once=1)

    assert order == ["high", "middle", "low"]


def test_time_passes_as_it_does_while_a_thread_or_a_socket_is_waited_for() -> None:
    theirs_to_say = b"heard"

    def work() -> str:
        time.sleep(0.05)  # what is waited for is real time
        return "came back"

    async def thread(task: HandlerTask) -> str:
        return await asyncio.to_thread(work)

    async def read(task: HandlerTask) -> str:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            loop = asyncio.get_running_loop()
            hearing = asyncio.ensure_future(loop.sock_recv(ours, 10))
            await loop.run_in_executor(None, work)
            theirs.send(theirs_to_say)
            return (await hearing).decode()

    dag = Dag("outside", retry={"max": 0}, timeouts={"attempt": "30s"})
    dag.task("a", "thread")
    dag.task("b", "read")

    run = run_dag_inline(dag, {"thread": thread, "read": read})

    assert run.outputs == {"a": "came back", "b": "heard"}
    assert 0.01 < run.took_s < 30


def test_commands_are_run() -> None:
    module = ModuleType("handlers")
    exec('from talka.work.handlers import command\ncommand("cat", ["cat"])\ncommand("no", ["false"])', vars(module))
    dag = Dag("commands", on_failure="continue", retry={"max": 0}, timeouts={"attempt": "30s"})
    dag.task("a", "cat", {"x": 1})
    dag.task("b", "no")

    run = run_dag_inline(dag, module)

    assert run.outputs == {"a": {"config": {"x": 1}, "inputs": {}, "checkpoint": None}}
    assert run.tasks["b"].cause == "exit"


def test_the_last_words_of_the_last_attempt_are_told() -> None:
    module = ModuleType("handlers")
    script = "echo half; echo why >&2; exit 3"
    exec(f'from talka.work.handlers import command\ncommand("no", ["sh", "-c", {script!r}])', vars(module))

    def wrong(task: HandlerTask) -> None:
        raise IndexError

    dag = Dag("words", on_failure="continue", retry={"max": 0}, timeouts={"attempt": "30s"})
    dag.task("command", "no")
    tasks = dict(run_dag_inline(dag, module).tasks)
    dag = Dag("words", retry={"max": 0})
    dag.task("function", "wrong")
    tasks |= run_dag_inline(dag, {"wrong": wrong}).tasks

    assert (tasks["command"].stdout, tasks["command"].stderr, tasks["command"].traceback) == ("half\n", "why\n", "")
    assert tasks["function"].traceback.endswith("IndexError\n") and "raise IndexError" in tasks["function"].traceback


def test_commands_are_given_up_by_the_table_of_endings_and_by_what_was_written() -> None:
    module = ModuleType("handlers")
    lines = ['command("seven", ["sh", "-c", "exit 7"])', 'command("fault", ["sh", "-c", "kill -SEGV $$"])']
    exec("\n".join(["from talka.work.handlers import command", *lines]), vars(module))
    dag = Dag("endings", on_failure="continue")
    dag.task("exit", "seven")
    dag.task("fault", "fault")
    dag.task("once-more", "seven", retry={"max": 1})
    dag.task("often", "fault", retry={"max": 4})

    tasks = run_dag_inline(dag, module).tasks

    assert {name: task.attempts for name, task in tasks.items()} == {
        "exit": 3,
        "fault": 2,
        "once-more": 2,
        "often": 5,
    }


def test_a_task_without_a_config_has_an_empty_one_whatever_runs_it() -> None:
    module = ModuleType("handlers")
    lines = ['command("cat", ["cat"])', 'handler("plain")(lambda task: task.config)']
    exec("\n".join(["from talka.work.handlers import command, handler", *lines]), vars(module))
    dag = Dag("nothing")
    dag.task("function", "plain")
    dag.task("command", "cat")
    dag.task("written", "plain", {"a": 1})

    run = run_dag_inline(dag, module)

    assert run.outputs == {
        "function": {},
        "command": {"config": {}, "inputs": {}, "checkpoint": None},
        "written": {"a": 1},
    }


def test_without_a_running_loop_handlers_run_in_the_thread_that_calls() -> None:
    seen: list[threading.Thread] = []
    dag = Dag("here")
    dag.task("a", "look")

    run_dag_inline(dag, {"look": lambda task: seen.append(threading.current_thread())})

    assert seen == [threading.current_thread()]


async def test_it_can_be_called_in_an_async_test() -> None:
    dag = Dag("inside")
    dag.task("a", "hour", timeouts={"attempt": "2h"})

    assert run_dag_inline(dag, HANDLERS).states == {"a": "completed"}


async def test_what_goes_wrong_beside_a_running_loop_is_raised_there() -> None:
    spec = DagSpec(name="n", tasks=(TaskSpec(id="a", handler="add", depends_on=("b",)),))

    with pytest.raises(BadDag, match="there is no such task"):
        run_dag_inline(spec, HANDLERS)


def test_a_spec_as_it_is_submitted_can_be_run() -> None:
    run = run_dag_inline(DagSpec(name="n", tasks=(TaskSpec(id="a", handler="h"),)), {"h": lambda task: task.config})

    assert isinstance(run, InlineRun) and run.outputs == {"a": {}}


def test_a_handler_that_is_missing_is_told_before_anything_runs() -> None:
    dag = Dag("missing")
    dag.task("a", "ad", 1)

    with pytest.raises(Invalid, match="task a: no handler is named ad: there are hour, fail, third, add"):
        run_dag_inline(dag, HANDLERS)
    with pytest.raises(Invalid, match="there are none"):
        run_dag_inline(dag, {})
    with pytest.raises(Invalid, match="at_once = 0 lets nothing run"):
        run_dag_inline(dag, {"ad": add}, at_once=0)


def test_configs_are_filled_with_values() -> None:
    dag = Dag("n", params={"n": {"type": "int"}, "more": {"type": "int", "default": 1}})
    dag.task("sum", "add", "${more}", after=[dag.task("one", "add", "${n}")])

    assert run_dag_inline(dag, HANDLERS, values={"n": "5"}).outputs == {"one": 5, "sum": 6}
    assert run_dag_inline(dag.spec(), HANDLERS, values={"n": 7}).outputs == {"one": 7, "sum": 8}
    with pytest.raises(Invalid, match="param n has no default and is not given"):
        run_dag_inline(dag, HANDLERS)


def test_a_scheduled_one_is_given_samples_of_what_its_schedule_gives() -> None:
    dag = Dag("n", schedule="@daily")
    dag.task("a", "config", ["${scheduled_day}", "${scheduled_for}"])

    run = run_dag_inline(dag, {"config": lambda task: task.config})

    assert run.outputs == {"a": ["2026-01-01", "2026-01-01T00:00:00+00:00"]}


def parts(task: HandlerTask) -> Any:
    return {"parts": task.config}


def double(task: HandlerTask) -> Any:
    assert task.index is not None and not task.inputs
    if task.item == "bad":
        raise ValueError("bad")
    return [task.index, task.item * 2]


def given(task: HandlerTask) -> Any:
    assert task.item is None and task.index is None
    return task.inputs


FANNED = {"parts": parts, "double": double, "given": given}


def fanned(*items: Any, for_each: str = "extract.parts", **settings: Any) -> InlineRun:
    dag = Dag("fan", **settings)
    dag.task("extract", "parts", list(items))
    clean = dag.task("clean", "double", for_each=for_each, max_parallel=2)
    dag.task("load", "given", after=clean)
    return run_dag_inline(dag, FANNED)


def test_a_task_is_fanned_out_over_a_list() -> None:
    run = fanned(1, "x")
    assert run.state is JobState.COMPLETED
    assert run.tasks["load"].output == {"clean": [[0, 2], [1, "xx"]]} and run.tasks["clean[1]"].output == [1, "xx"]
    assert run.outputs["clean"] == [[0, 2], [1, "xx"]]
    assert fanned().outputs["load"] == {"clean": []}


def test_an_element_that_is_given_up_is_null_where_the_job_continues() -> None:
    run = fanned("bad", 3, on_failure="continue", retry={"max": 0})
    assert run.outputs["load"] == {"clean": [None, [1, 6]]} and run.states["clean[0]"] == "dead"


def test_what_is_no_list_fails_its_task() -> None:
    run = fanned(1, for_each="extract.rows")
    assert run.reason == (
        'Task clean failed: extract has no "rows" (it has parts): let extract return a list there, or correct for_each'
    )


def test_a_list_of_a_task_that_was_given_up_is_none() -> None:
    dag = Dag("fan", on_failure="continue", retry={"max": 0})
    dag.task("extract", "fail")
    dag.task("clean", "fail", for_each="extract")
    run = run_dag_inline(dag, HANDLERS)
    assert run.tasks["clean"].error.startswith("it is fanned out over the output of task extract, which is dead")
    assert run.outputs == {}


def test_the_outputs_of_elements_are_a_list_to_be_fanned_out_over() -> None:
    dag = Dag("fan")
    dag.task("extract", "parts", [1, 2])
    dag.task("clean", "double", for_each="extract.parts")
    dag.task("twice", "second", for_each="clean")
    run = run_dag_inline(dag, {**FANNED, "second": lambda task: task.item[1]})
    assert run.outputs["twice"] == [2, 4]
