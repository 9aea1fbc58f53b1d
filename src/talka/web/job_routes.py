"""Bundles and jobs over HTTP."""

import contextlib
import re
from typing import Any, Final, Literal

import msgspec
from starlette.responses import Response

from talka.client.dags import DAG_LIMIT_BYTES, DagControl
from talka.client.requests import REASON_LIMIT, CancelRequest, Control, NoResult, NoSuchJob, TooBusy, TooLarge
from talka.errors import Invalid
from talka.web import dags
from talka.web.answers import ApiQuestion, submitted
from talka.web.bodies import (
    CURSOR_LIMIT,
    NDJSON,
    check_json,
    decoded,
    key_in,
    page_in,
    read_body,
    read_bundle,
    read_json_if_any,
    type_of,
)
from talka.web.task_stream import submit_stream
from talka.wire.entries import ORDER_LIMIT_BYTES, encode_order
from talka.wire.orders import JobOrder, shown
from talka.wire.task_views import DagFacts
from talka.wire.views import JobFacts, JobsPage
from talka.work.lifecycle import JobState

ORDER_JSON_LIMIT_BYTES: Final = 4 * ORDER_LIMIT_BYTES
"""JSON takes more room than the register's encoding, but not this much more."""
CANCEL_LIMIT_BYTES: Final = 8 * 1024
UPLOADS_LIMIT: Final = 4
"""At the same time: each is held in memory."""
SUBMITTER_LIMIT: Final = 200
DIGEST: Final = re.compile(r"[0-9a-f]{64}")
SEPARATOR, OVER, MORE = "~", "x", "c"
"""Of a cursor that stands for two."""


class Uploads:
    """Bundles on their way in."""

    def __init__(self) -> None:
        self._under_way = 0

    async def put_bundle(self, asked: ApiQuestion) -> Response:
        digest = digest_of(asked)
        if self._under_way >= UPLOADS_LIMIT:
            raise TooBusy(f"{UPLOADS_LIMIT} bundles are being uploaded already: try again in a moment")
        self._under_way += 1
        try:
            await asked.control.put_bundle(digest, await read_bundle(asked.request, digest))
        finally:
            self._under_way -= 1
        return Response(status_code=204)


async def has_bundle(asked: ApiQuestion) -> Response:
    return Response(status_code=200 if await asked.control.has_bundle(digest_of(asked)) else 404)


class KindOfJob(msgspec.Struct, frozen=True):
    kind: Literal["load", "dag"] = "load"


async def submit(asked: ApiQuestion) -> Response:
    """A job of either kind."""
    request = asked.request
    if type_of(request) == NDJSON:
        return await submit_stream(asked)
    check_json(request)
    limit_bytes = ORDER_JSON_LIMIT_BYTES if asked.dags is None else DAG_LIMIT_BYTES
    content = bytes(await read_body(request, limit_bytes))
    if decoded(content, KindOfJob).kind == "dag":
        return await dags.submit_dag(asked, content)
    if asked.dags is not None:
        # Until now it could have been of a kind that is cheaper to take.
        wait_s = asked.limiter("submit", asked.client)
        if wait_s > 0:
            raise TooBusy("too many load jobs were submitted: try again later", wait_s)
    return await submit_load(asked, content)


async def submit_load(asked: ApiQuestion, content: bytes) -> Response:
    if len(content) > ORDER_JSON_LIMIT_BYTES:
        raise TooLarge(f"the body has {len(content)} bytes: at most {ORDER_JSON_LIMIT_BYTES} are read of a load job")
    key, order = key_in(asked.request), decoded(content, JobOrder)
    # Whoever showed a token is who it says; else what the client says is all there is.
    order = msgspec.structs.replace(order, submitted_by=asked.identity.name or order.submitted_by)
    if len(order.submitted_by) > SUBMITTER_LIMIT:
        raise Invalid(f"submitted_by has more than {SUBMITTER_LIMIT} characters")
    if (size_bytes := len(encode_order(order))) > ORDER_LIMIT_BYTES:
        raise TooLarge(f"the order takes {size_bytes} bytes: at most {ORDER_LIMIT_BYTES} are kept of a job")
    return submitted(await asked.control.submit(order, key))


async def list_jobs(asked: ApiQuestion) -> JobsPage:
    state = asked.request.query_params.get("state", "")
    if state and state not in list(JobState):
        raise Invalid(f"no job is ever {state[:50]!r}: states are {', '.join(JobState)}")
    if asked.dags is None:
        return await asked.control.jobs(state, *page_in(asked.request))
    return await page_of_both(asked.control, asked.dags, state, *page_in(asked.request, 2 * CURSOR_LIMIT))


async def page_of_both(control: Control, dags: DagControl, state: str, cursor: str, limit: int) -> JobsPage:
    """Half of a page is of one kind and the rest of the other, as long as there are both; newest first within it."""
    ours, theirs = cursors_in(cursor)
    items: list[Any] = []
    if ours is not None:
        some = await dags.dags(state, ours, limit if theirs is None else (limit + 1) // 2)
        items += some.items
        ours = some.next or None
    if theirs is not None and len(items) < limit:
        page = await control.jobs(state, theirs, limit - len(items))
        items += page.items
        theirs = page.next or None
    items.sort(key=lambda facts: facts.submitted_at, reverse=True)
    is_last = ours is None and theirs is None
    return JobsPage(items, "" if is_last else f"{mark(ours)}{SEPARATOR}{mark(theirs)}")


def mark(cursor: str | None) -> str:
    return OVER if cursor is None else f"{MORE}{cursor}"


def cursors_in(cursor: str) -> tuple[str | None, str | None]:
    """Of dag jobs and of load jobs; None: there are no more of these."""
    if not cursor:
        return "", ""
    parts = cursor.split(SEPARATOR)
    if len(parts) != 2 or any(part[:1] not in (OVER, MORE) for part in parts):
        raise Invalid("the cursor is not known: use `next` of the page before")
    ours, theirs = (None if part == OVER else part[1:] for part in parts)
    return ours, theirs


async def job(asked: ApiQuestion) -> JobFacts | DagFacts:
    job_id = asked.job
    if asked.dags is not None:
        with contextlib.suppress(NoSuchJob):
            return await asked.dags.dag(job_id)
    return await asked.control.job(job_id)


async def check_load(asked: ApiQuestion, job_id: str) -> None:
    """Dag jobs have no order and no result of their own: what they have is told instead."""
    if asked.dags is not None:
        with contextlib.suppress(NoSuchJob):
            await asked.dags.dag(job_id)
            raise NoResult(f"job {job_id} is a dag job: what its tasks gave is at /v1/jobs/{job_id}/tasks")


async def order(asked: ApiQuestion) -> JobOrder:
    await check_load(asked, job_id := asked.job)
    # Variables, headers and bodies may be secrets, and whoever looks on is not always who submitted.
    return shown(await asked.control.order(job_id))


async def cancel(asked: ApiQuestion) -> JobFacts | DagFacts:
    job_id = asked.job
    reason = (await read_json_if_any(asked.request, CancelRequest(), CANCEL_LIMIT_BYTES)).reason
    if len(reason) > REASON_LIMIT:
        raise Invalid(f"the reason of a cancel has at most {REASON_LIMIT} characters")
    reason = reason or f"cancelled by {asked.identity.name or 'a user'}"
    if asked.dags is not None:
        with contextlib.suppress(NoSuchJob):
            return await asked.dags.cancel_dag(job_id, reason)
    return await asked.control.cancel(job_id, reason)


async def result(asked: ApiQuestion) -> Response:
    await check_load(asked, job_id := asked.job)
    return Response(await asked.control.result(job_id), media_type="application/json")


def digest_of(asked: ApiQuestion) -> str:
    digest: str = asked.request.path_params["digest"]
    if not DIGEST.fullmatch(digest):
        raise Invalid("a bundle is named by its sha256: 64 digits and letters from a to f")
    return digest
