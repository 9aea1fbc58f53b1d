"""The result document, schema `talka.result/1`: what `--json` writes and every other report is made from.

Its fields are promised: later versions add some and change none. `report/building.py` makes it.
"""

from typing import Final

import msgspec

from talka.errors import Invalid
from talka.stats.machine import Machine
from talka.work.failures import Failures, worse

SCHEMA: Final = "talka.result/1"
MEASURES: Final = 2
"""Every call has a name and a row, and a step's response time is that of all its calls. Before, 1, it was that of the
response it returned."""


class BadResult(Invalid):
    """A file that is not a result document we can read."""


class Job(msgspec.Struct, frozen=True):
    id: str
    name: str
    file: str | None


class Totals(msgspec.Struct, frozen=True):
    """Every exchange, by what became of it: requests = ok + failed + interrupted."""

    requests: int
    ok: int
    failed: int
    interrupted: int
    not_sent: int
    rate_per_s: float
    bytes_sent: int
    bytes_received: int
    iterations: int
    dropped_iterations: int
    connections: int
    reconnects: int
    interrupted_iterations: int = 0
    """Iterations that began and were cut off before their end."""


class Times(msgspec.Struct, frozen=True):
    """Milliseconds."""

    min: float
    mean: float
    stdev: float
    p50: float
    p90: float
    p95: float
    p99: float
    p99_9: float
    max: float


class ErrorSample(msgspec.Struct, frozen=True):
    t_s: float
    kind: str
    text: str


class Call(msgspec.Struct, frozen=True):
    """Calls of one name in one method, each from the instant its user wanted it."""

    name: str
    count: int
    ok: int
    failed: int
    interrupted: int
    rate_per_s: float
    response_time_ms: Times | None
    service_time_ms: Times | None
    status_codes: dict[str, int]
    errors: dict[str, int]
    samples: list[ErrorSample]
    histogram: str | None
    service_histogram: str | None
    outcomes: dict[str, int] = {}
    """Answers of protocols other than HTTP, by label. Those in `status_codes` are not among them."""


class Step(msgspec.Struct, frozen=True):
    """Runs of one method. Service times, status codes and outcomes are those of all its calls."""

    name: str
    measured: bool
    count: int
    ok: int
    failed: int
    interrupted: int
    rate_per_s: float
    response_time_ms: Times | None
    service_time_ms: Times | None
    status_codes: dict[str, int]
    errors: dict[str, int]
    samples: list[ErrorSample]
    histogram: str | None
    """Response times in microseconds, HdrHistogram V2, compressed, base64."""
    service_histogram: str | None
    tags: dict[str, str]
    skipped: int = 0
    """Runs that did nothing, on purpose or because what they wait for gave nothing: in no other count."""
    calls: list[Call] = []
    """By name, where they have others than the method's own, or where there were or failed more of them than runs."""
    outcomes: dict[str, int] = {}
    """As those of a call."""


class Check(msgspec.Struct, frozen=True):
    name: str
    passed: int
    failed: int
    samples: list[ErrorSample]


class Metric(msgspec.Struct, frozen=True):
    name: str
    kind: str
    values: int
    total: float
    rate_per_s: float
    min: float | None
    mean: float | None
    max: float | None
    percentiles: dict[str, float] | None


class StepRow(msgspec.Struct, frozen=True):
    """What became of one step in one stretch of time."""

    step: str
    t_s: float
    width_s: float
    count: int
    failed: int
    errors: dict[str, int] = {}
    """Failures by kind."""
    p50_ms: float | None = None
    """Response times of the stretch; None where nothing was measured."""
    p95_ms: float | None = None
    p99_ms: float | None = None


class MoreTimeGiven(msgspec.Struct, frozen=True):
    """A workflow was late, and got more time."""

    at_s: float
    """Since its plan began."""
    given_s: float
    reason: str
    """Empty: it did not ask, but it advanced."""
    estimate_s: float
    """How much longer it thought to take; 0: it did not say."""


class Workflow(msgspec.Struct, frozen=True):
    name: str
    status: str
    model: str
    load: str
    vus: int
    cores: int
    duration_s: float
    iterations: int
    dropped_iterations: int
    failure: str | None
    steps: list[Step]
    checks: list[Check]
    metrics: list[Metric]
    implied_vus: float = 0.0
    """How many users the numbers imply: iterations per second, times seconds per iteration. Close to `mean_vus` when
    users spend their time in measured steps; far above it, steps of a layer overlap; far below, they do something
    else."""
    mean_vus: float | None = None
    """How many there were on average (closed model)."""
    timeline: list[StepRow] = []
    """By step and stretch of time; empty in results that have none."""
    interrupted_iterations: int = 0
    busy_vus: float | None = None
    """How many users were in an iteration on average, pauses inside steps included; None: it was not measured."""
    shares_cores_with: list[str] = []
    """Workflows with shards on one of its cores at the same time: there were fewer cores than workflows."""
    more_time: list[MoreTimeGiven] = []
    """Each time that it was given more time than its timeout."""
    was_warned: bool = False
    """Its time was over: it was told to save what it had."""


class Threshold(msgspec.Struct, frozen=True):
    rule: str
    value: float | None
    passed: bool
    workflow: str | None
    shown: str


class TimelineRow(msgspec.Struct, frozen=True):
    t_s: float
    width_s: float
    iterations_started: int
    requests: int
    failed: int
    vus: int
    response_p50_ms: float | None
    response_p99_ms: float | None
    response_p95_ms: float | None = None
    errors: dict[str, int] = {}
    """Failures by kind, in results that tell them by time."""


class Lost(msgspec.Struct, frozen=True):
    workflow: str
    shard: int
    cause: str
    from_s: float
    to_s: float
    vus_missing: int
    arrivals_missing: int


class CoreHealth(msgspec.Struct, frozen=True):
    workflow: str
    shard: int
    attempt: int
    cpu: float
    start_lag_p99_ms: float | None
    loop_lag_p99_ms: float | None
    max_rss_bytes: int
    process: str = ""
    """CPU, loop lag and memory are of the whole process: rows that name the same one tell the same. Its number, after
    that of its worker on a cluster; empty where a row is of several."""


class Generator(msgspec.Struct, frozen=True):
    """How well the generator kept up. `cpu` is the busiest core's share of one CPU."""

    engine: str
    """native or python; both where cores differed."""
    version: str
    cpu: float
    start_lag_ms: Times | None
    loop_lag_ms: Times | None
    saturated: bool
    cores: list[CoreHealth]
    ui_cpu: float = 0.0
    """The share of one CPU that drawing the live view took."""
    driver: str = ""
    """What ran the users on the native engine: direct, task, or both, as workflows differ."""
    verdict: str = ""
    """on time, saturated or disturbed; empty in results that do not tell them apart."""
    machine: Machine | None = None
    """What else went on; None where nobody looked."""

    @property
    def engine_text(self) -> str:
        return (self.engine or "unknown") + (f" ({self.driver})" if self.driver else "")


class ResultDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a load job: what `talka run --json` writes. docs/result.md has every field of its parts."""

    schema: str = SCHEMA
    """`talka.result/1`."""
    job: Job
    """Id, name and file of the job."""
    status: str
    """completed, partial, failed, cancelled or timeout."""
    exit_code: int
    """As `talka help exit-codes` lists them."""
    reasons: list[str]
    """Why the exit code is not 0, in sentences."""
    started_at: str
    """UTC."""
    duration_s: float
    """Seconds from the first start to the last answer."""
    totals: Totals
    """Counts of all exchanges."""
    workflows: list[Workflow]
    """Steps, checks and metrics, by workflow."""
    thresholds: list[Threshold]
    """Every rule, its value and whether it held."""
    timeline: list[TimelineRow]
    """What happened when, in the whole job."""
    lost_shards: list[Lost]
    """Gaps: what was lost, when and why."""
    datacenters: list[str]
    """Where it ran; empty for a local run."""
    start_skew_ms: float
    """Milliseconds between the first and the last core's start of a workflow."""
    generator: Generator
    """Whether the machines that made the load kept up."""
    warnings: list[str]
    """Sentences about the run."""
    measures: int = 1
    """By which rules response times and failures were counted. Results of different rules cannot be compared."""

    def to_json(self) -> bytes:
        """The document as indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)


def failures_of(document: ResultDocument) -> Failures:
    """The share of all that failed, as rules mean it."""
    steps = [step for workflow in document.workflows for step in workflow.steps if step.measured]
    failed = sum(step.failed for step in steps)
    not_ok = document.totals.failed + document.totals.not_sent
    return worse(
        Failures("request", not_ok, not_ok + document.totals.ok),
        Failures("step", failed, failed + sum(step.ok for step in steps)),
    )


def read(content: bytes) -> ResultDocument:
    """A document written before, by this version or a later one: unknown fields are ignored."""
    try:
        document = msgspec.json.decode(content, type=ResultDocument)
    except msgspec.MsgspecError as error:
        raise BadResult(f"this is not a result of talka ({SCHEMA}): {error}") from None
    if document.schema != SCHEMA:
        raise BadResult(f"this is a document of schema {document.schema!r}: only {SCHEMA} can be read")
    return document
