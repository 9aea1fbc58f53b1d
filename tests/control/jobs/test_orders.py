"""Orders that cannot be carried out are refused in words, before anything is run."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from talka.control.jobs.orders import (
    CORES_LIMIT,
    ENV_LIMIT,
    GRACE_LIMIT_NS,
    NAME_LIMIT,
    NODES_LIMIT,
    WORKFLOWS_LIMIT,
    BadOrder,
    check_order,
)
from talka.control.jobs.queue import PRIORITY_LEAST, PRIORITY_MOST
from talka.errors import Invalid
from talka.wire.orders import BundleFacts, JobOrder, WorkflowOrder
from talka.wire.shards import Settings
from talka.work.specs import NodeOutline

OrderOf = Callable[..., JobOrder]
BUNDLE = BundleFacts("0" * 64, 70, b"", "shop.py")
NODE = NodeOutline("n", "step", True)


@pytest.fixture
def order(order_of: OrderOf) -> JobOrder:
    return order_of()


def replaced(order: JobOrder, **more: Any) -> JobOrder:
    return msgspec.structs.replace(order, **more)


def flow(order: JobOrder, name: str, **more: Any) -> WorkflowOrder:
    return msgspec.structs.replace(order.workflows[0], name=name, **more)


def refusal(order: JobOrder) -> str:
    with pytest.raises(BadOrder) as caught:
        check_order(order)
    assert isinstance(caught.value, Invalid)
    return str(caught.value)


def test_an_order_within_all_limits_is_taken(order: JobOrder) -> None:
    first = flow(order, "a" * NAME_LIMIT, nodes=(NODE,) * NODES_LIMIT, timeout_ns=1)
    rest = [flow(order, f"w{number}", depends_on=(first.name,)) for number in range(WORKFLOWS_LIMIT - 1)]
    largest = replaced(
        order,
        name="n" * NAME_LIMIT,
        workflows=(first, *rest),
        priority=PRIORITY_MOST,
        cores=CORES_LIMIT,
        settings=Settings(GRACE_LIMIT_NS),
        bundle=msgspec.structs.replace(BUNDLE, env={f"V{number}": "" for number in range(ENV_LIMIT)}),
    )
    smallest = replaced(order, name="n", priority=PRIORITY_LEAST, cores=0, settings=Settings(0))

    check_order(largest)
    check_order(smallest)


def test_a_job_that_is_one_url_needs_no_file(order: JobOrder) -> None:
    check_order(replaced(order, bundle=msgspec.structs.replace(BUNDLE, file="", url="http://shop/")))


def test_a_workflow_may_use_what_earlier_ones_provide(order: JobOrder) -> None:
    second = flow(order, "Second", depends_on=("First",), flows=(("First", "token"),))

    check_order(replaced(order, workflows=(flow(order, "First"), second)))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"workflows": ()}, "the order has no workflows: nothing would run"),
        ({"name": ""}, f"the name of a job has 1 to {NAME_LIMIT} characters, not 0"),
        ({"name": "n" * 257}, f"the name of a job has 1 to {NAME_LIMIT} characters, not 257"),
        ({"priority": 0}, "priority 0: it is from 1 to 10, the highest"),
        ({"priority": 11}, "priority 11: it is from 1 to 10, the highest"),
        ({"cores": -1}, "cores = -1: at least 1, or 0 for as many as priorities allow"),
        ({"cores": CORES_LIMIT + 1}, f"cores = {CORES_LIMIT + 1}: at least 1"),
        ({"settings": Settings(-1)}, "the grace period is between 0 and an hour"),
        ({"settings": Settings(GRACE_LIMIT_NS + 1)}, "the grace period is between 0 and an hour"),
        (
            {"bundle": msgspec.structs.replace(BUNDLE, file="")},
            "the order names neither a file of its bundle nor a URL",
        ),
        (
            {"bundle": msgspec.structs.replace(BUNDLE, env={f"V{number}": "" for number in range(ENV_LIMIT + 1)})},
            f"257 variables would travel: {ENV_LIMIT} are the most",
        ),
    ],
    ids=[
        "no workflows",
        "no name",
        "long name",
        "low priority",
        "high priority",
        "few cores",
        "many cores",
        "negative grace",
        "long grace",
        "no source",
        "many variables",
    ],
)
def test_what_is_wrong_with_an_order_is_said(order: JobOrder, change: dict[str, Any], text: str) -> None:
    assert refusal(replaced(order, **change)).startswith(text)


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("", {}, f"workflow '': names are unique and have 1 to {NAME_LIMIT} characters"),
        ("w" * 257, {}, f"workflow '{'w' * 80}': names are unique"),
        ("First", {}, "workflow 'First': names are unique"),
        ("W", {"nodes": (NODE,) * (NODES_LIMIT + 1)}, f"W has 1025 methods: {NODES_LIMIT} are the most"),
        ("W", {"timeout_ns": 0}, "W: its timeout is above 0"),
        ("W", {"depends_on": ("W",)}, "W depends on 'W', which does not come before it"),
        ("W", {"depends_on": ("x" * 99,)}, f"W depends on '{'x' * 80}', which does not come before it"),
        ("W", {"flows": (("Last", "token"),)}, "W depends on 'Last', which does not come before it"),
    ],
    ids=["no name", "long name", "same name", "many methods", "no timeout", "itself", "unknown", "flow"],
)
def test_what_is_wrong_with_a_workflow_is_said(order: JobOrder, name: str, change: dict[str, Any], text: str) -> None:
    workflows = (flow(order, "First"), flow(order, name, **change), flow(order, "Last"))

    assert refusal(replaced(order, workflows=workflows)).startswith(text)


def test_too_many_workflows_are_refused(order: JobOrder) -> None:
    workflows = tuple(flow(order, f"w{number}") for number in range(WORKFLOWS_LIMIT + 1))

    assert (
        refusal(replaced(order, workflows=workflows)) == f"the order has 257 workflows: {WORKFLOWS_LIMIT} are the most"
    )
