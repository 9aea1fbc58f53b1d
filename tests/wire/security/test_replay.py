"""Each counter of a sender's boot is admitted once."""

from hypothesis import given, settings
from hypothesis import strategies as st

from talka.wire.security.replay import WINDOW, ReplayWindow

quick = settings(deadline=None, derandomize=True, max_examples=200)


def test_frames_in_order_are_admitted_once_each() -> None:
    window = ReplayWindow()

    assert [window.admit(counter) for counter in (0, 0, 1, 1, 2, 0)] == [True, False, True, False, True, False]


def test_frames_that_overtook_each_other_are_admitted_once_each() -> None:
    window = ReplayWindow()

    assert [window.admit(counter) for counter in (5, 3, 4, 3, 5, 4, 0, 0)] == [
        *(True, True, True),
        *(False, False, False),
        *(True, False),
    ]


def test_the_first_frame_may_have_any_counter() -> None:
    assert ReplayWindow().admit(2**63)


def test_a_frame_overtaken_by_as_many_as_the_window_holds_is_refused_and_one_less_is_not() -> None:
    window = ReplayWindow()
    window.admit(WINDOW + 7)

    assert not window.admit(7)
    assert window.admit(8)
    assert not window.admit(8)


def test_a_step_of_less_than_the_window_keeps_what_was_seen() -> None:
    window = ReplayWindow()
    window.admit(10)

    assert window.admit(10 + WINDOW - 1)
    assert not window.admit(10)
    assert window.admit(11)


def test_a_step_of_the_window_or_more_forgets_and_lets_nothing_old_in() -> None:
    for step in (WINDOW, WINDOW + 1, 3 * WINDOW):
        window = ReplayWindow()
        window.admit(10)

        assert window.admit(10 + step)
        assert not window.admit(10)
        assert not window.admit(10 + step)
        assert window.admit(10 + step - 1)


def test_a_frame_from_far_below_the_window_is_refused_at_no_cost() -> None:
    window = ReplayWindow()
    window.admit(2**62)

    assert not window.admit(0)
    assert window.admit(2**62 + 1)


def test_what_is_kept_does_not_grow_with_the_counters() -> None:
    window = ReplayWindow()
    for counter in range(0, 50 * WINDOW, 3):
        window.admit(counter)

    assert window._seen.bit_length() <= WINDOW


@given(
    start=st.integers(0, 2**62),
    moves=st.lists(
        st.one_of(
            st.integers(-5, 5),
            st.integers(-WINDOW - 3, -WINDOW + 3),
            st.integers(WINDOW - 3, WINDOW + 3),
            st.integers(-3 * WINDOW, 3 * WINDOW),
        ),
        max_size=60,
    ),
)
@quick
def test_the_window_admits_what_a_set_of_all_counters_would_within_its_reach(start: int, moves: list[int]) -> None:
    window = ReplayWindow()
    seen: set[int] = set()
    highest = start
    for move in [0, *moves]:
        counter = max(0, highest + move)
        new = counter not in seen and counter > highest - WINDOW

        assert window.admit(counter) == new
        if new:
            seen.add(counter)
            highest = max(highest, counter)


@given(counters=st.lists(st.integers(0, 3 * WINDOW), max_size=80))
@quick
def test_no_counter_is_ever_admitted_twice(counters: list[int]) -> None:
    window = ReplayWindow()
    admitted = [counter for counter in counters + counters if window.admit(counter)]

    assert len(admitted) == len(set(admitted))


def test_what_is_below_the_floor_counts_as_seen_and_the_floor_itself_does_not() -> None:
    window = ReplayWindow()
    window.raise_floor(10)

    assert [window.admit(counter) for counter in (9, 10, 10, 0, 11)] == [False, True, False, False, True]


def test_a_floor_is_never_lowered() -> None:
    window = ReplayWindow()
    window.raise_floor(10)
    window.raise_floor(5)

    assert not window.admit(9)
    assert window.admit(10)


def test_a_floor_raised_later_shuts_out_what_was_within_the_window() -> None:
    window = ReplayWindow()
    window.admit(20)
    window.raise_floor(15)

    assert [window.admit(counter) for counter in (14, 15, 20, 21)] == [False, True, False, True]


def test_a_refused_counter_below_the_floor_moves_nothing() -> None:
    window = ReplayWindow()
    window.raise_floor(5000)
    window.admit(4999)

    assert window.admit(5000)
    assert not window.admit(4999)


@given(
    floors=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60)), max_size=4),
    counters=st.lists(st.integers(0, 60), max_size=80),
)
@quick
def test_with_floors_the_window_admits_what_a_set_of_all_counters_would(
    floors: list[tuple[int, int]], counters: list[int]
) -> None:
    window = ReplayWindow()
    seen: set[int] = set()
    floor = 0
    for step, counter in enumerate(counters):
        for at, raised in floors:
            if at == step:
                window.raise_floor(raised)
                floor = max(floor, raised)
        new = counter >= floor and counter not in seen

        assert window.admit(counter) == new
        if new:
            seen.add(counter)
