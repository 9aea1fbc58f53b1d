"""Kills and interrupts, on real processes."""

import contextlib
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.accounts import adds_up

ENGINES = ("native", "python")
PLAIN = str(Path(__file__).parent / "workflows" / "plain.py")
WAIT_S = 60


def wait_until_serving(server, requests: int = 50) -> None:
    """Until the run has really started: the server has seen it."""
    until = time.monotonic() + WAIT_S
    while server.count() < requests:
        assert time.monotonic() < until, f"the server never saw {requests} requests"
        time.sleep(0.02)  # it is asked over HTTP, by a process that has other work


@pytest.mark.parametrize("engine", ENGINES)
def test_killed_core_is_replaced_for_the_rest_of_the_plan(command, server, find_cores) -> None:
    process = command.start(
        "run", PLAIN, "--json", str(command.result), "--rate", "300/s", "--for", "4s", "--cores", "2"
    )
    wait_until_serving(server, 300)
    victim, other = find_cores(process.pid)
    victim.kill()
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 6, out + err
    document = command.document()
    assert document["status"] == "partial"
    [lost] = document["lost_shards"]
    assert lost["cause"] == "was killed by SIGKILL"
    assert lost["from_s"] < lost["to_s"] <= 4.5
    assert "SIGKILL" in out and f"{lost['from_s']:.1f} s" in out and f"{lost['to_s']:.1f} s" in out
    health = document["generator"]["cores"]
    assert len(health) == 3, "two cores and one replacement"
    adds_up(document, 1200, server.count())
    assert not other.is_running()


@pytest.mark.serial
def test_allow_partial_turns_a_lost_core_into_success(command, server, find_cores) -> None:
    process = command.start(
        "run", PLAIN, "--json", str(command.result), "--for", "5s", "--cores", "2", "--allow-partial"
    )
    wait_until_serving(server)
    find_cores(process.pid)[0].kill()
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, out + err
    assert command.document()["status"] == "partial"


@pytest.mark.serial
@pytest.mark.parametrize(
    ("sent", "code", "engine"),
    [(signal.SIGINT, 130, "native"), (signal.SIGTERM, 143, "native"), (signal.SIGINT, 130, "python")],
)
def test_first_interrupt_ends_gracefully_with_a_full_report(command, server, sent, code) -> None:
    process = command.start("run", PLAIN, "--json", str(command.result), "--cores", "2")
    wait_until_serving(server)
    process.send_signal(sent)
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == code, out + err
    document = command.document()
    assert document["status"] == "cancelled"
    assert document["totals"]["requests"] == server.count()
    assert "p99" in out


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.serial
def test_second_interrupt_ends_at_once_and_counts_what_is_on_the_wire(command, server, find_cores) -> None:
    slow = command.folder / "slow.py"
    slow.write_text(
        "import os\nfrom talka import *\n"
        "class Slow(Workflow):\n    vus = 3\n    duration = '60s'\n    @step()\n"
        "    async def wait(self, url: URL = os.environ['TARGET'] + '/delay/50000') -> HTTPResponse:\n"
        "        return await self.client.http.get(url)\n"
    )
    process = command.start("run", str(slow), "--json", str(command.result), "--cores", "1")
    wait_until_serving(server, 3)
    cores = find_cores(process.pid)
    process.send_signal(signal.SIGINT)
    code = None
    while code is None:  # two signals that arrive together melt into one
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(timeout=1)
        if code is None:
            process.send_signal(signal.SIGINT)
    process.communicate()
    assert code == 130
    totals = command.document()["totals"]
    assert (totals["requests"], totals["interrupted"]) == (3, 3), "what is on the wire is not forgotten"
    assert command.document()["workflows"][0]["steps"][0]["interrupted"] == 3
    assert psutil.wait_procs(cores, timeout=WAIT_S)[1] == []


def test_nothing_survives_the_death_of_the_owner(command, server, find_cores) -> None:
    forking = command.folder / "forking.py"
    forking.write_text(
        "import os, subprocess\nfrom talka import *\n"
        "class Forking(Workflow):\n    vus = 2\n    duration = '60s'\n    @step()\n"
        "    async def get(self, url: URL = os.environ['TARGET'] + '/') -> HTTPResponse:\n"
        "        if not self.context.get('child'):\n"
        "            self.context['child'] = subprocess.Popen(['sleep', '1000'])\n"
        "        return await self.client.http.get(url)\n"
    )
    process = command.start("run", str(forking), "--cores", "2")
    wait_until_serving(server)
    family = psutil.Process(process.pid).children(recursive=True)
    assert any(child.name() == "sleep" for child in family)
    assert len(find_cores(process.pid)) == 2
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(family, timeout=WAIT_S)
    assert alive == []


@pytest.mark.serial
def test_nothing_is_left_after_an_ordinary_run(command, server) -> None:
    process = command.start("run", PLAIN, "--for", "500ms", "--cores", "2")
    wait_until_serving(server, 1)  # on a machine that stands still there are not many more
    family = psutil.Process(process.pid).children(recursive=True)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert psutil.wait_procs(family, timeout=WAIT_S)[1] == []


@pytest.mark.serial
def test_core_that_blocks_for_ever_is_killed_after_the_grace_period(command) -> None:
    stuck = command.folder / "stuck.py"
    stuck.write_text(
        "import os, time\nfrom talka import *\n"
        "class Stuck(Workflow):\n    vus = 1\n    duration = '200ms'\n    @step()\n"
        "    async def block(self, url: URL = os.environ['TARGET'] + '/') -> HTTPResponse:\n"
        "        time.sleep(1000)\n        return await self.client.http.get(url)\n"
    )
    process = command.start("run", str(stuck), "--json", str(command.result), "--grace", "100ms")
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 6, out + err
    assert "did not stop in time" in out
