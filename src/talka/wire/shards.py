"""The conversation between a job's owner and the cores that run its shards.

Owner: Arm, then Go, then an Ack for every report, Stop when it must end early. Core: Hello, then Armed or Refused,
then reports: any number of StepTotals and MetricTotals, and one Totals that closes them. Totals are cumulative, so the
latest wins; windows are sent until they are acknowledged. A core sends its next report when the last one was
acknowledged. A report may ask for more time; the owner answers with ShardAnswer, and says TimeOver before it ends what
has no time left.

A core process may run shards of several workflows: on its connection every message is in an envelope with the number of
its attempt, and an empty one ends that conversation: said by the owner, it is to be broken off; by the core, it is
over. Once a second the process says of itself that its event loop turns.

Decision: docs/decisions/0017-a-worker-is-a-core-to-its-manager.md.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from talka.stats.tally import MetricTally, StepTally, Tally
from talka.stats.windows import Window
from talka.wire.channels import BadMessage, Channel, Codec, Message
from talka.work.deadlines import REASON_LIMIT, Allowance
from talka.work.load import Shard

PROTOCOL: Final = 1
VALUE_LIMIT_BYTES: Final = 256 * 1024
"""The most a `Provide` may hand on, encoded: it must fit a frame together with others."""
CONTEXT_PREFIX: Final = "self.context/"
"""Before keys of `self.context` that are handed on to dependents, among what a workflow provides: no method has such a
name."""
RECEIVED_LIMIT_BYTES: Final = 3 * VALUE_LIMIT_BYTES
"""The most a workflow may receive from all others together, for the same reason."""
HEADERS_LIMIT: Final = 100
BODY_LIMIT_BYTES: Final = 512 * 1024
"""Of the request of a URL without a file: it travels in the frame that arms a core."""
ATTEMPT_BYTES: Final = 8
THE_PROCESS: Final = (1 << 8 * ATTEMPT_BYTES) - 1
"""Stands where the number of an attempt does, where a process speaks of itself: no attempt has it."""
TURNED: Final = b"turned"
"""What it says then: its event loop turns."""
WINDOWS_PER_REPORT: Final = 40
"""Forty of the widest windows there can be fit a frame."""


class FileSource(msgspec.Struct, frozen=True, tag="file"):
    """A Python file the core imports itself."""

    path: str


class UrlRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is asked of a URL that is tested without a file. A plain GET by default."""

    method: Annotated[str, msgspec.Meta(max_length=16)] = "GET"
    headers: Annotated[dict[str, str], msgspec.Meta(max_length=HEADERS_LIMIT)] = {}
    body: Annotated[bytes, msgspec.Meta(max_length=BODY_LIMIT_BYTES)] | None = None
    verify: bool = True
    """TLS: whether the server's certificate is checked."""
    timeout_ns: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The longest a request may take; 0: the client's own limit."""


PLAIN_GET: Final = UrlRequest()


def digest_of_url(url: str, request: UrlRequest = PLAIN_GET) -> str:
    """What stands for the digest of a bundle where there is none: it is signed, so nobody can change the request."""
    rest = b"" if request == PLAIN_GET else b"\n" + msgspec.msgpack.encode(request, order="sorted")
    return sha256(url.encode() + rest).hexdigest()


class UrlSource(msgspec.Struct, frozen=True, tag="url", omit_defaults=True):
    """One request of one URL, with no file."""

    url: str
    request: UrlRequest = PLAIN_GET


class MemorySource(msgspec.Struct, frozen=True, tag="memory"):
    """Classes that live only in the owner's process, such as a notebook's: run by a thread of that process."""

    key: str


class BundleSource(msgspec.Struct, frozen=True, tag="bundle"):
    """A bundle on this machine's disk. The core unpacks it into a folder of its own and imports the file from there."""

    path: str
    digest: str
    file: str
    """Inside the bundle."""
    folder: str
    """Where the core may unpack it; whoever started the core removes it."""
    env: dict[str, str] = {}


Source: TypeAlias = FileSource | UrlSource | MemorySource | BundleSource


class Settings(msgspec.Struct, frozen=True):
    """What holds for every shard of a job."""

    grace_ns: int
    engine: str = "python"
    """auto, native or python."""
    seed: int | None = None
    report_every_ns: int = 200_000_000
    silence_ns: int = 0
    """Not heeded any more: cores of a worker are told their end with each renewal of its lease."""


class Arm(Message, frozen=True, tag=1):
    """Prepare everything, send nothing yet."""

    job: str
    source: Source
    workflow: str
    shard: Shard
    iterations_done: int
    """Iterations an earlier attempt is known to have started; they are not run again."""
    values: dict[str, dict[str, bytes]]
    """What workflows before this one provided: workflow to key to encoded value."""
    settings: Settings
    protocol: int = PROTOCOL


class Go(Message, frozen=True, tag=2):
    """Start at `start_at_ns`. Instants are of this machine's monotonic clock."""

    start_at_ns: int
    origin_ns: int
    """The instant at which the workflow's plan began; before `start_at_ns` when an earlier attempt was lost."""
    job_origin_ns: int
    """Zero of windows and samples."""


class Stop(Message, frozen=True, tag=3):
    """Start nothing new, wait for what is under way up to the grace period, report, end."""

    at_once: bool = False
    """Wait for nothing: what is under way counts as interrupted."""


class Ack(Message, frozen=True, tag=4):
    sequence: int


class ShardAnswer(Message, frozen=True, tag=5):
    """Answers a `TimeAsked`."""

    number: int
    """That of the ask."""
    answer: Allowance


class TimeOver(Message, frozen=True, tag=6):
    """The workflow's time is over: save what is to be kept. Said again, it means the same warning."""

    grace_ns: int
    """How long there is for it."""


class Hello(Message, frozen=True, tag=11):
    pid: int
    python: str
    engine: str
    """Empty: that is known once it is armed."""
    protocol: int = PROTOCOL


class Armed(Message, frozen=True, tag=12):
    engine: str = ""
    """What it runs on, as of `engines_of`."""


class Refused(Message, frozen=True, tag=13):
    """The shard cannot run: `file` and `setup` are the user's to mend, `unreachable` is the world's."""

    reason: Literal["file", "setup", "unreachable"]
    text: str


class Gap(msgspec.Struct, frozen=True, array_like=True):
    """A core of a task died: from when to when nothing is known of it, since the start of the job."""

    shard: int
    cause: str
    from_ns: int
    to_ns: int
    vus_missing: int
    arrivals_missing: int


class StepTotals(Message, frozen=True, tag=14):
    """Everything counted for one step so far. One frame a step: a histogram may fill a quarter of a frame."""

    sequence: int
    name: str
    tally: StepTally
    measured: bool
    call: str | None = None
    """The name of calls that `name` made, when it is they that were counted."""


class MetricTotals(Message, frozen=True, tag=16):
    """Everything counted for one metric so far. One frame a metric, for the same reason."""

    sequence: int
    name: str
    tally: MetricTally


class TimeAsked(msgspec.Struct, frozen=True, array_like=True):
    """The users' code asks for more time. In every report until it is answered."""

    number: Annotated[int, msgspec.Meta(ge=1)]
    """Grows with each ask of the attempt."""
    estimate_ns: Annotated[int, msgspec.Meta(ge=0)]
    """How much longer it thinks to take."""
    reason: Annotated[str, msgspec.Meta(max_length=REASON_LIMIT)] = ""


class Totals(Message, frozen=True, tag=15):
    """Everything else counted so far; closes the report `sequence`. Its windows are at most `WINDOWS_PER_REPORT`."""

    sequence: int
    tally: Tally
    windows: list[Window]
    vus: int
    started_at_ns: int
    """When this attempt really started; 0 before it did."""
    final: bool = False
    provided: dict[str, bytes] = {}
    """What it hands on. Before the end it is what it has saved after a warning."""
    failure: str | None = None
    """Why the shard ended early, when the user's code is the reason."""
    ended_at_ns: int = 0
    notes: list[str] = []
    """What a reader of the result should know, though nothing failed."""
    shares: tuple[int, ...] = ()
    """Of a task of several shards: iterations started by each."""
    spread_ns: int = 0
    """Of a task of several shards: by how much the last core began later than the first."""
    gaps: tuple[Gap, ...] = ()
    """Of a task of several shards: cores that died and were replaced."""
    parts: int = 0
    """How many of the other messages belong to this report; 0: none is missing, for they come on one connection."""
    age_ns: int = 0
    """Of a task: how long ago its core that was silent longest told these counts."""
    made_at_ns: int = 0
    """When these counts were taken, by the clock of the machine that took them; of a task, those of its core that was
    silent longest. 0: not told. When a report is read says nothing of when the load ran."""
    ended: tuple[int, ...] = ()
    """Of a task of several shards: places in it, from 0, of those that have ended. Nothing runs on their cores."""
    asked: TimeAsked | None = None


class UnreadStep(Message, frozen=True, tag=17):
    """A `StepTotals` from a worker to its manager, which does not look at the tally yet: most are overtaken by the next
    before anybody needs to. As bytes it is not walked through to find its end, which was a fifth of a manager's
    time."""

    sequence: int
    name: str
    tally: bytes
    measured: bool
    call: str | None = None


class UnreadMetric(Message, frozen=True, tag=18):
    """Likewise a `MetricTotals`."""

    sequence: int
    name: str
    tally: bytes


ToCore: TypeAlias = Arm | Go | Stop | Ack | ShardAnswer | TimeOver
FromCore: TypeAlias = Hello | Armed | Refused | StepTotals | MetricTotals | Totals

Unread: TypeAlias = Hello | Armed | Refused | UnreadStep | UnreadMetric | Totals


TO_CORE: Final[Channel[ToCore]] = Channel(0, "to core", ToCore, "the owner sent a malformed message")
FROM_CORE: Final[Channel[FromCore]] = Channel(0, "from core", FromCore, "a core sent a malformed message")
UNREAD: Final[Channel[Unread]] = Channel(0, "from worker", Unread, "a worker sent a malformed message")
"""What `encode_unread` made."""
STEPS: Final[Codec[StepTally]] = Codec(StepTally, "a worker sent a malformed tally of a step")
METRICS: Final[Codec[MetricTally]] = Codec(MetricTally, "a worker sent a malformed tally of a metric")

encode: Callable[[ToCore | FromCore | Unread], bytes] = msgspec.msgpack.Encoder().encode
decode_to_core, decode_from_core, decode_unread = TO_CORE.decode, FROM_CORE.decode, UNREAD.decode
read_step, read_metric = STEPS.decode, METRICS.decode


def enveloped(attempt: int, content: bytes = b"") -> bytes:
    return attempt.to_bytes(ATTEMPT_BYTES, "big") + content


def opened(frame: bytes) -> tuple[int, bytes]:
    """The attempt that is spoken of or speaks, and what is said."""
    if len(frame) < ATTEMPT_BYTES:
        raise BadMessage(f"a frame of {len(frame)} bytes names no attempt: its number alone has {ATTEMPT_BYTES}")
    return int.from_bytes(frame[:ATTEMPT_BYTES], "big"), frame[ATTEMPT_BYTES:]


def engines_of(*told: str) -> str:
    """What all of these say: engines, each with its driver behind a stroke where it has one, such as `native/direct`.

    Cores of one job may run on several, for the machines and the workflows differ.
    """
    return ", ".join(sorted({word for text in told for word in text.split(", ") if word}))


def encode_unread(message: FromCore) -> bytes:
    """From a worker to its manager."""
    match message:
        case StepTotals(sequence, name, step, measured, call):
            return encode(UnreadStep(sequence, name, STEPS.encode(step), measured, call))
        case MetricTotals(sequence, name, metric):
            return encode(UnreadMetric(sequence, name, METRICS.encode(metric)))
        case _:
            return encode(message)
