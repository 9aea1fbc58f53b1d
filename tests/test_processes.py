"""The process from which tests fork `talka`."""

import subprocess
import sys

from tests.processes import LIMIT_S, ROOT

FORKED = """
import array
import gc
import os
import socket

from tests import zygote

gc.disable()
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
_, told = os.pipe()
ours.sendmsg([b"{}"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2, told]))])
ours.close()
if zygote.serve(theirs) is None:  # the one that forks
    raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
os.closerange(3, theirs.fileno())
os.closerange(theirs.fileno() + 1, 64)
opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(16)]
gc.collect()
for descriptor in opened:
    os.fstat(descriptor)
"""


def test_what_is_left_of_the_process_it_was_forked_from_closes_nothing_that_a_process_opens() -> None:
    ended = subprocess.run([sys.executable, "-c", FORKED], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)

    assert (ended.returncode, ended.stderr) == (0, "")
