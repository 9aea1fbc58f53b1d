"""One shard of a workflow in a core process, from Arm to its last report. The process: `engine/load/core_process.py`.

Decision: docs/decisions/0003-shards-and-lost-cores.md.
"""

import asyncio
import os
import platform
import resource
from typing import TYPE_CHECKING, Literal

import msgspec

from talka.clock import cpu_ns, monotonic_ns
from talka.engine.calls import ExchangeFailed
from talka.engine.load.executor import Executor
from talka.engine.load.machine import MachineReading, machine_between, reading
from talka.engine.load.recorder import Recorder
from talka.engine.load.shard_runtime import SetupFailed, ShardRuntime
from talka.engine.unpack import BundleUnavailable, as_in_bundle
from talka.engine.waits import within
from talka.errors import Invalid, Untrusted, sendable
from talka.stats.tally import StepTally
from talka.stats.windows import COUNTERS_PER_REPORT, WINDOW_NS, Window
from talka.units import SECOND
from talka.wire.shards import (
    WINDOWS_PER_REPORT,
    Ack,
    Arm,
    Armed,
    Go,
    Hello,
    MetricTotals,
    Refused,
    ShardAnswer,
    Source,
    StepTotals,
    Stop,
    TimeOver,
    ToCore,
    Totals,
)

if TYPE_CHECKING:
    from talka.engine.load.core_process import OwnLine

LAST_ACK_WAIT_S = 5
REFUSAL_CHARACTERS_LIMIT = 20_000


class OwnerGone(Exception):
    """The socket to the owner is closed: nobody wants the results any more."""


class OutOfTurn(Untrusted):
    """The owner speaks the language and does not follow the conversation."""


class CoreRefusal(Exception):
    """The shard cannot run; carries the message that says why."""

    def __init__(self, message: Refused) -> None:
        super().__init__(message.text)
        self.message = message


def refusal(reason: Literal["file", "setup", "unreachable"], error: Exception, source: Source) -> CoreRefusal:
    return CoreRefusal(Refused(reason, sendable(as_in_bundle(str(error), source), REFUSAL_CHARACTERS_LIMIT)))


class Core:
    """One shard from Arm to its last report."""

    def __init__(
        self,
        line: "OwnLine",
        *,
        windows_per_report: int = WINDOWS_PER_REPORT,
        last_ack_wait_s: float = LAST_ACK_WAIT_S,
    ) -> None:
        self._windows_per_report = windows_per_report
        self._last_ack_wait_s = last_ack_wait_s
        self._line = line
        self._inbox: asyncio.Queue[Arm | Go] = asyncio.Queue(1024)
        self._executor: Executor | None = None
        self._has_been_stopped = False
        self._ends_at_once = False
        self._stage: ShardRuntime | None = None
        self._sequence = 0
        self._acknowledged = asyncio.Event()
        self._acknowledged.set()
        self._sent_windows: list[Window] = []
        self._sent_counts: dict[tuple[str, str | None], int] = {}
        self._sent_values: dict[str, int] = {}
        self._recorder: Recorder | None = None
        self._started_at_ns = 0
        self._cpu_before_ns = 0
        self._machine_before: MachineReading | None = None
        self._hands_on = False
        self._notes: list[str] = []
        self._saving: asyncio.Task[None] | None = None
        """Once it was warned that its time is over."""
        self._saved: dict[str, bytes] = {}
        """What goes with the next report."""

    async def serve(self) -> None:
        """The whole conversation. Cancelled, it ends at once what is under way."""
        self._line.send(Hello(os.getpid(), platform.python_version(), ""))
        try:
            await self._work()
        finally:
            if self._saving is not None:
                self._saving.cancel()
            if self._stage is not None:
                await self._stage.close()

    def hear(self, message: ToCore) -> None:
        match message:
            case Ack(sequence=sequence):
                if sequence == self._sequence and self._recorder is not None:
                    self._recorder.log.acknowledge(self._sent_windows)
                    self._acknowledged.set()
            case Stop(at_once=at_once):
                # It may arrive together with Go, before there is anything to stop.
                self._has_been_stopped = True
                self._ends_at_once |= at_once
                if self._executor is not None and at_once:
                    self._executor.end_at_once()
                elif self._executor is not None:
                    self._executor.stop()
            case ShardAnswer():
                if self._stage is not None:
                    self._stage.asks.answered(message)
            case TimeOver(grace_ns=grace_ns):
                if self._stage is not None and self._recorder is not None and self._saving is None:
                    self._saving = asyncio.create_task(self._save(self._stage, grace_ns))
            case Arm() | Go():
                self._inbox.put_nowait(message)

    async def _save(self, stage: ShardRuntime, grace_ns: int) -> None:
        await stage.save(grace_ns)
        if self._hands_on:
            self._saved, _ = stage.handed_on({})

    async def _work(self) -> None:
        arm = await self._inbox.get()
        if not isinstance(arm, Arm):
            raise OutOfTurn(f"{type(arm).__name__} came before Arm")
        try:
            stage = await self._arm(arm)
        except CoreRefusal as error:
            self._line.send(error.message)
            await self._line.drain()
            return
        recorder = self._recorder = stage.recorder
        self._line.switchboard.settle()
        self._line.send(Armed(stage.engine))
        go = await self._inbox.get()
        if not isinstance(go, Go):
            raise OutOfTurn(f"{type(go).__name__} came instead of Go")
        executor = self._executor = stage.executor(
            arm.shard, grace_ns=arm.settings.grace_ns, iterations_done=arm.iterations_done
        )
        if self._ends_at_once:
            executor.end_at_once()
        elif self._has_been_stopped:
            executor.stop()
        recorder.start(go.start_at_ns, go.job_origin_ns)
        self._started_at_ns = go.start_at_ns
        self._cpu_before_ns = cpu_ns()
        self._machine_before = reading()
        reporting = asyncio.create_task(self._report_regularly(arm.settings.report_every_ns))
        self._line.switchboard.watch(recorder.tally.generator.loop_lag)
        try:
            await executor.run(go.origin_ns, go.start_at_ns)
        finally:
            reporting.cancel()
            self._line.switchboard.unwatch(recorder.tally.generator.loop_lag)
            await asyncio.gather(reporting, return_exceptions=True)
        await self._finish_saving()
        ended_at_ns = monotonic_ns()
        provided: dict[str, bytes] = {}
        failure: str | None = None
        if not self._ends_at_once:  # nobody waits for more than the counts
            await stage.tear_down(arm.settings.grace_ns)
            provided, failure = await stage.provided()
            if self._hands_on:
                context, self._notes = stage.handed_on(provided)
                provided |= context
        recorder.finish()
        while recorder.log.oldest(self._windows_per_report, COUNTERS_PER_REPORT) != recorder.log.open_windows():
            # An owner that was slow to acknowledge gets what is left piece by piece.
            await self._report()
            await self._acknowledged.wait()
        await self._report(final=True, provided=provided, failure=executor.failure or failure, ended_at_ns=ended_at_ns)
        await within(self._last_ack_wait_s, self._acknowledged)

    async def _finish_saving(self) -> None:
        """It is over at the end of its grace."""
        if self._saving is not None:
            if self._ends_at_once:
                self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)

    async def _arm(self, arm: Arm) -> ShardRuntime:
        try:
            specs = await self._line.switchboard.specs(arm)
            spec = next((spec for spec in specs if spec.name == arm.workflow), None)
            # Also for itself, where it may be put aside and go on in another core.
            is_continued = spec is not None and spec.on_timeout == "pause"
            self._hands_on = is_continued or any(arm.workflow in one.depends_on for one in specs)
            if spec is None:
                raise Invalid(f"{arm.workflow} is not in the file any more")
            stage = self._stage = ShardRuntime(
                spec,
                arm.values,
                arm.shard,
                seed=arm.settings.seed,
                iterations_done=arm.iterations_done,
                engine=arm.settings.engine,
            )
            await stage.set_up()
        except SetupFailed as error:
            raise refusal("setup", error, arm.source) from None
        except Invalid as error:
            raise refusal("file", error, arm.source) from None
        except (ExchangeFailed, BundleUnavailable) as error:
            raise refusal("unreachable", error, arm.source) from None
        return stage

    # Reporting.

    async def _report_regularly(self, every_ns: int) -> None:
        """Windows close every 100 ms; a report goes out when it is due and the last one has arrived."""
        assert self._recorder is not None
        due_ns = self._started_at_ns + every_ns
        while True:
            now = monotonic_ns()
            await asyncio.sleep((WINDOW_NS - (now - self._started_at_ns) % WINDOW_NS) / SECOND)
            now = monotonic_ns()
            self._recorder.roll(now)
            if now >= due_ns and self._acknowledged.is_set():
                due_ns = now + every_ns - WINDOW_NS // 2
                await self._report()

    async def _report(
        self,
        *,
        final: bool = False,
        provided: dict[str, bytes] | None = None,
        failure: str | None = None,
        ended_at_ns: int = 0,
    ) -> None:
        assert self._recorder is not None
        self._recorder.settle()
        made_at_ns = monotonic_ns()
        tally = self._recorder.tally
        tally.generator.cpu_ns = cpu_ns() - self._cpu_before_ns
        tally.generator.wall_ns = max(1, (ended_at_ns or monotonic_ns()) - self._started_at_ns)
        tally.generator.process = os.getpid()
        tally.generator.max_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if final and self._machine_before is not None:
            tally.generator.machine = machine_between(self._machine_before, reading())
        self._sequence += 1
        for name, step in (tally.steps | tally.actions).items():
            self._send_row(name, None, step, measured=name in tally.steps)
        for name, calls in tally.calls.items():
            for call, row in calls.items():
                self._send_row(name, call, row, measured=False)
        for name, metric in tally.metrics.items():
            if self._sent_values.get(name) != metric.values:
                self._sent_values[name] = metric.values
                self._line.send(MetricTotals(self._sequence, name, metric))
        self._sent_windows = self._recorder.log.oldest(self._windows_per_report, COUNTERS_PER_REPORT)
        rest = msgspec.structs.replace(tally, steps={}, actions={}, calls={}, metrics={})
        self._acknowledged.clear()
        saved, self._saved = self._saved, {}
        self._line.send(
            Totals(
                self._sequence,
                rest,
                self._sent_windows,
                self._recorder.vus,
                self._executor.started_at_ns if self._executor is not None else 0,
                final=final,
                provided=provided if provided is not None else saved,
                failure=failure,
                ended_at_ns=ended_at_ns,
                notes=self._all_notes() if final else [],
                made_at_ns=made_at_ns,
                asked=None if self._stage is None else self._stage.asks.asked,
            )
        )
        await self._line.drain()

    def _send_row(self, name: str, call: str | None, row: StepTally, *, measured: bool) -> None:
        """What was counted for a step or for calls of it, if that has changed."""
        if self._sent_counts.get((name, call)) != row.seen:
            self._sent_counts[name, call] = row.seen
            self._line.send(StepTotals(self._sequence, name, row, measured, call))

    def _all_notes(self) -> list[str]:
        """What a reader of the result should know, though nothing failed."""
        used_up = self._executor.note if self._executor is not None else ""
        counted = self._recorder.notes if self._recorder is not None else []
        return [*([used_up] if used_up else []), *counted, *self._notes]
