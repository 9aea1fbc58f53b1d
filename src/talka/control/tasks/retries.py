"""What follows from an attempt that did not complete its task, and what a spec says about that: pure rules.

How many attempts may fail is in one table (`work.dags.endings`), unless the task or its job says it. A task that died
among others is not to blame yet, and runs alone from then on.

Decisions: docs/decisions/0023-a-core-that-dies.md, docs/decisions/0024-corner-cases-of-tasks.md,
docs/decisions/0046-one-table-of-endings.md.
"""

from functools import lru_cache
from random import Random
from typing import Final

import msgspec

from talka.control.tasks.task import DagTask, Needs, Policy
from talka.units import MILLISECOND
from talka.wire.tasks import TaskResult
from talka.work.dags.dag import DagSettings, Duration, Limit, Retry, TaskSpec, Timeouts, bundle_of, bytes_of
from talka.work.dags.endings import TOLD_TO_STOP, Ending, ending_of
from talka.work.deadlines import OnTimeout
from talka.work.durations import parse_duration
from talka.work.lifecycle import TaskState
from talka.work.retry import LONGEST_DELAY_NS, RetryPolicy, delay

REFUSALS_LIMIT: Final = 10
OF_THE_WORKER: Final = ("lease", "draining", "cores", "full", "inputs", "signer")
"""Causes of refusals that say nothing of the task: it may be refused so as often as workers come and go."""
REFUSED: Final = RetryPolicy(attempts=None, base_ns=100 * MILLISECOND, cap_ns=30_000 * MILLISECOND)
"""A refused task waits a little, so that the worker that refused is not asked all ten times in a moment."""
STOPPED: Final = RetryPolicy(attempts=None, base_ns=10 * MILLISECOND, cap_ns=60_000 * MILLISECOND)
"""A task that was told to stop by somebody else is never given up for that, so its tries must grow rare."""


class RetryVerdict(msgspec.Struct, frozen=True):
    """What becomes of a task after an attempt."""

    state: TaskState | None
    """Its end; None: it is tried again, after `wait_ns`."""
    cause: str
    error: str
    wait_ns: int = 0
    pauses: bool = False
    """Its job is paused: it is tried again once that is resumed."""


def policy_of(spec: TaskSpec, settings: DagSettings) -> Policy:
    retry = settings.retry if spec.retry is None else spec.retry
    timeouts = settings.timeouts if spec.timeouts is None else spec.timeouts
    return Policy(
        retries=retry.max,
        backoff=_backoff(retry),
        never=retry.never,
        queue_ns=_nanoseconds(timeouts.queue, "timeouts.queue"),
        attempt_ns=_nanoseconds(timeouts.attempt, "timeouts.attempt"),
        total_ns=_nanoseconds(timeouts.total, "timeouts.total"),
        delay_ns=_nanoseconds(spec.delay, "delay"),
        on_timeout=spec.on_timeout or settings.on_timeout,
    )


def longest_wait_ns(policy: Policy) -> int:
    """No task with this policy ever waits longer for its time."""
    backoff_ns = 0 if policy.backoff is None else policy.backoff.cap_ns
    return max(policy.delay_ns, backoff_ns, STOPPED.cap_ns)


@lru_cache(maxsize=64)
def _usual(settings: DagSettings) -> Policy:
    """Most jobs have the settings of the one before."""
    return policy_of(TaskSpec(id="-", handler="-"), settings)


@lru_cache(maxsize=4096)
def _plain_needs(handler: str, partition: int, bundle: str, is_plain: bool) -> Needs:
    """The same for the tasks of all jobs: there may be thousands of jobs of one task."""
    return Needs(handler, partition=partition, bundle=bundle, is_plain=is_plain)


class Terms:
    """Needs and policies of the tasks of one job, each kept once however many tasks share it."""

    __slots__ = ("_alone", "_brought", "_job", "_needs", "_partition", "_policies", "_settings", "usual")

    def __init__(self, settings: DagSettings, partition: int = 0, job: str = "") -> None:
        """`partition`: of the job, whose id is `job`."""
        self._settings = settings
        self._job = job
        self._partition = partition
        bundle = bundle_of(settings)
        self._brought: dict[str, tuple[str, bool]] = {}
        """Handlers that travel with the job: the digest of their bundle, and whether they are plain."""
        if bundle is not None:
            self._brought = {name: (bundle.digest, name in bundle.plain) for name in bundle.handlers}
        self.usual = _usual(settings)
        """Of a task that says nothing of its own."""
        self._needs: dict[Needs, Needs] = {}
        self._alone: dict[Needs, Needs] = {}
        self._policies: dict[tuple[Retry | None, Timeouts | None, Duration, OnTimeout | None], Policy] = {}

    def learn(self, task: DagTask, spec: TaskSpec) -> None:
        """Let the task have what its spec says."""
        task.key = spec.key
        task.policy = self._policy_of(spec)
        if not (spec.capabilities or spec.min_memory or spec.limits or spec.bounds is not None or spec.max_parallel):
            needs = self.needs_of(spec.handler)
        else:
            memory_bytes = bytes_of(spec.min_memory, "min_memory")
            is_bounded = spec.bounds is not None
            limits = spec.limits
            if spec.max_parallel and task.fan >= 0:
                limits = (*limits, Limit(f"{self._job}/{spec.id.rpartition('[')[0]}", spec.max_parallel))
            digest, is_plain = self._brought.get(spec.handler, ("", True))
            needs = self._kept(
                Needs(
                    spec.handler,
                    spec.capabilities,
                    memory_bytes,
                    limits,
                    is_bounded,
                    self._partition,
                    digest,
                    is_plain,
                )
            )
        task.needs = needs
        if task.alone:
            self.isolate(task)

    def needs_of(self, handler: str) -> Needs:
        """Of a task of which no more is known, or that asks for nothing else: nearly all."""
        digest, is_plain = self._brought.get(handler, ("", True))
        return _plain_needs(handler, self._partition, digest, is_plain)

    def _policy_of(self, spec: TaskSpec) -> Policy:
        if spec.retry is None and spec.timeouts is None and not spec.delay and spec.on_timeout is None:
            return self.usual
        said = spec.retry, spec.timeouts, spec.delay, spec.on_timeout
        policy = self._policies.get(said)
        if policy is None:
            policy = self._policies[said] = policy_of(spec, self._settings)
        return policy

    def isolate(self, task: DagTask) -> None:
        """From now on it runs in a process with nothing else."""
        task.alone = True
        needs = task.needs
        if needs is None or needs.alone:
            return
        alone = self._alone.get(needs)
        if alone is None:
            alone = self._alone[needs] = self._kept(msgspec.structs.replace(needs, alone=True))
        task.needs = alone

    def _kept(self, needs: Needs) -> Needs:
        return self._needs.setdefault(needs, needs)


def judged(task: DagTask, policy: Policy, result: TaskResult, rng: Random) -> RetryVerdict:
    """What follows from an attempt nobody recalled that ended badly. Counts it in the task."""
    cause, error = result.cause or result.outcome, result.error or _told(result)
    if result.outcome == "refused" and result.cause in OF_THE_WORKER:
        return RetryVerdict(None, "refused", error, delay(STOPPED, max(1, task.attempts), 0, rng))
    if result.outcome == "refused":
        task.refusals += 1
        if task.refusals > REFUSALS_LIMIT:
            return RetryVerdict(TaskState.FAILED, "refused", f"refused {task.refusals} times: {error}")
        return RetryVerdict(None, "refused", error, delay(REFUSED, task.refusals, 0, rng))
    if result.outcome == "cancelled":
        # Nobody here asked for it: its worker did, on its own way out.
        return RetryVerdict(None, "cancelled", error, delay(STOPPED, max(1, task.attempts), 0, rng))
    ending = ending_of_result(result)
    if ending is TOLD_TO_STOP:
        return RetryVerdict(None, cause, error, delay(STOPPED, max(1, task.attempts), 0, rng))
    if result.outcome == "died":
        if not (result.alone or task.alone):
            return RetryVerdict(None, cause, error)
        task.deaths += 1
    else:
        task.failures += 1
    for name in result.classes:
        if name in policy.never:
            return RetryVerdict(TaskState.DEAD, cause, error)
    counted = task.failures + task.deaths
    if counted >= _tries(policy, ending):
        if result.outcome == "died":
            died = "1 process died with nothing else in it"
            if task.deaths > 1:
                died = f"{task.deaths} processes died with nothing else in them"
            error = f"{error} ({died})"
        return RetryVerdict(TaskState.DEAD, cause, error)
    # One process that died says little of the task: it may have been killed with its machine's memory, or by hand.
    is_first_death = result.outcome == "died" and counted == 1
    wait_ns = 0 if policy.backoff is None or is_first_death else delay(policy.backoff, counted, 0, rng)
    return RetryVerdict(None, cause, error, wait_ns)


def ending_of_result(result: TaskResult) -> Ending:
    """Of an attempt that failed, died or took too long. What called `sys.exit` exited, though its process is well."""
    has_ended = result.outcome == "died" or SystemExit.__name__ in result.classes
    # An exception of that name has its classes with it.
    is_too_large = result.cause == "output" and not result.classes
    return ending_of(has_died=has_ended, signal=result.signal, exit_code=result.exit_code, is_too_large=is_too_large)


def _tries(policy: Policy, ending: Ending) -> int:
    """Whoever wrote a number means every way to fail."""
    assert ending.tries is not None
    return ending.tries if policy.retries is None else policy.retries + 1


def _told(result: TaskResult) -> str:
    """A sentence for a result that has none."""
    if result.outcome == "died":
        return f"its process died: {result.signal or f'exit code {result.exit_code}'}"
    if result.outcome == "timeout":
        return "the attempt took longer than allowed"
    return f"the attempt was {result.outcome}" if result.outcome != "failed" else "the attempt failed"


def _backoff(retry: Retry) -> RetryPolicy | None:
    base_ns = _nanoseconds(retry.backoff, "retry.backoff")
    cap_ns = min(_nanoseconds(retry.cap, "retry.cap"), LONGEST_DELAY_NS)
    base_ns = min(base_ns, cap_ns)
    if not base_ns:
        return None
    return RetryPolicy(attempts=None, base_ns=base_ns, factor=retry.factor, cap_ns=cap_ns)


def _nanoseconds(duration: Duration | None, what: str) -> int:
    return 0 if duration is None else parse_duration(duration, what=what)
