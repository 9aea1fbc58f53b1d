"""An attempt as its worker holds it: what is to be told of its shards and when, and what they left behind.

See docs/decisions/0017-a-worker-is-a-core-to-its-manager.md and 0019-results-are-blobs-on-a-majority.md.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from talka.cluster.effects import Lane
from talka.control.load.log_lines import ShardLines
from talka.control.tasks.parts import in_parts
from talka.control.worker.core_pool import SeatKey, seats_of
from talka.control.worker.shards import ShardsStage, WorkerShards
from talka.units import MILLISECOND, NEVER, SECOND
from talka.wire.jobs import REPORT_LIMIT_BYTES, Assign, Finished, JobMessage, LogLines, Report, Running, TaskFacts
from talka.wire.shards import Armed, Refused, encode, encode_unread

BLUR_NS: Final = SECOND // 2
"""A manager that wants reports no more often has many workers, or much to do."""
REPEAT_NS: Final = SECOND
"""Between two tellings of what was not answered."""
FLUSH_NS: Final = 50 * MILLISECOND
"""Cores report at different instants: what comes within this goes out together."""
LINES_FLUSH_NS: Final = 100 * MILLISECOND
INTERVAL_LIMITS_MS: Final = (50, 1000)
REFUSAL_KEPT_NS: Final = 60 * SECOND

Saying = tuple[JobMessage, Lane]


class ShardReporter:
    """Milestones (armed, refused, finished) are told at once and again until they are answered; counts are told one
    report at a time, as often as the manager bears it."""

    def __init__(self, job: str, attempt: int, life: int, assign: Assign | None = None) -> None:
        """Without an order it is one of an earlier life, of which the result is left."""
        self.job = job
        self.attempt = attempt
        self.life = life
        """The life of the manager that drew the number: with it, the name of the attempt."""
        self.assign = assign
        self.shards: WorkerShards | None = None
        """While its cores run."""
        self.stage: ShardsStage = "arming"
        self.is_refused = False
        self.content = b""
        """The result, encoded; empty while there is none."""
        self.digest = ""
        self.expires_at = NEVER
        self._origins: tuple[int, int] | None = None
        """When its plan and its job began, once it was started."""
        self._milestone: Report | Finished | None = None
        self._milestone_at = NEVER
        self._interval_ns = FLUSH_NS
        self._has_news = False
        self._news_ns = 0
        self._reported_ns = -NEVER
        self._is_outstanding = False
        self.lines = ShardLines()
        self._lines_at = NEVER

    @property
    def seats(self) -> tuple[SeatKey, ...]:
        """Cores that it has or was promised, also where it shares them. Those of shards that have ended are free."""
        if self.assign is None or self.stage == "ended":
            return ()
        ended = () if self.shards is None else self.shards.ended
        return tuple(seat for place, seat in enumerate(seats_of(self.assign)) if place not in ended)

    @property
    def next_at(self) -> int:
        return min(self._milestone_at, self._report_at, self._lines_at)

    @property
    def _report_at(self) -> int:
        if self.shards is None or self.stage != "running":
            return NEVER
        if self._is_outstanding:
            return self._reported_ns + REPEAT_NS
        if not self._has_news:
            return NEVER
        return max(self._news_ns + FLUSH_NS, self._reported_ns + self._interval_ns)

    def running(self) -> Running:
        started = 0 if self.shards is None else self.shards.started
        return Running(self.job, self.attempt, len(self.seats), self.stage, started)

    def facts(self, now: int) -> TaskFacts:
        ages = (0, 0) if self._origins is None else (now - self._origins[0], now - self._origins[1])
        return TaskFacts(self.attempt, self.stage, *ages, self.digest, len(self.content), self.life)

    # What happens to it.

    def armed(self, now: int) -> None:
        self.stage = "armed"
        self._reach(now, Report(self.job, self.attempt, encode(Armed()), life=self.life))

    def started(self, shards: WorkerShards) -> None:
        self.stage = "running"
        self._origins = (shards.group.origin_ns, shards.job_origin_ns)

    def refuse(self, now: int, refused: Refused) -> None:
        self.stage, self.shards, self.is_refused = "ended", None, True
        self.expires_at = now + REFUSAL_KEPT_NS
        self._reach(now, Report(self.job, self.attempt, encode(refused), life=self.life))

    def keep(self, content: bytes) -> None:
        """Its result, which is to be put on disk; nothing else is needed of it."""
        self.stage, self.shards = "ended", None
        self.content, self.digest = content, sha256(content).hexdigest()
        self._milestone, self._milestone_at = None, NEVER
        if self.lines.has_news:
            self._lines_at = 0  # whoever follows the job is there only until it ends

    def kept(self, now: int) -> None:
        """The result is on disk."""
        self._reach(now, Finished(self.job, self.attempt, self.digest, len(self.content), self.life))

    def answered(self) -> None:
        """A command for it came. What has finished is told until it is accepted."""
        if isinstance(self._milestone, Report):
            self._milestone, self._milestone_at = None, NEVER

    def has_news(self, now: int) -> None:
        """A core has reported."""
        if not self._has_news:
            self._has_news, self._news_ns = True, now

    def printed(self, now: int, lines: Sequence[str]) -> None:
        """By one of its cores."""
        self.lines.add(lines)
        self._lines_at = min(self._lines_at, now + LINES_FLUSH_NS)

    def acknowledged(self, now: int, sequence: int, every_ms: int) -> None:
        least_ms, most_ms = INTERVAL_LIMITS_MS
        self._interval_ns = min(max(every_ms, least_ms), most_ms) * MILLISECOND
        shards = self.shards
        if shards is None or not shards.reports.acknowledged(sequence):
            return
        if sequence == shards.reports.sequence:
            self._is_outstanding = False
        if shards.reports.windows.has_more:
            self.has_news(now)

    def tell_again(self, now: int) -> None:
        """Say at once what it is now, as far as anybody waits for it."""
        if self.stage == "armed":
            self.armed(now)
        elif self._milestone is not None:
            self._milestone_at = now

    def reset(self, now: int) -> None:
        """A new manager leads its job: everything is told again, from the start."""
        self.tell_again(now)
        self._is_outstanding, self._has_news = False, self.stage == "running"
        self._news_ns = self._reported_ns = now - REPEAT_NS
        self._interval_ns = FLUSH_NS
        self.lines.reset()
        self._lines_at = now if self.lines.has_news else NEVER
        if self.shards is not None:
            self.shards.reports.reset()

    def sayings(self, now: int) -> list[Saying]:
        said: list[Saying] = []
        if now >= self._lines_at:
            said.append((LogLines(self.job, self.attempt, *self.lines.take()), Lane.STATISTICS))
            self._lines_at = now + LINES_FLUSH_NS if self.lines.has_news else NEVER
        if self._milestone is not None and now >= self._milestone_at:
            self._milestone_at = now + REPEAT_NS
            said.append((self._milestone, Lane.RESULTS))
        if self.shards is not None and now >= self._report_at:
            self._has_news, self._is_outstanding, self._reported_ns = False, True, now
            told = self.shards.report(now, blurred=self._interval_ns >= BLUR_NS)
            for parts in in_parts([encode_unread(message) for message in told], len, REPORT_LIMIT_BYTES):
                said.append((Report(self.job, self.attempt, parts[0], tuple(parts[1:]), self.life), Lane.STATISTICS))
        return said

    def _reach(self, now: int, milestone: Report | Finished) -> None:
        self._milestone, self._milestone_at = milestone, now
