"""The keys of workers that variables of jobs are sealed to, as a manager hears them with every beat."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from talka.errors import Untrusted
from talka.wire.security.envelopes import Purpose, read_sealing_key, seal_variables, vouched_for

WORKERS_LIMIT: Final = 16_384


class _Known(msgspec.Struct, frozen=True):
    boot: int
    told: bytes
    key: bytes
    problem: str
    """Why nothing is sealed to it."""


class CannotSeal(Untrusted):
    """The worker has no key that variables can be sealed to."""


class WorkerKeys:
    """Call `heard` with every beat: what a life tells is looked at once. Then `seal`."""

    def __init__(
        self, group: str, draw: Callable[[], bytes], doubt: Callable[[str, bytes, bytes], str] | None = None
    ) -> None:
        """`draw` gives 32 bytes that nobody can guess. `doubt` says why a voucher does not make a statement that of the
        worker of this name; None where there are no certificates."""
        self._group = group
        self._draw = draw
        self._doubt = doubt
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def heard(self, worker: str, boot: int, told: bytes) -> None:
        known = self._known.get(worker)
        if known is not None and known.boot == boot and known.told == told:
            return
        key, problem = self._read(worker, boot, told)
        self._known[worker] = _Known(boot, told, key, problem)
        if len(self._known) > WORKERS_LIMIT:
            self._known.popitem(last=False)

    def told(self) -> dict[str, bytes]:
        """What each worker has told of its key."""
        return {worker: known.told for worker, known in self._known.items()}

    def _read(self, worker: str, boot: int, told: bytes) -> tuple[bytes, str]:
        if not told:
            return b"", "it is of an earlier version, which opens none"
        key = read_sealing_key(told)
        if key is None:
            return b"", "the key that it tells cannot be read"
        if self._doubt is not None:
            problem = self._doubt(worker, vouched_for(key.public, boot), key.voucher)
            if problem:
                return b"", f"the key that it tells is not proven to be its own: {problem}"
        return key.public, ""

    def seal(self, variables: Mapping[str, str], job: str, attempt: int, worker: str, boot: int) -> bytes | None:
        """None: this life was not heard yet. `CannotSeal` when nothing is sealed to it."""
        known = self._known.get(worker)
        if known is None or known.boot != boot:
            return None
        if known.problem:
            raise CannotSeal(f"variables cannot be sealed to {worker}: {known.problem}")
        purpose = Purpose(self._group, job, attempt, worker, boot)
        try:
            return seal_variables(variables, purpose, to=known.key, drawn=self._draw())
        except Untrusted as error:
            raise CannotSeal(f"variables cannot be sealed to {worker}: {error}") from None
