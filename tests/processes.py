"""`talka` as a process of its own: started, heard, ended. The one way in which tests start it.

Half of what a short command costs is loading its modules, and most of what a cluster of nodes does. So a process here
is forked from one that has loaded them (`tests/zygote.py`): with arguments, environment, folder, streams and a process
id of its own, as if it had been started by its name. What depends on how the interpreter itself starts is started by
name, and so is everything where `TALKA_TEST_BY_NAME` is set, as `make test-all` does for one of its runs.
"""

import array
import atexit
import json
import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LIMIT_S = 60.0
BY_NAME = "TALKA_TEST_BY_NAME"
INTERPRETERS = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "ASAN_", "COLUMNS", "LINES")
"""Beginnings of variables that an interpreter or a library reads when it starts."""
HEEDED = "PYTHONUNBUFFERED"
"""Of those the one that a forked process heeds as well."""
NUMBER = struct.Struct("=q")
ROOT = Path(__file__).parents[1]


TALKA = (sys.executable, "-m", "talka")


def own_environment() -> dict[str, str]:
    """This process's, without what configures `talka`."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TALKA_")}


class Popen(subprocess.Popen[Any]):
    """As that of `subprocess`. A command that begins with `TALKA` is forked where that makes no difference to it."""

    def __init__(self, args: Sequence[str], **options: Any) -> None:
        environment = options.get("env")
        self._told = -1
        self._zygote: _Zygote | None = None
        given = {name for name, value in options.items() if value is not None}
        if tuple(args[:3]) == TALKA and given <= FORKED:
            if _starts_alike(os.environ if environment is None else environment):
                self._zygote = _zygote()
        super().__init__(args, **options)

    # These are what `subprocess` does for POSIX: the rest of it, pipes, waits and signals, is used as it is.

    def _execute_child(self, args: Any, *rest: Any) -> None:
        if self._zygote is None:
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        (_, _, _, _, folder, environment, _, _, _, *pipes, _, _, _, _, _, session, _) = rest
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = pipes
        self._told, tells = os.pipe()
        try:
            what = {
                "words": args[3:],
                "folder": os.fspath(folder) if folder is not None else os.getcwd(),
                "environment": dict(os.environ if environment is None else environment),
                "session": bool(session),
            }
            streams = [ours if ours != -1 else number for number, ours in enumerate((p2cread, c2pwrite, errwrite))]
            self._zygote.ask(what, [*streams, tells])
        finally:
            os.close(tells)
        self.pid = self._number()
        assert self.pid > 0, "the process that forks others has ended"
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _number(self) -> int:
        told = os.read(self._told, NUMBER.size)
        return NUMBER.unpack(told)[0] if told else -1

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._zygote is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc, no-any-return]
        if wait_flags & os.WNOHANG and not select.select([self._told], [], [], 0)[0]:
            return 0, 0
        status = self._number()
        os.close(self._told)
        return self.pid, max(status, 0)

    def _internal_poll(self, *arguments: Any, **more: Any) -> int | None:
        if self._zygote is None:
            return super()._internal_poll(*arguments, **more)  # type: ignore[misc, no-any-return]
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[has-type]
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid == self.pid:
                        self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()
        return self.returncode


FORKED = {"cwd", "env", "stdin", "stdout", "stderr", "text", "bufsize", "encoding", "errors", "start_new_session"}
"""Options with which a process can be forked."""


def run(
    args: Sequence[str],
    *,
    input: str | bytes | None = None,
    capture_output: bool = False,
    check: bool = False,
    timeout: float = LIMIT_S,
    **options: Any,
) -> "subprocess.CompletedProcess[Any]":
    """As that of `subprocess`, for at most a minute."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(args, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    ended = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        ended.check_returncode()
    return ended


def _starts_alike(environment: Mapping[str, str]) -> bool:
    """Whether an interpreter would start in this environment as ours did."""
    return not os.environ.get(BY_NAME) and all(
        environment.get(name) == os.environ.get(name)
        for name in {*environment, *os.environ}
        if name.startswith(INTERPRETERS) and name != HEEDED
    )


def _network() -> str:
    """The namespace that this process is in: what is forked is in that of who forks."""
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:  # there are none
        return ""


class _Zygote:
    def __init__(self) -> None:
        self.owner = os.getpid()
        self.network = _network()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 21)
        with theirs:
            words = [sys.executable, "-m", "tests.zygote", str(theirs.fileno())]
            self._process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
        atexit.register(self.close)

    def ask(self, what: dict[str, Any], descriptors: Sequence[int]) -> None:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        self._socket.sendmsg([json.dumps(what).encode()], [rights])

    def close(self) -> None:
        if os.getpid() == self.owner:
            self._socket.close()
            self._process.wait(LIMIT_S)


_present: list[_Zygote] = []


def _zygote() -> _Zygote:
    """Of this process, in the network in which it is now: made when the first command is run there."""
    # A copy of another process's would keep its socket open, and it would not see that its owner ended.
    _present[:] = [one for one in _present if one.owner == os.getpid()]
    for one in _present:
        if one.network == _network():
            return one
    _present.append(_Zygote())
    return _present[-1]
