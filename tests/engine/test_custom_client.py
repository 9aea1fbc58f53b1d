import asyncio

import pytest

from talka.clock import monotonic_ns
from talka.engine.calls import ExchangeFailed, current_call
from talka.engine.clients.custom import CustomClient
from talka.engine.clients.deadlines import BadTimeout
from tests.engine.node_runs import Told, node_run


async def answer(value: str = "done") -> str:
    await asyncio.sleep(0)
    return value


async def test_the_result_and_its_times_come_back() -> None:
    before = monotonic_ns()
    response = await CustomClient().call(answer())
    assert response.value == "done"
    assert response.accepted
    assert before <= response.intended_ns == response.sent_ns < response.done_ns <= monotonic_ns()


async def test_any_awaitable_will_do() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, 7)
    assert (await CustomClient().call(future)).value == 7


async def test_the_first_call_of_a_step_takes_its_intended_start() -> None:
    client = CustomClient()
    token = current_call.set(node_run(42))
    first = await client.call(answer())
    second = await client.call(answer())
    current_call.reset(token)
    assert first.intended_ns == 42
    assert second.intended_ns == second.sent_ns


async def test_a_call_that_takes_too_long_is_a_timeout() -> None:
    with pytest.raises(ExchangeFailed, match=r"not done within 0\.01 s") as caught:
        await CustomClient().call(asyncio.Event().wait(), timeout=0.01)
    assert caught.value.kind == "timeout"


async def test_a_call_within_its_timeout_returns() -> None:
    assert (await CustomClient().call(answer("in time"), timeout=10)).value == "in time"


@pytest.mark.parametrize("timeout", [None, 10.0])
async def test_errors_of_the_awaitable_pass_through(timeout: float | None) -> None:
    async def broken() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await CustomClient().call(broken(), timeout=timeout)


async def test_a_timeout_of_the_awaitables_own_passes_through() -> None:
    async def impatient() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        await CustomClient().call(impatient(), timeout=10)


async def test_a_senseless_timeout_is_refused_without_leaving_a_coroutine_behind() -> None:
    with pytest.raises(BadTimeout):
        await CustomClient().call(answer(), timeout=0)
    with pytest.raises(BadTimeout):
        await CustomClient().call(asyncio.get_running_loop().create_future(), timeout=-1)


@pytest.mark.parametrize("is_in_a_step", [True, False])
async def test_a_call_that_is_cancelled_is_told_to_its_step_under_its_name(is_in_a_step: bool) -> None:
    rows = Told()
    token = current_call.set(node_run(rows=rows)) if is_in_a_step else None
    call = asyncio.create_task(CustomClient().call(asyncio.Event().wait(), name="page"))
    if token is not None:
        current_call.reset(token)
    await asyncio.sleep(0)  # let it begin
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert rows.calls == ([("cut", "page", None)] if is_in_a_step else [])
