"""What a manager counts of its workers is what it tells clients of them."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from talka.control.jobs.effects import JobLate
from talka.control.member.metrics import PREFIX
from talka.control.member.metrics_table import METRICS
from tests.nodes.small_cluster import small_cluster


async def test_what_waited_for_no_worker_because_too_much_did_is_counted(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, "m", store=f"sqlite:///{tmp_path / 'jobs.sqlite'}") as cluster:
        manager = cluster.managers["m"]
        manager.manager.to_workers.lost = 2
        assert manager.counts()["dag_messages_lost_total"] == 2


async def test_workflows_that_are_late_are_counted_by_what_became_of_them(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, "m") as cluster:
        manager = cluster.managers["m"]
        for what in ("given", "given", "warned"):
            manager._on_job_news(JobLate("j1", "Shop", what, "it was late"))

        assert manager.counts()["workflows_late_total"] == {"given": 2, "warned": 1, "put aside": 0, "resumed": 0}


async def test_cores_in_metrics_are_those_of_the_cluster_also_where_none_is_given_out(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, "m") as cluster:
        await cluster.start_worker()
        manager = cluster.managers["m"]
        await manager.control.drain("w")

        counts, view = manager.counts(), await manager.control.cluster()

    assert (counts["cores"], counts["cores_free"], counts["cores_usable"]) == (1, 0, 0)
    assert (view.cores, view.cores_free, view.cores_usable) == (1, 0, 0)


async def test_whatever_a_node_counts_has_a_line_in_the_table_of_metrics(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, "m", certified=True, store=f"sqlite:///{tmp_path / 'jobs.sqlite'}") as cluster:
        worker = await cluster.start_worker()
        texts = cluster.managers["m"].control.metrics(), worker.metrics()

    shown = {family.name for text in texts for family in text_string_to_metric_families(text)}
    assert shown == {PREFIX + line.name.removesuffix("_total") for line in METRICS.values()}
