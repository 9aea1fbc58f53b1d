"""The order of tests that run beside each other, and what no test is judged by."""

import os
from itertools import islice

import pytest
from hypothesis import HealthCheck, settings

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
