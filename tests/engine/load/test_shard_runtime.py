"""What a shard's users stand on: setup before, teardown after, feeds and pauses in between."""

import asyncio

import msgspec
import pytest

from talka.engine.load.shard_runtime import SetupFailed, ShardRuntime
from talka.engine.load.users import VALUES_LIMIT_BYTES
from talka.errors import Invalid
from talka.units import SECOND
from talka.wire.shards import CONTEXT_PREFIX
from talka.work.arguments import URL
from talka.work.dsl import Workflow, setup, step, teardown
from talka.work.feeds import Feed, between
from talka.work.inspection import inspect_workflows
from talka.work.responses import CustomResponse, HTTPResponse


def stage_of(workflow: type[Workflow], *, seed: int | None = None) -> ShardRuntime:
    [spec] = inspect_workflows([workflow])
    return ShardRuntime(spec, {}, spec.plan.split(1)[0], seed=seed)


class Shop(Workflow):
    think = between("1s", "9s")

    @setup()
    async def open_up(self) -> None:
        self.context["log"] = ["open"]

    @step()
    async def buy(self) -> CustomResponse[None]:
        self.context["log"].append("buy")
        return await self.client.custom.call(asyncio.sleep(0))

    @teardown()
    def close_down(self) -> None:
        self.context["log"].append("close")


async def test_setup_runs_before_and_teardown_after_with_the_context_of_the_users() -> None:
    stage = stage_of(Shop)
    await stage.set_up()
    user = stage.new_user(0)
    await stage.iterations.run(user, 1)
    await stage.tear_down(SECOND)
    await stage.close()
    assert user.workflow.context["log"] == ["open", "buy", "close"]
    assert {name: tally.ok for name, tally in stage.recorder.tally.actions.items()} == {"open_up": 1, "close_down": 1}


async def test_setup_that_raises_is_told_with_its_line() -> None:
    class Broken(Shop):
        @setup()
        async def open_up(self) -> None:
            raise KeyError("token")

    stage = stage_of(Broken)
    with pytest.raises(SetupFailed, match=r"Broken.open_up raised KeyError: 'token' \(.*test_shard_runtime.py:\d+\)"):
        await stage.set_up()
    await stage.tear_down(SECOND)
    await stage.close()


async def test_teardown_that_raises_or_hangs_is_counted_and_the_others_still_run() -> None:
    class Broken(Shop):
        @teardown()
        async def hangs(self) -> None:
            await asyncio.Event().wait()

        @teardown()
        def raises(self) -> None:
            raise ValueError("no")

    stage = stage_of(Broken)
    await stage.set_up()
    await stage.tear_down(SECOND // 100)
    await stage.close()
    tallies = stage.recorder.tally.actions
    assert (tallies["hangs"].failed, tallies["raises"].failed, tallies["close_down"].ok) == (1, 1, 1)


async def test_a_workflow_that_cannot_be_made_is_a_failure_of_the_setup() -> None:
    class Broken(Shop):
        def __init__(self) -> None:
            raise RuntimeError("no")

    stage = stage_of(Broken)
    with pytest.raises(SetupFailed, match="Broken cannot be made: RuntimeError: no"):
        await stage.set_up()
    await stage.close()


async def test_pauses_follow_the_seed_and_leave_the_users_own_draws_alone() -> None:
    drawn = []
    for _ in range(2):
        stage = stage_of(Shop, seed=5)
        assert stage.think is not None
        drawn.append([stage.think() for _ in range(20)])
        await stage.close()
    assert drawn[0] == drawn[1]
    assert all(SECOND <= length <= 9 * SECOND for length in drawn[0])


async def test_pauses_without_a_seed_are_others_each_time() -> None:
    drawn = []
    for _ in range(2):
        stage = stage_of(Shop)
        assert stage.think is not None
        drawn.append([stage.think() for _ in range(20)])
        await stage.close()
    assert drawn[0] != drawn[1]


async def test_users_share_the_rows_of_a_feed(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users.csv").write_text("name\nada\nbob\n")
    monkeypatch.chdir(tmp_path)

    class Fed(Workflow):
        users = Feed.csv("users.csv", order="once")

        @step()
        async def buy(self) -> CustomResponse[None]:
            self.context.setdefault("seen", []).append(self.users.next()["name"])
            return await self.client.custom.call(asyncio.sleep(0))

    stage = stage_of(Fed)
    said: list[str] = []
    stage.iterations.on_used_up = said.append
    await stage.set_up()
    users = [stage.new_user(position) for position in range(3)]
    finished = [await stage.iterations.run(user, 1) for user in users[:2]]
    assert users[0].workflow.context["seen"] == ["ada", "bob"]
    assert not said
    await stage.iterations.run(users[2], 1)
    await stage.close()
    assert finished == [True, True]
    assert said == ["the feed users (users.csv) was used up: it has 2 rows"]
    stage.recorder.settle()
    assert stage.recorder.tally.steps["buy"].count == 2, "wanting a row that is not there is no failure of the step"


async def test_authorities_that_cannot_be_read_are_told_before_the_clock_starts() -> None:
    class Secure(Workflow):
        verify = "no/such/file.pem"

        @step()
        async def get(self, url: URL = "https://127.0.0.1:1/") -> HTTPResponse:
            return await self.client.http.get(url)

    stage = stage_of(Secure)
    with pytest.raises(Invalid, match="the certificate authorities in 'no/such/file.pem' cannot be loaded"):
        await stage.set_up()
    await stage.close()


async def test_the_context_is_handed_on_as_far_as_provided_values_leave_room_for_it() -> None:
    stage = stage_of(Shop)
    await stage.set_up()
    content = msgspec.msgpack.encode(["open"])
    room = VALUES_LIMIT_BYTES - len(content)
    fits = stage.handed_on({"one": bytes(room - 1), "two": bytes(1)})
    found, notes = stage.handed_on({"one": bytes(room), "two": bytes(1)})
    await stage.close()
    assert fits == ({CONTEXT_PREFIX + "log": content}, [])
    assert (found, len(notes)) == ({}, 1)
