"""Which users the driver may make by itself."""

from typing import Any

import pytest

from talka.engine.load.native_executor import template_of
from talka.work.dsl import Workflow, step
from talka.work.responses import CustomResponse


class Plain(Workflow):
    abstract = True

    @step()
    async def go(self) -> CustomResponse[None]: ...


class WithInit(Plain):
    abstract = True

    def __init__(self) -> None:
        super().__init__()


class WithNew(Plain):
    abstract = True

    def __new__(cls) -> "WithNew":
        return super().__new__(cls)


class WithSetattr(Plain):
    abstract = True

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)


def test_a_user_that_is_made_as_any_object_begins_with_what_was_put_on_it_but_for_its_steps() -> None:
    user = Plain()
    vars(user).update(context={"token": 1}, received={}, go=user.go)
    assert template_of(user) == {"context": {"token": 1}, "received": {}}


@pytest.mark.parametrize("made", [WithInit, WithNew, WithSetattr])
def test_a_user_that_its_class_makes_in_its_own_way_has_no_template(made: type[Workflow]) -> None:
    assert template_of(made()) is None
