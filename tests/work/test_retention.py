"""How long what has ended is kept, as people write it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talka.errors import Invalid
from talka.units import NEVER, SECOND
from talka.work.retention import LONGEST_NS, MOST_KEPT, Keep, Retention, parse_keep

DAY = 86_400 * SECOND
DEFAULT = Keep(7 * DAY, 10_000)


@pytest.mark.parametrize(
    ("text", "keep"),
    [
        ("1d", Keep(DAY, 10_000)),
        ("500", Keep(7 * DAY, 500)),
        (500, Keep(7 * DAY, 500)),
        ("90d,20", Keep(90 * DAY, 20)),
        (" 20 , 12h ", Keep(DAY // 2, 20)),
        ("3650d", Keep(3650 * DAY, 10_000)),
    ],
)
def test_what_is_not_said_stays_as_it_is_by_default(text: object, keep: Keep) -> None:
    assert parse_keep(text, DEFAULT, what="keep_jobs") == keep


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "does not say how long to keep: write an age, a number or both, such as 7d, 1000 or 7d,1000"),
        ("1d,2d", "does not say how long"),
        ("1,2", "does not say how long"),
        ("7d,", "does not say how long"),
        (True, "does not say how long"),
        (1.5, "does not say how long"),
        (None, "does not say how long"),
        ("soon", "is not a duration"),
        ("0", "write an age above 0, and a number from 1 to 10,000,000"),
        ("10000001", "a number from 1 to"),
        ("0s", "write an age above 0"),
        ("4000d", "write at most 3650 days"),
    ],
)
def test_what_says_nothing_useful_is_refused_with_its_name(text: object, said: str) -> None:
    with pytest.raises(Invalid, match=said) as refused:
        parse_keep(text, DEFAULT, what="keep_jobs")
    assert str(refused.value).startswith("keep_jobs = ")


def test_those_that_completed_and_others_have_a_rule_each() -> None:
    kept = Retention(Keep(DAY, 1), Keep(2 * DAY, 2))
    assert (kept.of(is_completed=True), kept.of(is_completed=False)) == (Keep(DAY, 1), Keep(2 * DAY, 2))


def test_a_rule_is_shown_as_it_is_written() -> None:
    assert [str(Keep(DAY, 5)), str(Keep(NEVER, 5)), str(Keep(90 * 60 * SECOND, 1))] == ["1d,5", "5", "1h30m,1"]


@given(st.integers(1, LONGEST_NS) | st.just(NEVER), st.integers(1, MOST_KEPT))
def test_a_rule_is_read_back_as_it_was_written(age_ns: int, count: int) -> None:
    keep = Keep(age_ns, count)
    assert parse_keep(str(keep), Keep(NEVER, 1), what="keep") == keep
