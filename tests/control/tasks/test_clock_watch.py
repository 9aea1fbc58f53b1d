"""A clock that was set is told from one that drifts."""

from hypothesis import given
from hypothesis import strategies as st

from talka.control.tasks.clock_watch import LEAST_NS, ClockWatch
from talka.units import SECOND

DAY_NS = 86_400 * SECOND
WALL_NS = 1_790_000_000 * SECOND


def test_a_jump_is_told_once_with_its_way_and_size() -> None:
    watch = ClockWatch(0, WALL_NS)
    assert watch.look(SECOND, WALL_NS + SECOND) == 0
    assert watch.look(2 * SECOND, WALL_NS + 2 * SECOND + 30 * DAY_NS) == 30 * DAY_NS
    assert watch.look(3 * SECOND, WALL_NS + 3 * SECOND + 30 * DAY_NS) == 0
    assert watch.offset_ns == WALL_NS + 30 * DAY_NS
    assert watch.look(4 * SECOND, WALL_NS + 4 * SECOND) == -30 * DAY_NS
    assert watch.offset_ns == WALL_NS


def test_a_machine_that_slept_did_not_jump() -> None:
    watch = ClockWatch(0, WALL_NS)
    assert watch.look(8 * 3600 * SECOND, WALL_NS + 8 * 3600 * SECOND) == 0


@given(st.lists(st.integers(1 - LEAST_NS, LEAST_NS - 1)))
def test_drift_is_followed_however_much_it_adds_up_to(drifts_ns: list[int]) -> None:
    watch = ClockWatch(0, WALL_NS)
    offset_ns = WALL_NS
    for second, drift_ns in enumerate(drifts_ns):
        offset_ns += drift_ns
        assert watch.look(second * SECOND, second * SECOND + offset_ns) == 0
        assert watch.offset_ns == offset_ns
    assert watch.is_steady(len(drifts_ns) * SECOND, len(drifts_ns) * SECOND)


def test_a_clock_is_steady_when_it_was_watched_for_long_and_did_not_jump() -> None:
    watch = ClockWatch(10, WALL_NS)
    assert not watch.is_steady(109, 100) and watch.is_steady(110, 100)
    watch.look(110, WALL_NS + DAY_NS)
    assert not watch.is_steady(209, 100) and watch.is_steady(210, 100)
