"""The calls of `JobKind` over HTTP, for jobs of any kind."""

import contextlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import msgspec

from talka.client.calls import ApiCalls, decoded, job_part
from talka.client.http import ApiAddress
from talka.client.kinds import AnyJob, AnyJobsPage
from talka.client.requests import PAGE_DEFAULT, BundleMissing, NotAuthorised
from talka.client.sheets import JobSheet
from talka.work.lifecycle import is_final

SUBMIT_S: Final = 60.0
"""For which a submission is tried: a large one is checked and written to disk before it is answered."""
UPLOAD_S: Final = 180.0
UPLOADS: Final = 3

Answer = TypeVar("Answer")


class AnyJobCalls(ApiCalls):
    async def put_bundle(self, digest: str, content: bytes) -> None:
        headers = {"content-type": "application/octet-stream"}
        path = f"/v1/bundles/{digest}"
        await self._call("PUT", path, headers=headers, body=content, patience_s=UPLOAD_S, attempt_s=UPLOAD_S)

    async def has_bundle(self, digest: str) -> bool:
        answer = await self._call("HEAD", f"/v1/bundles/{digest}", is_fine=lambda status: status == 404)
        return answer.status == 200

    async def with_bundle(self, digest: str, content: bytes, send: Callable[[], Awaitable[Answer]]) -> Answer:
        """`send` what names a bundle, which is uploaded if the managers lack it. No content: it names none."""
        with contextlib.suppress(NotAuthorised):  # the answer to a HEAD has no words: what is sent is refused with some
            if content and not await self.has_bundle(digest):
                await self.put_bundle(digest, content)
        for attempt in range(UPLOADS):
            try:
                return await send()
            except BundleMissing:
                # The manager that took it is gone, and with it the bundle.
                if not content or attempt == UPLOADS - 1:
                    raise
                await self.put_bundle(digest, content)
        raise AssertionError("the last attempt returns or raises")

    async def submit_any(self, spec: Any, key: str = "") -> AnyJob:
        """Submit a job once, however often it must be said. The JSON of `spec` has its `kind`."""
        await self.learn()
        return await self._ask("POST", "/v1/jobs", AnyJob, value=spec, headers=key_header(key), patience_s=SUBMIT_S)

    async def all_jobs(self, state: str = "", cursor: str = "", limit: int = PAGE_DEFAULT) -> AnyJobsPage:
        """Jobs of all kinds, newest first."""
        return await self._ask("GET", paged("/v1/jobs", cursor, limit, state), AnyJobsPage)

    async def any_job(self, id: str) -> AnyJob:
        return await self._ask("GET", f"/v1/jobs/{job_part(id)}", AnyJob)

    async def view(self, id: str) -> JobSheet:
        """What people are shown of a job."""
        return await self._ask("GET", f"/v1/jobs/{job_part(id)}/view", JobSheet)

    async def watch_any(self, id: str) -> AsyncGenerator[AnyJob, None]:
        """How the job stands, up to its end, whichever managers die in the meantime."""
        path = f"/v1/jobs/{job_part(id)}/watch"
        async with contextlib.aclosing(self._watch(path, update_in)) as updates:
            async for update in updates:
                yield update.job
                if update.is_last:
                    return


class AnyUpdate(msgspec.Struct, frozen=True):
    """The part of an update that all kinds share."""

    job: AnyJob
    is_last: bool


class LoadUpdate(msgspec.Struct, frozen=True):
    """The same of an update of a load job, which has more beside its facts."""

    job: AnyJob | None = None
    final: bool = False


def update_in(address: ApiAddress, frame: bytes) -> AnyUpdate:
    what = "sent an update that does not match the API"
    load = decoded(address, frame, LoadUpdate, what)
    if load.job is not None:
        return AnyUpdate(load.job, load.final)
    job = decoded(address, frame, AnyJob, what)
    return AnyUpdate(job, is_final(job.state))


def key_header(key: str) -> dict[str, str]:
    """Always one: what is asked again must be known again."""
    return {"idempotency-key": key or secrets.token_hex(16)}


def paged(path: str, cursor: str, limit: int, state: str = "") -> str:
    query = {"state": state, "cursor": cursor, "limit": str(limit)}
    return f"{path}?" + urlencode({name: value for name, value in query.items() if value})
