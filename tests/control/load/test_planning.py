from dataclasses import replace
from itertools import product

import pytest

from talka.control.load.load_job import JobSpec
from talka.control.load.planning import (
    CannotOverride,
    Overrides,
    flows_into,
    overridden,
    plan_load_job,
    with_overrides,
)
from talka.errors import Invalid
from talka.units import MINUTE, SECOND
from talka.wire.shards import FileSource, Settings
from talka.work.dsl import Provide, Use, Workflow, action, depends, state, step
from talka.work.durations import BadDuration
from talka.work.inspection import inspect_workflows
from talka.work.load import BadShape
from talka.work.responses import HTTPResponse
from talka.work.shapes import (
    ConstantRate,
    ConstantVUs,
    CustomRate,
    CustomVUs,
    IterationsPerVU,
    LoadShape,
    RampingRate,
    RampingVUs,
    SharedIterations,
)
from talka.work.specs import BadWorkflows, UseSpec, WorkflowSpec
from talka.work.thresholds import parse_threshold


def five(elapsed_s: float) -> float:
    return 5


CONSTANT_VUS = ConstantVUs(4, "10s")
RAMPING_VUS = RampingVUs([(8, "10s"), (8, "10s")])
CUSTOM_VUS = CustomVUs(five, "10s")
CONSTANT_RATE = ConstantRate("30/m", "10s", max_vus=6, policy="drop")
RAMPING_RATE = RampingRate([(50, "10s")], max_vus=7, policy="drop")
CUSTOM_RATE = CustomRate(five, "10s", max_vus=9)
EACH = IterationsPerVU(3, 20)
EACH_UNTIL = IterationsPerVU(3, 20, "30s")
SHARED = SharedIterations(3, 20)
SHARED_UNTIL = SharedIterations(3, 20, "30s")
SHAPES: list[LoadShape] = [
    CONSTANT_VUS,
    RAMPING_VUS,
    CUSTOM_VUS,
    CONSTANT_RATE,
    RAMPING_RATE,
    CUSTOM_RATE,
    EACH,
    EACH_UNTIL,
    SHARED,
    SHARED_UNTIL,
]


class Shop(Workflow):
    load = CONSTANT_VUS
    priority = "high"
    thresholds = ("failed < 1%",)

    @step()
    async def look(self) -> HTTPResponse:
        raise NotImplementedError


class Patient(Shop):
    timeout = "5m"


class Seed(Workflow):
    @action()
    async def fill(self) -> None:
        raise NotImplementedError


def specs_of(*classes: type[Workflow]) -> tuple[WorkflowSpec, ...]:
    return inspect_workflows(classes)


def planned(*classes: type[Workflow]) -> JobSpec:
    return plan_load_job(
        specs_of(*classes),
        job="b4k7",
        source=FileSource("shop.py"),
        cores=3,
        settings=Settings(SECOND),
        thresholds=[parse_threshold("dropped < 1%")],
    )


# What the command line says about the load.


@pytest.mark.parametrize(
    ("shape", "overrides", "expected"),
    [
        # VUs: a steady number of them, for as long as the file says.
        (CONSTANT_VUS, Overrides(vus=9), ConstantVUs(9, "10s")),
        (RAMPING_VUS, Overrides(vus=9), ConstantVUs(9, "20s")),
        (CUSTOM_VUS, Overrides(vus=9), ConstantVUs(9, "10s")),
        (CONSTANT_RATE, Overrides(vus=9), ConstantVUs(9, "10s")),
        (RAMPING_RATE, Overrides(vus=9), ConstantVUs(9, "10s")),
        (CUSTOM_RATE, Overrides(vus=9), ConstantVUs(9, "10s")),
        (EACH, Overrides(vus=9), IterationsPerVU(9, 20)),
        (EACH_UNTIL, Overrides(vus=9), IterationsPerVU(9, 20, "30s")),
        (SHARED, Overrides(vus=9), SharedIterations(9, 20)),
        (SHARED_UNTIL, Overrides(vus=9), SharedIterations(9, 20, "30s")),
        # A duration: the same load, longer or shorter.
        (CONSTANT_VUS, Overrides(duration="1m"), ConstantVUs(4, "1m")),
        (CONSTANT_RATE, Overrides(duration="1m"), ConstantRate("30/m", "1m", 6, "drop")),
        (EACH, Overrides(duration="1m"), IterationsPerVU(3, 20, "1m")),
        (EACH_UNTIL, Overrides(duration="1m"), IterationsPerVU(3, 20, "1m")),
        (SHARED, Overrides(duration="1m"), SharedIterations(3, 20, "1m")),
        (SHARED_UNTIL, Overrides(duration="1m"), SharedIterations(3, 20, "1m")),
        # Both.
        (CONSTANT_VUS, Overrides(vus=9, duration=60), ConstantVUs(9, 60)),
        (RAMPING_VUS, Overrides(vus=9, duration="1m"), ConstantVUs(9, "1m")),
        (CUSTOM_RATE, Overrides(vus=9, duration="1m"), ConstantVUs(9, "1m")),
        (EACH, Overrides(vus=9, duration="1m"), IterationsPerVU(9, 20, "1m")),
        # A rate: open model, with the file's pool of VUs and policy where it has them.
        (CONSTANT_VUS, Overrides(rate=50), ConstantRate(50, "10s")),
        (RAMPING_VUS, Overrides(rate=50), ConstantRate(50, "20s")),
        (CONSTANT_RATE, Overrides(rate="2/s"), ConstantRate("2/s", "10s", 6, "drop")),
        (RAMPING_RATE, Overrides(rate=50), ConstantRate(50, "10s", 7, "drop")),
        (CUSTOM_RATE, Overrides(rate=50), ConstantRate(50, "10s", 9)),
        (CONSTANT_RATE, Overrides(rate=50, vus=9), ConstantRate(50, "10s", 9, "drop")),
        (CONSTANT_VUS, Overrides(rate=50, vus=9, duration="1m"), ConstantRate(50, "1m", 9)),
        (EACH, Overrides(rate=50, duration="1m"), ConstantRate(50, "1m")),
        (EACH_UNTIL, Overrides(rate=50), ConstantRate(50, "30s")),
        # Iterations: so many in all, until they are done.
        (CONSTANT_VUS, Overrides(iterations=7), SharedIterations(4, 7)),
        (RAMPING_VUS, Overrides(iterations=7), SharedIterations(8, 7)),
        (CONSTANT_RATE, Overrides(iterations=7), SharedIterations(6, 7)),
        (EACH, Overrides(iterations=7), SharedIterations(3, 7)),
        (EACH_UNTIL, Overrides(iterations=7), SharedIterations(3, 7, "30s")),
        (SHARED_UNTIL, Overrides(iterations=7), SharedIterations(3, 7, "30s")),
        (SHARED_UNTIL, Overrides(iterations=7, duration="1m"), SharedIterations(3, 7, "1m")),
        (CONSTANT_VUS, Overrides(iterations=7, vus=2, duration="1m"), SharedIterations(2, 7, "1m")),
    ],
)
def test_the_command_replaces_what_the_file_says(shape: LoadShape, overrides: Overrides, expected: LoadShape) -> None:
    changed = overridden(shape, overrides, workflow="Shop")

    assert type(changed) is type(expected)
    assert changed.plan() == expected.plan()
    assert changed.describe() == expected.describe()


@pytest.mark.parametrize("shape", [RAMPING_VUS, CUSTOM_VUS, RAMPING_RATE, CUSTOM_RATE])
def test_a_load_that_changes_over_time_cannot_be_stretched(shape: LoadShape) -> None:
    with pytest.raises(CannotOverride) as refused:
        overridden(shape, Overrides(duration="1m"), workflow="Shop")

    assert str(refused.value) == (
        f"--duration cannot stretch the load of Shop ({shape.describe()}): "
        "give --vus or --rate as well, or change the file"
    )


@pytest.mark.parametrize("shape", [EACH, SHARED])
def test_a_rate_needs_a_duration_from_somewhere(shape: LoadShape) -> None:
    with pytest.raises(CannotOverride) as refused:
        overridden(shape, Overrides(rate=50), workflow="Shop")

    assert str(refused.value) == "--rate needs --duration: Shop does not say how long it runs"


def test_a_rate_and_a_number_of_iterations_exclude_each_other() -> None:
    with pytest.raises(CannotOverride) as refused:
        overridden(CONSTANT_VUS, Overrides(rate=50, iterations=7), workflow="Shop")

    assert str(refused.value) == ("--rate and --iterations exclude each other: one says how fast, the other how many")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("overrides", [Overrides(vus=0), Overrides(iterations=0), Overrides(vus=0, iterations=5)])
def test_zero_is_refused_and_not_taken_for_nothing_said(shape: LoadShape, overrides: Overrides) -> None:
    with pytest.raises(BadShape, match="nothing would run"):
        overridden(shape, overrides, workflow="Shop")


@pytest.mark.parametrize("shape", [CONSTANT_VUS, CONSTANT_RATE, EACH, EACH_UNTIL, SHARED, SHARED_UNTIL])
def test_a_duration_of_zero_is_refused_and_not_taken_for_nothing_said(shape: LoadShape) -> None:
    with pytest.raises(BadShape, match="nothing would run"):
        overridden(shape, Overrides(duration=0), workflow="Shop")


@pytest.mark.parametrize("shape", SHAPES)
def test_every_combination_gives_a_shape_or_a_sentence(shape: LoadShape) -> None:
    choices = product((None, 9), (None, 50), (None, "1m"), (None, 7))
    for vus, rate, duration, iterations in choices:
        overrides = Overrides(vus, rate, duration, iterations)
        if not overrides:
            continue
        try:
            plan = overridden(shape, overrides, workflow="Shop").plan()
        except Invalid as error:
            assert isinstance(error, CannotOverride)
            continue
        assert vus is None or plan.vus == vus
        assert rate is None or plan.model == "open"
        assert duration is None or plan.length_ns == MINUTE
        assert iterations is None or plan.shared_iterations == iterations


def test_the_length_of_the_file_is_kept_to_the_nanosecond() -> None:
    shape = ConstantVUs(1, "29d23h59m59.999999999s")

    assert overridden(shape, Overrides(vus=2), workflow="Shop").plan().length_ns == shape.plan().length_ns


# Overrides of whole files.


def test_without_overrides_the_workflows_stay_as_they_are() -> None:
    specs = specs_of(Shop)

    assert not Overrides()
    assert with_overrides(list(specs), Overrides()) == specs


def test_overrides_change_the_workflows_that_measure_and_no_others() -> None:
    seed, shop = with_overrides(specs_of(Seed, Shop), Overrides(vus=9, duration="1m"))

    assert (seed.shape, shop.shape) == (IterationsPerVU(1, 1), ConstantVUs(9, "1m"))
    assert shop.plan == ConstantVUs(9, "1m").plan()


def test_a_timeout_follows_the_new_length_unless_the_file_gives_one() -> None:
    shop, patient = with_overrides(specs_of(Shop, Patient), Overrides(duration="2m"))
    assert (shop.timeout_ns, patient.timeout_ns) == (3 * MINUTE, 5 * MINUTE)

    shop, patient = with_overrides(specs_of(Shop, Patient), Overrides(iterations=7))
    assert (shop.timeout_ns, patient.timeout_ns) == (61 * MINUTE, 5 * MINUTE)


def test_a_duration_nobody_can_read_names_the_option() -> None:
    with pytest.raises(BadDuration, match='^--duration = "soon" is not a duration'):
        with_overrides(specs_of(Shop), Overrides(duration="soon"))


# The plan of the job.


def test_the_plan_holds_every_workflow_as_it_was_checked() -> None:
    job = planned(Seed, Shop)

    seed, shop = job.workflows
    assert (seed.name, seed.is_test, seed.priority, seed.thresholds) == ("Seed", False, "auto", ())
    assert (shop.name, shop.is_test, shop.priority) == ("Shop", True, "high")
    assert shop.plan == CONSTANT_VUS.plan()
    assert shop.timeout_ns == 10 * SECOND + MINUTE
    assert [rule.text for rule in shop.thresholds] == ["failed < 1%"]
    assert (job.job, job.source, job.cores, job.settings) == ("b4k7", FileSource("shop.py"), 3, Settings(SECOND))
    assert [rule.text for rule in job.thresholds] == ["dropped < 1%"]


class Login(Workflow):
    @action()
    async def log_in(self) -> None:
        raise NotImplementedError

    @state("Buyer", "Visitor")
    def token(self) -> Provide[str]:
        raise NotImplementedError

    @state("Buyer")
    def basket(self) -> Provide[str]:
        raise NotImplementedError

    @state("Visitor")
    def name(self) -> Provide[str]:
        raise NotImplementedError


@depends("Login")
class Buyer(Workflow):
    @action()
    async def buy(self) -> None:
        raise NotImplementedError

    @state("Login")
    def take_both(self, token: str, basket: str) -> Use[None]:
        raise NotImplementedError


@depends("Login")
class Visitor(Workflow):
    @action()
    async def look(self) -> None:
        raise NotImplementedError

    @state("Login")
    def take_one(self, token: str) -> Use[None]:
        raise NotImplementedError


@depends("Login")
class Stranger(Workflow):
    @action()
    async def look(self) -> None:
        raise NotImplementedError


def test_a_value_flows_only_where_provider_and_user_name_each_other() -> None:
    by_name = {spec.name: spec for spec in specs_of(Login, Buyer, Visitor, Stranger)}

    assert flows_into(by_name["Login"], by_name) == []
    assert flows_into(by_name["Buyer"], by_name) == [("Login", "token"), ("Login", "basket")]
    assert flows_into(by_name["Visitor"], by_name) == [("Login", "token")], "it was offered a name, and did not ask"
    assert flows_into(by_name["Stranger"], by_name) == []


def test_asking_for_a_value_that_is_meant_for_others_does_not_get_it() -> None:
    by_name = {spec.name: spec for spec in specs_of(Login, Buyer, Visitor)}
    asks = UseSpec(method="take", sources=("Login",), types={"token": str, "basket": str})

    assert flows_into(replace(by_name["Visitor"], uses=(asks,)), by_name) == [("Login", "token")]


def test_the_plan_of_the_job_carries_flows_and_dependencies() -> None:
    job = planned(Buyer, Login, Visitor)

    assert [(one.name, one.depends_on, one.flows) for one in job.workflows] == [
        ("Login", (), ()),
        ("Buyer", ("Login",), (("Login", "token"), ("Login", "basket"))),
        ("Visitor", ("Login",), (("Login", "token"),)),
    ]


class Once(Workflow):
    """Says nothing about its load, so it runs once."""

    @step()
    async def look(self) -> HTTPResponse:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("overrides", "shape"),
    [
        (Overrides(duration="3s"), ConstantVUs(1, "3s")),
        (Overrides(vus=50, duration="3s"), ConstantVUs(50, "3s")),
        (Overrides(vus=50), IterationsPerVU(50, 1)),
        (Overrides(rate=5, duration="3s"), ConstantRate(5, "3s")),
        (Overrides(iterations=9, duration="3s"), SharedIterations(1, 9, "3s")),
    ],
)
def test_a_workflow_that_would_run_once_runs_for_as_long_as_the_command_says(overrides, shape) -> None:
    [changed] = with_overrides(inspect_workflows([Once]), overrides)
    assert changed.shape == shape


# One load that workflows share.


class Browse(Workflow):
    share = 70

    @step()
    async def look(self) -> HTTPResponse: ...


class Buy(Workflow):
    share = 30
    timeout = "5m"

    @step()
    async def order(self) -> HTTPResponse: ...


class Seeding(Workflow):
    @action()
    def seed(self) -> None: ...


def mix(load: object = None) -> tuple[WorkflowSpec, ...]:
    return inspect_workflows([Browse, Buy, Seeding], file="mix.py", lines={"Browse": 3, "Buy": 9}, load=load)


def test_workflows_that_share_a_load_get_their_parts_of_the_files() -> None:
    browse, buy, seeding = with_overrides(mix(ConstantRate("100/s", "10s")), Overrides())

    assert (browse.plan.arrivals_total, buy.plan.arrivals_total) == (700, 300)
    assert browse.load.startswith("7 in 10 of 100/s for 10s") and buy.load.startswith("3 in 10 of 100/s for 10s")
    assert (browse.timeout_ns, buy.timeout_ns) == (70 * SECOND, 5 * MINUTE)
    assert (seeding.plan.share, seeding.load) == (None, "1 VU, 1 iteration each")


@pytest.mark.parametrize("load", [None, ConstantRate("100/s", "10s")])
@pytest.mark.parametrize(
    ("overrides", "vus"),
    [
        (Overrides(vus=10, duration="5s"), [7, 3]),
        (Overrides(vus=20, iterations=100), [14, 6]),
        (Overrides(rate="10/s", duration="5s", vus=10), [7, 3]),
    ],
)
def test_workflows_that_share_a_load_get_their_parts_of_the_commands(
    load: LoadShape | None, overrides: Overrides, vus: list[int]
) -> None:
    browse, buy, _ = with_overrides(mix(load), overrides)

    assert [browse.plan.vus, buy.plan.vus] == vus


def test_workflows_that_are_named_have_the_whole_load() -> None:
    browse, *_ = mix(ConstantRate("100/s", "10s"))

    (alone,) = with_overrides([browse], Overrides())

    assert alone.plan.arrivals_total == 1000


def test_a_load_that_nobody_names_cannot_be_shared() -> None:
    with pytest.raises(BadWorkflows) as caught:
        with_overrides(mix(), Overrides())

    assert str(caught.value).startswith("mix.py:3: Browse has a share of a load that nobody names: write load =")


def test_a_share_of_which_nothing_is_left_is_told_with_its_line() -> None:
    with pytest.raises(BadWorkflows) as caught:
        with_overrides(mix(ConstantVUs(1, "5s")), Overrides())

    assert str(caught.value) == "mix.py:9: Buy: 3 in 10 of 1 VUs are none: give more of them"


def test_a_share_of_which_the_command_leaves_nothing_is_the_commands_mistake() -> None:
    with pytest.raises(CannotOverride, match="^Buy: 3 in 10 of 1 VUs are none: give more of them$"):
        with_overrides(mix(), Overrides(vus=1, duration="5s"))
