"""Which workers are here or were lately, for one question: is there anybody who could run such a task?

Who is full, draining or in quarantine could run it later, and so could one that starts again just now. Whoever has
been away for long counts for nothing.
"""

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Final, NamedTuple, Protocol

from talka.units import NEVER, SECOND

NAMES_SHOWN: Final = 10
BROKEN_SHOWN: Final = 2
"""Workers whose handlers cannot be used."""


class KnownLimits(NamedTuple):
    remembered_ns: int = 600 * SECOND
    """A worker that is away."""
    away: int = 1024
    """Workers that are away. Beyond, the one that left first is forgotten."""
    answers: int = 4096
    loading_ns: int = 90 * SECOND
    """For so long one that loads its handlers may turn out to have any. It gives up after a minute itself."""


KNOWN_LIMITS: Final = KnownLimits()


class Wants(NamedTuple):
    """What a task wants of a worker."""

    handler: str
    capabilities: tuple[str, ...] = ()
    min_memory_bytes: int = 0
    is_brought: bool = False
    """The handler travels with the job: whoever takes code has it."""


class Lack(NamedTuple):
    """Why nobody could run a task."""

    field: str
    """Of the task: handler, capabilities or min_memory."""
    text: str


class Able(Protocol):
    """What counts of a worker here."""

    @property
    def name(self) -> str: ...
    @property
    def handlers(self) -> tuple[str, ...]: ...
    @property
    def capabilities(self) -> tuple[str, ...]: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def accepts_code(self) -> bool: ...
    @property
    def is_loading(self) -> bool: ...
    @property
    def problem(self) -> str: ...


class KnownWorkers:
    """Told who is `here` and who `left`."""

    def __init__(self, limits: KnownLimits = KNOWN_LIMITS) -> None:
        self._limits = limits
        self._here: dict[str, Able] = {}
        self._away: dict[str, tuple[int, Able]] = {}
        """With when they left, those first that did first."""
        self._loading: dict[str, int] = {}
        """Of those that are here, who loads its handlers, and since when."""
        self._answers: dict[Wants, Lack | None] = {}

    def here(self, now: int, worker: Able) -> None:
        """It is there, or is another than before."""
        self._away.pop(worker.name, None)
        if worker.is_loading:
            self._loading.setdefault(worker.name, now)
        else:
            self._loading.pop(worker.name, None)
        self._here[worker.name] = worker
        self._answers.clear()

    def left(self, now: int, name: str) -> None:
        """Its handlers count for a while: it may only be starting again."""
        worker = self._here.pop(name, None)
        self._loading.pop(name, None)
        if worker is not None:
            self._away[name] = now, worker
            if len(self._away) > self._limits.away:
                del self._away[next(iter(self._away))]
            self._answers.clear()

    @property
    def is_empty(self) -> bool:
        """Nobody is known."""
        return not self._here and not self._away

    def lack(self, now: int, wants: Wants) -> Lack | None:
        """Why nobody could run it; None: somebody could."""
        self._forget(now)
        if wants not in self._answers:
            if len(self._answers) >= self._limits.answers:
                self._answers.clear()
            self._answers[wants] = self._lack(wants)
        return self._answers[wants]

    def loading(self, now: int, wants: Wants) -> str:
        """A worker that could run it if it had the handler, and still loads those it has; empty: there is none."""
        for name, since in self._loading.items():
            if wants.is_brought or now >= since + self._limits.loading_ns:
                continue
            worker = self._here[name]
            has_memory = wants.min_memory_bytes <= (worker.memory_bytes or NEVER)
            if has_memory and frozenset(wants.capabilities).issubset(worker.capabilities):
                return name
        return ""

    def _forget(self, now: int) -> None:
        while self._away:
            name, (left_at, _) = next(iter(self._away.items()))
            if now < left_at + self._limits.remembered_ns:
                break
            del self._away[name]
            self._answers.clear()

    def _lack(self, wants: Wants) -> Lack | None:
        workers = [*self._here.values(), *(worker for _, worker in self._away.values())]
        able = [
            worker
            for worker in workers
            if (worker.accepts_code if wants.is_brought else wants.handler in worker.handlers)
        ]
        if not able and wants.is_brought:
            known = "" if workers else "; no worker is known here yet"
            return Lack("handler", f"no worker takes code that travels with a job (--accept-code){known}")
        if not able:
            handlers = {handler for worker in workers for handler in worker.handlers}
            known = _known(handlers) if workers else "no worker is known here yet"
            # One of them may be the one that was meant to have it.
            broken = [
                f"; {worker.name} is degraded and has none: {worker.problem}" for worker in workers if worker.problem
            ]
            text = f'no worker has the handler "{wants.handler}"{_close(wants.handler, handlers)}; {known}'
            return Lack("handler", text + "".join(broken[:BROKEN_SHOWN]))
        who = "worker that takes code" if wants.is_brought else f'worker with the handler "{wants.handler}"'
        for capability in wants.capabilities:
            capabilities = {other for worker in able for other in worker.capabilities}
            if capability not in capabilities:
                text = f'no {who} has the capability "{capability}"{_close(capability, capabilities)}'
                return Lack("capabilities", f"{text}; {_known(capabilities)}")
        wanted = frozenset(wants.capabilities)
        able = [worker for worker in able if wanted.issubset(worker.capabilities)]
        if not able:
            return Lack("capabilities", f"no {who} has all of the capabilities {_listed(sorted(wanted))}")
        # 0: not known, and then enough.
        largest = max(worker.memory_bytes or NEVER for worker in able)
        if largest < wants.min_memory_bytes:
            which = f" and {_listed(sorted(wanted))}" if wanted else ""
            text = f"no {who}{which} has {wants.min_memory_bytes:,} bytes of memory; the largest has {largest:,}"
            return Lack("min_memory", text)
        return None


def _close(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _known(names: Collection[str]) -> str:
    return f"known: {_listed(sorted(names)) or 'none'}"


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more"
