"""Rules are read as documented, and judged by what was measured."""

import math

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from talka.stats.tally import CheckTally, Exchanges, MetricTally, StepTally, Tally, merged
from talka.units import SECOND
from talka.work.thresholds import (
    EXAMPLES,
    HOLDS,
    BadThreshold,
    Threshold,
    judge,
    meaning_of,
    parse_threshold,
    scoped,
    should_abort,
)

quickly = settings(deadline=None, derandomize=True, max_examples=300)


def step_of(*times_ms, ok=None, failed=0, interrupted=0):
    """A step with these response times; its service times are half as long."""
    step = StepTally(ok=len(times_ms) if ok is None else ok, failed=failed, interrupted=interrupted)
    for time_ms in times_ms:
        step.response_time.record(time_ms * 1000)
        step.service_time.record(time_ms * 500)
    return step


def metric_of(kind, *values):
    metric = MetricTally(kind)
    for value in values:
        metric.add(value)
    return metric


def verdict_on(rule, tally, elapsed_s=10.0):
    return judge(parse_threshold(rule), tally, elapsed_s)


# Reading

READ = [
    ("response_time.p99 < 250ms", (None, "response_time", "p99", "<", 250.0, None)),
    ("service_time.max <= 1s", (None, "service_time", "max", "<=", 1000.0, None)),
    ("response_time.mean > 1m30s", (None, "response_time", "mean", ">", 90_000.0, None)),
    ("response_time.min != 750us", (None, "response_time", "min", "!=", 0.75, None)),
    ("response_time.min != 750 µs", (None, "response_time", "min", "!=", 0.75, None)),
    ("response_time.stdev<20 ms", (None, "response_time", "stdev", "<", 20.0, None)),
    ("response_time.p99.9 < 1s", (None, "response_time", "p99.9", "<", 1000.0, None)),
    ("response_time.p99_9 < 1s", (None, "response_time", "p99.9", "<", 1000.0, None)),
    ("response_time.p100 < 1s", (None, "response_time", "p100", "<", 1000.0, None)),
    ("login.response_time.p95 < 100ms", ("login", "response_time", "p95", "<", 100.0, None)),
    ("Shop.login.service_time.p99.9 < 1s", ("login", "service_time", "p99.9", "<", 1000.0, None)),
    ("steps.failed < 1%", (None, "steps.failed", None, "<", 0.01, None)),
    ("requests.failed < 1%", (None, "requests.failed", None, "<", 0.01, None)),
    ("rate.failed < 1%", ("rate", "failed", None, "<", 0.01, None)),
    ('metrics."cart < 5".p99.9 < 3', (None, "metrics", "p99.9", "<", 3.0, "cart < 5")),
    ('checks."is it.so?" > 99%', (None, "checks", None, ">", 0.99, "is it.so?")),
    ("failed < 1%", (None, "failed", None, "<", 0.01, None)),
    ("failed == 0%", (None, "failed", None, "==", 0.0, None)),
    ("login.failed < 0.5%", ("login", "failed", None, "<", 0.005, None)),
    ("checks > 99%", (None, "checks", None, ">", 0.99, None)),
    ("checks >= 100 %", (None, "checks", None, ">=", 1.0, None)),
    ("checks.body_is_json > 99%", (None, "checks", None, ">", 0.99, "body_is_json")),
    ("checks.failed > 99%", (None, "checks", None, ">", 0.99, "failed")),
    ("dropped < 1%", (None, "dropped", None, "<", 0.01, None)),
    ("rate > 500/s", (None, "rate", None, ">", 500.0, None)),
    ("login.rate > 30/m", ("login", "rate", None, ">", 0.5, None)),
    ("iterations > 1000", (None, "iterations", None, ">", 1000.0, None)),
    ("requests >= 10000", (None, "requests", None, ">=", 10_000.0, None)),
    ("metrics.page_size.p95 < 20000", (None, "metrics", "p95", "<", 20_000.0, "page_size")),
    ("metrics.page.size.p99.9 < 2.5", (None, "metrics", "p99.9", "<", 2.5, "page.size")),
    ("metrics.orders.total > 10", (None, "metrics", "total", ">", 10.0, "orders")),
    ("metrics.orders.rate > 10/s", (None, "metrics", "rate", ">", 10.0, "orders")),
    ("metrics.warmth.min > -5", (None, "metrics", "min", ">", -5.0, "warmth")),
]


@pytest.mark.parametrize(("text", "expected"), READ)
def test_rules_are_read_as_written(text, expected) -> None:
    rule = parse_threshold(text)
    assert (rule.step, rule.measure, rule.stat, rule.operator, rule.limit, rule.name) == expected
    assert (rule.text, rule.abort, rule.grace_ns) == (text, False, 0)


def test_spaces_around_the_parts_do_not_matter() -> None:
    rule = parse_threshold("  failed<1%\n abort   after 10s ")
    assert rule == Threshold("failed<1% abort after 10s", None, "failed", None, "<", 0.01, True, 10 * SECOND)


def test_a_rule_that_says_nothing_of_aborting_has_all_that_a_rule_has_by_default() -> None:
    assert parse_threshold("failed < 1%") == Threshold("failed < 1%", None, "failed", None, "<", 0.01)


@pytest.mark.parametrize(
    ("suffix", "abort", "grace_ns"),
    [
        ("", False, 0),
        (" abort", True, 0),
        (" abort after 10s", True, 10 * SECOND),
        (" abort after 0s", True, 0),
        (" abort after 500 ms", True, SECOND // 2),
    ],
)
def test_a_rule_may_abort_the_job(suffix, abort, grace_ns) -> None:
    rule = parse_threshold("login.response_time.p95 < 250ms" + suffix)
    assert (rule.limit, rule.abort, rule.grace_ns) == (250.0, abort, grace_ns)


WRONG = [
    ("", "it needs one comparison"),
    ("failed", "it needs one comparison"),
    ("< 1%", "it needs one comparison"),
    ("failed = 1%", "it needs one comparison"),
    ("failed =< 1%", "it needs one comparison"),
    ("0% < failed < 1%", "it needs one comparison"),
    ("respons_time.p99 < 250ms", '"respons_time.p99" is not among what is measured; perhaps you mean "response_time"'),
    ("login.faild < 1%", 'perhaps you mean "failed"'),
    ("login.p95 < 1s", "there are response_time, service_time, failed, steps.failed, requests.failed, checks, dropped"),
    ("login/page/more.failed < 1%", "in front stands CLASS, STEP, CLASS.STEP"),
    ("a.b.c.failed < 1%", "in front stands CLASS, STEP, CLASS.STEP"),
    ("a/b.c.failed < 1%", "in front stands CLASS, STEP, CLASS.STEP"),
    ("Shop.login.requests > 5", "requests is counted for a class or the whole job, not for a step"),
    ("login/page.checks > 5%", "checks is counted for a class or the whole job, not for a step"),
    ("login/failed < 5%", '"login/failed" is not among what is measured'),
    ("response_time/p99 < 5ms", "a slash stands only between a step and the name of its calls"),
    ("failed.p99 < 5%", '"p99" cannot follow failed'),
    ("login..failed < 1%", '"..failed" cannot be read'),
    (".failed < 1%", '".failed" cannot be read'),
    ('"login"x.failed < 1%', '"x.failed" cannot be read'),
    ('"login.failed < 1%', 'the " is never closed or never opened'),
    ("failed{kind=page < 1%", "the { is never closed or never opened"),
    ("failed}{ < 1%", "the } is never closed or never opened"),
    ("failed{} < 1%", '"{}" are no tags; they are written {name=value}'),
    ("failed{kind} < 1%", '"{kind}" are no tags'),
    ("failed{kind=page,} < 1%", '"{kind=page,}" are no tags'),
    ("failed{kind=page;a=b} < 1%", '"{kind=page;a=b}" are no tags'),
    ('failed{kind="page"a=b} < 1%', '"{kind="page"a=b}" are no tags'),
    ("requests{kind=page} > 5", "tags follow response_time, service_time, failed or rate"),
    ("response_time.p99{kind=page} < 5ms", "tags follow response_time, service_time, failed or rate"),
    ("login/page.failed{kind=page} < 5%", "tags choose steps, and calls are not among them"),
    ("Shop.login.failed{kind=page} < 5%", "tags choose the steps: name a class in front of them, or nothing"),
    ("response_time < 1s", "response_time needs one of min, mean, stdev, max or a percentile"),
    ("service_time.avg < 1s", "service_time needs one of min, mean, stdev, max or a percentile"),
    ("response_time.p < 1s", "response_time needs one of"),
    ("response_time.p101 < 1s", "percentiles end at p100, so there is no p101"),
    ("metrics.page_size.p100.1 < 1", "percentiles end at p100, so there is no p100.1"),
    ("metrics < 1", "a metric needs a name and one of count, total, rate"),
    ("metrics.p95 < 1", "a metric needs a name and one of count, total, rate"),
    ("metrics.p99.9 < 1", "a metric needs a name and one of count, total, rate"),
    ("metrics.orders < 1", "a metric needs a name and one of count, total, rate"),
    ("metrics.orders.stdev < 1", "a metric needs a name and one of count, total, rate"),
    ("response_time.p99 < 250", "250 has no unit, add ms or s"),
    ("response_time.p99 < 250%", '"250%" is not a duration'),
    ("response_time.p99 < 1h", "times are told apart only below one hour"),
    ("failed < 1", "1 has no unit, add %"),
    ("failed < 0.01", "0.01 has no unit, add %"),
    ("failed < 1ms", '"1ms" is not a share in %'),
    ("failed < 101%", "a share is at most 100%"),
    ("failed < 0%", "no share is < 0%, so it can never hold"),
    ("checks > 100%", "no share is > 100%, so it can never hold"),
    ("rate > 500", "500 has no unit, add /s"),
    ("rate > 500%", '"500%" is not a rate'),
    ("metrics.orders.rate > 10", "10 has no unit, add /s"),
    ("requests > 10k", '"10k" is not a plain number'),
    ("iterations > " + "9" * 400, "is not a plain number"),
    ("metrics.size.p95 < 3600000", "percentiles of a metric lie between 0 and 3600000; record it in a larger unit"),
    ("metrics.size.p95 > -1", "percentiles of a metric lie between 0 and 3600000"),
    ("failed < 1% abrot", '"1% abrot" is not a share in %'),
    ("failed < 1% abort 10s", '"10s" cannot follow "abort", only "after" and a time can'),
    ("failed < 1% abort after", '"" is not a duration'),
    ("failed < 1% abort after 10", "10 has no unit, add ms or s"),
    ("failed < abort", '"" is not a share in %'),
]


@pytest.mark.parametrize(("text", "problem"), WRONG)
def test_a_wrong_rule_is_quoted_explained_and_given_an_example(text, problem) -> None:
    with pytest.raises(BadThreshold) as caught:
        parse_threshold(text)
    error = caught.value
    assert problem in str(error)
    assert error.rule == text and f'The threshold "{text[:100]}' in str(error)
    assert str(error).endswith(f'Write it like "{error.example}".')
    parse_threshold(error.example)


def test_a_long_rule_is_cut_in_the_error() -> None:
    with pytest.raises(BadThreshold) as caught:
        parse_threshold("x" * 10_000)
    assert len(str(caught.value)) < 300 and "xxx…" in str(caught.value)


@pytest.mark.parametrize(("length", "quoted"), [(120, "x" * 120), (121, "x" * 119 + "…")])
def test_a_rule_of_up_to_120_characters_is_quoted_whole(length: int, quoted: str) -> None:
    with pytest.raises(BadThreshold) as caught:
        parse_threshold("x" * length)
    assert str(caught.value).startswith(f'The threshold "{quoted}" is wrong: ')


@pytest.mark.parametrize("text", EXAMPLES.values())
def test_the_examples_can_be_read(text) -> None:
    parse_threshold(text)


KNOWN = {"steps": ["login", "buy"], "checks": {"body_is_json"}, "metrics": {"orders": "count", "size": "distribution"}}
KNOWN_RULES = [
    "failed < 1%",
    "login.failed < 1%",
    "buy.response_time.p95 < 1s",
    "checks > 99%",
    "checks.body_is_json > 99%",
    "metrics.orders.total > 1",
    "metrics.size.p95 < 1",
]


@pytest.mark.parametrize("text", KNOWN_RULES)
def test_known_names_are_accepted(text) -> None:
    assert parse_threshold(text, **KNOWN) == parse_threshold(text)


UNKNOWN = [
    ("logn.failed < 1%", 'there is no step "logn"; perhaps you mean "login"', "login.failed < 1%"),
    ("checkout.rate > 1/s", 'there is no step "checkout"; there are buy, login', "rate > 500/s"),
    ("checks.body_is_jsn > 9%", 'no check "body_is_jsn"; perhaps you mean "body_is_json"', "checks.body_is_json > 9%"),
    ("metrics.order.total > 1", 'no metric "order"; perhaps you mean "orders"', "metrics.orders.total > 1"),
    ("metrics.orders.p95 > 1", '"orders" is a count and has no percentiles', "metrics.orders.total > 10"),
]


@pytest.mark.parametrize(("text", "problem", "mended"), UNKNOWN)
def test_unknown_names_are_refused_with_the_closest_one(text, problem, mended) -> None:
    with pytest.raises(BadThreshold) as caught:
        parse_threshold(text, **KNOWN)
    assert problem in str(caught.value)
    assert caught.value.example == mended


WORKFLOWS = {
    "Browse": {"home": {"kind": "page", "area": "shop"}, "search": {"kind": "page"}, "get": {"kind": "api"}},
    "Buy": {"home": {"kind": "page"}, "pay": {"area": "shop"}, "get": {}},
}
OF_JOB = {
    "steps": ["home", "search", "get", "home", "pay", "get"],
    "checks": [],
    "metrics": {},
    "workflows": WORKFLOWS,
    "methods": ["home", "search", "get", "pay", "tidy"],
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("home.failed < 1%", (None, "home", None)),
        ("Buy.failed < 1%", ("Buy", None, None)),
        ("Buy.requests > 5", ("Buy", None, None)),
        ("Buy.requests.failed < 5%", ("Buy", None, None)),
        ("Buy.checks > 5%", ("Buy", None, None)),
        ("Buy.home.rate > 5/s", ("Buy", "home", None)),
        ("home/page.response_time.p99.9 < 1s", (None, "home", "page")),
        ("tidy/sweep.failed < 1%", (None, "tidy", "sweep")),
        ('Buy.home/"GET /item/{id}.json".failed < 1%', ("Buy", "home", "GET /item/{id}.json")),
        ('home/"say ""a < b""  twice".failed < 1%', (None, "home", 'say "a < b"  twice')),
        ('"home"."failed".failed < 1%', ("home", "failed", None)),
    ],
)
def test_a_rule_may_name_a_class_a_step_and_a_call(text, expected) -> None:
    known = OF_JOB if '"failed"' not in text else {}
    rule = parse_threshold(text, **known)
    assert (rule.workflow, rule.step, rule.call) == expected
    assert rule.text == text


@pytest.mark.parametrize(
    ("text", "tags", "members"),
    [
        (
            "response_time{kind=page}.p99 < 1s",
            (("kind", "page"),),
            (("Browse", "home"), ("Browse", "search"), ("Buy", "home")),
        ),
        ("failed{kind=page,area=shop} < 1%", (("area", "shop"), ("kind", "page")), (("Browse", "home"),)),
        ('rate{kind="page", "area"=shop} > 1/s', (("area", "shop"), ("kind", "page")), (("Browse", "home"),)),
        ("Buy.failed{kind=page} < 1%", (("kind", "page"),), (("Buy", "home"),)),
    ],
)
def test_a_rule_may_choose_steps_by_their_tags(text, tags, members) -> None:
    rule = parse_threshold(text, **OF_JOB)
    assert (rule.tags, rule.members, rule.step) == (tags, members, None)
    assert parse_threshold(text).members == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("hom.failed < 1%", 'there is no step or class "hom"; perhaps you mean "home"'),
        ("Bui.failed < 1%", 'there is no step or class "Bui"; perhaps you mean "Buy"'),
        ("Bui.home.failed < 1%", 'there is no class "Bui"; perhaps you mean "Buy"'),
        ("Buy.serch.failed < 1%", 'there is no step "serch"; there are get, home, pay'),
        ("Buy.search.failed < 1%", 'there is no step "search"; there are get, home, pay'),
        ("hme/page.failed < 1%", 'there is no step "hme"; perhaps you mean "home"'),
        ("home.requests > 5", "requests is counted for a class or the whole job, not for a step"),
        ("failed{kind=pge} < 1%", 'no step has the tags {kind=pge}; perhaps you mean "kind=page"'),
        ("failed{zzz=9} < 1%", "no step has the tags {zzz=9}; there are area=shop, kind=api, kind=page"),
        ("Nobody.failed{kind=page} < 1%", "tags choose the steps"),
    ],
)
def test_unknown_classes_steps_of_a_class_and_tags_are_refused(text, problem) -> None:
    with pytest.raises(BadThreshold) as caught:
        parse_threshold(text, **OF_JOB)
    assert problem in str(caught.value)
    parse_threshold(caught.value.example)


def test_a_test_without_tags_says_so() -> None:
    with pytest.raises(BadThreshold, match="the test has no tags at all"):
        parse_threshold("failed{kind=page} < 1%", workflows={"Shop": {"get": {}}})


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("response_time.p99 < 1s", "p99 of the response time of all steps"),
        ("home.service_time.max < 1s", "max of the service time of step home"),
        ('Buy.home/"a.b".response_time.p99 < 1s', 'p99 of the response time of calls "a.b" in Buy.home'),
        ("failed < 1%", "the worse of two shares: steps that failed, and requests that did"),
        ("Buy.failed < 1%", "the worse of two shares: steps that failed, and requests that did, of Buy"),
        ("home.failed < 1%", "share that failed of step home"),
        ("steps.failed < 1%", "share that failed of all steps"),
        ("requests.failed < 1%", "share of requests that failed"),
        ("failed{kind=api} < 1%", "share that failed of steps with kind=api: Browse.get"),
        ("rate > 1/s", "requests a second"),
        ("home.rate > 1/s", "a second of step home"),
        ("checks > 1%", "share that passed of all checks"),
        ("dropped < 1%", "share of arrivals that could not start"),
        ("Buy.iterations > 1", "number of iterations, of Buy"),
    ],
)
def test_a_rule_is_told_in_words(text, meaning) -> None:
    assert meaning_of(parse_threshold(text, **OF_JOB)) == meaning


def test_rules_about_checks_metrics_and_tags_that_nobody_knows_yet_are_told_in_words() -> None:
    assert meaning_of(parse_threshold("checks.paid > 1%")) == "share that passed of check paid"
    assert meaning_of(parse_threshold("metrics.cart.total > 1")) == "total of metric cart"
    assert meaning_of(parse_threshold("failed{kind=page} < 1%")) == "share that failed of steps with kind=page"


def test_metrics_may_be_given_without_their_kinds() -> None:
    assert parse_threshold("metrics.orders.p95 > 1", metrics=["orders"]).name == "orders"


def test_a_test_without_steps_says_so() -> None:
    with pytest.raises(BadThreshold, match='no step "login"; the test has no step at all'):
        parse_threshold("login.failed < 1%", steps=[])


def test_only_some_of_many_known_names_are_listed() -> None:
    with pytest.raises(BadThreshold, match="there are a0, a1, a2, a3, a4, a5, a6, a7, …"):
        parse_threshold("login.failed < 1%", steps=[f"a{number}" for number in range(10)])


@quickly
@given(millionths=st.integers(0, 1_000_000), operator=st.sampled_from(["<=", ">=", "=="]))
@example(millionths=999_000, operator="==")
def test_a_share_written_with_decimals_equals_the_same_share_measured(millionths, operator) -> None:
    rule = parse_threshold(f"checks {operator} {millionths // 10_000}.{millionths % 10_000:04}%")
    assert HOLDS[rule.operator](millionths / 1_000_000, rule.limit)


# Judging

TIMES = Tally(started=9, steps={"login": step_of(*range(1, 101)), "buy": step_of(400, 400)})


@pytest.mark.parametrize(
    ("rule", "value", "passed", "shown"),
    [
        ("response_time.max < 400ms", 400.0, False, "400 ms"),
        ("response_time.max <= 400ms", 400.0, True, "400 ms"),
        ("response_time.min == 1ms", 1.0, True, "1 ms"),
        ("login.response_time.max <= 100ms", 100.0, True, "100 ms"),
        ("login.service_time.max <= 50ms", 50.0, True, "50 ms"),
        ("login.response_time.mean <= 50.5ms", 50.5, True, "50.5 ms"),
        ("buy.response_time.p50 == 400ms", 400.0, True, "400 ms"),
        ("service_time.max != 200ms", 200.0, False, "200 ms"),
    ],
)
def test_times_are_judged_over_all_steps_or_the_named_one(rule, value, passed, shown) -> None:
    verdict = verdict_on(rule, TIMES)
    assert (verdict.rule, verdict.value, verdict.passed, verdict.shown) == (rule, value, passed, shown)


def test_percentiles_come_from_the_merged_histogram() -> None:
    assert verdict_on("login.response_time.p50 < 1s", TIMES).value == pytest.approx(50, rel=0.001)
    assert verdict_on("login.response_time.p99.5 < 1s", TIMES).value == pytest.approx(100, rel=0.001)
    assert verdict_on("response_time.p99 < 1s", TIMES).value == pytest.approx(400, rel=0.001)


def test_the_standard_deviation_can_be_held() -> None:
    assert verdict_on("login.response_time.stdev < 30ms", TIMES).value == pytest.approx(28.87, rel=0.01)


def test_judging_leaves_the_tally_as_it_was() -> None:
    before = msgspec.json.encode(TIMES)
    verdict_on("response_time.p99 < 1s", TIMES)
    assert msgspec.json.encode(TIMES) == before


COUNTS = Tally(
    iterations=90,
    started=96,
    dropped=4,
    exchanges=Exchanges(ok=240, failed=50, interrupted=15, not_sent=10),
    steps={"login": step_of(ok=98, failed=2, interrupted=100), "buy": step_of(ok=92, failed=8)},
    checks={"a": CheckTally(passed=99, failed=1), "b": CheckTally(passed=90, failed=10)},
)


@pytest.mark.parametrize(
    ("rule", "value", "passed", "shown"),
    [
        ("failed < 20%", 0.2, False, "20 %"),
        ("failed <= 20%", 0.2, True, "20 %"),
        ("requests.failed <= 20%", 0.2, True, "20 %"),
        ("steps.failed < 5%", 0.05, False, "5 %"),
        ("steps.failed <= 5%", 0.05, True, "5 %"),
        ("login.failed == 2%", 0.02, True, "2 %"),
        ("checks > 90%", 0.945, True, "94.5 %"),
        ("checks.a >= 99%", 0.99, True, "99 %"),
        ("checks.b > 90%", 0.9, False, "90 %"),
        ("dropped < 4%", 0.04, False, "4 %"),
        ("rate > 30/s", 30.5, True, "30.5/s"),
        ("login.rate > 10/s", 10.0, False, "10/s"),
        ("iterations >= 90", 90.0, True, "90"),
        ("requests > 305", 305.0, False, "305"),
    ],
)
def test_counts_shares_and_rates_are_judged(rule, value, passed, shown) -> None:
    verdict = verdict_on(rule, COUNTS)
    assert (verdict.value, verdict.passed, verdict.shown) == (value, passed, shown)


def test_failed_is_the_worse_of_steps_and_requests() -> None:
    """Half of the requests failed, and no step knows of it."""
    requests = Tally(exchanges=Exchanges(ok=50, failed=50), steps={"get": step_of(ok=100)})
    steps = Tally(exchanges=Exchanges(ok=100), steps={"get": step_of(ok=50, failed=50)})
    for tally, by_requests, by_steps in ((requests, 0.5, 0.0), (steps, 0.0, 0.5)):
        found = [verdict_on(rule, tally).value for rule in ("failed < 1%", "requests.failed < 1%", "steps.failed < 1%")]
        assert found == [0.5, by_requests, by_steps]


def test_a_request_that_could_not_be_sent_has_failed() -> None:
    assert verdict_on("failed < 1%", Tally(exchanges=Exchanges(not_sent=3))).value == 1.0


CALLS = Tally(
    started=9,
    exchanges=Exchanges(ok=90, failed=10),
    steps={"home": step_of(300, 400, ok=8, failed=2), "get": step_of(50)},
    calls={
        "home": {"page": step_of(100, 200, ok=16, failed=4), "a.b": step_of(10, ok=10)},
        "tidy": {"sweep": step_of(900, ok=1, failed=3)},
    },
)


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("home.response_time.max < 1s", 400.0),
        ("home.service_time.max < 1s", 100.0),
        ("service_time.min < 1s", 5.0),
        ("get.service_time.max < 1s", 25.0),
        ("home/page.response_time.max < 1s", 200.0),
        ('home/"a.b".service_time.max < 1s', 5.0),
        ("home/page.failed < 1%", 0.2),
        ("home/page.rate < 1/s", 2.0),
        ("tidy/sweep.failed < 1%", 0.75),
        ("home.failed < 1%", 0.2),
        ("home/nobody.failed < 1%", None),
    ],
)
def test_calls_are_judged_by_their_name_and_a_steps_service_time_is_that_of_its_calls(rule, value) -> None:
    assert verdict_on(rule, CALLS).value == value


def of_job(rule, tallies):
    threshold = parse_threshold(rule, **OF_JOB)
    return judge(threshold, scoped(threshold, tallies, merged(list(tallies.values()))), 10.0).value


BY_CLASS = {
    "Browse": Tally(
        started=1,
        exchanges=Exchanges(ok=10),
        steps={"home": step_of(100), "search": step_of(30), "get": step_of(700, ok=1, failed=1)},
        calls={"home": {"home": step_of(90, ok=1, failed=1)}},
    ),
    "Buy": Tally(started=1, exchanges=Exchanges(ok=4, failed=4), steps={"home": step_of(200), "get": step_of(900)}),
}


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("home.response_time.max < 1s", 200.0),
        ("Browse.home.response_time.max < 1s", 100.0),
        ("Browse.response_time.max < 1s", 700.0),
        ("response_time{kind=page}.max < 1s", 200.0),
        ("response_time{kind=api}.max < 1s", 700.0),
        ("rate{kind=page} > 1/s", 0.3),
        ("failed{kind=api} < 1%", 0.5),
        ("failed{kind=page} < 1%", 1 / 3),
        ("service_time{kind=page,area=shop}.max < 1s", 45.0),
        ("Buy.failed < 1%", 0.5),
        ("Browse.requests.failed < 1%", 0.0),
        ("failed < 1%", 4 / 18),
        ("Buy.requests > 1", 8.0),
        ("Buy.rate > 1/s", 0.8),
    ],
)
def test_two_classes_with_a_step_of_one_name_are_told_apart(rule, value) -> None:
    assert of_job(rule, BY_CLASS) == (None if value is None else pytest.approx(value, rel=0.001))


def test_a_class_or_a_step_of_which_nothing_is_known_yet_is_no_sample() -> None:
    assert of_job("Buy.failed < 1%", {}) is None
    assert of_job("failed{kind=page} < 1%", {"Buy": Tally()}) is None


METRICS = Tally(
    started=5,
    metrics={
        "orders": metric_of("count", 3, 4),
        "warmth": metric_of("sample", -2.5, 1),
        "size": metric_of("distribution", *range(1, 101)),
    },
)


@pytest.mark.parametrize(
    ("rule", "value", "passed", "shown"),
    [
        ("metrics.orders.count == 2", 2.0, True, "2"),
        ("metrics.orders.total > 7", 7.0, False, "7"),
        ("metrics.orders.rate > 0.5/s", 0.7, True, "0.7/s"),
        ("metrics.orders.mean > 3", 3.5, True, "3.5"),
        ("metrics.warmth.min > -5", -2.5, True, "-2.5"),
        ("metrics.warmth.max > 1", 1.0, False, "1"),
    ],
)
def test_metrics_are_judged(rule, value, passed, shown) -> None:
    verdict = verdict_on(rule, METRICS)
    assert (verdict.value, verdict.passed, verdict.shown) == (value, passed, shown)


def test_percentiles_of_a_distribution_are_in_its_own_unit() -> None:
    assert verdict_on("metrics.size.p50 < 60", METRICS).value == pytest.approx(50, rel=0.001)


def test_a_counter_that_was_never_touched_reads_zero_once_something_ran() -> None:
    for stat, limit in (("count", "1"), ("total", "1"), ("rate", "1/s")):
        verdict = verdict_on(f"metrics.mishaps.{stat} < {limit}", Tally(started=1))
        assert (verdict.value, verdict.passed) == (0.0, True)


RULES_THAT_AN_EMPTY_JOB_MIGHT_SEEM_TO_HOLD = [
    "response_time.p99 < 250ms",
    "service_time.stdev < 250ms",
    "login.response_time.p99 < 250ms",
    "failed < 1%",
    "login.failed == 0%",
    "checks >= 0%",
    "checks.a != 50%",
    "dropped < 1%",
    "rate < 500/s",
    "login.rate < 500/s",
    "iterations < 10",
    "requests < 10",
    "metrics.orders.count < 10",
    "metrics.orders.total < 10",
    "metrics.orders.rate < 10/s",
    "metrics.orders.min < 10",
    "metrics.orders.max < 10",
    "metrics.orders.mean < 10",
    "metrics.orders.p95 < 10",
]


@pytest.mark.parametrize("rule", RULES_THAT_AN_EMPTY_JOB_MIGHT_SEEM_TO_HOLD)
def test_no_rule_holds_without_a_sample(rule) -> None:
    verdict = verdict_on(rule, Tally())
    assert (verdict.rule, verdict.value, verdict.passed, verdict.shown) == (rule, None, False, "no sample")


@pytest.mark.parametrize("rule", ["failed < 1%", "response_time.max < 1s", "rate < 5/s", "login.rate < 5/s"])
def test_interrupted_steps_are_no_samples(rule) -> None:
    tally = Tally(started=9, steps={"login": step_of(interrupted=9)})
    assert verdict_on(rule, tally).value is None


@pytest.mark.parametrize("rule", ["rate < 500/s", "login.rate < 500/s", "metrics.orders.rate < 500/s"])
def test_there_is_no_rate_before_time_has_passed(rule) -> None:
    tally = msgspec.structs.replace(COUNTS, metrics={"orders": metric_of("rate", 1)})
    assert verdict_on(rule, tally, elapsed_s=0.0).shown == "no sample"
    assert verdict_on(rule, tally, elapsed_s=1.0).passed


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_metric_fed_with_no_number_is_no_sample(value) -> None:
    tally = Tally(started=1, metrics={"orders": metric_of("count", value)})
    assert verdict_on("metrics.orders.total != 5", tally).value is None


# Showing


def shown(rule, value):
    metric = {"m": MetricTally("count", values=1, total=value)}
    return verdict_on(rule, Tally(started=1, metrics=metric), elapsed_s=1.0).shown


@pytest.mark.parametrize(
    ("time_us", "expected"),
    [
        (0, "0 ms"),
        (42, "0.042 ms"),
        (1_234, "1.23 ms"),
        (231_400, "231 ms"),
        (250_400, "250.4 ms"),
        (250_000, "250 ms"),
        (999_960, "1000 ms"),
        (1_234_567, "1.23 s"),
        (75_312_000, "75.3 s"),
    ],
)
def test_times_are_shown_with_three_digits_and_more_where_they_decide(time_us, expected) -> None:
    step = StepTally()
    step.response_time.record(time_us)
    tally = Tally(steps={"login": step})
    assert verdict_on("response_time.max <= 250ms", tally).shown == expected


@pytest.mark.parametrize(
    ("passed", "failed", "expected"),
    [(1000, 0, "100 %"), (0, 7, "0 %"), (2, 1, "66.7 %"), (99_999, 1, "99.999 %"), (1, 99_999, "0.001 %")],
)
def test_shares_are_shown_in_percent_and_as_100_only_when_nothing_is_missing(passed, failed, expected) -> None:
    tally = Tally(checks={"a": CheckTally(passed=passed, failed=failed)})
    assert verdict_on("checks > 50%", tally).shown == expected


def test_rates_and_numbers_are_shown_without_needless_digits() -> None:
    assert shown("metrics.m.rate > 500/s", 512.34) == "512.3/s"
    assert shown("metrics.m.total > 1", 1234567.8) == "1234568"
    assert shown("metrics.m.total > 1", 120.0) == "120"


@quickly
@given(
    value=st.floats(allow_nan=False, allow_infinity=False),
    limit=st.integers(-1000, 1000),
    operator=st.sampled_from(sorted(HOLDS)),
)
@example(value=5e-324, limit=0, operator=">")
@example(value=math.nextafter(10, 0), limit=10, operator="<")
def test_the_shown_value_agrees_with_the_verdict(value, limit, operator) -> None:
    metric = {"m": MetricTally("count", values=1, total=value)}
    verdict = verdict_on(f"metrics.m.total {operator} {limit}", Tally(metrics=metric))
    assert verdict.passed == HOLDS[operator](value, limit)
    assert HOLDS[operator](float(verdict.shown), limit) == verdict.passed


# Aborting


@pytest.mark.parametrize(
    ("suffix", "failed", "elapsed_ns", "expected"),
    [
        (" abort", 1, 0, True),
        (" abort", 0, 0, False),
        ("", 1, 100 * SECOND, False),
        (" abort after 10s", 1, 10 * SECOND - 1, False),
        (" abort after 10s", 1, 10 * SECOND, True),
        (" abort after 10s", 0, 10 * SECOND, False),
    ],
)
def test_a_failed_abort_rule_stops_the_job_after_its_grace(suffix, failed, elapsed_ns, expected) -> None:
    rule = parse_threshold("failed < 1%" + suffix)
    verdict = judge(rule, Tally(steps={"login": step_of(ok=10, failed=failed)}), 1.0)
    assert should_abort(rule, verdict, elapsed_ns) is expected


def test_a_rule_without_a_sample_does_not_abort() -> None:
    rule = parse_threshold("failed < 1% abort")
    assert not should_abort(rule, judge(rule, Tally(), 1.0), 100 * SECOND)


def test_a_threshold_survives_encoding() -> None:
    rule = parse_threshold("metrics.page_size.p99_9 < 20000 abort after 10s")
    assert msgspec.json.decode(msgspec.json.encode(rule), type=Threshold) == rule
