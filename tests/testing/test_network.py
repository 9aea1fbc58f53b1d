"""The network: what its links do to frames on each lane, cuts, seals and replays."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.effects import Lane, Transmit
from talka.errors import Invalid
from talka.testing.network import OVERHEAD_BYTES, SEAL_BYTES, STREAM_QUEUE_FRAMES, LinkProfile
from talka.testing.world import Boot, World
from talka.units import MILLISECOND, NEVER, SECOND

PLAIN = LinkProfile(latency_ns=MILLISECOND, jitter_ns=0)
quick = settings(deadline=None, derandomize=True, max_examples=50)


class Ear:
    """Keeps what it hears."""

    def __init__(self, boot: Boot) -> None:
        self.next_tick_at = NEVER
        self.frames_admitted = 0
        self.heard: list[tuple[int, str, bytes, Lane]] = []

    def start(self, now: int) -> list[object]:
        return []

    def on_frame(self, now: int, source: str, frame: bytes, lane: Lane, age_ns: int) -> list[object]:
        self.heard.append((now, source, frame, lane))
        return []

    def tick(self, now: int) -> list[object]:
        return []

    def on_persisted(self, now: int, ticket: int) -> list[object]:
        return []


class Pair:
    """Hosts a and b."""

    def __init__(self, profile: LinkProfile = PLAIN, seed: int = 1) -> None:
        self.world = World(seed)
        self.network = self.world.network
        self.network.default = profile
        for name in ("a", "b"):
            self.world.add_host(name, Ear).start()

    def send(self, *frames: bytes, source: str = "a", to: str = "b", lane: Lane = Lane.DATAGRAM) -> None:
        effects: list[object] = [Transmit(to, frame, lane) for frame in frames]
        assert self.world.hosts[source].act(lambda now: effects)

    def run(self, duration_ns: int = 100 * SECOND) -> None:
        self.world.run_until(self.world.now + duration_ns)

    def heard(self, name: str = "b") -> list[tuple[int, bytes]]:
        node: Any = self.world.hosts[name].node
        return [(now, frame) for now, _, frame, _ in node.heard]

    def frames(self, name: str = "b") -> list[bytes]:
        return [frame for _, frame in self.heard(name)]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# ---- datagrams


def test_a_frame_arrives_after_the_latency_with_its_source_and_lane() -> None:
    for lane in Lane:
        pair = Pair()
        pair.send(b"hello", lane=lane)
        pair.run()
        node: Any = pair.world.hosts["b"].node
        assert node.heard == [(MILLISECOND, "a", b"hello", lane)]


def test_jitter_adds_up_to_its_limit() -> None:
    pair = Pair(LinkProfile(latency_ns=MILLISECOND, jitter_ns=MILLISECOND))
    pair.send(*numbered(500))
    pair.run()
    times = [now for now, _ in pair.heard()]
    assert MILLISECOND <= min(times) < 1.1 * MILLISECOND and 1.9 * MILLISECOND < max(times) < 2 * MILLISECOND


def test_a_frame_to_nobody_is_dropped() -> None:
    pair = Pair()
    pair.network.cut("a", "known only by a cut")
    pair.send(b"x", to="nobody")
    pair.send(b"x", to="known only by a cut")
    pair.network.inject("nobody", "a", b"x", Lane.DATAGRAM)
    pair.run()
    assert pair.network.dropped == {"unknown": 3}


@pytest.mark.parametrize("lane", [Lane.DATAGRAM, Lane.CONTROL], ids=["datagram", "control"])
def test_loss_takes_its_share_of_frames(lane: Lane) -> None:
    pair = Pair(LinkProfile(loss=0.2))
    pair.send(*numbered(2000), lane=lane)
    pair.run()
    lost = 2000 - len(pair.heard())
    assert 320 < lost < 480
    assert pair.network.dropped == {"loss": lost}


def test_bursts_take_frames_one_after_the_other() -> None:
    pair = Pair(LinkProfile(latency_ns=MILLISECOND, jitter_ns=0, burst=(0.01, 10.0)))
    pair.send(*numbered(20_000))
    pair.run()
    arrived = [int(frame) for frame in pair.frames()]
    runs = [after - before - 1 for before, after in zip(arrived, arrived[1:], strict=False) if after > before + 1]
    assert 7 < sum(runs) / len(runs) < 13
    assert 100 < len(runs) < 300
    assert list(pair.network.dropped) == ["burst"]


def test_a_burst_ends_when_the_link_gets_another_profile() -> None:
    pair = Pair()
    pair.network.set_link("a", "b", LinkProfile(burst=(1.0, 1000.0)))
    pair.send(b"lost")
    pair.network.set_link("a", "b", LinkProfile(loss=0.000001))
    pair.send(b"arrives")
    pair.run()
    assert pair.frames() == [b"arrives"]


def test_duplicates_arrive_twice_and_not_sooner() -> None:
    pair = Pair(LinkProfile(latency_ns=MILLISECOND, jitter_ns=0, duplicate=0.5))
    pair.send(*numbered(200))
    pair.run()
    frames = pair.frames()
    counts = [frames.count(frame) for frame in numbered(200)]
    assert sorted(set(counts)) == [1, 2] and 260 < sum(counts) < 340
    assert frames[:200] == numbered(200)
    assert pair.network.doubled == len(frames) - 200


def test_reordering_holds_some_frames_back() -> None:
    pair = Pair(LinkProfile(latency_ns=MILLISECOND, jitter_ns=0, reorder=(0.1, 10 * MILLISECOND)))
    pair.send(*numbered(300))
    pair.run()
    late = [now for now, _ in pair.heard() if now > MILLISECOND]
    assert 10 < len(late) < 60 and max(late) <= 11 * MILLISECOND
    assert pair.network.held_back == len(late)
    assert pair.frames() != numbered(300) and sorted(pair.frames()) == sorted(numbered(300))


def test_a_datagram_longer_than_the_mtu_is_dropped_and_other_lanes_have_none() -> None:
    pair = Pair(LinkProfile(mtu_bytes=100))
    fits, too_long = b"x" * (100 - SEAL_BYTES), b"x" * (101 - SEAL_BYTES)
    pair.send(fits, too_long)
    pair.run()
    assert pair.frames() == [fits]
    assert pair.network.dropped == {"mtu": 1}
    pair.send(too_long, lane=Lane.STREAM)
    pair.send(too_long, lane=Lane.CONTROL)
    pair.run()
    assert pair.frames() == [fits, too_long, too_long]


@pytest.mark.parametrize("lane", list(Lane), ids=[lane.name.lower() for lane in Lane])
def test_bandwidth_delays_frames_behind_each_other(lane: Lane) -> None:
    pair = Pair(LinkProfile(latency_ns=MILLISECOND, jitter_ns=0, bandwidth_bytes_per_s=100_000))
    frame = b"x" * (1000 - OVERHEAD_BYTES)
    pair.send(frame, frame, frame, lane=lane)
    pair.run(SECOND)
    assert [now for now, _ in pair.heard()] == [11 * MILLISECOND, 21 * MILLISECOND, 31 * MILLISECOND]
    # Then: a queue that has run empty delays no more than the frame itself.
    pair.send(frame, lane=lane)
    pair.run(SECOND)
    assert pair.heard()[-1][0] == SECOND + 11 * MILLISECOND
    assert pair.network.squeezed == 2


def test_a_full_queue_drops_datagrams_and_delays_streams() -> None:
    profile = LinkProfile(latency_ns=MILLISECOND, jitter_ns=0, bandwidth_bytes_per_s=100_000, queue_limit_bytes=2000)
    frame = b"x" * (1000 - OVERHEAD_BYTES)
    pair = Pair(profile)
    pair.send(frame, frame, frame)
    pair.run()
    assert len(pair.heard()) == 2 and pair.network.dropped == {"queue": 1}
    assert pair.network.squeezed == 2
    stream = Pair(profile)
    stream.send(frame, frame, frame, lane=Lane.STREAM)
    stream.run()
    assert [now for now, _ in stream.heard()] == [11 * MILLISECOND, 21 * MILLISECOND, 211 * MILLISECOND]


# ---- links and cuts


def test_a_link_of_its_own_is_directed_and_can_be_given_back() -> None:
    pair = Pair()
    pair.network.set_link("a", "b", LinkProfile(latency_ns=7 * MILLISECOND, jitter_ns=0))
    pair.send(b"slow")
    pair.send(b"fast", source="b", to="a")
    pair.run(SECOND)
    assert pair.heard("b") == [(7 * MILLISECOND, b"slow")]
    assert pair.heard("a") == [(MILLISECOND, b"fast")]
    pair.network.set_link("a", "b", None)
    pair.send(b"again")
    pair.run(SECOND)
    assert pair.heard("b")[-1] == (SECOND + MILLISECOND, b"again")


def test_a_new_default_holds_for_all_links_but_those_with_a_profile_of_their_own() -> None:
    pair = Pair(LinkProfile(burst=(0.0, 1.0), latency_ns=MILLISECOND, jitter_ns=0))
    pair.send(b"links are made", lane=Lane.STREAM)
    pair.send(b"links are made", source="b", to="a")
    pair.network.set_link("b", "a", PLAIN)
    pair.run(SECOND)
    assert pair.network.default.burst == (0.0, 1.0)
    pair.network.default = LinkProfile(latency_ns=3 * MILLISECOND, jitter_ns=0)
    pair.send(b"new")
    pair.send(b"old", source="b", to="a")
    pair.run(SECOND)
    assert pair.heard("b")[-1] == (SECOND + 3 * MILLISECOND, b"new")
    assert pair.heard("a")[-1] == (SECOND + MILLISECOND, b"old")


@pytest.mark.parametrize("lane", [Lane.DATAGRAM, Lane.CONTROL], ids=["datagram", "control"])
def test_a_cut_stops_one_direction_but_not_what_is_on_its_way(lane: Lane) -> None:
    pair = Pair()
    pair.send(b"before", lane=lane)
    pair.network.cut("a", "b")
    assert pair.network.is_cut("a", "b") and not pair.network.is_cut("b", "a")
    pair.send(b"lost", lane=lane)
    pair.send(b"back", source="b", to="a", lane=lane)
    pair.run(SECOND)
    assert pair.frames("b") == [b"before"] and pair.frames("a") == [b"back"]
    assert pair.network.dropped == {"cut": 1}


def test_cuts_compose_and_end_with_the_last_heal() -> None:
    pair = Pair()
    pair.network.cut("a", "b")
    pair.network.cut("a", "b")
    pair.network.heal("a", "b")
    assert pair.network.is_cut("a", "b")
    pair.network.heal("a", "b")
    assert not pair.network.is_cut("a", "b")
    # Then: a heal too many does not weaken the next cut.
    pair.network.heal("a", "b")
    pair.network.cut("a", "b")
    assert pair.network.is_cut("a", "b")


def test_heal_all_ends_every_cut() -> None:
    pair = Pair()
    for _ in range(3):
        pair.network.cut("a", "b")
        pair.network.cut("b", "a")
    pair.network.heal_all()
    pair.send(b"hello")
    pair.run()
    assert pair.frames() == [b"hello"]
    assert not pair.network.is_cut("a", "b") and not pair.network.is_cut("unheard of", "a")


# ---- streams


@quick
@given(
    seed=st.integers(0, 1000),
    loss=st.sampled_from([0.0, 0.05, 0.3]),
    burst=st.sampled_from([None, (0.05, 3.0)]),
    bandwidth=st.sampled_from([None, 1_000_000]),
    gaps=st.lists(st.integers(0, 50 * MILLISECOND), min_size=1, max_size=40),
)
def test_streams_arrive_in_order_and_once_whatever_the_link_does(
    seed: int, loss: float, burst: tuple[float, float] | None, bandwidth: int | None, gaps: list[int]
) -> None:
    # Given: at most 30 % loss, so that 5 retries within 10 s are all but never used up; those frames may be lost.
    profile = LinkProfile(
        jitter_ns=5 * MILLISECOND,
        loss=loss,
        burst=burst,
        duplicate=0.5,
        reorder=(0.5, 50 * MILLISECOND),
        bandwidth_bytes_per_s=bandwidth,
    )
    pair = Pair(profile, seed)
    for number, gap in enumerate(gaps):
        pair.send(b"%d" % number, lane=Lane.STREAM)
        pair.run(gap)
    pair.run()
    arrived = [int(frame) for frame in pair.frames()]
    assert arrived == sorted(set(arrived))
    assert len(arrived) + pair.network.dropped.get("stream", 0) == len(gaps)
    assert loss or burst or arrived == list(range(len(gaps)))


def test_a_lost_segment_delays_the_stream_by_doubling_retries() -> None:
    pair = Pair(LinkProfile(latency_ns=MILLISECOND, jitter_ns=0, loss=1.0))
    pair.send(b"first", b"second", lane=Lane.STREAM)
    pair.run(650 * MILLISECOND)
    pair.network.default = PLAIN
    # Then: retries are at 200, 600 and 1,400 ms.
    pair.run()
    assert pair.heard() == [(1401 * MILLISECOND, b"first"), (1401 * MILLISECOND, b"second")]


def test_a_stream_bears_a_cut_shorter_than_its_patience() -> None:
    pair = Pair()
    pair.network.cut("a", "b")
    pair.send(b"first", lane=Lane.STREAM)
    pair.run(5 * SECOND)
    pair.send(b"second", lane=Lane.STREAM)
    assert pair.frames() == []
    pair.network.heal("a", "b")
    pair.run()
    assert pair.frames() == [b"first", b"second"]
    assert pair.network.dropped == {}


def test_a_stream_gives_up_after_ten_seconds_of_a_cut() -> None:
    pair = Pair()
    pair.network.cut("a", "b")
    pair.send(b"lost", lane=Lane.STREAM)
    pair.run(8 * SECOND)
    pair.send(b"younger", lane=Lane.STREAM)
    pair.run(3 * SECOND)
    assert pair.network.dropped == {"stream": 1}
    pair.network.heal("a", "b")
    pair.run()
    assert pair.frames() == [b"younger"]


def test_the_queue_of_a_stream_is_bounded() -> None:
    pair = Pair()
    pair.network.cut("a", "b")
    pair.send(*[b"x"] * (STREAM_QUEUE_FRAMES + 3), lane=Lane.STREAM)
    assert pair.network.dropped == {"stream": 3}


def test_a_stream_to_a_host_that_is_down_is_refused() -> None:
    pair = Pair()
    pair.world.hosts["b"].crash()
    pair.send(b"refused", lane=Lane.STREAM)
    pair.run(SECOND)
    pair.world.hosts["b"].start()
    pair.run()
    assert pair.frames() == [] and pair.network.dropped == {"down": 1}


def test_a_sender_that_crashes_loses_what_its_streams_still_had_to_bring() -> None:
    pair = Pair()
    pair.network.cut("a", "b")
    pair.send(b"lost", b"lost too", lane=Lane.STREAM)
    pair.run(50 * MILLISECOND)
    host = pair.world.hosts["a"]
    host.crash()
    assert pair.network.dropped == {"stream": 2}
    host.start()
    pair.send(b"of the new life", lane=Lane.STREAM)
    pair.network.heal("a", "b")
    pair.run()
    # Then: the retry of the former life, due at 200 ms, serves nobody.
    assert pair.heard() == [(251 * MILLISECOND, b"of the new life")]


# ---- seals


def test_a_forged_frame_is_dropped_and_counted_and_never_shown() -> None:
    pair = Pair()
    sealed = pair.network.seal(b"true")
    forgeries = [b"lies" + sealed[4:], sealed[:-1] + bytes([sealed[-1] ^ 1]), b"true", b"", sealed[1:]]
    for forged in forgeries:
        pair.network.inject("b", "a", forged, Lane.DATAGRAM)
    pair.run()
    assert pair.frames() == []
    assert pair.world.hosts["b"].forged_dropped == pair.network.dropped["forged"] == len(forgeries)


def test_a_seal_of_another_world_is_a_forgery() -> None:
    pair, other = Pair(seed=1), Pair(seed=2)
    pair.network.inject("b", "a", other.network.seal(b"hello"), Lane.DATAGRAM)
    pair.run()
    assert pair.world.hosts["b"].forged_dropped == 1


@quick
@given(frame=st.binary(max_size=64))
def test_what_was_sealed_can_be_opened(frame: bytes) -> None:
    network = World(1).network
    sealed = network.seal(frame)
    assert len(sealed) == len(frame) + SEAL_BYTES
    assert network.unseal(sealed) == frame


def test_a_tapped_frame_can_be_played_back_and_delivers_the_same_bytes_again() -> None:
    pair = Pair()
    tapped: list[tuple[str, str, bytes, Lane]] = []
    pair.network.tap(lambda *seen: tapped.append(seen))
    pair.send(b"vote", lane=Lane.CONTROL)
    pair.run(SECOND)
    ((source, to, sealed, lane),) = tapped
    pair.network.inject(to, source, sealed, lane)
    pair.run(SECOND)
    node: Any = pair.world.hosts["b"].node
    assert node.heard == [(MILLISECOND, "a", b"vote", Lane.CONTROL), (SECOND, "a", b"vote", Lane.CONTROL)]


def test_a_tap_sees_frames_that_will_be_lost() -> None:
    pair = Pair()
    tapped: list[bytes] = []
    pair.network.tap(lambda source, to, sealed, lane: tapped.append(sealed))
    pair.network.cut("a", "b")
    pair.send(b"lost")
    assert tapped == [pair.network.seal(b"lost")]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"loss": 1.5}, "between 0 and 1"),
        ({"duplicate": -0.1}, "between 0 and 1"),
        ({"reorder": (2.0, 1)}, "between 0 and 1"),
        ({"burst": (2.0, 1.0)}, "between 0 and 1"),
        ({"burst": (0.1, 0.5)}, "at least 1 frame, not 0.5"),
        ({"latency_ns": -1}, "not negative"),
        ({"jitter_ns": -1}, "not negative"),
        ({"reorder": (0.1, -1)}, "not negative"),
        ({"bandwidth_bytes_per_s": 0}, "cut the link instead"),
    ],
    ids=["loss", "duplicate", "reorder", "burst", "length", "latency", "jitter", "extra", "bandwidth"],
)
def test_a_profile_that_makes_no_sense_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        LinkProfile(**fields)
