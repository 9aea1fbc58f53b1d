"""Bundles and jobs over HTTP."""

import re
from typing import Final

import msgspec
from starlette.responses import Response

from talka.client.dag_kind import DagKind
from talka.client.kinds import AllJobsPage, KindFacts
from talka.client.load_kind import LoadKind
from talka.client.requests import REASON_LIMIT, CancelRequest, NoResult, TooBusy, TooLarge, decoded_body
from talka.client.sheets import JobSheet
from talka.errors import Invalid
from talka.web.answers import ApiQuestion, rate_at_door, submitted, waited
from talka.web.bodies import (
    CURSOR_LIMIT,
    NDJSON,
    check_json,
    key_in,
    page_in,
    read_body,
    read_bundle,
    read_json_if_any,
    type_of,
    wait_in,
)
from talka.web.task_stream import submit_stream
from talka.wire.orders import JobOrder, shown
from talka.work.lifecycle import JobState

CANCEL_LIMIT_BYTES: Final = 8 * 1024
UPLOADS_LIMIT: Final = 4
"""At the same time: each is held in memory."""
DIGEST: Final = re.compile(r"[0-9a-f]{64}")


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
            await asked.control.put_bundle(digest, await read_bundle(asked.request, digest, asked.limits))
        finally:
            self._under_way -= 1
        return Response(status_code=204)


async def has_bundle(asked: ApiQuestion) -> Response:
    return Response(status_code=200 if await asked.control.has_bundle(digest_of(asked)) else 404)


class KindOfJob(msgspec.Struct, frozen=True):
    kind: str | msgspec.UnsetType = msgspec.UNSET
    tasks: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


async def submit(asked: ApiQuestion) -> Response:
    """A job of any kind."""
    request = asked.request
    if type_of(request) == NDJSON:
        return await submit_stream(asked)
    check_json(request)
    content = bytes(await read_body(request, asked.kinds.body_bytes))
    said = decoded_body(content, KindOfJob)
    if said.kind is msgspec.UNSET and said.tasks is not msgspec.UNSET:
        raise Invalid(f'the body has tasks and no kind: write "kind": "{DagKind.name}" for a pipeline')
    kind = asked.kinds.named(LoadKind.name if said.kind is msgspec.UNSET else said.kind)
    if rate_at_door(asked.kinds, "submit") != kind.bounds.rate:
        # Until now it could have been of a kind that is cheaper to take.
        wait_s = asked.limiter(kind.bounds.rate, asked.identity.counted_as)
        if wait_s > 0:
            raise TooBusy(f"too many {kind.name} jobs were submitted: try again later", wait_s)
    most_bytes = kind.bounds.body_bytes
    if len(content) > most_bytes:
        raise TooLarge(f"the body has {len(content)} bytes: at most {most_bytes} are read of a {kind.name} job")
    wait_s = wait_in(request, asked.limits.wait_s)
    facts = await asked.kinds.submit(kind.name, content, key_in(request), asked.identity.name)
    return submitted(await waited(asked, facts, wait_s))


async def list_jobs(asked: ApiQuestion) -> AllJobsPage:
    state = asked.request.query_params.get("state", "")
    if state and state not in list(JobState):
        raise Invalid(f"no job is ever {state[:50]!r}: states are {', '.join(JobState)}")
    return await asked.kinds.list(state, *page_in(asked.request, len(asked.kinds.names) * CURSOR_LIMIT))


async def job(asked: ApiQuestion) -> KindFacts:
    return await (await asked.kind).get(asked.job)


async def view(asked: ApiQuestion) -> JobSheet:
    return await (await asked.kind).view(asked.job)


async def order(asked: ApiQuestion) -> JobOrder:
    load = await asked.kinds.only(job_id := asked.job, LoadKind, NoResult)
    # Variables, headers and bodies may be secrets, and whoever looks on is not always who submitted.
    return shown(await load.control.order(job_id))


async def cancel(asked: ApiQuestion) -> KindFacts:
    job_id = asked.job
    reason = (await read_json_if_any(asked.request, CancelRequest(), CANCEL_LIMIT_BYTES)).reason
    if len(reason) > REASON_LIMIT:
        raise Invalid(f"the reason of a cancel has at most {REASON_LIMIT} characters")
    by = asked.identity.name
    if reason and by:
        reason = f"{reason} (cancelled by {by})"
    return await (await asked.kind).cancel(job_id, reason or f"cancelled by {by or 'a user'}")


async def result(asked: ApiQuestion) -> Response:
    return Response(await (await asked.kind).result(asked.job), media_type="application/json")


def digest_of(asked: ApiQuestion) -> str:
    digest: str = asked.request.path_params["digest"]
    if not DIGEST.fullmatch(digest):
        raise Invalid("a bundle is named by its sha256: 64 digits and letters from a to f")
    return digest
