"""Records of jobs in the register: decided first, told once a majority has them."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from talka.cluster.leadership.news import WriteEnded
from talka.control.jobs import entries
from talka.control.jobs.entries import Alarmed, RecordBook
from talka.wire.entries import JobOrder, JobRecord, decode_record, encode_record
from talka.work.lifecycle import JobState

OrderOf = Callable[..., JobOrder]


class Desk:
    """A book beside its voter."""

    def __init__(self, group: Any, name: str) -> None:
        self.voter = group.voters[name]
        self.book: RecordBook | None = None
        self.next_tick_at = (1 << 63) - 1

    def on_news(self, now: int, news: object) -> list[object]:
        return self.book.on_write_ended(now, news) if self.book is not None and isinstance(news, WriteEnded) else []


class Books:
    """One manager and its book."""

    def __init__(self, cabinet_of: Callable[..., Any]) -> None:
        self.group = cabinet_of("m1", part_of=Desk)
        self.group.leader()
        self.book = self.open()

    def open(self) -> RecordBook:
        desk = self.group.parts["m1"]
        desk.book = self.book = RecordBook(desk.voter)
        return self.book

    def reopen(self) -> RecordBook:
        """After the manager was started anew."""
        self.group.stop("m1")
        self.group.start("m1")
        self.group.leader()
        return self.open()

    def act(self, effects: list[object]) -> list[str]:
        return self.told(self.group.act("m1", effects))

    def told(self, effects: list[object]) -> list[str]:
        return [effect for effect in effects if isinstance(effect, str)]

    def add(self, record: JobRecord, *then: object) -> list[str]:
        return self.act(self.book.add(self.group.now, record, *then))

    def put(self, record: JobRecord, *then: object) -> list[str]:
        return self.act(self.book.put(self.group.now, record, *then))


@pytest.fixture
def books(cabinet_of: Callable[..., Any]) -> Books:
    return Books(cabinet_of)


@pytest.fixture
def record_of(order_of: OrderOf) -> Callable[..., JobRecord]:
    def make(number: int, **more: Any) -> JobRecord:
        more = {"state": JobState.QUEUED, **more}
        return JobRecord(job=f"job{number}", order=order_of(), number=number, **more)

    return make


RecordOf = Callable[..., JobRecord]


def test_what_follows_from_a_record_waits_for_the_disk(books: Books, record_of: RecordOf) -> None:
    books.group.hold()
    assert books.add(record_of(1), "accepted") == []
    assert list(books.book.decided) == ["job1"] and books.book.written == {}
    assert not books.book.is_written("job1")

    assert books.told(books.group.write()) == ["accepted"]

    assert books.book.is_written("job1")
    assert books.book.written == books.book.decided == {"job1": record_of(1, version=1)}


def test_what_is_decided_during_a_write_goes_with_the_next(books: Books, record_of: RecordOf) -> None:
    books.group.hold()
    books.add(record_of(1), "first")
    assert books.put(record_of(1, owner="m1"), "second") == []
    assert books.put(record_of(1, owner="m2"), "third") == []
    assert books.act(books.book.once_written(books.book.decided["job1"], "asked")) == []

    assert books.told(books.group.write()) == ["first", "second", "third", "asked"]

    assert books.book.written["job1"] == record_of(1, owner="m2", version=3)
    writes = [one for _, one in books.group.out if isinstance(one, WriteEnded)]
    assert len(writes) == 2, "two decisions went together"


def test_what_is_on_disk_can_be_told_at_once(books: Books, record_of: RecordOf) -> None:
    books.add(record_of(1))
    written = books.book.written["job1"]
    books.group.hold()
    books.put(record_of(1, owner="m1"))

    assert books.act(books.book.once_written(written, "old")) == ["old"]
    assert books.act(books.book.once_written(books.book.decided["job1"], "new")) == []
    assert books.told(books.group.write()) == ["new"]


def test_who_asks_again_and_again_is_answered_once(books: Books, record_of: RecordOf) -> None:
    books.group.hold()
    books.add(record_of(1))
    for _ in range(100):
        books.book.once_written(books.book.decided["job1"], "asked")

    assert books.told(books.group.write()) == ["asked"]


def test_a_write_that_failed_is_tried_again(books: Books, record_of: RecordOf) -> None:
    book, now = books.book, books.group.now
    books.group.hold()
    books.add(record_of(1), "accepted")

    assert book.on_write_ended(now, WriteEnded(1, "unknown")) == []
    assert books.act(book.write_again(now)) == [], "refused: the first write of the key is still under way"
    assert books.told(books.group.write()) == [], "nobody waits for that one any more"
    assert not book.is_written("job1")

    assert books.act(book.write_again(now)) == ["accepted"]
    assert book.is_written("job1")
    assert books.act(book.write_again(now)) == [], "nothing is left to be written"


def test_the_end_of_somebody_elses_write_says_nothing(books: Books) -> None:
    assert books.book.on_write_ended(0, WriteEnded(77, "accepted")) == []


def test_a_new_leader_reads_what_was_written(books: Books, record_of: RecordOf) -> None:
    books.add(record_of(7, key="k"))
    books.add(record_of(3))
    before = books.book.decided

    book = books.reopen()

    assert book.decided == book.written == before
    assert [record.number for record in book.in_order()] == [3, 7]
    assert book.by_key("k") == before["job7"]
    assert book.by_key("other") is None and book.by_key("") is None
    assert book.is_written("job7") and not book.is_written("job9")
    assert book.alarms == []
    books.add(record_of(8))
    assert sorted(key for key in values(books) if key.startswith("job/")) == ["job/000", "job/001", "job/002"]


def values(books: Books) -> dict[str, bytes]:
    leader_term = books.group.voters["m1"].election.leader_term
    assert leader_term is not None
    return dict(leader_term.values())


def test_what_is_no_record_is_an_alarm_and_harms_nothing_else(books: Books, record_of: RecordOf) -> None:
    voter, now = books.group.voters["m1"], books.group.now
    books.add(record_of(1))
    for ref, key, value in (
        (91, "job/001", b"\xc1"),
        (92, "job/x", encode_record(record_of(2))),
        (93, "job/003", b""),
        (94, "other", b"\xc1"),
    ):
        books.group.act("m1", voter.write(now, ref, key, value))

    book = books.reopen()

    assert list(book.decided) == ["job1"]
    first, second = sorted(book.alarms, key=lambda alarm: alarm.text)
    assert isinstance(first, Alarmed) and first.text.startswith(
        "job/001: the register holds what is no record of a job"
    )
    assert second.text.startswith("job/x: ")


def test_a_new_job_takes_the_slot_of_the_one_that_ended_longest_ago(
    books: Books, record_of: RecordOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "SLOTS", 3)
    for number, ended_ms in ((1, 0), (2, 900), (3, 500)):
        state = JobState.COMPLETED if ended_ms else JobState.RUNNING
        assert books.book.has_room()
        books.add(record_of(number, state=state, ended_ms=ended_ms, key=f"k{number}"))

    assert books.book.has_room()
    books.add(record_of(4))

    assert list(books.book.decided) == list(books.book.written) == ["job1", "job2", "job4"]
    assert books.book.by_key("k3") is None and books.book.by_key("k2") is not None
    assert decode_record(values(books)["job/002"]).job == "job4"
    books.add(record_of(5))
    assert list(books.book.decided) == ["job1", "job4", "job5"]
    assert not books.book.has_room(), "those that are left have not ended"


def test_of_two_that_ended_at_once_the_earlier_submission_gives_way(
    books: Books, record_of: RecordOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "SLOTS", 2)
    for number in (6, 5):
        books.add(record_of(number, state=JobState.FAILED, ended_ms=1))

    books.add(record_of(7))

    assert list(books.book.decided) == ["job6", "job7"]


def test_a_job_whose_end_is_not_on_disk_keeps_its_slot(
    books: Books, record_of: RecordOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "SLOTS", 2)
    books.add(record_of(1, state=JobState.RUNNING))
    books.group.hold()
    books.put(record_of(1, state=JobState.COMPLETED, ended_ms=1), "ended")

    assert books.book.has_room(), "one slot is free"
    books.add(record_of(2))
    assert not books.book.has_room()

    assert books.told(books.group.write()) == ["ended"]
    assert books.book.has_room()


def test_versions_count_the_decisions(books: Books, record_of: RecordOf) -> None:
    books.add(record_of(1, version=40))
    for owner in ("m1", "m2"):
        books.put(msgspec.structs.replace(books.book.decided["job1"], owner=owner))

    assert books.book.written["job1"].version == 3
