"""Every message, said by every role to a manager and to a worker: heard where the table allows it, and nowhere else."""

import re
from pathlib import Path
from random import Random
from typing import Any, get_args

import msgspec
import pytest

import talka
from talka.cluster.effects import Lane, Transmit
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.presets import PRESETS
from talka.control.manager import Manager
from talka.control.member.composite import ClusterMember
from talka.control.member.replay_guard import ReplayGuard
from talka.control.member.role_check import TOLD_LIMIT, RoleRefused
from talka.control.member.voter import Voter
from talka.control.worker.composite import Worker
from talka.testing.trust import keys_of_workers, trust_of_worker
from talka.wire import asking, greeting, jobs, leadership, leases, membership
from talka.wire.asking import AddKey, Ask, AskAnswer, AskLeader, AskMembers, ChangeLease
from talka.wire.jobs import Beat, Lead, WorkerFacts
from talka.wire.manager_calls import CALLS, LeaderCall, ListJobs, ManagerCall
from talka.wire.packets import decode_packet
from talka.wire.security.permissions import CHANNELS, COLUMNS, MESSAGES, TABLE, may_say, name_of, rows
from talka.wire.security.roles import NOBODY, Proven, Role
from tests.sim.sampler import Sampler
from tests.sim.variants import without

TIMES = 3
"""Each is drawn so often."""


def a_manager(*, certified: bool = True) -> ClusterMember:
    rng = Random(1)
    voter = Voter(name="m", voters=("m", "n", "o"), stored={}, rng=rng, now=0)
    return ClusterMember(
        group="g",
        name="m",
        boot=1,
        membership=Membership(name="m", boot=1, address="at-m", group="g", config=PRESETS["default"], rng=rng, now=0),
        voter=voter,
        part=Manager(name="m", boot=1, voter=voter, rng=rng, wall_offset_ns=0, keys=keys_of_workers(1)),
        certified=certified,
    )


def a_worker(*, certified: bool = True) -> ClusterMember:
    facts = WorkerFacts(cores=1)
    trust = trust_of_worker("w", 1)
    worker = Worker("w", 1, {}, facts, ("m",), Random(1), 0, signers=trust.signers, variables=trust.variables)
    return ClusterMember(group="g", name="w", boot=1, part=worker, certified=certified)


class Speaker:
    """Somebody whose certificate says this."""

    def __init__(self, role: Role | None, name: str = "x") -> None:
        self.proven = NOBODY if role is None else Proven(name, role)
        self._lane = Lane.DATAGRAM if role is None else Lane.STREAM
        self._replay_guard = ReplayGuard(group="g", name=name, boot=7)

    def say(self, member: ClusterMember, channel: int, message: object) -> list[object]:
        frame = self._replay_guard.wrap(channel, msgspec.msgpack.encode(message))
        return member.on_frame(0, "from-x", frame, self._lane, 0, self.proven)


def refusals(member: ClusterMember) -> int:
    return member.replay_guard.refused.get("role", 0)


def test_every_message_of_every_conversation_has_a_row() -> None:
    """A new message without one is said by nobody, and fails here before it is missed."""
    conversations = (
        membership.MembershipMessage,
        greeting.GreetingMessage,
        leadership.LeadershipMessage,
        leases.LeaseMessage,
        jobs.JobMessage,
        asking.Question,
        LeaderCall,
    )
    everything = {kind for union in conversations for kind in get_args(union)} - {ManagerCall} | {asking.AskAnswer}
    assert set(TABLE) == everything == {kind for _, kind in MESSAGES}
    assert len({name for _, name, _ in rows()}) == len(rows()), "each row has a name of its own"


def test_every_conversation_that_has_a_channel_is_in_the_table() -> None:
    files = (Path(talka.__file__).parent / "wire").glob("*.py")
    numbers = [
        int(found) for file in files for found in re.findall(r"Channel\(\s*(\d+),", file.read_text()) if found != "0"
    ]
    assert sorted(CHANNELS) == sorted(numbers) == list(range(1, 7))


def test_every_thing_a_call_may_ask_has_a_row() -> None:
    assert get_args(LeaderCall) == CALLS
    assert {name for _, name, _ in rows()} >= {kind.__name__ for kind in CALLS}


@pytest.mark.parametrize("make", [a_manager, a_worker], ids=["manager", "worker"])
@pytest.mark.parametrize("role", COLUMNS, ids=str)
@pytest.mark.parametrize(("channel", "kind"), MESSAGES, ids=lambda value: getattr(value, "__qualname__", value))
def test_message_is_heard_where_the_table_allows_it_and_nowhere_else(
    make: Any, role: Role | None, channel: int, kind: type
) -> None:
    member, speaker = make(), Speaker(role)
    sampler = Sampler(Random(f"{kind.__module__}.{kind.__name__}"), {"job": ["j1"], "name": ["w", "m"]})
    for number in range(1, TIMES + 1):
        message = sampler.message(kind)
        effects = speaker.say(member, channel, message)
        if may_say(role, message):
            assert refusals(member) == 0
        else:
            assert refusals(member) == sum(member.roles.refused.values()) == number
            told = [effect for effect in effects if not isinstance(effect, Transmit)]
            assert all(isinstance(effect, RoleRefused) for effect in told)
            for effect in effects:  # nothing goes out but the sentence to whoever asked
                if isinstance(effect, Transmit):
                    answer = asking.decode(decode_packet(effect.frame).body)
                    assert isinstance(answer, AskAnswer) and answer.problem and not answer.content


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("role", COLUMNS, ids=str)
def test_call_is_for_managers_whatever_it_asks(role: Role | None, kind: type) -> None:
    member, call = a_manager(), Sampler(Random(kind.__name__)).message(kind)
    Speaker(role).say(member, jobs.CHANNEL.number, call)
    assert refusals(member) == (role is not Role.MANAGER)
    assert member.roles.refused == ({} if role is Role.MANAGER else {kind.__name__: 1})


def test_without_certificates_whoever_has_the_secret_is_a_node() -> None:
    member = a_manager(certified=False)
    Speaker(None).say(member, jobs.CHANNEL.number, ManagerCall(1, ListJobs()))
    assert refusals(member) == 0


def test_certificate_that_names_another_than_the_sender_proves_nothing() -> None:
    member, speaker = a_manager(), Speaker(Role.MANAGER, "x")
    speaker.proven = Proven("y", Role.MANAGER)
    assert speaker.say(member, jobs.CHANNEL.number, ManagerCall(1, ListJobs())) == []
    assert member.replay_guard.refused == {"certificate": 1}


def test_what_is_refused_is_told_once_of_each_and_counted_always() -> None:
    member, speaker = a_manager(), Speaker(Role.WORKER)
    for number in range(3):
        effects = speaker.say(member, jobs.CHANNEL.number, Lead(b"x"))
        told = [RoleRefused("x", "worker", "Lead", "from-x")] if number == 0 else []
        assert effects == told
    assert member.roles.refused == {"Lead": 3}
    [news] = Speaker(None, "z").say(member, jobs.CHANNEL.number, Lead(b"x"))
    assert isinstance(news, RoleRefused)
    assert "'z', which no certificate names here, may not say Lead" in news.text


def test_refusals_of_many_names_are_told_of_so_many_only() -> None:
    member = a_manager()
    told = [
        effect
        for number in range(TOLD_LIMIT + 10)
        for effect in Speaker(Role.WORKER, f"x{number}").say(member, jobs.CHANNEL.number, Lead(b"x"))
    ]
    assert len(told) == TOLD_LIMIT
    assert member.roles.refused == {"Lead": TOLD_LIMIT + 10}


def answer_to(member: ClusterMember, role: Role, question: Any) -> AskAnswer:
    effects = Speaker(role).say(member, asking.CHANNEL.number, Ask(5, question))
    [transmit] = [effect for effect in effects if isinstance(effect, Transmit)]
    answer = asking.decode(decode_packet(transmit.frame).body)
    assert isinstance(answer, AskAnswer) and answer.number == 5
    return answer


def test_client_that_would_change_keys_is_told_what_it_takes() -> None:
    answer = answer_to(a_manager(), Role.CLIENT, AddKey("secret"))
    assert "a client may not change keys" in answer.problem
    assert "--role manager" in answer.problem


def test_client_that_would_change_the_lease_is_told_what_it_takes() -> None:
    answer = answer_to(a_manager(), Role.CLIENT, ChangeLease(1))
    assert "a client may not change the lease where certificates are in use" in answer.problem
    assert "--role manager" in answer.problem


def test_worker_that_asks_is_told_that_it_may_not() -> None:
    answer = answer_to(a_manager(), Role.WORKER, AskLeader())
    assert answer.problem.startswith("'x', a worker, may not say AskLeader")


def test_nothing_that_is_no_message_may_be_said() -> None:
    assert not any(may_say(role, object()) for role in COLUMNS)
    assert name_of(ManagerCall(1, ListJobs())) == "ListJobs"
    assert not may_say(Role.WORKER, ManagerCall(1, ListJobs()))
    assert name_of(Ask(1, AskMembers())) == "AskMembers"


def test_whoever_was_refused_is_not_taken_for_one_that_can_be_reached() -> None:
    """Else a worker could have the answers of a manager's name sent to itself."""
    member, speaker = a_manager(), Speaker(Role.WORKER, "n")
    speaker.say(member, leadership.CHANNEL.number, Sampler(Random(1)).message(leadership.Heartbeat))
    assert "n" not in member._addresses and "n" not in member._connections


@without("role_table")
def test_without_the_table_a_worker_is_heard_as_a_manager_would_be() -> None:
    member = a_manager()
    assert Speaker(Role.WORKER).say(member, jobs.CHANNEL.number, ManagerCall(1, ListJobs())) != []
    assert Speaker(Role.WORKER).say(a_manager(), jobs.CHANNEL.number, Beat(1, WorkerFacts(cores=1))) != []
