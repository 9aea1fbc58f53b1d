"""A node beside others of the next minor version: what it does not know of theirs changes nothing."""

from collections.abc import Callable
from random import Random

import msgspec
import pytest

from talka.cluster.effects import Lane
from talka.control.manager import Manager
from talka.control.member.composite import ClusterMember
from talka.control.member.replay_guard import ReplayGuard
from talka.control.member.voter import Voter
from talka.control.worker.composite import Worker
from talka.testing.trust import keys_of_workers, trust_of_worker
from talka.units import SECOND
from talka.wire import jobs
from talka.wire.jobs import Beat, JobMessage, Renew, WorkerFacts

NEW_MESSAGE = [240, "rain later"]
NEW_FIELDS = ["cheerful", {"since": 1}]
RENEW = Renew((0, 1, 1), 1, 5 * SECOND, False)
BEAT = Beat(1, WorkerFacts(cores=4))


def worker() -> ClusterMember:
    """Its first beat waits for the renewal."""
    _, signers, variables = trust_of_worker("b", 1)
    part = Worker("b", 1, {}, WorkerFacts(cores=4), ("a",), Random(1), 0, signers=signers, variables=variables)
    member = ClusterMember(group="g", name="b", boot=1, part=part)
    member.act(0, part.start(0))
    return member


def manager() -> ClusterMember:
    voter = Voter(name="b", voters=("a", "b", "c"), stored={}, rng=Random(1), now=0)
    part = Manager(name="b", boot=1, voter=voter, rng=Random(1), wall_offset_ns=0, keys=keys_of_workers(1))
    return ClusterMember(group="g", name="b", boot=1, voter=voter, part=part)


def hear(member: ClusterMember, replay_guard: ReplayGuard, parts: object) -> list[object]:
    frame = replay_guard.wrap(jobs.CHANNEL.number, msgspec.msgpack.encode(parts))
    return member.on_frame(SECOND, "from-a", frame, Lane.STREAM, 0)


each_role = pytest.mark.parametrize(
    ("node", "known"), [(worker, RENEW), (manager, BEAT)], ids=["a worker", "a manager"]
)


@each_role
def test_a_new_message_is_counted_and_nothing_else_happens(
    node: Callable[[], ClusterMember], known: JobMessage
) -> None:
    member, replay_guard, fresh = node(), ReplayGuard(group="g", name="a", boot=7), node()
    at = member.next_tick_at

    assert hear(member, replay_guard, NEW_MESSAGE) == []

    assert (member.replay_guard.refused, member.next_tick_at) == ({"body": 1}, at)
    heard = hear(member, replay_guard, known)
    assert heard == hear(fresh, ReplayGuard(group="g", name="a", boot=7), known) != [], (
        "whoever said it is heard as before"
    )


@each_role
def test_a_new_field_of_a_known_message_changes_nothing(node: Callable[[], ClusterMember], known: JobMessage) -> None:
    member, fresh = node(), node()
    longer = [*msgspec.msgpack.decode(msgspec.msgpack.encode(known)), *NEW_FIELDS]

    heard = hear(member, ReplayGuard(group="g", name="a", boot=7), longer)

    assert heard == hear(fresh, ReplayGuard(group="g", name="a", boot=7), known) != []
    assert (member.replay_guard.refused, member.next_tick_at) == ({}, fresh.next_tick_at)


@each_role
def test_a_field_that_an_earlier_version_lacks_has_its_default(
    node: Callable[[], ClusterMember], known: JobMessage
) -> None:
    member, fresh = node(), node()
    needed = sum(field.required for field in msgspec.structs.fields(known))
    parts = msgspec.msgpack.decode(msgspec.msgpack.encode(known))
    assert needed < len(parts) - 1, "there is something to leave out"

    heard = hear(member, ReplayGuard(group="g", name="a", boot=7), parts[: 1 + needed])

    assert heard == hear(fresh, ReplayGuard(group="g", name="a", boot=7), known) != []
    assert member.replay_guard.refused == {}
