"""Entries of jobs in the register: decided first, told once a majority has them."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from talka.cluster.leadership.news import WriteEnded
from talka.control.jobs.effects import Alarmed
from talka.control.jobs.entries import EntryBook
from talka.units import MILLISECOND
from talka.wire.entries import SLOTS, JobEntry, decode_entry, encode_entry
from talka.wire.orders import JobOrder
from talka.work.lifecycle import JobState
from talka.work.retention import Keep, Retention

OrderOf = Callable[..., JobOrder]


class Desk:
    """A book beside its voter."""

    def __init__(self, group: Any, name: str) -> None:
        self.voter = group.voters[name]
        self.book: EntryBook | None = None
        self.next_tick_at = (1 << 63) - 1

    def on_news(self, now: int, news: object) -> list[object]:
        return self.book.on_write_ended(now, news) if self.book is not None and isinstance(news, WriteEnded) else []


class Books:
    """One manager and its book."""

    def __init__(self, cabinet_of: Callable[..., Any], slots: int = SLOTS) -> None:
        self.slots = slots
        self.group = cabinet_of("m1", part_of=Desk)
        self.group.leader()
        self.book = self.open()

    def open(self) -> EntryBook:
        desk = self.group.parts["m1"]
        desk.book = self.book = EntryBook(desk.voter, self.slots)
        return self.book

    def reopen(self) -> EntryBook:
        """After the manager was restarted."""
        self.group.stop("m1")
        self.group.start("m1")
        self.group.leader()
        return self.open()

    def act(self, effects: list[object]) -> list[str]:
        return self.told(self.group.act("m1", effects))

    def told(self, effects: list[object]) -> list[str]:
        return [effect for effect in effects if isinstance(effect, str)]

    def add(self, entry: JobEntry, *then: object) -> list[str]:
        return self.act(self.book.add(self.group.now, entry, *then))

    def put(self, entry: JobEntry, *then: object) -> list[str]:
        return self.act(self.book.put(self.group.now, entry, *then))


@pytest.fixture
def checkpoints(cabinet_of: Callable[..., Any], request: pytest.FixtureRequest) -> Books:
    """With a parameter: so many jobs are remembered."""
    return Books(cabinet_of, getattr(request, "param", SLOTS))


@pytest.fixture
def entry_of(order_of: OrderOf) -> Callable[..., JobEntry]:
    def make(number: int, **more: Any) -> JobEntry:
        more = {"state": JobState.QUEUED, **more}
        return JobEntry(job=f"job{number}", order=order_of(), number=number, **more)

    return make


RecordOf = Callable[..., JobEntry]


def test_what_follows_from_an_entry_waits_for_the_disk(checkpoints: Books, entry_of: RecordOf) -> None:
    checkpoints.group.hold()
    assert checkpoints.add(entry_of(1), "accepted") == []
    assert list(checkpoints.book.decided) == ["job1"] and checkpoints.book.written == {}
    assert not checkpoints.book.is_written("job1")

    assert checkpoints.told(checkpoints.group.write()) == ["accepted"]

    assert checkpoints.book.is_written("job1")
    assert checkpoints.book.written == checkpoints.book.decided == {"job1": entry_of(1, version=1)}


def test_what_is_decided_during_a_write_goes_with_the_next(checkpoints: Books, entry_of: RecordOf) -> None:
    checkpoints.group.hold()
    checkpoints.add(entry_of(1), "first")
    assert checkpoints.put(entry_of(1, owner="m1"), "second") == []
    assert checkpoints.put(entry_of(1, owner="m2"), "third") == []
    assert checkpoints.act(checkpoints.book.once_written(checkpoints.book.decided["job1"], "asked")) == []

    assert checkpoints.told(checkpoints.group.write()) == ["first", "second", "third", "asked"]

    assert checkpoints.book.written["job1"] == entry_of(1, owner="m2", version=3)
    writes = [one for _, one in checkpoints.group.out if isinstance(one, WriteEnded)]
    assert len(writes) == 2, "two decisions went together"


def test_what_is_on_disk_can_be_told_at_once(checkpoints: Books, entry_of: RecordOf) -> None:
    checkpoints.add(entry_of(1))
    written = checkpoints.book.written["job1"]
    checkpoints.group.hold()
    checkpoints.put(entry_of(1, owner="m1"))

    assert checkpoints.act(checkpoints.book.once_written(written, "old")) == ["old"]
    assert checkpoints.act(checkpoints.book.once_written(checkpoints.book.decided["job1"], "new")) == []
    assert checkpoints.told(checkpoints.group.write()) == ["new"]


def test_who_asks_again_and_again_is_answered_once(checkpoints: Books, entry_of: RecordOf) -> None:
    checkpoints.group.hold()
    checkpoints.add(entry_of(1))
    for _ in range(100):
        checkpoints.book.once_written(checkpoints.book.decided["job1"], "asked")

    assert checkpoints.told(checkpoints.group.write()) == ["asked"]


def test_a_write_that_failed_is_tried_again(checkpoints: Books, entry_of: RecordOf) -> None:
    book, now = checkpoints.book, checkpoints.group.now
    checkpoints.group.hold()
    checkpoints.add(entry_of(1), "accepted")

    assert book.on_write_ended(now, WriteEnded(1, "unknown")) == []
    assert checkpoints.act(book.write_again(now)) == [], "refused: the first write of the key is still under way"
    assert checkpoints.told(checkpoints.group.write()) == [], "nobody waits for that one any more"
    assert not book.is_written("job1")

    assert checkpoints.act(book.write_again(now)) == ["accepted"]
    assert book.is_written("job1")
    assert checkpoints.act(book.write_again(now)) == [], "nothing is left to be written"


def test_the_end_of_somebody_elses_write_says_nothing(checkpoints: Books) -> None:
    assert checkpoints.book.on_write_ended(0, WriteEnded(77, "accepted")) == []


def test_a_new_leader_reads_what_was_written(checkpoints: Books, entry_of: RecordOf) -> None:
    checkpoints.add(entry_of(7, key="k"))
    checkpoints.add(entry_of(3))
    before = checkpoints.book.decided

    book = checkpoints.reopen()

    assert book.decided == book.written == before
    assert [entry.number for entry in book.in_order()] == [3, 7]
    assert book.by_key("k") == before["job7"]
    assert book.by_key("other") is None and book.by_key("") is None
    assert book.is_written("job7") and not book.is_written("job9")
    assert book.alarms == []
    checkpoints.add(entry_of(8))
    assert sorted(key for key in values(checkpoints) if key.startswith("job/")) == ["job/000", "job/001", "job/002"]


def values(checkpoints: Books) -> dict[str, bytes]:
    leader_term = checkpoints.group.voters["m1"].election.leader_term
    assert leader_term is not None
    return dict(leader_term.values())


def test_what_is_no_entry_is_an_alarm_and_harms_nothing_else(checkpoints: Books, entry_of: RecordOf) -> None:
    voter, now = checkpoints.group.voters["m1"], checkpoints.group.now
    checkpoints.add(entry_of(1))
    for ref, key, value in (
        (91, "job/001", b"\xc1"),
        (92, "job/x", encode_entry(entry_of(2))),
        (93, "job/003", b""),
        (94, "other", b"\xc1"),
    ):
        checkpoints.group.act("m1", voter.write(now, ref, key, value))

    book = checkpoints.reopen()

    assert list(book.decided) == ["job1"]
    first, second = sorted(book.alarms, key=lambda alarm: alarm.text)
    assert isinstance(first, Alarmed) and first.text.startswith(
        "job/001: the register holds a malformed entry of a job"
    )
    assert second.text.startswith("job/x: ")


@pytest.mark.parametrize("checkpoints", [3], indirect=True)
def test_a_new_job_takes_the_slot_of_the_one_that_ended_longest_ago(checkpoints: Books, entry_of: RecordOf) -> None:
    for number, ended_ms in ((1, 0), (2, 900), (3, 500)):
        state = JobState.COMPLETED if ended_ms else JobState.RUNNING
        assert checkpoints.book.has_room()
        checkpoints.add(entry_of(number, state=state, ended_ms=ended_ms, key=f"k{number}"))

    assert checkpoints.book.has_room()
    checkpoints.add(entry_of(4))

    assert list(checkpoints.book.decided) == list(checkpoints.book.written) == ["job1", "job2", "job4"]
    assert checkpoints.book.by_key("k3") is None and checkpoints.book.by_key("k2") is not None
    assert decode_entry(values(checkpoints)["job/002"]).job == "job4"
    checkpoints.add(entry_of(5))
    assert list(checkpoints.book.decided) == ["job1", "job4", "job5"]
    assert not checkpoints.book.has_room(), "those that are left have not ended"


@pytest.mark.parametrize("checkpoints", [2], indirect=True)
def test_of_two_that_ended_at_once_the_earlier_submission_gives_way(checkpoints: Books, entry_of: RecordOf) -> None:
    for number in (6, 5):
        checkpoints.add(entry_of(number, state=JobState.FAILED, ended_ms=1))

    checkpoints.add(entry_of(7))

    assert list(checkpoints.book.decided) == ["job6", "job7"]


@pytest.mark.parametrize("checkpoints", [2], indirect=True)
def test_a_job_whose_end_is_not_on_disk_keeps_its_slot(checkpoints: Books, entry_of: RecordOf) -> None:
    checkpoints.add(entry_of(1, state=JobState.RUNNING))
    checkpoints.group.hold()
    checkpoints.put(entry_of(1, state=JobState.COMPLETED, ended_ms=1), "ended")

    assert checkpoints.book.has_room(), "one slot is free"
    checkpoints.add(entry_of(2))
    assert not checkpoints.book.has_room()

    assert checkpoints.told(checkpoints.group.write()) == ["ended"]
    assert checkpoints.book.has_room()


DAY_MS = 86_400_000


def kept_for(days: int, count: int) -> Keep:
    return Keep(days * DAY_MS * MILLISECOND, count)


def test_jobs_that_ended_long_ago_or_beyond_so_many_are_dropped_each_kind_by_its_rule(
    checkpoints: Books, entry_of: RecordOf
) -> None:
    states = [JobState.COMPLETED, JobState.FAILED, JobState.PARTIAL]
    for number in range(9):
        checkpoints.add(entry_of(number, state=states[number % 3], ended_ms=number * DAY_MS, key=f"k{number}"))
    checkpoints.add(entry_of(9, state=JobState.RUNNING, key="k9"))
    now, wall_ms = checkpoints.group.now, 9 * DAY_MS
    rules = Retention(kept_for(5, 9), kept_for(99, 3))

    checkpoints.act(checkpoints.book.sweep(now, wall_ms, rules))

    assert [entry.number for entry in checkpoints.book.in_order()] == [5, 6, 7, 8, 9]
    assert checkpoints.book.by_key("k4") is None and checkpoints.book.by_key("k9") is not None
    assert checkpoints.act(checkpoints.book.sweep(now, wall_ms, rules)) == []
    assert [entry.number for entry in checkpoints.reopen().in_order()] == [5, 6, 7, 8, 9], "a majority forgot them"


@pytest.mark.parametrize("checkpoints", [2], indirect=True)
def test_a_job_that_leaves_keeps_its_slot_until_a_majority_knows(checkpoints: Books, entry_of: RecordOf) -> None:
    book, now = checkpoints.book, checkpoints.group.now
    checkpoints.add(entry_of(1, state=JobState.COMPLETED, ended_ms=0))
    checkpoints.add(entry_of(2, state=JobState.RUNNING))
    assert book.has_room()
    checkpoints.group.hold()
    nothing = Retention(kept_for(0, 0), kept_for(0, 0))

    checkpoints.act(book.sweep(now, DAY_MS, nothing))

    assert not book.has_room() and "job1" in book.decided
    assert book.sweep(now, DAY_MS, nothing) == [], "it leaves already"
    checkpoints.told(checkpoints.group.write())
    assert book.has_room() and list(book.decided) == ["job2"]


def test_a_job_whose_drop_did_not_come_through_stays_until_the_next_sweep(
    checkpoints: Books, entry_of: RecordOf
) -> None:
    book, now = checkpoints.book, checkpoints.group.now
    checkpoints.add(entry_of(1, state=JobState.CANCELLED, ended_ms=0))
    checkpoints.group.hold()
    nothing = Retention(kept_for(0, 0), kept_for(0, 0))
    checkpoints.act(book.sweep(now, DAY_MS, nothing))
    assert book.on_write_ended(now, WriteEnded(2, "unknown")) == []
    assert "job1" in book.decided
    checkpoints.told(checkpoints.group.write())
    checkpoints.act(book.sweep(now, DAY_MS, nothing))
    assert book.decided == {}


def test_versions_count_the_decisions(checkpoints: Books, entry_of: RecordOf) -> None:
    checkpoints.add(entry_of(1, version=40))
    for owner in ("m1", "m2"):
        checkpoints.put(msgspec.structs.replace(checkpoints.book.decided["job1"], owner=owner))

    assert checkpoints.book.written["job1"].version == 3
