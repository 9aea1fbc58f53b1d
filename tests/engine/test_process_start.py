"""How core processes begin."""

import subprocess
import sys

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can be asked")
def test_a_core_asks_for_timers_that_are_not_put_off() -> None:
    code = (
        "from talka.engine.process_start import wake_in_time\n"
        "read = lambda: open('/proc/self/timerslack_ns').read().strip()\n"
        "before = read()\nwake_in_time()\nprint(before != '1', read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "1"]
