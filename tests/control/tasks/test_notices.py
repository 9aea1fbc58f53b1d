"""Ends of jobs that somebody is to be told of."""

from random import Random
from typing import Any

import msgspec
import pytest

from talka.control.tasks.notices import (
    NoticeLimits,
    chosen,
    given_up_text,
    headers_of,
    notices_of,
    refused,
    signature_of,
    taken,
)
from talka.wire.task_views import JobNotice
from talka.work.dags.dag import DagSettings
from talka.work.dags.notify import Notify
from talka.work.dags.records import JobRow, MoveNotice, NoticeRow
from talka.work.lifecycle import JobState

NOON_MS = 1_790_000_000_000
HOUR_MS = 3_600_000
JOB = JobRow(
    number=3, id="j3", name="nightly", state=JobState.RUNNING, submitted_ms=NOON_MS - 5000, settings=b"{}", started_ms=0
)


def notice(id: str = "n", url: str = "https://a.example/x", **more: Any) -> NoticeRow:
    return NoticeRow(id=id, job=3, job_id="j3", url=url, body=b"{}", **more)


def test_who_wants_to_know_of_such_an_end_is_told_what_happened() -> None:
    settings = DagSettings(
        notify=(
            Notify(("failed", "partial"), "https://a.example/x"),
            Notify(("completed",), "https://b.example/"),
            Notify(("failed",), "https://c.example/"),
        )
    )
    counts = {"completed": 2, "dead": 1}
    found = [change.row for change in notices_of(JOB, settings, JobState.FAILED, "x" * 9000, counts, NOON_MS)]
    assert [(row.url, row.id) for row in found] == [
        ("https://a.example/x", f"j3-{NOON_MS:x}-0"),
        ("https://c.example/", f"j3-{NOON_MS:x}-2"),
    ]
    assert [(row.job, row.job_id, row.state, row.next_ms) for row in found] == [(3, "j3", "waiting", NOON_MS)] * 2
    document = msgspec.json.decode(found[0].body, type=JobNotice)
    assert document == JobNotice(
        id=found[0].id,
        job="j3",
        name="nightly",
        state=JobState.FAILED,
        reason="x" * 2000,
        tasks=3,
        counts=counts,
        submitted_at="2026-09-21T14:13:15.000Z",
        started_at="2026-09-21T14:13:15.000Z",
        ended_at="2026-09-21T14:13:20.000Z",
    )
    again = notices_of(JOB, settings, JobState.FAILED, "", counts, NOON_MS + 1)
    assert again[0].row.id != found[0].id, "a job that ends once more is told of once more"
    assert notices_of(JOB, DagSettings(), JobState.FAILED, "", counts, NOON_MS) == []


@pytest.mark.parametrize("state", ["completed", "partial", "failed", "cancelled", "timeout"])
def test_every_end_can_be_told(state: Any) -> None:
    settings = DagSettings(notify=Notify((state,), "https://a.example/"))
    ends = [JobState.COMPLETED, JobState.PARTIAL, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT]
    assert [end.value for end in ends if notices_of(JOB, settings, end, "", {}, 1)] == [state]


def test_those_that_are_due_are_sent_and_no_more_than_may_be_at_the_same_time() -> None:
    rows = [notice(f"n{number}", f"https://{number}.example/", next_ms=NOON_MS) for number in range(5)]
    rows.append(notice("later", next_ms=NOON_MS + 1))
    limits = NoticeLimits(at_once=3)
    assert [row.id for row in chosen(rows, NOON_MS, {}, limits)] == ["n0", "n1", "n2"]
    under_way = {"n0": "https://0.example", "x": "https://y.example"}
    assert [row.id for row in chosen(rows, NOON_MS, under_way, limits)] == ["n1"]
    assert chosen(rows[5:], NOON_MS, {}) == []


def test_a_place_that_is_slow_keeps_no_other_from_being_told() -> None:
    rows = [notice(f"n{number}", f"https://a.example/{number}") for number in range(5)]
    rows.append(notice("other", "https://b.example/"))
    assert [row.id for row in chosen(rows, 1, {"n": "https://a.example"}, NoticeLimits(at_one_place=2))] == [
        "n0",
        "other",
    ]


def test_a_wait_that_a_clock_put_down_that_was_ahead_is_not_believed() -> None:
    (found,) = chosen([notice(next_ms=NOON_MS + 30 * 24 * HOUR_MS)], NOON_MS, {})
    assert found.id == "n"
    assert chosen([notice(next_ms=NOON_MS + HOUR_MS)], NOON_MS, {}) == []


def test_what_was_taken_is_settled() -> None:
    assert taken(notice(tries=2), NOON_MS) == MoveNotice("n", "sent", 3, NOON_MS)


def test_what_was_refused_waits_ever_longer_and_is_given_up_in_the_end() -> None:
    limits, rng, row, waits = NoticeLimits(tries=14), Random(1), notice(), []
    while (move := refused(row, NOON_MS, "500", rng, limits=limits)).state == "waiting":
        waits.append(move.next_ms - NOON_MS)
        row = msgspec.structs.replace(row, tries=move.tries)
    assert move == MoveNotice("n", "given_up", 14, NOON_MS, "500")
    assert len(waits) == 13
    for number, wait_ms in enumerate(waits):
        longest = min(HOUR_MS, 5000 * 2**number)
        assert longest // 2 < wait_ms <= longest
    assert len(dict.fromkeys(waits[-3:])) == 3, "those that fail together do not come back together"
    assert sum(waits) < 8 * HOUR_MS


def test_what_never_can_be_delivered_is_given_up_at_once_and_told_without_its_path() -> None:
    row = notice(url="https://a.example/token")
    move = refused(row, NOON_MS, "a.example is 10.0.0.1" + "x" * 900, Random(1), is_final=True)
    assert (move.state, move.tries, len(move.error)) == ("given_up", 1, 500)
    text = given_up_text(row, move)
    assert text.startswith(
        "nobody at https://a.example was told of the end of job j3, and it is given up: a.example is"
    )


def test_a_notice_is_signed_with_its_instant() -> None:
    headers = headers_of(notice(), b"s" * 32, 1_790_000_000 * 10**9 + 5)
    assert headers["talka-timestamp"] == "1790000000" and headers["talka-delivery"] == "n"
    assert headers["talka-signature"] == f"sha256={signature_of(b's' * 32, '1790000000', b'{}')}"
    others = {signature_of(b"t" * 32, "1790000000", b"{}"), signature_of(b"s" * 32, "1790000001", b"{}")}
    others |= {signature_of(b"s" * 32, "1790000000", b"[]"), signature_of(b"s" * 32, "1790000000", b"{}")}
    assert len(others) == 4
