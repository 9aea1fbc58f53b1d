"""Alerts and the Grafana board: they ask for what a manager and a worker really show, and each alert fires."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from talka.control.member.metrics import PREFIX
from talka.control.member.metrics_table import METRICS
from talka.work.dags.dag import DagSpec, TaskSpec
from tests.deploy.alerts import ALERTS, Fired
from tests.nodes.small_cluster import small_cluster

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "talka.rules.yml"
BOARD = DEPLOY / "grafana" / "talka.json"
PROMTOOL = shutil.which("promtool")
promtool_wanted = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not here: make rules installs it when root")
OF_A_SCRAPE = {"cluster", "instance", "job", "le"}
"""Labels that Prometheus adds, and that of a bucket."""
NAME = re.compile(r"\btalka_\w+")
BY = re.compile(r"\b(?:by|on) \(([^)]*)\)")
SELECTED = re.compile(r"(\btalka_\w+)\{([^}]*)\}")
MATCHER = re.compile(r"""(\w+)\s*(?:=~|!~|!=|=)\s*"[^"]*\"""")
SUFFIX = re.compile(r"_(bucket|sum|count)$")
LIMIT_S = 120
HANDLERS = """
from talka import HandlerTask, handler

@handler("etl")
async def etl(task: HandlerTask) -> int:
    return 1
"""


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(BOARD.read_text())["panels"] if panel["type"] != "row"]


def asked() -> Iterator[tuple[str, str]]:
    """Who asks, and what."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$cluster", ".*")


def family_of(name: str) -> str:
    """As the parser calls it: without what the samples of a histogram and of a counter end with."""
    return SUFFIX.sub("", name).removesuffix("_total")


def unknown_in(expression: str, shown: dict[str, set[str]]) -> list[str]:
    """Names and labels that no scrape has. `shown`: the labels of each family."""
    names = NAME.findall(expression)
    wrong = [name for name in names if family_of(name) not in shown]
    labels = set().union(*(shown.get(family_of(name), set()) for name in names)) | OF_A_SCRAPE
    for by in BY.findall(expression):
        wrong += [label for label in re.split(r"\s*,\s*", by) if label not in labels]
    for name, matchers in SELECTED.findall(expression):
        known = shown.get(family_of(name), set()) | OF_A_SCRAPE
        wrong += [f"{name}{{{label}}}" for label in MATCHER.findall(matchers) if label not in known]
    return wrong


async def test_rules_and_board_ask_for_what_a_manager_and_a_worker_show(tmp_path: Path) -> None:
    file = tmp_path / "handlers.py"
    file.write_text(HANDLERS)
    store = f"sqlite:///{tmp_path / 'jobs.sqlite'}"
    async with small_cluster(tmp_path, "m", certified=True, store=store) as cluster:
        worker = await cluster.start_worker(handlers=(file,))
        manager = cluster.managers["m"]
        assert manager.dags is not None
        spec = DagSpec(name="n", tasks=(TaskSpec(id="a", handler="etl"),), wait_for_workers=True)
        facts = await manager.dags.submit_dag(spec, "", "")
        async for update in manager.dags.watch_dag(facts.id):
            facts = update
        texts = manager.control.metrics(), worker.metrics()

    shown: dict[str, set[str]] = {}
    for family in [one for text in texts for one in text_string_to_metric_families(text)]:
        labels = {label for sample in family.samples for label in sample.labels}
        line = METRICS.get(family.name.removeprefix(PREFIX)) or METRICS[f"{family.name.removeprefix(PREFIX)}_total"]
        assert labels - {"le"} <= {line.label}, f"{family.name} is shown with the label that its line has"
        shown.setdefault(family.name, set()).update(labels | {line.label})
    assert "handler" in shown["talka_queue_completed"] and facts.counts == {"completed": 1}
    assert {who: wrong for who, expression in asked() if (wrong := unknown_in(expression, shown))} == {}


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("talka_made_up > 0", ["talka_made_up"]),
        ('talka_frames_refused_total{cause="x"}', ["talka_frames_refused_total{cause}"]),
        ("sum by (cluster, cause) (talka_frames_refused_total)", ["cause"]),
        ('sum by (cluster, reason) (talka_frames_refused_total{reason="x",cluster=~".*"})', []),
    ],
)
def test_what_no_scrape_has_is_found(expression: str, wrong: list[str]) -> None:
    assert unknown_in(expression, {"talka_frames_refused": {"reason"}}) == wrong


def test_every_alert_says_what_is_so_and_what_to_do_and_has_a_test() -> None:
    found = rules()
    assert [rule["alert"] for rule in found] == list(ALERTS)
    for rule in found:
        summary, description = rule["annotations"]["summary"], rule["annotations"]["description"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert len(summary) > 20 and len(description) > 30 and description[-1] in ".?"


def test_the_operators_guide_says_of_every_alert_what_to_do() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert sorted(re.findall(r"`(Talka\w+)`", page)) == sorted(ALERTS)


def test_panels_of_the_board_have_numbers_and_places_of_their_own() -> None:
    board = json.loads(BOARD.read_text())
    places = [tuple(panel["gridPos"][axis] for axis in "xy") for panel in board["panels"]]
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers) >= 20 and len(set(places)) == len(places)
    assert all(panel["targets"] and panel["title"] for panel in panels())


def promtool(*arguments: str, folder: Path) -> str:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@promtool_wanted
def test_prometheus_takes_the_rules_its_own_settings_and_what_the_board_asks_for(tmp_path: Path) -> None:
    for name in ("talka.rules.yml", "prometheus.yml"):
        shutil.copy(DEPLOY / "prometheus" / name, tmp_path)
    (tmp_path / "talka.token").write_text("token")
    records = [{"record": f"board:{n}", "expr": expression} for n, (_, expression) in enumerate(asked())]
    (tmp_path / "board.yml").write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": records}]}))

    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", "talka.rules.yml", folder=tmp_path)
    assert f"{len(records)} rules found" in promtool("check", "rules", "board.yml", folder=tmp_path)
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml", folder=tmp_path)


def played(alert: str, fired: Fired) -> Iterator[dict[str, Any]]:
    """A test of promtool with what makes it fire, and one with what does not."""
    for series, samples in ((fired.fires, [{"labels": "{}", "value": 1}]), (fired.calm, [])):
        yield {
            "interval": "15s",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                    "eval_time": "15m",
                    "exp_samples": samples,
                }
            ],
        }


@promtool_wanted
def test_every_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path)
    tests = [test for alert, fired in ALERTS.items() for test in played(alert, fired)]
    document = {"rule_files": [RULES.name], "evaluation_interval": "15s", "tests": tests}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(document))

    assert "SUCCESS" in promtool("test", "rules", "tests.yml", folder=tmp_path)
