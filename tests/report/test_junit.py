"""JUnit XML, read back by a reader of others."""

from pathlib import Path
from typing import Any

import msgspec
from junitparser import Error, Failure, JUnitXml, Skipped

from talka.report.document import ResultDocument, Threshold
from talka.report.junit import Case, case_of_success
from talka.report.outputs.output import parse_output


def read(folder: Path, document: ResultDocument) -> dict[str, dict[str, Any]]:
    """Suite to case to its result, None if it passed."""
    file = folder / "junit.xml"
    parse_output(f"junit={file}").finish(document)
    xml = JUnitXml.fromfile(str(file))
    suites: dict[str, dict[str, Any]] = {}
    for suite in xml:
        cases = list(suite)
        results = [result for case in cases for result in case.result]
        # What the suite says of itself is what it holds.
        assert suite.tests == len(cases)
        assert suite.failures == sum(isinstance(result, Failure) for result in results)
        assert suite.errors == sum(isinstance(result, Error) for result in results)
        assert suite.skipped == sum(isinstance(result, Skipped) for result in results)
        assert all(len(case.result) <= 1 for case in cases)
        assert all(case.classname == suite.name for case in cases)
        suites[suite.name] = {case.name: case.result[0] if case.result else None for case in cases}
    assert xml.tests == sum(len(cases) for cases in suites.values())
    return suites


def test_there_is_a_suite_of_the_job_and_of_every_workflow(tmp_path: Path, result: ResultDocument) -> None:
    suites = read(tmp_path, result)
    assert list(suites) == ['my shop, "a=b".py', "Shop", 'La"te, one\\']
    assert list(suites['my shop, "a=b".py']) == ["ran to its end", "threshold response_time.p99 < 250ms"]
    assert list(suites["Shop"]) == [
        "ran to its end",
        "something succeeded",
        "shard 1 was not lost",
        "threshold pay.failed < 0.1%",
        "threshold metrics.basket.p95 < 1",
        "check paid",
        "check fresh",
        "check never",
    ]


def test_crossed_thresholds_fail_with_the_measured_value(tmp_path: Path, result: ResultDocument) -> None:
    suites = read(tmp_path, result)
    assert suites['my shop, "a=b".py']["threshold response_time.p99 < 250ms"] is None
    crossed = suites["Shop"]["threshold pay.failed < 0.1%"]
    assert isinstance(crossed, Failure)
    assert (crossed.message, crossed.type) == ("pay.failed < 0.1%: measured 50 %", "threshold")
    assert suites["Shop"]["threshold metrics.basket.p95 < 1"].message.endswith("measured no sample")


def test_checks_fail_with_counts_and_samples_and_are_skipped_if_they_never_ran(
    tmp_path: Path, result: ResultDocument
) -> None:
    shop = read(tmp_path, result)["Shop"]
    assert isinstance(shop["check paid"], Failure)
    # A character that no XML may hold is replaced.
    assert shop["check paid"].text == "3 of 4 failed (75.00 %)\n1.0 s: paid returned \ufffdFalse & more"
    assert shop["check fresh"] is None
    assert isinstance(shop["check never"], Skipped)


def test_a_lost_shard_is_an_error_of_its_workflow(tmp_path: Path, result: ResultDocument) -> None:
    lost = read(tmp_path, result)["Shop"]["shard 1 was not lost"]
    assert isinstance(lost, Error)
    assert lost.message.startswith(
        "The core of shard 1 was killed by SIGKILL: nothing is known of it from 3.0 s to 4.2 s"
    )


def test_a_lost_shard_that_was_allowed_is_skipped(tmp_path: Path, result: ResultDocument) -> None:
    suites = read(tmp_path, msgspec.structs.replace(result, exit_code=0))
    assert isinstance(suites["Shop"]["shard 1 was not lost"], Skipped)
    assert suites['my shop, "a=b".py']["ran to its end"] is None


def test_a_job_and_a_workflow_that_did_not_end_well_are_errors(tmp_path: Path, result: ResultDocument) -> None:
    suites = read(tmp_path, result)
    ended = suites['my shop, "a=b".py']["ran to its end"]
    assert isinstance(ended, Error) and ended.message == result.reasons[0]
    late = suites['La"te, one\\']
    assert isinstance(late["ran to its end"], Error)
    assert late["ran to its end"].message == "Shop failed, which it depends on"
    assert late["something succeeded"].message == "No step was measured."


def test_nothing_succeeded_is_an_error(tmp_path: Path, result: ResultDocument) -> None:
    shop = result.workflows[0]
    pay = msgspec.structs.replace(shop.steps[1], ok=0, failed=1200)
    document = msgspec.structs.replace(result, workflows=[msgspec.structs.replace(shop, steps=[pay])])
    found = read(tmp_path, document)["Shop"]["something succeeded"]
    assert isinstance(found, Error) and found.message == "1,200 steps were measured and none succeeded."


def test_a_crossed_threshold_alone_is_no_error_of_the_job(tmp_path: Path, result: ResultDocument) -> None:
    rule = Threshold("failed < 1%", 0.5, False, None, "50 %")
    document = msgspec.structs.replace(result, exit_code=4, thresholds=[rule], workflows=[], lost_shards=[])
    (job,) = read(tmp_path, document).values()
    assert job["ran to its end"] is None
    assert isinstance(job["threshold failed < 1%"], Failure)


def test_a_file_that_is_there_keeps_its_mode_and_is_replaced_whole(tmp_path: Path, result: ResultDocument) -> None:
    file = tmp_path / "junit.xml"
    file.write_text("x" * 100_000)
    file.chmod(0o640)
    read(tmp_path, result)
    assert file.stat().st_mode & 0o777 == 0o640
    assert [found.name for found in tmp_path.iterdir()] == ["junit.xml"]


def test_a_workflow_of_which_every_step_was_skipped_is_skipped_and_no_error() -> None:
    assert case_of_success(0, 0, 7) == Case("something succeeded", "skipped", "Every step was skipped, every time.")
    assert case_of_success(0, 1, 7).outcome == case_of_success(0, 0, 0).outcome == "error"
