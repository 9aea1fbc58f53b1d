"""What core processes of simulated workers really ran: cores write it, checkers compare it with what is told."""

from talka.stats.windows import Window
from talka.testing.host import Host
from talka.testing.journeys import JourneyCounts, Journeys, Manner
from talka.testing.line import CallLine
from talka.wire.shards import Arm, Go


class CoreProcess:
    """A core process of a host. While its event loop is blocked its shards wait, and what they are told does too."""

    def __init__(self, host: Host, number: int, line: CallLine) -> None:
        self.host = host
        self.boot = host.boot
        self.number = number
        self.line = line
        """To its worker: what is said on one connection is heard in its order."""
        self.runs: dict[int, CoreRun] = {}
        """Those in it that live."""
        self.blocked_at = 0
        self.blocked_until = 0
        """True time, as `blocked_at`."""
        self.is_turning = False
        """It has said so once."""
        self.is_computing = False
        """Meanwhile; else it waits."""

    def cpu_ns(self, now: int) -> int:
        """Processor time that it has used since its loop was blocked."""
        return now - self.blocked_at if self.is_computing else 0


class CoreRun:
    """One shard in a core process."""

    def __init__(self, host: Host, number: int, attempt: int, arm: Arm, process: CoreProcess) -> None:
        self.host = host
        self.process = process
        """Shards of several workflows may run in one."""
        self.boot = host.boot
        self.number = number
        """Its worker's, as in its `StartCore`."""
        self.attempt = attempt
        """Its manager's number of the attempt that it is a part of."""
        self.arm = arm
        self.go: Go | None = None
        self.is_alive = True
        self.is_stopping = False
        self.final = ""
        """How it ended: `plan`, `stop`, `killed`, `died`, `crash`; empty while it lives."""
        self.began_at = 0
        """True time; `ended_at` likewise. 0: not yet."""
        self.ended_at = 0
        self.last_ns = 0
        """Local time up to which iterations are counted."""
        self.rest_ns = 0
        self.manner = Manner.of(arm.settings.seed)
        self.journeys = Journeys()
        self.is_over = False
        """Its plan is."""
        self.stopped_ns = 0
        """Local time from which on it starts nothing new. 0: not yet."""
        self.reported = JourneyCounts()
        self.known = JourneyCounts()
        """What its worker has acknowledged."""
        self.most_under_way = 0
        """Iterations in any of its reports that had neither ended nor been cut."""
        self.sent: dict[tuple[str, str | None], int] = {}
        """Rows as they were told last."""
        self.sequence = 0
        self.acknowledged = 0
        self.windows: list[Window] = []
        self.asks = 0
        """Number of its latest ask for more time."""
        self.is_asking = False
        """It waits for the answer to that."""
        self.given_ns: list[int] = []
        """More time that it was told it has, in order."""
        self.warned_at: list[int] = []
        """True time of each warning that its time is over."""

    @property
    def shard(self) -> tuple[str, str, int, int]:
        return (self.arm.job, self.arm.workflow, self.arm.shard.index, self.arm.shard.of)

    @property
    def started(self) -> int:
        return self.journeys.started

    @property
    def has_ended_well(self) -> bool:
        """It said its last word, and its worker heard it."""
        return not self.is_alive and self.final in ("plan", "stop")

    @property
    def is_working(self) -> bool:
        """Whether it may start iterations at this instant."""
        is_able = self.is_alive and self.began_at > 0 and not self.is_stopping and self.host.is_running
        return is_able and self.host._world.now >= self.process.blocked_until


class Ledger:
    """What really ran: every core there ever was, by job."""

    def __init__(self) -> None:
        self.cores: dict[str, list[CoreRun]] = {}
        self.working: dict[tuple[str, str, int, int], list[CoreRun]] = {}
        """Cores of each shard that live."""

    def add(self, run: CoreRun) -> None:
        self.cores.setdefault(run.arm.job, []).append(run)
        self.working.setdefault(run.shard, []).append(run)

    def gone(self, run: CoreRun) -> None:
        self.working[run.shard].remove(run)

    def started(self, job: str, workflow: str) -> int:
        """Iterations that all cores together have started."""
        return sum(run.started for run in self.cores.get(job, ()) if run.arm.workflow == workflow)

    def started_by(self, job: str, attempt: int, boot: int | None = None) -> int:
        return sum(
            run.started
            for run in self.cores.get(job, ())
            if run.attempt == attempt and (boot is None or run.boot == boot)
        )

    def alive(self, job: str) -> list[CoreRun]:
        return [run for run in self.cores.get(job, ()) if run.is_alive]
