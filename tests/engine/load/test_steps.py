"""One iteration: the order of its steps, what they are given, and how each of them is counted."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from talka.clock import monotonic_ns
from talka.engine.calls import ExchangeFailed, current_call
from talka.engine.clients.custom import CustomClient
from talka.engine.load.prepare import prepare
from talka.engine.load.recorder import Recorder
from talka.engine.load.steps import Iterations, VirtualUser
from talka.report.building import together
from talka.stats.tally import CheckTally, StepTally
from talka.units import MICROSECOND, SECOND
from talka.work.arguments import URL
from talka.work.dsl import NoResponse, Provide, Skip, Workflow, action, check, metric, state, step
from talka.work.inspection import inspect_workflows
from talka.work.responses import BrokenBody, CustomResponse, HTTPResponse, NotJSON

Answer = CustomResponse[Any]


class Run:
    """A workflow ready to run, without an executor."""

    def __init__(self, workflow: type[Workflow]) -> None:
        [spec] = inspect_workflows([workflow])
        self.spec = spec
        self.recorder = Recorder(spec)
        self.recorder.start(monotonic_ns(), monotonic_ns())
        self.iterations = Iterations(spec, prepare(spec), self.recorder)
        self.tally = self.recorder.tally
        self.user = self.new_user(0)

    def new_user(self, position: int) -> VirtualUser:
        workflow = self.spec.workflow()
        workflow.client = cast(Any, SimpleNamespace(http=None, custom=CustomClient()))
        steps = {node.name: getattr(workflow, node.name) for node in self.spec.nodes if node.kind == "step"}
        return VirtualUser(position, workflow, steps, lambda: None)

    async def once(self) -> bool:
        return await self.iterations.run(self.user, monotonic_ns())

    def step(self, name: str) -> StepTally:
        self.recorder.settle()
        return (self.tally.steps | self.tally.actions)[name]


async def immediate(value: Any = None) -> Any:
    return value


# Layers.


async def test_steps_of_one_layer_run_at_the_same_time() -> None:
    first_is_in, second_is_in = asyncio.Event(), asyncio.Event()

    class Both(Workflow):
        @step()
        async def first(self) -> Answer:
            first_is_in.set()
            await second_is_in.wait()
            return CustomResponse(1)

        @step()
        async def second(self) -> Answer:
            second_is_in.set()
            await first_is_in.wait()
            return CustomResponse(2)

    run = Run(Both)
    async with asyncio.timeout(60):
        assert await run.once()
    assert run.step("first").ok == run.step("second").ok == 1


async def test_a_layer_with_one_node_runs_in_the_users_own_task() -> None:
    tasks: list[Any] = []

    class Alone(Workflow):
        @step()
        async def only(self) -> Answer:
            tasks.append(asyncio.current_task())
            return CustomResponse(1)

    await Run(Alone).once()
    assert tasks == [asyncio.current_task()]


async def test_a_layer_starts_only_when_the_one_before_has_ended() -> None:
    order: list[str] = []
    may_end = asyncio.Event()

    class Chain(Workflow):
        @step()
        async def slow(self) -> Answer:
            await may_end.wait()
            order.append("slow")
            return CustomResponse(1)

        @step()
        async def quick(self) -> Answer:
            order.append("quick")
            may_end.set()
            return CustomResponse(1)

        @step("quick")
        async def last(self) -> Answer:
            order.append("last")
            return CustomResponse(1)

    await Run(Chain).once()
    assert order == ["quick", "slow", "last"]


async def test_results_are_handed_on_by_name() -> None:
    class Shop(Workflow):
        @step()
        async def login(self) -> Answer:
            return CustomResponse("token")

        @action("login")
        def cart(self, login: Answer) -> str:
            return f"cart of {login.value}"

        @step("cart")
        async def buy(self, *, cart: str, login: Answer) -> Answer:
            return CustomResponse((cart, login.value))

    run = Run(Shop)
    await run.once()
    assert run.user.workflow.buy.response.value == ("cart of token", "token")  # type: ignore[attr-defined]


async def test_prepared_arguments_are_given_beside_results() -> None:
    class Prepared(Workflow):
        @step()
        async def first(self) -> Answer:
            return CustomResponse(1)

        @step("first")
        async def second(self, first: Answer, url: URL = "http://localhost:1/x") -> Answer:
            return CustomResponse((first.value, url))

    run = Run(Prepared)
    await run.once()
    assert run.user.workflow.second.response.value == (1, "http://localhost:1/x")  # type: ignore[attr-defined]


async def test_every_iteration_begins_without_results() -> None:
    failing = False

    class Once(Workflow):
        @step()
        async def first(self) -> Answer:
            if failing:
                raise ValueError("not again")
            return CustomResponse(1)

        @step("first")
        async def second(self, first: Answer) -> Answer:
            return CustomResponse(first.value)

    run = Run(Once)
    await run.once()
    failing = True
    await run.once()
    assert run.step("first").failed == 1
    assert run.step("second").count == 1, "the first iteration's result must not reach the second"


async def test_only_dependents_of_a_failed_step_are_skipped_and_only_in_that_iteration() -> None:
    failures = [True, False]

    class Tree(Workflow):
        @step()
        async def root(self) -> Answer:
            if failures.pop(0):
                raise ValueError("broken")
            return CustomResponse(1)

        @step("root")
        async def child(self) -> Answer:
            return CustomResponse(1)

        @check("child")
        def child_is_fine(self, child: Answer) -> bool:
            return True

        @step("child")
        async def grandchild(self) -> Answer:
            return CustomResponse(1)

        @step()
        async def other(self) -> Answer:
            return CustomResponse(1)

        @step("other")
        async def after_other(self) -> Answer:
            return CustomResponse(1)

    run = Run(Tree)
    assert await run.once()
    assert [run.step(name).count for name in ("root", "child", "grandchild", "other", "after_other")] == [1, 0, 0, 1, 1]
    assert run.tally.checks["child_is_fine"].passed == 0
    assert await run.once()
    assert [run.step(name).count for name in ("root", "child", "grandchild", "other", "after_other")] == [2, 1, 1, 2, 2]
    assert run.tally.checks["child_is_fine"].passed == 1


async def test_an_iteration_that_began_goes_on_to_its_end_when_the_shard_stops() -> None:
    class Two(Workflow):
        @step()
        async def first(self) -> Answer:
            run.iterations.is_stopping = True
            return CustomResponse(1)

        @step("first")
        async def second(self) -> Answer:
            return CustomResponse(1)

    run = Run(Two)
    assert await run.once()
    assert run.step("first").ok == run.step("second").ok == 1


# How a step is counted.


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (AssertionError("no basket"), "check", "AssertionError: no basket ("),
        (BrokenBody("the compressed body is broken"), "protocol", "the compressed body is broken"),
        (NotJSON("the body is not JSON"), "exception", "the body is not JSON ("),
        (ExchangeFailed("refused", "nobody listens"), "refused", "nobody listens"),
        (KeyError("id"), "exception", "KeyError: 'id' ("),
        (TimeoutError(), "exception", "TimeoutError ("),
    ],
)
async def test_an_error_is_counted_under_its_kind(error: Exception, kind: str, text: str) -> None:
    class Broken(Workflow):
        @step()
        async def go(self) -> Answer:
            raise error

    run = Run(Broken)
    assert await run.once()
    tally = run.step("go")
    assert (tally.ok, tally.failed, tally.errors) == (0, 1, {kind: 1})
    assert tally.samples[0].text.startswith(text)
    assert tally.response_time.count == 0


async def test_an_exception_is_shown_with_the_line_that_raised_it() -> None:
    class Broken(Workflow):
        @step()
        async def go(self) -> Answer:
            raise KeyError("missing")

    run = Run(Broken)
    await run.once()
    line = Broken.go.line + 2
    assert run.step("go").samples[0].text == f"KeyError: 'missing' ({__file__}:{line})"


async def test_an_exception_that_cannot_be_shown_is_counted_all_the_same() -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    class Broken(Workflow):
        @step()
        async def go(self) -> Answer:
            raise Unspeakable

    run = Run(Broken)
    await run.once()
    assert run.step("go").samples[0].text.startswith("Unspeakable (")


async def test_a_step_that_calls_nothing_and_returns_nothing_is_skipped_and_so_is_what_takes_its_value() -> None:
    class Nothing(Workflow):
        @step()
        async def go(self) -> Answer:
            return None  # type: ignore[return-value]

        @step("go")
        async def takes_it(self, go: Answer) -> Answer:
            return go

        @step("takes_it")
        async def comes_after(self) -> Answer:
            return CustomResponse(1)

        @check()
        def judges_it(self, go: Answer) -> bool:
            return False

    run = Run(Nothing)
    assert await run.once()
    assert [(run.step(name).count, run.step(name).skipped) for name in ("go", "takes_it", "comes_after")] == [
        (0, 1),
        (0, 1),
        (1, 0),
    ]
    assert run.step("go").response_time.count == 0
    assert run.tally.checks["judges_it"].failed == 0


async def test_a_step_that_raises_skip_is_skipped_whatever_it_did_before() -> None:
    class Maybe(Workflow):
        @step()
        async def go(self) -> Answer:
            await self.client.custom.call(immediate())
            raise Skip

        @action("go")
        def act(self) -> None:
            raise Skip

        @check("go")
        def look(self) -> None:
            raise Skip

    run = Run(Maybe)
    await run.once()
    assert (run.step("go").count, run.step("go").skipped) == (0, 1)
    assert (run.step("act").count, run.step("act").skipped) == (0, 1)
    assert run.tally.checks["look"] == CheckTally()
    assert run.tally.calls["go"]["go"].ok == 1, "the call was made"


async def test_what_waits_for_a_failed_step_is_counted_as_skipped_all_the_way() -> None:
    class Chain(Workflow):
        @step()
        async def one(self) -> Answer:
            raise ValueError("broken")

        @step("one")
        async def two(self) -> Answer:
            return CustomResponse(1)

        @step("two")
        async def three(self) -> Answer:
            return CustomResponse(1)

    run = Run(Chain)
    assert await run.once()
    assert [(run.step(name).count, run.step(name).skipped) for name in ("one", "two", "three")] == [
        (1, 0),
        (0, 1),
        (0, 1),
    ]


async def test_a_step_that_is_not_measured_may_return_anything() -> None:
    class Plain(Workflow):
        @step()
        async def quiet(self) -> None:
            return None

    run = Run(Plain)
    await run.once()
    assert run.tally.steps == {}
    assert run.step("quiet").ok == 1
    assert run.step("quiet").response_time.count == 0


async def test_an_unaccepted_response_has_failed_and_is_still_timed() -> None:
    class Missing(Workflow):
        @step()
        async def go(self) -> HTTPResponse:
            response = HTTPResponse("GET", "http://localhost:1/x", 404, [], b"")
            response.intended_ns, response.sent_ns, response.done_ns = 1_000_000, 3_000_000, 8_000_000
            current_call.get().answered(None, response)
            return response

        @step("go")
        async def after(self) -> Answer:
            return CustomResponse(1)

    run = Run(Missing)
    await run.once()
    for tally in (run.step("go"), run.tally.calls["go"]["go"]):
        assert (tally.ok, tally.failed, tally.errors) == (0, 1, {"status": 1})
        assert tally.samples[0].text == "GET http://localhost:1/x answered 404"
        assert tally.samples[0].status == 404
        assert tally.response_time.count == 1
    row = run.tally.calls["go"]["go"]
    assert (row.response_time.max, row.service_time.max, row.outcomes) == (7_000, 5_000, {"404": 1})
    assert run.step("after").ok == 1, "there is a response, so those after it run"


async def test_a_timeout_counts_with_the_time_it_was_waited_for() -> None:
    class Slow(Workflow):
        @step()
        async def go(self) -> Answer:
            return await self.client.custom.call(never_answered())

    async def never_answered() -> None:
        raise ExchangeFailed("timeout", "no answer")

    run = Run(Slow)
    intended_ns = monotonic_ns() - 2 * SECOND
    await run.iterations.run(run.user, intended_ns)
    for tally in (run.step("go"), run.tally.calls["go"]["go"]):
        assert tally.errors == {"timeout": 1}
        assert 2_000_000 <= tally.response_time.min <= (monotonic_ns() - intended_ns) // MICROSECOND
        assert tally.service_time.count == 0


async def test_a_timeout_of_the_users_own_is_no_measurement() -> None:
    class Own(Workflow):
        @step()
        async def go(self) -> Answer:
            raise TimeoutError

    run = Run(Own)
    await run.once()
    assert run.step("go").response_time.count == 0


@pytest.mark.parametrize("alone", [True, False])
async def test_cancelled_steps_count_as_interrupted(alone: bool) -> None:
    started: asyncio.Queue[str] = asyncio.Queue()

    class Waits(Workflow):
        @step()
        async def go(self) -> Answer:
            await started.put("go")
            await asyncio.Event().wait()
            return CustomResponse(1)

    class WaitsTwice(Waits):
        @step()
        async def also(self) -> Answer:
            await started.put("also")
            await asyncio.Event().wait()
            return CustomResponse(1)

    run = Run(Waits if alone else WaitsTwice)
    task = asyncio.create_task(run.once())
    for _ in run.tally.steps:
        await started.get()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for tally in run.tally.steps.values():
        assert (tally.ok, tally.failed, tally.interrupted) == (0, 0, 1)


async def test_awaiting_something_cancelled_is_a_failure_and_the_user_goes_on() -> None:
    class Awaits(Workflow):
        @step()
        async def go(self) -> Answer:
            own = asyncio.get_running_loop().create_future()
            own.cancel()
            await own
            return CustomResponse(1)

        @step()
        async def other(self) -> Answer:
            return CustomResponse(1)

        @check("other")
        async def look(self) -> None:
            own = asyncio.get_running_loop().create_future()
            own.cancel()
            await own

    run = Run(Awaits)
    assert await run.once()
    assert (run.step("go").interrupted, run.step("go").errors) == (0, {"exception": 1})
    assert run.step("other").ok == 1
    assert run.tally.checks["look"].failed == 1


async def test_a_check_that_is_cancelled_ends_the_iteration_and_counts_nothing() -> None:
    started = asyncio.Event()

    class Waits(Workflow):
        @step()
        async def go(self) -> Answer:
            return CustomResponse(1)

        @check("go")
        async def look(self) -> None:
            started.set()
            await asyncio.Event().wait()

    run = Run(Waits)
    task = asyncio.create_task(run.once())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (run.tally.checks["look"].passed, run.tally.checks["look"].failed) == (0, 0)


async def test_an_action_that_raises_has_failed_and_is_not_measured() -> None:
    class Acts(Workflow):
        @action()
        def prepare_it(self) -> None:
            raise ValueError("no")

        @step("prepare_it")
        async def go(self) -> Answer:
            return CustomResponse(1)

    run = Run(Acts)
    await run.once()
    assert run.tally.actions["prepare_it"].errors == {"exception": 1}
    assert run.step("go").count == 0


# Checks and metrics.


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("verdict", "failure"),
    [
        (None, None),
        (True, None),
        (0, None),
        (False, "look returned False"),
        (ValueError("odd"), "ValueError: odd"),
    ],
)
async def test_a_check_fails_on_false_and_on_an_exception_it_returns(
    verdict: Any, failure: str | None, is_async: bool
) -> None:
    class Plain(Workflow):
        @step()
        async def go(self) -> Answer:
            return CustomResponse(verdict)

        @check()
        def look(self, go: Answer) -> Any:
            return go.value

    class Awaiting(Workflow):
        @step()
        async def go(self) -> Answer:
            return CustomResponse(verdict)

        @check()
        async def look(self, go: Answer) -> Any:
            return await immediate(go.value)

    run = Run(Awaiting if is_async else Plain)
    await run.once()
    tally = run.tally.checks["look"]
    if failure is None:
        assert (tally.passed, tally.failed) == (1, 0)
    else:
        assert (tally.passed, tally.failed) == (0, 1)
        assert (tally.samples[0].kind, tally.samples[0].text) == ("check", failure)
    assert run.step("go").ok == 1, "a check judges; the step itself went well"


async def test_a_check_that_raises_fails_with_the_line() -> None:
    class Judged(Workflow):
        @step()
        async def go(self) -> Answer:
            return CustomResponse(1)

        @check("go")
        def look(self) -> None:
            raise AssertionError("too dear")

    run = Run(Judged)
    await run.once()
    assert run.tally.checks["look"].samples[0].text == f"AssertionError: too dear ({__file__}:{Judged.look.line + 2})"


@pytest.mark.parametrize(
    ("returned", "values", "failed"),
    [(2.5, 1, 0), (True, 1, 0), (None, 0, 0), (float("nan"), 0, 1), (float("inf"), 0, 1), ("many", 0, 1)],
)
async def test_a_metric_counts_numbers_and_nothing_else(returned: Any, values: int, failed: int) -> None:
    class Measured(Workflow):
        @step()
        async def go(self) -> Answer:
            return CustomResponse(returned)

        @metric("sample")
        def size(self, go: Answer) -> Any:
            return go.value

    run = Run(Measured)
    await run.once()
    assert run.tally.metrics["size"].values == values
    assert run.tally.actions["size"].failed == failed
    if values:
        assert run.tally.metrics["size"].total == float(returned)


async def test_a_metric_that_raises_is_counted_as_failed() -> None:
    class Measured(Workflow):
        @step()
        async def go(self) -> Answer:
            return CustomResponse(1)

        @metric("count", "go")
        async def size(self) -> float:
            raise LookupError("no size")

    run = Run(Measured)
    await run.once()
    assert run.tally.metrics["size"].values == 0
    assert run.tally.actions["size"].errors == {"exception": 1}


# Times.


async def test_the_first_call_takes_the_intended_start_and_response_time_is_never_below_service_time() -> None:
    class Late(Workflow):
        @step()
        async def go(self) -> Answer:
            return await self.client.custom.call(immediate())

        @step()
        async def twice(self) -> Answer:
            await self.client.custom.call(immediate())
            return await self.client.custom.call(immediate())

        @step("go")
        async def later(self) -> Answer:
            return await self.client.custom.call(immediate())

    run = Run(Late)
    intended_ns = monotonic_ns() - 60 * SECOND
    await run.iterations.run(run.user, intended_ns)
    assert run.user.workflow.go.response.intended_ns == intended_ns  # type: ignore[attr-defined]
    run.recorder.settle()
    calls = {name: together(run.tally.calls[name].values()) for name in ("go", "twice", "later")}
    assert run.step("go").response_time.min >= 60_000_000 > calls["go"].service_time.max
    assert run.step("twice").response_time.min >= 60_000_000, "a step runs from its intended start to its end"
    # The second call of a step, and steps of later layers, are due when they are made.
    assert calls["twice"].response_time.min < 60_000_000 <= calls["twice"].response_time.max
    assert calls["later"].service_time.max <= calls["later"].response_time.max < 60_000_000
    assert run.step("later").response_time.max < 60_000_000


async def test_each_step_of_a_layer_has_its_own_intended_start_and_expectations() -> None:
    seen: dict[str, tuple[int, bool]] = {}
    both = asyncio.Barrier(2)

    class Two(Workflow):
        @step(expect=404)
        async def one(self) -> Answer:
            await both.wait()
            seen["one"] = (current_call.get().intended_ns, 404 in current_call.get().expect)
            return await self.client.custom.call(immediate())

        @step()
        async def other(self) -> Answer:
            await both.wait()
            seen["other"] = (current_call.get().intended_ns, 404 in current_call.get().expect)
            return await self.client.custom.call(immediate())

    run = Run(Two)
    await run.iterations.run(run.user, 42)
    assert seen == {"one": (42, True), "other": (42, False)}


# What is remembered.


async def test_the_last_response_belongs_to_its_user_alone() -> None:
    class Login(Workflow):
        @step()
        async def login(self) -> Answer:
            return CustomResponse(id(self))

    run = Run(Login)
    other = run.new_user(1)
    await run.once()
    assert run.user.workflow.login.response.value == id(run.user.workflow)  # type: ignore[attr-defined]
    with pytest.raises(NoResponse, match="step login has no response yet"):
        _ = other.workflow.login.response  # type: ignore[attr-defined]


async def test_a_failed_step_keeps_the_response_it_had_before() -> None:
    answers: list[Answer | Exception] = [CustomResponse("first"), ValueError("second")]

    class Login(Workflow):
        @step()
        async def login(self) -> Answer:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    run = Run(Login)
    await run.once()
    await run.once()
    assert run.user.workflow.login.response.value == "first"  # type: ignore[attr-defined]


async def test_the_shards_last_responses_are_kept_only_when_something_is_provided() -> None:
    class Silent(Workflow):
        @step()
        async def login(self) -> Answer:
            return CustomResponse("token")

    class Providing(Silent):
        @state()
        def token(self) -> Provide[str]:
            return str(self.login.response.value)

    silent, providing = Run(Silent), Run(Providing)
    await silent.once()
    await providing.once()
    assert silent.iterations.last == {}
    assert providing.iterations.last["login"].value == "token"


def test_users_of_a_client_that_cannot_be_closed_close_all_the_same() -> None:
    class Empty(Workflow):
        @step()
        async def go(self) -> None:
            pass

    Run(Empty).user.close()
