"""One suite for every store of dag jobs."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from talka.store.dags.records import Store
from tests.store.dags.engines import ENGINES, Engine, opened


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    return ENGINES[request.param](tmp_path, monkeypatch)


@pytest.fixture
async def store(engine: Engine) -> AsyncIterator[Store]:
    async with opened(engine) as store:
        yield store
