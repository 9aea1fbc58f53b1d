import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.safeguards import Safeguards
from talka.control.member.replay_guard import BOOTS_PER_SENDER, SENDERS_LIMIT, ReplayGuard
from talka.wire import leases
from talka.wire.packets import PROTOCOL, Packet, decode_packet, encode_packet

NIL = b"\xc0"


def door_of(name: str, *, group: str = "g", boot: int = 1) -> ReplayGuard:
    return ReplayGuard(group=group, name=name, boot=boot)


def frame_of(*, protocol: int = PROTOCOL, sender: str = "b", boot: int = 1, counter: int = 1) -> bytes:
    return encode_packet(Packet(protocol, "g", sender, boot, counter, 7, msgspec.Raw(NIL)))


def test_a_frame_says_who_sent_it_and_carries_body_and_updates_untouched() -> None:
    frame = door_of("b", boot=9).wrap(7, b"\x01", [b"\x02", b"\x03"])

    packet = door_of("a").admit(frame)

    assert packet is not None
    assert (packet.protocol, packet.group, packet.sender, packet.boot, packet.channel) == (PROTOCOL, "g", "b", 9, 7)
    assert bytes(packet.body) == b"\x01"
    assert [bytes(update) for update in packet.updates] == [b"\x02", b"\x03"]


def test_a_frame_is_let_in_once() -> None:
    replay_guard = door_of("a")
    frame = door_of("b").wrap(7, NIL)

    assert replay_guard.admit(frame) is not None
    assert replay_guard.admit(frame) is None
    assert (replay_guard.admitted, replay_guard.refused) == (1, {"replayed": 1})


def test_the_same_body_said_twice_is_two_frames() -> None:
    replay_guard, peer = door_of("a"), door_of("b")

    first, second = peer.wrap(7, NIL), peer.wrap(7, NIL)

    assert first != second
    assert replay_guard.admit(first) is not None
    assert replay_guard.admit(second) is not None


def test_without_the_replay_window_a_frame_is_let_in_again() -> None:
    replay_guard = ReplayGuard(group="g", name="a", boot=1, safeguards=Safeguards(replay_window=False))
    frame = door_of("b").wrap(7, NIL)

    assert [replay_guard.admit(frame) is not None for _ in range(2)] == [True, True]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        pytest.param(b"no packet", "malformed", id="no packet"),
        pytest.param(b"", "malformed", id="nothing"),
        pytest.param(frame_of(protocol=PROTOCOL + 1), "protocol", id="another protocol"),
        pytest.param(door_of("b", group="h").wrap(7, NIL), "group", id="another group"),
        pytest.param(door_of("a", boot=2).wrap(7, NIL), "own", id="its own name"),
    ],
)
def test_a_frame_that_is_not_meant_for_it_is_counted_and_dropped(frame: bytes, reason: str) -> None:
    replay_guard = door_of("a")

    assert replay_guard.admit(frame) is None
    assert (replay_guard.admitted, replay_guard.refused) == (0, {reason: 1})


def test_a_watched_group_is_let_in_even_under_its_own_name() -> None:
    replay_guard = ReplayGuard(group="g", name="a", boot=1, watchers=("h",))

    packet = replay_guard.admit(door_of("a", group="h", boot=2).wrap(7, NIL))

    assert packet is not None
    assert (packet.group, packet.sender) == ("h", "a")


def test_each_life_of_a_sender_counts_from_the_beginning() -> None:
    replay_guard = door_of("a")

    assert replay_guard.admit(door_of("b", boot=1).wrap(7, NIL)) is not None
    assert replay_guard.admit(door_of("b", boot=2).wrap(7, NIL)) is not None


def test_of_too_many_lives_of_one_sender_the_oldest_is_forgotten_first() -> None:
    replay_guard = door_of("a")
    frames = [frame_of(boot=boot) for boot in range(BOOTS_PER_SENDER + 1)]
    assert all(replay_guard.admit(frame) is not None for frame in frames)

    # The others are still told apart …
    assert [replay_guard.admit(frame) for frame in frames[1:]] == [None] * BOOTS_PER_SENDER
    # … and of the forgotten one nothing is known.
    assert replay_guard.admit(frames[0]) is not None


def test_of_too_many_senders_the_one_known_longest_is_forgotten_and_nobody_is_shut_out() -> None:
    replay_guard = door_of("a")
    for number in range(SENDERS_LIMIT):
        assert replay_guard.admit(frame_of(sender=f"b{number}")) is not None
    assert replay_guard.admit(frame_of(sender="b0", counter=2)) is not None, (
        "speaking again makes nobody known for shorter"
    )

    assert replay_guard.admit(frame_of(sender="one more")) is not None

    # The others are still told apart, the new one as well …
    assert replay_guard.admit(frame_of(sender="b1")) is None
    assert replay_guard.admit(frame_of(sender="one more")) is None
    assert replay_guard.refused == {"replayed": 2}
    # … and of the forgotten one nothing is known.
    assert replay_guard.admit(frame_of(sender="b0")) is not None


def test_the_reader_of_bodies_may_have_a_frame_counted_as_unreadable() -> None:
    replay_guard = door_of("a")

    replay_guard.turn_away("body")
    replay_guard.turn_away("body")

    assert replay_guard.refused == {"body": 2}


@settings(deadline=None, derandomize=True)
@given(st.lists(st.binary(max_size=60), max_size=20))
def test_whatever_bytes_arrive_each_frame_is_either_let_in_or_counted(frames: list[bytes]) -> None:
    replay_guard = door_of("a")

    for frame in frames:
        replay_guard.admit(frame)

    assert replay_guard.admitted + sum(replay_guard.refused.values()) == len(frames)


@settings(deadline=None, derandomize=True)
@given(st.data())
def test_a_spoiled_frame_never_raises(data: st.DataObject) -> None:
    replay_guard = door_of("a")
    frame = bytearray(door_of("b").wrap(7, b"\x93\x01\x02\x03", [b"\xa1x"]))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    del frame[data.draw(st.integers(0, len(frame))) :]

    replay_guard.admit(bytes(frame))

    assert replay_guard.admitted + sum(replay_guard.refused.values()) == 1


@settings(deadline=None, derandomize=True)
@given(st.data())
def test_however_frames_are_doubled_and_overtake_each_other_each_is_let_in_once(data: st.DataObject) -> None:
    peers = [door_of("b", boot=1), door_of("b", boot=2), door_of("c", boot=1)]
    frames = [peer.wrap(7, NIL) for peer in peers for _ in range(5)]
    arrivals = data.draw(st.lists(st.sampled_from(range(len(frames))), max_size=60))
    replay_guard = door_of("a")

    admitted = [number for number in arrivals if replay_guard.admit(frames[number]) is not None]

    assert admitted == list(dict.fromkeys(arrivals))


def test_members_of_two_groups_that_share_a_name_are_told_apart() -> None:
    replay_guard = ReplayGuard(group="g", name="a", boot=1, watchers=("h",))

    assert replay_guard.admit(door_of("b", group="g").wrap(7, NIL)) is not None
    assert replay_guard.admit(door_of("b", group="h").wrap(7, NIL)) is not None


def packet_of(*, sender: str = "b", boot: int = 1, counter: int = 1, group: str = "g") -> Packet:
    return Packet(PROTOCOL, group, sender, boot, counter, 7, msgspec.Raw(NIL))


def test_a_door_knows_the_lives_it_has_let_in_and_no_other() -> None:
    replay_guard = door_of("a")
    assert not replay_guard.knows(packet_of())

    assert replay_guard.passes(packet_of())

    assert replay_guard.knows(packet_of(counter=99))
    assert not replay_guard.knows(packet_of(boot=2))
    assert not replay_guard.knows(packet_of(sender="c"))
    assert not replay_guard.knows(packet_of(group="h"))


def test_what_is_turned_away_makes_no_life_known() -> None:
    replay_guard = door_of("a")

    assert not replay_guard.passes(packet_of(group="h"))
    assert not replay_guard.passes(packet_of(sender="a"))

    assert not replay_guard.knows(packet_of(group="h"))
    assert not replay_guard.knows(packet_of(sender="a"))
    assert replay_guard.refused == {"group": 1, "own": 1}


def test_a_floor_makes_a_life_known_and_shuts_out_what_is_below_it_in_this_life_only() -> None:
    replay_guard = door_of("a")

    replay_guard.raise_floor(packet_of(counter=1), 10)

    assert replay_guard.knows(packet_of())
    assert [replay_guard.passes(packet_of(counter=counter)) for counter in (9, 10, 10, 11)] == [
        False,
        True,
        False,
        True,
    ]
    assert replay_guard.passes(packet_of(boot=2, counter=1))
    assert (replay_guard.admitted, replay_guard.refused) == (3, {"replayed": 2})


def test_lives_that_are_known_by_a_floor_are_bounded_as_well() -> None:
    replay_guard = door_of("a")
    for boot in range(BOOTS_PER_SENDER + 1):
        replay_guard.raise_floor(packet_of(boot=boot), 5)

    assert not replay_guard.knows(packet_of(boot=0))
    assert all(replay_guard.knows(packet_of(boot=boot)) for boot in range(1, BOOTS_PER_SENDER + 1))


def test_the_counter_of_a_door_is_the_number_of_its_last_frame() -> None:
    replay_guard = door_of("a")
    assert replay_guard.counter == 0

    for number in (1, 2):
        packet = door_of("b").admit(replay_guard.wrap(7, NIL))
        assert packet is not None
        assert replay_guard.counter == packet.counter == number


def test_a_life_that_is_known_and_shows_again_that_it_lives_keeps_its_frames_on_the_way() -> None:
    replay_guard, peer = door_of("a"), door_of("b")
    first, on_its_way, again = (decode_packet(peer.wrap(leases.CHANNEL.number, NIL)) for _ in range(3))
    replay_guard.raise_floor(first, 0)

    replay_guard.raise_floor(again, 0)

    assert replay_guard.passes(on_its_way), "it was sent after the life became known"
