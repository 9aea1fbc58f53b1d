"""Results to be shown, and the view of a job that runs: for the tests of everything that shows them."""

from typing import Any

import msgspec

from talka.control.load.load_job import LoadJob
from talka.report.document import Generator, Job, Metric, ResultDocument, Step, Threshold, Times, Totals, Workflow
from talka.report.job_view import JobView, refresh

METRICS = [
    Metric("orders", "count", 12_000, 12_000.0, 1197.6, 1.0, 1.0, 1.0, None),
    Metric("basket", "distribution", 12_000, 126_000.0, 12574.9, 0.5, 10.5, 99.0, {"p50": 9.5, "p99_9": 50.25}),
]
RULES = [
    Threshold("response_time.p99 < 250ms", 120.0, True, None, "120 ms"),
    Threshold("pay.failed < 0.1%", 0.00436, False, "Checkout", "0.436 %"),
]


def times(scale: float = 1.0) -> Times:
    found = Times(min=1.5, mean=20.0, stdev=3.0, p50=23.1, p90=25.9, p95=30.4, p99=41.2, p99_9=99.96, max=1203.4)
    return Times(*(getattr(found, name) * scale for name in Times.__struct_fields__))


def a_step(name: str = "get", **changes: Any) -> Step:
    found = Step(
        name=name,
        measured=True,
        count=12_155,
        ok=12_155,
        failed=0,
        interrupted=0,
        rate_per_s=1215.5,
        response_time_ms=times(),
        service_time_ms=times(0.02),
        status_codes={"200": 12_155},
        errors={},
        samples=[],
        histogram=None,
        service_histogram=None,
        tags={},
    )
    return msgspec.structs.replace(found, **changes)


def a_workflow(name: str = "Checkout", **changes: Any) -> Workflow:
    found = Workflow(
        name=name,
        status="completed",
        model="closed",
        load="20 VUs for 10s",
        vus=20,
        cores=2,
        duration_s=10.02,
        iterations=12_155,
        dropped_iterations=0,
        failure=None,
        steps=[a_step()],
        checks=[],
        metrics=[],
    )
    return msgspec.structs.replace(found, **changes)


def a_document(**changes: Any) -> ResultDocument:
    found = ResultDocument(
        job=Job("job-7", "shop.py", "tests/shop.py"),
        status="completed",
        exit_code=0,
        reasons=[],
        started_at="2026-11-15T12:00:00+00:00",
        duration_s=10.02,
        totals=Totals(12_155, 12_155, 0, 0, 0, 1215.5, 2_100_000, 14_300_000, 12_155, 0, 20, 0),
        workflows=[a_workflow()],
        thresholds=[],
        timeline=[],
        lost_shards=[],
        datacenters=[],
        start_skew_ms=0.41,
        generator=Generator("python", "1.2.3", 0.43, None, times(0.02), False, []),
        warnings=[],
    )
    return msgspec.structs.replace(found, **changes)


def view_of(job: LoadJob) -> JobView:
    view = JobView(job.spec)
    refresh(view, job)
    return view
