"""Ends of jobs that somebody is to be told of: what is said, when it is said, and when nobody tries any more.

A notice is a row of the store from the commit on in which its job ends. It is sent until somebody has taken it, so that
it may come twice, under one id.

Decision: docs/decisions/0052-ends-of-jobs-are-told-from-the-store.md.
"""

import hmac
from collections.abc import Iterable, Mapping
from random import Random
from typing import Final, NamedTuple

import msgspec

from talka.units import MILLISECOND
from talka.wire.task_views import JobNotice
from talka.wire.views import instant_text
from talka.work.dags.dag import DagSettings
from talka.work.dags.notify import notifies_of, target_of
from talka.work.dags.records import JobRow, MoveNotice, NoticeRow, PutNotice
from talka.work.lifecycle import JobState

REASON_LIMIT: Final = 2000
ERROR_LIMIT: Final = 500
DELIVERY, TIMESTAMP, SIGNATURE = "talka-delivery", "talka-timestamp", "talka-signature"
"""Headers."""


class NoticeLimits(NamedTuple):
    tries: int = 16
    """With these waits: for three to six hours in which a manager runs, as jitter has it."""
    first_ms: int = 5_000
    cap_ms: int = 3_600_000
    at_once: int = 8
    at_one_place: int = 2
    """Who is slow or silent keeps nobody else from being told."""
    page: int = 1000
    """Looked at each time."""


NOTICE_LIMITS: Final = NoticeLimits()


def notices_of(
    row: JobRow, settings: DagSettings, state: JobState, reason: str, counts: Mapping[str, int], at_ms: int
) -> list[PutNotice]:
    """Of a job that ends now. Each end has ids of its own: a job that is run again ends again."""
    found = []
    for position, notify in enumerate(notifies_of(settings.notify)):
        if state not in notify.on:
            continue
        id = f"{row.id}-{at_ms:x}-{position}"
        document = JobNotice(
            id=id,
            job=row.id,
            name=row.name,
            state=state,
            reason=reason[:REASON_LIMIT],
            tasks=sum(counts.values()),
            counts=dict(counts),
            submitted_at=instant_text(row.submitted_ms),
            started_at=instant_text(row.started_ms or row.submitted_ms),
            ended_at=instant_text(at_ms),
        )
        content = msgspec.json.encode(document)
        found.append(
            PutNotice(NoticeRow(id=id, job=row.number, job_id=row.id, url=notify.url, body=content, next_ms=at_ms))
        )
    return found


def chosen(
    rows: Iterable[NoticeRow], now_ms: int, under_way: Mapping[str, str], limits: NoticeLimits = NOTICE_LIMITS
) -> list[NoticeRow]:
    """Those that are sent now, of those that wait. `under_way`: ids of others, and where they go."""
    found: list[NoticeRow] = []
    places = list(under_way.values())
    for row in rows:
        if len(places) >= limits.at_once:
            break
        # A longer wait was put down by a clock that was ahead.
        is_due = row.next_ms <= now_ms or row.next_ms > now_ms + limits.cap_ms
        place = target_of(row.url).place
        if is_due and row.id not in under_way and places.count(place) < limits.at_one_place:
            found.append(row)
            places.append(place)
    return found


def taken(row: NoticeRow, now_ms: int) -> MoveNotice:
    """Somebody said that it has come."""
    return MoveNotice(row.id, "sent", row.tries + 1, now_ms)


def refused(
    row: NoticeRow,
    now_ms: int,
    error: str,
    rng: Random,
    *,
    is_final: bool = False,
    limits: NoticeLimits = NOTICE_LIMITS,
) -> MoveNotice:
    """It could not be delivered. `is_final`: and never can be."""
    tries = row.tries + 1
    if is_final or tries >= limits.tries:
        return MoveNotice(row.id, "given_up", tries, now_ms, error[:ERROR_LIMIT])
    wait_ms = min(limits.cap_ms, limits.first_ms << min(tries - 1, 32))
    return MoveNotice(row.id, "waiting", tries, now_ms + wait_ms - rng.randrange(wait_ms // 2), error[:ERROR_LIMIT])


def headers_of(row: NoticeRow, secret: bytes, now_ns: int) -> dict[str, str]:
    """With the signature of this moment: whoever takes it knows from whom it is, and how old it is."""
    timestamp = str(now_ns // MILLISECOND // 1000)
    return {
        "content-type": "application/json",
        DELIVERY: row.id,
        TIMESTAMP: timestamp,
        SIGNATURE: f"sha256={signature_of(secret, timestamp, row.body)}",
    }


def signature_of(secret: bytes, timestamp: str, body: bytes) -> str:
    return hmac.new(secret, timestamp.encode() + b"." + body, "sha256").hexdigest()


def given_up_text(row: NoticeRow, move: MoveNotice) -> str:
    place = target_of(row.url).place
    return f"nobody at {place} was told of the end of job {row.job_id}, and it is given up: {move.error}"
