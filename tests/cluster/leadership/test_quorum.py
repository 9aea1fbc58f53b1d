import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.leadership.quorum import (
    VOTERS_LIMIT,
    BadVoters,
    breaker_text,
    check_size,
    majority,
)
from talka.errors import Invalid
from talka.units import SECOND


@given(st.integers(1, 1000))
@settings(deadline=None, derandomize=True)
def test_two_majorities_share_a_voter_and_one_fewer_would_not(voters: int) -> None:
    assert 2 * majority(voters) > voters
    assert 2 * (majority(voters) - 1) <= voters


def test_nobody_is_no_majority_of_nobody() -> None:
    assert majority(0) == 1


@pytest.mark.parametrize(("wait_ns", "text"), [(8 * SECOND - 1, "8 s"), (1_500_000_000, "1.5 s"), (1, "0.1 s")])
def test_an_open_breaker_says_when_the_next_try_is(wait_ns: int, text: str) -> None:
    assert breaker_text(3, 30 * SECOND, wait_ns) == (
        f"the voters failed 3 times within 30 s and are left alone for a while: the next try is in {text}"
    )


@pytest.mark.parametrize(
    ("voters", "sentence"),
    [
        ([], "no voters are configured"),
        (["a", "b", "a"], "the voter 'a' is configured twice"),
        ([f"v{index}" for index in range(VOTERS_LIMIT + 1)], "16 voters are configured, at most 15 may be"),
        (["a", "b"], "2 voters decide only while both are there"),
    ],
    ids=["none", "twice", "many", "two"],
)
def test_a_group_that_must_not_start_is_refused(voters: list[str], sentence: str) -> None:
    with pytest.raises(BadVoters, match=sentence) as caught:
        check_size(voters)
    assert isinstance(caught.value, Invalid)


@pytest.mark.parametrize("size", [1, 3, 5, VOTERS_LIMIT])
def test_an_odd_group_starts_without_a_word(size: int) -> None:
    assert check_size([f"v{index}" for index in range(size)]) is None


@pytest.mark.parametrize(
    ("size", "note"),
    [
        (2, "2 voters tolerate the loss of 0, no more than 1 voter does"),
        (4, "4 voters tolerate the loss of 1, no more than 3 voters do"),
        (14, "14 voters tolerate the loss of 6, no more than 13 voters do"),
    ],
)
def test_an_even_group_is_told_what_it_tolerates(size: int, note: str) -> None:
    assert check_size([f"v{index}" for index in range(size)], allow_two=True) == note
