"""How those without state are taught: page by page, until each page was answered by the disk it was for."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.effects import Lane, Send
from talka.cluster.leadership.snapshot_transfer import APPLICANTS_LIMIT, PAGES_AT_ONCE, SnapshotTransfer
from talka.wire.leadership import (
    CHANNEL,
    VALUE_LIMIT_BYTES,
    RegisterEntry,
    RegisterSnapshot,
    SnapshotReply,
    Version,
)

TERM = 5
FOUNDED = 7
DISK = 41
LARGE = bytes(VALUE_LIMIT_BYTES)
"""Two of these are more than a page holds."""

quick = settings(deadline=None, derandomize=True, max_examples=60)


def entries_of(count: int, value: bytes = b"v") -> list[RegisterEntry]:
    return [RegisterEntry(f"k{number:03}", Version(1, number), value) for number in range(count)]


class Taught:
    """The lessons of a leader, and what came of the last call."""

    def __init__(self) -> None:
        self.lessons = SnapshotTransfer(TERM)

    def teach(self, name: str, disk_id: int = DISK, pages: int = 1, is_last: bool = False) -> list[RegisterSnapshot]:
        out: list[object] = []
        self.lessons.teach(name, disk_id, entries_of(pages, LARGE), FOUNDED, out, is_last=is_last)
        return sent(out, name)

    def apply(self, name: str, disk_id: int = DISK) -> list[RegisterSnapshot]:
        return self.teach(name, disk_id) if self.lessons.apply(name, disk_id) else []

    def go_on(self) -> dict[str, list[int]]:
        """Which pages are sent to whom with a heartbeat."""
        out: list[object] = []
        self.lessons.go_on(FOUNDED, out)
        names = dict.fromkeys(word.to for word in out if isinstance(word, Send))
        return {name: [part.page for part in sent(out, name)] for name in names}

    def reply(self, name: str, part: RegisterSnapshot, disk_id: int = DISK) -> tuple[list[RegisterSnapshot], bool]:
        """What is sent because of this answer, and whether it was all of the last lesson."""
        out: list[object] = []
        message = SnapshotReply(TERM, part.number, part.page, disk_id)
        has_ended = self.lessons.on_reply(name, message, FOUNDED, out)
        return sent(out, name), has_ended


def sent(out: list[object], to: str) -> list[RegisterSnapshot]:
    words = [word for word in out if isinstance(word, Send) and word.to == to]
    return [word.message for word in words if isinstance(word.message, RegisterSnapshot)]


# -- pages


def test_a_lesson_is_all_there_is_with_its_term_and_the_number_of_the_group() -> None:
    out: list[object] = []

    SnapshotTransfer(TERM).teach("c", DISK, entries_of(3), FOUNDED, out)

    assert out == [Send(CHANNEL, "c", RegisterSnapshot(TERM, 1, 0, 1, tuple(entries_of(3)), FOUNDED), Lane.CONTROL)]


def test_nothing_is_a_lesson_of_one_empty_page() -> None:
    taught = Taught()

    (part,) = taught.teach("c", pages=0)

    assert (part.pages, part.entries) == (1, ())
    taught.reply("c", part)
    assert taught.go_on() == {}


def test_some_pages_are_sent_at_once_and_the_rest_as_they_are_answered() -> None:
    taught = Taught()
    parts = taught.teach("c", pages=2 * PAGES_AT_ONCE)
    assert [part.page for part in parts] == list(range(PAGES_AT_ONCE))
    assert {part.pages for part in parts} == {2 * PAGES_AT_ONCE}

    more, _ = taught.reply("c", parts[1])

    assert [part.page for part in more] == [0, 2, 3, 4]


@given(order=st.randoms(use_true_random=False), count=st.integers(1, 3 * PAGES_AT_ONCE))
@quick
def test_a_lesson_ends_once_every_page_was_answered_in_whatever_order(order: Random, count: int) -> None:
    taught = Taught()
    waiting = taught.teach("c", pages=count, is_last=True)
    known: dict[int, RegisterSnapshot] = {}
    learned = False
    while waiting:
        part = order.choice(waiting)
        known[part.page] = part
        assert learned is False
        waiting, learned = taught.reply("c", part)

    assert learned is True
    assert sorted(known) == list(range(count))
    assert [entry for page in sorted(known) for entry in known[page].entries] == entries_of(count, LARGE)
    assert taught.go_on() == {}


def test_pages_that_were_not_answered_are_sent_again_and_those_that_were_are_not() -> None:
    taught = Taught()
    parts = taught.teach("c", pages=3)
    taught.teach("d")
    taught.reply("c", parts[1])

    assert taught.go_on() == {"c": [0, 2], "d": [0]}
    assert taught.go_on() == {"c": [0, 2], "d": [0]}


def test_a_page_that_is_answered_twice_or_that_there_is_not_ends_nothing() -> None:
    taught = Taught()
    first, second = taught.teach("c", pages=2, is_last=True)
    taught.reply("c", first)

    assert taught.reply("c", first) == ([second], False)
    beyond = RegisterSnapshot(TERM, first.number, 99, 2, (), FOUNDED)
    assert taught.reply("c", beyond) == ([second], False)
    assert taught.reply("c", second) == ([], True)


def test_one_that_asks_again_goes_on_with_the_same_lesson() -> None:
    taught = Taught()
    parts = taught.teach("c", pages=2)
    taught.reply("c", parts[0])

    again = taught.teach("c", pages=5)  # what came since is told by other means

    assert again == parts[1:]


def test_a_lesson_that_was_learned_is_over_and_one_that_asks_again_begins_another() -> None:
    taught = Taught()
    (first,) = taught.teach("c", is_last=True)
    taught.reply("c", first)

    assert taught.reply("c", first) == ([], False)
    (second,) = taught.teach("c")

    assert second.number != first.number


# -- whose answer it is


@pytest.mark.parametrize(
    ("name", "number", "disk_id"),
    [
        pytest.param("c", 1, DISK + 1, id="another disk"),
        pytest.param("c", 2, DISK, id="another lesson"),
        pytest.param("d", 1, DISK, id="somebody else"),
    ],
)
def test_an_answer_that_is_not_of_the_disk_that_is_taught_says_nothing(name: str, number: int, disk_id: int) -> None:
    taught = Taught()
    taught.lessons.apply("c", DISK)
    (part,) = taught.teach("c", is_last=True)

    assert taught.reply(name, RegisterSnapshot(TERM, number, 0, 1, (), FOUNDED), disk_id) == ([], False)

    assert taught.go_on() == {"c": [0]}
    assert taught.lessons.synced == {}
    assert taught.reply("c", part) == ([], True)


def test_another_disk_begins_a_lesson_of_its_own() -> None:
    taught = Taught()
    (first,) = taught.teach("c", DISK)

    (second,) = taught.teach("c", DISK + 1)

    assert second.number != first.number
    assert taught.reply("c", first, DISK) == ([], False)
    assert taught.go_on() == {"c": [0]}
    taught.reply("c", second, DISK + 1)
    assert taught.go_on() == {}


def test_the_last_lesson_begins_anew_and_the_one_before_counts_no_more() -> None:
    taught = Taught()
    before = taught.teach("c", pages=2)
    taught.reply("c", before[0])

    last = taught.teach("c", pages=2, is_last=True)

    assert [part.page for part in last] == [0, 1]
    assert taught.reply("c", before[1]) == ([], False)
    assert taught.reply("c", last[0]) == (last[1:], False)
    assert taught.reply("c", last[1]) == ([], True)


def test_one_that_asks_while_it_has_its_last_lesson_goes_on_with_that() -> None:
    taught = Taught()
    (last,) = taught.teach("c", is_last=True)

    assert taught.teach("c") == [last]
    assert taught.reply("c", last) == ([], True)


# -- applicants


def test_an_applicant_that_learned_everything_is_up_to_date_and_is_not_taught_again() -> None:
    taught = Taught()
    (part,) = taught.apply("x")
    assert taught.lessons.synced == {}

    assert taught.reply("x", part) == ([], False)

    assert taught.lessons.synced == {"x": DISK}
    assert taught.apply("x") == []


def test_a_voter_that_learned_everything_is_no_applicant() -> None:
    taught = Taught()
    (part,) = taught.teach("c")

    taught.reply("c", part)

    assert taught.lessons.synced == {}


def test_an_applicant_that_had_its_last_lesson_is_not_up_to_date_by_that() -> None:
    taught = Taught()
    taught.lessons.apply("x", DISK)
    (part,) = taught.teach("x", is_last=True)

    assert taught.reply("x", part) == ([], True)

    assert taught.lessons.synced == {}


@pytest.mark.parametrize("is_taught", [True, False], ids=["after it was taught", "before"])
def test_an_applicant_that_changes_its_disk_starts_again(is_taught: bool) -> None:
    taught = Taught()
    (first,) = taught.apply("x", DISK)
    if is_taught:
        taught.reply("x", first, DISK)

    (second,) = taught.apply("x", DISK + 1)

    assert taught.lessons.synced == {}
    taught.reply("x", first, DISK)
    assert taught.lessons.synced == {}
    taught.reply("x", second, DISK + 1)
    assert taught.lessons.synced == {"x": DISK + 1}


def test_one_whose_last_lesson_is_stopped_can_have_another_without_applying_again() -> None:
    taught = Taught()
    (part,) = taught.apply("x")
    taught.reply("x", part)
    (last,) = taught.teach("x", is_last=True)
    taught.apply("y")

    taught.lessons.stop("x")

    assert taught.go_on() == {"y": [0]}
    assert taught.reply("x", last) == ([], False)
    assert taught.lessons.synced == {"x": DISK}
    (again,) = taught.teach("x", is_last=True)
    assert taught.reply("x", again) == ([], True)


def test_of_too_many_applicants_the_one_that_applied_first_is_forgotten_and_may_apply_again() -> None:
    taught = Taught()
    (first,) = taught.apply("x0")
    taught.reply("x0", first)
    for number in range(1, APPLICANTS_LIMIT):
        assert taught.apply(f"x{number}")
    assert taught.apply("x0") == []  # taught, and remembered

    assert taught.apply("one more")

    assert taught.lessons.synced == {}
    assert list(taught.go_on()) == [*(f"x{number}" for number in range(1, APPLICANTS_LIMIT)), "one more"]
    assert taught.apply("x0")
    assert "x1" not in taught.go_on()  # it was the oldest now


def test_voters_are_taught_however_many_applicants_there_are() -> None:
    taught = Taught()
    taught.teach("b")
    for number in range(3 * APPLICANTS_LIMIT):
        taught.apply(f"x{number}")
    taught.teach("c")

    going_on = taught.go_on()

    assert len(going_on) == APPLICANTS_LIMIT + 2
    assert going_on["b"] == going_on["c"] == [0]
