"""The end of a core process by its own clock: its worker may stand still, and others have its work by then.

A thread of the core waits for the instant that was told last, and kills the core's process group. It needs no event
loop, only the interpreter now and then; where code of others never lets go of that, the guard of the worker does the
same (`engine/guard.py`).

Decision: docs/decisions/0032-a-core-ends-by-its-own-clock.md.
"""

import contextlib
import os
import signal
import threading
from functools import partial
from typing import Final

from talka.engine.kernel_timer import EndWait, timer_calls
from talka.wire.core_end import encode_end, last_end

READ_BYTES: Final = 65_536


class EndPipe:
    """The worker's side: tells a core until when it may run."""

    def __init__(self) -> None:
        self.theirs, self._ours = os.pipe()
        os.set_blocking(self.theirs, False)
        os.set_blocking(self._ours, False)

    def tell(self, end_ns: int) -> None:
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            try:
                os.write(self._ours, encode_end(end_ns))
            except BlockingIOError:
                # The core has not looked for long: what it will find is to be what holds now.
                os.read(self.theirs, READ_BYTES)
                os.write(self._ours, encode_end(end_ns))

    def close(self) -> None:
        os.close(self.theirs)
        os.close(self._ours)


def end_in_time(fd: int) -> None:
    """From now on: heed what is told in this pipe."""
    os.set_inheritable(fd, False)
    os.register_at_fork(after_in_child=partial(os.close, fd))
    threading.Thread(target=watch, args=(fd,), name="end", daemon=True).start()


def watch(fd: int) -> None:
    wait = EndWait(fd, timer_calls())
    end_ns = 0
    while wait.wait(end_ns):
        try:
            told = os.read(fd, READ_BYTES)
        except BlockingIOError:
            continue  # the worker took it back
        if not told:
            return  # the worker is gone, and this process with it
        end_ns = last_end(told)
    # Children of the user's code are in this group; they go too.
    os.killpg(0, signal.SIGKILL)
