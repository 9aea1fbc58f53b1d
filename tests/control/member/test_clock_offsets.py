from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.member.clock_offsets import DRIFT_NS, FRESH_NS, OPEN_LIMIT, PEERS_LIMIT, ClockOffsets
from talka.units import SECOND

quick = settings(deadline=None, derandomize=True, max_examples=150)


def exchange(clocks: ClockOffsets, now: int, *, offset_ns: int, there_ns: int, back_ns: int, peer: str = "w1") -> int:
    """Ask now, and hear the answer after both ways. When it is over."""
    number = clocks.asked(now, peer)
    clocks.heard(now + there_ns + back_ns, peer, number, now + there_ns + offset_ns)
    return now + there_ns + back_ns


def test_of_a_peer_that_told_nothing_the_clock_counts_as_this_one() -> None:
    clocks = ClockOffsets()
    assert not clocks.knows("w1")
    assert (clocks.there("w1", 7), clocks.here("w1", 7)) == (7, 7), "it was not even asked"
    clocks.asked(5, "w1")

    assert not clocks.knows("w1")
    assert (clocks.there("w1", 7), clocks.here("w1", 7)) == (7, 7)


def test_an_offset_is_taken_from_the_middle_of_the_exchange() -> None:
    clocks = ClockOffsets()

    exchange(clocks, 10 * SECOND, offset_ns=-3 * SECOND, there_ns=500, back_ns=500)

    assert clocks.knows("w1") and not clocks.knows("w2")
    assert clocks.there("w1", 20 * SECOND) == 17 * SECOND
    assert clocks.here("w1", 17 * SECOND) == 20 * SECOND


def test_the_quickest_exchange_says_most() -> None:
    clocks = ClockOffsets()
    now = exchange(clocks, 0, offset_ns=SECOND, there_ns=0, back_ns=2_000)
    assert clocks.there("w1", 0) == SECOND - 1_000

    now = exchange(clocks, now, offset_ns=SECOND, there_ns=300, back_ns=100)
    assert clocks.there("w1", 0) == SECOND + 100
    now = exchange(clocks, now, offset_ns=SECOND, there_ns=900, back_ns=0)
    assert clocks.there("w1", 0) == SECOND + 100, "a slower one changes nothing"
    exchange(clocks, now, offset_ns=SECOND, there_ns=200, back_ns=200)

    assert clocks.there("w1", 0) == SECOND, "of equals the later one counts"


def test_an_old_estimate_gives_way_to_any_newer_one() -> None:
    clocks = ClockOffsets()
    measured_at = exchange(clocks, 0, offset_ns=SECOND, there_ns=1, back_ns=1)

    exchange(clocks, measured_at + FRESH_NS - 800, offset_ns=SECOND, there_ns=800, back_ns=0)
    assert clocks.there("w1", 0) == SECOND
    exchange(clocks, measured_at + FRESH_NS - 799, offset_ns=SECOND, there_ns=800, back_ns=0)

    assert clocks.there("w1", 0) == SECOND + 400


def test_a_clock_that_jumped_is_believed_at_once_although_the_answer_was_slow() -> None:
    clocks = ClockOffsets()
    now = exchange(clocks, 0, offset_ns=SECOND, there_ns=100, back_ns=100)

    now = exchange(clocks, now, offset_ns=SECOND + DRIFT_NS, there_ns=500, back_ns=500)
    assert clocks.there("w1", 0) == SECOND, "as far a clock may drift"
    exchange(clocks, now, offset_ns=-40 * SECOND, there_ns=500, back_ns=500)

    assert clocks.there("w1", 0) == -40 * SECOND


def test_an_answer_counts_once_and_only_from_the_one_who_was_asked() -> None:
    clocks = ClockOffsets()
    number = clocks.asked(0, "w1")
    clocks.asked(0, "w2")

    clocks.heard(10, "w2", number, 500)
    clocks.heard(10, "w3", number, 500)
    assert not any(clocks.knows(peer) for peer in ("w1", "w2", "w3"))
    clocks.heard(10, "w1", number, 500)
    clocks.heard(10, "w1", number, 999)
    clocks.heard(10, "w1", number + 70, 999)

    assert clocks.there("w1", 0) == 495


def test_of_many_open_questions_the_oldest_are_forgotten() -> None:
    clocks = ClockOffsets()
    numbers = [clocks.asked(0, "w1") for _ in range(OPEN_LIMIT + 1)]

    clocks.heard(10, "w1", numbers[0], 500)
    assert not clocks.knows("w1")
    clocks.heard(10, "w1", numbers[1], 500)

    assert clocks.knows("w1")


def test_of_too_many_peers_the_oldest_is_forgotten() -> None:
    clocks = ClockOffsets()
    for turn in range(PEERS_LIMIT):
        exchange(clocks, 0, offset_ns=SECOND, there_ns=0, back_ns=0, peer=f"w{turn}")
    assert clocks.knows("w0")

    clocks.asked(0, "one more")

    assert [clocks.knows(peer) for peer in ("w0", "w1")] == [False, True]


exchanges = st.lists(
    st.tuples(st.integers(0, SECOND), st.integers(0, 5 * SECOND), st.integers(0, 5 * SECOND)), min_size=1, max_size=8
)


@given(offset_ns=st.integers(-(10**15), 10**15), exchanges=exchanges)
@quick
def test_an_offset_is_right_within_half_of_the_quickest_round_trip(
    offset_ns: int, exchanges: list[tuple[int, int, int]]
) -> None:
    clocks = ClockOffsets()
    now = 1_000 * SECOND
    for pause_ns, there_ns, back_ns in exchanges:
        now = exchange(clocks, now + pause_ns, offset_ns=offset_ns, there_ns=there_ns, back_ns=back_ns)

    error_ns = abs(clocks.there("w1", 0) - offset_ns)
    fresh = min(there_ns + back_ns for _, there_ns, back_ns in exchanges)
    if now <= 1_000 * SECOND + FRESH_NS:
        assert 2 * error_ns <= fresh + 1
    assert clocks.here("w1", clocks.there("w1", now)) == now
