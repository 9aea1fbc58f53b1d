"""A cluster from elsewhere: the calls of `Control` over HTTP, from whichever manager answers.

Any manager answers any question, so a call that finds one dead goes to the next. Every call can be made twice without
harm: a submission carries a key under which the managers know it again.
"""

import contextlib
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from talka.client.any_calls import key_header, paged
from talka.client.calls import error_in, job_part, not_ours, worker_part
from talka.client.dag_calls import DagCalls
from talka.client.http import ApiAddress
from talka.client.kinds import AnyJob
from talka.client.requests import PAGE_DEFAULT, CancelRequest, NotEnded
from talka.errors import Invalid
from talka.wire.orders import JobOrder
from talka.wire.views import JobFacts, JobsPage, JobUpdate, WorkerView, without_windows_up_to

RESULT_LIMIT_BYTES: Final = 64 * 1024 * 1024

_updates: msgspec.msgpack.Decoder[JobUpdate] = msgspec.msgpack.Decoder(JobUpdate)


class Client(DagCalls):
    """`addresses` are HOST, HOST:PORT or URLs; one is enough, for the others are learned from the cluster.

    `token` is a bearer token; `ca` the file of the cluster's certificate authority, with which the connection is
    encrypted. A question is asked for `question_s` before the cluster counts as unreachable; while a job is waited for
    it may be away for `result_s`.
    """

    # Jobs.

    async def submit(self, order: JobOrder, key: str = "", *, bundle: bytes = b"") -> JobFacts:
        """Submit a job once, however often it must be said. `bundle` is uploaded if the managers lack it."""
        headers = key_header(key)
        await self.learn()

        async def send() -> JobFacts:
            return await self._ask("POST", "/v1/jobs", JobFacts, value=order, headers=headers)

        return await self.with_bundle(order.bundle.digest, bundle, send)

    async def jobs(self, state: str = "", cursor: str = "", limit: int = PAGE_DEFAULT) -> JobsPage:
        return await self._ask("GET", paged("/v1/jobs", cursor, limit, state), JobsPage)

    async def job(self, id: str) -> JobFacts:
        return await self._ask("GET", f"/v1/jobs/{job_part(id)}", JobFacts)

    async def order(self, id: str) -> JobOrder:
        return await self._ask("GET", f"/v1/jobs/{job_part(id)}/order", JobOrder)

    async def cancel(self, id: str, reason: str = "") -> AnyJob:
        """Ask a job to stop; the answer tells how many of its workflows or tasks that stops."""
        return await self._ask("POST", f"/v1/jobs/{job_part(id)}/cancel", AnyJob, value=CancelRequest(reason))

    async def resume(self, id: str) -> AnyJob:
        """Go on with a job that is paused: a pipeline, or a load job that was put aside when it was late."""
        return await self._ask("POST", f"/v1/jobs/{job_part(id)}/resume", AnyJob)

    async def result(self, id: str) -> bytes:
        """The result document, as JSON."""
        path = f"/v1/jobs/{job_part(id)}/result"
        return (await self._call("GET", path, patience_s=self._result_s, limit_bytes=RESULT_LIMIT_BYTES)).body

    async def wait(self, id: str) -> bytes:
        """The result document, once the job has ended."""
        while True:
            async for _ in self.watch(id):
                pass
            try:
                return await self.result(id)
            except NotEnded:
                # The manager that was asked has not heard of the end yet.
                await self._pause(0)

    async def watch(self, id: str, steps: bool = False) -> AsyncGenerator[JobUpdate, None]:
        """How the job stands, up to and with its final update, whichever managers die in the meantime.

        After a new connection windows that were told already are left out.
        """
        newest = -1
        path = f"/v1/jobs/{job_part(id)}/watch?format=msgpack&steps={int(steps)}"
        async with contextlib.aclosing(self._watch(path, decoded_update)) as updates:
            async for told in updates:
                update = without_windows_up_to(newest, told)
                newest = max([newest, *(window.index for window in update.windows)])
                yield update
                if update.final:
                    return

    # Workers and the cluster.

    async def workers(self) -> list[WorkerView]:
        return await self._ask("GET", "/v1/workers", list[WorkerView])

    async def worker(self, name: str) -> WorkerView:
        return await self._ask("GET", f"/v1/workers/{worker_part(name)}", WorkerView)

    async def drain(self, name: str) -> WorkerView:
        return await self._ask("POST", f"/v1/workers/{worker_part(name)}/drain", WorkerView)

    async def undrain(self, name: str) -> WorkerView:
        return await self._ask("POST", f"/v1/workers/{worker_part(name)}/undrain", WorkerView)

    async def is_ready(self) -> str:
        """Empty, or why the first manager takes no requests."""
        answer = await self._call("GET", "/readyz", is_fine=lambda status: status == 503)
        return "" if answer.status == 200 else str(error_in(self.next_address, answer))

    async def metrics(self) -> str:
        return (await self._call("GET", "/metrics")).body.decode()


def decoded_update(address: ApiAddress, frame: bytes) -> JobUpdate:
    try:
        return _updates.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, Invalid) as error:
        raise not_ours(address, f"sent an update that does not match the API: {error}") from None
