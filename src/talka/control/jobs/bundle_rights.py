"""Which blobs a worker may fetch of a manager: bundles of jobs of which it was granted cores, and nothing else.

Asked only of those whose certificate says that they are workers. Every manager can say, from what its own disk holds of
the register: it may be a moment behind, and the worker asks another one then.

Decision: docs/decisions/0028-one-table-of-roles.md.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from talka.control.jobs.entries import PREFIX
from talka.errors import Untrusted
from talka.units import SECOND
from talka.wire.entries import JobEntry, decode_entry

HOLDS_NS: Final = SECOND
"""How long an answer is believed: a bundle is fetched in many pieces."""
KNOWN_LIMIT: Final = 4096


class BundleRights:
    def __init__(self, entries: Callable[[], Iterable[JobEntry]], held: Callable[[], Mapping[str, bytes]]) -> None:
        """`entries`: those this manager knows best, as leader or because it leads the job. `held`: its disk."""
        self._entries = entries
        self._held = held
        self._known: dict[tuple[str, str], tuple[int, bool]] = {}

    def may_fetch(self, now: int, worker: str, digest: str) -> bool:
        key = (worker, digest)
        known = self._known.get(key)
        if known is None or now - known[0] >= HOLDS_NS:
            self._known.pop(key, None)
            if len(self._known) >= KNOWN_LIMIT:
                del self._known[next(iter(self._known))]
            known = self._known[key] = (now, self._is_granted(worker, digest))
        return known[1]

    def _is_granted(self, worker: str, digest: str) -> bool:
        if any(_grants(entry, worker, digest) for entry in self._entries()):
            return True
        word = digest.encode()
        for key, value in self._held().items():
            if not key.startswith(PREFIX) or not value or word not in value:  # the search is cheaper than reading it
                continue
            try:
                entry = decode_entry(value)
            except Untrusted:
                continue  # of a later version
            if _grants(entry, worker, digest):
                return True
        return False


def _grants(entry: JobEntry, worker: str, digest: str) -> bool:
    """Also of one that has ended or was lost: it may not have heard of that yet, and had the right to it before."""
    return entry.order.bundle.digest == digest and any(grant.worker == worker for grant in entry.grants)
