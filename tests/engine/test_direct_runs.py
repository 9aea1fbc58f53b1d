"""One shard, run three ways: what is counted must be the same."""

import asyncio
import contextlib
import contextvars
import gc
import random
import sys
import weakref
from collections import Counter
from typing import Any

import pytest

from talka.clock import monotonic_ns
from talka.engine.clients.deadlines import Timeout
from talka.engine.load.executor import Executor
from talka.engine.load.shard_runtime import ShardRuntime
from talka.stats.windows import WINDOW_NS
from talka.units import MILLISECOND, SECOND
from talka.work.arguments import URL
from talka.work.dsl import Provide, Workflow, action, check, metric, state, step
from talka.work.feeds import FeedUsedUp, between
from talka.work.inspection import inspect_workflows
from talka.work.responses import HTTPResponse
from talka.work.shapes import (
    ConstantRate,
    ConstantVUs,
    IterationsPerVU,
    LoadShape,
    RampingRate,
    RampingVUs,
    SharedIterations,
)
from tests.engine.three_ways import WAYS, Server, every_way, getting, needs_native, run, same_every_way, server

__all__ = ["server"]  # a fixture

# Closed plans.


@pytest.mark.parametrize(
    ("load", "iterations"),
    [
        (SharedIterations(7, 100), 100),
        (SharedIterations(3, 2), 2),
        (IterationsPerVU(6, 9), 54),
        (IterationsPerVU(1, 1), 1),
    ],
    ids=lambda value: value.describe() if isinstance(value, LoadShape) else "",
)
async def test_plans_of_iterations_run_each_of_them_once(server: str, load: LoadShape, iterations: int) -> None:
    ran = await same_every_way(getting(f"{server}/"), load=load)
    assert ran.tally.iterations == ran.tally.started == ran.step.ok == iterations
    assert Server.requests == len(WAYS) * iterations


async def test_a_shard_runs_its_own_share_and_what_an_earlier_attempt_left(server: str) -> None:
    ran = await same_every_way(getting(f"{server}/"), load=SharedIterations(4, 50), shard=(1, 2), iterations_done=5)
    assert ran.tally.iterations == 20
    ran = await same_every_way(getting(f"{server}/"), load=IterationsPerVU(4, 10), iterations_done=15)
    assert ran.tally.iterations == 25


@every_way
async def test_users_run_until_the_time_is_over_and_none_is_cut(server: str, way: str) -> None:
    ran = await run(getting(f"{server}/later"), way, load=ConstantVUs(4, "2.5s"))
    assert ran.tally.iterations == ran.tally.started == ran.step.ok == ran.tally.exchanges.ok == Server.requests > 20
    assert ran.tally.exchanges.connections == 4
    assert sum(part.started for part in ran.windows) == ran.tally.started
    assert sum(part.requests for part in ran.windows) == ran.tally.started
    assert sum(part.response_time.count for part in ran.windows) == ran.tally.started
    assert max(part.vus for part in ran.windows) == 4
    assert len(ran.windows) >= 3
    assert ran.stage.recorder.vus == 0


@every_way
async def test_users_come_and_go_as_the_plan_wants(server: str, way: str) -> None:
    seen: set[int] = set()

    class Users(Workflow):
        @step()
        async def get(self, url: URL = f"{server}/later") -> HTTPResponse:
            seen.add(id(self))
            return await self.client.http.get(url)

    ran = await run(Users, way, load=RampingVUs([(6, "0.15s"), (6, "2s"), (1, "0.15s")], start=1))
    assert len(seen) == 6
    assert ran.tally.iterations == ran.tally.started == ran.step.ok


@every_way
async def test_a_pause_keeps_users_back_and_ends_with_the_plan(server: str, way: str) -> None:
    class Pausing(Workflow):
        think = "600ms"

        @step()
        async def get(self, url: URL = f"{server}/") -> HTTPResponse:
            return await self.client.http.get(url)

    ran = await run(Pausing, way, load=ConstantVUs(3, "2.1s"))
    assert 3 * 2 <= ran.tally.iterations <= 3 * 4
    started_ns = monotonic_ns()

    class Sleepy(Pausing):
        think = between("50s", "60s")

    ran = await run(Sleepy, way, load=ConstantVUs(3, "2s"))
    assert ran.tally.iterations == 3
    assert monotonic_ns() - started_ns < 20 * SECOND


@every_way
async def test_every_user_pauses_as_long_as_was_drawn_for_it(server: str, way: str) -> None:
    source = random.Random(7)
    due_ns: dict[object, int] = {}
    early: list[object] = []
    last: list[object] = []

    class Users(Workflow):
        @action()
        def begin(self) -> None:
            if monotonic_ns() < due_ns.get(self, 0):
                early.append(self)

        @step("begin")
        async def get(self, url: URL = f"{server}/") -> HTTPResponse:
            return await self.client.http.get(url)

        @action("get")
        def end(self) -> None:
            last.append(self)

    def think() -> int:
        length_ns = source.randrange(30 * MILLISECOND)
        due_ns[last[-1]] = monotonic_ns() + length_ns
        return length_ns

    ran = await run(Users, way, load=IterationsPerVU(40, 20), think=think)
    assert early == []
    assert len(due_ns) == 40
    assert ran.tally.iterations == 40 * 20


@every_way
async def test_users_that_wait_for_nothing_leave_the_loop_its_turn(server: str, way: str) -> None:
    class Busy(Workflow):
        @step()
        async def get(self) -> HTTPResponse:
            return await self.client.http.get("no address")

    turns = 0

    async def count_turns(executor: Executor) -> None:
        nonlocal turns
        while executor.started_at_ns == 0 or not executor._iterations.is_stopping:
            turns += 1
            await asyncio.sleep(0)

    ran = await run(Busy, way, load=IterationsPerVU(1, 200), watch=count_turns)
    assert ran.step.failed == ran.tally.iterations > 10
    assert turns > 10
    assert ran.tally.exchanges.not_sent == ran.step.failed


# Open plans.


@every_way
@pytest.mark.parametrize("policy", ["queue", "drop"])
async def test_every_arrival_starts_when_it_is_due(server: str, way: str, policy: Any) -> None:
    load = ConstantRate("400/s", "0.3s", max_vus=50, policy=policy)
    ran = await run(getting(f"{server}/"), way, load=load)
    assert ran.tally.started + ran.tally.dropped == 120
    assert ran.tally.iterations == ran.tally.started == ran.tally.generator.start_lag.count == ran.step.ok
    assert ran.step.response_time.total >= ran.call.response_time.total >= ran.call.service_time.total
    assert ran.stage.recorder.vus == 0


@every_way
async def test_window_in_which_users_came_shows_them_though_all_left_before_its_end(server: str, way: str) -> None:
    async def roll(executor: Executor) -> None:
        ends_ns = monotonic_ns() + SECOND
        while monotonic_ns() < ends_ns:
            await asyncio.sleep(0.005)
            executor._recorder.roll(monotonic_ns())

    # Most arrivals are in the middle of a window.
    ran = await run(getting(f"{server}/"), way, load=ConstantRate("15/s", "1s", max_vus=50), watch=roll)
    assert ran.tally.started == 15
    assert [part.index for part in ran.windows if part.started and not part.vus] == []


async def test_a_ramp_of_arrivals_is_the_same_every_way(server: str) -> None:
    ran = await same_every_way(getting(f"{server}/"), load=RampingRate([("300/s", "0.2s"), ("50/s", "0.1s")]))
    assert ran.tally.iterations == 48


@every_way
async def test_arrivals_without_a_free_user_are_dropped_and_counted(server: str, way: str) -> None:
    load = ConstantRate("200/s", "2s", max_vus=1, policy="drop")
    ran = await run(getting(f"{server}/later"), way, load=load)
    assert ran.tally.started + ran.tally.dropped == 400
    assert 2 <= ran.tally.started <= 101
    assert max(part.vus for part in ran.windows) == 1


@every_way
async def test_arrivals_that_wait_for_a_user_count_their_waiting_as_response_time_and_not_as_lag(
    server: str, way: str
) -> None:
    ran = await run(getting(f"{server}/later"), way, load=ConstantRate("100/s", "2s", max_vus=1))
    assert ran.tally.started + ran.tally.dropped == 200
    assert ran.tally.started >= 3
    assert ran.step.response_time.max > ran.call.service_time.max + 20_000
    assert ran.tally.generator.start_lag.percentile(50) < 20_000


@every_way
async def test_a_shard_that_starts_late_runs_the_arrivals_that_are_left(server: str, way: str) -> None:
    load = ConstantRate("100/s", "1.2s")
    ran = await run(getting(f"{server}/"), way, load=load, shard=(1, 2), already_ns=SECOND)
    assert ran.tally.started + ran.tally.dropped == 10


@every_way
async def test_arrivals_of_a_plan_that_was_over_before_it_could_begin_start_all_the_same(server: str, way: str) -> None:
    ran = await run(getting(f"{server}/"), way, load=ConstantRate("100/s", "0.1s"), late_ns=SECOND)
    assert (ran.tally.started, ran.tally.dropped, ran.step.ok) == (10, 0, 10)


# What steps do.


class Kinds(Workflow):
    """A bit of everything, one after the other."""

    base = ""
    load = IterationsPerVU(2, 5)

    def __init__(self) -> None:
        super().__init__()
        self.rounds = 0

    @action()
    def count(self) -> int:
        self.rounds += 1
        return self.rounds

    @step("count")
    async def first(self, count: int) -> HTTPResponse:
        return await self.client.http.get(f"{self.base}/{count}")

    @check()
    def first_is_fine(self, first: HTTPResponse) -> bool:
        return first.status == 200 and first.text == f"/{self.rounds}"

    @check()
    def third_fails(self, first: HTTPResponse) -> Any:
        if self.rounds == 3:
            raise ValueError("the third")
        return AssertionError("the fourth") if self.rounds == 4 else self.rounds != 5

    @metric("distribution")
    def length(self, first: HTTPResponse) -> float | None:
        return None if self.rounds == 1 else len(first.body) + self.rounds

    @metric("count")
    def broken(self, first: HTTPResponse) -> Any:
        return "no number" if self.rounds == 2 else 1

    @step("first", expect=404)
    async def second(self) -> HTTPResponse:
        if self.rounds == 4:
            raise AssertionError("the fourth time")
        await self.client.http.get(f"{self.base}/status/500")
        return await self.client.http.get(f"{self.base}/status/{[200, 404, 404, 0, 503][self.rounds - 1]}")

    @step("second")
    async def third(self, second: HTTPResponse, first: HTTPResponse) -> HTTPResponse:
        assert self.second.response is second
        return await self.client.http.post(f"{self.base}/", data=first.body + second.body)

    @action("third")
    async def last(self, third: HTTPResponse) -> None:
        await self.client.http.delete(f"{self.base}{third.text}", timeout=5)


async def test_steps_actions_checks_and_metrics_are_counted_the_same(server: str) -> None:
    ran = await same_every_way(type("Kinds", (Kinds,), {"base": server}))
    steps = ran.tally.steps
    assert (steps["first"].ok, steps["second"].ok, steps["third"].ok, steps["third"].skipped) == (10, 0, 8, 2)
    assert ran.tally.calls["second"]["second"].outcomes == {"500": 8, "200": 2, "404": 4, "503": 2}
    assert ran.tally.calls["second"]["second"].errors == {"status": 10}
    assert steps["second"].errors == {"check": 2, "status": 8}
    assert (ran.tally.calls["last"]["last"].ok, ran.tally.actions["last"].skipped) == (8, 2)
    assert ran.tally.checks["first_is_fine"].passed == 10
    assert (ran.tally.checks["third_fails"].passed, ran.tally.checks["third_fails"].failed) == (4, 6)
    assert ran.tally.metrics["length"].values == 8
    assert ran.tally.actions["broken"].errors == {"exception": 2}
    assert ran.tally.iterations == 10


async def test_failing_calls_are_counted_the_same(server: str) -> None:
    class Failing(Workflow):
        load = IterationsPerVU(2, 6)

        def __init__(self) -> None:
            super().__init__()
            self.rounds = 0

        @step()
        async def go(self) -> HTTPResponse:
            self.rounds += 1
            match self.rounds:
                case 1:
                    return await self.client.http.get("http://127.0.0.1:1/")
                case 2:
                    return await self.client.http.get(f"{server}/close")
                case 3:
                    # It has to connect anew, which takes none of the time.
                    return await self.client.http.get(f"{server}/hang", timeout=Timeout(response_s=0.05))
                case 4:
                    return await self.client.http.get("not an address")
                case 5:
                    return None  # type: ignore[return-value]
                case _:
                    return await self.client.http.get(f"{server}/status/500")

    ran = await same_every_way(Failing)
    assert ran.step.errors == {"refused": 2, "reset": 2, "timeout": 2, "exception": 2, "status": 2}
    assert ran.step.skipped == 2
    assert ran.tally.calls["go"]["go"].errors == {"refused": 2, "reset": 2, "timeout": 2, "status": 2}
    assert ran.step.response_time.count == 4  # the answers, and those that waited for one in vain


async def test_the_rows_of_a_feed_end_a_shard_without_a_failure(server: str) -> None:
    class Feeding(Workflow):
        given = 0

        @step()
        async def get(self, url: URL = f"{server}/") -> HTTPResponse:
            type(self).given += 1
            if self.given > 20:
                raise FeedUsedUp("the feed was used up")
            return await self.client.http.get(url)

    ran = await same_every_way(Feeding, load=ConstantVUs(1, "20s"))
    assert (ran.step.ok, ran.step.failed, ran.executor.note) == (20, 0, "the feed was used up")


async def test_the_last_response_of_each_step_is_there_for_what_is_provided(server: str) -> None:
    class Providing(Workflow):
        @step()
        async def get(self, url: URL = f"{server}/token") -> HTTPResponse:
            return await self.client.http.get(url)

        @state()
        def token(self) -> Provide[str]:
            return self.get.response.text

    for way in WAYS:
        ran = await run(Providing, way, load=IterationsPerVU(1, 3))
        assert ran.stage.iterations.last["get"].text == "/token"


@every_way
async def test_a_user_that_cannot_be_made_ends_the_shard(server: str, way: str) -> None:
    made: list[object] = []

    class Scarce(Workflow):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)
            if len(made) == 4:
                raise RuntimeError("three are enough")

        @step()
        async def get(self, url: URL = f"{server}/later") -> HTTPResponse:
            return await self.client.http.get(url)

    for load in (ConstantVUs(5, "20s"), ConstantRate("1000/s", "20s")):
        made.clear()
        ran = await run(Scarce, way, load=load)
        assert "virtual user 3 cannot be made: RuntimeError: three are enough" in str(ran.executor.failure)


@every_way
async def test_what_is_no_exception_of_the_users_ends_the_run(server: str, way: str) -> None:
    class Fatal(BaseException):
        pass

    class Ending(Workflow):
        @step()
        async def get(self, url: URL = f"{server}/") -> HTTPResponse:
            await self.client.http.get(url)
            raise Fatal

    with pytest.raises(Fatal):
        await run(Ending, way, load=ConstantVUs(2, "20s"))


# The end.


@every_way
async def test_what_is_under_way_at_the_end_has_the_grace_period(server: str, way: str) -> None:
    ran = await run(getting(f"{server}/later"), way, load=ConstantVUs(3, "2s"))
    assert ran.step.interrupted == 0
    assert ran.tally.iterations == ran.tally.started == ran.step.ok >= 3


async def test_what_is_under_way_after_the_grace_period_is_interrupted_and_counted_so(server: str) -> None:
    class Hanging(Workflow):
        @step()
        async def get(self, url: URL = f"{server}/hang") -> HTTPResponse:
            return await self.client.http.get(url)

        @check()
        async def never(self, get: HTTPResponse) -> None:
            """Of an answer that does not come."""

    ran = await same_every_way(Hanging, load=ConstantVUs(3, "2s"), grace_s=0.05)
    assert (ran.step.interrupted, ran.tally.exchanges.interrupted, ran.tally.iterations) == (3, 3, 0)
    ran = await same_every_way(Hanging, load=ConstantRate("2.5/s", "2s", max_vus=2), grace_s=0.05)
    assert (ran.step.interrupted, ran.tally.exchanges.interrupted, ran.tally.iterations) == (2, 2, 0)
    assert ran.tally.dropped == 3


@every_way
async def test_a_stop_lets_iterations_under_way_end_and_starts_no_further_one(server: str, way: str) -> None:
    class Two(Workflow):
        @step()
        async def first(self, url: URL = f"{server}/later") -> HTTPResponse:
            return await self.client.http.get(url)

        @step("first")
        async def second(self, url: URL = f"{server}/later") -> HTTPResponse:
            return await self.client.http.get(url)

    async def stop(executor: Executor) -> None:
        await Server.asked.wait()
        executor.stop()

    ran = await run(Two, way, load=ConstantVUs(1, "20s"), watch=stop)
    assert (ran.tally.steps["first"].ok, ran.tally.steps["second"].ok, ran.tally.iterations) == (1, 1, 1)
    assert ran.tally.started == 1


PATIENT_S = 20
"""Steps that were interrupted may take as long as they need."""


@every_way
async def test_a_step_may_clean_up_when_it_is_interrupted(server: str, way: str) -> None:
    left: list[str] = []

    class Tidy(Workflow):
        @step()
        async def get(self, url: URL = f"{server}/hang") -> HTTPResponse:
            try:
                return await self.client.http.get(url)
            finally:
                left.append((await self.client.http.get(f"{server}/tidy")).text)

    ran = await run(Tidy, way, load=ConstantVUs(2, "2s"), grace_s=0.02, left_behind_s=PATIENT_S)
    assert left == ["/tidy", "/tidy"]
    assert (ran.step.interrupted, ran.tally.exchanges.ok, ran.tally.exchanges.interrupted) == (2, 2, 2)


@every_way
async def test_a_step_that_catches_its_interruption_counts_as_what_it_returns(server: str, way: str) -> None:
    class Stubborn(Workflow):
        @step()
        async def get(self, url: URL = f"{server}/hang") -> HTTPResponse:
            with contextlib.suppress(BaseException):
                await self.client.http.get(url)
            return await self.client.http.get(f"{server}/")

    ran = await run(Stubborn, way, load=ConstantVUs(1, "2s"), grace_s=0.02, left_behind_s=PATIENT_S)
    assert (ran.step.ok, ran.step.interrupted, ran.tally.iterations) == (1, 0, 1)


@every_way
async def test_a_step_that_never_ends_is_left_behind(server: str, way: str) -> None:
    class Endless(Workflow):
        @step()
        async def get(self, url: URL = f"{server}/hang") -> HTTPResponse:
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await self.client.http.get(url)

    ran = await run(Endless, way, load=ConstantVUs(1, "0.05s"), grace_s=0.02)
    assert (ran.step.ok, ran.tally.iterations) == (0, 0)


@every_way
async def test_a_run_that_is_cancelled_lets_nothing_go_on(server: str, way: str) -> None:
    async def cancel() -> None:
        await Server.hung.wait()
        running.cancel()

    running = asyncio.create_task(run(getting(f"{server}/hang"), way, load=ConstantVUs(2, "20s"), grace_s=20))
    cancelling = asyncio.create_task(cancel())
    with pytest.raises(asyncio.CancelledError):
        await running
    await cancelling


# What users may do with their answers and their time.


@every_way
async def test_responses_that_are_kept_stay_what_they_were(server: str, way: str) -> None:
    kept: list[tuple[str, HTTPResponse]] = []

    class Keeping(Workflow):
        @step()
        async def get(self) -> HTTPResponse:
            path = f"/{len(kept)}"
            response = await self.client.http.get(server + path)
            kept.append((path, response))
            return response

    ran = await run(Keeping, way, load=SharedIterations(3, 300))
    assert ran.step.ok == len(kept) == 300
    assert len({id(response) for _, response in kept}) == 300
    for path, response in kept:
        assert (response.status, response.text, response.url) == (200, path, server + path)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "native direct"])
async def test_a_task_may_await_anything(server: str, way: str) -> None:
    class Anything(Workflow):
        @step()
        async def go(self, url: URL = f"{server}/") -> HTTPResponse:
            await asyncio.sleep(0)
            async with asyncio.timeout(5):
                await asyncio.gather(self.client.http.get(url), self.client.http.get(url))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await self.client.http.get(f"{server}/hang")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asyncio.sleep(0.02)), 0.001)
            return await asyncio.create_task(self.again(url))

        async def again(self, url: str) -> HTTPResponse:
            return await self.client.http.get(url)

    ran = await run(Anything, way, load=IterationsPerVU(3, 2))
    assert (ran.step.ok, ran.tally.iterations) == (6, 6)
    assert (ran.tally.exchanges.ok, ran.tally.exchanges.interrupted) == (18, 6)


@needs_native
async def test_what_awaits_something_else_runs_as_tasks_without_being_asked(server: str) -> None:
    class Sleepy(Workflow):
        load = IterationsPerVU(2, 2)

        @step()
        async def get(self, url: URL = f"{server}/") -> HTTPResponse:
            await asyncio.sleep(0)
            return await self.client.http.get(url)

    [spec] = inspect_workflows([Sleepy])
    [part] = spec.plan.split(1)
    stage = ShardRuntime(spec, {}, part)
    try:
        assert stage.engine == "native/task"
        assert type(stage.executor(part, grace_ns=0)) is Executor
    finally:
        await stage.close()


# The direct driver's own.


@needs_native
async def test_a_foreign_await_fails_the_step_and_names_the_line(server: str) -> None:
    class Waiting(Workflow):
        load = IterationsPerVU(1, 2)

        @step()
        async def get(self, url: URL = f"{server}/") -> HTTPResponse:
            await self.rest()
            return await self.client.http.get(url)

        async def rest(self) -> None:
            await asyncio.sleep(10)

    line = Waiting.rest.__code__.co_firstlineno + 1
    ran = await run(Waiting, "native direct")
    assert (ran.step.failed, ran.step.errors) == (2, {"exception": 2})
    assert f"{__file__}:{line} awaits something that is not a client's call (" in ran.step.samples[0].text


@needs_native
@pytest.mark.parametrize("what", ["sleep", "bare", "gather", "timeout", "future"])
async def test_whatever_is_foreign_fails_its_own_step_alone(server: str, what: str) -> None:
    class Waiting(Workflow):
        load = IterationsPerVU(2, 3)

        @step()
        async def get(self, url: URL = f"{server}/") -> HTTPResponse:
            return await self.client.http.get(url)

        @step("get")
        async def odd(self, get: HTTPResponse, url: URL = f"{server}/") -> HTTPResponse:
            match what:
                case "sleep":
                    await asyncio.sleep(0.001)
                case "bare":
                    await asyncio.sleep(0)
                case "gather":
                    await asyncio.gather(self.client.http.get(url), self.client.http.get(url))
                case "timeout":
                    async with asyncio.timeout(1):
                        await self.client.http.get(url)
                case _:
                    await asyncio.get_running_loop().create_future()
            return get

    ran = await run(Waiting, "native direct")
    assert (ran.tally.steps["get"].ok, ran.tally.steps["odd"].failed, ran.tally.iterations) == (6, 6, 6)
    assert __file__ in ran.tally.steps["odd"].samples[0].text


@needs_native
async def test_each_user_has_a_context_of_its_own(server: str) -> None:
    whose: contextvars.ContextVar[object] = contextvars.ContextVar("whose")
    strangers: list[object] = []

    class Users(Workflow):
        @step()
        async def get(self, url: URL = f"{server}/later") -> HTTPResponse:
            if whose.get(self) is not self:
                strangers.append(self)
            whose.set(self)
            response = await self.client.http.get(url)
            if whose.get() is not self:
                strangers.append(self)
            return response

    ran = await run(Users, "native direct", load=IterationsPerVU(4, 3))
    assert (ran.tally.iterations, strangers) == (12, [])
    assert whose.get(None) is None


@needs_native
async def test_windows_close_when_their_time_is_over_whoever_notices(server: str) -> None:
    begun_ns: list[int] = []

    class Users(Workflow):
        @step()
        async def get(self, url: URL = f"{server}/later") -> HTTPResponse:
            begun_ns.append(monotonic_ns())
            return await self.client.http.get(url)

    ran = await run(Users, "native direct", load=ConstantVUs(2, "2.5s"))
    # Those in which the machine stood still are missing.
    begun = Counter((at_ns - ran.stage.recorder._origin_ns) // WINDOW_NS for at_ns in begun_ns)
    expected = [index for index, number in begun.items() if number >= 3]  # not just one at its very edge
    indexes = [part.index for part in ran.windows]
    assert len(expected) >= 3 and indexes == sorted(set(indexes))
    assert set(expected) <= {part.index for part in ran.windows if part.started}
    assert sum(part.response_time.count for part in ran.windows) == ran.step.ok


@needs_native
async def test_the_driver_keeps_nothing_of_a_run_that_is_over(server: str) -> None:
    users: list[weakref.ref[Any]] = []

    class Users(Workflow):
        def __init__(self) -> None:
            super().__init__()
            users.append(weakref.ref(self))

        @step()
        async def get(self, url: URL = f"{server}/") -> HTTPResponse:
            return await self.client.http.get(url)

        @step("get")
        async def hang(self, get: HTTPResponse, url: URL = f"{server}/hang") -> HTTPResponse:
            return await self.client.http.get(url)

    await run(Users, "native direct", load=ConstantVUs(4, "0.05s"), grace_s=0)
    await asyncio.sleep(0)  # the loop may still hold what it was to call next
    gc.collect()
    assert len(users) == 5
    assert [user for user in users if user() is not None] == []


@needs_native
async def test_reference_counts_and_memory_are_stable_over_many_iterations(server: str) -> None:
    url = URL(f"{server}/")

    class Users(Workflow):
        address = url
        kept: HTTPResponse | None = None

        @step()
        async def get(self) -> HTTPResponse:
            return await self.client.http.get(self.address)

        @step("get")
        async def again(self, get: HTTPResponse) -> HTTPResponse:
            type(self).kept = get
            return await self.client.http.get(self.address)

        @check()
        def is_fine(self, again: HTTPResponse) -> bool:
            return again.status == 200

    async def counts(iterations: int) -> tuple[int, ...]:
        await run(Users, "native direct", load=SharedIterations(8, iterations))
        gc.collect()
        watched = (None, True, Users, url, Users.get, 200, b"", "")
        return tuple(sys.getrefcount(thing) for thing in watched)

    await counts(50)
    few, many = [await counts(50)], []
    for _ in range(3):
        many.append(await counts(5_000))
        few.append(await counts(50))
    # What an iteration leaves behind is left behind in each round; caches and what tests before this one made are not.
    drifts = [
        min(abs(late - early) for early, late in zip(of_few, of_many, strict=False))
        for of_few, of_many in zip(zip(*few, strict=True), zip(*many, strict=True), strict=True)
    ]
    assert max(drifts) < 100, (few, many)
