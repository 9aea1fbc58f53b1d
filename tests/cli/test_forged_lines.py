"""What users write, in the log of a node: a reason cannot end its line, nor steer the terminal that shows it."""

import http.client
import json
import sys
from pathlib import Path

import pytest

from talka.cli.nodes.life import sentence
from talka.cli.nodes.member import Printer
from talka.cli.output import sheet_text, table
from talka.cli.remote import LineTeller
from talka.client.sheets import load_sheet
from talka.wire.views import JobFacts, JobUpdate, LogLine
from talka.work.lifecycle import JobState
from tests.node_process import nodes

LIMIT_S = 60
FORGED = "enough\n12:00:00.000  leads no more: forged\r\n\x1b[2J\x1b]0;owned\x07\x9b2K\u2028\u202edetrever"


def post(address: str, path: str, value: object) -> dict[str, str]:
    connection = http.client.HTTPConnection(address, timeout=LIMIT_S)
    try:
        connection.request("POST", path, json.dumps(value), {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status in (200, 201)
        found: dict[str, str] = json.loads(answer.read())
        return found
    finally:
        connection.close()


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_the_reason_of_a_cancel_is_one_line_of_a_nodes_log(tmp_path: Path, as_json: bool) -> None:
    words = ("up", "--port", "0", "--cores", "1", "--data-dir", "up", "--store", "sqlite:///jobs.sqlite")
    with nodes() as start:
        node = start(*words, *(["--json"] if as_json else []), folder=tmp_path)
        ready = node.line(lambda line: "try: talka submit" in line or '"event":"up"' in line)
        address = json.loads(ready)["address"] if as_json else ready.strip().rpartition("--to ")[2]
        dag = {"kind": "dag", "name": "nightly", "tasks": [{"id": "a", "handler": "nobody-has-it"}]}
        dag["wait_for_workers"] = True
        job = post(address, "/v1/jobs", dag)["id"]
        post(address, f"/v1/jobs/{job}/cancel", {"reason": FORGED})
        before = len(node.lines)
        node.stop()

    rest = [line.removesuffix("\n") for line in node.lines[before:]]
    told = [line for line in rest if "enough" in line]
    assert len(told) == 1 and all(line.isprintable() for line in rest)
    assert not any(line.startswith("12:00:00.000") for line in rest)
    if as_json:
        assert json.loads(told[0])["reason"] == FORGED
    else:
        assert "leads no more: forged" in told[0] and "\\x1b[2J\\x1b]0;owned\\x07\\x9b2K" in told[0]


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_whatever_an_event_says_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, as_json: bool) -> None:
    """Also of one that has no words of its own."""
    with open(tmp_path / "log", "wb") as log:
        monkeypatch.setattr(sys, "stdout", log)
        printer = Printer(None, as_json, sentence)
        printer.event({"at": 1.0, "event": "alarm", "kind": "jobs", "text": FORGED})
        printer.event({"at": 1.0, "event": "something-new", "reason": FORGED})
        printer.finish()

    written = written_in(tmp_path / "log")

    assert len(written.splitlines()) == 2
    assert all(line.isprintable() and "enough\\n12:00:00.000" in line for line in written.split("\n")[:2])


def written_in(path: Path) -> str:
    return path.read_bytes().decode()


# What commands show.


def test_a_reason_or_name_is_one_line_of_what_a_command_shows() -> None:
    facts = JobFacts(id="job1", name=FORGED, state=JobState.CANCELLED, reason=FORGED, submitted_by=FORGED)

    shown = sheet_text(load_sheet(facts))
    listed = table(("JOB", "NAME"), [("job1", FORGED), ("job2", "shop")])

    for text, count in ((shown, 3), (listed, 1)):
        assert text.count("enough\\n12:00:00.000") == count
        assert all(line.isprintable() for line in text.split("\n"))
        assert not any(line.startswith("12:00") for line in text.splitlines())


def test_what_a_test_prints_is_one_line_each() -> None:
    said: list[str] = []
    facts = JobFacts(id="job1", name="shop", state=JobState.RUNNING, owner="m1")

    LineTeller(said.append)(JobUpdate(facts, 1, logs=[LogLine(1, "w1", FORGED)]))

    assert len(said) == 1 and said[0].startswith("w1: enough\\n12") and said[0].isprintable()
