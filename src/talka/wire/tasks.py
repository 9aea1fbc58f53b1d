"""The conversation about tasks of dag jobs: a manager with its workers, and a worker with the cores that run handlers.

An attempt is named by its store, that store's life, its partition, its job, its task and its fence (`wire.attempts`,
`work.dags.records`): what is said of another than the one given out last counts for nothing. All goes in batches. Every
message may be lost, doubled or overtaken: a result is told again until it was taken.

Decision: docs/decisions/0021-dag-jobs-live-in-one-store.md.
"""

from collections.abc import Callable
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from talka.wire.attempts import NOWHERE, Dropped, StoreLife
from talka.wire.channels import Channel, Message
from talka.wire.output_tail import NO_TAILS, Tails, Wrote
from talka.wire.security.bundles import WORD_LIMIT_BYTES
from talka.wire.shards import BundleSource
from talka.work.deadlines import OnTimeout

TASKS_LIMIT: Final = 1024
"""Of one message."""
BATCH_LIMIT_BYTES: Final = 512 * 1024
"""Of all that travels together, unless one alone is larger."""
INPUTS_LIMIT_BYTES: Final = 16 * 1024 * 1024
"""Of all inputs of one task together. What does not fit its AssignTasks travels before it, in TaskInputs."""
LOG_LINE_LIMIT: Final = 4096
ERROR_LIMIT: Final = 8192

Number = Annotated[int, msgspec.Meta(ge=0)]
Word = Annotated[str, msgspec.Meta(max_length=200)]
Length = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
"""Milliseconds: in nanoseconds too it is a number that a store can keep."""
Outcome: TypeAlias = Literal["completed", "failed", "died", "timeout", "cancelled", "refused"]
"""`failed`: the handler raised, or its command ended badly. `died`: its process did; the task is tried again until the
table of endings gives it up. `refused`: this worker cannot run it at all; another may, unless it is refused again and
again."""


class HandedTask(msgspec.Struct, frozen=True, array_like=True):
    """One attempt, with all that its handler is to know."""

    fence: Number
    job: Word
    """The job's id, for people."""
    id: Word
    handler: Word
    attempt: Number
    config: bytes
    """JSON."""
    inputs: dict[str, bytes] = {}
    """Outputs of dependencies by their id, JSON each; those that came in TaskInputs are added to these."""
    attempt_ms: Number = 0
    """After so long it is stopped; 0: never."""
    key: str = ""
    checkpoint: bytes = b""
    """What an earlier attempt told last, JSON; empty: nothing."""
    alone: bool = False
    """In a process with nothing else: an earlier one died, or it has bounds."""
    memory_bytes: Number = 0
    cpu_ms: Number = 0
    files: Number = 0
    fed: Number = 0
    """So many inputs came in TaskInputs: where one of those was lost, the task is refused."""
    item: bytes = b""
    """Of a task that is an element of a fanned-out one, its item of the list, JSON; empty: it is none."""
    place: int = -1
    """In that list."""
    on_timeout: OnTimeout = "kill"
    """What follows once it was warned that its time is over."""


class HandedBundle(msgspec.Struct, frozen=True, array_like=True):
    """Code that travelled with a job: where its handlers are, and the word of a manager for it."""

    digest: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    size_bytes: Number
    files: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=1024)], ...], msgspec.Meta(max_length=64)]
    """Those in it that handlers are imported from."""
    word: Annotated[bytes, msgspec.Meta(max_length=WORD_LIMIT_BYTES)] = b""
    """A `BundleWord` of the keeper's manager."""


class TaskResult(msgspec.Struct, frozen=True, array_like=True):
    """What became of one attempt."""

    fence: Number
    outcome: Outcome
    output: bytes = b""
    """JSON, of one that completed."""
    error: Annotated[str, msgspec.Meta(max_length=ERROR_LIMIT)] = ""
    """A sentence for people; of an exception its class, text and place."""
    cause: Word = ""
    """A word for rules: the name of the exception's class, timeout, oom, SIGSEGV, exit, …"""
    exit_code: int = 0
    signal: str = ""
    took_us: Number = 0
    memory_bytes: Number = 0
    """The most that its process had while it ran; 0: not measured, or others ran in it too."""
    alone: bool = False
    """Nothing else was in its process: if that died, this task was it."""
    classes: tuple[Word, ...] = ()
    """Names of the exception's class and its bases, for `retry.never`."""
    job: Word = ""
    """Whose attempt it was, as whoever ran it was told: empty, with `task`, where it is not known here."""
    task: Word = ""
    tails: Tails = NO_TAILS
    """The end of all that it wrote."""


class TaskLine(msgspec.Struct, frozen=True, array_like=True):
    fence: Number
    at_ms: Number
    text: Annotated[str, msgspec.Meta(max_length=LOG_LINE_LIMIT)]


class HandlerProgress(msgspec.Struct, frozen=True, array_like=True):
    """The latest that a handler gave `task.heartbeat`."""

    fence: Number
    details: bytes
    """JSON."""
    done: Number = 0
    """How often it has advanced so far: reported something that it had not reported before."""


class MoreTime(msgspec.Struct, frozen=True, array_like=True):
    """An attempt asks for more time than its timeout, or was warned that its time is over. Told again until it is
    answered."""

    fence: Number
    number: Number
    """Grows with all that is asked of one attempt. What comes again is answered as it was."""
    ran_ms: Length
    """How long it has run."""
    done: Number = 0
    """As in HandlerProgress."""
    reason: Word = ""
    estimate_ms: Length = 0
    """How much longer it thinks to take; 0: it does not say."""
    is_warned: bool = False


class TimeAnswer(msgspec.Struct, frozen=True, array_like=True):
    fence: Number
    number: Number
    """Of the MoreTime."""
    granted_ms: Number = 0
    left: Number = 0
    """How often it may be given more."""
    why: str = ""
    """Why it was given none, or not as much as it asked for."""


# Manager to worker. Tags from 60 on, as they are of the conversation about jobs. `epoch` is of the manager's life: a
# worker obeys the highest it has seen, which is on its disk.


class AssignTasks(Message, frozen=True, tag=60):
    """Run these. One that the worker has already is not begun again."""

    epoch: Number
    tasks: Annotated[tuple[HandedTask, ...], msgspec.Meta(max_length=TASKS_LIMIT)]
    boot: Number = 0
    """The life of the worker that is meant; 0: any."""
    beat: Number = 0
    """The last beat of the worker that the manager had heard. One of before the worker's present lease: it may have
    been given up since, and is refused. 0: not known."""
    of: StoreLife = NOWHERE
    """Whose attempts these are: a worker forgets all others when it first obeys a higher epoch of another."""
    bundle: HandedBundle | None = None
    """Code that holds the handlers of all of these; None: they are the worker's own. Only said to workers that accept
    code."""


class Recall(Message, frozen=True, tag=61):
    """Stop these, asking first and killing after `grace_ms`; each ends with a result. Unknown ones are answered with
    `cancelled` too."""

    epoch: Number
    fences: Annotated[tuple[Number, ...], msgspec.Meta(max_length=TASKS_LIMIT)]
    grace_ms: Number = 30_000
    of: StoreLife = NOWHERE


class ResultsStored(Message, frozen=True, tag=62):
    """These results are kept for good, or refused for good: forget them."""

    epoch: Number
    fences: Annotated[tuple[Number, ...], msgspec.Meta(max_length=TASKS_LIMIT)]
    of: StoreLife = NOWHERE


class AskHeld(Message, frozen=True, tag=63):
    """A manager that begins its life asks what the worker has. It is asked again until it is answered."""

    epoch: Number
    of: StoreLife = NOWHERE


class TaskInputs(Message, frozen=True, tag=67):
    """Inputs of an attempt that is about to be handed, as many as fit. Forgotten when no AssignTasks follows."""

    epoch: Number
    fence: Number
    inputs: dict[str, bytes]
    boot: Number = 0
    """As in AssignTasks."""
    of: StoreLife = NOWHERE


class TimeAnswers(Message, frozen=True, tag=68):
    """To what was asked with MoreTime."""

    since = 1
    epoch: Number
    answers: Annotated[tuple[TimeAnswer, ...], msgspec.Meta(max_length=TASKS_LIMIT)]
    of: StoreLife = NOWHERE


# Worker to manager.


class Done(Message, frozen=True, tag=64):
    results: Annotated[tuple[TaskResult, ...], msgspec.Meta(max_length=TASKS_LIMIT)]
    of: StoreLife = NOWHERE
    """Whose attempts these were."""


class TaskProgress(Message, frozen=True, tag=65):
    """What runs since longer than a moment, what it told of itself, and its lines. Lost ones are not told again,
    except that the latest progress of each is."""

    began: tuple[Number, ...] = ()
    progress: tuple[HandlerProgress, ...] = ()
    lines: tuple[TaskLine, ...] = ()
    of: StoreLife = NOWHERE
    wrote: tuple[Wrote, ...] = ()
    """Of those that write, the last of it so far."""
    more_time: tuple[MoreTime, ...] = ()


class Held(Message, frozen=True, tag=66):
    """The answer to AskHeld: attempts that wait or run here, or have ended and were not taken yet. In several parts
    when there are many; those of one answer have its number."""

    epoch: Number
    fences: Annotated[tuple[Number, ...], msgspec.Meta(max_length=65_536)]
    part: Number = 0
    parts: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    of: StoreLife = NOWHERE
    dropped: Annotated[tuple[Dropped, ...], msgspec.Meta(max_length=16)] = ()
    """What was forgotten when this worker began to obey the one who asks. Told until it is commanded otherwise."""


KeeperMessage: TypeAlias = AssignTasks | Recall | ResultsStored | AskHeld | TaskInputs | TimeAnswers
"""What whoever keeps jobs says to a worker."""
WorkerMessage: TypeAlias = Done | TaskProgress | Held
"""And what it hears of one."""
TaskMessage: TypeAlias = KeeperMessage | WorkerMessage


# A worker and one of its cores, over a unix socket. The core has imported the handlers' file.


class Load(Message, frozen=True, tag=1):
    """The first word: import these files. Answered with `Loaded`."""

    files: tuple[str, ...]
    threads: int = 1
    """Plain functions at the same time; async ones are as many as are given."""
    worker: str = ""
    bundle: BundleSource | None = None
    """Unpack this first: `files` are in it."""


class RunTasks(Message, frozen=True, tag=2):
    tasks: tuple[HandedTask, ...]


class StopTasks(Message, frozen=True, tag=3):
    """Cancel these; each answers with a result as soon as its code lets it."""

    fences: tuple[int, ...]
    reason: Literal["cancelled", "timeout"] = "cancelled"


class WarnTasks(Message, frozen=True, tag=4):
    """The time of these is over: they are to save what they have."""

    fences: tuple[int, ...]


class TimeTold(msgspec.Struct, frozen=True, array_like=True):
    """More time that an attempt was given, or why it was not."""

    fence: int
    call: int
    """Of the TimeWanted; 0: it was asked for because the attempt advances."""
    granted_ms: int = 0
    left: int = 0
    why: str = ""


class TellTime(Message, frozen=True, tag=5):
    told: tuple[TimeTold, ...]


class Loaded(Message, frozen=True, tag=10):
    pid: int
    handlers: tuple[str, ...] = ()
    problem: str = ""
    """Why the files cannot be used, with file and line; nothing can run then."""
    plain: tuple[str, ...] = ()
    """Those of `handlers` that are plain functions: a core runs one of them at a time, in the order it was told."""


class Ran(Message, frozen=True, tag=11):
    results: tuple[TaskResult, ...]


class TimeWanted(msgspec.Struct, frozen=True, array_like=True):
    """A handler asks for more time."""

    fence: int
    call: int
    """Of those of one attempt, from 1 on."""
    done: int = 0
    """As in HandlerProgress."""
    reason: str = ""
    estimate_ms: int = 0


class Said(Message, frozen=True, tag=12):
    progress: tuple[HandlerProgress, ...] = ()
    lines: tuple[TaskLine, ...] = ()
    wrote: tuple[Wrote, ...] = ()
    wanted: tuple[TimeWanted, ...] = ()
    heeding: tuple[int, ...] = ()
    """Attempts whose code does something when it is warned: they get time to."""


class Spent(Message, frozen=True, tag=13):
    """An attempt in this core did not return, and processes that handlers started are left: give it nothing more, and
    end it with them when nothing runs in it."""

    processes: int = 1
    """How many they are."""


ToHandlers: TypeAlias = Load | RunTasks | StopTasks | WarnTasks | TellTime
FromHandlers: TypeAlias = Loaded | Ran | Said | Spent


TO_HANDLERS: Final[Channel[ToHandlers]] = Channel(
    0, "to handlers", ToHandlers, "a frame holds a malformed message to a core"
)
FROM_HANDLERS: Final[Channel[FromHandlers]] = Channel(
    0, "from handlers", FromHandlers, "a frame holds a malformed message from a core"
)
encode: Callable[[ToHandlers | FromHandlers], bytes] = msgspec.msgpack.Encoder().encode
decode_to_handlers, decode_from_handlers = TO_HANDLERS.decode, FROM_HANDLERS.decode
