"""Who may have a store, by what each sees itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talka.control.tasks.store_hold import LEASE_NS, LOOK_NS, MARGIN_NS, RENEW_NS, Hold, Vigil
from talka.errors import Invalid
from talka.units import SECOND

WHOLE_S = (LEASE_NS + MARGIN_NS) // SECOND


def test_a_lease_that_does_not_stir_is_taken_after_a_whole_lease_and_a_margin() -> None:
    vigil = Vigil()
    looks = [vigil.look(second * SECOND, (1, 5)) for second in range(100, 100 + WHOLE_S + 1)]
    assert looks == [False] * WHOLE_S + [True]
    assert not vigil.has_stirred


def test_a_renewal_before_our_eyes_is_life_and_the_silence_begins_anew() -> None:
    vigil = Vigil()
    assert not vigil.look(0, (1, 5)) and vigil.left_ns == LEASE_NS + MARGIN_NS
    for second in range(1, WHOLE_S):
        assert not vigil.look(second * SECOND, (1, 5))
    assert vigil.left_ns == SECOND and not vigil.has_stirred
    assert not vigil.look(WHOLE_S * SECOND, (1, 6))
    assert vigil.has_stirred and vigil.left_ns == LEASE_NS + MARGIN_NS


def test_a_new_epoch_is_another_holder() -> None:
    vigil = Vigil()
    vigil.look(0, (1, 5))
    vigil.look(1, (2, 5))
    assert vigil.has_stirred


@pytest.mark.parametrize("gap_s", [3600, -3600], ids=["it slept", "its clock went back"])
def test_time_in_which_nobody_looked_counts_for_one_look(gap_s: int) -> None:
    vigil = Vigil()
    vigil.look(0, (1, 5))
    assert not vigil.look(gap_s * SECOND, (1, 5))
    assert vigil.left_ns >= LEASE_NS + MARGIN_NS - LOOK_NS


def test_looks_that_could_tell_nothing_are_refused() -> None:
    for look_ns, silence_ns in ((0, 5), (6, 5)):
        with pytest.raises(Invalid, match="cannot tell a silence"):
            Vigil(silence_ns=silence_ns, look_ns=look_ns)


@given(
    starts_at=st.integers(0, 10**15),
    rate=st.fractions("0.9", "1.1"),
    delays=st.lists(st.integers(0, LEASE_NS - RENEW_NS - MARGIN_NS), min_size=1, max_size=8),
)
def test_a_holder_that_renews_within_its_lease_never_loses_it_whatever_the_clocks_show(
    starts_at: int, rate: object, delays: list[int]
) -> None:
    """The one who looks on has a clock that begins anywhere and runs at another rate."""
    vigil = Vigil()
    renewals, at = [0], 0
    for delay in delays:
        at += RENEW_NS + delay
        renewals.append(at)
    for now in range(0, at, LOOK_NS):
        beat = sum(renewal <= now for renewal in renewals)
        assert not vigil.look(starts_at + int(now * rate), (1, beat))  # type: ignore[operator]


def test_a_holder_is_sure_for_one_lease_from_when_it_asked() -> None:
    hold = Hold(100, lease_ns=50)
    assert not hold.is_over(149) and hold.is_over(150)
    hold.renewed(120)
    assert not hold.is_over(169) and hold.is_over(170)
    hold.renewed(110)
    assert not hold.is_over(169), "an answer that came late takes nothing back"
