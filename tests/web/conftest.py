from collections.abc import AsyncIterator, Callable

import pytest

from talka.client.requests import JobOrder
from talka.web.auth import Tokens
from tests.web.fake_control import KEY, Api, Apis, FakeControl, make_order
from tests.web.fake_dags import FakeDags


@pytest.fixture
async def apis() -> AsyncIterator[Apis]:
    apis = Apis()
    try:
        yield apis
    finally:
        await apis.close()


@pytest.fixture
async def api(apis: Apis) -> Api:
    """On loopback, without tokens."""
    return await apis.start()


@pytest.fixture
def dags() -> FakeDags:
    return FakeDags()


@pytest.fixture
async def dag_api(apis: Apis, dags: FakeDags) -> Api:
    """On loopback, without tokens, of a manager with a store."""
    return await apis.start(dags=dags)


@pytest.fixture
def control(api: Api) -> FakeControl:
    return api.control


@pytest.fixture
def tokens() -> Tokens:
    return Tokens([KEY], "shop")


@pytest.fixture
def order_of() -> Callable[..., JobOrder]:
    return make_order
