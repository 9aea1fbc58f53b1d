"""The conversation between a job's owner and the cores that run its shards.

Owner: Arm, then Go, then an Ack for every report, Stop when it must end early. Core: Hello, then Armed or Refused,
then reports: any number of StepTotals and MetricTotals, and one Totals that closes them. Totals are cumulative, so the latest wins;
windows are sent until they are acknowledged. A core sends its next report when the last one was acknowledged.
"""

from typing import Final, Literal, TypeAlias

import msgspec

from talka.errors import Invalid, Untrusted
from talka.stats.tally import MetricTally, StepTally, Tally
from talka.stats.windows import Window
from talka.work.load import Shard

PROTOCOL: Final = 1
VALUE_LIMIT_BYTES: Final = 256 * 1024
"""The most a `Provide` may hand on, encoded: it must fit a frame together with others."""
RECEIVED_LIMIT_BYTES: Final = 3 * VALUE_LIMIT_BYTES
"""The most a workflow may receive from all others together, for the same reason."""
WINDOWS_PER_REPORT: Final = 40
"""Forty of the widest windows there can be fit a frame."""


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Numbers are never reused; new fields go last and have a default."""


class FileSource(msgspec.Struct, frozen=True, tag="file"):
    """A Python file the core imports itself."""

    path: str


class UrlSource(msgspec.Struct, frozen=True, tag="url"):
    """One GET of one URL, with no file."""

    url: str


class MemorySource(msgspec.Struct, frozen=True, tag="memory"):
    """Classes that live only in the owner's process, such as a notebook's: run by a thread of that process."""

    key: str


Source: TypeAlias = FileSource | UrlSource | MemorySource


class Settings(msgspec.Struct, frozen=True):
    """What holds for every shard of a job."""

    grace_ns: int
    engine: str = "python"
    seed: int | None = None
    report_every_ns: int = 200_000_000


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


class Ack(Message, frozen=True, tag=4):
    sequence: int


class Hello(Message, frozen=True, tag=11):
    pid: int
    python: str
    engine: str
    protocol: int = PROTOCOL


class Armed(Message, frozen=True, tag=12):
    pass


class Refused(Message, frozen=True, tag=13):
    """The shard cannot run: `file` and `setup` are the user's to mend, `unreachable` is the world's."""

    reason: Literal["file", "setup", "unreachable"]
    text: str


class StepTotals(Message, frozen=True, tag=14):
    """Everything counted for one step so far. One frame a step: a histogram may fill a quarter of a frame."""

    sequence: int
    name: str
    tally: StepTally
    measured: bool


class MetricTotals(Message, frozen=True, tag=16):
    """Everything counted for one metric so far. One frame a metric, for the same reason."""

    sequence: int
    name: str
    tally: MetricTally


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
    failure: str | None = None
    """Why the shard ended early, when the user's code is the reason."""
    ended_at_ns: int = 0
    notes: list[str] = []
    """What a reader of the result should know, though nothing failed."""


ToCore: TypeAlias = Arm | Go | Stop | Ack
FromCore: TypeAlias = Hello | Armed | Refused | StepTotals | MetricTotals | Totals

_encoder = msgspec.msgpack.Encoder()
_to_core: msgspec.msgpack.Decoder[ToCore] = msgspec.msgpack.Decoder(ToCore)
_from_core: msgspec.msgpack.Decoder[FromCore] = msgspec.msgpack.Decoder(FromCore)
# Beside its own errors the decoder lets through those of text, of nesting and of the values' own checks.
_NO_MESSAGE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, Invalid)


class BadMessage(Untrusted):
    """Bytes that are no message of this conversation."""


def encode(message: ToCore | FromCore) -> bytes:
    return _encoder.encode(message)


def decode_to_core(content: bytes) -> ToCore:
    try:
        return _to_core.decode(content)
    except _NO_MESSAGE as error:
        raise BadMessage(f"the owner sent what is no message of ours: {error}") from None


def decode_from_core(content: bytes) -> FromCore:
    try:
        return _from_core.decode(content)
    except _NO_MESSAGE as error:
        raise BadMessage(f"a core sent what is no message of ours: {error}") from None
