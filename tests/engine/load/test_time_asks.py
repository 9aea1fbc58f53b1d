"""More time for a shard: what its users ask for and are answered, and what is saved when it is over."""

import asyncio
from contextlib import suppress
from typing import Any, ClassVar

import pytest

from talka.engine.load.time_asks import TimeAsks
from talka.units import MILLISECOND, SECOND
from talka.wire.shards import Ack, Armed, FromCore, ShardAnswer, Stop, TimeAsked, TimeOver, Totals
from talka.work.deadlines import REASON_LIMIT, Allowance
from talka.work.dsl import Workflow, action, depends, on_evict, step
from talka.work.durations import BadDuration
from talka.work.responses import HTTPResponse
from talka.work.shapes import ConstantVUs
from tests.engine.load.test_core import Owner, arm_of, go_now, needs_native
from tests.engine.load.test_core import clean_slate as clean_slate
from tests.engine.load.test_core import owner as owner
from tests.engine.load.virtual_time import now, virtually

MORE = Allowance(15 * SECOND, 4, 20 * SECOND)


# What is asked.


async def test_an_ask_is_answered_to_whoever_awaits_it() -> None:
    asks = TimeAsks()
    asking = asks.ask("30s", "the index is built")
    assert asks.asked == TimeAsked(1, 30 * SECOND, "the index is built")

    asks.answered(ShardAnswer(1, MORE))

    assert await asking == MORE
    assert asks.asked is None


async def test_users_that_ask_meanwhile_get_the_same_answer_also_when_one_of_them_is_cancelled() -> None:
    asks = TimeAsks()
    first, second = (asyncio.ensure_future(_wait(asks, reason)) for reason in ("one", "two"))
    await asyncio.sleep(0)
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first

    assert asks.asked == TimeAsked(1, SECOND, "one")
    asks.answered(ShardAnswer(1, MORE))

    assert await second == MORE


async def _wait(asks: TimeAsks, reason: str) -> Allowance:
    return await asks.ask(1, reason)


async def test_an_answer_to_an_earlier_ask_answers_nothing() -> None:
    asks = TimeAsks()
    asks.ask(1)
    asks.answered(ShardAnswer(1, MORE))
    asks.ask(2)

    asks.answered(ShardAnswer(1, MORE))

    assert asks.asked == TimeAsked(2, 2 * SECOND)
    asks.close()


def test_an_ask_that_nobody_answers_says_so_after_a_while() -> None:
    async def main() -> None:
        asks, began = TimeAsks(wait_s=15), now()
        answer = await asks.ask("1m")
        assert answer == Allowance(why_not="nobody answered within 15 s")
        assert now() - began >= 15 * SECOND
        assert asks.asked is None

    virtually(main())


async def test_what_is_no_length_of_time_is_refused_and_a_long_reason_is_cut() -> None:
    asks = TimeAsks()

    with pytest.raises(BadDuration, match='extend = "soon" is not a duration'):
        asks.ask("soon")

    assert asks.asked is None
    asks.ask(1, "x" * 1000)
    assert asks.asked is not None and asks.asked.reason == "x" * REASON_LIMIT
    asks.close()


# In a core.


class Slow(Workflow):
    told: ClassVar[list[Allowance]] = []
    saved: ClassVar[list[str]] = []

    @action()
    async def build(self) -> None:
        self.told.append(await self.extend("30s", "the index is built"))
        await asyncio.Event().wait()

    @on_evict()
    async def save(self) -> None:
        self.saved.append("save")
        self.context["at"] = 7
        self.metric("rows", 3, "count")

    @on_evict()
    def fail(self) -> None:
        raise ValueError("the disk is full")


@depends(Slow)
class After(Workflow):
    @action()
    def go(self) -> None: ...


@pytest.fixture(autouse=True)
def nothing_told() -> None:
    Slow.told.clear()
    Slow.saved.clear()


async def until(owner: Owner, found: Any) -> Totals:
    """The first report of which this is true; each is acknowledged."""
    async with asyncio.timeout(60):
        while True:
            message: FromCore | None = await owner.receive()
            if isinstance(message, Totals):
                owner.send(Ack(message.sequence))
                if found(message):
                    return message


async def started(owner: Owner, workflow: type[Workflow], **more: Any) -> None:
    owner.send(arm_of(workflow, report_every_ns=20 * MILLISECOND, **more))
    await owner.expect(Armed)
    owner.send(go_now())


async def test_a_step_that_asks_for_more_time_is_told_what_it_has(owner: Owner) -> None:
    await started(owner, Slow)
    report = await until(owner, lambda totals: totals.asked is not None)
    assert report.asked == TimeAsked(1, 30 * SECOND, "the index is built")

    owner.send(ShardAnswer(1, MORE))

    assert (await until(owner, lambda totals: totals.asked is None)).final is False
    owner.send(Stop(at_once=True))
    await until(owner, lambda totals: totals.final)
    await owner.ended()
    assert Slow.told == [MORE]


async def test_a_core_whose_time_is_over_saves_once_and_tells_what_it_saved_before_its_end(owner: Owner) -> None:
    from talka.engine.loader import in_memory

    arm = arm_of(Slow, report_every_ns=20 * MILLISECOND)
    in_memory["test"] = (Slow, After)
    owner.send(arm)
    await owner.expect(Armed)
    owner.send(go_now())
    await until(owner, lambda totals: totals.asked is not None)

    owner.send(TimeOver(10 * SECOND), TimeOver(9 * SECOND))

    report = await until(owner, lambda totals: totals.provided)
    assert report.provided == {"self.context/at": b"\x07"} and not report.final
    owner.send(Stop(at_once=True))
    final = await until(owner, lambda totals: totals.final)
    await owner.ended()
    assert Slow.saved == ["save"]
    assert final.provided == {}


async def test_what_an_eviction_method_raises_is_counted_and_stops_nothing(owner: Owner) -> None:
    await started(owner, Slow)
    await until(owner, lambda totals: totals.asked is not None)
    owner.send(TimeOver(10 * SECOND), Stop())
    actions = {}
    while (message := await owner.receive()) is not None:
        if isinstance(message, Totals):
            owner.send(Ack(message.sequence))
            if message.final:
                break
        elif getattr(message, "measured", None) is False:
            actions[message.name] = message.tally  # type: ignore[union-attr]
    await owner.ended()

    assert (actions["save"].ok, actions["fail"].failed) == (1, 1)
    assert actions["fail"].samples[0].text.startswith("ValueError: the disk is full")


async def test_an_eviction_method_that_does_not_end_is_ended_with_the_grace(owner: Owner) -> None:
    class Endless(Workflow):
        @action()
        async def go(self) -> None:
            await asyncio.Event().wait()

        @on_evict()
        async def save(self) -> None:
            await asyncio.Event().wait()

    await started(owner, Endless, grace_ns=0)
    owner.send(TimeOver(50 * MILLISECOND), Stop())

    await until(owner, lambda totals: totals.final)
    await owner.ended()


@needs_native
async def test_a_step_on_the_direct_driver_may_ask_without_waiting_for_the_answer(owner: Owner) -> None:
    class Direct(Workflow):
        driver = "direct"

        @step()
        async def go(self) -> HTTPResponse:
            self.extend("30s", "busy")
            return await self.client.http.get("http://127.0.0.1:1/")

    await started(owner, Direct, plan=ConstantVUs(1, "30s").plan(), engine="native")

    report = await until(owner, lambda totals: totals.asked is not None)

    assert report.asked == TimeAsked(1, 30 * SECOND, "busy")
    owner.send(Stop())
    await until(owner, lambda totals: totals.final)
    await owner.ended()
