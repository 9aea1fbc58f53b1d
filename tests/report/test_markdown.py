"""A summary in Markdown."""

import re
from pathlib import Path

import msgspec

from talka.report.document import ResultDocument, Threshold
from talka.report.markdown import ROWS_SHOWN, markdown
from talka.report.outputs.output import parse_output


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def tables(text: str) -> dict[str, list[list[str]]]:
    """Title to rows, heads left out. Every row must have as many cells as its head."""
    found: dict[str, list[list[str]]] = {}
    for block in re.findall(r"### (.*)\n\n((?:\|.*\n)+)", text):
        title, lines = block[0], [cells(line) for line in block[1].splitlines()]
        assert {len(line) for line in lines} == {len(lines[0])}, title
        found[title] = lines[2:]
    return found


def test_it_tells_verdict_thresholds_totals_steps_errors_and_warnings(result: ResultDocument) -> None:
    text = markdown(result)
    assert text.startswith('## ✗ my shop, "a=b".py: partial\n')
    assert "**1 shard was lost; what it had not reported is missing.**" in text
    found = tables(text)
    assert found["Thresholds"] == [
        ["✓", r"response\_time.p99 \< 250ms", "the whole job", "7.00 ms"],
        ["✗", r"pay.failed \< 0.1%", "Shop", "50 %"],
        ["✗", r"metrics.basket.p95 \< 1", "Shop", "no sample"],
    ]
    assert ["failed", "2", "22.22 %"] in found["Totals"]
    steps = found["Shop: 20 VUs for 10s (closed model), partial"]
    assert [step[0] for step in steps] == ["login", "pay", "tidy"]
    assert steps[1][-1] == "7.00 ms" and steps[2][-1] == ""
    assert found["Errors"] == [["Shop.pay", "status", "2"]]
    assert found["Checks"] == [
        ["✗", "Shop.paid", "1", "3"],
        ["✓", "Shop.fresh", "4", "0"],
        ["-", "Shop.never", "0", "0"],
    ]
    assert "### Warnings\n\n- the generator was \\| the bottleneck" in text


def test_what_a_server_wrote_is_shown_and_means_nothing(result: ResultDocument) -> None:
    text = markdown(result)
    assert r"answered 503 \<b\>\|x\|\</b\>" in text
    assert "\x1b" not in text


def test_a_good_job_has_no_empty_tables(result: ResultDocument) -> None:
    document = msgspec.structs.replace(
        result, exit_code=0, status="completed", reasons=[], thresholds=[], workflows=[], warnings=[]
    )
    text = markdown(document)
    assert text.startswith('## ✓ my shop, "a=b".py: completed\n\nran 10.0 s, started 2026-11-15T12:00:00.500+00:00\n')
    assert list(tables(text)) == ["Totals"]


def test_long_tables_are_cut(result: ResultDocument) -> None:
    rules = [Threshold("failed < 1%", 0.0, True, None, "0 %")] * (ROWS_SHOWN + 5)
    text = markdown(msgspec.structs.replace(result, thresholds=rules))
    assert len(tables(text)["Thresholds"]) == ROWS_SHOWN
    assert "5 more are in the result." in text


def test_it_is_appended_to_what_is_there(tmp_path: Path, result: ResultDocument) -> None:
    file = tmp_path / "summary.md"
    file.write_text("before\n")
    output = parse_output(f"markdown={file}")
    output.finish(result)
    output.close()
    assert file.read_text() == "before\n" + markdown(result)
