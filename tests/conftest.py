"""The order of tests that run beside each other, what no test is judged by, and what a busy machine was allowed."""

import os
from itertools import islice
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings

from tests.e2e.standstill import TALLY, Tally

# How long it takes to draw examples says how busy the machine is, and nothing of the code.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every process begins with its part of those that wait for long: in the end nobody waits for one of them alone.

    Each has an equal share in this order, and takes from others when it is done (`--dist worksteal`).
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes == 1:
        return
    patient = [item for item in items if item.get_closest_marker("patient")]
    others = iter([item for item in items if not item.get_closest_marker("patient")])
    number, ordered = len(items), list[pytest.Item]()
    for process in range(processes):
        share = (process + 1) * number // processes - process * number // processes
        first = patient[process::processes]
        ordered += first
        ordered += islice(others, max(0, share - len(first)))
    items[:] = [*ordered, *others]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of xdist has ended: what it judged counts here."""
    TALLY.add_all(msgspec.convert(getattr(node, "workeroutput", {}).get("standstill", {}), Tally))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["standstill"] = msgspec.to_builtins(TALLY)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if TALLY.judged or TALLY.asked_again:
        terminalreporter.write_line(f"standstill: {TALLY.text()}")
