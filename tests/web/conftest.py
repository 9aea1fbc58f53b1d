from collections.abc import AsyncIterator, Callable

import pytest

from talka.client import calls
from talka.client.calls import ApiCalls
from talka.client.client import Client
from talka.units import SECOND
from talka.web.api_limits import API_LIMITS
from talka.web.auth import Tokens
from talka.wire.orders import JobOrder
from tests.web.fake_control import KEY, LIMIT_S, Api, Apis, FakeControl, make_order
from tests.web.fake_dags import FakeDags


@pytest.fixture
async def apis() -> AsyncIterator[Apis]:
    apis = Apis()
    try:
        yield apis
    finally:
        await apis.close()


@pytest.fixture
async def api(apis: Apis, request: pytest.FixtureRequest) -> Api:
    """On loopback, without tokens. With a parameter: its limits."""
    return await apis.start(api_limits=getattr(request, "param", API_LIMITS))


@pytest.fixture
def dags() -> FakeDags:
    return FakeDags()


@pytest.fixture
async def dag_api(apis: Apis, dags: FakeDags, request: pytest.FixtureRequest) -> Api:
    """On loopback, without tokens, of a manager with a store. With a parameter: its limits."""
    return await apis.start(dags=dags, api_limits=getattr(request, "param", API_LIMITS))


@pytest.fixture
def control(api: Api) -> FakeControl:
    return api.control


@pytest.fixture
def tokens() -> Tokens:
    return Tokens([KEY], "shop")


@pytest.fixture
def order_of() -> Callable[..., JobOrder]:
    return make_order


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Client]:
    """Makes clients whose time is over once every manager was asked, however long that takes on a busy machine."""
    now_ns = 0

    async def pause(client: ApiCalls, attempts: int, most_s: float = 0.0) -> None:
        nonlocal now_ns
        now_ns += LIMIT_S * SECOND

    monkeypatch.setattr(calls, "monotonic_ns", lambda: now_ns)
    monkeypatch.setattr(ApiCalls, "_pause", pause)

    def make(*addresses: str, **more: str) -> Client:
        return Client(addresses, question_s=LIMIT_S, result_s=LIMIT_S, **more)

    return make
