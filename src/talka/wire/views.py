"""What people are shown of jobs, workers and the cluster: the answers to what clients ask.

Managers pass these to each other inside Answer and View, and the HTTP API gives them out as JSON. An empty string
stands for what is not known or has not happened; new fields go last and have a default.
"""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Literal, get_args

import msgspec

from talka.stats.tally import Tally
from talka.stats.windows import Window
from talka.wire.machines import MachineView
from talka.work.lifecycle import JobState, TaskState

WorkerState = Literal["registering", "healthy", "degraded", "draining", "offline"]
LevelName = Literal["normal", "busy", "stressed", "overloaded"]
LEVELS: Final[tuple[LevelName, ...]] = get_args(LevelName)
OVERLOADED: Final = LEVELS.index("overloaded")
DecisionName = Literal[
    "registering",
    "healthy",
    "degraded",
    "draining",
    "silent",
    "lost",
    "blocked",
    "quarantined",
    "refused",
    "stalled",
    "stuck",
    "held",
    "busy",
    "overloaded",
]
"""What a manager may find of a worker. One that is draining, silent or lost is given nothing new, one that is degraded
or blocked no load test; to a busy one load tests go last, to an overloaded one load tests and tasks; a quarantined or
refused one gets no tasks, held cores get none either. A core that is stalled or stuck concerns no other core."""


class JobFacts(msgspec.Struct, frozen=True):
    """A job as lists show it."""

    id: str
    name: str
    state: JobState
    reason: str = ""
    """Why it is in this state, in a sentence."""
    submitted_at: str = ""
    """RFC 3339, UTC; see `instant_text`."""
    ended_at: str = ""
    owner: str = ""
    """The manager that leads it."""
    position: int | None = None
    """In the queue, from 1; null when it is not queued."""
    waits_for: str = ""
    """What a queued job waits for, in a sentence."""
    cores: int = 0
    """Granted to it now."""
    workers: list[str] = []
    exit_code: int | None = None
    """Null until it has ended."""
    submitted_by: str = ""
    cancel: str = ""
    """Why it is to stop; empty when nobody asked."""
    stopped: int | None = None
    """Of a job that was cancelled: how many workflows, or tasks, did not run to their end for it."""
    datacenter: str = ""
    """Where it runs or ran; empty where that was not said."""
    expected_start: str = ""
    """When a queued job is expected to start, by the plans of those that run: RFC 3339, UTC. Empty: that is not
    known."""
    late: list[str] = []
    """Of a job that is asked for alone: of each workflow that is late, what more time it was given and why, and whether
    it has none left."""


class JobsPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Jobs, newest first."""

    items: list[JobFacts]
    next: str = ""
    """The cursor of the next page; empty on the last one."""
    cursors: list[str] = []
    """For each job the cursor of a page that begins with it: whoever shows jobs of several kinds together stops
    anywhere."""


class WorkerDecision(msgspec.Struct, frozen=True):
    """One thing that is so with a worker."""

    what: DecisionName
    reason: str = ""
    since: str = ""
    """RFC 3339, UTC."""


class QuietCoreView(msgspec.Struct, frozen=True):
    """A core process whose event loop does not turn: no step of it can go on. That it waits for a slow target is no
    reason."""

    job: str
    workflows: list[str]
    pid: int
    state: Literal["stalled", "stuck"]
    """Stalled from 10 s on, stuck from 30 s on."""
    since: str
    """RFC 3339, UTC: when it turned last."""
    stack: str = ""
    """Its Python stack; empty while it is not known."""


class WorkerView(msgspec.Struct, frozen=True):
    name: str
    state: WorkerState
    reason: str = ""
    """All reasons of its decisions, in one line."""
    cores: int = 0
    free: int = 0
    """Cores that nobody has: no load job, no tasks. 0 where it is given nothing new."""
    memory_bytes: int = 0
    gpus: int = 0
    capabilities: list[str] = []
    version: str = ""
    jobs: list[str] = []
    lease_ms: int = 0
    """How long its lease still runs; 0 when it has none."""
    address: str = ""
    decisions: list[WorkerDecision] = []
    """All that is so with it now."""
    quiet_cores: list[QuietCoreView] = []
    tasks: int = 0
    """Tasks of pipelines that run there."""
    tasks_waiting: int = 0
    """Tasks that were handed to it and wait there for a core."""
    task_cores: int = 0
    """Cores that tasks keep busy."""
    load_cores: int = 0
    """Cores that load jobs have."""
    load_percent: int = 0
    """Of its processors, as it measured."""
    registered_at: str = ""
    """RFC 3339, UTC: when the manager that leads heard this life of it first."""
    heard_at: str = ""
    """RFC 3339, UTC: when it was heard last."""
    handlers: list[str] = []
    """Names of what it can run; told of a worker that is asked for by its name, as its machine is."""
    machine: MachineView | None = None
    zone: str = ""
    """Where it stands, as far as it was said."""
    datacenter: str = ""
    region: str = ""
    level: LevelName = "normal"
    """How overloaded it is, by what it measures itself."""


class ManagerView(msgspec.Struct, frozen=True):
    name: str
    state: str
    """syncing, active, draining; or suspect, dead or left, as the members see it."""
    api: str = ""
    """HOST:PORT of its API, under which clients reach it."""
    leads: bool = False
    """It leads the cluster."""
    jobs: int = 0
    """That it leads."""
    zone: str = ""
    """Where it stands, as far as it was said."""
    datacenter: str = ""
    region: str = ""


class LeaseView(msgspec.Struct, frozen=True):
    """The lease of workers."""

    lease_ms: int
    next_ms: int = 0
    """What it is being changed to; 0: it is not."""
    wait_ms: int = 0
    """Until the new one holds: the longer of both is waited for."""
    by: str = ""
    """Where it comes from."""


class CertificateView(msgspec.Struct, frozen=True):
    """Of a node, as the manager that was asked knows it."""

    name: str
    """Of the node; of an authority, that of the manager that has it."""
    role: str
    """Of the node, or authority."""
    until: str
    """RFC 3339, in UTC."""
    days: int
    """That are left; below 0: it has ended."""
    note: str = ""
    """ends soon (within 30 days), ended."""


class ClusterView(msgspec.Struct, frozen=True):
    name: str
    leader: str = ""
    term: int = 0
    managers: list[ManagerView] = []
    workers: int = 0
    cores: int = 0
    """Of all workers that are there: the sum over those that are not offline."""
    cores_free: int = 0
    """Those of them that nobody has and that may be given: the sum of what is free on each worker."""
    queue: int = 0
    """Jobs that wait for cores."""
    cores_usable: int = 0
    """Cores of workers that may be given work: what shares by priority are shares of."""
    certificates: list[CertificateView] = []
    """Those that end first. Empty where there are none."""


class WorkflowUpdate(msgspec.Struct, frozen=True):
    name: str
    state: TaskState
    elapsed_ns: int = 0
    """Since its plan began; 0 before that."""
    stopped: bool = False
    """It starts nothing new: its plan is over, or it was told to stop."""
    ended: bool = False
    vus: int = 0
    """Active now."""
    cores: int = 0
    tally: Tally | None = None
    """Everything counted so far. Without its steps, actions and metrics unless steps were asked for; null before it
    began."""
    failure: str | None = None
    notes: list[str] = []
    windows: list[Window] = []
    """As those of the job, with what each step did. Empty unless steps were asked for."""
    recent: list[Window] = []
    counted_ns: int = 0
    """Since its plan began: for which instant `tally` holds, by the clocks of those who counted. 0: not known."""
    late: str = ""
    """What more time it was given and why, and whether it has none left, in words; empty while it is not late."""


class LostPart(msgspec.Struct, frozen=True):
    """A core or worker died: from when to when nothing is known of its shard, since the start of the job."""

    workflow: str
    shard: int
    cause: str
    from_ns: int
    to_ns: int
    vus_missing: int
    arrivals_missing: int
    is_open: bool = False
    """Nothing has taken its place yet."""


class LogLine(msgspec.Struct, frozen=True):
    """A line that the test printed on a worker."""

    number: int
    """Grows by one with each line that the manager has heard of; a new manager that leads the job starts over."""
    worker: str
    text: str


class JobUpdate(msgspec.Struct, frozen=True):
    """How a job stands now. Counts are cumulative, so the latest update replaces those before it, but for windows.

    A window is first among the recent ones, as long as workers may still add to it, and then once among `windows`.
    """

    job: JobFacts
    sequence: int = 0
    """Grows within one watch; a new manager that leads the job may start over."""
    elapsed_ns: int = 0
    origin: bool = False
    """The load has begun."""
    workflows: list[WorkflowUpdate] = []
    windows: list[Window] = []
    """Those that this watch has not been sent yet; the first update has all there are."""
    lost: list[LostPart] = []
    engine: str = ""
    final: bool = False
    """The job has ended and its result can be had: no update follows."""
    logs: list[LogLine] = []
    """What the test printed of late; a line may be in several updates. The first update has all that are kept."""
    recent: list[Window] = []
    """Of the last second, all that is known so far: they replace those of the update before. An update that leaves them
    out, as one without room for them, replaces nothing."""


def without_windows_up_to(index: int, update: JobUpdate) -> JobUpdate:
    """For somebody who has seen those before."""
    workflows = [
        msgspec.structs.replace(
            workflow, windows=_later(index, workflow.windows), recent=_later(index, workflow.recent)
        )
        for workflow in update.workflows
    ]
    return msgspec.structs.replace(
        update, workflows=workflows, windows=_later(index, update.windows), recent=_later(index, update.recent)
    )


def _later(index: int, windows: list[Window]) -> list[Window]:
    return [window for window in windows if window.index > index]


FIRST_MS: Final = -62_135_596_800_000
LAST_MS: Final = 253_402_300_799_999
"""Of the years 1 to 9999."""


def instant_text(realtime_ms: int) -> str:
    """Milliseconds since 1970 as RFC 3339 in UTC; empty for 0. Workers tell of instants: one before or after all years
    is the first or the last that there is, and keeps nobody from being told the rest."""
    if not realtime_ms:
        return ""
    seconds, milliseconds = divmod(min(max(realtime_ms, FIRST_MS), LAST_MS), 1000)
    # By seconds and a rest: a float cannot hold every millisecond.
    return f"{_second_text(seconds)}.{milliseconds:03d}Z"


@lru_cache(64)
def _second_text(seconds: int) -> str:
    """Kept, as most instants that are told are of now: it takes longer than all else that is told of a small job."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]
