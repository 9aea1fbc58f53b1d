"""Which blobs a worker gets of a manager: bundles of its jobs, and nothing else."""

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from talka.cluster.effects import Lane, Send
from talka.control.blobs.replicated_blobs import ServeBlob
from talka.control.jobs.bundle_rights import HOLDS_NS, KNOWN_LIMIT, BundleRights
from talka.control.manager import Manager
from talka.control.member.voter import Voter
from talka.testing.trust import keys_of_workers
from talka.wire.entries import Grant, JobEntry, encode_entry
from talka.wire.jobs import CHANNEL, Piece, WantBlob
from talka.wire.orders import JobOrder
from talka.wire.security.roles import Role
from talka.work.lifecycle import JobState

BUNDLE, OTHER, RESULT = "b" * 64, "0" * 64, "f" * 64


@pytest.fixture
def entry(order_of: Callable[..., JobOrder]) -> JobEntry:
    """A job that w1 works for, with a result."""
    order = order_of()
    order = msgspec.structs.replace(order, bundle=msgspec.structs.replace(order.bundle, digest=BUNDLE))
    return JobEntry(
        job="j",
        key="",
        order=order,
        state=JobState.RUNNING,
        number=1,
        submitted_ms=1,
        grants=(Grant("w1", 1, 1, "", 0),),
        result=RESULT,
    )


def rights_of(*known: JobEntry, held: dict[str, bytes] | None = None) -> BundleRights:
    return BundleRights(lambda: known, lambda: held or {})


def test_worker_gets_the_bundle_of_a_job_that_it_works_for(entry: JobEntry) -> None:
    rights = rights_of(entry)
    assert rights.may_fetch(0, "w1", BUNDLE)
    assert not rights.may_fetch(0, "w2", BUNDLE), "it works for nobody"
    assert not rights.may_fetch(0, "w1", OTHER), "nobody knows that bundle"
    assert not rights.may_fetch(0, "w1", RESULT), "results are for managers"


def test_manager_that_only_holds_the_entry_knows_too(entry: JobEntry) -> None:
    held = {
        "job/1": encode_entry(entry),
        "job/2": b"",
        "job/3": b"of a later version " + BUNDLE.encode(),
        "lease/1": encode_entry(entry),
    }
    assert rights_of(held=held).may_fetch(0, "w1", BUNDLE)
    assert not rights_of(held=held).may_fetch(0, "w2", BUNDLE)
    assert not rights_of(held={"lease/1": encode_entry(entry)}).may_fetch(0, "w1", BUNDLE)
    assert not rights_of(held={"job/1": encode_entry(entry)}).may_fetch(0, "w1", RESULT)


def test_what_was_said_holds_for_a_moment(entry: JobEntry) -> None:
    """A bundle has many pieces; and who asks for what is not there does not keep the manager busy."""
    entries: list[JobEntry] = []
    looked = 0

    def known() -> list[JobEntry]:
        nonlocal looked
        looked += 1
        return entries

    rights = BundleRights(known, dict)
    assert not rights.may_fetch(0, "w1", BUNDLE)
    entries.append(entry)
    assert not rights.may_fetch(HOLDS_NS - 1, "w1", BUNDLE)
    assert rights.may_fetch(HOLDS_NS, "w1", BUNDLE)
    assert looked == 2


def test_so_many_answers_are_remembered_at_once() -> None:
    rights = rights_of()
    for number in range(KNOWN_LIMIT + 10):
        rights.may_fetch(0, f"w{number}", BUNDLE)
    assert len(rights._known) == KNOWN_LIMIT


def manager_with(*blobs: str) -> Manager:
    voter = Voter(name="m", voters=("m",), stored={}, rng=Random(1), now=0)
    keys = keys_of_workers(1)
    return Manager(name="m", boot=1, voter=voter, rng=Random(1), wall_offset_ns=0, blobs=blobs, keys=keys)


@pytest.mark.parametrize("role", [Role.WORKER, Role.OUTSIDE_WORKER])
def test_manager_tells_a_worker_that_it_does_not_have_what_is_not_for_it(role: Role) -> None:
    """As one that lags behind would: the worker asks the next."""
    manager = manager_with(RESULT)
    said: list[Any] = manager.on_message(0, "w1", WantBlob(RESULT, 3), role=role)
    assert said == [Send(CHANNEL, "w1", Piece(RESULT, 3, 0, b""), Lane.STREAM)]


def test_manager_that_knows_of_the_grant_serves_the_bundle(entry: JobEntry) -> None:
    manager = manager_with(BUNDLE)
    manager.bundle_rights = rights_of(entry)
    assert manager.on_message(0, "w1", WantBlob(BUNDLE, 0), role=Role.WORKER) == [ServeBlob("w1", BUNDLE, 0)]


@pytest.mark.parametrize("role", [Role.MANAGER, None])
def test_managers_get_every_blob_and_so_does_everybody_without_certificates(role: Role | None) -> None:
    manager = manager_with(RESULT)
    assert manager.on_message(0, "x", WantBlob(RESULT, 3), role=role) == [ServeBlob("x", RESULT, 3)]
