"""One user, one iteration, in this process: every request is shown, and breakpoints in the test work."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from talka.clock import monotonic_ns
from talka.control.load.planning import flows_into
from talka.engine.calls import ExchangeFailed
from talka.engine.load.shard_runtime import ShardRuntime
from talka.engine.load.time_asks import TimeAsks
from talka.errors import Invalid
from talka.nodes.local import LocalJob
from talka.stats.tally import Tally
from talka.units import SECOND
from talka.wire.shards import CONTEXT_PREFIX
from talka.work.outcome import ExitCode
from talka.work.responses import Response
from talka.work.specs import WorkflowSpec

DEBUG_GRACE_NS: Final = 300 * SECOND
"""Somebody may stand at a breakpoint."""
ASK_WAIT_S: Final = 0.1
"""Nobody keeps the time here, so nobody answers who asks for more."""

Say = Callable[[str], None]


async def debug_job(job: LocalJob, say: Say) -> int:
    """Run each workflow once, those it depends on first. The exit code is that of a run that saw the same."""
    by_name = {spec.name: spec for spec in job.specs}
    provided: dict[str, dict[str, bytes]] = {}
    ok = failed = measured_ok = 0
    for spec in job.specs:
        values: dict[str, dict[str, bytes]] = {}
        for source, key in flows_into(spec, by_name):
            if key in provided[source]:
                values.setdefault(source, {})[key] = provided[source][key]
        for source in sorted(spec.depends_on):
            context = {key: value for key, value in provided[source].items() if key.startswith(CONTEXT_PREFIX)}
            values[source] = {**values.get(source, {}), **context}
        try:
            tally, provided[spec.name] = await debug_workflow(spec, values, say)
        except ExchangeFailed as error:
            say(f"{spec.name}: {error}")
            return ExitCode.INCOMPLETE
        except Invalid as error:
            say(f"{spec.name}: {error}")
            return ExitCode.BAD_FILE
        steps = [*tally.steps.values(), *tally.actions.values()]
        ok += sum(step.ok for step in steps)
        measured_ok += sum(step.ok for step in tally.steps.values())
        failed += sum(step.failed for step in steps)
        if not spec.is_test and any(action.failed for action in tally.actions.values()):
            say(f"{spec.name} failed, so nothing that depends on it would run")
            return ExitCode.BAD_FILE
    say(f"{ok} ok, {failed} failed")
    return ExitCode.HELD if measured_ok else ExitCode.INCOMPLETE


async def debug_workflow(
    spec: WorkflowSpec, values: Mapping[str, Mapping[str, bytes]], say: Say
) -> tuple[Tally, dict[str, bytes]]:
    say(f"── {spec.name} ──")
    stage = ShardRuntime(
        spec,
        values,
        spec.plan.split(1)[0],
        trace=lambda sent, answer: show(sent, answer, say),
        asks=TimeAsks(wait_s=ASK_WAIT_S),
    )
    recorder = stage.recorder
    try:
        await stage.set_up()
        user = stage.new_user(0)
        recorder.start(monotonic_ns(), monotonic_ns())
        stage.iterations.on_used_up = say
        await stage.iterations.run(user, monotonic_ns())
        await stage.tear_down(DEBUG_GRACE_NS)
        recorder.settle()
        handed_on, failure = await stage.provided()
        if failure is not None:
            raise Invalid(failure)
        context, _ = stage.handed_on(handed_on)
    finally:
        await stage.close()
    for name, step in [*recorder.tally.steps.items(), *recorder.tally.actions.items()]:
        for sample in step.samples:
            say(f"✗ {name}: {sample.text}")
        if step.ok:
            say(f"✓ {name}")
    for name, check in recorder.tally.checks.items():
        say(f"✓ {name}" if check.passed else f"✗ {name}: {check.samples[0].text}" if check.samples else f"- {name}")
    return recorder.tally, handed_on | context


def show(sent: Sequence[str], answer: Response | ExchangeFailed, say: Say) -> None:
    came = [f"{answer.kind}: {answer}"] if isinstance(answer, ExchangeFailed) else answer.shown()
    for line in [*(f"> {line}" for line in sent), *(f"< {line}" for line in came)]:
        say(line)
