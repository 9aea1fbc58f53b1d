"""Tallies: what they count, what they bound, and that the order of merging never shows."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.stats.histogram import Histogram
from talka.stats.machine import Machine
from talka.stats.tally import (
    CALL_NAMES_KEPT,
    ERROR_KINDS,
    LABEL_CHARACTERS_LIMIT,
    OTHER_CALLS,
    OTHER_OUTCOMES,
    OUTCOMES_KEPT,
    SAMPLES_KEPT,
    CheckTally,
    Exchanges,
    GeneratorTally,
    MetricKind,
    MetricTally,
    Sample,
    StepTally,
    Tally,
    first_samples,
    fold_calls,
    merged,
)

METRIC_KINDS: tuple[MetricKind, ...] = ("count", "rate", "sample", "distribution")
SMALL = st.integers(0, 1_000)
MICROSECONDS = st.lists(st.integers(0, 10_000_000), max_size=4)
# Eighths: their sums are exact, so that a float's rounding cannot hide or feign a dependence on the order.
EIGHTHS = st.integers(-8_000, 8_000).map(lambda eighths: eighths / 8)
SAMPLES = st.lists(
    st.builds(
        Sample,
        at_ns=st.integers(0, 9),
        kind=st.sampled_from(ERROR_KINDS[:3]),
        text=st.sampled_from("ab"),
        status=SMALL,
    ),
    max_size=12,
)


def histogram_of(values: list[int]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    return histogram


def step_of(ok: int, interrupted: int, times: list[int], statuses: list[int], samples: list[Sample]) -> StepTally:
    step = StepTally(ok=ok, interrupted=interrupted, skipped=ok // 2)
    for microseconds in times:
        step.response_time.record(microseconds)
        step.service_time.record(microseconds // 2)
    for status in statuses:
        step.saw(str(status))
    for sample in samples:
        step.fail(sample)
    return step


def check_of(passed: int, samples: list[Sample]) -> CheckTally:
    check = CheckTally(passed=passed)
    for sample in samples:
        check.fail(sample)
    return check


def metrics_of(values_by_kind: dict[MetricKind, list[float]]) -> dict[str, MetricTally]:
    metrics = {f"a {kind}": MetricTally(kind) for kind in values_by_kind}
    for kind, values in values_by_kind.items():
        for value in values:
            metrics[f"a {kind}"].add(value)
    return metrics


HISTOGRAMS = MICROSECONDS.map(histogram_of)
STEPS = st.builds(
    step_of,
    ok=SMALL,
    interrupted=SMALL,
    times=MICROSECONDS,
    statuses=st.lists(st.sampled_from([0, 200, 404, 503]), max_size=4),
    samples=SAMPLES,
)
TALLIES = st.builds(
    Tally,
    iterations=SMALL,
    started=SMALL,
    dropped=SMALL,
    exchanges=st.builds(Exchanges, *[SMALL for _ in Exchanges.__struct_fields__]),
    steps=st.dictionaries(st.sampled_from(["log in", "search"]), STEPS),
    actions=st.dictionaries(st.sampled_from(["set up"]), STEPS),
    checks=st.dictionaries(
        st.sampled_from(["has title", "is fast"]), st.builds(check_of, passed=SMALL, samples=SAMPLES)
    ),
    metrics=st.dictionaries(st.sampled_from(METRIC_KINDS), st.lists(EIGHTHS, max_size=3)).map(metrics_of),
    generator=st.builds(
        GeneratorTally,
        start_lag=HISTOGRAMS,
        loop_lag=HISTOGRAMS,
        cpu_ns=SMALL,
        wall_ns=SMALL,
        max_rss_bytes=SMALL,
        machine=st.none() | st.builds(Machine, SMALL, st.none() | EIGHTHS, st.none() | EIGHTHS, st.none() | EIGHTHS),
    ),
    interrupted_iterations=SMALL,
    busy_ns=SMALL,
    calls=st.dictionaries(
        st.sampled_from(["log in", "search"]), st.dictionaries(st.sampled_from(["page", "image"]), STEPS)
    ),
)


def copy_of(tally: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(tally), type=type(tally))


def together(left: Any, right: Any) -> Any:
    """Both merged; neither is changed."""
    whole = copy_of(left)
    whole.merge(right)
    return whole


def full_tally(at_ns: int = 5) -> Tally:
    return Tally(
        iterations=1,
        started=2,
        dropped=3,
        exchanges=Exchanges(1, 2, 3, 4, 5, 6, 7, 8),
        steps={"log in": step_of(1, 2, [3, 4_000], [200, 500], [Sample(at_ns, "status", "Answered 500.", 500)])},
        actions={"set up": step_of(6, 7, [], [], [Sample(at_ns, "exception", "KeyError: 'token'")])},
        checks={"has title": check_of(4, [Sample(at_ns, "check", "No title.")])},
        metrics=metrics_of({kind: [0.5, 2.0] for kind in METRIC_KINDS}),
        generator=GeneratorTally(histogram_of([1]), histogram_of([2]), cpu_ns=3, wall_ns=4, max_rss_bytes=5),
        interrupted_iterations=4,
        busy_ns=9,
        calls={"log in": {"page": step_of(5, 0, [7], [200], []), "image": step_of(1, 0, [9], [304], [])}},
    )


# Merging


@settings(deadline=None, derandomize=True, max_examples=40)
@given(TALLIES, TALLIES, TALLIES)
def test_merging_is_associative_and_commutative(one: Tally, two: Tally, three: Tally) -> None:
    left_first = together(together(one, two), three)
    assert left_first == together(one, together(two, three))
    assert left_first == together(together(three, two), one)
    assert left_first == merged([one, two, three])


@settings(deadline=None, derandomize=True, max_examples=40)
@given(TALLIES, TALLIES)
def test_merged_is_new_and_leaves_the_given_ones_as_they_are(one: Tally, two: Tally) -> None:
    before = copy_of(one), copy_of(two)
    whole = merged([one, two])
    merged([whole]).merge(whole)
    whole.merge(full_tally())
    assert (one, two) == before


def test_merging_adds_every_number_of_a_tally() -> None:
    whole = merged([full_tally(at_ns=5), full_tally(at_ns=6)])
    step, action, check = whole.steps["log in"], whole.actions["set up"], whole.checks["has title"]
    assert (whole.iterations, whole.started, whole.dropped, whole.interrupted_iterations) == (2, 4, 6, 8)
    assert whole.busy_ns == 18
    assert whole.exchanges == Exchanges(2, 4, 6, 8, 10, 12, 14, 16)
    assert (step.ok, step.failed, step.interrupted, step.count) == (2, 2, 4, 8)
    assert step.response_time == histogram_of([3, 3, 4_000, 4_000])
    assert step.service_time == histogram_of([1, 1, 2_000, 2_000])
    assert (step.outcomes, step.errors) == ({"200": 2, "500": 2}, {"status": 2})
    assert [sample.at_ns for sample in step.samples] == [5, 6]
    assert (action.ok, action.failed, action.interrupted, action.errors) == (12, 2, 14, {"exception": 2})
    assert (check.passed, check.failed, [sample.at_ns for sample in check.samples]) == (8, 2, [5, 6])
    assert {name: call.ok for name, call in whole.calls["log in"].items()} == {"page": 10, "image": 2}
    assert whole.generator == GeneratorTally(
        histogram_of([1, 1]), histogram_of([2, 2]), cpu_ns=6, wall_ns=8, max_rss_bytes=5
    )


def test_the_memory_of_a_merged_generator_is_the_most_any_had() -> None:
    one, other = GeneratorTally(max_rss_bytes=3), GeneratorTally(max_rss_bytes=7)
    assert together(one, other).max_rss_bytes == together(other, one).max_rss_bytes == 7


def test_merging_nothing_gives_an_empty_tally() -> None:
    assert merged([]) == Tally()


def test_two_new_tallies_share_nothing() -> None:
    Tally().steps["log in"] = StepTally()
    StepTally().fail(Sample(1, "reset", "gone"))
    assert Tally() == Tally(steps={}, actions={}, checks={}, metrics={})
    assert StepTally() == StepTally(outcomes={}, errors={}, samples=[])


@settings(deadline=None, derandomize=True, max_examples=40)
@given(TALLIES)
def test_a_tally_survives_encoding(tally: Tally) -> None:
    assert copy_of(tally) == tally
    assert msgspec.json.decode(msgspec.json.encode(tally), type=Tally) == tally


def test_a_full_tally_survives_encoding() -> None:
    tally = full_tally()
    assert all(getattr(tally, field) for field in Tally.__struct_fields__)
    assert copy_of(tally) == tally


def test_skipped_runs_are_in_no_count_but_are_seen() -> None:
    step = StepTally(ok=1, failed=20, interrupted=300, skipped=4_000)
    assert (step.count, step.seen) == (321, 4_321)


def test_of_too_many_names_those_with_the_most_calls_are_kept_and_the_rest_is_counted_together() -> None:
    names = CALL_NAMES_KEPT + 3
    calls = {
        "show": {f"/item/{number}": StepTally(ok=number + 1) for number in range(names)},
        "buy": {"buy": StepTally(ok=1), OTHER_CALLS: StepTally(ok=5)},
    }
    fold_calls(calls)
    assert len(calls["show"]) == CALL_NAMES_KEPT + 1
    assert calls["show"][OTHER_CALLS].ok == 1 + 2 + 3
    assert set(calls["buy"]) == {"buy", OTHER_CALLS}, "the method's own name costs nothing"


def test_requests_are_the_exchanges_put_on_the_wire() -> None:
    assert Exchanges(ok=1, failed=20, interrupted=300, not_sent=4_000).requests == 321


# Samples


def test_the_first_samples_of_each_kind_are_kept_and_every_failure_is_counted() -> None:
    step = StepTally()
    for at_ns in range(SAMPLES_KEPT + 3):
        step.fail(Sample(at_ns, "reset", "The server hung up."))
        step.fail(Sample(at_ns, "timeout", "No answer."))
    assert step.failed == 2 * (SAMPLES_KEPT + 3)
    assert step.errors == {"reset": SAMPLES_KEPT + 3, "timeout": SAMPLES_KEPT + 3}
    for kind in step.errors:
        assert [sample.at_ns for sample in step.samples if sample.kind == kind] == list(range(SAMPLES_KEPT))


def test_the_first_samples_of_a_check_are_kept_and_every_failure_is_counted() -> None:
    check = check_of(0, [Sample(at_ns, "check", "No title.") for at_ns in range(SAMPLES_KEPT + 3)])
    assert check.failed == SAMPLES_KEPT + 3
    assert [sample.at_ns for sample in check.samples] == list(range(SAMPLES_KEPT))


def test_samples_are_kept_in_order_whatever_order_they_came_in() -> None:
    samples = [
        Sample(3, "reset", "gone"),
        Sample(1, "dns", "No such host."),
        Sample(2, "reset", "gone"),
    ]
    assert step_of(0, 0, [], [], samples).samples == sorted(samples)
    assert check_of(0, samples).samples == sorted(samples)


def test_merged_samples_are_the_earliest_of_all() -> None:
    evens = [Sample(at_ns, "reset", "gone") for at_ns in range(0, 20, 2)]
    odds = [Sample(at_ns, "reset", "gone") for at_ns in range(1, 20, 2)]
    step = together(step_of(0, 0, [], [], odds), step_of(0, 0, [], [], evens))
    check = together(check_of(0, odds), check_of(0, evens))
    assert [sample.at_ns for sample in step.samples] == list(range(SAMPLES_KEPT))
    assert check.samples == step.samples


@settings(deadline=None, derandomize=True)
@given(SAMPLES)
def test_first_samples_keeps_the_least_few_of_each_kind_in_order(samples: list[Sample]) -> None:
    kept = first_samples(samples)
    assert kept == sorted(kept)
    for kind in ERROR_KINDS:
        of_kind = sorted(sample for sample in samples if sample.kind == kind)
        assert [sample for sample in kept if sample.kind == kind] == of_kind[:SAMPLES_KEPT]


# Outcomes

STATUSES = [str(status) for status in range(100, 600)]


def test_labels_beyond_the_limit_are_counted_under_other() -> None:
    step = StepTally()
    for status in STATUSES[: OUTCOMES_KEPT + 10]:
        step.saw(status)
    step.saw("100")
    assert step.outcomes == {OTHER_OUTCOMES: 10, "100": 2, **dict.fromkeys(STATUSES[1:OUTCOMES_KEPT], 1)}


def test_merged_labels_beyond_the_limit_are_counted_under_other_too() -> None:
    one = StepTally(outcomes={OTHER_OUTCOMES: 5, **dict.fromkeys(STATUSES[1 : 1 + OUTCOMES_KEPT], 1)})
    other = StepTally(outcomes=dict.fromkeys(STATUSES[:OUTCOMES_KEPT], 2))
    outcomes = together(one, other).outcomes
    assert len(outcomes) == OUTCOMES_KEPT + 1
    assert outcomes["100"] == 2 and outcomes["101"] == 3
    assert outcomes[OTHER_OUTCOMES] == 5 + 1  # the last label of the first one


def test_merged_labels_within_the_limit_are_kept_without_another() -> None:
    one = StepTally(outcomes=dict.fromkeys(STATUSES[:OUTCOMES_KEPT], 1))
    assert together(one, one).outcomes == dict.fromkeys(STATUSES[:OUTCOMES_KEPT], 2)


def test_a_long_label_is_cut_and_one_that_no_message_can_carry_is_mended() -> None:
    step = StepTally()
    for label in ("x" * 1000, "x" * (LABEL_CHARACTERS_LIMIT + 1), "half \udce9"):
        step.saw(label)
    assert step.outcomes == {"x" * LABEL_CHARACTERS_LIMIT: 2, "half ?": 1}


def test_an_answer_without_a_label_is_in_no_outcome() -> None:
    step = StepTally()
    step.saw("", 7)
    assert step.outcomes == {}


@pytest.mark.parametrize(
    ("outcomes", "statuses", "labels"),
    [
        ({}, {}, {}),
        ({"503": 1, "200": 2}, {200: 2, 503: 1}, {}),
        ({"200": 2, "other": 5}, {0: 5, 200: 2}, {}),
        ({"OK": 1, "ERR": 2}, {}, {"ERR": 2, "OK": 1}),
        ({"other": 2}, {}, {"other": 2}),
        ({"200": 2, "OK": 1, "other": 5}, {200: 2}, {"OK": 1, "other": 5}),
        ({"099": 1, "20": 2, "2000": 3, "²²²": 4, "٢٠٠": 5}, {}, {"099": 1, "20": 2, "2000": 3, "²²²": 4, "٢٠٠": 5}),
    ],
)
def test_outcomes_that_are_numbers_of_three_digits_are_status_codes(
    outcomes: dict[str, int], statuses: dict[int, int], labels: dict[str, int]
) -> None:
    step = StepTally(outcomes=outcomes)
    assert (step.statuses, step.labels) == (statuses, labels)
    assert sum(step.statuses.values()) + sum(step.labels.values()) == sum(outcomes.values())


def test_a_tally_of_a_version_that_counted_status_codes_has_them_as_outcomes_and_keeps_them() -> None:
    written = msgspec.msgpack.encode({"ok": 8, "status_codes": {0: 1, 200: 7}})
    step = msgspec.msgpack.decode(written, type=StepTally)
    assert step.outcomes == {OTHER_OUTCOMES: 1, "200": 7}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(step), type=StepTally) == step
    assert together(step, step).outcomes == {OTHER_OUTCOMES: 2, "200": 14}
    assert together(step, step).status_codes == {}


def test_status_codes_are_told_of_calls_before_people_are_shown_them() -> None:
    whole = Tally(calls={"log in": {"page": StepTally(outcomes={"200": 3, "OK": 1})}})
    whole.tell_statuses()
    [page] = whole.calls["log in"].values()
    assert (page.status_codes, page.outcomes) == ({200: 3}, {"200": 3, "OK": 1})


@settings(deadline=None, derandomize=True)
@given(
    st.lists(st.builds(range, st.integers(100, 300), st.integers(100, 600), st.integers(1, 5)), min_size=3, max_size=3)
)
def test_the_order_of_merging_does_not_show_in_bounded_outcomes(shards: list[range]) -> None:
    one, two, three = (step_of(0, 0, [], list(codes), []) for codes in shards)
    left_first = together(together(one, two), three)
    assert left_first == together(one, together(two, three)) == together(together(three, two), one)
    assert len(left_first.outcomes) <= OUTCOMES_KEPT + 1
    assert sum(left_first.outcomes.values()) == sum(map(len, shards))


# Metrics


@pytest.mark.parametrize("kind", METRIC_KINDS)
def test_a_metric_of_any_kind_keeps_number_sum_and_extremes(kind: MetricKind) -> None:
    metric = MetricTally(kind)
    for value in (2.5, 0.25, 7.0, 1.0):
        metric.add(value)
    assert (metric.values, metric.total, metric.min, metric.max) == (4, 10.75, 0.25, 7.0)


def test_only_a_distribution_keeps_every_value_in_thousandths() -> None:
    metrics = metrics_of({kind: [0.0014, 1.5] for kind in METRIC_KINDS})
    assert metrics["a distribution"].thousandths == histogram_of([1, 1_500])
    assert all(metrics[f"a {kind}"].thousandths == Histogram() for kind in ("count", "rate", "sample"))


def test_merged_extremes_are_those_of_the_side_that_has_any() -> None:
    empty, metric = MetricTally("sample"), MetricTally("sample", values=2, total=1.0, min=-1.0, max=2.0)
    assert together(empty, metric) == together(metric, empty) == metric
    assert together(empty, empty) == empty


def test_merging_metrics_takes_the_kind_of_the_one_that_was_there() -> None:
    whole = merged([Tally(), Tally(metrics=metrics_of({"distribution": [1.0]}))])
    assert whole.metrics["a distribution"].kind == "distribution"


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_machines_the_one_with_the_most_going_on_is_kept(order: int) -> None:
    machines = [None, Machine(4, 0.0, 0.5), Machine(2, 0.2, 0.1)][::order]
    assert merged([Tally(generator=GeneratorTally(machine=each)) for each in machines]).generator.machine == Machine(
        2, 0.2, 0.1
    )


@pytest.mark.parametrize(("numbers", "process"), [((0, 7), 7), ((7, 7), 7), ((7, 0), 7), ((7, 9), -1)])
def test_two_figures_are_of_one_process_or_of_none(numbers: tuple[int, int], process: int) -> None:
    one, two = (GeneratorTally(process=number) for number in numbers)
    one.merge(two)
    assert one.process == process


@given(st.permutations([0, 7, 7, 0]), st.permutations([0, 7, 9, 9]))
def test_figures_of_one_process_keep_its_number_and_those_of_several_have_none(one: list[int], two: list[int]) -> None:
    def process_of(numbers: list[int]) -> int:
        return merged([Tally(generator=GeneratorTally(process=number)) for number in numbers]).generator.process

    assert process_of(one) == 7
    assert process_of(two) == -1
    assert process_of([-1, 7]) == process_of([7, -1]) == -1
