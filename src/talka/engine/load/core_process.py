"""A core process: shards of one workflow or of several, told and asked over one socket.

`python -m talka.engine.load.core_process FD PARENT [END]` is started by `engine/load/supervisor.py`. What holds for the
process is here (its connection, one reading of the test, warm-up, garbage collection, event-loop lag); a shard is
`engine/load/core.py`.
"""

import asyncio
import gc
import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Final

from talka.clock import monotonic_ns
from talka.engine.load.alarm import Alarm
from talka.engine.load.core import Core, OwnerGone
from talka.engine.load.recorder import described
from talka.engine.load.warm_up import rehearse
from talka.engine.loader import load
from talka.engine.process_start import begin_core, new_event_loop, wake_in_time
from talka.stats.histogram import Histogram
from talka.units import MICROSECOND, SECOND
from talka.wire.framing import Deframer, framed
from talka.wire.shards import THE_PROCESS, TURNED, Arm, FromCore, Source, decode_to_core, encode, enveloped, opened
from talka.work.specs import WorkflowSpec

COLLECT_AFTER: Final = (100_000, 50, 100)
"""What thousands of users hold is looked at again by each collection: as often as by default, that takes more than half
of the time at ten thousand users."""
LAG_PROBE_NS: Final = SECOND // 20
TURN_S: Final = 1.0
"""Between two words that the event loop turns."""
READ_BYTES: Final = 65_536


class Switchboard:
    """Gives what the owner says to the shard that is meant. Ends when the last shard has ended."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        has_own_process: bool,
        new_core: "Callable[[OwnLine], Core]" = Core,
        turn_s: float = TURN_S,
    ) -> None:
        self._new_core = new_core
        self._turn_s = turn_s
        self.writer = writer
        self.has_own_process = has_own_process
        self._reader = reader
        # Bounded by its owner, which gives out the numbers.
        self._cores: dict[int, tuple[Core, asyncio.Task[None]]] = {}
        self._has_news = asyncio.Event()
        self._read: tuple[Source, Sequence[WorkflowSpec]] | None = None
        self._arming = asyncio.Lock()
        self._is_warm = self._is_settled = False
        self._lags: list[Histogram] = []

    async def serve(self) -> None:
        listener = asyncio.create_task(self._listen())
        probing = asyncio.create_task(self._probe_lag())
        turning = asyncio.create_task(self._tell_turns())
        try:
            while True:
                news = asyncio.create_task(self._has_news.wait())
                tasks = [task for _, task in self._cores.values()]
                await asyncio.wait({listener, probing, turning, news, *tasks}, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                self._has_news.clear()
                for task in (listener, probing, turning):
                    if task.done():
                        task.result()
                if self._let_go():
                    await self.writer.drain()
                    return
        finally:
            tasks = [listener, probing, turning, *(task for _, task in self._cores.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.writer.close()

    def _let_go(self) -> bool:
        """Say of each that has ended that it has; whether none is left."""
        over = [number for number, (_, task) in self._cores.items() if task.done()]
        for number in over:
            _, task = self._cores.pop(number)
            if not task.cancelled():
                task.result()
            self.writer.write(framed(enveloped(number)))
        return bool(over) and not self._cores

    async def _listen(self) -> None:
        deframer = Deframer()
        while data := await self._heard():
            for frame in deframer.feed(data):
                number, content = opened(frame)
                if content:
                    self._core(number).hear(decode_to_core(content))
                elif number in self._cores:
                    self._cores[number][1].cancel()
        raise OwnerGone

    async def _heard(self) -> bytes:
        """Nothing where the owner is gone, also if a word to it was what noticed that."""
        try:
            return await self._reader.read(READ_BYTES)
        except ConnectionError:
            return b""

    def _core(self, number: int) -> Core:
        if number not in self._cores:
            core = self._new_core(OwnLine(self, number))
            self._cores[number] = (core, asyncio.create_task(core.serve()))
            self._has_news.set()
        return self._cores[number][0]

    async def _probe_lag(self) -> None:
        rung = asyncio.Event()
        alarm = Alarm(rung.set)
        try:
            while True:
                due_ns = monotonic_ns() + LAG_PROBE_NS
                rung.clear()
                alarm.set(due_ns)
                await rung.wait()
                for lag in self._lags:
                    lag.record((monotonic_ns() - due_ns) // MICROSECOND)
        finally:
            alarm.close()

    async def _tell_turns(self) -> None:
        """The owner hears that the event loop turns, whatever the shards wait for: see decision 45."""
        frame = framed(enveloped(THE_PROCESS, TURNED))
        while True:
            if not self.writer.transport.get_write_buffer_size():  # nobody reads: it need not hear it twice
                self.writer.write(frame)
            await asyncio.sleep(self._turn_s)

    # What shards share.

    async def specs(self, arm: Arm) -> Sequence[WorkflowSpec]:
        """Read once: the modules of a test, and what they hold, are those of the process."""
        async with self._arming:
            if self.has_own_process and not self._is_warm:
                await rehearse(arm.settings.engine)
            if not self._is_warm and arm.settings.seed is not None:
                # Python's `random` is the process's: a shard that comes later must not begin it again for the others.
                random.seed(f"{arm.settings.seed}/{arm.workflow}/{arm.shard.index}")
            self._is_warm = True
            if self._read is None or self._read[0] != arm.source:
                self._read = (arm.source, load(arm.source))
            return self._read[1]

    def settle(self) -> None:
        """Everything is loaded."""
        if self.has_own_process and not self._is_settled:
            # What was loaded by now stays: the collector need not look at it again.
            gc.collect()
            gc.freeze()
            gc.set_threshold(*COLLECT_AFTER)
        self._is_settled = True

    def watch(self, lag: Histogram) -> None:
        """Record from now on by how much the event loop wakes up late."""
        self._lags.append(lag)

    def unwatch(self, lag: Histogram) -> None:
        self._lags = [other for other in self._lags if other is not lag]


class OwnLine:
    """The conversation of one shard with its owner, and the process that it runs in beside others."""

    def __init__(self, switchboard: Switchboard, number: int) -> None:
        self.switchboard = switchboard
        self._number = number

    def send(self, message: FromCore) -> None:
        self.switchboard.writer.write(framed(enveloped(self._number, encode(message))))

    async def drain(self) -> None:
        await self.switchboard.writer.drain()


async def serve(
    sock: socket.socket, *, has_own_process: bool = False, new_core: Callable[[OwnLine], Core] = Core
) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    await Switchboard(reader, writer, has_own_process=has_own_process, new_core=new_core).serve()


def main() -> None:
    fd, _ = begin_core()
    wake_in_time()
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
