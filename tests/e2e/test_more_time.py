"""Tasks that ask for more time, on real processes: a manager that is killed meanwhile forgets nothing of it."""

from pathlib import Path

from tests.e2e.dag_cluster import HANDLERS, dag_cluster

LATE = """

@handler("asks")
async def asks(task):
    given = []
    for row in range(7):
        task.heartbeat({"row": row})
        answer = await task.extend("10h", "the index is large")
        given.append(answer.granted_s)
        note("given", task, str(answer.granted_s))
        while not is_open("gate"):
            await asyncio.sleep(0.02)
    return given


@handler("saves")
async def saves(task):
    if task.checkpoint is not None:
        return task.checkpoint

    @task.on_evict
    def save():
        note("warned", task)
        task.heartbeat("saved")

    while not task.is_evicted:
        await asyncio.sleep(0.02)
    raise RuntimeError("saved, and out")
"""
"""To go after HANDLERS."""


def test_more_time_that_a_task_was_given_outlives_its_manager_and_a_late_one_goes_on_where_it_was(
    tmp_path: Path,
) -> None:
    with dag_cluster(tmp_path, 1, 2, handlers=HANDLERS + LATE) as cluster:
        long = {"timeouts": {"attempt": "40m"}}
        asking = cluster.dag("asking", {"id": "index", "handler": "asks", **long})
        cluster.wait_for_lines(1, job=asking, word="given")
        cluster.kill("m1")
        cluster.start_manager("m1")
        cluster.wait_until_ready()
        cluster.open_gate("gate")
        ended = cluster.wait_for_end(asking)
        (index,) = cluster.ask_api("GET", f"/v1/jobs/{asking}/tasks/index/attempts").good()["items"]
        shown = cluster.talka("jobs", "show", asking, "--task", "index")
        told = [event["kind"] for event in cluster.ask_api("GET", f"/v1/jobs/{asking}/events").good()["items"]]

        late = {"id": "late", "handler": "saves", "timeouts": {"attempt": "1s"}, "on_timeout": "pause"}
        waits = cluster.dag("late", late, settings={"retry": {"max": 0}})
        cluster.wait_for_task(waits, "late", "pending")
        paused = cluster.facts(waits)
        cluster.talka("jobs", "resume", waits)
        resumed = cluster.wait_for_end(waits)
        output = cluster.tasks(waits)["late"]["output"]
        attempts = cluster.ask_api("GET", f"/v1/jobs/{waits}/tasks/late/attempts").good()["items"]
        warnings = cluster.ledger(job=waits, word="warned")

    assert ended["state"] == "completed"
    given = [float(line.text) for line in cluster.ledger(job=asking, word="given")]
    assert given == [1200.0, 600.0, 300.0, 150.0, 75.0, 0.0, 0.0], "each half of the one before, and five"
    assert [one["by_s"] for one in index["extensions"]] == given[:5]
    assert {one["reason"] for one in index["extensions"]} == {"the index is large"}
    assert index["denied"] == "it was given more time 5 times already, which is the limit"
    assert told.count("more-time") == 5
    assert "38m45s in 5 (the index is large)" in shown.text, shown.text

    assert paused["state"] == "paused" and "resume the job to run the task again" in paused["reason"]
    assert (resumed["state"], output) == ("completed", "saved")
    assert [(one["outcome"], one["warned"]) for one in attempts] == [("timeout", True), ("completed", False)]
    assert len(warnings) == 1
