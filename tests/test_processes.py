"""The process from which tests fork `talka`."""

import subprocess
import sys

import pytest

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


MOVED = """
import ctypes
import os
import subprocess

from tests import processes

processes.run([*processes.TALKA, "--version"], stdout=subprocess.DEVNULL, check=True, timeout=60)
if ctypes.CDLL(None).unshare(0x40000000):  # CLONE_NEWNET
    raise SystemExit(77)
server = processes.Popen([*processes.TALKA, "demo-server", "--port", "0"], stdout=subprocess.PIPE, text=True)
try:
    assert server.stdout.readline()
    assert os.readlink(f"/proc/{server.pid}/ns/net") == os.readlink("/proc/self/ns/net")
finally:
    server.kill()
    server.wait(60)
"""


def test_a_process_is_in_the_network_that_whoever_starts_it_has_moved_to() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", MOVED], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if ended.returncode == 77:
        pytest.skip("no namespace can be made here")
    assert (ended.returncode, ended.stderr) == (0, "")
