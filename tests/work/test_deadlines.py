import pytest
from hypothesis import given
from hypothesis import strategies as st

from talka.units import MINUTE, NEVER, SECOND
from talka.work.deadlines import (
    REASON_LIMIT,
    Allowance,
    Deadline,
    DeadlineTerms,
    Denied,
    Evict,
    Extension,
    Granted,
    OnTimeout,
    PutAside,
    Turn,
    Warned,
    more_time,
    told,
)

# What is given, and to whom.


def test_work_that_advances_gets_five_extensions_each_half_of_the_one_before_and_no_sixth() -> None:
    deadline = Deadline(30 * SECOND)
    granted = []
    for done in range(1, 6):
        answer = deadline.tick(deadline.until, done)
        assert isinstance(answer, Granted)
        granted.append(answer.ns / SECOND)

    assert granted == [15, 7.5, 3.75, 1.875, 1]
    assert deadline.until == 59.125 * SECOND and sum(one.ns for one in deadline.extensions) == 29.125 * SECOND
    assert deadline.tick(deadline.until, 6) == Warned(69.125 * SECOND)


def test_work_that_does_not_advance_gets_no_more_time() -> None:
    deadline = Deadline(30 * SECOND)
    assert deadline.ask(10 * SECOND, 0) == Denied("it has not advanced", 5, 30 * SECOND)

    assert deadline.ask(10 * SECOND, 7) == Granted(15 * SECOND, 4, 45 * SECOND)

    assert deadline.ask(10 * SECOND, 7) == Denied("it has not advanced since it was given more", 4, 45 * SECOND)
    assert deadline.denied == "it has not advanced since it was given more"
    assert deadline.tick(45 * SECOND, 7) == Warned(55 * SECOND)


def test_an_extension_asked_for_late_counts_from_then() -> None:
    deadline = Deadline(30 * SECOND)

    deadline.tick(40 * SECOND, 1)

    assert deadline.until == 55 * SECOND


def test_extensions_are_shares_of_the_base_and_no_shorter_than_the_least() -> None:
    terms = DeadlineTerms(base_ns=8 * SECOND, extensions=4)

    assert [terms.extension_ns(number) / SECOND for number in range(4)] == [4, 2, 1, 1]
    assert terms.longest_ns == 18 * SECOND


def test_who_asks_for_less_than_it_has_left_is_told_so_and_loses_no_extension() -> None:
    deadline = Deadline(300 * SECOND)

    answer = deadline.ask(100 * SECOND, 1, "a large file", estimate_ns=30 * SECOND)

    assert answer == Denied("it has 200.0 s left, which is enough for the 30s that it asked for", 5, 300 * SECOND)
    assert deadline.ask(271 * SECOND, 2, "a large file", estimate_ns=30 * SECOND) == Granted(
        15 * SECOND, 4, 315 * SECOND
    )


def test_an_ask_that_is_heard_twice_is_answered_twice_and_given_once() -> None:
    deadline = Deadline(30 * SECOND)
    assert deadline.ask(0, 1, "a large file", name="7/1") == Granted(15 * SECOND, 4, 45 * SECOND)

    restored = Deadline.restored(deadline.record(), 0)

    assert restored.ask(SECOND, 2, "a large file", name="7/1") == Granted(15 * SECOND, 4, 45 * SECOND)
    assert restored.ask(SECOND, 2, "a large file", name="7/2") == Granted(7.5 * SECOND, 3, 52.5 * SECOND)


def test_an_ask_that_is_heard_again_after_the_warning_comes_too_late() -> None:
    deadline = Deadline(30 * SECOND)
    deadline.ask(0, 1, name="7/1")
    deadline.tick(45 * SECOND, 1)

    assert isinstance(deadline.ask(46 * SECOND, 2, name="7/1"), Denied)


def test_work_is_told_what_it_has_now() -> None:
    deadline = Deadline(30 * SECOND)

    granted, denied = (more_time(20 * SECOND, deadline.ask(20 * SECOND, 1)) for _ in range(2))

    assert granted == Allowance(15 * SECOND, 4, 25 * SECOND)
    assert granted and (granted.granted_s, granted.ends_in_s) == (15, 25)
    assert not denied and denied.why_not == "it has not advanced since it was given more"


def test_after_five_extensions_the_answer_says_that_this_is_the_limit() -> None:
    deadline = Deadline(30 * SECOND)
    for done in range(1, 6):
        deadline.ask(0, done)

    answer = deadline.ask(0, 6)

    assert answer == Denied("it was given more time 5 times already, which is the limit", 0, 59.125 * SECOND)


# The end.


def test_nothing_happens_before_the_end() -> None:
    deadline = Deadline(30 * SECOND)

    assert deadline.tick(30 * SECOND - 1, 0) is None
    assert deadline.next_at == 30 * SECOND


def test_who_was_warned_gets_no_more_time_however_it_advances() -> None:
    deadline = Deadline(30 * SECOND)
    assert deadline.tick(30 * SECOND, 0) == Warned(40 * SECOND)

    answer = deadline.ask(32 * SECOND, 5)

    assert answer == Denied("it was warned that its time is over, and has 8.0 s to save", 0, 40 * SECOND)
    assert deadline.tick(39 * SECOND, 6) is None
    assert deadline.tick(40 * SECOND, 7) == Evict()


@pytest.mark.parametrize(
    ("on_timeout", "until", "end"),
    [
        ("kill", 40 * SECOND, Evict()),
        ("pause", 40 * SECOND, PutAside()),
        ("notify", 30 * SECOND + 5 * MINUTE, Evict()),
    ],
)
def test_what_follows_the_warning_is_for_the_work_to_choose(on_timeout: OnTimeout, until: int, end: Turn) -> None:
    deadline = Deadline(30 * SECOND, DeadlineTerms(on_timeout=on_timeout, last_ns=5 * MINUTE))

    assert deadline.tick(30 * SECOND, 0) == Warned(until)
    assert deadline.tick(until, 0) == end


def test_the_end_is_told_once() -> None:
    deadline = Deadline(30 * SECOND)
    deadline.tick(30 * SECOND, 0)
    deadline.tick(40 * SECOND, 0)

    assert deadline.is_over and deadline.next_at == NEVER
    assert deadline.tick(50 * SECOND, 0) is None
    assert deadline.ask(50 * SECOND, 1) == Denied("it was told to end", 0, 40 * SECOND)


# What outlives who keeps it.


def test_a_deadline_that_is_restored_by_another_clock_goes_on_where_it_was() -> None:
    deadline = Deadline(1030 * SECOND, began_ns=1000 * SECOND)
    deadline.ask(1020 * SECOND, 4, "a large file", estimate_ns=20 * SECOND)

    restored = Deadline.restored(deadline.record(), 7 * SECOND)

    assert restored.until == 52 * SECOND
    assert restored.extensions == [Extension(15 * SECOND, "a large file", 20 * SECOND, 20 * SECOND)]
    assert isinstance(restored.ask(30 * SECOND, 4), Denied)
    assert restored.ask(30 * SECOND, 5) == Granted(7.5 * SECOND, 3, 59.5 * SECOND)


def test_a_restored_deadline_does_not_warn_again() -> None:
    deadline = Deadline(30 * SECOND)
    deadline.tick(30 * SECOND, 0)

    restored = Deadline.restored(deadline.record(), 0)

    assert restored.tick(35 * SECOND, 9) is None
    assert restored.tick(40 * SECOND, 9) == Evict()
    assert Deadline.restored(restored.record(), 0).tick(41 * SECOND, 9) is None


def test_a_reason_is_kept_up_to_its_limit() -> None:
    deadline = Deadline(30 * SECOND)

    deadline.ask(0, 1, "x" * (REASON_LIMIT + 1))

    assert deadline.extensions[0].reason == "x" * REASON_LIMIT


# What people are told.


def test_people_are_told_how_often_by_how_much_and_why() -> None:
    assert told([]) == ""
    assert told([Extension(15 * SECOND)]) == "it was given 15s more, in 1 extension"
    many = [Extension(15 * SECOND, "a large file"), Extension(7 * SECOND, "a large file"), Extension(SECOND, "swap")]
    assert told(many) == "it was given 23s more, in 3 extensions: a large file; swap"
    assert told([], is_warned=True) == "it was warned that its time is over"
    both = "it was given 15s more, in 1 extension; it was warned that its time is over"
    assert told([Extension(15 * SECOND)], is_warned=True) == both


# Whatever happens.

terms = st.builds(
    DeadlineTerms,
    base_ns=st.integers(0, 1000),
    least_ns=st.integers(1, 50),
    extensions=st.integers(0, 8),
    grace_ns=st.integers(0, 100),
    on_timeout=st.sampled_from(["kill", "notify", "pause"]),
    last_ns=st.integers(0, 500),
)
turns = st.lists(
    st.tuples(st.sampled_from(["ask", "tick", "take over"]), st.integers(0, 300), st.integers(0, 2), st.integers(0, 90))
)


@given(terms=terms, turns=turns)
def test_grants_are_few_never_rise_and_follow_an_advance(
    terms: DeadlineTerms, turns: list[tuple[str, int, int, int]]
) -> None:
    deadline, now, done, done_before = Deadline(100, terms), 0, 0, 0
    granted: list[int] = []
    warnings = ends = 0
    for what, passed_ns, advanced, estimate_ns in turns:
        now, done = now + passed_ns, done + advanced
        if what == "take over":
            shift = 1_000 + passed_ns  # another clock
            record = Deadline.restored(deadline.record(), shift, terms).record()
            deadline = Deadline.restored(record, 0, terms)
            continue
        answer = deadline.ask(now, done, "busy", estimate_ns=estimate_ns) if what == "ask" else deadline.tick(now, done)
        if isinstance(answer, Granted):
            assert not warnings and done > done_before
            done_before = done
            granted.append(answer.ns)
            assert answer.until >= now and answer.left == terms.extensions - len(granted)
        warnings += isinstance(answer, Warned)
        ends += isinstance(answer, Evict | PutAside)

    assert granted == sorted(granted, reverse=True) == [one.ns for one in deadline.extensions]
    assert len(granted) <= terms.extensions
    assert sum(granted) + terms.after_warning_ns <= terms.longest_ns
    assert sum(granted) <= terms.base_ns + terms.least_ns * terms.extensions
    assert ends <= warnings <= 1


@given(terms=terms, advances=st.lists(st.integers(0, 3), min_size=20))
def test_work_whose_end_is_watched_ends_within_a_time_known_before(terms: DeadlineTerms, advances: list[int]) -> None:
    deadline, done = Deadline(100, terms), 0
    for advanced in advances:
        done += advanced
        if deadline.is_over:
            break
        deadline.tick(deadline.until, done)

    assert deadline.is_over and deadline.until <= 100 + terms.longest_ns
