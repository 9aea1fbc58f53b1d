"""What a worker asks its shell to do, and what it tells its log and its checkers."""

from typing import Literal, TypeAlias

import msgspec

from talka.cluster.effects import Persist, PersistBlob, Send
from talka.control.load.core_effects import CoreEffect
from talka.control.member.manager_search import GreetManager
from talka.control.tasks.worker_link import ToKeeper
from talka.wire.attempts import Dropped
from talka.wire.jobs import JobMessage, ManagerAt, QuietState
from talka.wire.tasks import ToHandlers


class CoresUntil(msgspec.Struct, frozen=True):
    """Each core stops itself at this instant of its machine's clock, with all that it started, unless it is told a
    later one before. Told with each renewal: a worker that stands still tells nothing, and its cores end by themselves.

    See docs/decisions/0032-a-core-ends-by-its-own-clock.md.
    """

    end_ns: int


class NeedBundle(msgspec.Struct, frozen=True):
    """A bundle is not here, and is being fetched."""

    digest: str
    size_bytes: int


class ManagersLearned(msgspec.Struct, frozen=True):
    """These are the managers now. Keep a connection to each."""

    managers: tuple[ManagerAt, ...]


class WorkerLeaseGranted(msgspec.Struct, frozen=True):
    """A leader counts on this worker."""

    leader: str


class LeaseEnded(msgspec.Struct, frozen=True):
    """Nobody renewed the lease; what ran is killed."""

    reason: str


class ShardsNews(msgspec.Struct, frozen=True):
    """An attempt at shards of a job is ready to start, was told to start, came to a result or was refused, or was ended
    before its time and leaves no result."""

    job: str
    attempt: int
    what: Literal["armed", "started", "ended", "killed"]
    reason: str = ""
    """What went wrong, or why it was killed."""


class StartHandlers(msgspec.Struct, frozen=True):
    """Start a core of this number. A TellHandlers with its `Load` follows at once; numbers are never used again.

    One that cannot be started is told as one that has ended.
    """

    core: int
    memory_bytes: int = 0
    """Bounds of the one task that it is for; 0: none."""
    cpu_ms: int = 0
    files: int = 0
    """Open descriptors."""


class TellHandlers(msgspec.Struct, frozen=True):
    """Write this to the core. What is told to one that has ended is dropped."""

    core: int
    message: ToHandlers


class EndHandlers(msgspec.Struct, frozen=True):
    """`hard`: kill its process group now. Else: it has nothing to do; close its socket, and kill what is left of its
    group after a moment. Its exit is told either way."""

    core: int
    hard: bool
    shows_stack: bool = False
    """Of one that is killed: let it show first where it is, if it does within a moment. Its exit tells."""


class LookAtCore(msgspec.Struct, frozen=True):
    """Find out what the process of this number does, which does not answer, and say `on_core_look`."""

    process: int


class CoreQuiet(msgspec.Struct, frozen=True):
    """News: a core process does not turn its event loop since a while; or it does again."""

    job: str
    workflows: tuple[str, ...]
    pid: int
    state: QuietState
    quiet_ns: int


class CoreGivenUp(msgspec.Struct, frozen=True):
    """News: its deadline is over, and it is killed. What is left of its plan goes to another."""

    job: str
    workflows: tuple[str, ...]
    pid: int
    quiet_ns: int


class CoreSeen(msgspec.Struct, frozen=True):
    """News: what such a core does."""

    job: str
    pid: int
    stack: str


class ExitFacts(msgspec.Struct, frozen=True):
    """How a core has ended."""

    cause: str
    """A word for rules: oom, the signal's name, exit, or start when it never ran."""
    exit_code: int = 0
    signal: str = ""
    memory_bytes: int = 0
    """The most it used, as far as is known."""
    text: str = ""
    """A sentence for people."""
    stack: bytes = b""
    """Where its threads were at its end, the latest calls last; empty: it did not show that."""


class HandlersLoaded(msgspec.Struct, frozen=True):
    """A core has loaded the handlers' files, and these are in them; told when it differs from what was told before."""

    handlers: tuple[str, ...]
    bundle: str = ""
    """Digest of the bundle that they came in; empty: the worker's own."""


class HandlersBroken(msgspec.Struct, frozen=True):
    """The handlers' files cannot be used; it is tried again."""

    text: str
    bundle: str = ""
    """As in `HandlersLoaded`."""


class AttemptsDropped(msgspec.Struct, frozen=True):
    """What was held of another store, or of another life of it, was forgotten."""

    dropped: Dropped


class Drained(msgspec.Struct, frozen=True):
    """The worker was to take no more tasks, and nothing is left on it that anybody wants."""


class Undrained(msgspec.Struct, frozen=True):
    """News: the worker takes tasks again."""


HandlerNews: TypeAlias = HandlersLoaded | HandlersBroken | AttemptsDropped
CoresEffect: TypeAlias = StartHandlers | TellHandlers | EndHandlers | Persist | HandlerNews
"""Of the pool of handler cores, for the shell."""
HandlerEffect: TypeAlias = CoresEffect | ToKeeper | Send[JobMessage] | PersistBlob | NeedBundle
"""With what a keeper is to hear, which a link carries, and bundles that are fetched."""
CoreNews: TypeAlias = CoreQuiet | CoreGivenUp | CoreSeen
ShardsEffect: TypeAlias = (
    CoreEffect | LookAtCore | CoreNews | Send[JobMessage] | Persist | PersistBlob | NeedBundle | ShardsNews
)
"""Of what a worker holds of load jobs."""
WorkerEffect: TypeAlias = (
    ShardsEffect
    | CoresEffect
    | CoresUntil
    | ManagersLearned
    | GreetManager
    | WorkerLeaseGranted
    | LeaseEnded
    | Drained
    | Undrained
)
