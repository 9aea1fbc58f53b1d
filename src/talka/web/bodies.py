"""Reading what a request carries, within limits of size and time."""

import asyncio
import hashlib
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request

from talka.client.requests import BUNDLE_LIMIT_BYTES, Malformed, TooLarge, TooSlow, WrongDigest
from talka.errors import Invalid

CHUNK_TIMEOUT_S: Final = 10
BODY_TIMEOUT_S: Final = 120
JSON: Final = "application/json"

Body = TypeVar("Body")


class WrongType(Malformed):
    """The body is said to be something else than JSON. A page elsewhere cannot say JSON without asking first."""


async def read_body(request: Request, limit_bytes: int) -> bytearray:
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > limit_bytes:
        raise TooLarge(f"the body has {length} bytes: at most {limit_bytes} are read")
    content = bytearray()
    chunks = request.stream()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                async with asyncio.timeout(CHUNK_TIMEOUT_S):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    return content
                content += chunk
                if len(content) > limit_bytes:
                    raise TooLarge(f"the body has more than {limit_bytes} bytes: no more are read")
    except TimeoutError:
        raise TooSlow("the body of the request did not arrive in time") from None


async def read_json(request: Request, kind: type[Body], limit_bytes: int) -> Body:
    said = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if said != JSON:
        raise WrongType(f"the body must be {JSON}, not {said[:100] or 'of no type'}")
    content = await read_body(request, limit_bytes)
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise Invalid(f"the body does not fit: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"the body is no JSON: {error}") from None


async def read_bundle(request: Request, digest: str) -> bytes:
    content = await read_body(request, BUNDLE_LIMIT_BYTES)
    found = await asyncio.to_thread(lambda: hashlib.sha256(content).hexdigest())
    if found != digest:
        raise WrongDigest(f"the bundle's sha256 is {found}, not {digest}: it was changed on the way, or is another one")
    return bytes(content)
