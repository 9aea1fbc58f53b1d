"""Bundles that pipelines brought, on a manager's disk: which are taken, and how long they stay."""

import hashlib
import os
from pathlib import Path

import pytest

from talka.client.requests import BundleMissing
from talka.errors import Invalid
from talka.nodes.dags.dag_service import DagService
from talka.nodes.manager import ManagerNode
from talka.store.dags.records import StoreLost
from talka.units import SECOND
from talka.work.dags.dag import CodeBundle, DagSpec, TaskSpec
from talka.work.retention import Keep
from tests.nodes.small_cluster import small_cluster

KEEP = Keep(60 * SECOND, 10)


async def uploaded(node: ManagerNode, content: bytes) -> CodeBundle:
    digest = hashlib.sha256(content).hexdigest()
    await node.control.put_bundle(digest, content)
    return CodeBundle(digest, len(content), ("etl.py",), ("mine",))


def job(bundle: CodeBundle, name: str = "n", schedule: str = "") -> DagSpec:
    tasks = (TaskSpec(id="a", handler="mine"),)
    return DagSpec(name=name, tasks=tasks, schedule=schedule, bundle=bundle, wait_for_workers=True)


async def left_of(node: ManagerNode, *bundles: CodeBundle) -> list[bool]:
    """Which are still there when all are old, and what nothing names was dropped."""
    for bundle in bundles:
        path = node.folder / "blobs" / bundle.digest
        if path.exists():
            os.utime(path, (1, 1))
    await node.drop_unnamed(KEEP)
    return [await node.control.has_bundle(bundle.digest) for bundle in bundles]


def dags_of(node: ManagerNode) -> DagService:
    assert node.dags is not None
    return node.dags


async def test_bundles_that_a_live_job_or_a_schedule_names_stay_and_others_go(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, "m", store=f"sqlite:///{tmp_path}/jobs.sqlite") as cluster:
        node = await cluster.leader()
        live, scheduled, unnamed = [await uploaded(node, content) for content in (b"live", b"scheduled", b"unnamed")]
        facts = await dags_of(node).submit_dag(job(live), "", "")
        await dags_of(node).put_schedule(job(scheduled, "each", "0 0 1 1 *"), "")

        assert await left_of(node, live, scheduled, unnamed) == [True, True, False]

        await dags_of(node).cancel_dag(facts.id, "")
        assert await left_of(node, live, scheduled) == [False, True]
        await dags_of(node).drop_schedule("each")
        assert await left_of(node, scheduled) == [False]
        with pytest.raises(BundleMissing):
            await dags_of(node).submit_dag(job(live), "", "")


async def test_a_bundle_that_was_named_lately_stays_and_so_do_all_while_the_store_cannot_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with small_cluster(tmp_path, "m", store=f"sqlite:///{tmp_path}/jobs.sqlite") as cluster:
        node = await cluster.leader()
        bundle = await uploaded(node, b"code")
        os.utime(node.folder / "blobs" / bundle.digest, (1, 1))
        node.check_bundle(bundle)
        await node.drop_unnamed(KEEP)
        assert await node.control.has_bundle(bundle.digest)

        async def lost() -> set[str]:
            raise StoreLost("another manager has the store")

        with monkeypatch.context() as patch:
            patch.setattr(node.dags, "bundles", lost)
            assert await left_of(node, bundle) == [True]
        assert await left_of(node, bundle) == [False]


async def test_a_bundle_of_another_size_than_the_job_says_is_refused(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, "m", store=f"sqlite:///{tmp_path}/jobs.sqlite") as cluster:
        node = await cluster.leader()
        bundle = await uploaded(node, b"four")
        node.check_bundle(bundle)
        wrong = CodeBundle(bundle.digest, 5, bundle.files, bundle.handlers)
        sentence = f"^the bundle {bundle.digest[:12]} has 4 bytes, not 5$"
        with pytest.raises(Invalid, match=sentence):
            node.check_bundle(wrong)
        with pytest.raises(Invalid, match=sentence):
            await dags_of(node).submit_dag(job(wrong), "", "")
        with pytest.raises(BundleMissing, match="put it first"):
            node.check_bundle(CodeBundle("0" * 64, 4, bundle.files, bundle.handlers))
