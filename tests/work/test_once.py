"""Setups and teardowns that run once for a job, as workflows before and after their class."""

from typing import Any

from talka.work.dsl import Workflow, depends, setup, step, teardown
from talka.work.inspection import inspect_workflows
from talka.work.responses import CustomResponse
from talka.work.specs import WorkflowSpec

Answer = CustomResponse[Any]


class Login(Workflow):
    @step()
    async def go(self) -> Answer: ...


@depends(Login)
class Shop(Workflow):
    @setup()
    def on_every_core(self) -> None: ...

    @setup(once=True)
    async def account(self) -> int:
        return 7

    @setup(once=True)
    def basket(self) -> str:
        return f"of {self.context['account']}"

    @step()
    async def go(self) -> Answer: ...

    @teardown(once=True)
    def close(self) -> None: ...

    @teardown(once=True)
    async def tell(self) -> None: ...

    @teardown()
    def after_every_core(self) -> None: ...


@depends(Shop)
class Leave(Workflow):
    @step()
    async def go(self) -> Answer: ...


class Open(Workflow):
    """Only a teardown."""

    @step()
    async def go(self) -> Answer: ...

    @teardown(once=True)
    def close(self) -> None: ...


def specs() -> dict[str, WorkflowSpec]:
    return {spec.name: spec for spec in inspect_workflows([Login, Shop, Leave, Open])}


def test_they_are_workflows_before_and_after_their_class() -> None:
    found = specs()

    names = list(found)
    assert {name: sorted(spec.depends_on) for name, spec in found.items()} == {
        "Login": [],
        "Shop.setup": ["Login"],
        "Shop": ["Shop.setup"],
        "Shop.teardown": ["Shop", "Shop.setup"],
        "Leave": ["Shop"],
        "Open": [],
        "Open.teardown": ["Open"],
    }
    for name, spec in found.items():
        assert all(names.index(other) < names.index(name) for other in spec.depends_on), "dependencies come first"
    assert {name for name, spec in found.items() if spec.is_teardown} == {"Shop.teardown", "Open.teardown"}
    assert {name for name, spec in found.items() if not spec.is_test} == {
        "Shop.setup",
        "Shop.teardown",
        "Open.teardown",
    }


def test_those_that_run_on_every_core_stay_with_the_class() -> None:
    shop = specs()["Shop"]

    assert [node.name for node in shop.setups] == ["on_every_core"]
    assert [node.name for node in shop.teardowns] == ["after_every_core"]


def test_a_setup_waits_for_those_before_it_and_a_teardown_for_nobody() -> None:
    found = specs()

    assert [[(node.name, node.kind, sorted(node.after)) for node in layer] for layer in found["Shop.setup"].layers] == [
        [("account", "action", [])],
        [("basket", "action", ["account"])],
    ]
    assert [[(node.name, sorted(node.after)) for node in layer] for layer in found["Shop.teardown"].layers] == [
        [("close", [])],
        [("tell", [])],
    ]


async def test_what_a_setup_returns_is_in_the_context_under_its_name() -> None:
    workflow = Shop()
    workflow.context = {}

    for node in specs()["Shop.setup"].nodes:
        assert node.is_async
        await node.function(workflow)

    assert workflow.context == {"account": 7, "basket": "of 7"}
