"""JUnit XML for CI systems: a suite for the job and one for each workflow, thresholds and checks as test cases."""

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal
from xml.etree import ElementTree

import msgspec

from talka.report.document import Check, ResultDocument, Threshold, Workflow
from talka.report.text import share_text
from talka.work.outcome import ExitCode

NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML document may hold, not even escaped."""
UNFINISHED: Final = ("failed", "timeout", "skipped", "cancelled")


class Case(msgspec.Struct, frozen=True):
    name: str
    outcome: Literal["passed", "failure", "error", "skipped"] = "passed"
    message: str = ""
    kind: str = ""


def junit_xml(document: ResultDocument) -> bytes:
    name = document.job.name
    suites = [(name, document.duration_s, list(cases_of_job(document)))]
    for workflow in document.workflows:
        suites.append((workflow.name, workflow.duration_s, list(cases_of_workflow(document, workflow))))
    root = ElementTree.Element("testsuites", attributes(f"talka {name}", document.duration_s, every_case(suites)))
    for suite, duration_s, cases in suites:
        # The schema has no place for a time zone; the instant is UTC.
        found = {**attributes(suite, duration_s, cases), "timestamp": document.started_at[:19]}
        element = ElementTree.SubElement(root, "testsuite", found)
        for case in cases:
            add_case(element, suite, case)
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def every_case(suites: Iterable[tuple[str, float, list[Case]]]) -> list[Case]:
    return [case for _, _, cases in suites for case in cases]


def attributes(name: str, duration_s: float, cases: Sequence[Case]) -> dict[str, str]:
    outcomes = [case.outcome for case in cases]
    return {
        "name": xml_text(name),
        "tests": str(len(cases)),
        "failures": str(outcomes.count("failure")),
        "errors": str(outcomes.count("error")),
        "skipped": str(outcomes.count("skipped")),
        "time": f"{duration_s:.3f}",
    }


def add_case(suite: ElementTree.Element, class_name: str, case: Case) -> None:
    named = {"classname": xml_text(class_name), "name": xml_text(case.name), "time": "0"}
    element = ElementTree.SubElement(suite, "testcase", named)
    if case.outcome != "passed":
        # Newlines in attributes become spaces when read; the text keeps them.
        found = {"message": xml_text(case.message)} | ({"type": case.kind} if case.kind else {})
        ElementTree.SubElement(element, case.outcome, found).text = xml_text(case.message)


def cases_of_job(document: ResultDocument) -> Iterable[Case]:
    """The thresholds of the whole job, and how it ended. Crossed thresholds have cases of their own."""
    if document.exit_code in (ExitCode.HELD, ExitCode.THRESHOLD_CROSSED):
        yield Case("ran to its end")
    else:
        reasons = " ".join(document.reasons) or f"It ended {document.status} with exit code {document.exit_code}."
        yield Case("ran to its end", "error", reasons, "job")
    yield from (case_of_threshold(rule) for rule in document.thresholds if rule.workflow is None)


def cases_of_workflow(document: ResultDocument, workflow: Workflow) -> Iterable[Case]:
    if workflow.status in UNFINISHED:
        yield Case("ran to its end", "error", workflow.failure or f"It ended {workflow.status}.", "workflow")
    else:
        yield Case("ran to its end")
    measured = [step for step in workflow.steps if step.measured]
    if measured:
        skipped = sum(step.skipped for step in measured)
        yield case_of_success(sum(step.ok for step in measured), sum(step.failed for step in measured), skipped)
    lost = [shard for shard in document.lost_shards if shard.workflow == workflow.name]
    for shard in lost:
        text = (
            f"The core of shard {shard.shard} {shard.cause}: nothing is known of it from {shard.from_s:.1f} s"
            f" to {shard.to_s:.1f} s ({shard.vus_missing} VUs, {shard.arrivals_missing} arrivals missing)."
        )
        # An exit code of 0 in spite of it: whoever ran the job allowed it.
        is_allowed = document.exit_code == ExitCode.HELD
        yield Case(f"shard {shard.shard} was not lost", "skipped" if is_allowed else "error", text, "lost shard")
    yield from (case_of_threshold(rule) for rule in document.thresholds if rule.workflow == workflow.name)
    yield from (case_of_check(check) for check in workflow.checks)


def case_of_success(ok: int, failed: int, skipped: int) -> Case:
    name = "something succeeded"
    if ok:
        return Case(name)
    if skipped and not failed:
        return Case(name, "skipped", "Every step was skipped, every time.")
    text = f"{failed:,} steps were measured and none succeeded." if failed else "No step was measured."
    return Case(name, "error", text, "nothing succeeded")


def case_of_threshold(rule: Threshold) -> Case:
    name = f"threshold {rule.rule}"
    return Case(name) if rule.passed else Case(name, "failure", f"{rule.rule}: measured {rule.shown}", "threshold")


def case_of_check(check: Check) -> Case:
    name, runs = f"check {check.name}", check.passed + check.failed
    if not runs:
        return Case(name, "skipped", "It never ran.")
    if not check.failed:
        return Case(name)
    text = f"{check.failed:,} of {runs:,} failed ({share_text(check.failed, runs)})"
    samples = [f"{sample.t_s:.1f} s: {sample.text}" for sample in check.samples]
    return Case(name, "failure", "\n".join([text, *samples]), "check")


def xml_text(text: str) -> str:
    return NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
