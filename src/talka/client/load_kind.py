"""Load jobs as a kind of job, whoever keeps them: `Control` in the words of `JobKind`."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec

from talka.client.kinds import KindPage, KindUpdate, SubmitBounds
from talka.client.requests import Control, NoSuchJob, TooLarge, decoded_body
from talka.client.sheets import JobSheet, load_sheet
from talka.errors import Invalid
from talka.wire.entries import ORDER_LIMIT_BYTES, encode_order
from talka.wire.orders import JobOrder
from talka.wire.security.access import Asker
from talka.wire.views import JobFacts

ORDER_JSON_LIMIT_BYTES: Final = 4 * ORDER_LIMIT_BYTES
"""JSON takes more room than the register's encoding, but not this much more."""
SUBMITTER_LIMIT: Final = 200
BOUNDS: Final = SubmitBounds(ORDER_JSON_LIMIT_BYTES, "submit")


class LoadKind:
    name = "load"

    def __init__(self, control: Control, bounds: SubmitBounds = BOUNDS) -> None:
        self.bounds = bounds
        self.control = control
        """What else load jobs can do."""

    def on_behalf(self, asker: Asker) -> "LoadKind":
        return LoadKind(self.control.on_behalf(asker), self.bounds)

    def elsewhere(self, id: str) -> str:
        return f"it has no tasks; its result is at /v1/jobs/{id}/result"

    async def has(self, id: str) -> bool:
        try:
            await self.control.job(id)
        except NoSuchJob:
            return False
        return True

    async def submit(self, content: bytes, key: str, by: str) -> JobFacts:
        order = decoded_body(content, JobOrder)
        # Whoever showed a token is who it says; else what the client says is all there is.
        order = msgspec.structs.replace(order, submitted_by=by or order.submitted_by)
        if len(order.submitted_by) > SUBMITTER_LIMIT:
            raise Invalid(f"submitted_by has more than {SUBMITTER_LIMIT} characters")
        if (size_bytes := len(encode_order(order))) > ORDER_LIMIT_BYTES:
            raise TooLarge(f"the order takes {size_bytes} bytes: at most {ORDER_LIMIT_BYTES} are kept of a job")
        return await self.control.submit(order, key)

    async def get(self, id: str) -> JobFacts:
        return await self.control.job(id)

    async def list(self, state: str, cursor: str, limit: int) -> KindPage:
        page = await self.control.jobs(state, cursor, limit)
        return KindPage(page.items, page.cursors, page.next)

    async def cancel(self, id: str, reason: str) -> JobFacts:
        return await self.control.cancel(id, reason)

    async def watch(self, id: str, steps: bool) -> AsyncGenerator[KindUpdate, None]:
        async with aclosing(self.control.watch(id, steps)) as updates:
            async for update in updates:
                yield KindUpdate(update, update.final)

    async def result(self, id: str) -> bytes:
        return await self.control.result(id)

    async def view(self, id: str) -> JobSheet:
        return load_sheet(await self.control.job(id))
