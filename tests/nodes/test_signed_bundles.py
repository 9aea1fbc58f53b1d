"""A worker on the network runs what a manager of its cluster has signed, and nothing else."""

import hmac
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from pytest import MonkeyPatch

from talka.client.ordering import OrderOptions, submission_of_url
from talka.control.load.planning import Overrides
from talka.net.endorsing import Endorser
from talka.nodes.manager import ManagerNode
from talka.store.files.signing_key import NAME, BadSigningKey
from talka.wire.orders import JobOrder
from talka.wire.security.bundles import SIGNER_PURPOSE, BundleSigner
from talka.work.lifecycle import JobState
from tests.nodes.small_cluster import SECRET, SmallCluster, small_cluster

GROUP = "default/default"
Forged = Callable[[SmallCluster, JobOrder], JobOrder]
both = pytest.mark.parametrize("certified", [False, True], ids=["secret alone", "certificates"])


def an_order() -> JobOrder:
    options = OrderOptions(overrides=Overrides(vus=1, iterations=1), cores=1)
    return submission_of_url("http://127.0.0.1:9/", options).order


def with_(order: JobOrder, **changes: bytes) -> JobOrder:
    return msgspec.structs.replace(order, bundle=msgspec.structs.replace(order.bundle, **changes))


def unsigned(cluster: SmallCluster, order: JobOrder) -> JobOrder:
    return with_(order, signature=b"", word=b"")


def by_the_secret(cluster: SmallCluster, order: JobOrder) -> JobOrder:
    """As whoever has read the worker's secret could sign for workers of protocol 1.0."""
    extracted = hmac.digest(b"talka cluster secret 1", SECRET.encode(), "sha256")
    derived = hmac.digest(extracted, b"talka bundle\x01", "sha256")
    return with_(order, signature=hmac.digest(derived, order.bundle.digest.encode(), "sha256"))


def for_another_bundle(cluster: SmallCluster, order: JobOrder) -> JobOrder:
    return with_(order, word=cluster.managers["m"]._trust.signer.sign("0" * 64))


def in_another_cluster(cluster: SmallCluster, order: JobOrder) -> JobOrder:
    """By the manager's own key, as it would sign there."""
    signer = BundleSigner(bytes.fromhex((cluster.folder / "m" / NAME).read_text()), "default/production")
    signer.voucher = cluster.managers["m"]._trust.signer.voucher
    return with_(order, word=signer.sign(order.bundle.digest))


@both
@pytest.mark.parametrize("forged", [unsigned, by_the_secret, for_another_bundle, in_another_cluster])
async def test_a_worker_refuses_what_no_manager_has_signed(
    tmp_path: Path, monkeypatch: MonkeyPatch, forged: Forged, certified: bool
) -> None:
    async with small_cluster(tmp_path, "m", certified=certified) as cluster:
        await cluster.start_worker()
        manager = cluster.managers["m"]
        monkeypatch.setattr(manager, "signed", lambda order: forged(cluster, order))

        facts = await manager.control.submit(an_order(), "")
        ended = await cluster.ended(facts.id)

    assert ended.state is JobState.FAILED
    assert "worker w runs nothing unsigned" in ended.reason
    assert cluster.told("task-armed", "task-started") == []


async def test_a_worker_cannot_sign_with_its_own_certificate(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """All that a submitted test could read on a worker is its certificate, its key and the secret."""
    async with small_cluster(tmp_path, "m", certified=True) as cluster:
        await cluster.start_worker()
        manager = cluster.managers["m"]
        assert cluster.certs is not None
        stolen = Endorser(cluster.certs, name="w", cluster="default", environment="default")
        signer = BundleSigner(b"s" * 32, GROUP)
        signer.voucher = stolen.vouch(SIGNER_PURPOSE, signer.public)
        monkeypatch.setattr(manager, "signed", lambda order: with_(order, word=signer.sign(order.bundle.digest)))

        facts = await manager.control.submit(an_order(), "")
        ended = await cluster.ended(facts.id)

    assert ended.state is JobState.FAILED
    assert "no manager has signed this bundle: w is a worker, and a manager is needed" in ended.reason
    assert cluster.told("task-armed", "task-started") == []


async def test_the_voucher_of_a_manager_is_for_its_own_key_alone(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """Vouchers travel with every job, and may be read by anybody who has one of them."""
    async with small_cluster(tmp_path, "m", certified=True) as cluster:
        await cluster.start_worker()
        manager = cluster.managers["m"]
        signer = BundleSigner(b"s" * 32, GROUP)
        signer.voucher = manager._trust.signer.voucher
        monkeypatch.setattr(manager, "signed", lambda order: with_(order, word=signer.sign(order.bundle.digest)))

        facts = await manager.control.submit(an_order(), "")
        ended = await cluster.ended(facts.id)

    assert "the signature of 'm' is invalid" in ended.reason
    assert cluster.told("task-armed", "task-started") == []


@both
async def test_a_worker_runs_what_its_manager_has_signed(tmp_path: Path, certified: bool) -> None:
    async with small_cluster(tmp_path, "m", certified=certified) as cluster:
        await cluster.start_worker()
        facts = await cluster.managers["m"].control.submit(an_order(), "")
        await cluster.ended(facts.id)

    assert [event["job"] for event in cluster.told("task-started")] == [facts.id]


@both
async def test_what_a_manager_signed_runs_after_it_is_gone_on_a_worker_that_never_met_it(
    tmp_path: Path, certified: bool
) -> None:
    async with small_cluster(tmp_path, "a", "b", "c", certified=certified) as cluster:
        leader = await cluster.leader()
        accepted_at = next(node for name, node in cluster.managers.items() if name != leader.options.name)
        facts = await accepted_at.control.submit(an_order(), "")
        await cluster.stop(accepted_at.options.name)
        await cluster.leader(but=accepted_at.options.name)

        await cluster.start_worker()
        await cluster.ended(facts.id)

    assert [event["job"] for event in cluster.told("task-started")] == [facts.id]


async def test_a_manager_whose_key_others_can_read_does_not_start(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, "m") as cluster:
        before = cluster.managers["m"]._trust.signer.public
        await cluster.stop("m")
        (tmp_path / "m" / NAME).chmod(0o640)
        with pytest.raises(BadSigningKey, match="others than its owner"):
            cluster.start_manager("m")
        (tmp_path / "m" / NAME).chmod(0o600)

        again: ManagerNode = cluster.start_manager("m")

        assert again._trust.signer.public == before
