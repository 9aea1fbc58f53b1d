"""Reading what a request carries, within limits of size and time."""

import asyncio
import hashlib
import re
from typing import Final, TypeVar

from starlette.requests import Request

from talka.client.requests import (
    KEY_LIMIT,
    PAGE_DEFAULT,
    PAGE_LIMIT,
    Malformed,
    NoSuchJob,
    TooLarge,
    TooSlow,
    WrongDigest,
    decoded_body,
)
from talka.errors import Invalid
from talka.units import SECOND
from talka.web.api_limits import API_LIMITS, ApiLimits
from talka.work.durations import parse_duration

BODY_TIMEOUT_S: Final = 120
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
CURSOR_LIMIT: Final = 200
JOB_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

Body = TypeVar("Body")


class WrongType(Malformed):
    """The body is said to be something else than JSON. A page elsewhere cannot say JSON without asking first."""


async def read_body(request: Request, limit_bytes: int, chunk_s: float = API_LIMITS.chunk_s) -> bytearray:
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > limit_bytes:
        raise TooLarge(f"the body has {length} bytes: at most {limit_bytes} are read")
    content = bytearray()
    chunks = request.stream()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                async with asyncio.timeout(chunk_s):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    return content
                content += chunk
                if len(content) > limit_bytes:
                    raise TooLarge(f"the body has more than {limit_bytes} bytes: no more are read")
    except TimeoutError:
        raise TooSlow("the body of the request did not arrive in time") from None


def type_of(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def check_json(request: Request) -> None:
    if (said := type_of(request)) != JSON:
        raise WrongType(f"the body must be {JSON}, not {said[:100] or 'of no type'}")


async def read_json(request: Request, kind: type[Body], limit_bytes: int) -> Body:
    check_json(request)
    return decoded_body(await read_body(request, limit_bytes), kind)


async def read_json_if_any(request: Request, otherwise: Body, limit_bytes: int) -> Body:
    """`otherwise` where the request has no body."""
    if request.headers.get("content-type"):
        return await read_json(request, type(otherwise), limit_bytes)
    await read_body(request, 0)
    return otherwise


async def read_bundle(request: Request, digest: str, limits: ApiLimits) -> bytes:
    content = await read_body(request, limits.bundle_bytes, limits.chunk_s)
    found = await asyncio.to_thread(lambda: hashlib.sha256(content).hexdigest())
    if found != digest:
        raise WrongDigest(f"the bundle's sha256 is {found}, not {digest}: it was changed on the way, or is another one")
    return bytes(content)


# Beside the body.


def key_in(request: Request) -> str:
    key = request.headers.get("idempotency-key", "")
    if len(key) > KEY_LIMIT or not (key.isascii() and key.isprintable()):
        raise Invalid(f"an idempotency key has at most {KEY_LIMIT} printable ASCII characters")
    return key


def wait_in(request: Request, most_s: float) -> float:
    """Seconds that the client wants to wait for the end of the job it submits; 0: none."""
    text = request.query_params.get("wait", "")
    wait_s = parse_duration(text, what="wait") / SECOND if text else 0.0
    if wait_s > most_s:
        raise Invalid(f"wait = {text[:50]} is too long: wait at most {most_s:g} s, and watch the job after that")
    return wait_s


def page_in(request: Request, cursor_limit: int = CURSOR_LIMIT) -> tuple[str, int]:
    """Cursor and limit."""
    query = request.query_params
    cursor, limit = query.get("cursor", ""), query.get("limit", str(PAGE_DEFAULT))
    if len(cursor) > cursor_limit:
        raise Invalid("the cursor is not known: use `next` of the page before")
    if not (limit.isdecimal() and limit.isascii() and len(limit) < 10 and 1 <= int(limit) <= PAGE_LIMIT):
        raise Invalid(f"limit is a whole number from 1 to {PAGE_LIMIT}, not {limit[:50]!r}")
    return cursor, int(limit)


def checked_job_id(text: str) -> str:
    if not JOB_ID.fullmatch(text):
        raise NoSuchJob.named(repr(text[:64]))
    return text
