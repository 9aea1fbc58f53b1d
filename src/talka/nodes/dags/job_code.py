"""Bundles with handlers that jobs and schedules brought: that they are here, and how long they must stay.

Decision: docs/decisions/0050-handlers-that-travel.md.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from talka.client.requests import BundleMissing, Conflict
from talka.control.dags.keeper import DagKeeper
from talka.store.dags.records import Store
from talka.work.dags.dag import CodeBundle, KeptSettings, bundle_of
from talka.work.dags.records import JobRow

if TYPE_CHECKING:
    from talka.nodes.manager import ManagerNode


class ScheduledCode(msgspec.Struct, frozen=True):
    """What counts here of the spec of a schedule."""

    bundle: CodeBundle | None = None


class JobCode:
    def __init__(self, node: "ManagerNode", store: Store) -> None:
        self._node = node
        self._store = store

    def check(self, bundle: CodeBundle | None) -> None:
        """It was uploaded, and is here."""
        if bundle is not None:
            self._node.check_bundle(bundle)

    def check_kept(self, row: JobRow) -> None:
        """What a job that has ended brought is there for another run."""
        try:
            self.check(bundle_of(msgspec.json.decode(row.settings, type=KeptSettings)))
        except BundleMissing:
            text = f"the handlers that job {row.id} brought are not kept any more: submit it again with --with"
            raise Conflict(text) from None

    async def named(self, keepers: Iterable[DagKeeper]) -> set[str]:
        """Digests of those that must stay: jobs that have not ended name them, or schedules."""
        schedules = [msgspec.json.decode(row.spec, type=ScheduledCode) for row in await self._store.schedules()]
        found = {one.bundle.digest for one in schedules if one.bundle is not None}
        return found.union(*(keeper.shelf.bundles for keeper in keepers))
