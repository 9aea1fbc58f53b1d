"""What is to be on record, and what waits until it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.effects import Lane, Send
from talka.control.jobs.checkpoints import AGAIN_NS, Checkpoints
from talka.wire.jobs import CHANNEL, Account, Accounted
from talka.work.lifecycle import JobState

if TYPE_CHECKING:
    from talka.control.jobs.checkpoints import Held

FENCE = (1, 2, 3)
LIFE = 7
RUNNING = JobState.RUNNING


def accounting(*, is_needed: bool = True) -> Checkpoints:
    return Checkpoints("b4k7", FENCE, LIFE, is_needed=is_needed)


def said(revision: int, content: bytes, unfit: tuple[str, ...] = ()) -> list[object]:
    account = Account("b4k7", FENCE, revision, "running", content, unfit=unfit, life=LIFE)
    return [Send(CHANNEL, "", account, Lane.CONTROL)]


def doing(what: str) -> Held:
    return lambda now: [f"{what} at {now}"]


def test_an_account_is_news_when_its_content_is() -> None:
    books = accounting()

    assert books.say(0, b"one", RUNNING, ()) == said(1, b"one")
    assert books.is_under_way
    books.on_recorded(1, 1)
    assert not books.is_under_way

    assert books.say(2, b"one", RUNNING, ()) == []
    assert books.say(3, b"two", RUNNING, ("w2",)) == said(2, b"two", ("w2",))


def test_what_the_content_does_not_show_is_told_all_the_same_once() -> None:
    books = accounting()
    books.say(0, b"one", RUNNING, ())
    books.on_recorded(1, 1)

    books.touch()

    assert books.say(2, b"one", RUNNING, ("w2",)) == said(2, b"one", ("w2",))
    books.on_recorded(3, 2)
    assert books.say(4, b"one", RUNNING, ("w2",)) == []


def test_what_is_held_is_done_when_the_account_after_it_is_on_record() -> None:
    books = accounting()
    assert books.hold(0, doing("this")) == []
    assert books.hold(0, doing("that")) == []

    assert books.say(0, b"one", RUNNING, ()) == said(1, b"one")

    assert books.on_recorded(5, 0) == []
    assert books.on_recorded(6, 1) == ["this at 6", "that at 6"]
    assert books.on_recorded(7, 1) == []


def test_what_is_held_while_an_account_is_under_way_waits_for_the_next() -> None:
    books = accounting()
    books.say(0, b"one", RUNNING, ())
    books.hold(1, doing("this"))

    assert books.on_recorded(2, 1) == []
    assert books.say(2, b"one", RUNNING, ()) == said(2, b"one")
    assert books.on_recorded(3, 2) == ["this at 3"]


def test_an_answer_to_an_earlier_account_takes_nothing_back() -> None:
    books = accounting()
    books.say(0, b"one", RUNNING, ())
    books.on_recorded(1, 1)
    books.say(1, b"two", RUNNING, ())
    books.on_recorded(2, 2)

    books.on_recorded(3, 1)

    assert not books.is_under_way
    assert books.say(4, b"two", RUNNING, ()) == []


def test_what_was_dropped_is_never_done() -> None:
    books = accounting()
    books.hold(0, doing("this"))
    books.say(0, b"one", RUNNING, ())

    books.drop()

    assert books.on_recorded(1, 1) == []


def test_where_no_account_is_needed_nothing_waits() -> None:
    assert accounting(is_needed=False).hold(3, doing("this")) == ["this at 3"]


def test_an_account_that_nobody_answered_is_made_anew() -> None:
    books = accounting()
    books.say(0, b"one", RUNNING, ())
    books.hold(0, doing("this"))

    assert books.say_again(AGAIN_NS - 1) == []
    assert books.is_under_way
    assert books.say_again(AGAIN_NS) == []
    assert not books.is_under_way

    assert books.say(AGAIN_NS, b"two", RUNNING, ()) == said(2, b"two")
    assert books.on_recorded(AGAIN_NS + 1, 2) == [f"this at {AGAIN_NS + 1}"]


def test_an_account_that_was_answered_is_not_said_again() -> None:
    books = accounting()
    assert books.say_again(9 * AGAIN_NS) == []
    books.say(0, b"one", RUNNING, ())
    books.on_recorded(1, 1)

    assert books.say_again(9 * AGAIN_NS) == []
    assert books.say(9 * AGAIN_NS, b"one", RUNNING, ()) == []


def test_the_last_account_is_said_as_it_is_until_it_is_on_record() -> None:
    books = accounting()
    books.say(0, b"one", RUNNING, ())
    assert not books.is_closing
    assert not books.is_closed

    last = books.close(1, JobState.FAILED, "a rule was broken", "d" * 64, 4)

    account = Account(
        "b4k7", FENCE, 2, "failed", b"", reason="a rule was broken", result="d" * 64, exit_code=4, life=LIFE
    )
    assert last == [Send(CHANNEL, "", account, Lane.CONTROL)]
    assert books.is_closing
    books.on_recorded(2, 1)
    assert not books.is_closed
    assert books.say_again(AGAIN_NS) == []
    assert books.say_again(1 + AGAIN_NS) == last
    assert books.say_again(2 * AGAIN_NS) == []
    books.on_recorded(9 * AGAIN_NS, 2)
    assert books.is_closed
    assert books.say_again(9 * AGAIN_NS) == []


def test_who_leads_the_job_is_asked_with_an_account_that_is_never_written() -> None:
    assert accounting().ask() == Send(CHANNEL, "", Account("b4k7", FENCE, 0, "", b"", life=LIFE), Lane.CONTROL)


def test_only_an_answer_to_this_life_under_this_fence_counts() -> None:
    books = accounting()

    assert books.is_mine(Accounted("b4k7", FENCE, 1, life=LIFE))
    assert not books.is_mine(Accounted("b4k7", FENCE, 1, life=LIFE + 1))
    assert not books.is_mine(Accounted("b4k7", (1, 2, 4), 1, life=LIFE))


@given(st.lists(st.sampled_from(["hold", "change", "record", "late"]), max_size=40))
@settings(deadline=None, derandomize=True)
def test_nothing_is_done_before_an_account_made_after_it_is_on_record_and_nothing_twice(events: list[str]) -> None:
    books = accounting()
    now = version = 0
    decided: dict[int, int] = {}
    on_the_way: list[tuple[int, int]] = []
    done: list[int] = []

    def carry_out(number: int) -> list[object]:
        done.append(number)
        return []

    for number, event in enumerate(events):
        now += AGAIN_NS
        if event == "hold":
            version += 1
            decided[number] = version
            books.hold(now, lambda _, number=number: carry_out(number))  # type: ignore[misc]
        elif event == "change":
            version += 1
        elif event == "late":
            books.say_again(now)
        elif on_the_way:
            revision, known = on_the_way.pop(0)
            before = len(done)
            books.on_recorded(now, revision)
            assert all(decided[other] <= known for other in done[before:])
        if not books.is_under_way:
            for effect in books.say(now, str(version).encode(), RUNNING, ()):
                assert isinstance(effect, Send)
                assert isinstance(effect.message, Account)
                on_the_way.append((effect.message.revision, version))
    assert done == sorted(set(done))
    for revision, _ in on_the_way:
        books.on_recorded(now, revision)
    if not books.is_under_way and books.say(now, str(version).encode(), RUNNING, ()):
        books.on_recorded(now, 1 << 40)
    assert done == list(decided)
