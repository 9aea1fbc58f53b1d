"""A process that has loaded `talka` once and forks a new one for each command that is asked for.

Run as `python -m tests.zygote SOCKET`, with the number of an inherited socket. Each request is one packet: a JSON
object and four descriptors (its standard streams, and a pipe). The pipe is told the new process's id and, when it has
ended, its wait status. What forks here returns from `serve` and is from then on what `python -m talka` is.
"""

import array
import gc
import io
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
from typing import Any

REQUEST_LIMIT_BYTES = 1 << 20
NUMBER = struct.Struct("=q")
STREAMS = 3

# What nodes and the common commands load: most of what a start costs.
import talka.cli.main  # noqa: E402
import talka.cli.nodes.node  # noqa: E402
import talka.cli.run  # noqa: E402
import talka.cli.submit  # noqa: E402
import talka.client.sync  # noqa: E402
import talka.nodes.local  # noqa: E402
import talka.nodes.manager  # noqa: E402
import talka.nodes.worker  # noqa: E402
import talka.web.server  # noqa: E402, F401


def receive(requests: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    space = socket.CMSG_SPACE((STREAMS + 1) * array.array("i").itemsize)
    data, ancillary, _, _ = requests.recvmsg(REQUEST_LIMIT_BYTES, space)
    if not data:
        return None
    descriptors = array.array("i")
    for _, _, content in ancillary:
        descriptors.frombytes(content)
    return json.loads(data), list(descriptors)


def serve(requests: socket.socket) -> dict[str, Any] | None:
    """In a process that was asked for: what it is to be. Here, at the end: nothing."""
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is requests:
                asked = receive(requests)
                if asked is None:
                    return None
                what, (*streams, told) = asked
                pid = os.fork()
                if pid == 0:
                    # The pidfds and pipes of the others are numbers, closed in `become`. The selector is part of a
                    # cycle: left to the collector, it would close whatever has its number by then.
                    selector.close()
                    return {**what, "streams": streams}
                for stream in streams:
                    os.close(stream)
                os.write(told, NUMBER.pack(pid))
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, told))
            else:
                pid, told = key.data
                selector.unregister(key.fileobj)
                os.close(key.fd)
                _, status = os.waitpid(pid, 0)
                try:
                    os.write(told, NUMBER.pack(status))
                except BrokenPipeError:
                    pass  # nobody waits for it any more
                os.close(told)


def become(what: dict[str, Any]) -> None:
    for number, stream in enumerate(what["streams"]):
        os.dup2(stream, number)
    os.closerange(STREAMS, os.sysconf("SC_OPEN_MAX"))
    if what["session"]:
        os.setsid()
    os.chdir(what["folder"])
    os.environ.clear()
    os.environ.update(what["environment"])
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)  # as Python begins
    sys.argv = ["talka", *what["words"]]
    sys.path[0] = what["folder"]
    sys.stdin = sys.__stdin__ = open(0, closefd=False)
    if os.environ.get("PYTHONUNBUFFERED"):
        out = io.TextIOWrapper(open(1, "wb", buffering=0, closefd=False), write_through=True)
    else:
        out = open(1, "w", closefd=False)
    sys.stdout = sys.__stdout__ = out
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)


def main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the tests
    gc.freeze()
    what = serve(requests)
    if what is None:
        return
    requests.detach()  # closed in `become`, and no second time when this ends
    signal.signal(signal.SIGINT, signal.default_int_handler)
    become(what)
    runpy.run_module("talka", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
