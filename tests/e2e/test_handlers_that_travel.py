"""Handlers that travel with their pipeline, as their users send them."""

import shutil
from pathlib import Path

from tests.e2e.cluster import SOON_S
from tests.e2e.dag_cluster import HANDLERS, UP, DagCluster, dag_cluster

PIPELINE = """
name: travels
tasks:
  - {id: first, handler: told, config: %s}
  - {id: last, handler: told, config: "", depends_on: [first]}
"""
IN_PYTHON = """
from talka import Dag
from told import told

dag = Dag("travels")
dag.task("last", told, "", after=dag.task("first", told, %r))
"""
TOLD = (
    HANDLERS
    + """
from version import VERSION


@handler("told")
async def told(task):
    note("began", task, VERSION)
    while task.config and not is_open(task.config):
        await asyncio.sleep(0.02)
    note("ended", task, VERSION)
    return VERSION
"""
)


def write(folder: Path, version: str, gate: str, name: str = "travels.yaml") -> list[str]:
    """What is submitted: the pipeline, with its handlers in another file."""
    (folder / "version.py").write_text(f"VERSION = {version!r}\n")
    (folder / "told.py").write_text(TOLD)
    (folder / "travels.yaml").write_text(PIPELINE % gate)
    (folder / "travels.py").write_text(IN_PYTHON % gate)
    return [str(folder / name), "--with", str(folder / "told.py"), "--detach"]


def submitted(cluster: DagCluster, *words: str) -> str:
    done = cluster.talka("submit", *words)
    assert done.code == 0, done.text
    return done.out.strip()


def outputs(cluster: DagCluster, job: str) -> dict[str, object]:
    return {task.id: task.output for task in cluster.stored() if task.job == job}


def test_two_versions_of_a_handler_run_side_by_side_and_outlive_kill_minus_nine(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with dag_cluster(tmp_path / "cluster", cores=2, is_up=True) as cluster:
        one = submitted(cluster, *write(home, "one", "gate"))
        cluster.wait_for_lines(1, job=one, word="began")
        two = submitted(cluster, *write(home, "two", "gate"))
        cluster.wait_for_lines(1, job=two, word="began")
        shutil.rmtree(home)  # what was sent is all that is needed

        cluster.kill(UP)
        cluster.start_up(SOON_S)
        cluster.wait_for_lines(2, job=one, word="began")
        cluster.wait_for_lines(2, job=two, word="began")
        cluster.open_gate("gate")
        for job in (one, two):
            cluster.wait_for_end(job)

        told = {job: {line.text for line in cluster.ledger(job=job)} for job in (one, two)}
        pids = {job: {line.pid for line in cluster.ledger(job=job)} for job in (one, two)}
        found = {job: outputs(cluster, job) for job in (one, two)}
    assert found == {one: {"first": "one", "last": "one"}, two: {"first": "two", "last": "two"}}
    assert told == {one: {"one"}, two: {"two"}}
    assert pids[one].isdisjoint(pids[two])


def test_a_worker_that_is_killed_leaves_the_travelled_tasks_of_a_pipeline_in_python_to_another(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with dag_cluster(tmp_path / "cluster", worker_options=("--accept-code",)) as cluster:
        job = submitted(cluster, *write(home, "one", "gate", "travels.py"))
        cluster.wait_for_lines(1, job=job, word="began")
        (name,) = [
            name
            for name in cluster.up
            if any(one.pid == cluster.ledger(job=job)[0].pid for one in cluster.core_processes(name))
        ]
        cluster.kill(name)
        cluster.wait_for_lines(2, job=job, word="began")
        cluster.open_gate("gate")
        cluster.wait_for_end(job)
        found = outputs(cluster, job)
    assert found == {"first": "one", "last": "one"}


def test_code_is_refused_where_no_worker_takes_any_and_waits_if_it_may(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with dag_cluster(tmp_path / "cluster", cores=1, is_up=True, start=False) as cluster:
        cluster.start_up(SOON_S, "--no-accept-code")
        words = write(home, "one", '""')
        # While the manager is young it says to try again, which the command does.
        refused = cluster.talka("submit", *words)
        job = submitted(cluster, *words, "--wait-for-workers")
        why = cluster.talka("jobs", "show", job, "--why", "first")
    assert refused.code == 3, refused.text
    assert "no worker takes code that travels with a job (--accept-code)" in refused.text
    assert "takes no code (start it with --accept-code)" in why.out, why.text
