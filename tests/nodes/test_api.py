"""Jobs from Python: `run` for those who can await, `run_blocking` for those who cannot."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import talka
from talka.control.load.planning import Overrides
from talka.errors import Invalid
from talka.nodes import api
from talka.nodes.local import LocalOptions
from talka.work.dsl import Workflow, step
from talka.work.responses import CustomResponse

GIVEN: dict[str, Any] = {
    "cores": 2,
    "vus": 3,
    "rate": "5/s",
    "duration": "1m",
    "iterations": 4,
    "thresholds": ["failed < 1%"],
    "grace": "5s",
    "seed": 7,
    "engine": "native",
    "allow_partial": True,
}
OPTIONS = LocalOptions(
    cores=2,
    overrides=Overrides(vus=3, rate="5/s", duration="1m", iterations=4),
    thresholds=("failed < 1%",),
    grace="5s",
    seed=7,
    engine="native",
    allow_partial=True,
)


def shop() -> type[Workflow]:
    class Shop(Workflow):
        @step()
        async def go(self) -> CustomResponse[int]:
            return CustomResponse(1)

    return Shop


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What reached the local runner."""
    calls: list[Any] = []

    async def run_workflows(workflows: Sequence[type[Workflow]], options: LocalOptions) -> Any:
        calls.append((workflows, options))
        return "document"

    monkeypatch.setattr(api, "run_workflows", run_workflows)
    return calls


async def test_run_hands_everything_on(asked: list[Any]) -> None:
    one, two = shop(), shop()
    assert await api.run([one, two], **GIVEN) == "document"
    assert asked == [([one, two], OPTIONS)]


def test_run_blocking_hands_everything_on(asked: list[Any]) -> None:
    one = shop()
    assert api.run_blocking(one, **GIVEN) == "document"
    assert asked == [([one], OPTIONS)]


async def test_defaults_leave_everything_to_the_classes(asked: list[Any]) -> None:
    one = shop()
    await api.run(one)
    assert asked == [([one], LocalOptions())]


async def test_run_gives_the_result() -> None:
    document = await talka.run(shop(), iterations=5, vus=2)
    assert (document.status, document.workflows[0].iterations) == ("completed", 5)


def test_run_blocking_gives_the_result() -> None:
    assert talka.run_blocking([shop()], iterations=3).workflows[0].iterations == 3


async def test_run_blocking_works_where_an_event_loop_runs_already() -> None:
    assert talka.run_blocking([shop()], iterations=3).workflows[0].iterations == 3
    await asyncio.sleep(0)  # the loop around it is as it was


async def test_errors_come_out_of_both() -> None:
    with pytest.raises(Invalid, match="there are no workflows to run"):
        await talka.run([])
    with pytest.raises(Invalid, match="there are no workflows to run"):
        talka.run_blocking([])


async def test_an_option_nobody_knows_is_refused_before_anything_runs() -> None:
    with pytest.raises(TypeError, match="run\\(\\) does not know cors: it takes cores, vus"):
        await talka.run([], cors=2)  # type: ignore[call-arg]
