"""The language itself: what decorators make of methods, and what a workflow object does with them."""

import asyncio
import functools
import types

import pytest

from talka.errors import Invalid
from talka.work.clients import Clients
from talka.work.dsl import (
    RESERVED,
    Action,
    Bare,
    BoundStep,
    Check,
    Flow,
    Metric,
    NoResponse,
    Provide,
    State,
    Step,
    Use,
    Workflow,
    action,
    check,
    code_of,
    depends,
    metric,
    state,
    step,
)
from talka.work.responses import HTTPResponse


class Shop(Workflow):
    @step(expect=404, tags={"page": "login"})
    async def login(self, name: str = "Ada") -> HTTPResponse:
        """Opens a session."""
        return f"{name} at {type(self).__name__}"

    @action(login)
    def pause(self, seconds=1):
        return seconds, self

    @check("login")
    def login_is_quick(self, login):
        return login

    @metric("count", login)
    def logins(self, login):
        return 1

    @state("Checkout")
    def token(self) -> Provide[str]:
        return "t"

    @state("Seed")
    def seeded(self, number: int, text: str = "none") -> Use[int]:
        return f"{number} {text} {type(self).__name__}"


# Declarations


@pytest.mark.parametrize(
    ("name", "type_", "kind", "after"),
    [
        ("login", Step, "step", ()),
        ("pause", Action, "action", (Shop.login,)),
        ("login_is_quick", Check, "check", ("login",)),
        ("logins", Metric, "metric", (Shop.login,)),
        ("token", State, "state", ("Checkout",)),
    ],
)
def test_a_decorated_method_knows_its_kind_its_name_its_class_and_what_it_comes_after(name, type_, kind, after):
    declaration = getattr(Shop, name)

    assert type(declaration) is type_
    assert (declaration.kind, declaration.name, declaration.owner, declaration.after) == (kind, name, Shop, after)


def test_a_declaration_keeps_docstring_function_and_first_line():
    assert Shop.login.__doc__ == "Opens a session."
    assert Shop.login.function.__name__ == "login"
    assert Shop.login.line == Shop.login.function.__code__.co_firstlineno


def test_a_declaration_inside_another_decorator_has_the_line_of_the_method():
    def twice(function):
        @functools.wraps(function)
        async def wrapper(*args):
            return await function(*args)

        return wrapper

    class Other(Workflow):
        @step()
        @twice
        async def login(self) -> None: ...

    assert Other.login.line == Other.login.function.__wrapped__.__code__.co_firstlineno != code_of(twice).co_firstlineno


def test_a_declaration_of_a_function_not_written_in_python_has_no_line():
    assert action()(len).line == 0
    assert code_of(None) is None


def test_step_keeps_what_it_expects_and_its_tags():
    assert Shop.login.expect == 404
    assert Shop.login.tags == {"page": "login"}
    assert (step()(lambda self: None).expect, step()(lambda self: None).tags) == ((), {})


def test_a_generator_of_expected_statuses_can_be_read_more_than_once():
    declared = step(expect=(status for status in (404, 410)))(lambda self: None)

    assert (list(declared.expect), list(declared.expect)) == ([404, 410], [404, 410])


def test_metric_keeps_its_kind():
    assert Shop.logins.metric_kind == "count"


def test_provide_and_use_carry_a_mark_and_are_otherwise_the_type_itself():
    assert Provide[str].__metadata__ == (Flow(provides=True),)
    assert Use[int].__metadata__ == (Flow(provides=False),)
    assert Provide[str].__origin__ is str


def test_calling_a_step_through_the_class_calls_the_plain_function():
    shop = Shop()

    assert asyncio.run(Shop.login(shop, name="Eve")) == "Eve at Shop"


@pytest.mark.parametrize("decorator", [step, action, check, metric, state])
def test_a_decorator_without_parentheses_does_not_lose_the_method(decorator):
    class Forgetful(Workflow):
        @decorator
        async def login(self):
            return "here"

    assert type(Forgetful.login) is Bare
    assert (Forgetful.login.name, Forgetful.login.decorator) == ("login", decorator.__name__)
    assert asyncio.run(Forgetful().login()) == "here"


# Steps of one object


def test_a_step_of_an_object_is_callable_and_always_the_same():
    shop = Shop()

    assert isinstance(shop.login, BoundStep)
    first = shop.login
    assert Shop.login.__get__(shop, Shop) is first
    assert shop.login is first
    assert asyncio.run(shop.login("Eve")) == "Eve at Shop"


def test_a_step_has_no_response_before_the_first_one():
    with pytest.raises(NoResponse, match="step login has no response yet") as caught:
        _ = Shop().login.response

    assert isinstance(caught.value, Invalid)


def test_a_step_remembers_its_last_response():
    shop = Shop()
    first, second = (HTTPResponse("GET", "http://shop/", status, [], b"") for status in (200, 201))

    shop.login.last = first
    shop.login.last = second

    assert shop.login.response is second


def test_each_object_has_responses_of_its_own():
    mine, yours = Shop(), Shop()

    mine.login.last = HTTPResponse("GET", "http://shop/", 200, [], b"")

    with pytest.raises(NoResponse):
        _ = yours.login.response


# Other methods of one object


def test_actions_checks_and_metrics_stay_ordinary_methods():
    shop = Shop()

    assert shop.pause(3) == (3, shop)
    assert shop.login_is_quick("answer") == "answer"
    assert shop.logins(login=None) == 1
    assert shop.token() == "t"


def test_a_use_method_is_called_with_the_values_that_were_received():
    shop = Shop()
    shop.received = {"seeded": {"number": 1}, "other": {"number": 2}}

    assert shop.seeded() == "1 none Shop"
    assert shop.seeded(number=5, text="given") == "5 given Shop"


def test_a_use_method_that_received_nothing_misses_its_arguments():
    with pytest.raises(TypeError, match="number"):
        Shop().seeded()


# Inheritance


class Members(Shop):
    @step()
    async def login(self) -> HTTPResponse:
        return "member, " + await super().login("Bob")


@pytest.mark.parametrize("is_looked_at_before", [True, False])
def test_a_step_that_overrides_another_can_call_it(is_looked_at_before):
    members = Members()
    if is_looked_at_before:
        assert members.login.last is None

    assert asyncio.run(Members.login(members)) == "member, Bob at Members"
    assert asyncio.run(members.login()) == "member, Bob at Members"


def test_the_step_that_overrides_keeps_the_response():
    members = Members()
    members.login.last = answer = HTTPResponse("GET", "http://shop/", 200, [], b"")

    asyncio.run(members.login())

    assert members.login.response is answer


def test_inherited_methods_run_on_the_object_of_the_subclass():
    class Plain(Shop):
        pass

    assert asyncio.run(Plain().login()) == "Ada at Plain"


# Classes


def test_a_workflow_without_settings_has_the_defaults():
    assert (Workflow.vus, Workflow.duration, Workflow.load, Workflow.priority) == (1, None, None, "auto")
    assert (Workflow.timeout, Workflow.thresholds, Workflow.verify, Workflow.abstract) == (None, (), True, False)
    assert Workflow.depends_on == ()
    assert Workflow().received == {}


def test_every_setting_and_every_attribute_of_a_workflow_is_a_reserved_name():
    public = {name for name in vars(Workflow) if not name.startswith("_")}
    # Tests that were written before these came may have steps or feeds of the same names, which go on working.
    later = {"users", "connections", "on_timeout", "pause", "metric", "extend"}

    assert (public | set(Workflow.__annotations__) | {"received"}) - later == RESERVED


def test_pauses_and_metrics_of_a_user_reach_its_hooks():
    class Hooks:
        def __init__(self):
            self.said = []

        def pause(self, *given):
            self.said.append(("pause", *given))

        def metric(self, *given):
            self.said.append(("metric", *given))

        def extend(self, *given):
            self.said.append(("extend", *given))

    user = Workflow()
    user._hooks = Hooks()
    user.pause("1s")
    user.pause("1s", "3s")
    user.metric("cart", 3)
    user.metric("orders", 1, "count")
    user.extend("30s", "the index is built")
    assert user._hooks.said == [
        ("pause", "1s", None),
        ("pause", "1s", "3s"),
        ("metric", "cart", 3, "distribution"),
        ("metric", "orders", 1, "count"),
        ("extend", "30s", "the index is built"),
    ]


def test_the_client_of_a_workflow_is_typed():
    assert Workflow.__annotations__["client"] is Clients


def test_a_second_method_of_the_same_name_is_remembered():
    class Twice(Workflow):
        @step()
        async def login(self) -> None: ...

        @check("login")
        def login(self, login): ...  # noqa: F811 - it is what the test is about

    [(name, function)] = Twice.__duplicates__
    assert (name, function) == ("login", Twice.login.function)


def test_a_plain_method_that_hides_a_step_is_remembered():
    class Twice(Workflow):
        @step()
        async def login(self) -> None: ...

        def login(self): ...  # noqa: F811 - it is what the test is about

    [(name, function)] = Twice.__duplicates__
    assert (name, function) == ("login", Twice.login)


def test_a_step_that_hides_a_plain_method_is_remembered():
    class Twice(Workflow):
        def login(self): ...

        @step()
        async def login(self) -> None: ...  # noqa: F811 - it is what the test is about

    [(name, function)] = Twice.__duplicates__
    assert (name, function) == ("login", Twice.login.function)


def test_a_value_that_hides_a_step_is_remembered_with_the_step():
    class Twice(Workflow):
        @step()
        async def login(self) -> None: ...

        hidden = login
        login = 5

    [(name, function)] = Twice.__duplicates__
    assert (name, function) == ("login", Twice.hidden.function)


def test_plain_attributes_may_be_set_again_and_a_step_may_be_called_duplicates():
    class Fine(Workflow):
        words = 1
        words = 2

        @step()
        async def duplicates(self) -> None: ...

    assert Fine.__duplicates__ == ()
    assert isinstance(Fine.duplicates, Step)


def test_duplicates_of_a_base_class_stay_with_it():
    class Base(Workflow):
        @step()
        async def login(self) -> None: ...

        @step()
        async def login(self) -> None: ...  # noqa: F811 - it is what the test is about

    class Derived(Base):
        pass

    assert len(Base.__duplicates__) == 1
    assert Derived.__duplicates__ == ()


def test_workflows_can_be_made_by_a_program():
    made = type("Made", (Shop,), {"vus": 3})
    also = types.new_class("Also", (Shop,), {}, lambda body: body.update(vus=4))

    assert (made.vus, made.__duplicates__, also.vus, also.__duplicates__) == (3, (), 4, ())
    assert made().login is not None


# Dependencies


def test_depends_keeps_classes_and_names_in_their_order():
    @depends(Shop, "Seed")
    class Later(Workflow):
        pass

    assert Later.depends_on == (Shop, "Seed")
    assert Later.__name__ == "Later"


def test_one_depends_above_another_adds_to_it():
    @depends("First")
    @depends("Second")
    class Later(Workflow):
        pass

    assert Later.depends_on == ("First", "Second")


def test_a_subclass_inherits_dependencies_until_it_has_its_own():
    @depends("First")
    class Base(Workflow):
        pass

    class Same(Base):
        pass

    @depends("Other")
    class Own(Base):
        pass

    assert (Same.depends_on, Own.depends_on, Base.depends_on) == (("First",), ("Other",), ("First",))
