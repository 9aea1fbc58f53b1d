"""What is counted of calls, skipped steps, users and pauses: the same by every engine and driver."""

import asyncio
import contextlib
import gc
import sys
from typing import Any

import pytest

from talka.clock import monotonic_ns
from talka.engine.load.executor import Executor
from talka.stats.tally import CALL_NAMES_KEPT, OTHER_CALLS
from talka.units import MICROSECOND, MILLISECOND, SECOND
from talka.work.arguments import URL
from talka.work.dsl import Skip, Workflow, action, check, on_start, on_stop, step
from talka.work.feeds import FeedUsedUp
from talka.work.responses import CustomResponse, HTTPResponse
from talka.work.shapes import ConstantRate, ConstantVUs, IterationsPerVU, RampingVUs, SharedIterations
from tests.engine.three_ways import (
    STALL_S,
    WAYS,
    Server,
    every_way,
    needs_native,
    run,
    same_every_way,
    server,
    ten_arrivals,
    until_grown,
)

__all__ = ["server"]  # a fixture

US = SECOND // MICROSECOND


# Calls.


async def test_calls_count_under_the_names_they_are_given(server: str) -> None:
    class Shop(Workflow):
        @step()
        async def buy(self) -> HTTPResponse:
            await self.client.http.get(f"{server}/", name="page")
            await self.client.http.get(f"{server}/status/404", name="picture")
            await self.client.http.get(f"{server}/")
            return await self.client.http.post(f"{server}/", data="x", name="order")

    ran = await same_every_way(Shop, load=IterationsPerVU(2, 5))
    rows = ran.tally.calls["buy"]
    assert {name: (row.ok, row.failed) for name, row in rows.items()} == {
        "page": (10, 0),
        "picture": (0, 10),
        "buy": (10, 0),
        "order": (10, 0),
    }
    assert rows["picture"].outcomes == {"404": 10}
    assert rows["order"].service_time.count == rows["order"].response_time.count == 10
    assert (ran.step.ok, ran.step.failed, ran.step.errors) == (0, 10, {"status": 10})
    assert ran.step.response_time.count == 10
    assert ran.step.service_time.count == 0 and not ran.step.outcomes


async def test_loops_and_branches_around_calls_are_ordinary_code(server: str) -> None:
    class Pages(Workflow):
        def __init__(self) -> None:
            super().__init__()
            self.rounds = 0

        @step()
        async def browse(self):  # type: ignore[no-untyped-def]
            self.rounds += 1
            for _ in range(self.rounds):
                await self.client.http.get(f"{server}/", name="page")
            if self.rounds == 2:
                await self.client.http.get(f"{server}/", name="second")

    ran = await same_every_way(Pages, load=IterationsPerVU(2, 4))
    assert {name: row.ok for name, row in ran.tally.calls["browse"].items()} == {"page": 20, "second": 2}
    assert (ran.step.ok, ran.step.skipped, ran.step.response_time.count) == (8, 0, 8)


async def test_skipped_steps_are_counted_apart_and_what_takes_their_value_is_skipped_too(server: str) -> None:
    class Some(Workflow):
        def __init__(self) -> None:
            super().__init__()
            self.rounds = 0

        @step()
        async def look(self) -> HTTPResponse | None:
            self.rounds += 1
            if self.rounds == 1:
                raise Skip
            if self.rounds == 2:
                return None
            if self.rounds == 3:
                raise ValueError("the third")
            return await self.client.http.get(f"{server}/")

        @step("look")
        async def takes(self, look: HTTPResponse) -> HTTPResponse:
            return await self.client.http.get(f"{server}/")

        @step("look", "takes")
        async def follows(self) -> HTTPResponse:
            return await self.client.http.get(f"{server}/")

        @action("takes")
        def notes(self, takes: HTTPResponse) -> None:
            """Of what was taken."""

        @action("takes")
        def ends(self) -> None:
            """Whatever was taken."""

        @check()
        def is_fine(self, look: HTTPResponse) -> bool:
            return look.status == 200

    ran = await same_every_way(Some, load=IterationsPerVU(2, 5))
    tally = ran.tally
    assert [(tally.steps["look"].ok, tally.steps["look"].failed, tally.steps["look"].skipped)] == [(4, 2, 4)]
    assert (tally.steps["takes"].ok, tally.steps["takes"].skipped, tally.steps["takes"].failed) == (4, 6, 0)
    assert (tally.steps["follows"].ok, tally.steps["follows"].skipped) == (8, 2)
    assert (tally.actions["notes"].ok, tally.actions["notes"].skipped) == (4, 6)
    assert (tally.actions["ends"].ok, tally.actions["ends"].skipped) == (8, 2)
    assert (tally.checks["is_fine"].passed, tally.checks["is_fine"].failed) == (4, 0)
    assert tally.iterations == 10


async def test_calls_in_actions_and_in_checks_count_under_those(server: str) -> None:
    class Round(Workflow):
        @action()
        async def prepare(self) -> None:
            await self.client.http.get(f"{server}/status/500", name="reset")
            with contextlib.suppress(Exception):
                await self.client.http.get("http://127.0.0.1:1/")

        @step("prepare")
        async def get(self) -> HTTPResponse:
            return await self.client.http.get(f"{server}/")

        @check()
        async def is_there(self, get: HTTPResponse) -> bool:
            return (await self.client.http.get(f"{server}/", name="again")).status == 200

    ran = await same_every_way(Round, load=IterationsPerVU(1, 3))
    calls = ran.tally.calls
    assert (calls["prepare"]["reset"].failed, calls["prepare"]["prepare"].errors) == (3, {"refused": 3})
    assert (ran.tally.actions["prepare"].ok, ran.tally.exchanges.failed) == (3, 3)
    assert calls["get"]["get"].ok == 3
    assert (calls["is_there"]["again"].ok, ran.tally.checks["is_there"].passed) == (3, 3)


@every_way
async def test_a_stall_in_the_first_of_two_calls_is_in_the_response_time_of_the_step(server: str, way: str) -> None:
    class Two(Workflow):
        @step()
        async def both(self) -> HTTPResponse:
            await self.client.http.get(f"{server}/stall", name="slow")
            return await self.client.http.get(f"{server}/", name="quick")

    ran = await run(Two, way, load=IterationsPerVU(1, 3))
    assert ran.step.response_time.min >= STALL_S * US
    assert ran.tally.calls["both"]["slow"].service_time.min >= STALL_S * US
    assert ran.tally.calls["both"]["quick"].response_time.count == 3
    assert ran.tally.calls["both"]["quick"].response_time.total < ran.step.response_time.total
    assert sum(part.steps["both"].response_time.count for part in ran.windows if "both" in part.steps) == 3


async def test_the_time_of_a_step_counts_when_somebody_waited_or_nothing_went_wrong(server: str) -> None:
    class Times(Workflow):
        def __init__(self) -> None:
            super().__init__()
            self.rounds = 0

        @step()
        async def go(self) -> Any:
            self.rounds += 1
            match self.rounds:
                case 1:
                    return "nothing to call"
                case 2:
                    return await self.client.http.get("http://127.0.0.1:1/")
                case 3:
                    return await self.client.http.get(f"{server}/hang", timeout=0.05)
                case 4:
                    raise ValueError
                case _:
                    return await self.client.http.get(f"{server}/status/500")

    ran = await same_every_way(Times, load=IterationsPerVU(1, 5))
    assert (ran.step.ok, ran.step.failed, ran.step.response_time.count) == (1, 4, 3)
    assert ran.step.errors == {"refused": 1, "timeout": 1, "exception": 1, "status": 1}


async def test_a_step_that_survives_a_failed_call_has_failed_with_it(server: str) -> None:
    class Tolerant(Workflow):
        @step()
        async def go(self) -> Any:
            try:
                await self.client.http.get("http://127.0.0.1:1/", name="first")
            except Exception:  # noqa: BLE001
                await self.client.http.get(f"{server}/status/500", name="second")
            raise ValueError("and this")

        @check("go")
        def never(self) -> None:
            """Of what failed."""

    ran = await same_every_way(Tolerant, load=IterationsPerVU(1, 2))
    assert (ran.step.failed, ran.step.errors) == (2, {"refused": 2})
    assert ran.step.response_time.count == 2
    assert ran.tally.checks["never"].passed == 0


async def test_a_call_counts_once_however_often_it_is_redirected(server: str) -> None:
    class Sent(Workflow):
        @step()
        async def go(self) -> HTTPResponse:
            await self.client.http.get(f"{server}/to/to/here", name="far")
            await self.client.http.get(f"{server}/to/status/404", name="lost")
            return await self.client.http.get(f"{server}/to/here", name="near", redirects=False)

    ran = await same_every_way(Sent, load=IterationsPerVU(1, 2))
    rows = ran.tally.calls["go"]
    assert {name: row.count for name, row in rows.items()} == {"far": 2, "lost": 2, "near": 2}
    assert (rows["far"].outcomes, rows["near"].outcomes) == ({"200": 2}, {"302": 2})
    assert ran.tally.exchanges.requests == 12


async def test_names_beyond_those_that_are_kept_count_as_others_and_one_of_them_is_shown(server: str) -> None:
    class Items(Workflow):
        def __init__(self) -> None:
            super().__init__()
            self.item = 0

        @step()
        async def get(self) -> Any:
            self.item += 1
            await self.client.http.get(f"{server}/", name="always")
            await self.client.http.get(f"{server}/status/404", name=f"/item/{self.item}")
            await self.client.http.get(f"{server}/", name=f"/item/{self.item}")

    ran = await same_every_way(Items, load=IterationsPerVU(1, CALL_NAMES_KEPT + 20))
    rows = ran.tally.calls["get"]
    assert len(rows) == CALL_NAMES_KEPT + 1
    assert rows["always"].ok == CALL_NAMES_KEPT + 20
    assert (rows[OTHER_CALLS].ok, rows[OTHER_CALLS].failed) == (21, 21)
    assert (rows["/item/7"].ok, rows["/item/7"].failed) == (1, 1)
    [note] = ran.stage.recorder.notes
    assert f"'/item/{CALL_NAMES_KEPT}'" in note


async def test_the_methods_own_name_is_the_row_of_calls_without_one(server: str) -> None:
    class Same(Workflow):
        @step()
        async def get(self) -> HTTPResponse:
            await self.client.http.get(f"{server}/", name="get")
            return await self.client.http.get(f"{server}/")

    ran = await same_every_way(Same, load=IterationsPerVU(1, 4))
    assert ran.call.ok == 8


async def test_a_name_that_is_no_text_is_an_error_of_the_test(server: str) -> None:
    class Odd(Workflow):
        @step()
        async def get(self) -> HTTPResponse:
            return await self.client.http.get(f"{server}/", name=7)  # type: ignore[arg-type]

    ran = await same_every_way(Odd, load=IterationsPerVU(1, 2))
    assert (ran.step.errors, ran.tally.exchanges.not_sent, Server.requests) == ({"exception": 2}, 2, 0)
    assert "name=7 is not a text: it is the row under which the call is counted" in ran.step.samples[0].text


async def test_calls_of_the_custom_client_count_under_their_names_too(server: str) -> None:
    async def answer(value: int) -> int:
        if value == 2:
            raise ValueError("two")
        return value

    class Custom(Workflow):
        def __init__(self) -> None:
            super().__init__()
            self.rounds = 0

        @step()
        async def go(self) -> CustomResponse[int]:
            self.rounds += 1
            await self.client.custom.call(self.client.http.get(f"{server}/"), name="both")
            return await self.client.custom.call(answer(self.rounds))

    ran = await same_every_way(Custom, load=IterationsPerVU(2, 3))
    rows = ran.tally.calls["go"]
    assert rows["both"].ok == 6
    assert (rows["go"].ok, rows["go"].failed, rows["go"].errors) == (10, 2, {"exception": 2})
    assert (ran.step.ok, ran.step.errors, ran.step.response_time.count) == (4, {"exception": 2}, 6)


async def test_a_number_may_be_counted_from_anywhere_in_a_step(server: str) -> None:
    class Cart(Workflow):
        @step()
        async def fill(self) -> HTTPResponse:
            response = await self.client.http.get(f"{server}/")
            self.metric("cart", 3)
            return response

    ran = await same_every_way(Cart, load=IterationsPerVU(2, 3))
    assert (ran.tally.metrics["cart"].values, ran.tally.metrics["cart"].total) == (6, 18)


# Users.


async def test_each_arrival_is_a_user_without_cookies_and_attributes_of_earlier_ones(server: str) -> None:
    found: list[tuple[str, bool]] = []

    class Arriving(Workflow):
        seen = False

        @step()
        async def get(self) -> HTTPResponse:
            response = await self.client.http.get(f"{server}/cookie")
            found.append((response.text, self.seen))
            self.seen = True
            return response

    options: dict[str, Any] = {"load": ten_arrivals(max_vus=2), "watch": until_grown(found, 10)}
    ran = await same_every_way(Arriving, **options)
    assert ran.tally.iterations == 10
    assert found == [("", False)] * 10 * len(WAYS)
    assert Server.connections <= 2 * len(WAYS)

    found.clear()
    for way in WAYS:
        await run(type("Kept", (Arriving,), {"users": "kept"}), way, **options)
    assert 1 <= found.count(("", False)) // len(WAYS) <= 2
    assert set(found) == {("", False), ("Cookie: user=known", True)}


@every_way
async def test_cookies_go_with_their_user_also_where_its_code_leaves_nothing_else_on_it(server: str, way: str) -> None:
    found: list[str] = []

    class Arriving(Workflow):
        @step()
        async def get(self) -> HTTPResponse:
            response = await self.client.http.get(f"{server}/cookie")
            found.append(response.text)
            return response

    await run(Arriving, way, load=ten_arrivals(max_vus=1), watch=until_grown(found, 10))
    assert found == [""] * 10


@every_way
async def test_a_fresh_user_is_made_as_its_class_says(server: str, way: str) -> None:
    made: list[object] = []
    seen: list[tuple[int, Any]] = []

    class Numbered(Workflow):
        users = "fresh"

        def __init__(self) -> None:
            super().__init__()
            made.append(self)
            self.number = len(made)
            self.basket: list[int] = []

        @step()
        async def get(self) -> HTTPResponse:
            response = await self.client.http.get(f"{server}/")
            self.basket.append(1)
            return response

        @check()
        def alone(self, get: HTTPResponse) -> bool:
            seen.append((self.number, self.get.response is get))
            return len(self.basket) == 1

    ran = await run(Numbered, way, load=IterationsPerVU(1, 5))
    assert ran.tally.checks["alone"].passed == 5
    assert [number for number, _ in seen] == [2, 3, 4, 5, 6]  # the first is for the setup
    assert all(is_last for _, is_last in seen)


@every_way
async def test_a_fresh_user_that_cannot_be_made_ends_the_shard(server: str, way: str) -> None:
    made: list[object] = []

    class Scarce(Workflow):
        users = "fresh"

        def __init__(self) -> None:
            super().__init__()
            made.append(self)
            if len(made) == 4:
                raise RuntimeError("three are enough")

        @step()
        async def get(self) -> HTTPResponse:
            return await self.client.http.get(f"{server}/")

    ran = await run(Scarce, way, load=ConstantVUs(1, "20s"))
    assert "a further virtual user cannot be made: RuntimeError: three are enough" in str(ran.executor.failure)
    assert ran.tally.iterations == 3


@pytest.mark.parametrize("users", ["fresh", "kept"])
@every_way
async def test_fresh_connections_are_opened_by_every_iteration(server: str, way: str, users: str) -> None:
    found: list[str] = []

    class Anew(Workflow):
        connections = "fresh"

        @step()
        async def get(self) -> HTTPResponse:
            await self.client.http.get(f"{server}/")
            response = await self.client.http.get(f"{server}/cookie")
            found.append(response.text)
            return response

    ran = await run(type("Anew", (Anew,), {"users": users}), way, load=IterationsPerVU(1, 5))
    assert (Server.connections, ran.tally.exchanges.connections, ran.step.ok) == (5, 5, 5)
    assert found == ["", *(["" if users == "fresh" else "Cookie: user=known"] * 4)]


def logging_in(server: str, log: list[str], **body: Any) -> type[Workflow]:
    class Member(Workflow):
        token = ""

        @on_start()
        async def login(self) -> None:
            log.append(f"login{self.token}")
            self.token = (await self.client.http.get(f"{server}/later", name="form")).text

        @on_start()
        def settle(self) -> None:
            log.append("settle")

        @step()
        async def get(self) -> HTTPResponse:
            log.append(f"get{self.token}")
            return await self.client.http.get(f"{server}/")

        @on_stop()
        async def logout(self) -> None:
            log.append("logout")
            await self.client.http.get(f"{server}/")

    return type("Member", (Member,), body)


async def test_fresh_users_begin_and_leave_in_every_iteration(server: str) -> None:
    log: list[str] = []
    member = logging_in(server, log, users="fresh")
    ran = await same_every_way(member, load=IterationsPerVU(1, 3))
    assert log == ["login", "settle", "get/later", "logout"] * 3 * len(WAYS)
    tally = ran.tally
    assert (tally.iterations, tally.steps["login"].ok, tally.steps["settle"].ok, tally.steps["logout"].ok) == (3,) * 4
    assert tally.calls["login"]["form"].ok == tally.calls["logout"]["logout"].ok == 3
    assert tally.steps["login"].response_time.min >= 20 * MILLISECOND // MICROSECOND
    assert tally.steps["get"].response_time.min < tally.steps["login"].response_time.min


async def test_users_that_stay_begin_once_and_leave_in_the_end(server: str) -> None:
    log: list[str] = []
    ran = await same_every_way(logging_in(server, log), load=IterationsPerVU(2, 3))
    assert {name: log.count(name) // len(WAYS) for name in log} == {
        "login": 2,
        "settle": 2,
        "get/later": 6,
        "logout": 2,
    }
    assert log[-1] == "logout"
    assert ran.tally.iterations == 6

    log.clear()
    options: dict[str, Any] = {"load": ten_arrivals(max_vus=1), "watch": until_grown(log, 12)}
    ran = await same_every_way(logging_in(server, log, users="kept"), **options)
    assert (ran.tally.iterations, ran.tally.steps["login"].ok, ran.tally.steps["logout"].ok) == (10, 1, 1)


@every_way
async def test_users_that_leave_before_the_end_run_their_last_methods_then(server: str, way: str) -> None:
    log: list[str] = []
    shape = RampingVUs([(3, "0.2s"), (3, "0.3s"), (1, "0.2s"), (1, "0.5s")], start=1)
    ran = await run(logging_in(server, log), way, load=shape)
    assert ran.tally.steps["login"].ok == ran.tally.steps["logout"].ok == 3
    first_out = log.index("logout")
    assert "get/later" in log[first_out:]
    assert ran.tally.iterations == ran.tally.steps["get"].ok


async def test_a_user_that_could_not_begin_skips_its_steps_and_begins_again_if_it_stays(server: str) -> None:
    class Failing(Workflow):
        def __init__(self) -> None:
            super().__init__()
            self.tries = 0

        @on_start()
        async def login(self) -> None:
            self.tries += 1
            if self.tries < 3:
                raise ValueError("not yet")

        @on_start()
        async def settle(self) -> None:
            await self.client.http.get(f"{server}/")

        @step()
        async def get(self) -> HTTPResponse:
            return await self.client.http.get(f"{server}/")

        @check()
        def is_fine(self, get: HTTPResponse) -> bool:
            return True

        @on_stop()
        async def logout(self) -> None:
            await self.client.http.get(f"{server}/")

    ran = await same_every_way(Failing, load=IterationsPerVU(2, 5))
    tally = ran.tally
    assert (tally.steps["login"].failed, tally.steps["login"].ok, tally.steps["settle"].ok) == (4, 2, 2)
    assert (tally.steps["get"].skipped, tally.steps["get"].ok, tally.checks["is_fine"].passed) == (4, 6, 6)
    assert (tally.steps["logout"].ok, tally.iterations) == (2, 10)

    ran = await same_every_way(type("Fresh", (Failing,), {"users": "fresh"}), load=IterationsPerVU(1, 3))
    tally = ran.tally
    assert (tally.steps["login"].failed, tally.steps["get"].skipped, tally.steps["logout"].count) == (3, 3, 0)
    assert tally.iterations == 3


async def test_a_failed_call_in_on_start_fails_it_without_an_exception_and_the_user_goes_on(server: str) -> None:
    class Member(Workflow):
        @on_start()
        async def login(self) -> None:
            await self.client.http.get(f"{server}/status/500")

        @step()
        async def get(self) -> HTTPResponse:
            return await self.client.http.get(f"{server}/")

    ran = await same_every_way(Member, load=IterationsPerVU(1, 2))
    assert (ran.tally.steps["login"].failed, ran.tally.steps["get"].ok) == (1, 2)


@every_way
async def test_on_start_counts_from_the_due_instant_and_the_first_step_from_its_end(server: str, way: str) -> None:
    class Member(Workflow):
        @on_start()
        async def login(self) -> None:
            await self.client.http.get(f"{server}/later")

        @step()
        async def get(self) -> HTTPResponse:
            return await self.client.http.get(f"{server}/")

    ran = await run(Member, way, load=ConstantRate("100/s", "0.1s"), late_ns=5 * SECOND)
    assert ran.tally.iterations == 10
    login, get = ran.tally.steps["login"].response_time, ran.tally.steps["get"].response_time
    assert login.min >= 4.9 * US
    assert get.max < 4.9 * US
    assert ran.tally.calls["login"]["login"].response_time.min >= 4.9 * US


async def test_a_feed_without_rows_in_on_start_ends_the_shard(server: str) -> None:
    class Fed(Workflow):
        users = "fresh"
        given = 0

        @on_start()
        def take(self) -> None:
            type(self).given += 1
            if self.given > 3:
                raise FeedUsedUp("the feed was used up")

        @step()
        async def get(self) -> HTTPResponse:
            return await self.client.http.get(f"{server}/")

        @on_stop()
        def leave(self) -> None:
            """After each row."""

    ran = await same_every_way(Fed, load=ConstantVUs(1, "20s"))
    assert (ran.tally.steps["get"].ok, ran.tally.steps["get"].skipped, ran.executor.note) == (
        3,
        0,
        "the feed was used up",
    )
    assert (ran.tally.steps["leave"].ok, ran.tally.iterations, ran.tally.started) == (3, 3, 4)


async def test_an_iteration_without_a_row_ends_where_it_is(server: str) -> None:
    class Fed(Workflow):
        users = "fresh"
        given = 0

        @step()
        async def take(self) -> HTTPResponse:
            type(self).given += 1
            if self.given > 3:
                raise FeedUsedUp("the feed was used up")
            return await self.client.http.get(f"{server}/")

        @step("take")
        async def use(self) -> HTTPResponse:
            return await self.client.http.get(f"{server}/")

        @on_stop()
        def leave(self) -> None:
            """After each row."""

    ran = await same_every_way(Fed, load=ConstantVUs(1, "20s"))
    steps = ran.tally.steps
    assert (steps["take"].ok, steps["take"].failed, steps["use"].ok, steps["use"].skipped) == (3, 0, 3, 0)
    assert (steps["leave"].ok, ran.tally.iterations, ran.tally.interrupted_iterations) == (3, 3, 0)


# Pauses.


@every_way
async def test_a_pause_inside_a_step_is_part_of_its_response_time(server: str, way: str) -> None:
    class Reading(Workflow):
        @step()
        async def read(self) -> HTTPResponse:
            await self.client.http.get(f"{server}/", name="page")
            await self.pause("30ms", "40ms")
            await self.pause(0)
            return await self.client.http.get(f"{server}/", name="next")

    ran = await run(Reading, way, load=IterationsPerVU(3, 4))
    assert (ran.step.ok, ran.tally.iterations) == (12, 12)
    assert ran.step.response_time.min >= 30_000
    assert ran.tally.calls["read"]["next"].ok == 12


@every_way
async def test_pauses_of_many_users_end_each_in_its_time(server: str, way: str) -> None:
    early: list[float] = []

    class Sleepers(Workflow):
        def __init__(self) -> None:
            super().__init__()
            self.lengths = iter([0.013, 0.001, 0.02, 0.0, 0.007])

        @step()
        async def nap(self) -> HTTPResponse:
            length = next(self.lengths)
            until_ns = monotonic_ns() + round(length * SECOND)
            await self.pause(length)
            if monotonic_ns() < until_ns:
                early.append(length)
            return self.lengths  # type: ignore[return-value] # anything

    ran = await run(Sleepers, way, load=IterationsPerVU(30, 5))
    assert (ran.tally.iterations, ran.step.ok, early) == (150, 150, [])


@every_way
async def test_a_plan_that_ends_during_a_pause_waits_for_it(server: str, way: str) -> None:
    class Slow(Workflow):
        @step()
        async def read(self) -> HTTPResponse:
            await self.client.http.get(f"{server}/")
            await self.pause("300ms")
            return await self.client.http.get(f"{server}/")

    ran = await run(Slow, way, load=ConstantVUs(2, "0.1s"))
    assert (ran.tally.iterations, ran.step.ok, ran.tally.interrupted_iterations) == (2, 2, 0)


async def test_a_pause_after_the_grace_is_interrupted(server: str) -> None:
    class Slow(Workflow):
        @step()
        async def read(self) -> HTTPResponse:
            await self.pause("60s")
            return await self.client.http.get(f"{server}/")

    ran = await same_every_way(Slow, load=ConstantVUs(2, "0.1s"), grace_s=0.02)
    assert (ran.tally.iterations, ran.step.interrupted, ran.tally.interrupted_iterations) == (0, 2, 2)


@every_way
async def test_a_pause_that_was_given_up_does_not_end_a_later_one(server: str, way: str) -> None:
    lasted_ns: list[int] = []

    class Stubborn(Workflow):
        @step()
        async def read(self) -> HTTPResponse:
            with contextlib.suppress(asyncio.CancelledError):
                await self.pause("2s")
            began_ns = monotonic_ns()
            await self.pause("400ms")
            lasted_ns.append(monotonic_ns() - began_ns)
            return await self.client.http.get(f"{server}/")

    ran = await run(Stubborn, way, load=ConstantVUs(1, "0.5s"), grace_s=0.02, left_behind_s=20)
    assert (ran.tally.iterations, ran.step.ok) == (1, 1)
    assert lasted_ns[0] >= 395 * MILLISECOND


async def test_a_pause_of_less_than_nothing_is_an_error_of_the_test(server: str) -> None:
    class Odd(Workflow):
        @step()
        async def read(self) -> HTTPResponse:
            await self.pause("-1s")
            return await self.client.http.get(f"{server}/")

    ran = await same_every_way(Odd, load=IterationsPerVU(1, 1))
    assert ran.step.errors == {"exception": 1}


# The end.


def journey(server: str, path: str) -> type[Workflow]:
    class Journey(Workflow):
        @step()
        async def first(self) -> HTTPResponse:
            return await self.client.http.get(f"{server}{path}")

        @step("first")
        async def second(self) -> HTTPResponse:
            return await self.client.http.get(f"{server}{path}")

        @step("second")
        async def third(self, second: HTTPResponse) -> HTTPResponse:
            return await self.client.http.get(f"{server}{path}")

        @check()
        def is_fine(self, third: HTTPResponse) -> bool:
            return True

    return Journey


async def test_journeys_that_began_are_finished_after_the_plan_is_over(server: str) -> None:
    ran = await same_every_way(journey(server, "/stall"), load=ConstantRate("50/s", "0.2s"))
    steps = ran.tally.steps
    assert [steps[name].ok for name in ("first", "second", "third")] == [10, 10, 10]
    assert (ran.tally.iterations, ran.tally.interrupted_iterations, ran.tally.checks["is_fine"].passed) == (10, 0, 10)


async def test_journeys_that_are_cut_are_counted(server: str) -> None:
    ran = await same_every_way(journey(server, "/hang"), load=ConstantRate("50/s", "0.1s"), grace_s=0.05)
    assert (ran.tally.iterations, ran.tally.interrupted_iterations) == (0, 5)
    assert (ran.tally.steps["first"].interrupted, ran.tally.steps["second"].count) == (5, 0)
    assert ran.tally.calls["first"]["first"].interrupted == 5


@every_way
async def test_a_user_that_does_not_heed_its_interruption_is_an_interrupted_iteration(server: str, way: str) -> None:
    class Endless(Workflow):
        @step()
        async def get(self) -> HTTPResponse:
            while True:
                try:
                    await self.client.http.get(f"{server}/hang")
                except asyncio.CancelledError:
                    continue

    ran = await run(Endless, way, load=ConstantVUs(1, "0.05s"), grace_s=0.02)
    assert (ran.tally.iterations, ran.tally.interrupted_iterations) == (0, 1)


@every_way
async def test_a_stop_lets_users_leave(server: str, way: str) -> None:
    log: list[str] = []

    async def stop(executor: Executor) -> None:
        await Server.asked.wait()
        executor.stop()

    ran = await run(logging_in(server, log), way, load=ConstantVUs(1, "20s"), watch=stop)
    assert log == ["login", "settle", "get/later", "logout"]
    assert (ran.tally.iterations, ran.tally.steps["logout"].ok) == (1, 1)


@every_way
async def test_an_end_at_once_interrupts_what_is_under_way_and_counts_it(server: str, way: str) -> None:
    async def end(executor: Executor) -> None:
        await Server.hung.wait()
        executor.stop()
        await asyncio.sleep(0)
        executor.end_at_once()

    ran = await run(journey(server, "/hang"), way, load=ConstantVUs(2, "20s"), grace_s=25, watch=end)
    assert ran.tally.iterations == 0
    assert ran.tally.interrupted_iterations == ran.tally.started == ran.tally.steps["first"].interrupted
    assert ran.tally.calls["first"]["first"].interrupted == ran.tally.started
    assert ran.tally.exchanges.interrupted >= 1  # others may have been about to connect


# The direct driver's own.


@needs_native
async def test_nothing_is_kept_of_names_failures_pauses_and_fresh_users(server: str) -> None:
    url = URL(f"{server}/")

    class Users(Workflow):
        users = "fresh"
        seen = False

        @on_start()
        async def login(self) -> None:
            self.seen = True

        @step()
        async def get(self) -> HTTPResponse:
            await self.client.http.get(url, name="page")
            await self.client.http.get(f"{server}/status/500", name="other")
            await self.pause(0)
            return await self.client.http.get(url)

        @step("get")
        async def skipped(self, get: HTTPResponse) -> HTTPResponse:
            raise Skip

        @check()
        def never(self, skipped: HTTPResponse) -> bool:
            return self.skipped.response is not None

    async def counts(iterations: int) -> tuple[int, ...]:
        await run(Users, "native direct", load=SharedIterations(4, iterations))
        await asyncio.sleep(0)
        gc.collect()
        watched = (None, True, Users, url, Users.get, 200, b"", "", "page", Skip)
        return (*(sys.getrefcount(thing) for thing in watched), len(gc.get_objects()))

    await counts(20)
    before = await counts(20)
    after = await counts(2_000)
    assert all(abs(late - early) < 100 for early, late in zip(before, after, strict=True)), (before, after)
