"""How late a window is to who watches a job on a cluster: from the core that counted it to the update that shows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from talka.cluster.effects import Lane, Send
from talka.control.clients.shedding import REPORT_LEAST_MS
from talka.control.jobs.led_job import LedJob
from talka.control.jobs.watching import Audience
from talka.control.load.core_effects import StartCore
from talka.control.load.log_lines import JobLines
from talka.control.worker.core_pool import CorePool
from talka.control.worker.reporter import ShardReporter
from talka.control.worker.shards import WorkerShards
from talka.stats.tally import Tally
from talka.stats.windows import WINDOW_NS, StepWindow, Window
from talka.units import MILLISECOND, SECOND
from talka.wire.jobs import Assign, Report, Start, ViewUpdate, WatchJob
from talka.wire.orders import BundleFacts
from talka.wire.shards import Armed, FileSource, Settings, Totals, decode_from_core
from talka.wire.views import JobFacts, JobUpdate
from talka.work.lifecycle import JobState
from talka.work.shapes import ConstantRate

if TYPE_CHECKING:
    from tests.control.conftest import Driven

JobOf = Callable[..., "Driven"]
SHAPE = ConstantRate(100, "1m", max_vus=2)
LATEST_NS = 300 * MILLISECOND
HOP_NS = 10 * MILLISECOND
"""Of a message from one machine to another."""
FACTS = JobFacts("job", "shop", JobState.RUNNING, owner="m2")


class Led:
    """As much of a job that is led as is told of it."""

    def __init__(self, driven: Driven) -> None:
        self.name, self.job, self.lines = "job", driven.job, JobLines()

    def is_caught_up(self) -> bool:
        return True

    def facts(self) -> JobFacts:
        return FACTS


class Chain:
    """Two cores on one worker, the manager that leads the job, and the one through which it is watched."""

    def __init__(self, driven: Driven, watched_after_ns: int) -> None:
        self.driven = driven
        driven.run()
        self.origin_ns = driven.job.origin_ns
        self.worker = self.working()
        self.audience = Audience()
        self.watched_ns = self.origin_ns + watched_after_ns
        self.under_way: list[tuple[int, Report | ViewUpdate | int]] = []
        self.seen: dict[int, int] = {}
        """By window: when all that both cores did in it was shown."""

    def working(self) -> ShardReporter:
        assign = Assign(
            "job",
            (0, 1, 1),
            1,
            "Shop",
            SHAPE.plan(),
            0,
            2,
            2,
            (0, 0),
            {},
            Settings(SECOND),
            BundleFacts("0" * 64, 1, b"", "shop.py"),
        )
        task = WorkerShards(assign, FileSource("shop.py"), CorePool(2), worker="w1")
        self.cores = [effect.attempt for effect in task.start(self.origin_ns) if isinstance(effect, StartCore)]
        for core in self.cores:
            task.on_message(self.origin_ns, core, Armed())
        held = ShardReporter("job", 1, assign.life, assign)
        held.shards = task
        task.go(self.origin_ns, Start("job", (0, 1, 1), 1, self.origin_ns, self.origin_ns, self.origin_ns))
        held.started(task)
        return held

    def run(self, seconds: int) -> None:
        """Cores report the windows of 200 ms, one at even ends of windows and one at odd ones."""
        sequences: dict[int, int] = defaultdict(int)
        told: dict[int, int] = defaultdict(int)
        for now in range(self.origin_ns, self.origin_ns + seconds * SECOND, MILLISECOND):
            self.driven.now = now
            passed, rest = divmod(now - self.origin_ns, WINDOW_NS)
            for core in self.cores:
                if rest == 0 and passed and (passed + core) % 2 == 0:
                    sequences[core] += 1
                    windows = [Window(at, requests=1, steps={"buy": StepWindow(1)}) for at in range(told[core], passed)]
                    assert self.worker.shards is not None
                    self.worker.shards.on_message(
                        now, core, Totals(sequences[core], Tally(), windows, 1, self.origin_ns)
                    )
                    self.worker.has_news(now)
                    told[core] = passed
            for message, _ in self.worker.sayings(now) if self.worker.next_at <= now else ():
                assert isinstance(message, Report)
                self.under_way.append((now + HOP_NS, message))
            if now == self.watched_ns:
                self.audience.on_watch(now, "m1", WatchJob("job", 70, -1, True))
            for effect in self.audience.tick(now, {"job": cast(LedJob, Led(self.driven))}):
                assert (
                    isinstance(effect, Send)
                    and isinstance(effect.message, ViewUpdate)
                    and effect.lane is Lane.STATISTICS
                )
                self.under_way.append((now + HOP_NS, effect.message))
            self.arrive(now)

    def arrive(self, now: int) -> None:
        arrived = [message for at, message in self.under_way if at <= now]
        self.under_way = [(at, message) for at, message in self.under_way if at > now]
        for message in arrived:
            match message:
                case Report():
                    for content in message.contents:
                        said = decode_from_core(content)
                        self.driven.say(1, said)
                        if isinstance(said, Totals):
                            self.under_way.append((now + HOP_NS, said.sequence))
                case ViewUpdate():
                    self.show(now, msgspec.msgpack.decode(message.content, type=JobUpdate))
                case sequence:
                    self.worker.acknowledged(now, sequence, REPORT_LEAST_MS)

    def show(self, now: int, update: JobUpdate) -> None:
        (workflow,) = update.workflows
        known = {window.index: window.requests for window in (*update.windows, *update.recent)}
        for window in (*workflow.windows, *workflow.recent):
            assert window.requests == known[window.index], "the job and its workflow tell the same"
            if window.steps["buy"].count == 2:
                self.seen.setdefault(window.index, now - self.origin_ns)


@pytest.mark.parametrize("after_ms", [0, 30, 60, 90])
def test_a_window_is_told_by_step_within_300_ms_of_its_end(job_of: JobOf, after_ms: int) -> None:
    driven = job_of({"Shop": {"shape": SHAPE}}, places={"w1": 2})
    chain = Chain(driven, after_ms * MILLISECOND)

    chain.run(4)

    assert list(chain.seen) == list(range(len(chain.seen))) and len(chain.seen) >= 36
    lateness_ns = [seen_ns - (index + 1) * WINDOW_NS for index, seen_ns in chain.seen.items()]
    assert max(lateness_ns) <= LATEST_NS
