"""Plans as they are run. Nearly all of it happens in virtual time, where a second costs nothing and is never late."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from talka.engine.calls import current_call
from talka.engine.clients.custom import CustomClient
from talka.engine.load.alarm import Alarm
from talka.engine.load.executor import Executor
from talka.engine.load.recorder import Recorder
from talka.engine.load.steps import Iterations, VirtualUser
from talka.engine.process_start import new_event_loop
from talka.report.building import together
from talka.stats.histogram import Histogram, index_of
from talka.units import MICROSECOND, MILLISECOND, SECOND
from talka.work.dsl import Workflow, check, on_start, on_stop, step
from talka.work.feeds import FeedUsedUp
from talka.work.inspection import inspect_workflows
from talka.work.responses import CustomResponse
from talka.work.shapes import (
    ConstantRate,
    ConstantVUs,
    CustomVUs,
    IterationsPerVU,
    LoadShape,
    RampingVUs,
    SharedIterations,
)
from tests.engine.load.virtual_time import CoarseLoop, VirtualLoop, now, stand_still_until, virtually

Answer = CustomResponse[Any]


def count_up_to(times: Histogram, microseconds: int) -> int:
    return sum(count for index, count in times.counts.items() if index <= index_of(microseconds))


@pytest.fixture(autouse=True)
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("load.alarm", "load.executor", "load.steps", "clients.custom"):
        monkeypatch.setattr(f"talka.engine.{module}.monotonic_ns", now)
    monkeypatch.setattr("talka.engine.load.executor.sleep_until", stand_still_until)


class Users(Workflow):
    """Each user calls `work` with itself, once for each iteration."""

    abstract = True
    work: Callable[["Users"], Awaitable[None]]
    position: int
    intended_ns: int

    @step()
    async def go(self) -> Answer:
        self.intended_ns = current_call.get().intended_ns
        return await self.client.custom.call(self.work())  # type: ignore[misc, call-arg]


class Run:
    """One shard with everything around it. Users sleep `busy_s` in each iteration, unless `work` is given."""

    def __init__(
        self,
        load: LoadShape,
        *,
        work: Callable[[Any], Awaitable[None]] | None = None,
        busy_s: float | None = None,
        shard: tuple[int, int] = (0, 1),
        grace_s: float = 30,
        iterations_done: int = 0,
        pulse: Callable[[], int] = lambda: 0,
        think: Callable[[], int] | None = None,
        base: type[Workflow] | None = None,
    ) -> None:
        async def sleep(user: Users) -> None:
            await asyncio.sleep(busy_s or 0)

        workflow = type("Load", (base or Users,), {"load": load, "work": work or sleep})
        [spec] = inspect_workflows([workflow])
        self.spec = spec
        index, of = shard
        self.shard = spec.plan.split(of)[index]
        self.recorder = Recorder(spec)
        self.tally = self.recorder.tally
        self.iterations = Iterations(spec, {}, self.recorder)
        self.users: list[VirtualUser] = []
        self.closed: list[int] = []
        self.executor = Executor(
            self.shard,
            self.iterations,
            self.recorder,
            self.new_user,
            pulse,
            grace_ns=round(grace_s * SECOND),
            iterations_done=iterations_done,
            think=think,
            renew=self.renew,
            new_alarm=partial(Alarm, libc=None),  # the kernel knows nothing of virtual time
        )
        self.origin_ns = 0

    def new_user(self, position: int) -> VirtualUser:
        workflow = self.new_workflow(position)
        steps = {name: getattr(workflow, name) for name in self.tally.steps}
        user = VirtualUser(position, workflow, steps, lambda: self.closed.append(position))
        self.users.append(user)
        return user

    def new_workflow(self, position: int) -> Workflow:
        workflow = self.spec.workflow()
        workflow.client = cast(Any, SimpleNamespace(http=None, custom=CustomClient()))
        workflow.position = position  # type: ignore[attr-defined]
        return workflow

    def renew(self, user: VirtualUser) -> None:
        user.workflow = self.new_workflow(user.position)
        user.steps = {name: getattr(user.workflow, name) for name in self.tally.steps}
        user.has_begun = False

    async def whole(self, *, already_ns: int = 0) -> None:
        """From the start of the plan to its end, or from the middle: `already_ns` of it have passed."""
        start_ns = now() + 20 * MILLISECOND
        self.origin_ns = start_ns - already_ns
        self.recorder.start(start_ns, self.origin_ns)
        await self.executor.run(self.origin_ns, start_ns)

    def elapsed_ns(self) -> int:
        return now() - self.origin_ns

    def stop_at(self, at_s: float) -> None:
        asyncio.get_running_loop().call_later(0.02 + at_s, self.executor.stop)

    @property
    def step(self) -> Any:
        return self.tally.steps["go"]


class Journey(Workflow):
    """Three steps of 400 ms."""

    abstract = True

    @step()
    async def one(self) -> Answer:
        return await self.client.custom.call(asyncio.sleep(0.4))

    @step(one)
    async def two(self) -> Answer:
        return await self.client.custom.call(asyncio.sleep(0.4))

    @step(two)
    async def three(self) -> Answer:
        return await self.client.custom.call(asyncio.sleep(0.4))

    @check("three")
    def is_there(self) -> bool:
        return True


class Session(Workflow):
    """A user that logs in, does one thing and logs out."""

    abstract = True
    log: list[str]

    @on_start()
    async def login(self) -> None:
        assert not hasattr(self, "token"), "somebody else's"
        self.token = object()
        await self.client.custom.call(asyncio.sleep(0.05))
        self.log.append("login")

    @step()
    async def look(self) -> None:
        await self.client.custom.call(asyncio.sleep(0.01))
        self.log.append("look")

    @on_stop()
    async def logout(self) -> None:
        await self.client.custom.call(asyncio.sleep(0.02))
        self.log.append("logout")


# Closed plans.


def test_a_closed_plan_runs_exactly_its_users_one_iteration_after_the_other() -> None:
    busy: Counter[int] = Counter()
    most: list[int] = []

    async def work(user: Users) -> None:
        busy[user.position] += 1
        most.append(busy.total())
        assert busy[user.position] == 1
        await asyncio.sleep(0.1)
        busy[user.position] -= 1

    async def main() -> None:
        run = Run(ConstantVUs(3, "1s"), work=work)
        await run.whole()
        assert [user.position for user in run.users] == [0, 1, 2]
        assert max(most) == 3
        assert (run.tally.started, run.tally.iterations, run.step.ok) == (30, 30, 30)
        assert run.recorder.vus == 0

    virtually(main())


def test_users_come_and_go_as_the_plan_says() -> None:
    async def main() -> None:
        run = Run(RampingVUs([(4, "100ms"), (4, "50ms"), (1, "60ms"), (3, "40ms")], start=0), busy_s=0.001)
        seen: list[int] = []

        async def look() -> None:
            while run.elapsed_ns() < 250 * MILLISECOND - MILLISECOND:
                await asyncio.sleep(0.0003)
                elapsed_ns = run.elapsed_ns()
                wanted = run.shard.vus_at(elapsed_ns)
                if wanted == run.shard.vus_at(elapsed_ns - MILLISECOND):  # not in the very instant of a change
                    assert run.recorder.vus == wanted
                    assert sum(user.is_running for user in run.users) in (wanted, wanted + 1)
                    seen.append(wanted)

        looking = asyncio.create_task(look())
        await run.whole()
        await looking
        assert list(dict.fromkeys(seen)) == [0, 1, 2, 3, 4]
        assert len(run.users) == 4, "users that come back are the same ones"

    virtually(main())


def test_a_user_wanted_again_before_it_has_noticed_its_leave_does_not_run_twice() -> None:
    busy: list[int] = []

    async def work(user: Users) -> None:
        busy.append(1)
        assert len(busy) == 1
        await asyncio.sleep(0.25)
        busy.pop()

    async def main() -> None:
        run = Run(CustomVUs(lambda t: [1, 0, 1, 1][int(t * 10)], "400ms", every="100ms"), work=work)
        await run.whole()
        assert len(run.users) == 1
        assert (run.tally.started, run.tally.iterations) == (2, 2)

    virtually(main())


def test_a_user_that_has_left_comes_back_when_it_is_wanted_again() -> None:
    async def main() -> None:
        run = Run(CustomVUs(lambda t: [1, 0, 1][int(t * 10)], "300ms", every="100ms"), busy_s=0.06)
        await run.whole()
        assert len(run.users) == 1
        assert run.tally.started == 4, "two from 0 to 120 ms, two from 200 ms on"

    virtually(main())


def test_a_closed_plan_joined_in_the_middle_runs_what_is_left_of_it() -> None:
    async def main() -> None:
        run = Run(RampingVUs([(2, "1s"), (2, "1s")]), busy_s=0.1)
        await run.whole(already_ns=1500 * MILLISECOND)
        assert run.tally.started == 10, "two users, half a second"

    virtually(main())


@pytest.mark.parametrize("load", [ConstantVUs(1, "1s"), ConstantRate("10/s", "1s")])
def test_a_plan_whose_instant_is_now_begins_without_a_turn_of_the_loop(load: LoadShape) -> None:
    async def main() -> None:
        run = Run(load, busy_s=0.1)
        start_ns = now()
        run.recorder.start(start_ns, start_ns)
        await run.executor.run(start_ns, start_ns)
        assert run.executor.started_at_ns == start_ns

    virtually(main())


def test_a_plan_that_is_over_when_it_is_joined_runs_nothing() -> None:
    async def main() -> None:
        run = Run(ConstantVUs(2, "1s"), busy_s=0.1)
        await run.whole(already_ns=2 * SECOND)
        assert run.tally.started == 0

    virtually(main())


# Iterations.


def test_every_user_runs_exactly_its_iterations() -> None:
    runs: Counter[int] = Counter()

    async def work(user: Users) -> None:
        runs[user.position] += 1
        await asyncio.sleep(0.01 * (user.position + 1))

    async def main() -> None:
        run = Run(IterationsPerVU(3, 4), work=work)
        await run.whole()
        assert runs == {0: 4, 1: 4, 2: 4}
        assert (run.tally.started, run.tally.iterations) == (12, 12)

    virtually(main())


def test_shared_iterations_are_taken_by_whoever_is_free() -> None:
    runs: Counter[int] = Counter()

    async def work(user: Users) -> None:
        runs[user.position] += 1
        await asyncio.sleep(1 if user.position == 0 else 0.01)

    async def main() -> None:
        run = Run(SharedIterations(3, 10), work=work)
        await run.whole()
        assert run.tally.started == run.tally.iterations == 10
        assert runs[0] == 1

    virtually(main())


def test_shared_iterations_of_all_shards_are_those_of_the_plan() -> None:
    async def main() -> None:
        runs = [Run(SharedIterations(3, 10), busy_s=0.01, shard=(index, 3)) for index in range(3)]
        for run in runs:
            await run.whole()
        assert [run.tally.started for run in runs] == [3, 3, 4]

    virtually(main())


@pytest.mark.parametrize("load", [IterationsPerVU(2, 100, "1s"), SharedIterations(2, 200, "1s")])
def test_iterations_end_when_their_time_is_over(load: LoadShape) -> None:
    async def main() -> None:
        run = Run(load, busy_s=0.1)
        await run.whole()
        assert run.tally.started == 20
        assert run.elapsed_ns() >= SECOND

    virtually(main())


def test_after_a_loss_what_is_left_is_shared() -> None:
    runs: Counter[int] = Counter()

    async def work(user: Users) -> None:
        runs[user.position] += 1
        await asyncio.sleep(10 if user.position == 0 else 0.01)

    async def main() -> None:
        run = Run(IterationsPerVU(2, 4), work=work, iterations_done=1)
        await run.whole()
        assert runs == {0: 1, 1: 6}, "nobody knows whose iteration was lost, so the free user runs more than its four"

    virtually(main())


@pytest.mark.parametrize("load", [IterationsPerVU(2, 4), SharedIterations(2, 8)])
@pytest.mark.parametrize(("done", "left"), [(3, 5), (8, 0), (9, 0)])
def test_iterations_done_before_are_not_run_again(load: LoadShape, done: int, left: int) -> None:
    async def main() -> None:
        run = Run(load, busy_s=0.01, iterations_done=done)
        await run.whole()
        assert run.tally.started == left

    virtually(main())


def test_users_pause_between_iterations_and_the_end_cuts_a_pause_short() -> None:
    async def main() -> None:
        pauses = iter([200 * MILLISECOND, 300 * MILLISECOND, 60_000 * MILLISECOND])
        run = Run(ConstantVUs(1, "1s"), busy_s=0.1, think=lambda: next(pauses))
        await run.whole()
        assert run.tally.iterations == 3  # at 0, 300 and 700 ms; then it thinks until the end
        assert run.elapsed_ns() < 1100 * MILLISECOND

    virtually(main())


def test_a_feed_that_is_used_up_ends_the_plan_and_is_noted() -> None:
    async def work(user: Users) -> None:
        if run.tally.started > 5:
            raise FeedUsedUp("no more rows")
        await asyncio.sleep(0.1)

    async def main() -> None:
        nonlocal run
        run = Run(ConstantVUs(1, "60s"), work=work)
        await run.whole()
        assert run.executor.note == "no more rows"
        assert (run.step.ok, run.step.failed) == (5, 0)
        assert run.elapsed_ns() < 1000 * MILLISECOND

    run: Any = None
    virtually(main())


def test_iterations_that_never_wait_leave_the_others_their_turn() -> None:
    order: list[int] = []

    async def work(user: Users) -> None:
        order.append(user.position)

    async def main() -> None:
        await Run(IterationsPerVU(2, 3), work=work).whole()
        assert order == [0, 1, 0, 1, 0, 1]

    virtually(main())


def test_where_the_pulse_shows_that_the_loop_has_run_no_turn_is_given_away() -> None:
    order: list[int] = []

    async def work(user: Users) -> None:
        order.append(user.position)

    async def main() -> None:
        await Run(IterationsPerVU(2, 3), work=work, pulse=lambda: len(order)).whole()
        assert order == [0, 0, 0, 1, 1, 1]

    virtually(main())


# Open plans.


@pytest.mark.parametrize("shard", [(0, 1), (1, 3)])
def test_every_arrival_starts_and_is_intended_when_the_plan_says(shard: tuple[int, int]) -> None:
    intended: list[int] = []

    async def work(user: Users) -> None:
        intended.append(user.intended_ns)

    async def main() -> None:
        run = Run(ConstantRate("70/s", "1s"), work=work, shard=shard)
        await run.whole()
        due = [run.origin_ns + at_ns for at_ns in run.shard.arrivals()]
        assert intended == due
        assert (run.tally.started, run.tally.iterations, run.tally.dropped) == (len(due), len(due), 0)
        lag = run.tally.generator.start_lag
        assert lag.count == len(due)
        assert lag.max <= 1_000
        assert run.elapsed_ns() >= SECOND, "the plan's time is over, even when its last arrival was long ago"

    virtually(main())


def test_starts_that_the_generator_made_late_are_recorded_as_lag() -> None:
    async def work(user: Users) -> None:
        if run.tally.started == 3:
            asyncio.get_running_loop().now_ns += 250 * MILLISECOND  # type: ignore[attr-defined]  # code that never waits

    async def main() -> None:
        await run.whole()
        assert run.tally.started == 10
        lag = run.tally.generator.start_lag
        assert lag.count == 10
        # Due at 300 and 400 ms, started at 450.
        assert 140_000 <= lag.max <= 152_000
        assert count_up_to(lag, 1_000) == 8

    run = Run(ConstantRate("10/s", "1s"), work=work)
    virtually(main())


def test_idle_users_are_used_again_before_there_are_new_ones() -> None:
    async def main() -> None:
        run = Run(ConstantRate("10/s", "1s"), busy_s=0.15)
        await run.whole()
        assert run.tally.started == 10
        assert len(run.users) == 2

    virtually(main())


def test_the_pool_grows_to_its_limit_and_further_arrivals_are_dropped() -> None:
    async def main() -> None:
        run = Run(ConstantRate("100/s", "1s", max_vus=5, policy="drop"), busy_s=0.5)
        most = 0

        async def look() -> None:
            nonlocal most
            while run.elapsed_ns() < SECOND:
                await asyncio.sleep(0.01)
                most = max(most, run.recorder.vus)

        looking = asyncio.create_task(look())
        await run.whole()
        await looking
        assert len(run.users) == 5
        assert most == 5
        assert run.tally.started == 10, "five in each half of the second"
        assert run.tally.dropped == 90
        assert run.recorder.vus == 0

    virtually(main())


def test_policy_drop_starts_the_next_arrival_that_finds_a_free_user() -> None:
    async def main() -> None:
        run = Run(ConstantRate("10/s", "1s", max_vus=1, policy="drop"), busy_s=0.15)
        await run.whole()
        assert (run.tally.started, run.tally.dropped) == (5, 5)
        assert run.step.response_time.max < 160_000, "nobody waited"

    virtually(main())


def test_policy_drop_counts_on_every_user_that_became_free_while_the_generator_was_held_up() -> None:
    async def work(user: Users) -> None:
        if run.tally.started <= 2:
            await free.wait()
            if user.position == 0:  # both become free in one turn of the loop, in which two arrivals fall due
                asyncio.get_running_loop().now_ns += 200 * MILLISECOND  # type: ignore[attr-defined]

    async def main() -> None:
        asyncio.get_running_loop().call_later(0.02 + 0.15, free.set)
        await run.whole()
        assert (run.tally.started, run.tally.dropped) == (4, 0)

    free = asyncio.Event()
    run = Run(ConstantRate("10/s", "400ms", max_vus=2, policy="drop"), work=work)
    virtually(main())


def test_policy_queue_counts_the_wait_and_drops_what_still_waits_in_the_end() -> None:
    async def main() -> None:
        run = Run(ConstantRate("10/s", "1s", max_vus=1, policy="queue"), busy_s=0.15)
        await run.whole()
        # Starts at 0, 150, … 900 ms for those due at 0, 100, … 600 ms.
        assert run.tally.started == run.tally.iterations == 7
        assert run.tally.dropped == 3
        times = run.step.response_time
        assert (times.min // 1000, times.max // 1000) == (150, 450)
        assert together(run.tally.calls["go"].values()).service_time.max // 1000 == 150
        assert run.tally.generator.start_lag.max < 1_000, "they waited for the target, not for the generator"

    virtually(main())


def test_a_queue_that_was_worked_off_waits_for_the_next_arrival_again() -> None:
    first = True

    async def work(user: Users) -> None:
        nonlocal first
        await asyncio.sleep(0.35 if first else 0.01)
        first = False

    async def main() -> None:
        run = Run(ConstantRate("10/s", "1s", max_vus=1), work=work)
        await run.whole()
        assert (run.tally.started, run.tally.dropped) == (10, 0)
        assert count_up_to(run.step.response_time, 11_000) == 6, "all but the first and the three due meanwhile"

    virtually(main())


def test_a_user_that_becomes_free_as_the_next_arrival_is_due_stays_for_it() -> None:
    users_after: list[int] = []

    async def work(user: Users) -> None:
        loop: Any = asyncio.get_running_loop()
        if run.tally.started == 1:
            await asyncio.sleep(0.15)  # the second arrival waits for it
        elif run.tally.started == 2:
            loop.now_ns = run.origin_ns + 200 * MILLISECOND  # when the third is due
        loop.call_soon(lambda: users_after.append(run.recorder.vus))

    async def main() -> None:
        await run.whole()
        assert (run.tally.started, run.tally.dropped) == (3, 0)
        assert users_after == [1, 1, 0]

    run = Run(ConstantRate("10/s", "300ms", max_vus=1), work=work)
    virtually(main())


def test_an_open_plan_joined_in_the_middle_starts_only_later_arrivals() -> None:
    async def main() -> None:
        run = Run(ConstantRate("10/s", "1s"), busy_s=0.01)
        await run.whole(already_ns=450 * MILLISECOND)
        assert (run.tally.started, run.tally.dropped) == (5, 0)
        assert run.tally.generator.start_lag.max < 1_000

    virtually(main())


@pytest.mark.parametrize("policy", ["queue", "drop"])
def test_every_arrival_is_either_started_or_dropped(policy: Any) -> None:
    async def main() -> None:
        run = Run(ConstantRate("997/s", "1s", max_vus=7, policy=policy), busy_s=0.0123)
        await run.whole()
        assert run.tally.started + run.tally.dropped == 997
        assert run.step.ok == run.tally.started

    virtually(main())


def test_arrivals_due_when_the_generator_was_held_up_start_after_the_end_too() -> None:
    async def work(user: Users) -> None:
        if run.tally.started == 8:
            asyncio.get_running_loop().now_ns += 500 * MILLISECOND  # type: ignore[attr-defined]

    async def main() -> None:
        await run.whole()
        assert (run.tally.started, run.tally.dropped, run.step.ok) == (10, 0, 10)

    run = Run(ConstantRate("10/s", "1s"), work=work)
    virtually(main())


def test_arrivals_of_a_plan_that_was_over_before_it_could_begin_start_all_the_same() -> None:
    async def main() -> None:
        run = Run(ConstantRate("10/s", "1s"), busy_s=0.01)
        loop = asyncio.get_running_loop()

        def stand_still() -> None:
            loop.now_ns += 5 * SECOND  # type: ignore[attr-defined]

        loop.call_later(0.01, stand_still)
        await run.whole()
        assert (run.tally.started, run.tally.dropped, run.step.ok) == (10, 0, 10)

    virtually(main())


@pytest.mark.parametrize("late_us", [0, 300, 600])
@pytest.mark.parametrize("new_loop", [CoarseLoop, asyncio.new_event_loop, new_event_loop])
def test_arrivals_due_just_before_the_end_start_however_coarse_the_timers_are(new_loop: Any, late_us: int) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop):
            loop.now_ns += late_us * MICROSECOND
        run = Run(ConstantRate("20000/s", "30ms"), busy_s=0)
        await run.whole()
        assert (run.tally.started, run.tally.dropped, run.step.ok) == (600, 0, 600)

    virtually(main(), new_loop)


# Stopping.


@pytest.mark.parametrize("load", [ConstantVUs(2, "10s"), ConstantRate("20/s", "10s", max_vus=2)])
def test_after_stop_nothing_starts_and_what_is_under_way_ends(load: LoadShape) -> None:
    async def main() -> None:
        run = Run(load, busy_s=0.3)
        run.stop_at(0.2)
        await run.whole()
        assert run.tally.started == 2
        assert (run.step.ok, run.step.interrupted) == (2, 0)
        assert run.elapsed_ns() < SECOND

    virtually(main())


@pytest.mark.parametrize("load", [ConstantVUs(2, "10s"), ConstantRate("20/s", "10s", max_vus=2)])
def test_what_outlasts_the_grace_period_is_cancelled_and_counted(load: LoadShape) -> None:
    async def main() -> None:
        run = Run(load, busy_s=5, grace_s=0.1)
        run.stop_at(0.2)
        await run.whole()
        assert (run.step.ok, run.step.interrupted) == (0, 2)
        assert (run.tally.started, run.tally.iterations) == (2, 0)
        assert run.recorder.vus == 0
        assert 300 * MILLISECOND <= run.elapsed_ns() < SECOND

    virtually(main())


def test_arrivals_that_wait_when_the_plan_is_stopped_count_as_dropped() -> None:
    async def main() -> None:
        run = Run(ConstantRate("10/s", "10s", max_vus=1), busy_s=5)
        run.stop_at(0.55)
        await run.whole()
        assert (run.tally.started, run.tally.dropped) == (1, 5), "due until 550 ms; later ones are nobody's loss"

    virtually(main())


def test_an_arrival_that_was_taken_when_the_stop_came_counts_as_dropped() -> None:
    async def work(user: Users) -> None:
        await asyncio.sleep(0.15)
        asyncio.get_running_loop().call_soon(run.executor.stop)  # it comes before the next iteration does

    async def main() -> None:
        await run.whole()
        assert (run.tally.started, run.tally.dropped) == (1, 1)
        assert run.tally.iterations == 1

    run = Run(ConstantRate("10/s", "10s", max_vus=1), work=work)
    virtually(main())


def test_a_stop_before_the_start_runs_nothing() -> None:
    async def main() -> None:
        for load in (ConstantVUs(2, "10s"), ConstantRate("10/s", "10s")):
            run = Run(load, busy_s=0.1)
            run.executor.stop()
            await run.whole()
            assert (run.tally.started, run.tally.dropped) == (0, 0)

    virtually(main())


def test_a_step_that_swallows_its_cancellation_does_not_hold_the_run_up() -> None:
    released = asyncio.Event()
    left: list[asyncio.Task[Any] | None] = []

    async def work(user: Users) -> None:
        left.append(asyncio.current_task())
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    async def main() -> None:
        run = Run(ConstantVUs(1, "100ms"), work=work, grace_s=0.1)
        await run.whole()
        assert run.elapsed_ns() < 2 * SECOND
        assert run.closed == [0]
        released.set()
        for task in left:
            assert task is not None
            await asyncio.wait({task})

    virtually(main())


@pytest.mark.parametrize("load", [ConstantVUs(3, "100ms"), ConstantRate("30/s", "100ms")])
def test_every_user_is_closed_in_the_end(load: LoadShape) -> None:
    async def main() -> None:
        run = Run(load, busy_s=0.2)
        await run.whole()
        assert sorted(run.closed) == [0, 1, 2]

    virtually(main())


@pytest.mark.parametrize("load", [ConstantVUs(2, "10s"), ConstantRate("20/s", "10s", max_vus=2)])
def test_when_the_run_itself_is_cancelled_nothing_is_left_under_way(load: LoadShape) -> None:
    async def main() -> None:
        run = Run(load, busy_s=5)
        whole = asyncio.create_task(run.whole())
        await asyncio.sleep(0.2)
        whole.cancel()
        with pytest.raises(asyncio.CancelledError):
            await whole
        assert run.step.interrupted == 2
        assert sorted(run.closed) == [0, 1]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtually(main())


# What goes wrong.


@pytest.mark.parametrize("load", [RampingVUs([(3, "300ms"), (3, "10s")]), ConstantRate("30/s", "10s")])
def test_a_user_that_cannot_be_made_ends_the_shard_and_says_why(load: LoadShape) -> None:
    class Picky(Run):
        def new_user(self, position: int) -> VirtualUser:
            if position == 2:
                raise LookupError("no account left")
            return super().new_user(position)

    async def main() -> None:
        run = Picky(load, busy_s=0.2)
        await run.whole()
        assert run.executor.failure is not None
        assert run.executor.failure.startswith("virtual user 3 cannot be made: LookupError: no account left (")
        assert run.step.ok == run.tally.started >= 2
        assert sorted(run.closed) == [0, 1]
        assert run.elapsed_ns() < SECOND

    virtually(main())


def test_an_error_in_the_machinery_itself_ends_the_run_with_it() -> None:
    async def broken(user: VirtualUser, intended_ns: int) -> bool:
        raise RuntimeError("a defect")

    async def main() -> None:
        run = Run(IterationsPerVU(2, 5))
        run.iterations.run = broken  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="a defect"):
            await run.whole()
        assert sorted(run.closed) == [0, 1]

    virtually(main())


# Journeys: an iteration that began goes on to its end.


@pytest.mark.parametrize("load", [ConstantRate("10/s", "3s"), ConstantVUs(10, "3s")])
def test_journeys_under_way_at_the_end_of_the_plan_are_finished_with_their_checks(load: LoadShape) -> None:
    async def main() -> None:
        run = Run(load, base=Journey)
        await run.whole()
        counts = [run.tally.steps[name].ok for name in ("one", "two", "three")]
        assert counts == [run.tally.started] * 3
        assert run.tally.checks["is_there"].passed == run.tally.iterations == run.tally.started
        assert run.tally.interrupted_iterations == run.tally.dropped == 0
        assert run.tally.started == 30

    virtually(main())


@pytest.mark.parametrize("load", [ConstantRate("10/s", "3s"), ConstantVUs(10, "3s")])
def test_journeys_that_outlast_the_grace_are_cut_and_counted(load: LoadShape) -> None:
    async def main() -> None:
        run = Run(load, base=Journey, grace_s=0.1)
        await run.whole()
        assert run.tally.interrupted_iterations > 0
        assert run.tally.iterations + run.tally.interrupted_iterations == run.tally.started

    virtually(main())


def test_a_stop_lets_journeys_that_began_go_on_to_their_end() -> None:
    async def main() -> None:
        run = Run(ConstantVUs(3, "1h"), base=Journey)
        run.stop_at(0.5)
        await run.whole()
        assert [run.tally.steps[name].ok for name in ("one", "two", "three")] == [3, 3, 3]
        assert (run.tally.iterations, run.tally.interrupted_iterations) == (3, 0)

    virtually(main())


@pytest.mark.parametrize("load", [ConstantRate("10/s", "3s"), ConstantVUs(12, "3s")])
def test_how_long_users_were_at_work_is_counted(load: LoadShape) -> None:
    async def main() -> None:
        run = Run(load, base=Journey)
        await run.whole()
        assert run.tally.busy_ns == pytest.approx(run.tally.started * 1.2 * SECOND, rel=0.01)

    virtually(main())


# Users: fresh at each arrival, kept in a loop.


def session(**settings: Any) -> tuple[type[Workflow], list[str]]:
    log: list[str] = []
    return type("Own", (Session,), {"log": log, "abstract": True, **settings}), log


def test_each_arrival_is_a_fresh_user_that_begins_and_leaves_by_itself() -> None:
    async def main() -> None:
        base, log = session()
        run = Run(ConstantRate("5/s", "1s", max_vus=1), base=base)
        await run.whole()
        assert log == ["login", "look", "logout"] * 5
        assert {name: tally.ok for name, tally in run.tally.steps.items()} == {"login": 5, "look": 5, "logout": 5}
        assert len(run.users) == 1, "one place, five users"

    virtually(main())


def test_the_first_step_of_a_user_is_due_when_its_login_is_done() -> None:
    async def main() -> None:
        base, _ = session()
        run = Run(ConstantRate("5/s", "1s"), base=base)
        await run.whole()
        steps = run.tally.steps
        assert steps["login"].response_time.max // 1000 == 50
        assert steps["look"].response_time.max // 1000 == 10

    virtually(main())


@pytest.mark.parametrize("load", [ConstantVUs(2, "1s"), ConstantRate("20/s", "1s", max_vus=2)])
def test_kept_users_begin_once_and_leave_in_the_end(load: LoadShape) -> None:
    async def main() -> None:
        base, log = session(users="kept")
        run = Run(load, base=base)
        await run.whole()
        assert (log.count("login"), log.count("logout")) == (2, 2)
        assert log.count("look") == run.tally.iterations > 10
        assert set(log[-2:]) == {"logout"}

    virtually(main())


def test_users_in_a_loop_may_be_fresh_too() -> None:
    async def main() -> None:
        base, log = session(users="fresh")
        run = Run(IterationsPerVU(2, 3), base=base)
        await run.whole()
        assert (log.count("login"), log.count("look"), log.count("logout")) == (6, 6, 6)

    virtually(main())


def test_a_user_whose_login_fails_has_its_steps_skipped_and_begins_again_when_it_is_kept() -> None:
    failures = [True, True, False]

    class Flaky(Session):
        abstract = True
        log: list[str] = []

        @on_start()
        async def login(self) -> None:
            if failures and failures.pop(0):
                raise LookupError("no such account")

    async def main() -> None:
        run = Run(IterationsPerVU(1, 5), base=Flaky)
        await run.whole()
        assert (run.tally.steps["login"].failed, run.tally.steps["login"].ok) == (2, 1)
        assert (run.tally.steps["look"].skipped, run.tally.steps["look"].ok) == (2, 3)
        assert run.tally.steps["logout"].ok == 1
        assert run.tally.iterations == 5

    virtually(main())


def test_a_further_user_that_cannot_be_made_ends_the_shard_and_says_why() -> None:
    made = 0

    class Fussy(Journey):
        abstract = True

        def __init__(self) -> None:
            nonlocal made
            super().__init__()
            made += 1
            if made > 2:
                raise RuntimeError("no more of me")

    async def main() -> None:
        run = Run(ConstantRate("1/s", "10s", max_vus=1), base=Fussy)
        await run.whole()
        assert "a further virtual user cannot be made: RuntimeError: no more of me" in (run.executor.failure or "")

    virtually(main())


def test_a_feed_that_is_used_up_in_a_login_ends_the_plan() -> None:
    class Rows(Session):
        abstract = True
        log: list[str] = []

        @on_start()
        async def login(self) -> None:
            raise FeedUsedUp("no more accounts")

    async def main() -> None:
        run = Run(ConstantVUs(1, "1h"), base=Rows)
        await run.whole()
        assert run.executor.note == "no more accounts"
        assert (run.tally.steps["login"].failed, run.tally.steps["look"].seen, run.tally.iterations) == (0, 0, 0)

    virtually(main())
