"""What a finished load job amounts to: its final state, the exit code, and the reasons in sentences."""

from enum import IntEnum
from typing import Final, Literal

import msgspec

from talka.work.lifecycle import JobState

DROPPED_PERCENT_ALLOWED: Final = 1
"""Beyond this share of dropped arrivals the target did not see the load that was asked for."""

NAMES_TOLD: Final = 5


class ExitCode(IntEnum):
    HELD = 0
    INTERNAL_ERROR = 1
    USAGE = 2
    BAD_FILE = 3
    THRESHOLD_CROSSED = 4
    ABORTED = 5
    INCOMPLETE = 6
    UNREACHABLE = 7
    JOB_FAILED = 8
    SIGINT = 130
    SIGTERM = 143


EXIT_CODES: Final[dict[int, str]] = {
    ExitCode.HELD: "The job ran to its end and every threshold held.",
    ExitCode.INTERNAL_ERROR: "Internal error.",
    ExitCode.USAGE: "The command line or the configuration is wrong; nothing was sent.",
    ExitCode.BAD_FILE: (
        "The file is wrong, failed to load or raised in setup; or no worker has what a task of the pipeline wants."
    ),
    ExitCode.THRESHOLD_CROSSED: "A threshold was crossed.",
    ExitCode.ABORTED: "Stopped early by an abort-on-fail threshold.",
    ExitCode.INCOMPLETE: (
        "The result is incomplete: cores or workers were lost, work was left unfinished, more than"
        f" {DROPPED_PERCENT_ALLOWED} % of arrivals were dropped, there was no sample, or a workflow sent requests "
        "and none succeeded."
    ),
    ExitCode.UNREACHABLE: "The cluster is unreachable or did not authorise the request.",
    ExitCode.JOB_FAILED: "A job ended failed.",
    ExitCode.SIGINT: "Interrupted by SIGINT; the report is still written.",
    ExitCode.SIGTERM: "Interrupted by SIGTERM; the report is still written.",
}


class OutcomeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that matters about a load job once it has stopped."""

    samples: int
    """Steps that were measured to their end, ok or failed."""
    ok: int
    """Those of them that succeeded."""
    arrivals: int = 0
    """Every arrival that was due, dropped ones included; 0 in the closed model."""
    dropped: int = 0
    thresholds_held: bool = True
    aborted: bool = False
    """An abort-on-fail threshold stopped the job."""
    interrupted_by: Literal["SIGINT", "SIGTERM", "cancel"] | None = None
    """A signal to the command that runs it, or somebody's order to a cluster."""
    timed_out: bool = False
    lost_shards: int = 0
    unfinished_workflows: int = 0
    """Failed, skipped or timed out."""
    fruitless: tuple[str, ...] = ()
    """Workflows that sent requests and had no success."""
    setup_failed: str | None = None
    """A sentence: what the test file raised before the load began."""
    unreachable: str | None = None
    """A sentence: why the target could not be reached at all."""
    allow_partial: bool = False
    """Lost shards alone do not spoil the exit code."""


class Outcome(msgspec.Struct, frozen=True):
    state: JobState
    exit_code: ExitCode
    reasons: list[str]
    """Sentences for the summary, gravest first; empty when all is well."""


class _Finding(msgspec.Struct, frozen=True):
    state: JobState
    exit_code: ExitCode
    reason: str


def decide(facts: OutcomeFacts) -> Outcome:
    """The gravest finding gives the state, the gravest one with an exit code of its own gives the exit code."""
    findings = _findings(facts)
    return Outcome(
        state=findings[0].state if findings else JobState.COMPLETED,
        exit_code=next((finding.exit_code for finding in findings if finding.exit_code), ExitCode.HELD),
        reasons=[finding.reason for finding in findings],
    )


def _findings(facts: OutcomeFacts) -> list[_Finding]:
    """Everything that went wrong, gravest first."""
    found: list[_Finding] = []

    def find(state: JobState, exit_code: ExitCode, reason: str) -> None:
        found.append(_Finding(state, exit_code, reason))

    if facts.setup_failed is not None:
        # Nothing ran, so everything else that is missing follows from this.
        find(JobState.FAILED, ExitCode.BAD_FILE, facts.setup_failed)
        return found
    if facts.interrupted_by == "cancel":
        text = "The job was cancelled; the results cover the time until then."
        find(JobState.CANCELLED, ExitCode.JOB_FAILED, text)
    elif facts.interrupted_by is not None:
        find(
            JobState.CANCELLED,
            ExitCode[facts.interrupted_by],
            f"The job was interrupted by {facts.interrupted_by}; the results cover the time until then.",
        )
    if facts.aborted:
        # Not COMPLETED, for its plan was cut short; not CANCELLED, for nobody asked: the target failed the test.
        find(JobState.FAILED, ExitCode.ABORTED, "A threshold with abort was crossed, so the job was stopped early.")
    if facts.unreachable is not None:
        find(JobState.FAILED, ExitCode.INCOMPLETE, facts.unreachable)
    elif facts.samples == 0:
        find(JobState.FAILED, ExitCode.INCOMPLETE, "No step was measured, so the job says nothing about the target.")
    elif facts.ok == 0:
        find(
            JobState.FAILED,
            ExitCode.INCOMPLETE,
            f"{_counted(facts.samples, 'step was', 'steps were')} measured and none succeeded.",
        )
    elif facts.fruitless:
        # What others did is usable; of these there is nothing but failures.
        names = ", ".join(facts.fruitless[:NAMES_TOLD])
        more = f" and {len(facts.fruitless) - NAMES_TOLD} more" if len(facts.fruitless) > NAMES_TOLD else ""
        find(JobState.PARTIAL, ExitCode.INCOMPLETE, f"{names}{more}: requests were sent and not one step succeeded.")
    if facts.timed_out:
        find(JobState.TIMEOUT, ExitCode.INCOMPLETE, "The job reached its time limit before its work was done.")
    if facts.lost_shards:
        find(
            JobState.PARTIAL,
            ExitCode.HELD if facts.allow_partial else ExitCode.INCOMPLETE,
            f"{_counted(facts.lost_shards, 'shard was lost; what it', 'shards were lost; what they')}"
            " had not reported is missing.",
        )
    if facts.unfinished_workflows:
        find(
            JobState.PARTIAL,
            ExitCode.INCOMPLETE,
            f"{_counted(facts.unfinished_workflows, 'workflow', 'workflows')} failed, timed out or never ran.",
        )
    if facts.dropped * 100 > facts.arrivals * DROPPED_PERCENT_ALLOWED:
        find(
            JobState.PARTIAL,
            ExitCode.INCOMPLETE,
            f"{facts.dropped} of {facts.arrivals} arrivals were dropped, more than the {DROPPED_PERCENT_ALLOWED} %"
            " allowed; the target saw less load than was asked for.",
        )
    # Stopping at an abort says it already, and without a sample no rule can hold.
    if not facts.thresholds_held and not facts.aborted and facts.samples:
        # The work is done and the numbers are whole; only the verdict is bad.
        find(JobState.COMPLETED, ExitCode.THRESHOLD_CROSSED, "At least one threshold was crossed.")
    return found


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
