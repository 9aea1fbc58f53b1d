"""Whatever frames arrive at a member, it hears each once or turns it away."""

from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.effects import Lane
from talka.cluster.membership import Membership
from talka.cluster.presets import PRESETS
from talka.control.door import Door
from talka.control.member import ClusterMember
from talka.control.owner import Owner
from talka.control.receiver import Receiver
from talka.control.voter import Voter
from talka.wire import leadership, leases, membership
from talka.wire.leadership import Heartbeat
from talka.wire.leases import Command
from talka.wire.membership import Gossip

VOTERS = ("a", "b", "c")
CONFIG = PRESETS["default"]
CHANNELS = (membership.CHANNEL, leadership.CHANNEL, leases.CHANNEL)
GOSSIP = msgspec.msgpack.encode(Gossip())


def whole_member() -> ClusterMember:
    """Member b, which has every part that hears others of its group."""
    return ClusterMember(
        group="g",
        name="b",
        boot=1,
        membership=Membership(name="b", boot=1, address="at-b", group="g", config=CONFIG, rng=Random(1), now=0),
        voter=Voter(name="b", voters=VOTERS, stored={}, rng=Random(1), now=0),
        receiver=Receiver({}),
        owner=Owner(voters=VOTERS, rng=Random(1)),
    )


def door_of_a() -> Door:
    return Door(group="g", name="a", boot=77)


def test_a_frame_is_handled_once() -> None:
    member = whole_member()
    frame = door_of_a().wrap(leases.CHANNEL, msgspec.msgpack.encode(Command((0, 9, 1), 1, b"")))

    assert member.on_frame(0, "from-a", frame, Lane.CONTROL, 0) != []
    assert member.on_frame(0, "from-a", frame, Lane.CONTROL, 0) == []
    assert (member.frames_admitted, member.door.refused) == (1, {"replayed": 1})


def test_bodies_that_nobody_can_read_are_counted_and_nothing_else_happens() -> None:
    member = whole_member()
    member.start(0)
    door = door_of_a()
    at = member.next_tick_at

    for channel in (0, *CHANNELS, 99):
        assert member.on_frame(0, "from-a", door.wrap(channel, b"\xc0"), Lane.STREAM, 0) == []

    assert member.door.refused == {"body": 5}
    assert member.next_tick_at == at


@settings(deadline=None, derandomize=True)
@given(st.sampled_from(CHANNELS), st.recursive(st.integers() | st.text() | st.binary(), st.lists, max_leaves=8))
def test_whatever_a_body_holds_it_never_raises(channel: int, body: object) -> None:
    member = whole_member()
    member.start(0)
    try:
        content = msgspec.msgpack.encode(body)
    except OverflowError:
        return

    member.on_frame(0, "from-a", door_of_a().wrap(channel, content), Lane.STREAM, 0)

    assert member.frames_admitted == 1


@settings(deadline=None, derandomize=True)
@given(st.lists(st.binary(max_size=20), max_size=4))
def test_whatever_rides_along_with_a_body_it_never_raises(news: list[bytes]) -> None:
    member = whole_member()
    updates = [msgspec.msgpack.encode(each) for each in news]

    member.on_frame(0, "from-a", door_of_a().wrap(membership.CHANNEL, GOSSIP, updates), Lane.STREAM, 0)

    assert (member.frames_admitted, member.door.refused) == (1, {})


def test_no_part_hears_of_what_cannot_be_read() -> None:
    member = whole_member()
    door = door_of_a()
    assert member.membership is not None and member.voter is not None
    too_long = msgspec.msgpack.encode(Heartbeat(2**62, 1, 0))

    assert member.on_frame(0, "from-a", door.wrap(leadership.CHANNEL, too_long), Lane.STREAM, 0) == []
    late = 4 * CONFIG.probe_interval_ns + 1
    assert member.on_frame(0, "from-a", door.wrap(membership.CHANNEL, b"\xc0"), Lane.STREAM, late) == []

    assert member.door.refused == {"body": 2}
    assert member.voter.election.term == 0
    assert member.membership.health.score == 0, "it was not even measured"


@settings(deadline=None, derandomize=True)
@given(st.binary(max_size=80))
def test_whatever_bytes_arrive_they_never_raise(frame: bytes) -> None:
    member = whole_member()

    assert member.on_frame(0, "from-a", frame, Lane.DATAGRAM, 0) == []
