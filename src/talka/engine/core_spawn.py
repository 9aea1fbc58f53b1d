"""Starts the process of a core, whatever it runs: what it is told at its start, what it inherits, and as whom it runs."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping

import msgspec

from talka.engine.own_end import EndPipe


class Confines(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for every core of a worker. Of a run on one machine there are none: it is as its user."""

    env: Mapping[str, str]
    """The whole environment of a core."""
    uid: int | None = None
    """Of another user than the worker's; None: the same."""
    gid: int | None = None


class CoreStart(msgspec.Struct, kw_only=True):
    """A process that was started, and how it is told its end; None: it has none."""

    process: "subprocess.Popen[bytes]"
    end: EndPipe | None


def start_core(
    module: str,
    sock: socket.socket,
    *,
    output: int,
    has_lease: bool,
    confines: Confines | None = None,
    folder: str | None = None,
) -> CoreStart:
    """What the user's code prints goes to the descriptor `output`: it must not mix with what its owner says. It inherits
    no other descriptor than those it is told of."""
    end = EndPipe() if has_lease else None
    arguments = [sys.executable, "-P", "-m", module, str(sock.fileno()), str(os.getpid())]
    passed = [sock.fileno()]
    if end is not None:
        arguments.append(str(end.theirs))
        passed.append(end.theirs)
    env = None if confines is None else dict(confines.env)
    if env is not None and folder is not None:
        env["HOME"] = folder
    is_other = confines is not None and confines.uid is not None
    try:
        process = subprocess.Popen(
            arguments,
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=env,
            cwd=folder,
            user=confines.uid if confines is not None else None,
            group=confines.gid if confines is not None else None,
            extra_groups=[] if is_other else None,
        )
    except BaseException:
        if end is not None:
            end.close()
        raise
    return CoreStart(process=process, end=end)
