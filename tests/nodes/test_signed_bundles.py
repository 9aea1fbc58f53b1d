"""A worker on the network runs what a manager of its cluster has signed, and nothing else."""

import hmac
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from pytest import MonkeyPatch

from talka.client.ordering import OrderOptions, submission_of_url
from talka.control.planning_load import Overrides
from talka.wire.records import JobOrder
from talka.work.lifecycle import JobState
from tests.nodes.signed_cluster import SECRET, running_pair


def an_order() -> JobOrder:
    options = OrderOptions(overrides=Overrides(vus=1, iterations=1), cores=1)
    return submission_of_url("http://127.0.0.1:9/", options).order


def unsigned(order: JobOrder) -> JobOrder:
    return msgspec.structs.replace(order, bundle=msgspec.structs.replace(order.bundle, signature=b""))


def by_the_secret(order: JobOrder) -> JobOrder:
    """As whoever has read the worker's secret could sign."""
    extracted = hmac.digest(b"talka cluster secret 1", SECRET.encode(), "sha256")
    derived = hmac.digest(extracted, b"talka bundle\x01", "sha256")
    signature = hmac.digest(derived, order.bundle.digest.encode(), "sha256")
    return msgspec.structs.replace(order, bundle=msgspec.structs.replace(order.bundle, signature=signature))


@pytest.mark.parametrize("certified", [False, True], ids=["secret alone", "certificates"])
@pytest.mark.parametrize("forged", [unsigned, by_the_secret])
async def test_a_worker_refuses_what_no_manager_has_signed(
    tmp_path: Path, monkeypatch: MonkeyPatch, forged: Callable[[JobOrder], JobOrder], certified: bool
) -> None:
    async with running_pair(tmp_path, certified=certified) as pair:
        monkeypatch.setattr(pair.manager, "signed", forged)

        facts = await pair.manager.control.submit(an_order(), "")
        ended = await pair.ended(facts.id)

    assert ended.state is JobState.FAILED
    assert "worker w runs nothing unsigned" in ended.reason
    assert [event for event in pair.events if event["event"] in ("task-armed", "task-started")] == []


@pytest.mark.parametrize("certified", [False, True], ids=["secret alone", "certificates"])
async def test_a_worker_runs_what_its_manager_has_signed(tmp_path: Path, certified: bool) -> None:
    async with running_pair(tmp_path, certified=certified) as pair:
        facts = await pair.manager.control.submit(an_order(), "")
        await pair.ended(facts.id)

    assert [event["job"] for event in pair.events if event["event"] == "task-started"] == [facts.id]
