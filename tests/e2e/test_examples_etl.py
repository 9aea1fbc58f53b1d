"""The example pipeline, as its users run it."""

from pathlib import Path

from tests.e2e.dag_cluster import dag_cluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "etl"


def test_the_example_fans_out_and_in_and_its_failing_step_is_tried_again(tmp_path: Path) -> None:
    handlers = (EXAMPLE / "handlers.py").read_text()
    with dag_cluster(tmp_path, is_up=True, handlers=handlers) as cluster:
        ended = cluster.submit(EXAMPLE / "pipeline.yaml")

        job, tasks = cluster.document(ended)
        logs = cluster.talka("jobs", "show", job["id"], "--logs", "extract")
        graph = cluster.talka("jobs", "show", job["id"], "--graph")

    assert ended.code == 0, ended.text
    assert (job["state"], job["counts"]) == ("completed", {"completed": 7})
    assert {name: task["attempts"] for name, task in tasks.items()} == {
        **dict.fromkeys(("extract", "clean-1", "clean-2", "clean-4", "merge", "report"), 1),
        "clean-3": 3,
    }
    rows = [("Lima", "Oslo", "Pune", "Kobe")[n % 4] for n in range(1000) if n % 10]
    assert tasks["merge"]["output"]["dropped"] == 1000 - len(rows)
    assert tasks["merge"]["output"]["amounts"] == {
        city: sum(n % 97 for n in range(1000) if n % 10 and ("Lima", "Oslo", "Pune", "Kobe")[n % 4] == city)
        for city in ("Kobe", "Lima", "Oslo", "Pune")
    }
    assert "ordered most" in tasks["report"]["output"]
    assert "1000 orders in 4 parts" in logs.out, logs.text
    assert "clean-1 … clean-4 (4)" in graph.out, graph.text
