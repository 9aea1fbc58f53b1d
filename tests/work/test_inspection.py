"""Workflow classes become specifications, or all that is wrong with them is said at once, each with its line."""

import difflib
import functools
import textwrap
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any

import msgspec
import pytest

import talka.work.dsl
from talka.stats.tally import MetricTally
from talka.units import SECOND
from talka.work.arguments import URL, Auth, Cookies, Data, Directory, File, FileGlob, Headers, Params
from talka.work.dsl import (
    Provide,
    Use,
    Workflow,
    action,
    check,
    depends,
    metric,
    on_evict,
    on_start,
    on_stop,
    setup,
    state,
    step,
    teardown,
)
from talka.work.feeds import Feed, between
from talka.work.inspection import inspect_workflows, names_for_thresholds
from talka.work.responses import CustomResponse, HTTPResponse, Response
from talka.work.shapes import ConstantRate, ConstantVUs, CustomVUs, IterationsPerVU
from talka.work.specs import BadWorkflows, SpecProblem


def spec_of(workflow):
    (spec,) = inspect_workflows([workflow])
    return spec


def nodes_of(workflow):
    return {node.name: node for node in spec_of(workflow).nodes}


def node_of(declaration):
    """The one node of a workflow with this one declaration."""
    return nodes_of(type("Shop", (Workflow,), {declaration.name: declaration}))[declaration.name]


def layers_of(workflow):
    return [[node.name for node in layer] for layer in spec_of(workflow).layers]


def problems_of(*workflows, lines=None):
    with pytest.raises(BadWorkflows) as caught:
        inspect_workflows(workflows, file="shop.py", lines=lines or {})
    assert str(caught.value) == "\n".join(str(problem) for problem in caught.value.problems)
    return list(caught.value.problems)


def problem_of(*workflows, lines=None):
    (problem,) = problems_of(*workflows, lines=lines)
    return problem.text


def module_of(text, name="shop", file="shop.py"):
    """A module as a user would write it, without writing it."""
    head = "from talka import *; from talka.work.responses import HTTPResponse; "
    namespace = {"__name__": name}
    exec(compile(textwrap.dedent(text).replace("IMPORTS", head), file, "exec", dont_inherit=True), namespace)
    return SimpleNamespace(**namespace)


class Good(Workflow):
    """To be inherited from where something else is wrong."""

    @step()
    async def login(self) -> HTTPResponse: ...


# Problems


def test_a_problem_reads_as_file_line_and_sentence():
    assert str(SpecProblem("it is wrong", "shop.py", 7)) == "shop.py:7: it is wrong"
    assert str(SpecProblem("it is wrong", "shop.py")) == "shop.py: it is wrong"
    assert str(SpecProblem("it is wrong")) == "it is wrong"


def test_all_problems_of_all_workflows_are_said_at_once_each_with_its_line():
    module = module_of(
        """\
        IMPORTS
        class Shop(Workflow):
            vus = 0
            priority = "urgent"
            thresholds = ["nonsense"]
            timeout = "soon"

            @step()
            def login(self): ...

            @step("logn")
            async def browse(self) -> HTTPResponse: ...

            @check("browse")
            def order(self, missing): ...

        class Admin(Workflow):
            @step()
            def login(self) -> HTTPResponse: ...

            @state("Shop")
            def token(self): ...
        """
    )
    lines = {"Shop": 2, "Shop.vus": 3, "Shop.priority": 4, "Shop.thresholds": 5, "Shop.timeout": 6, "Admin": 17}

    problems = problems_of(module.Shop, module.Admin, lines=lines)

    assert {problem.line: problem.text.split(" ")[0] for problem in problems} == {
        3: "Shop:",
        4: "Shop:",
        5: "Shop:",
        6: "Shop:",
        8: "Shop.login",
        11: "Shop.browse",
        14: "Shop.order",
        18: "Admin.login",
        21: "@state",
    }
    assert all(str(problem).startswith(f"shop.py:{problem.line}: ") for problem in problems)


def test_a_class_that_lives_nowhere_has_problems_without_a_file():
    class Empty(Workflow):
        pass

    with pytest.raises(BadWorkflows) as caught:
        inspect_workflows([Empty])

    assert str(caught.value) == "Empty has no steps: decorate a method with @step()"


# The graph of steps


def test_steps_named_by_strings_or_by_the_methods_themselves_form_layers():
    class Shop(Workflow):
        @step()
        async def login(self) -> HTTPResponse: ...

        @step("login")
        async def browse(self) -> HTTPResponse: ...

        @step(login)
        async def search(self) -> HTTPResponse: ...

        @action(browse, "search")
        def pause(self): ...

        @step(pause)
        async def order(self) -> HTTPResponse: ...

    assert layers_of(Shop) == [["login"], ["browse", "search"], ["pause"], ["order"]]
    assert nodes_of(Shop)["pause"].after == {"browse", "search"}


def test_a_step_receives_the_results_of_earlier_ones_by_name():
    class Shop(Workflow):
        @step()
        async def login(self) -> HTTPResponse: ...

        @action(login)
        def session(self, login): ...

        @step(session)
        async def order(self, login, session, *, count=3, order=1) -> HTTPResponse: ...

    assert nodes_of(Shop)["order"].inputs == ("login", "session")
    assert nodes_of(Shop)["login"].inputs == ()


def test_a_check_or_metric_comes_after_its_parameters_without_being_told():
    class Shop(Good):
        @check()
        def quick(self, login): ...

        @metric("sample")
        async def size(self, login): ...

        @check("login")
        def alive(self): ...

    nodes = nodes_of(Shop)
    assert layers_of(Shop) == [["login"], ["quick", "size", "alive"]]
    assert nodes["quick"].after == nodes["size"].after == nodes["alive"].after == {"login"}
    assert (nodes["quick"].is_async, nodes["size"].is_async) == (False, True)


def test_steps_that_wait_for_each_other_are_a_problem_with_a_line():
    class Shop(Good):
        @step("second")
        async def first(self) -> HTTPResponse: ...

        @step("first")
        async def second(self) -> HTTPResponse: ...

    (problem,) = problems_of(Shop)
    assert problem.text == "steps of Shop: they depend on each other in a circle: first → second → first"
    assert problem.line == Shop.first.line


def test_a_step_that_does_not_exist_is_a_problem_with_a_suggestion():
    class Shop(Good):
        @step("logn", "zzz")
        async def order(self, login) -> HTTPResponse: ...

    assert [problem.text for problem in problems_of(Shop)] == [
        "Shop.order names 'logn', but there is no such step (did you mean login?)",
        "Shop.order names 'zzz', but there is no such step",
    ]


def test_a_step_of_another_workflow_cannot_be_named():
    class Shop(Workflow):
        @step(Good.login)
        async def order(self) -> HTTPResponse: ...

    assert problem_of(Shop) == (
        "Shop.order names login of Good: steps see only their own workflow; hand values on with @state"
    )


def test_a_declaration_that_belongs_to_no_class_cannot_be_named():
    @step()
    async def stray(self) -> HTTPResponse: ...

    class Shop(Workflow):
        @step(stray)
        async def order(self) -> HTTPResponse: ...

    assert problem_of(Shop).startswith("Shop.order names stray of another class: ")


def test_what_is_no_name_at_all_is_a_problem():
    class Shop(Workflow):
        @step(5, print)
        async def order(self) -> HTTPResponse: ...

    assert [problem.text for problem in problems_of(Shop)] == [
        "Shop.order names '5', but there is no such step",
        "Shop.order names 'print', but there is no such step",
    ]


def test_a_step_cannot_wait_for_itself():
    class Shop(Workflow):
        @step("order")
        async def order(self) -> HTTPResponse: ...

    assert problem_of(Shop) == "Shop.order names itself"


def test_state_is_no_step_to_wait_for():
    class Shop(Good):
        @state()
        def token(self) -> Provide[str]: ...

        @step(token)
        async def order(self) -> HTTPResponse: ...

    assert problem_of(Shop) == "Shop.order names 'token', but there is no such step"


@pytest.mark.parametrize("kind", ["check", "metric"])
def test_nothing_runs_after_a_check_or_metric_because_they_leave_no_result(kind):
    judge = check() if kind == "check" else metric("count")

    class Shop(Good):
        @judge
        def judged(self, login): ...

        @step("judged")
        async def order(self) -> HTTPResponse: ...

        @step()
        async def pay(self, judged) -> HTTPResponse: ...

    assert [problem.text for problem in problems_of(Shop)] == [
        f"Shop.order names judged, but a {kind} leaves no result and nothing runs after it: name the step it looks at",
        f"Shop.pay takes the result of judged, but a {kind} leaves no result and nothing runs after it: "
        "name the step it looks at",
    ]


def test_a_parameter_that_names_a_step_it_does_not_run_after_is_a_problem():
    class Shop(Good):
        @step()
        async def order(self, login) -> HTTPResponse: ...

    (problem,) = problems_of(Shop)
    assert problem.text == (
        "Shop.order takes the result of login, but does not run after it: add 'login' to its decorator"
    )
    assert problem.line == Shop.order.line


def test_a_parameter_nobody_fills_is_a_problem():
    class Shop(Good):
        @step("login")
        async def order(self, logn, count) -> HTTPResponse: ...

    assert [problem.text for problem in problems_of(Shop)] == [
        "Shop.order has the parameter logn, but there is no such step (did you mean login?) and no default",
        "Shop.order has the parameter count, but there is no such step and no default",
    ]


def test_parameters_that_cannot_be_filled_are_a_problem():
    class Shop(Workflow):
        @step()
        async def order(self, count=1, /, *args, **options) -> HTTPResponse: ...

    assert [problem.text for problem in problems_of(Shop)] == [
        "Shop.order has the parameter count=1: only plain and keyword parameters can be filled",
        "Shop.order has the parameter *args: only plain and keyword parameters can be filled",
        "Shop.order has the parameter **options: only plain and keyword parameters can be filled",
    ]


def test_a_method_without_self_is_a_problem():
    class Shop(Workflow):
        @step()
        async def order() -> HTTPResponse: ...

    assert problem_of(Shop) == "Shop.order is a method and needs the parameter self"


@pytest.mark.parametrize("judge", [check(), metric("count")])
def test_a_check_or_metric_that_looks_at_nothing_is_a_problem(judge):
    class Shop(Good):
        @judge
        def judged(self): ...

    assert problem_of(Shop) == "Shop.judged looks at no step: name steps in its decorator or as its parameters"


def test_a_check_with_a_wrong_name_is_complained_about_once():
    class Shop(Good):
        @check("logn")
        def quick(self): ...

    assert problem_of(Shop) == "Shop.quick names 'logn', but there is no such step (did you mean login?)"


@pytest.mark.parametrize("kind", ["count", "rate", "sample", "distribution"])
def test_a_metric_has_one_of_four_kinds(kind):
    class Shop(Good):
        @metric(kind, "login")
        def size(self): ...

    node = nodes_of(Shop)["size"]
    assert (node.kind, node.metric_kind) == ("metric", kind)
    assert MetricTally(node.metric_kind).kind == kind
    assert nodes_of(Shop)["login"].metric_kind is None


def test_a_metric_of_another_kind_is_a_problem():
    class Shop(Good):
        @metric("average", "login")
        def size(self): ...

    assert problem_of(Shop) == (
        "Shop.size has the kind 'average', which is not one of count, rate, sample, distribution"
    )


# Measured or not


class Own(Response):
    pass


@pytest.mark.parametrize("hint", [HTTPResponse, CustomResponse[int], CustomResponse, HTTPResponse | None, Own])
def test_a_step_that_returns_a_response_is_measured(hint):
    async def order(self): ...

    order.__annotations__["return"] = hint

    assert node_of(step()(order)).measured
    assert not node_of(action()(order)).measured


@pytest.mark.parametrize("hint", [None, dict, dict[str, int], Any, str | None, list[HTTPResponse]])
def test_a_step_that_returns_something_else_runs_and_is_announced_as_not_measured(hint):
    async def order(self): ...

    order.__annotations__["return"] = hint
    spec = spec_of(type("Shop", (Workflow,), {"order": step()(order)}))

    assert not spec.nodes[0].measured
    assert spec.announcements == (
        "Shop.order runs but is not measured: it calls no client, and its return annotation is not a client's response "
        "(write @action if that is what you want)",
    )


def test_measured_steps_and_actions_are_not_announced():
    class Shop(Good):
        @action()
        def pause(self): ...

    assert spec_of(Shop).announcements == ()


def test_a_workflow_is_a_test_when_one_of_its_steps_is_measured():
    class Setup(Workflow):
        @action()
        def prepare(self): ...

    assert spec_of(Good).is_test
    assert not spec_of(Setup).is_test


class Page:
    """A page object, as tests have them."""

    def __init__(self, user):
        self.user = user

    async def open(self):
        return await self.user.client.http.get("http://localhost:1/")


async def helper(user):
    api = user.client
    return await api.http.get("http://localhost:1/")


class Cloud:
    @staticmethod
    def client(name):
        return name


def test_a_step_that_calls_a_client_is_measured_annotated_or_not():
    class Shop(Workflow):
        @step()
        async def bare(self):
            await self.client.http.get("http://localhost:1/")

        @step()
        async def to_a_number(self) -> int:
            return (await self.client.custom.call(None)).value

        @step()
        async def through_a_method(self):
            return await self._fetch()

        @step()
        async def through_a_function(self):
            return await helper(self)

        @step()
        async def through_a_page(self):
            return await Page(self).open()

        @step()
        async def in_a_function_inside(self):
            return [await one() for one in [lambda: self.client.http.get("http://localhost:1/")]]

        async def _fetch(self):
            return await self.client.http.get("http://localhost:1/")

    spec = spec_of(Shop)
    assert [node.name for node in spec.nodes if not node.measured] == []
    assert spec.is_test
    assert spec.announcements == ()


def test_a_client_of_something_else_makes_no_step_a_measured_one():
    class Shop(Workflow):
        @step()
        async def buckets(self) -> None:
            Cloud.client("http")

        @step()
        async def calls_itself(self) -> None:
            await self.calls_itself()

        @step()
        async def uses_libraries(self) -> None:
            difflib.get_close_matches("a", ["b"])

    assert [node.name for node in spec_of(Shop).nodes if node.measured] == []


def test_methods_of_a_user_run_before_and_after_its_steps_and_are_measured():
    class Shop(Workflow):
        @on_start()
        async def login(self, url: URL = "http://localhost:1/"): ...

        @step()
        async def browse(self) -> HTTPResponse: ...

        @on_stop()
        def logout(self): ...

    spec = spec_of(Shop)
    assert [node.name for node in spec.nodes] == ["login", "browse", "logout"]
    assert [node.name for node in spec.starts] == ["login"]
    assert [node.name for node in spec.stops] == ["logout"]
    assert all(node.measured for node in spec.nodes)


def test_a_workflow_with_nothing_but_a_login_is_no_test():
    class Shop(Workflow):
        @on_start()
        async def login(self): ...

        @action()
        def idle(self): ...

    assert not spec_of(Shop).is_test


@pytest.mark.parametrize(
    ("load", "users", "fresh"),
    [
        (ConstantRate(1, "1s"), "auto", True),
        (ConstantRate(1, "1s"), "kept", False),
        (ConstantVUs(1, "1s"), "auto", False),
        (ConstantVUs(1, "1s"), "fresh", True),
    ],
)
def test_users_of_an_arrival_rate_are_fresh_and_those_in_a_loop_are_kept(load, users, fresh):
    class Shop(Good):
        pass

    Shop.load, Shop.users = load, users
    assert spec_of(Shop).has_fresh_users is fresh


def test_a_word_that_users_or_connections_cannot_be_is_a_problem():
    class Shop(Good):
        users = "new"
        connections = "cold"

    texts = [problem.text for problem in problems_of(Shop)]
    assert texts == [
        "Shop: users = 'new' is not one of auto, fresh, kept",
        "Shop: connections = 'cold' is not one of warm, fresh",
    ]


def test_a_feed_or_a_step_named_users_is_the_tests_own():
    class Shop(Good):
        users = Feed.csv("users.csv")

        @step()
        async def connections(self) -> HTTPResponse: ...

    spec = spec_of(Shop)
    assert (spec.users, spec.connections, list(spec.feeds)) == ("auto", "warm", ["users"])


def test_a_step_that_is_not_async_is_a_problem():
    class Shop(Workflow):
        @step()
        def login(self) -> HTTPResponse: ...

        @step()
        @staticmethod
        def logout(self) -> HTTPResponse: ...

    problems = problems_of(Shop)
    assert [problem.text for problem in problems] == [
        "Shop.login must be an async method: write async def",
        "Shop.logout must be an async method: write async def",
    ]
    assert [problem.line for problem in problems] == [Shop.login.line, Shop.logout.line]


# Annotations and optimized arguments


def test_optimized_arguments_are_found_by_their_annotation():
    class Shop(Workflow):
        @step()
        async def order(
            self,
            url: URL = "http://shop/",
            headers: Headers = {"a": "b"},
            data: Data = b"x",
            params: Params = {"q": 1},
            cookies: Cookies = {"c": "d"},
            auth: Auth = ("u", "p"),
            file: File = "x.json",
            folder: Directory = "bodies",
            files: FileGlob = "*.json",
            maybe: URL | None = None,
            noted: Annotated[URL, "of the shop"] = "http://shop/noted",
            *,
            count: int = 3,
            text: str | None = None,
        ) -> HTTPResponse: ...

    assert nodes_of(Shop)["order"].optimized == {
        "url": ("url", "http://shop/"),
        "headers": ("headers", {"a": "b"}),
        "data": ("data", b"x"),
        "params": ("params", {"q": 1}),
        "cookies": ("cookies", {"c": "d"}),
        "auth": ("auth", ("u", "p")),
        "file": ("file", "x.json"),
        "folder": ("directory", "bodies"),
        "files": ("glob", "*.json"),
        "maybe": ("url", None),
        "noted": ("url", "http://shop/noted"),
    }


def test_annotations_that_are_strings_are_read():
    module = module_of(
        """\
        from __future__ import annotations
        IMPORTS
        class Shop(Workflow):
            @step()
            async def login(self, url: URL = "http://shop/", maybe: URL | None = None) -> HTTPResponse: ...

            @state()
            def token(self) -> Provide[str]: ...
        """
    )

    node = nodes_of(module.Shop)["login"]
    assert node.measured
    assert node.optimized == {"url": ("url", "http://shop/"), "maybe": ("url", None)}
    assert [provide.key for provide in spec_of(module.Shop).provides] == ["token"]


@pytest.mark.parametrize("hint", ["Missing", "dict[", "[][0]", "HTTPResponse.missing"])
def test_an_annotation_that_cannot_be_read_is_one_problem(hint):
    module = module_of(
        f"""\
        IMPORTS
        class Shop(Workflow):
            @step()
            async def login(self) -> "{hint}": ...

            @state()
            def token(self) -> "{hint}": ...
        """
    )

    login, token = problems_of(module.Shop)
    assert (login.line, token.line) == (3, 6)
    assert login.text.startswith("Shop.login has an annotation that cannot be read: ")
    assert token.text.startswith("Shop.token has an annotation that cannot be read: ")


def test_an_optimized_argument_without_default_is_a_problem():
    class Shop(Workflow):
        @step()
        async def login(self, url: URL) -> HTTPResponse: ...

    assert problem_of(Shop) == "Shop.login needs a default for url: it is what gets prepared before the run"


# What a step expects, and its tags


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((), set()),
        (404, {404}),
        ([100, 599], {100, 599}),
        (range(400, 403), {400, 401, 402}),
        ([404, range(500, 502)], {404, 500, 501}),
        ({410, 404}, {404, 410}),
        (range(400, 400), set()),
        ((status for status in (404,)), {404}),
    ],
)
def test_expect_takes_a_status_a_range_or_several_of_them(given, expected):
    async def order(self) -> HTTPResponse: ...

    assert node_of(step(expect=given)(order)).expect == expected


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("404", "Shop.order expects '404': give a status such as 404, a range, or a list of them"),
        (4.5, "Shop.order expects 4.5: give a status such as 404, a range, or a list of them"),
        ([404, None], "Shop.order expects [404, None]: give a status such as 404, a range, or a list of them"),
        (None, "Shop.order expects None: give a status such as 404, a range, or a list of them"),
        (99, "Shop.order expects the status 99: statuses go from 100 to 599"),
        (600, "Shop.order expects the status 600: statuses go from 100 to 599"),
        (True, "Shop.order expects the status 1: statuses go from 100 to 599"),
        (range(400, 10**15), "Shop.order expects the status 999999999999999: statuses go from 100 to 599"),
        (range(0, 10**15), "Shop.order expects the status 0: statuses go from 100 to 599"),
    ],
)
def test_expect_of_anything_else_is_a_problem(given, problem):
    class Shop(Workflow):
        @step(expect=given)
        async def order(self) -> HTTPResponse: ...

    assert problem_of(Shop) == problem


def test_tags_are_kept():
    async def order(self) -> HTTPResponse: ...

    tags = {"t" * 64: "v" * 64} | {str(number): "x" for number in range(9)}
    assert node_of(step(tags=tags)(order)).tags == tags


@pytest.mark.parametrize(
    ("tags", "problem"),
    [
        ({str(number): "x" for number in range(11)}, "has 11 tags: at most 10 are kept"),
        ({"page": 5}, "has the tag 'page': names and values are strings of at most 64 characters"),
        ({5: "page"}, "has the tag 5: names and values are strings of at most 64 characters"),
        ({"page": "x" * 65}, "has the tag 'page': names and values are strings of at most 64 characters"),
        ({"x" * 65: "page"}, f"has the tag '{'x' * 65}': names and values are strings of at most 64 characters"),
    ],
)
def test_tags_that_are_too_many_or_too_long_or_no_text_are_a_problem(tags, problem):
    class Shop(Workflow):
        @step(tags=tags)
        async def order(self) -> HTTPResponse: ...

    assert problem_of(Shop) == f"Shop.order {problem}"


# Settings of a workflow


def test_a_workflow_without_settings_runs_once_for_one_user():
    spec = spec_of(Good)

    assert spec.shape == IterationsPerVU(1, 1)
    assert spec.plan == spec.shape.plan()
    assert (spec.name, spec.workflow, spec.file, spec.line) == ("Good", Good, None, None)
    assert (spec.priority, spec.thresholds, spec.depends_on) == ("auto", (), frozenset())
    assert spec.timeout_ns == 3660 * SECOND


def test_a_driver_is_one_of_three():
    class Shop(Good):
        driver = "direct"

    (spec,) = inspect_workflows([Shop])
    assert spec.driver == "direct"
    Shop.driver = "fast"
    with pytest.raises(BadWorkflows, match="Shop: driver = 'fast' is not one of auto, direct, task"):
        inspect_workflows([Shop])


def test_settings_become_shape_priority_timeout_and_thresholds():
    class Shop(Good):
        vus = 5
        duration = "30s"
        priority = "HIGH"
        thresholds = ["failed < 1%", "login.response_time.p99 < 1s"]

    (spec,) = inspect_workflows([Shop], file="shop.py", lines={"Shop": 7})

    assert spec.shape == ConstantVUs(5, "30s")
    assert spec.priority == "high"
    assert spec.timeout_ns == 90 * SECOND
    assert [rule.text for rule in spec.thresholds] == ["failed < 1%", "login.response_time.p99 < 1s"]
    assert (spec.file, spec.line) == ("shop.py", 7)


def test_a_timeout_of_its_own_holds_in_place_of_the_default():
    class Shop(Good):
        load = ConstantRate("50/s", "10s")
        timeout = "2s"

    spec = spec_of(Shop)
    assert spec.shape == ConstantRate("50/s", "10s")
    assert spec.timeout_ns == 2 * SECOND


def test_what_happens_when_its_time_is_over_is_read_with_the_methods_that_save():
    class Shop(Good):
        on_timeout = "notify"

        @on_evict()
        async def save(self): ...

        @on_evict()
        def note(self): ...

    spec = spec_of(Shop)

    assert (spec.on_timeout, [node.name for node in spec.evictions]) == ("notify", ["save", "note"])
    assert [node.name for node in spec.every_node][-2:] == ["save", "note"]


def test_a_step_named_on_timeout_is_no_setting():
    class Shop(Good):
        @action()
        def on_timeout(self): ...

    assert spec_of(Shop).on_timeout == "kill"


def test_one_threshold_need_not_be_in_a_list():
    class Shop(Good):
        thresholds = "failed < 1%"

    assert [rule.text for rule in spec_of(Shop).thresholds] == ["failed < 1%"]


def broken(elapsed_s):
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("settings", "attribute", "problem"),
    [
        ({"vus": 0}, "vus", "Shop: IterationsPerVU: vus = 0 means that nothing would run"),
        ({"vus": "duration"}, "vus", 'Shop: IterationsPerVU: vus = "duration" is not possible'),
        ({"vus": -1, "duration": "1m"}, "vus", "Shop: ConstantVUs: vus = -1 is not possible"),
        ({"duration": "load"}, "duration", 'Shop: ConstantVUs: duration = "load" is not a duration'),
        ({"duration": []}, "duration", "Shop: ConstantVUs: duration = [] is not a duration"),
        ({"duration": 0}, "duration", "Shop: ConstantVUs: duration = 0 means that nothing would run"),
        ({"load": "fast"}, "load", "Shop: load = 'fast' is not a load shape: write one such as ConstantVUs(10, '1m')"),
        ({"load": ConstantVUs}, "load", "Shop: load = <class 'talka.work.shapes.ConstantVUs'> is not a load shape"),
        ({"load": CustomVUs(broken, "5s")}, "load", "Shop: CustomVUs: function raised ZeroDivisionError"),
        ({"load": ConstantVUs(1, "5s"), "vus": 2}, "load", "Shop: it has load and also vus or duration: load already"),
        ({"load": ConstantVUs(1, "5s"), "duration": 2}, "load", "Shop: it has load and also vus or duration: load"),
        (
            {"priority": "urgent"},
            "priority",
            "Shop: priority = 'urgent' is not one of low, normal, high, exclusive, auto",
        ),
        ({"priority": None}, "priority", "Shop: priority = 'none' is not one of low, normal, high, exclusive, auto"),
        ({"on_timeout": "wait"}, "on_timeout", "Shop: on_timeout = 'wait' is not one of kill, notify, pause"),
        ({"timeout": "soon"}, "timeout", 'Shop: timeout = "soon" is not a duration'),
        ({"timeout": "0s"}, "timeout", "Shop: timeout = '0s' leaves no time to run: write a duration above 0"),
        ({"thresholds": ["rubbish"]}, "thresholds", 'Shop: The threshold "rubbish" is wrong'),
        ({"thresholds": ["logn.failed < 1%"]}, "thresholds", 'Shop: The threshold "logn.failed < 1%" is wrong'),
        ({"thresholds": None}, "thresholds", "Shop: thresholds = None is not a list of rules such as 'failed < 1%'"),
        ({"thresholds": [5]}, "thresholds", "Shop: thresholds = [5] is not a list of rules such as 'failed < 1%'"),
    ],
)
def test_a_bad_setting_is_a_problem_at_the_line_of_the_attribute(settings, attribute, problem):
    shop = type("Shop", (Good,), settings)

    (found,) = problems_of(shop, lines={"Shop": 1, f"Shop.{attribute}": 42})

    assert found.text.startswith(problem)
    assert found.line == 42


def test_a_bad_setting_that_is_inherited_is_a_problem_at_the_line_of_the_base_class():
    class Base(Good):
        abstract = True
        timeout = "soon"

    class Shop(Base):
        pass

    lines = {"Shop": 9, "Base": 1, "Base.timeout": 3}
    assert [problem.line for problem in problems_of(Shop, lines=lines)] == [3]
    assert [problem.line for problem in problems_of(Shop, lines={"Shop": 9})] == [9]
    assert [problem.line for problem in problems_of(Shop, lines=lines | {"Shop.timeout": 10})] == [10]
    Base.__module__ = "another"
    assert [problem.line for problem in problems_of(Shop, lines=lines)] == [9]


def test_every_bad_threshold_is_said():
    class Shop(Good):
        thresholds = ["one", "failed < 1%", "two"]

    assert len(problems_of(Shop)) == 2


def test_load_replaces_vus_of_a_base_class():
    class Base(Good):
        vus = 5
        duration = "1m"

    class Shop(Base):
        load = ConstantVUs(2, "5s")

    assert spec_of(Shop).shape == ConstantVUs(2, "5s")


@pytest.mark.parametrize("settings", [{"vus": 5}, {}])
def test_load_of_a_base_class_beside_vus_is_a_problem(settings):
    class Base(Good):
        load = ConstantVUs(2, "5s")
        if not settings:
            vus = 5

    assert "load and also vus" in problem_of(type("Shop", (Base,), settings))


def test_thresholds_may_name_steps_checks_and_metrics_of_the_workflow():
    class Shop(Good):
        thresholds = ["login.failed < 1%", "checks.quick > 99%", "metrics.size.mean < 5"]

        @check("login")
        def quick(self): ...

        @metric("sample", "login")
        def size(self): ...

        @action("login")
        def pause(self): ...

    spec = spec_of(Shop)
    assert len(spec.thresholds) == 3
    names = names_for_thresholds({"Shop": spec.nodes})
    assert (names["steps"], names["checks"], names["metrics"]) == (["login"], ["quick"], ["size"])
    assert names["workflows"] == {"Shop": {"login": {}}}
    assert {"login", "quick", "size"} < set(names["methods"])


def test_thresholds_may_speak_of_any_metric_where_steps_make_their_own():
    class Shop(Workflow):
        thresholds = ("metrics.cart.total > 1",)

        @step()
        async def login(self) -> HTTPResponse:
            self.metric("cart", 3)
            return await self.client.http.get("http://shop.test/")

    spec = spec_of(Shop)
    assert [rule.name for rule in spec.thresholds] == ["cart"]
    assert "metrics" not in names_for_thresholds({"Shop": spec.nodes})


def count_in_cart(user: Any) -> None:
    def count(number: int) -> None:
        user.metric("cart", number)

    count(3)


def test_metrics_that_functions_beside_a_step_make_are_found():
    class Shop(Workflow):
        thresholds = ("metrics.cart.total > 1",)

        @step()
        async def login(self) -> HTTPResponse:
            count_in_cart(self)
            return await self.client.http.get("http://shop.test/")

    assert "metrics" not in names_for_thresholds({"Shop": spec_of(Shop).nodes})


def test_thresholds_may_choose_steps_by_their_tags_and_their_class():
    class Shop(Workflow):
        thresholds = ("response_time{kind=page}.p99 < 1s", "Shop.login/home.failed < 1%", "Shop.failed < 1%")

        @step(tags={"kind": "page"})
        async def login(self) -> HTTPResponse:
            return await self.client.http.get("http://shop.test/", name="home")

    by_tag, by_call, by_class = spec_of(Shop).thresholds
    assert by_tag.members == (("Shop", "login"),)
    assert (by_call.workflow, by_call.step, by_call.call) == ("Shop", "login", "home")
    assert (by_class.workflow, by_class.step) == ("Shop", None)


def test_a_threshold_about_a_step_with_a_problem_is_not_a_second_problem():
    class Shop(Workflow):
        thresholds = ["login.failed < 1%"]

        @step()
        def login(self) -> HTTPResponse: ...

    assert problem_of(Shop).startswith("Shop.login must be an async method")


# Names


@pytest.mark.parametrize("name", sorted(talka.work.dsl.RESERVED))
def test_a_method_with_a_name_talka_keeps_for_itself_is_one_problem(name):
    async def method(self) -> HTTPResponse: ...

    shop = type("Shop", (Workflow,), {name: step()(method)})

    (problem,) = problems_of(shop)
    assert problem.text == f"Shop.{name} has a name Talka keeps for itself: choose another"
    assert problem.line == method.__code__.co_firstlineno


def test_two_methods_of_one_name_are_a_problem_at_the_line_of_the_second():
    class Shop(Workflow):
        @step()
        async def login(self) -> HTTPResponse: ...

        @step()
        async def login(self) -> HTTPResponse: ...  # noqa: F811 - it is what the test is about

    (problem,) = problems_of(Shop)
    assert problem.text == "Shop has two methods named login"
    assert problem.line == Shop.login.line


def test_two_methods_of_one_name_in_a_base_class_are_a_problem():
    class Base(Workflow):
        @step()
        async def login(self) -> HTTPResponse: ...

        @step()
        async def login(self) -> HTTPResponse: ...  # noqa: F811 - it is what the test is about

    class Shop(Base):
        pass

    assert problem_of(Shop) == "Base has two methods named login"


def test_one_method_under_two_names_is_a_problem():
    class Shop(Workflow):
        @step()
        async def login(self) -> HTTPResponse: ...

        signin = login

    assert problem_of(Shop) == "Shop.login is the same method as signin: write it a second time"


@pytest.mark.parametrize("decorator", [step, action, check, metric, state])
def test_a_decorator_without_parentheses_is_one_problem(decorator):
    class Shop(Good):
        @decorator
        async def order(self): ...

    name = decorator.__name__
    assert problem_of(Shop) == f"Shop.order is under @{name} without parentheses: write @{name}()"


def test_a_decorator_above_ours_that_hides_the_step_is_a_problem():
    def logged(function):
        @functools.wraps(function)
        def wrapper(*args): ...

        return wrapper

    class Shop(Good):
        @logged
        @step()
        async def order(self) -> HTTPResponse: ...

        @staticmethod
        @check("login")
        def quick(): ...

    first, second = problems_of(Shop)
    assert first.text == "Shop.order has a decorator above @step: put @step on top"
    assert second.text == "Shop.quick has a decorator above @check: put @check on top"
    assert first.line == Shop.order.__wrapped__.line


def test_a_decorator_below_ours_is_fine():
    def logged(function):
        @functools.wraps(function)
        async def wrapper(*args, **kwargs): ...

        return wrapper

    class Shop(Workflow):
        @step()
        @logged
        async def order(self, url: URL = "http://shop/") -> HTTPResponse: ...

    node = nodes_of(Shop)["order"]
    assert node.measured
    assert node.optimized == {"url": ("url", "http://shop/")}


def test_a_step_of_something_that_has_no_line_is_complained_about_at_the_class():
    shop = type("Shop", (Workflow,), {"order": step()(len)})

    assert {problem.line for problem in problems_of(shop, lines={"Shop": 3})} == {3}


# Inheritance


class Base(Workflow):
    abstract = True

    @step()
    async def login(self) -> HTTPResponse: ...

    @step(login)
    async def browse(self, login) -> HTTPResponse: ...

    @step("browse")
    async def order(self) -> HTTPResponse: ...


def test_steps_of_base_classes_are_inherited():
    class Shop(Base):
        @step(Base.order)
        async def pay(self) -> HTTPResponse: ...

    assert layers_of(Shop) == [["login"], ["browse"], ["order"], ["pay"]]


def test_a_step_that_overrides_another_takes_its_place():
    class Shop(Base):
        @action()
        async def login(self) -> None: ...

    nodes = nodes_of(Shop)
    assert list(nodes) == ["login", "browse", "order"]
    assert (nodes["login"].kind, nodes["login"].function) == ("action", Shop.login.function)
    assert nodes["browse"].after == {"login"}


def test_a_plain_attribute_takes_a_step_away():
    class Shop(Base):
        order = None

    assert list(nodes_of(Shop)) == ["login", "browse"]


def test_a_step_that_was_taken_away_cannot_be_waited_for():
    class Shop(Base):
        browse = None

    assert problem_of(Shop) == "Shop.order names 'browse', but there is no such step"


def test_a_problem_of_a_step_from_another_file_is_said_with_that_file():
    common = module_of(
        """\
        IMPORTS
        class Base(Workflow):
            @step()
            def login(self) -> HTTPResponse: ...
        """,
        name="common",
        file="common.py",
    )
    module = module_of("IMPORTS\nclass Shop(Workflow): pass")
    shop = type("Shop", (common.Base,), {"__module__": "shop"})
    assert module.Shop.__module__ == shop.__module__

    assert [str(problem) for problem in problems_of(shop, lines={"Shop": 2})] == [
        "common.py:3: Shop.login must be an async method: write async def"
    ]


def test_a_class_that_lives_nowhere_has_problems_without_a_file_though_its_base_has_one():
    class Wrong(Workflow):
        @step()
        def login(self) -> HTTPResponse: ...

    with pytest.raises(BadWorkflows) as caught:
        inspect_workflows([type("Shop", (Wrong,), {"__module__": "shop"})])

    assert str(caught.value) == "Shop.login must be an async method: write async def"


def test_a_step_may_be_borrowed_by_another_workflow():
    class Lender(Workflow):
        @step()
        async def login(self) -> HTTPResponse: ...

        @step(login)
        async def order(self) -> HTTPResponse: ...

    class Borrower(Workflow):
        login = Lender.login

        @step(login)
        async def browse(self) -> HTTPResponse: ...

    assert (layers_of(Lender), layers_of(Borrower)) == ([["login"], ["order"]], [["login"], ["browse"]])


def test_a_node_knows_its_line_and_its_file_when_that_is_another():
    shop = type("Shop", (Base,), {"__module__": "shop"})

    (spec,) = inspect_workflows([shop], file="shop.py", lines={})
    (own,) = inspect_workflows([Good], file="shop.py", lines={})

    assert (spec.nodes[0].file, spec.nodes[0].line) == (Base.login.function.__code__.co_filename, Base.login.line)
    assert (own.nodes[0].file, own.nodes[0].line) == (None, Good.login.line)


# Workflows among each other


def workflow_named(name, *bases, **attributes):
    return type(name, bases or (Good,), attributes)


def test_workflows_come_behind_those_they_depend_on():
    seed = workflow_named("Seed")
    shop = depends(seed)(workflow_named("Shop"))
    report = depends("Shop", "Seed")(workflow_named("Report"))

    specs = inspect_workflows([report, shop, seed])

    assert [spec.name for spec in specs] == ["Seed", "Shop", "Report"]
    assert [spec.depends_on for spec in specs] == [set(), {"Seed"}, {"Shop", "Seed"}]


def test_a_dependency_that_does_not_exist_is_a_problem_with_a_suggestion():
    shop = depends("Sed", Good)(workflow_named("Shop"))

    problems = problems_of(workflow_named("Seed"), shop, lines={"Shop": 4})

    assert [str(problem) for problem in problems] == [
        "shop.py:4: @depends of Shop names Sed, but there is no such workflow (did you mean Seed?)",
        "shop.py:4: @depends of Shop names Good, but there is no such workflow",
    ]


def test_workflows_that_wait_for_each_other_are_a_problem_and_do_not_hide_others():
    first = depends("Second")(workflow_named("First", timeout="soon"))
    second = depends("First")(workflow_named("Second"))

    problems = problems_of(first, second, lines={"First": 3, "First.timeout": 4})

    assert [problem.line for problem in problems] == [3, 4]
    assert problems[0].text == "@depends: they depend on each other in a circle: First → Second → First"


def test_a_workflow_that_waits_for_itself_is_a_problem():
    assert problem_of(depends("Shop")(workflow_named("Shop"))).endswith("circle: Shop → Shop")


def test_two_workflows_of_one_name_are_a_problem():
    problem = problem_of(workflow_named("Shop"), workflow_named("Shop"))

    assert problem == "there are two workflows named Shop"


def test_a_workflow_without_steps_is_a_problem_but_one_with_state_alone_is_none():
    class Numbers(Workflow):
        @state()
        def number(self) -> Provide[int]: ...

    assert spec_of(Numbers).layers == ()
    assert problem_of(workflow_named("Empty", Workflow)) == "Empty has no steps: decorate a method with @step()"


# State


class Seed(Workflow):
    @step()
    async def create(self) -> HTTPResponse: ...

    @state("Shop")
    def token(self) -> Provide[str]: ...

    @state("Shop", "Report")
    async def number(self) -> Provide[int]: ...


@depends(Seed)
class Shop(Good):
    @state(Seed)
    def seeded(self, token: str, number) -> Use[str]: ...


class Report(Good):
    pass


def test_provide_and_use_are_read():
    seed, report, shop = inspect_workflows([Shop, Seed, Report])

    assert [(p.key, p.is_async, p.targets, p.function) for p in seed.provides] == [
        ("token", False, {"Shop"}, Seed.token.function),
        ("number", True, {"Shop", "Report"}, Seed.number.function),
    ]
    assert [(u.method, u.sources, u.types, u.function) for u in shop.uses] == [
        ("seeded", ("Seed",), {"token": str, "number": Any}, Shop.seeded.function)
    ]
    assert (seed.uses, shop.provides, report.uses) == ((), (), ())


def test_a_state_may_be_provided_from_farther_away():
    @depends(Shop)
    class Later(Good):
        @state(Seed)
        def seeded(self, number: int) -> Use[int]: ...

    class Seed2(Seed):
        __qualname__ = "Seed"

        @state("Later")
        def number(self) -> Provide[int]: ...

        @state("Shop")
        def token(self) -> Provide[str]: ...

    Seed2.__name__ = "Seed"
    shop = depends("Seed")(workflow_named("Shop"))

    assert [spec.name for spec in inspect_workflows([Seed2, shop, Later])] == ["Seed", "Shop", "Later"]


def test_state_that_names_nobody_flows_nowhere_and_is_legal():
    class Quiet(Good):
        @state()
        def token(self) -> Provide[str]: ...

        @state()
        def seeded(self, number: int) -> Use[int]: ...

    spec = spec_of(Quiet)
    assert (spec.provides[0].targets, spec.uses[0].sources) == (set(), ())


def test_state_of_a_workflow_that_does_not_exist_is_a_problem_at_its_own_line():
    class Lonely(Good):
        @state("Shp")
        def token(self) -> Provide[str]: ...

    problem, *others = problems_of(Lonely, workflow_named("Shop"), lines={"Lonely": 1})
    assert (problem.text, problem.line, others) == (
        "@state of Lonely.token names Shp, but there is no such workflow (did you mean Shop?)",
        Lonely.token.line,
        [],
    )


def test_use_of_what_nobody_provides_is_a_problem():
    class Shop(Good):
        depends_on = ("Seed", "Report")

        @state("Seed", "Report")
        def seeded(self, tokn: str, token: str) -> Use[str]: ...

    (problem,) = problems_of(Seed, Shop, Report)
    assert problem.text == (
        "Shop.seeded uses 'tokn', but nobody provides it: no @state method named tokn with -> Provide[…] "
        "in Seed or Report"
    )
    assert problem.line == Shop.seeded.line


def test_use_of_a_workflow_that_is_not_among_the_dependencies_is_a_problem():
    class Shop(Good):
        @state("Seed")
        def seeded(self, token: str) -> Use[str]: ...

    assert problem_of(Seed, Shop, Report) == (
        "Shop.seeded uses state of Seed, which need not have run: add @depends('Seed')"
    )


def test_use_of_what_is_provided_to_others_only_is_a_problem():
    @depends("Seed", "Shop")
    class Report(Good):
        @state("Shop", "Seed")
        def seeded(self, token: str) -> Use[str]: ...

    assert problem_of(Seed, Shop, Report) == (
        "Report.seeded uses 'token', which Seed provides to others only: name Report in its @state(…)"
    )


def test_use_of_a_workflow_with_problems_of_its_own_is_still_looked_at():
    class Shop(Good):
        timeout = "soon"
        depends_on = ("Seed",)

        @state("Seed")
        def seeded(self, tokn: str) -> Use[str]: ...

    assert len(problems_of(Seed, Shop, Report)) == 2


@pytest.mark.parametrize("hint", ["str", "None", ""])
def test_state_without_provide_or_use_is_a_problem(hint):
    module = module_of(
        f"""\
        IMPORTS
        class Shop(Workflow):
            @state("Shop")
            def token(self){f" -> {hint}" if hint else ""}: ...
        """
    )

    (problem,) = problems_of(module.Shop)
    assert problem.text == (
        "@state of Shop.token needs the return annotation Provide[…] (to hand a value on) or Use[…] (to receive one)"
    )
    assert problem.line == 3


def test_a_provide_with_parameters_is_a_problem_because_nobody_fills_them():
    class Shop(Good):
        @state()
        def token(self, login) -> Provide[str]: ...

        @state()
        def number(self, start=1) -> Provide[int]: ...

    (problem,) = problems_of(Shop)
    assert problem.text == (
        "@state of Shop.token hands a value on and takes no parameters: read self.STEP.response instead"
    )
    assert problem.line == Shop.token.line


@dataclass
class Point:
    x: int


class Pair(msgspec.Struct):
    point: Point


@pytest.mark.parametrize("hint", [str, int | None, list[dict[str, float]], Any, Point, Pair, bytes, dict[int, str]])
def test_state_may_be_anything_that_can_be_encoded(hint):
    def token(self): ...

    def seeded(self, token): ...

    token.__annotations__["return"] = Provide[hint]
    seeded.__annotations__.update({"return": Use[hint], "token": hint})

    assert spec_of(workflow_named("Shop", token=state()(token), seeded=state()(seeded))).uses[0].types == {
        "token": hint
    }


@pytest.mark.parametrize(
    ("hint", "reason"),
    [
        (HTTPResponse, "use numbers, text, lists, dicts, dataclasses or msgspec structs"),
        (list[complex] | None, "use numbers, text, lists, dicts, dataclasses or msgspec structs"),
        (list[int] | set[int], "Type unions may not contain more than one array-like (list, set, tuple) type"),
    ],
)
def test_state_that_cannot_be_encoded_is_a_problem(hint, reason):
    def token(self): ...

    def seeded(self, token): ...

    token.__annotations__["return"] = Provide[hint]
    seeded.__annotations__.update({"return": Use[str], "token": hint})

    provided, used = problems_of(workflow_named("Shop", token=state()(token), seeded=state()(seeded)))
    assert provided.text.startswith(f"@state of Shop.token: token cannot be handed on: {reason}")
    assert used.text.startswith(f"@state of Shop.seeded: token cannot be handed on: {reason}")
    assert (provided.line, used.line) == (token.__code__.co_firstlineno, seeded.__code__.co_firstlineno)


# What runs once, feeds and pauses.


def test_setup_and_teardown_run_apart_from_the_steps() -> None:
    class Shop(Workflow):
        @setup()
        async def open_up(self, url: URL = "http://shop/") -> None: ...

        @teardown()
        def clear(self) -> None: ...

        @step()
        async def buy(self) -> HTTPResponse: ...

    [spec] = inspect_workflows([Shop])
    assert [node.name for node in spec.setups] == ["open_up"]
    assert [node.name for node in spec.teardowns] == ["clear"]
    assert [node.name for node in spec.nodes] == ["buy"]
    assert [node.name for node in spec.every_node] == ["open_up", "buy", "clear"]
    assert spec.setups[0].optimized == {"url": ("url", "http://shop/")}


def test_setup_takes_no_results_and_no_step_waits_for_it() -> None:
    class Shop(Workflow):
        @setup()
        async def open_up(self, buy: HTTPResponse) -> None: ...

        @setup
        def bare(self) -> None: ...

        @step("open_up")
        async def buy(self) -> HTTPResponse: ...

    with pytest.raises(BadWorkflows) as caught:
        inspect_workflows([Shop])
    said = str(caught.value)
    assert "Shop.open_up has the parameter buy" in said
    assert "Shop.buy names 'open_up'" in said
    assert "@setup without parentheses" in said


def test_feeds_are_found_also_those_that_are_inherited_or_replaced() -> None:
    class Base(Workflow):
        users = Feed.csv("users.csv")
        goods = Feed.csv("goods.csv")

        @step()
        async def buy(self) -> HTTPResponse: ...

    class Shop(Base):
        goods = Feed.json("goods.json")

    [spec] = inspect_workflows([Shop])
    assert {name: feed.path for name, feed in spec.feeds.items()} == {"users": "users.csv", "goods": "goods.json"}


def test_think_is_a_pause_between_iterations_of_the_closed_model() -> None:
    class Shop(Workflow):
        think = between("1s", "2s")

        @step()
        async def buy(self) -> HTTPResponse: ...

    class Rate(Shop):
        load = ConstantRate(5, "1s")

    class Parsecs(Shop):
        think = "5 parsecs"

    class Hasty(Shop):
        think = None

    assert inspect_workflows([Shop])[0].think == between("1s", "2s")
    assert [inspect_workflows([one])[0].think_ns for one in (Shop, Hasty)] == [1_500_000_000, 0]
    for wrong, text in ((Rate, "think has no meaning with an arrival rate"), (Parsecs, "5 parsecs")):
        with pytest.raises(BadWorkflows, match=text):
            inspect_workflows([wrong])


def test_a_specification_tells_its_load_in_words() -> None:
    class Browse(Workflow):
        load = ConstantVUs(3, "10s")

        @step()
        async def look(self) -> HTTPResponse: ...  # type: ignore[empty-body]

    (spec,) = inspect_workflows([Browse])

    assert spec.load == spec.shape.describe() == "3 VUs for 10s"


# Shares


def mix_problem(**attributes):
    class Browse(Good):
        share = 7

    Buy = type("Buy", (Good,), attributes)
    with pytest.raises(BadWorkflows) as caught:
        inspect_workflows([Browse, Buy], file="mix.py", lines={"Buy": 5, "Buy.share": 6})
    (problem,) = caught.value.problems
    return str(problem)


def test_shares_are_read_with_the_load_of_the_file():
    class Browse(Good):
        share = 7

    load = ConstantRate("10/s", "1m")

    (alone,) = inspect_workflows([Browse])
    (shared,) = inspect_workflows([Browse], load=load)

    assert (alone.share, alone.whole) == (7, None)
    assert (shared.share, shared.whole, shared.shape) == (7, load, load)


def test_the_load_of_a_file_is_nobodys_where_there_are_no_shares():
    (spec,) = inspect_workflows([Good], load="a word the file uses for itself")

    assert (spec.share, spec.whole, spec.shape) == (None, None, IterationsPerVU(1, 1))


def test_a_file_where_only_some_classes_have_a_share_is_refused():
    assert mix_problem() == (
        "mix.py:5: Buy has no share, but Browse has: give one to every class that measures, or to none"
    )


@pytest.mark.parametrize("share", [0, -1, 1.5, "7", True, 10_001])
def test_a_share_is_a_whole_number(share):
    assert mix_problem(share=share) == (
        f"mix.py:6: Buy: share = {share!r} is not possible: write a whole number from 1 to 10,000"
    )


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"vus": 3}, "vus"),
        ({"vus": 3, "duration": "1s"}, "vus and duration"),
        ({"load": ConstantVUs(1, "1s")}, "load"),
    ],
)
def test_a_class_with_a_share_has_no_load_of_its_own(own, words):
    assert mix_problem(share=3, **own) == (
        f"mix.py:6: Buy: it has share and also {words}: a share is of the load of the whole file"
    )


def test_a_class_that_runs_alone_shares_nothing():
    assert "it has share and the priority exclusive" in mix_problem(share=3, priority="exclusive")


def test_a_class_that_measures_nothing_has_no_share():
    @step()
    async def login(self) -> None: ...

    assert mix_problem(share=3, login=login).startswith("mix.py:6: Buy measures nothing and has no part of the load")


def test_a_class_that_measures_nothing_needs_no_share():
    class Browse(Good):
        share = 7

    class Seed(Workflow):
        @action()
        def seed(self): ...

    assert [spec.share for spec in inspect_workflows([Browse, Seed], load=ConstantVUs(7, "1s"))] == [7, None]


def test_classes_that_share_a_load_do_not_wait_for_each_other():
    assert mix_problem(share=3, depends_on=("Browse",)) == (
        "mix.py:5: Buy depends on Browse: classes that share a load run at the same time"
    )


def test_the_load_of_a_file_with_shares_is_a_load_shape():
    class Browse(Good):
        share = 7

    with pytest.raises(BadWorkflows, match="Browse: the file's load = 5 is not a load shape such as ConstantRate"):
        inspect_workflows([Browse], load=5)
