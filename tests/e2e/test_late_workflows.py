"""A workflow that runs longer than it may: it asks, is given more time, is warned and saves."""

from pathlib import Path

from tests.e2e.job_cluster import until

LATE = Path(__file__).parent / "workflows" / "late.py"
PAUSED = LATE.with_name("late_and_paused.py")
REASON = "the index is built"


def was_late(document) -> None:
    """Until it was warned it ran for a second and five extensions, of a second each; then it saved, and ended."""
    (workflow,) = document["workflows"]
    given = workflow["more_time"]
    assert [one["given_s"] for one in given] == [1, 1, 1, 1, 1]
    assert [one["reason"] for one in given].count(REASON) == 1
    assert workflow["was_warned"] and workflow["status"] == "completed" and workflow["duration_s"] >= 6
    metrics = {metric["name"]: metric for metric in workflow["metrics"]}
    assert (metrics["given"]["max"], metrics["saved"]["values"], metrics["saved"]["max"]) == (1, 1, 7)
    assert any(f"it asked for more time and was given 1s more: {REASON}" in text for text in document["warnings"])
    assert any("its time is over: it was warned, and has 10s to save" in text for text in document["warnings"])


def test_a_late_workflow_asks_for_more_time_and_saves_when_it_is_warned(command) -> None:
    ended = command.run_file("late.py")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    was_late(command.document())


def test_a_late_workflow_on_a_cluster_is_given_more_time_by_the_manager_that_leads_its_job(shared_jobs) -> None:
    ended = shared_jobs.submit(LATE)

    assert ended.code == 0, ended.err
    was_late(ended.document())


def test_a_late_workflow_is_put_aside_and_a_person_resumes_the_rest_of_it(shared_jobs) -> None:
    submitted = shared_jobs.start_submit(PAUSED)
    job = submitted.job()

    def shown() -> str:
        return shared_jobs.talka("jobs", "show", job).out

    until(lambda: "talka jobs resume" in shown(), shared_jobs, 60, "the job is paused")
    paused, workers = shown(), shared_jobs.talka("workers").out
    resumed = shared_jobs.talka("jobs", "resume", job)
    ended = submitted.ended()

    assert "paused: Paused is put aside since" in paused and "cores" not in paused, paused
    assert job not in workers, workers
    assert (resumed.code, ended.code) == (0, 0), resumed.text + ended.text
    document = ended.document()
    (workflow,) = document["workflows"]
    assert (workflow["status"], workflow["iterations"]) == ("completed", 160)
    metrics = {metric["name"]: metric for metric in workflow["metrics"]}
    assert (metrics["done_before"]["min"], metrics["done_before"]["max"]) == (0, 1), "what was left is handed back"
    assert any("it was resumed, and goes on with the rest of its plan" in text for text in document["warnings"])
