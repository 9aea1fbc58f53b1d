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


def test_the_example_that_is_fanned_out_travels_with_its_handlers_and_shows_its_elements_in_one_line(
    tmp_path: Path,
) -> None:
    with dag_cluster(tmp_path, is_up=True) as cluster:
        ended = cluster.submit(EXAMPLE / "fan.yaml", "--with", str(EXAMPLE / "handlers.py"), "--param", "parts=20")

        job, tasks = cluster.document(ended)
        graph = cluster.talka("jobs", "show", job["id"], "--graph")
        one = cluster.talka("jobs", "show", job["id"], "--task", "clean[19]")
        why = cluster.talka("jobs", "show", job["id"], "--why", "clean")

    assert ended.code == 0, ended.text
    assert (job["state"], job["tasks"], job["counts"]) == ("completed", 24, {"completed": 24})
    assert list(tasks) == ["extract", "clean", "merge", "report", *(f"clean[{place}]" for place in range(20))]
    assert tasks["clean"]["elements"] == {"completed": 20} and tasks["clean"]["depends_on"] == ["extract"]
    assert tasks["merge"]["output"]["dropped"] == 100
    (line,) = [line for line in graph.out.splitlines() if "clean[0..19]" in line]
    assert "20 completed" in line and "merge" in line, graph.text
    assert "element of clean" in one.out and "Kobe" in one.out, one.text
    assert why.code == 0, why.text
