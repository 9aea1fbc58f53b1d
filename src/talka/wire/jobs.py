"""The conversation about jobs: managers with each other, and managers with workers.

A worker beats once a second to every manager it knows; the leader answers with a renewal of its lease. The manager
that leads a job assigns tasks under the job's fence, starts and halts them, acknowledges reports, and fetches the
result of each as a blob. Managers keep blobs for each other, tell the cluster's leader what became of their jobs, and
pass on what clients ask. Every message may be lost, doubled or overtaken; none carries an instant of another machine's
clock, except where the receiver's own is meant.

Decision: docs/decisions/0018-who-may-act-on-a-job.md.
"""

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from talka.stats.tally import Tally
from talka.stats.windows import Window
from talka.wire.attempts import NOWHERE, PARTITIONS_LIMIT, ObeyedLife, StoreLife
from talka.wire.channels import Channel, Codec, Message
from talka.wire.condition import NodeCondition
from talka.wire.leadership import Count, Name
from talka.wire.machines import WorkerMachine
from talka.wire.manager_calls import CallAnswer, ManagerCall
from talka.wire.orders import BundleFacts, Digest
from talka.wire.security.bundles import KEY_BYTES
from talka.wire.security.envelopes import ENVELOPE_LIMIT_BYTES, SEALING_LIMIT_BYTES
from talka.wire.shards import Gap, Settings, ShardAnswer, TimeOver
from talka.wire.tasks import TaskMessage
from talka.work.load import Plan

PIECE_LIMIT_BYTES: Final = 512 * 1024
"""Of a blob, in one message."""
BLOB_LIMIT_BYTES: Final = 64 * 1024 * 1024
RUNNING_LIMIT: Final = 1024
QUIET_LIMIT: Final = 64
STACKS_TOLD: Final = 8
"""Of the cores that do not turn, so many are told with their stacks."""
STACK_LIMIT: Final = 4000
REPORT_PARTS_LIMIT: Final = 4096
REPORT_LIMIT_BYTES: Final = 512 * 1024
"""Of all parts of a report that travel together, unless one alone is larger."""
MANAGERS_LIMIT: Final = 16
SIGNERS_LIMIT: Final = 64
VIEW_LIMIT_BYTES: Final = 900_000
BACK_LIMIT: Final = 64
"""Instants at which a job gives cores back, in one message."""
LINES_LIMIT: Final = 100
LINE_CHARACTERS_LIMIT: Final = 400
"""Of a ViewUpdate's content: with what is around it, it fits a frame."""

QuietState: TypeAlias = Literal["turns", "stalled", "stuck"]
"""Of a core process: how it is with its event loop."""
Fence: TypeAlias = tuple[Count, Count, Count]
"""Parent term, term, sequence: compared from the left. Drawn by the leader whenever a job gets a new leading
manager."""
JobName = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]


# Workers and their lease.


class WorkerFacts(msgspec.Struct, frozen=True, array_like=True):
    """What a worker is and has."""

    cores: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    memory_bytes: Count = 0
    gpus: Count = 0
    capabilities: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=64)], ...], msgspec.Meta(max_length=64)] = ()
    version: Annotated[str, msgspec.Meta(max_length=64)] = ""
    folder: Count = 0
    """Drawn when its state folder was made. The folder is locked: a new life from it proves the earlier one dead."""
    state: Literal["healthy", "degraded", "draining"] = "healthy"
    reason: Text = ""
    """Why it is not healthy."""
    datacenter: Name = ""
    load_percent: Count = 0
    """Of its processors, measured: what readiness goes by, never liveness."""
    life: Count = 0
    """How often it was started from its folder: of two lives the later one counts."""
    handlers: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=64)], ...], msgspec.Meta(max_length=1024)] = ()
    """Names of the handlers its cores have loaded: tasks of dag jobs run where theirs is."""
    plain: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=64)], ...], msgspec.Meta(max_length=1024)] = ()
    """Those of them that are plain functions: a core runs one at a time, while of others many wait side by side."""
    sealing: Annotated[bytes, msgspec.Meta(max_length=SEALING_LIMIT_BYTES)] = b""
    """A `SealingKey`: what variables of jobs are sealed to. Of this life, and empty in protocol 1.0."""
    accepts_code: bool = False
    """It runs handlers that travel with dag jobs."""
    is_loading: bool = False
    """Its cores still load the files with its handlers: which there are is not known yet."""
    machine: WorkerMachine | None = None
    """Told until the leader has it, and again when it has changed; None: as it was told before."""
    zone: Name = ""
    """Where in its datacenter it stands."""
    region: Name = ""
    overload: Annotated[int, msgspec.Meta(ge=0, le=3)] = 0
    """How overloaded it is: an index of `wire.views.LEVELS`. One that is overloaded is given work last, and lives."""


class Running(msgspec.Struct, frozen=True, array_like=True):
    """A task that a worker has, also one that has ended and whose result nobody acknowledged yet."""

    job: JobName
    attempt: Count
    cores: Count
    state: Literal["arming", "armed", "running", "ended"]
    started: Count = 0
    """Iterations so far."""


class QuietCore(msgspec.Struct, frozen=True, array_like=True):
    """A core process whose event loop does not turn."""

    job: JobName
    workflows: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=256)], ...], msgspec.Meta(max_length=16)]
    pid: Count
    state: Literal["stalled", "stuck"]
    quiet_ms: Count
    """For how long already."""
    stack: Annotated[str, msgspec.Meta(max_length=STACK_LIMIT)] = ""
    """Its Python stack; empty while it is not known."""


class TaskLoad(msgspec.Struct, frozen=True, array_like=True):
    """What tasks of dag jobs take of a worker."""

    running: Count = 0
    waiting: Count = 0
    """Handed to it, and not begun."""
    cores: Count = 0
    """Cores on which some run."""


class Beat(Message, frozen=True, tag=1):
    """A worker lives, and has this. To every manager it knows, once a second."""

    number: Count
    facts: WorkerFacts
    running: Annotated[tuple[Running, ...], msgspec.Meta(max_length=RUNNING_LIMIT)] = ()
    epoch: Count = 0
    """The highest epoch of partition 0 of a store of dag jobs that it has obeyed; 0: none. No manager gives it tasks
    under a lower one."""
    of: StoreLife = NOWHERE
    """Whose that was."""
    names: bool = False
    """It tells whose attempts are that it tells of. Those of earlier versions do not, and are given no tasks of dag
    jobs."""
    others: Annotated[tuple[ObeyedLife, ...], msgspec.Meta(max_length=PARTITIONS_LIMIT - 1)] = ()
    """The same of the other partitions in which it has obeyed somebody."""
    quiet: Annotated[tuple[QuietCore, ...], msgspec.Meta(max_length=QUIET_LIMIT)] = ()
    """Cores whose event loop does not turn, those first that are quiet longest."""
    tasks: TaskLoad = TaskLoad()
    leaves: bool = False
    """It is draining because it is told to end, and will not take work again."""
    seeks: bool = False
    """It has no lease: whoever hears this and does not lead tells it where managers are."""
    condition: NodeCondition = NodeCondition()
    """How it does; without cores, those of an earlier version, of which nothing is known."""


class ManagerAt(msgspec.Struct, frozen=True, array_like=True):
    name: Name
    address: Annotated[str, msgspec.Meta(max_length=300)]
    zone: Name = ""
    datacenter: Name = ""
    region: Name = ""


class Renew(Message, frozen=True, tag=2):
    """The leader's answer to a beat: the worker's lease runs from when it sent that beat."""

    token: Fence
    """The leader's own."""
    number: Count
    """Of the beat that is answered."""
    lease_ns: Count
    sole: bool
    """There is only this manager: while its address refuses connections, nobody else could give the tasks away."""
    managers: Annotated[tuple[ManagerAt, ...], msgspec.Meta(max_length=MANAGERS_LIMIT)] = ()
    cancelled: tuple[JobName, ...] = ()
    """Jobs among those running that are to be stopped: for a worker that the order did not reach."""
    orphans: tuple[JobName, ...] = ()
    """Jobs among those running that nobody waits for: they are ended at once and forgotten."""
    drain: bool = False
    """Take no new task, finish those under way."""
    signers: Annotated[
        tuple[Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)], ...],
        msgspec.Meta(max_length=SIGNERS_LIMIT),
    ] = ()
    """Keys with which managers sign bundles. Workers with certificates believe vouchers instead."""
    undrain: bool = False
    """Take new tasks again, if it was such an order that ended that."""


class Elsewhere(Message, frozen=True, tag=3):
    """Another manager's answer to a beat: this one does not lead."""

    leader: Name
    """Empty when none is known."""
    managers: Annotated[tuple[ManagerAt, ...], msgspec.Meta(max_length=MANAGERS_LIMIT)] = ()
    """Where managers are, for a worker that seeks them."""


class Goodbye(Message, frozen=True, tag=4):
    """A worker leaves: none of its cores runs any more, and nobody need wait for its lease to end."""


# Tasks of a job. Whatever a worker is told carries the job's fence.


class Assign(Message, frozen=True, tag=10):
    """Get this ready: shards `first` to `first + count` of the plan split in `of`, one core each. Answer with Report of
    Armed or Refused."""

    job: JobName
    fence: Fence
    attempt: Count
    workflow: Annotated[str, msgspec.Meta(max_length=256)]
    plan: Plan
    first: Count
    count: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    of: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    iterations_done: tuple[Count, ...]
    """By earlier attempts, for each of the shards."""
    values: dict[str, dict[str, bytes]]
    settings: Settings
    bundle: BundleFacts
    is_test: bool = True
    """Of one that measures nothing, a core lost for good is a failure: nobody knows whether its work was done."""
    boot: Count = 0
    """The life of the worker that is meant: another one knows nothing of a later manager. 0: whichever it is."""
    seats: Annotated[tuple[Count, ...], msgspec.Meta(max_length=4096)] = ()
    """Which of the job's cores at this worker runs it, per shard. Tasks of one job with a seat in common share its core
    process. Empty: every shard has a core of its own."""
    variables: Annotated[bytes, msgspec.Meta(max_length=ENVELOPE_LIMIT_BYTES)] = b""
    """Those of the job, sealed to this life of this worker for this attempt; empty when there are none."""
    life: Count = 0
    """The boot of the manager that drew the attempt's number, as it is in the checkpoint: part of the attempt's name,
    and told with all that is said of it. A register that was put back draws the same numbers again, in another life."""


class Start(Message, frozen=True, tag=11):
    """Instants are of the worker's own monotonic clock, as the manager estimates it."""

    job: JobName
    fence: Fence
    attempt: Count
    start_at_ns: int
    origin_ns: int
    job_origin_ns: int


class Halt(Message, frozen=True, tag=12):
    """`stop`: start nothing new, finish within the grace period, report. `kill`: end it now; no result is wanted."""

    job: JobName
    fence: Fence
    attempt: Count
    how: Literal["stop", "kill"]


class Acknowledge(Message, frozen=True, tag=13):
    """The report has arrived. The next one comes after `every_ms`: a manager under load asks for fewer."""

    job: JobName
    fence: Fence
    attempt: Count
    sequence: Count
    every_ms: Count = 0
    answer: ShardAnswer | None = None
    """To the latest ask for more time that its reports had."""
    over: TimeOver | None = None
    """Once its workflow was warned that its time is over."""
    is_refusal: bool = False
    """The report was not counted, as the manager has too much to do. The next one that is taken brings all of it."""


class ResultAccepted(Message, frozen=True, tag=14):
    """The result of an attempt is on a majority of managers' disks, or will never be wanted: forget it."""

    job: JobName
    fence: Fence
    attempt: Count


class Reconcile(Message, frozen=True, tag=15):
    """A new manager leads the job: obey only this fence from now on, and say what you have of it.

    Answered with WorkerSnapshot once the fence is on disk. Every task of the job then reports all it has again.
    """

    job: JobName
    fence: Fence
    number: Count


class TaskFacts(msgspec.Struct, frozen=True, array_like=True):
    attempt: Count
    state: Literal["arming", "armed", "running", "ended"]
    origin_age_ns: int = 0
    """How long ago the workflow's plan began; only of a task that was started."""
    job_origin_age_ns: int = 0
    digest: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Of its result, when it has ended."""
    size_bytes: Count = 0
    life: Count = 0
    """As in Assign."""


class WorkerSnapshot(Message, frozen=True, tag=16):
    job: JobName
    fence: Fence
    number: Count
    tasks: Annotated[tuple[TaskFacts, ...], msgspec.Meta(max_length=RUNNING_LIMIT)] = ()


class Report(Message, frozen=True, tag=17):
    """What a core would say to its owner, said by a worker of all cores of a task: see `wire/shards.py`."""

    job: JobName
    attempt: Count
    content: Annotated[bytes, msgspec.Meta(max_length=900_000)]
    more: Annotated[tuple[bytes, ...], msgspec.Meta(max_length=REPORT_PARTS_LIMIT)] = ()
    """Said after it, in the same breath: a frame costs more than what is in it."""
    life: Count = 0
    """As in Assign."""

    @property
    def contents(self) -> tuple[bytes, ...]:
        return (self.content, *self.more)


class Finished(Message, frozen=True, tag=18):
    """A task has ended; its result is kept on the worker's disk until ResultAccepted. Repeated until then."""

    job: JobName
    attempt: Count
    digest: Digest
    size_bytes: Count
    life: Count = 0
    """As in Assign."""


class Stale(Message, frozen=True, tag=19):
    """The fence of a command is below one this worker has obeyed."""

    job: JobName
    attempt: Count
    highest: Fence


class NoTask(Message, frozen=True, tag=20):
    """A command named an attempt this worker does not have: it was lost, or never arrived."""

    job: JobName
    attempt: Count
    fence: Fence


class Sync(Message, frozen=True, tag=21):
    """What time is it at yours? Asked a few times before a start; the quickest answer tells most."""

    number: Count


class Synced(Message, frozen=True, tag=22):
    number: Count
    clock_ns: int


class TaskDeclined(Message, frozen=True, tag=23):
    """This worker cannot take the task: no room, no bundle. Nothing is wrong with the job."""

    job: JobName
    attempt: Count
    fence: Fence
    reason: Text


class LogLines(Message, frozen=True, tag=24):
    """What the cores of a task printed since the last ones. Shed under load, and not repeated but for a new manager."""

    job: JobName
    attempt: Count
    first: Count
    """The number of the first line, among all of the task."""
    lines: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=LINE_CHARACTERS_LIMIT)], ...], msgspec.Meta(max_length=LINES_LIMIT)
    ]


# Blobs: bundles, results of attempts, result documents. Named by what they hold.


class WantBlob(Message, frozen=True, tag=30):
    digest: Digest
    offset: Count


class Piece(Message, frozen=True, tag=31):
    digest: Digest
    offset: Count
    size_bytes: Count
    """Of the whole. 0 and no data: this node does not have it."""
    data: Annotated[bytes, msgspec.Meta(max_length=PIECE_LIMIT_BYTES)]


class KeepBlob(Message, frozen=True, tag=32):
    """Keep this piece. When all are there and on disk, say Kept."""

    digest: Digest
    offset: Count
    size_bytes: Count
    data: Annotated[bytes, msgspec.Meta(max_length=PIECE_LIMIT_BYTES)]


class Kept(Message, frozen=True, tag=33):
    digest: Digest
    have_bytes: Count
    """How much of it has arrived, without a hole from the start; the whole size once it is on disk."""
    problem: Text = ""


# The leader and the managers that lead jobs.


class Lead(Message, frozen=True, tag=40):
    """Lead this job. Sent when it is given, whenever its entry changes, and once a second."""

    entry: Annotated[bytes, msgspec.Meta(max_length=300_000)]
    """A `JobEntry`."""
    asks: bool = False
    """Tell when it gives cores back: this leader has not been told."""


class SpareCores(msgspec.Struct, frozen=True, array_like=True):
    """A job gives cores of a worker back: nothing of it runs there, and nothing of it is to come that needs them."""

    worker: Name
    boot: Count
    had: Count
    """As many as its grants there come to; if those have changed, nothing is given back."""
    keeps: Count


class CoresBack(msgspec.Struct, frozen=True, array_like=True):
    """When a job that runs gives cores back, from now on."""

    cores: Count
    least_ns: Count
    """Not before: by its plans, if nothing fails or is stopped."""
    likely_ns: int = -1
    """When its plans are over. -1: they have no end in time."""
    most_ns: int = -1
    """Not later, if all goes as it should: iterations have their grace, and results are brought. -1: not known."""


class StoreCheckpoint(Message, frozen=True, tag=41):
    """What the manager that leads a job wants to be stored: a checkpoint."""

    job: JobName
    fence: Fence
    revision: Count
    """Grows with every change; a lower one is not written."""
    state: Annotated[str, msgspec.Meta(max_length=32)]
    content: Annotated[bytes, msgspec.Meta(max_length=200_000)]
    reason: Text = ""
    result: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Digest of the result document, once the job has ended."""
    exit_code: int = 0
    unfit: tuple[Name, ...] = ()
    """Granted workers that could not be used."""
    life: Count = 0
    """The boot of the manager that says so."""
    spare: tuple[SpareCores, ...] = ()
    """Cores that the job gives back, by worker; told until the grants in the entry say so."""
    back: Annotated[tuple[CoresBack, ...], msgspec.Meta(max_length=BACK_LIMIT)] = ()
    """When it will give back those that it keeps."""
    resumes: int = 0
    """How often the job was resumed, as far as its owner knows."""


class CheckpointStored(Message, frozen=True, tag=42):
    job: JobName
    fence: Fence
    revision: Count
    """The highest that is on a majority of disks."""
    superseded: bool = False
    """Another manager leads the job, or nobody does: stop leading it."""
    life: Count = 0
    """Of the manager that is answered."""


class Leaderless(Message, frozen=True, tag=43):
    """A manager was told to lead a job under a fence that an earlier life of it had: it knows nothing of it."""

    job: JobName
    fence: Fence


# What clients ask, passed on to whoever can answer.


class WatchJob(Message, frozen=True, tag=52):
    """Tell me of this job for the next five seconds, from what I have seen on."""

    job: JobName
    number: Count
    """Drawn by the watcher: a new one starts over with everything."""
    windows_after: int = -1
    steps: bool = False


class ViewUpdate(Message, frozen=True, tag=53):
    job: JobName
    number: Count
    content: Annotated[bytes, msgspec.Meta(max_length=VIEW_LIMIT_BYTES)]
    """A `JobUpdate`."""


JobMessage: TypeAlias = (
    Beat
    | Renew
    | Elsewhere
    | Goodbye
    | Assign
    | Start
    | Halt
    | Acknowledge
    | ResultAccepted
    | Reconcile
    | WorkerSnapshot
    | Report
    | Finished
    | Stale
    | NoTask
    | Sync
    | Synced
    | TaskDeclined
    | LogLines
    | WantBlob
    | Piece
    | KeepBlob
    | Kept
    | Lead
    | StoreCheckpoint
    | CheckpointStored
    | Leaderless
    | ManagerCall
    | CallAnswer
    | WatchJob
    | ViewUpdate
    | TaskMessage
)


CHANNEL: Final[Channel[JobMessage]] = Channel(6, "jobs", JobMessage, "a frame holds a malformed message about jobs")
encode, decode = CHANNEL.encode, CHANNEL.decode


class AttemptResult(msgspec.Struct, frozen=True):
    """Everything one attempt at a task came to. Encoded it is a blob, named by its digest."""

    job: str
    attempt: int
    tally: Tally
    windows: list[Window]
    """Those of the last minute one by one, older ones merged as the timeline shows them."""
    shares: tuple[int, ...] = ()
    """Iterations started by each of its shards."""
    started_at_ns: int = 0
    """When it really started, since the start of the job; `ended_at_ns` likewise."""
    ended_at_ns: int = 0
    spread_ns: int = 0
    """By how much its last core began later than its first."""
    provided: dict[str, bytes] = {}
    failure: str | None = None
    notes: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()
    is_lost: bool = False
    """Made by the manager out of the last acknowledged report: the worker was lost."""
    engine: str = ""
    worker: str = ""
    is_cancelled: bool = False
    """Its worker heard that the job is cancelled, maybe before the manager that leads it."""
    life: int = 0
    """As in Assign."""


RESULTS: Final[Codec[AttemptResult]] = Codec(AttemptResult, "a blob does not hold the result of an attempt")
encode_result, decode_result = RESULTS.encode, RESULTS.decode
