"""Bundles and jobs over HTTP."""

import re
from typing import Final

import msgspec
from starlette.responses import Response

from talka.client.requests import (
    KEY_LIMIT,
    PAGE_DEFAULT,
    PAGE_LIMIT,
    REASON_LIMIT,
    CancelRequest,
    JobOrder,
    NoSuchJob,
    TooBusy,
    TooLarge,
)
from talka.errors import Invalid
from talka.web.answers import Asked, json_answer
from talka.web.bodies import read_body, read_bundle, read_json
from talka.wire.records import ORDER_LIMIT_BYTES, encode_order
from talka.work.lifecycle import JobState

ORDER_JSON_LIMIT_BYTES: Final = 4 * ORDER_LIMIT_BYTES
"""JSON takes more room than the register's encoding, but not this much more."""
CANCEL_LIMIT_BYTES: Final = 8 * 1024
UPLOADS_LIMIT: Final = 4
"""At the same time: each is held in memory."""
SUBMITTER_LIMIT: Final = 200
DIGEST: Final = re.compile(r"[0-9a-f]{64}")
JOB_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Uploads:
    """Bundles on their way in."""

    def __init__(self) -> None:
        self._under_way = 0

    async def put_bundle(self, asked: Asked) -> Response:
        digest = digest_of(asked)
        if self._under_way >= UPLOADS_LIMIT:
            raise TooBusy(f"{UPLOADS_LIMIT} bundles are being uploaded already: try again in a moment")
        self._under_way += 1
        try:
            await asked.control.put_bundle(digest, await read_bundle(asked.request, digest))
        finally:
            self._under_way -= 1
        return Response(status_code=204)


async def has_bundle(asked: Asked) -> Response:
    return Response(status_code=200 if await asked.control.has_bundle(digest_of(asked)) else 404)


async def submit(asked: Asked) -> Response:
    key = asked.request.headers.get("idempotency-key", "")
    if len(key) > KEY_LIMIT or not (key.isascii() and key.isprintable()):
        raise Invalid(f"an idempotency key has at most {KEY_LIMIT} printable ASCII characters")
    order = await read_json(asked.request, JobOrder, ORDER_JSON_LIMIT_BYTES)
    # Whoever showed a token is who it says; else what the client says is all there is.
    order = msgspec.structs.replace(order, submitted_by=asked.identity.name or order.submitted_by)
    if len(order.submitted_by) > SUBMITTER_LIMIT:
        raise Invalid(f"submitted_by has more than {SUBMITTER_LIMIT} characters")
    if (size_bytes := len(encode_order(order))) > ORDER_LIMIT_BYTES:
        raise TooLarge(f"the order takes {size_bytes} bytes: at most {ORDER_LIMIT_BYTES} are kept of a job")
    facts = await asked.control.submit(order, key)
    return json_answer(facts, status=201, headers={"location": f"/v1/jobs/{facts.id}"})


async def list_jobs(asked: Asked) -> Response:
    query = asked.request.query_params
    state, cursor, limit = query.get("state", ""), query.get("cursor", ""), query.get("limit", str(PAGE_DEFAULT))
    if state and state not in list(JobState):
        raise Invalid(f"no job is ever {state[:50]!r}: states are {', '.join(JobState)}")
    if len(cursor) > KEY_LIMIT:
        raise Invalid("the cursor is not one of ours: it is `next` of the page before")
    if not (limit.isdecimal() and len(limit) < 10 and 1 <= int(limit) <= PAGE_LIMIT):
        raise Invalid(f"limit is a whole number from 1 to {PAGE_LIMIT}, not {limit[:50]!r}")
    return json_answer(await asked.control.jobs(state, cursor, int(limit)))


async def job(asked: Asked) -> Response:
    return json_answer(await asked.control.job(job_id_of(asked)))


async def order(asked: Asked) -> Response:
    found = await asked.control.order(job_id_of(asked))
    # Variables may be secrets, and whoever looks on is not always who submitted.
    bundle = msgspec.structs.replace(found.bundle, signature=b"", env=dict.fromkeys(found.bundle.env, ""))
    return json_answer(msgspec.structs.replace(found, bundle=bundle))


async def cancel(asked: Asked) -> Response:
    job_id = job_id_of(asked)
    reason = ""
    if asked.request.headers.get("content-type"):
        reason = (await read_json(asked.request, CancelRequest, CANCEL_LIMIT_BYTES)).reason
    else:
        await read_body(asked.request, 0)
    if len(reason) > REASON_LIMIT:
        raise Invalid(f"the reason of a cancel has at most {REASON_LIMIT} characters")
    who = asked.identity.name
    return json_answer(await asked.control.cancel(job_id, reason or f"cancelled by {who or 'a user'}"))


async def result(asked: Asked) -> Response:
    return Response(await asked.control.result(job_id_of(asked)), media_type="application/json")


def digest_of(asked: Asked) -> str:
    digest: str = asked.request.path_params["digest"]
    if not DIGEST.fullmatch(digest):
        raise Invalid("a bundle is named by its sha256: 64 digits and letters from a to f")
    return digest


def job_id_of(asked: Asked) -> str:
    return checked_job_id(asked.request.path_params["id"])


def checked_job_id(text: str) -> str:
    if not JOB_ID.fullmatch(text):
        raise NoSuchJob.named(repr(text[:64]))
    return text
