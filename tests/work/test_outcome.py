"""What a finished load job amounts to."""

import pytest

from talka.work.lifecycle import JobState, is_final
from talka.work.outcome import EXIT_CODES, ExitCode, OutcomeFacts, decide

COMPLETED, PARTIAL, FAILED = JobState.COMPLETED, JobState.PARTIAL, JobState.FAILED
CANCELLED, TIMEOUT = JobState.CANCELLED, JobState.TIMEOUT
NO_HOST = "The host shop.test cannot be resolved."
RAISED = "shop.py raised KeyError in setup."


def facts(**changed):
    """A job in which all went well, but for what the test changes."""
    return OutcomeFacts(**{"samples": 1000, "ok": 990, "arrivals": 1000, **changed})


ONE_FINDING = [
    ({}, COMPLETED, 0),
    ({"thresholds_held": False}, COMPLETED, 4),
    ({"aborted": True}, FAILED, 5),
    ({"aborted": True, "thresholds_held": False}, FAILED, 5),
    ({"interrupted_by": "SIGINT"}, CANCELLED, 130),
    ({"interrupted_by": "SIGTERM"}, CANCELLED, 143),
    ({"interrupted_by": "cancel"}, CANCELLED, 8),
    ({"setup_failed": RAISED}, FAILED, 3),
    ({"unreachable": NO_HOST}, FAILED, 6),
    ({"samples": 0, "ok": 0}, FAILED, 6),
    ({"ok": 0}, FAILED, 6),
    ({"ok": 1}, COMPLETED, 0),
    ({"fruitless": ("Buy",)}, PARTIAL, 6),
    ({"ok": 0, "fruitless": ("Buy",)}, FAILED, 6),
    ({"timed_out": True}, TIMEOUT, 6),
    ({"lost_shards": 1}, PARTIAL, 6),
    ({"unfinished_workflows": 1}, PARTIAL, 6),
    ({"dropped": 10}, COMPLETED, 0),
    ({"dropped": 11}, PARTIAL, 6),
    ({"arrivals": 0}, COMPLETED, 0),
    ({"lost_shards": 1, "allow_partial": True}, PARTIAL, 0),
    ({"unfinished_workflows": 1, "allow_partial": True}, PARTIAL, 6),
    ({"dropped": 11, "allow_partial": True}, PARTIAL, 6),
    ({"timed_out": True, "allow_partial": True}, TIMEOUT, 6),
]


@pytest.mark.parametrize(("changed", "state", "exit_code"), ONE_FINDING)
def test_each_fact_has_its_state_and_exit_code(changed, state, exit_code) -> None:
    outcome = decide(facts(**changed))
    assert (outcome.state, outcome.exit_code) == (state, exit_code)
    assert is_final(outcome.state)
    assert len(outcome.reasons) == (0 if (state, exit_code) == (COMPLETED, 0) else 1)


SEVERAL_FINDINGS = [
    ({"setup_failed": RAISED, "interrupted_by": "SIGINT", "samples": 0, "thresholds_held": False}, FAILED, 3, 1),
    ({"interrupted_by": "SIGINT", "aborted": True}, CANCELLED, 130, 2),
    ({"interrupted_by": "SIGTERM", "samples": 0, "thresholds_held": False}, CANCELLED, 143, 2),
    ({"interrupted_by": "SIGINT", "thresholds_held": False}, CANCELLED, 130, 2),
    ({"aborted": True, "ok": 0}, FAILED, 5, 2),
    ({"aborted": True, "lost_shards": 1, "thresholds_held": False}, FAILED, 5, 2),
    ({"unreachable": NO_HOST, "samples": 0, "ok": 0, "thresholds_held": False}, FAILED, 6, 1),
    ({"ok": 0, "thresholds_held": False}, FAILED, 6, 2),
    ({"samples": 0, "timed_out": True}, FAILED, 6, 2),
    ({"timed_out": True, "unfinished_workflows": 2}, TIMEOUT, 6, 2),
    ({"lost_shards": 1, "unfinished_workflows": 1, "dropped": 500, "thresholds_held": False}, PARTIAL, 6, 4),
    ({"lost_shards": 1, "thresholds_held": False}, PARTIAL, 6, 2),
    ({"lost_shards": 1, "thresholds_held": False, "allow_partial": True}, PARTIAL, 4, 2),
    ({"lost_shards": 1, "unfinished_workflows": 1, "allow_partial": True}, PARTIAL, 6, 2),
    ({"lost_shards": 1, "dropped": 11, "allow_partial": True}, PARTIAL, 6, 2),
    ({"lost_shards": 1, "aborted": True, "allow_partial": True}, FAILED, 5, 2),
]


@pytest.mark.parametrize(("changed", "state", "exit_code", "reasons"), SEVERAL_FINDINGS)
def test_the_gravest_finding_decides_and_all_are_told(changed, state, exit_code, reasons) -> None:
    outcome = decide(facts(**changed))
    assert (outcome.state, outcome.exit_code, len(outcome.reasons)) == (state, exit_code, reasons)


SENTENCES = [
    ({"setup_failed": RAISED}, RAISED),
    ({"unreachable": NO_HOST}, NO_HOST),
    ({"interrupted_by": "SIGINT"}, "The job was interrupted by SIGINT; the results cover the time until then."),
    ({"aborted": True}, "A threshold with abort was crossed, so the job was stopped early."),
    ({"samples": 0, "ok": 0}, "No step was measured, so the job says nothing about the target."),
    ({"ok": 0}, "1000 steps were measured and none succeeded."),
    ({"samples": 1, "ok": 0}, "1 step was measured and none succeeded."),
    ({"timed_out": True}, "The job reached its time limit before its work was done."),
    ({"lost_shards": 1}, "1 shard was lost; what it had not reported is missing."),
    ({"lost_shards": 3}, "3 shards were lost; what they had not reported is missing."),
    ({"unfinished_workflows": 1}, "1 workflow failed, timed out or never ran."),
    ({"unfinished_workflows": 2}, "2 workflows failed, timed out or never ran."),
    (
        {"dropped": 50},
        "50 of 1000 arrivals were dropped, more than the 1 % allowed; the target saw less load than was asked for.",
    ),
    ({"thresholds_held": False}, "At least one threshold was crossed."),
]


@pytest.mark.parametrize(("changed", "sentence"), SENTENCES)
def test_reasons_are_sentences(changed, sentence) -> None:
    assert decide(facts(**changed)).reasons == [sentence]


def test_reasons_come_gravest_first() -> None:
    reasons = decide(facts(interrupted_by="SIGINT", lost_shards=1, thresholds_held=False)).reasons
    assert [reason.split()[0] for reason in reasons] == ["The", "1", "At"]


def test_every_exit_code_has_a_meaning() -> None:
    assert list(EXIT_CODES) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 130, 143]
    assert list(EXIT_CODES) == list(ExitCode)
    assert all(meaning[0].isupper() and meaning.endswith(".") for meaning in EXIT_CODES.values())
