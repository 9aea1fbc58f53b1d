"""The guard of a worker's cores, a process beside them: `python -m talka.engine.guard`. Reads lines from its standard
input.

`+GROUP` and `-GROUP` name process groups, `=INSTANT` until when they may run. It kills them when that has come, or when
nobody is left who could say more. It depends on no code of users: a core whose interpreter is held ends all the same.

Decision: docs/decisions/0032-a-core-ends-by-its-own-clock.md.
"""

import contextlib
import os
import signal

from talka.engine.hiding import hide
from talka.engine.kernel_timer import EndWait, timer_calls

READ_BYTES = 65_536
INPUT = 0


class Groups:
    """What was said so far."""

    def __init__(self) -> None:
        self.end_ns = 0
        self._named: set[int] = set()
        self._rest = b""

    def read(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            sign, number = line[:1], int(line[1:])
            if sign == b"+":
                self._named.add(number)
            elif sign == b"-":
                self._named.discard(number)
            else:
                self.end_ns = number

    def kill(self) -> None:
        """Each once: its number may be another's afterwards."""
        for group in self._named:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        self._named.clear()
        self.end_ns = 0


def main() -> None:
    hide()
    wait = EndWait(INPUT, timer_calls())
    groups = Groups()
    while True:
        if not wait.wait(groups.end_ns):
            groups.kill()
            continue
        data = os.read(INPUT, READ_BYTES)
        if not data:
            groups.kill()
            return
        groups.read(data)


if __name__ == "__main__":
    main()
