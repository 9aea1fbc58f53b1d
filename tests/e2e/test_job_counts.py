"""On a cluster too, what the result counts is what the server saw, and its percentiles are those of all that was
measured."""

from collections import Counter
from pathlib import Path

import pytest

from talka.report.building import together
from talka.stats.histogram import Histogram
from talka.wire.channels import BadMessage
from talka.wire.jobs import AttemptResult, decode_result

WORKFLOWS = Path(__file__).parent / "workflows"
EXACT = WORKFLOWS / "exact.py"
PERCENTS = {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "p99_9": 99.9}
MAJORITY = 2
SHAPES = [
    pytest.param(["--vus", "20", "--duration", "2s"], id="constant VUs"),
    pytest.param(["--rate", "600/s", "--duration", "2s"], id="constant rate"),
    pytest.param(["--iterations", "2100", "--vus", "20"], id="shared iterations"),
]


@pytest.fixture(scope="module", params=[pytest.param(2, id="2 workers"), pytest.param(4, id="4 workers")])
def cluster(request, start_jobs, tmp_path_factory):
    with start_jobs(tmp_path_factory.mktemp("jobs"), 3, request.param) as cluster:
        yield cluster


def results_of(cluster, job: str) -> dict[int, AttemptResult]:
    """By attempt: what managers keep of a job's tasks, each on a majority of their disks."""
    found: dict[int, AttemptResult] = {}
    copies: Counter[int] = Counter()
    for name in cluster.managers:
        for file in (cluster.data(name) / "blobs").iterdir():
            try:
                result = decode_result(file.read_bytes())
            except (BadMessage, FileNotFoundError):
                continue  # a bundle, or a document, or one that has its name only now
            if result.job == job:
                found[result.attempt] = result
                copies[result.attempt] += 1
    assert all(number >= MAJORITY for number in copies.values()), copies
    return found


def union(histograms: list[Histogram]) -> Histogram:
    """Counter by counter, not by the code that is tested."""
    counts: Counter[int] = Counter()
    for histogram in histograms:
        counts.update(histogram.counts)
    filled = [histogram for histogram in histograms if histogram.count]
    return Histogram(
        counts=dict(counts),
        count=sum(counts.values()),
        total=sum(histogram.total for histogram in filled),
        min=min(histogram.min for histogram in filled),
        max=max(histogram.max for histogram in filled),
    )


@pytest.mark.serial
@pytest.mark.parametrize("load", SHAPES)
def test_requests_in_the_merged_result_equal_the_servers_own_count(cluster, job_server, load) -> None:
    before = job_server.count()
    ended = cluster.submit(EXACT, *load, "--cores", str(len(cluster.workers)))
    assert ended.code == 0, ended.text
    document = ended.document()
    totals = document["totals"]
    assert totals["requests"] == job_server.count() - before
    assert totals["requests"] == totals["ok"] + totals["failed"] + totals["interrupted"]
    assert totals["iterations"] >= 1000, "a count of a handful proves nothing"
    assert document["status"] == "completed"
    [workflow] = document["workflows"]
    assert workflow["cores"] == len(cluster.workers)
    assert sum(row["requests"] for row in document["timeline"]) == totals["requests"]


@pytest.mark.serial
def test_shared_iterations_and_drops_add_up_exactly(cluster, job_server) -> None:
    before = job_server.count()
    ended = cluster.submit(EXACT, "--iterations", "700", "--vus", "10", "--cores", str(len(cluster.workers)))
    document = ended.document()
    steps = {step["name"]: step for step in document["workflows"][0]["steps"]}
    assert document["totals"]["iterations"] == 700
    assert steps["dropped"]["errors"] == {"reset": 100}  # every seventh of 700, and none was tried again
    assert document["totals"]["requests"] == 700 * (3 + 2 + 1) == job_server.count() - before
    assert document["totals"]["failed"] == 100


@pytest.mark.serial
def test_percentiles_are_those_of_the_union_of_all_shards(cluster) -> None:
    ended = cluster.submit(EXACT, "--rate", "400/s", "--duration", "2s", "--cores", str(len(cluster.workers)))
    document = ended.document()
    results = results_of(cluster, ended.job)
    assert {result.worker for result in results.values()} == set(cluster.workers)
    [workflow] = document["workflows"]
    compared = 0
    for step in workflow["steps"]:
        tallies = [result.tally.steps[step["name"]] for result in results.values()]
        assert step["count"] == sum(tally.count for tally in tallies)
        assert step["ok"] == sum(tally.ok for tally in tallies)
        for field, histograms in (
            ("response_time_ms", [tally.response_time for tally in tallies]),
            (
                "service_time_ms",
                [together(result.tally.calls[step["name"]].values()).service_time for result in results.values()],
            ),
        ):
            whole = union(histograms)
            assert all(histogram.count for histogram in histograms), "a part that measured nothing proves nothing"
            assert step[field]["min"] == whole.min / 1000
            assert step[field]["max"] == whole.max / 1000
            assert step[field]["mean"] == round(whole.mean / 1000, 3)
            for name, percent in PERCENTS.items():
                assert step[field][name] == whole.percentile(percent) / 1000, (step["name"], field, name)
                compared += 1
    assert compared == 3 * 2 * len(PERCENTS)
    lag = union([result.tally.generator.start_lag for result in results.values()])
    assert document["generator"]["start_lag_ms"]["p99"] == lag.percentile(99) / 1000


@pytest.mark.serial
def test_every_manager_tells_the_same_result(cluster) -> None:
    ended = cluster.submit(EXACT, "--iterations", "100", "--vus", "4")
    told = [
        cluster.talka("jobs", "result", ended.job, "--json", "--to", cluster.api(name)).out for name in cluster.managers
    ]
    assert told[0] == told[1] == told[2] != ""
    assert '"requests": 600' in told[0]


@pytest.mark.serial
def test_who_watches_sees_what_each_step_did_in_every_window_while_the_job_runs(cluster) -> None:
    """The final word comes from the job's record and has no windows: those of its last second may not be told."""
    said = cluster.talka("submit", str(EXACT), "--rate", "100/s", "--duration", "4s", "--env", "TARGET", "--detach")
    assert said.code == 0, said.text
    job = said.out.strip()
    settled: list[int] = []
    steps: Counter[str] = Counter()
    requests: Counter[str] = Counter()
    is_recent_by_step = False
    for update in cluster.client().watch(job, steps=True):
        assert len(update.recent) <= 11, "of the last second"
        settled += [window.index for window in update.windows]
        requests["job"] += sum(window.requests for window in update.windows)
        for workflow in update.workflows:
            requests["workflows"] += sum(window.requests for window in workflow.windows)
            is_recent_by_step |= any(window.steps for window in workflow.recent)
            for window in workflow.windows:
                steps.update({name: step.count for name, step in window.steps.items()})
    assert settled == sorted(set(settled)) and len(settled) >= 20, "each is told once, in order"
    assert requests["job"] == requests["workflows"] > 0
    assert set(steps) == {"redirected", "twice", "dropped"} and is_recent_by_step
    [workflow] = cluster.client().result(job).workflows
    counts = {step.name: step.count for step in workflow.steps}
    assert all(0 < steps[name] <= counts[name] for name in steps)
    told: Counter[str] = Counter()
    for row in workflow.timeline:
        told[row.step] += row.count
    assert told == counts, "and the result has all of them"


def test_four_workers_together_count_exactly_what_the_server_served(start_jobs, job_server, tmp_path) -> None:
    """Bound by iterations and not by time, with a lease that nobody loses: however slow the machine is, the counts are
    the same."""
    with start_jobs(tmp_path, 3, 4, manager_options=("--lease", "60s")) as cluster:
        before = job_server.count()
        ended = cluster.submit(EXACT, "--iterations", "700", "--vus", "20", "--cores", "4")
        assert ended.code == 0, ended.text
        document = ended.document()
        steps = {step["name"]: step for step in document["workflows"][0]["steps"]}
        assert document["totals"]["iterations"] == 700
        assert steps["dropped"]["errors"] == {"reset": 100}  # every seventh of 700, and none was tried again
        assert document["totals"]["requests"] == 700 * (3 + 2 + 1) == job_server.count() - before
        assert (document["totals"]["failed"], document["status"]) == (100, "completed")
        results = results_of(cluster, ended.job)
        assert sorted(result.worker for result in results.values()) == cluster.workers, "each did a part of it"
        assert sum(result.tally.iterations for result in results.values()) == 700
