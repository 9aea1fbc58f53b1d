"""A core: runs one shard, told and asked over a socket. `python -m talka.engine.core FD` is its process."""

import asyncio
import contextlib
import gc
import io
import os
import platform
import random
import resource
import signal
import socket
import sys
from typing import Literal

from talka.clock import MICROSECOND, SECOND, cpu_ns, monotonic_ns
from talka.engine.beginnings import die_with_parent, new_event_loop, wake_in_time
from talka.engine.calls import ExchangeFailed
from talka.engine.executor import Executor
from talka.engine.loader import load
from talka.engine.recorder import Recorder, described
from talka.engine.rehearsal import rehearse
from talka.engine.stage import SetupFailed, Stage, prepare_stage
from talka.engine.unpack import BundleUnavailable, as_in_bundle
from talka.errors import Invalid, Untrusted
from talka.stats.tally import Tally
from talka.stats.windows import WINDOW_NS, Window
from talka.wire.framing import Deframer, framed
from talka.wire.shards import (
    WINDOWS_PER_REPORT,
    Ack,
    Arm,
    Armed,
    FromCore,
    Go,
    Hello,
    MetricTotals,
    Refused,
    Source,
    StepTotals,
    Stop,
    Totals,
    decode_to_core,
    encode,
)

LAST_ACK_WAIT_S = 5
COLLECT_AFTER = (100_000, 50, 100)
"""What thousands of users hold is looked at again by each collection: as often as by default, that takes more than half
of the time at ten thousand users."""
LAG_PROBE_S = 0.05
READ_BYTES = 65_536
REFUSAL_CHARACTERS_LIMIT = 20_000


class OwnerGone(Exception):
    """The socket to the owner is closed: nobody wants the results any more."""


class OutOfTurn(Untrusted):
    """The owner speaks the language and does not follow the conversation."""


class Refusal(Exception):
    """The shard cannot run; carries the message that says why."""

    def __init__(self, message: Refused) -> None:
        super().__init__(message.text)
        self.message = message


def sendable(text: str) -> str:
    """Short enough for a frame, and without the halves of characters that no message can carry."""
    return text[:REFUSAL_CHARACTERS_LIMIT].encode("utf-8", "replace").decode("utf-8")


def refusal(reason: Literal["file", "setup", "unreachable"], error: Exception, source: Source) -> Refusal:
    return Refusal(Refused(reason, sendable(as_in_bundle(str(error), source))))


class Core:
    """One shard from Arm to its last report."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, has_own_process: bool) -> None:
        self._reader = reader
        self._writer = writer
        self._has_own_process = has_own_process
        self._deframer = Deframer()
        self._inbox: asyncio.Queue[Arm | Go] = asyncio.Queue(1024)
        self._executor: Executor | None = None
        self._has_been_stopped = False
        self._ends_at_once = False
        self._stage: Stage | None = None
        self._sequence = 0
        self._acknowledged = asyncio.Event()
        self._acknowledged.set()
        self._sent_windows: list[Window] = []
        self._sent_counts: dict[str, int] = {}
        self._sent_values: dict[str, int] = {}
        self._recorder: Recorder | None = None
        self._started_at_ns = 0
        self._reported_at_ns = 0
        self._cpu_before_ns = 0

    async def serve(self) -> None:
        self._send(Hello(os.getpid(), platform.python_version(), ""))
        listener = asyncio.create_task(self._listen())
        work = asyncio.create_task(self._work())
        try:
            done, _ = await asyncio.wait({listener, work}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (listener, work):
                task.cancel()
            await asyncio.gather(listener, work, return_exceptions=True)
            if self._stage is not None:
                await self._stage.close()
            self._writer.close()

    async def _work(self) -> None:
        arm = await self._inbox.get()
        if not isinstance(arm, Arm):
            raise OutOfTurn(f"{type(arm).__name__} came before Arm")
        if self._has_own_process:
            await rehearse(arm.settings.engine)
        try:
            stage = await self._arm(arm)
        except Refusal as error:
            self._send(error.message)
            await self._writer.drain()
            return
        recorder = self._recorder = stage.recorder
        if self._has_own_process:
            # What was loaded by now stays: the collector need not look at it again.
            gc.collect()
            gc.freeze()
            gc.set_threshold(*COLLECT_AFTER)
        self._send(Armed(stage.engine))
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
        reporting = asyncio.create_task(self._report_regularly(arm.settings.report_every_ns, arm.settings.silence_ns))
        probing = asyncio.create_task(self._probe_lag())
        try:
            await executor.run(go.origin_ns, go.start_at_ns)
        finally:
            reporting.cancel()
            probing.cancel()
            await asyncio.gather(reporting, probing, return_exceptions=True)
        ended_at_ns = monotonic_ns()
        provided: dict[str, bytes] = {}
        failure: str | None = None
        if not self._ends_at_once:  # nobody waits for more than the counts
            await stage.tear_down(arm.settings.grace_ns)
            provided, failure = await stage.provided()
        recorder.finish()
        while len(recorder.log.open_windows()) > WINDOWS_PER_REPORT:
            # An owner that was slow to acknowledge gets what is left piece by piece.
            await self._report()
            await self._acknowledged.wait()
        await self._report(final=True, provided=provided, failure=executor.failure or failure, ended_at_ns=ended_at_ns)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._acknowledged.wait(), LAST_ACK_WAIT_S)

    async def _arm(self, arm: Arm) -> Stage:
        if arm.settings.seed is not None:
            random.seed(f"{arm.settings.seed}/{arm.workflow}/{arm.shard.index}")
        try:
            spec = next((spec for spec in load(arm.source) if spec.name == arm.workflow), None)
            if spec is None:
                raise Invalid(f"{arm.workflow} is not in the file any more")
            stage = self._stage = prepare_stage(
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

    async def _report_regularly(self, every_ns: int, silence_ns: int) -> None:
        """Windows close every 100 ms; a report goes out when it is due and the last one has arrived."""
        assert self._recorder is not None
        due_ns = self._started_at_ns + every_ns
        while True:
            now = monotonic_ns()
            await asyncio.sleep((WINDOW_NS - (now - self._started_at_ns) % WINDOW_NS) / SECOND)
            now = monotonic_ns()
            self._recorder.roll(now)
            if silence_ns and not self._acknowledged.is_set() and now - self._reported_at_ns > silence_ns:
                self._writer.transport.abort()  # nobody reads it; the listener sees the end of the connection
                return
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
        tally = self._recorder.tally
        tally.generator.cpu_ns = cpu_ns() - self._cpu_before_ns
        tally.generator.wall_ns = max(1, (ended_at_ns or monotonic_ns()) - self._started_at_ns)
        tally.generator.max_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._sequence += 1
        for name, step in (tally.steps | tally.actions).items():
            if self._sent_counts.get(name) != step.count:
                self._sent_counts[name] = step.count
                self._send(StepTotals(self._sequence, name, step, measured=name in tally.steps))
        for name, metric in tally.metrics.items():
            if self._sent_values.get(name) != metric.values:
                self._sent_values[name] = metric.values
                self._send(MetricTotals(self._sequence, name, metric))
        self._sent_windows = self._recorder.log.open_windows()[:WINDOWS_PER_REPORT]
        rest = Tally(
            iterations=tally.iterations,
            started=tally.started,
            dropped=tally.dropped,
            exchanges=tally.exchanges,
            checks=tally.checks,
            generator=tally.generator,
        )
        self._acknowledged.clear()
        self._reported_at_ns = monotonic_ns()
        self._send(
            Totals(
                self._sequence,
                rest,
                self._sent_windows,
                self._recorder.vus,
                self._executor.started_at_ns if self._executor is not None else 0,
                final=final,
                provided=provided or {},
                failure=failure,
                ended_at_ns=ended_at_ns,
                notes=[self._executor.note] if final and self._executor is not None and self._executor.note else [],
            )
        )
        await self._writer.drain()

    async def _probe_lag(self) -> None:
        assert self._recorder is not None
        lag = self._recorder.tally.generator.loop_lag
        while True:
            due_ns = monotonic_ns() + round(LAG_PROBE_S * SECOND)
            await asyncio.sleep(LAG_PROBE_S)
            lag.record((monotonic_ns() - due_ns) // MICROSECOND)

    # The owner.

    async def _listen(self) -> None:
        while data := await self._reader.read(READ_BYTES):
            for frame in self._deframer.feed(data):
                match decode_to_core(frame):
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
                    case Arm() | Go() as message:
                        self._inbox.put_nowait(message)
        raise OwnerGone

    def _send(self, message: FromCore) -> None:
        self._writer.write(framed(encode(message)))


async def serve(sock: socket.socket, *, has_own_process: bool = False) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    await Core(reader, writer, has_own_process=has_own_process).serve()


def main() -> None:
    fd, parent = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent)
    wake_in_time()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides what Ctrl-C means
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what a step prints is wanted when it is printed
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        try:
            runner.run(serve(socket.socket(fileno=fd), has_own_process=True))
        except (OwnerGone, ConnectionError, BrokenPipeError):
            # Children the user's code started are in this process group; they go too.
            os.killpg(0, signal.SIGKILL)
        except Exception as error:  # noqa: BLE001 - whatever it is, a user gets a line and the owner an exit status
            sys.stderr.write(f"talka: internal error in a core process: {described(error)}\n")
            sys.exit(1)


if __name__ == "__main__":
    main()
