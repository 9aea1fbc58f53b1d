"""Dag jobs in words, tables and pictures for terminals. Nothing here asks anybody."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from shlex import quote
from typing import Final, NamedTuple

import msgspec

from talka.cli.live.layout import FrameView, Line, Part, Size, Style, bar, clock_text, pulse, styled
from talka.cli.output import facts_rows, table
from talka.client.kinds import AnyJob
from talka.client.sheets import (
    cause_of,
    counts_text,
    ended_count,
    instant,
    one_line,
    position_text,
    took_s,
    took_text,
    without_cause,
)
from talka.report.tame import tame
from talka.report.text import TextPage, bytes_text, counted_text, cut, rate_text, seconds_text, sign
from talka.units import MILLISECOND, SECOND
from talka.wire.output_tail import STREAM_LIMIT_BYTES
from talka.wire.task_views import (
    AttemptView,
    BackfillView,
    DagFacts,
    DeadLetter,
    GraphView,
    LogLineView,
    OutputView,
    QueuesView,
    RetryPlan,
    ScheduleView,
    StreamText,
    TaskView,
    WhyView,
)
from talka.wire.views import instant_text
from talka.work.dags.endings import tries_text
from talka.work.durations import format_duration
from talka.work.lifecycle import JobState, TaskState
from talka.work.outcome import ExitCode

RATE_OVER_NS: Final = 30 * SECOND
LOOKS_LIMIT: Final = 64
"""Instants kept for the rate."""
SLOWEST_SHOWN: Final = 5
FAILED_SHOWN: Final = 10
LAST_LINES: Final = 10
"""Of each stream of an attempt, beside the task; each of so many columns."""
LINE_COLUMNS: Final = 200
LINES_DRAWN: Final = 100
"""Of a graph. One that has more is told of in a sentence."""
NAMES_SHOWN: Final = 3
ERROR_COLUMNS: Final = 300
GIVEN_UP: Final = (TaskState.DEAD, TaskState.FAILED, TaskState.TIMEOUT)
UNDER_WAY: Final = (TaskState.RUNNING, TaskState.ASSIGNED)
NULL: Final = b"null"
BACKFILL_WORDS: Final = {"due": "would be submitted", "submitted": "submitted", "known": "run before"}
ENDS: Final = {JobState.COMPLETED: ExitCode.HELD, JobState.PARTIAL: ExitCode.INCOMPLETE}


class TaskReport(TaskView, frozen=True):
    """A task with its attempts, for programs."""

    tried: list[AttemptView] = []
    """The oldest first, also those before it was run again."""
    wrote: list[OutputView] = []
    """Of the last attempts that wrote something."""
    left_out: int = 0
    """Attempts before these."""


class DagResult(msgspec.Struct, frozen=True):
    """What came of a dag job, for programs."""

    job: DagFacts
    tasks: list[TaskView]
    left_out: int = 0
    """Tasks that are not listed here."""


# Facts.


def exit_code_of(facts: DagFacts | AnyJob) -> int:
    """0 completed, 6 partial, 8 any other end."""
    if facts.exit_code is not None:
        return facts.exit_code
    return int(ENDS.get(facts.state, ExitCode.JOB_FAILED))


def task_text(task: TaskView) -> str:
    cause = "" if task.error.startswith(cause_of(task)) else f" ({task.cause})"
    rows = [
        ("task", task.id),
        ("state", f"{task.state}{cause}"),
        ("handler", task.handler),
        ("after", names_text(task.depends_on)),
        ("for each", task.for_each),
        ("elements", counts_text(task.elements)),
        ("element of", task.element_of),
        ("item", json_text(task.item)),
        ("priority", str(task.priority)),
        ("attempts", str(task.attempts)),
        ("worker", task.worker),
        ("not before", instant(task.ready_at)),
        ("started", instant(task.started_at)),
        ("more time", task.more_time),
        ("ended", instant(task.ended_at)),
        ("memory", bytes_text(task.memory_bytes) if task.memory_bytes else ""),
        ("progress", json_text(task.progress)),
        ("error", task.error),
        ("output", json_text(task.output)),
    ]
    return facts_rows(rows)


def json_text(value: msgspec.Raw) -> str:
    return "" if bytes(value) in (b"", NULL) else bytes(value).decode(errors="replace")


def tried_text(id: str, report: TaskReport) -> str:
    """A task with its attempts, and the end of what the last of them wrote."""
    parts = [task_text(report)]
    if report.tried:
        parts.append(attempts_table(report.tried))
    if report.left_out:
        parts.append(f"({counted_text(report.left_out, 'attempt')} before these: --json has them)")
    for output in report.wrote:
        parts += output_texts(output, LAST_LINES)
    if report.wrote:
        parts.append(
            f"talka jobs show {id} --logs {quote(report.id)} shows all that is kept, --attempt N of one attempt"
        )
    return "\n\n".join(parts)


def output_texts(output: OutputView, most: int | None = None) -> list[str]:
    """Each stream of an attempt under a heading, at most the last so many lines."""
    return ["\n".join(output_lines(output, one, most)) for one in output.streams]


def output_lines(output: OutputView, one: StreamText, most: int | None = None) -> list[str]:
    lines = one.text.splitlines()
    shown = lines if most is None else lines[-most:]
    notes = [cut_text(one, output.is_over)] if one.kept < one.written else []
    if len(shown) < len(lines):
        notes.append(f"the last {len(shown)} of {counted_text(len(lines), 'line')}")
    note = f" ({'; '.join(notes)})" if notes else ""
    heading = f"attempt {output.attempt}, {one.stream}{note}:"
    return [heading, *(f"  {tame(line if most is None else cut(line, LINE_COLUMNS))}" for line in shown)]


def cut_text(one: StreamText, is_over: bool) -> str:
    """Why a part of a stream is not here."""
    if not is_over:
        return f"the last of {one.written:,} bytes so far"
    lost = f"{one.written - one.kept:,} of {one.written:,} bytes are not kept"
    if one.kept >= min(one.written, STREAM_LIMIT_BYTES):
        return f"{lost}: an attempt keeps the last {STREAM_LIMIT_BYTES // 1024} KiB of each stream"
    return f"{lost}: they never arrived, or the attempts of this job have written more than is kept of one job"


def why_text(task: str, why: WhyView) -> str:
    sentence = tame(f"{task} is {why.state}: {why.text}" if why.text else f"{task} is {why.state}")
    if not why.workers:
        return sentence
    rows = [(reason.worker, reason.constraint or "none", reason.text) for reason in why.workers]
    return f"{sentence}\n\n{table(('WORKER', 'CONSTRAINT', 'WHY'), rows)}"


def retry_text(plan: RetryPlan) -> str:
    count = len(plan.tasks) + plan.left_out
    rows = table(
        ("TASK", "NOW", ""),
        [(task.id, task.state, replaced_text(task.elements) if task.elements else "") for task in plan.tasks],
    )
    more = f"\n… and {plan.left_out:,} more" if plan.left_out else ""
    return f"{rows}{more}\n\n{counted_text(count, 'task')} would be run again. Nothing was changed."


def replaced_text(elements: int) -> str:
    which = "element, and what is kept of that" if elements == 1 else "elements, and what is kept of those"
    return f"others take the place of its {elements:,} {which} is deleted"


def log_text(line: LogLineView) -> str:
    return tame(f"{line.at[:23].replace('T', ' ')} [{line.attempt}] {line.text}")


def queues_text(found: QueuesView) -> str:
    """A table of handlers, and one of limits where there are any."""
    headings = (
        "HANDLER",
        "WAITING",
        "OLDEST",
        "ACTIVE",
        "DELAYED",
        "BLOCKED",
        "COMPLETED",
        "FAILED",
        "RATE",
        "WORKERS",
    )
    rows = [
        (
            queue.handler,
            str(queue.waiting),
            seconds_text(queue.oldest_s) if queue.waiting else "",
            str(queue.active),
            str(queue.delayed),
            str(queue.blocked),
            str(queue.completed),
            str(queue.failed),
            rate_text(queue.rate_per_s),
            str(queue.workers),
        )
        for queue in found.queues
    ]
    limits = [
        (limit.key, str(limit.concurrency or ""), limit.rate, str(limit.held), str(limit.waiting))
        for limit in found.limits
    ]
    below = f"\n\n{table(('LIMIT', 'AT ONCE', 'RATE', 'HELD', 'WAITING'), limits)}" if limits else ""
    return table(headings, rows) + below


def schedules_table(schedules: Sequence[ScheduleView]) -> str:
    return table(
        ("NAME", "CRON", "ZONE", "NEXT THERE", "NEXT", "CATCH UP", "LAST RUN", "LAST JOB"),
        [
            (
                schedule.name,
                schedule.cron,
                schedule.timezone or "UTC",
                "paused" if schedule.paused else zoned(schedule.next_in_zone),
                instant(schedule.next_at),
                schedule.catch_up,
                zoned(schedule.last_in_zone),
                schedule.last_job,
            )
            for schedule in schedules
        ],
    )


def next_text(schedule: ScheduleView) -> str:
    """When it is due: in its zone, and in UTC."""
    if schedule.timezone and schedule.next_in_zone:
        return f"{zoned(schedule.next_in_zone)} {schedule.timezone}, {instant(schedule.next_at)}"
    return instant(schedule.next_at)


def resumed_text(schedule: ScheduleView, now_ns: int) -> str:
    """Of one that is followed again. `now_ns`: by the clock of the day."""
    if schedule.next_at and schedule.next_at <= instant_text(now_ns // MILLISECOND):
        return (
            f"{schedule.name} is followed again, and what was due from {next_text(schedule)} on is caught up with"
            f" (catch_up: {schedule.catch_up})"
        )
    return f"{schedule.name} is followed again, next at {next_text(schedule)}"


def zoned(text: str) -> str:
    """Of ISO 8601 with an offset, to the second."""
    return f"{text[:19].replace('T', ' ')} {text[19:]}" if text else ""


def backfill_table(found: BackfillView) -> str:
    return table(
        ("DUE", "UTC", "STATE", "JOB"),
        [(zoned(run.at), instant(run.at_utc), BACKFILL_WORDS[run.state], run.job) for run in found.runs],
    )


def backfill_text(found: BackfillView) -> str:
    counts = {state: sum(run.state == state for run in found.runs) for state in BACKFILL_WORDS}
    if not found.runs:
        return f"{found.name} was not due then"
    words = [f"{count:,} {BACKFILL_WORDS[state]}" for state, count in counts.items() if count]
    return f"{found.name} was due {counted_text(len(found.runs), 'time')}: {', '.join(words)}"


# Dead letters.


def letters_table(letters: Sequence[DeadLetter]) -> str:
    return table(
        ("DEAD LETTER", "HANDLER", "CAUSE", "TRIES", "ENDED", "ERROR"),
        [
            (
                letter.id,
                letter.handler,
                letter.cause,
                str(len(letter.attempts) or ""),
                instant(letter.ended_at),
                one_line(without_cause(letter.cause, letter.error)),
            )
            for letter in letters
        ],
    )


def letter_text(letter: DeadLetter) -> str:
    rows = [
        ("task", letter.task),
        ("job", letter.job),
        ("handler", letter.handler),
        ("cause", letter.cause),
        ("ended", instant(letter.ended_at)),
        ("error", letter.error),
    ]
    text = facts_rows(rows)
    return f"{text}\n\n{attempts_table(letter.attempts)}" if letter.attempts else text


def attempts_table(attempts: Sequence[AttemptView]) -> str:
    return table(
        (
            *("ATTEMPT", "OUTCOME", "WORKER", "STARTED", "TOOK", "MORE TIME", "CAUSE", "EXIT", "SIGNAL", "MEMORY"),
            *("WROTE", "ERROR"),
        ),
        [
            (
                str(attempt.attempt),
                attempt.outcome,
                attempt.worker.partition("#")[0],
                instant(attempt.started_at),
                took_text(attempt.started_at, attempt.ended_at),
                more_time_text(attempt),
                attempt.cause if attempt.cause != attempt.outcome else "",
                "" if attempt.exit_code is None else str(attempt.exit_code),
                attempt.signal,
                bytes_text(attempt.memory_bytes) if attempt.memory_bytes else "",
                ", ".join(f"{one.stream} {bytes_text(one.written)}" for one in attempt.streams),
                one_line(without_cause(attempt.cause, attempt.error)),
            )
            for attempt in attempts
        ],
    )


def more_time_text(attempt: AttemptView) -> str:
    """How often an attempt was given more time, how much, and why."""
    by_s = sum(one.by_s for one in attempt.extensions)
    reasons = "; ".join(dict.fromkeys([one.reason for one in attempt.extensions if one.reason]))
    given = f"{format_duration(round(by_s * SECOND))} in {len(attempt.extensions)}" if by_s else ""
    given += f" ({one_line(reasons)})" if reasons else ""
    return ", ".join(filter(None, [given, "warned" if attempt.warned else ""]))


# Progress.


class TaskPace:
    """How fast tasks have ended of late, and how long the rest takes at that rate."""

    def __init__(self) -> None:
        self._looks: deque[tuple[int, int]] = deque(maxlen=LOOKS_LIMIT)
        self._tasks = 0

    def look(self, now: int, facts: DagFacts) -> None:
        ended = ended_count(facts.counts)
        if self._looks and ended < self._looks[-1][1]:
            self._looks.clear()  # some are run again
        if facts.tasks != self._tasks:
            self._tasks = facts.tasks
            self._looks.clear()  # one was fanned out: how fast those before it ended says nothing of its elements
        # Looks are spread over the whole stretch, however often somebody looks.
        if not self._looks or now - self._looks[-1][0] >= RATE_OVER_NS // (LOOKS_LIMIT // 2):
            self._looks.append((now, ended))
        while len(self._looks) > 2 and self._looks[1][0] <= now - RATE_OVER_NS:
            self._looks.popleft()

    def per_s(self, now: int, facts: DagFacts) -> float:
        if not self._looks or now <= self._looks[0][0]:
            return 0.0
        at, before = self._looks[0]
        return max(0, ended_count(facts.counts) - before) * SECOND / (now - at)

    def left_ns(self, now: int, facts: DagFacts) -> int | None:
        """None while nothing has ended of late, or it is not known yet how many there are."""
        rate = 0.0 if facts.to_fan_out else self.per_s(now, facts)
        return round((facts.tasks - ended_count(facts.counts)) / rate * SECOND) if rate else None


def progress_text(facts: DagFacts, now: int, pace: TaskPace) -> str:
    """One line of progress."""
    if facts.position is not None and facts.state in (JobState.SUBMITTED, JobState.QUEUED, JobState.RUNNING):
        return f"{facts.state}: {position_text(facts.position)}"
    ended = ended_count(facts.counts)
    parts = [f"{facts.state}: {ended:,} of {counted_text(facts.tasks, 'task')} ended"]
    running = sum(facts.counts.get(state, 0) for state in UNDER_WAY)
    given_up = sum(facts.counts.get(state, 0) for state in GIVEN_UP)
    ready = facts.counts.get(TaskState.READY, 0)
    parts += [f"{running:,} running"] if running else []
    parts += [f"{ready:,} ready and waiting for a worker"] if ready and not running else []
    parts += [f"{given_up:,} given up"] if given_up else []
    parts += [f"{facts.to_fan_out:,} to be fanned out"] if facts.to_fan_out else []
    left_ns = pace.left_ns(now, facts)
    if left_ns and facts.state is JobState.RUNNING:
        parts.append(f"about {clock_text(left_ns, up=True)} left")
    return ", ".join(parts)


def live_view(
    facts: DagFacts, running: Sequence[TaskView], now: int, began: int, pace: TaskPace, size: Size
) -> FrameView:
    """A frame: the job, a bar, tasks by state, and some of those that run."""
    width = max(size.columns, 20)
    ended = ended_count(facts.counts)
    lines = [styled(width, (facts.name, "bold"), f"  {facts.id}  {facts.state}")]
    if facts.reason:
        lines.append(styled(width, f"  {facts.reason}"))
    lines.append(bar_line(facts, ended, now, began, pace, width))
    parts: list[Part] = ["  "]
    for state in TaskState:
        if count := facts.counts.get(state):
            style: Style = "red" if state in GIVEN_UP else "green" if state is TaskState.COMPLETED else ""
            parts += ["   "] if len(parts) > 1 else []
            parts += [(f"{count:,}", style), f" {state}"]
    if len(parts) > 1:
        lines.append(styled(width, *parts))
    if facts.position is not None:
        lines.append(styled(width, f"  {position_text(facts.position)}"))
    for task in running:
        lines.append(running_line(task, width))
    hidden = sum(facts.counts.get(state, 0) for state in UNDER_WAY) - len(running)
    if running and hidden > 0:
        lines.append(styled(width, (f"  … and {hidden:,} more run", "dim")))
    return FrameView(tuple(lines[: max(1, size.rows - 1)]))


def bar_line(facts: DagFacts, ended: int, now: int, began: int, pace: TaskPace, width: int) -> Line:
    left_ns = pace.left_ns(now, facts)
    rate = pace.per_s(now, facts)
    tail = f" {ended:,} of {facts.tasks:,}{'+' if facts.to_fan_out else ''}  {clock_text(now - began)}"
    tail += f"  {rate_text(rate)}" if rate else ""
    tail += f"  about {clock_text(left_ns, up=True)} left" if left_ns else ""
    room = max(8, min(40, width - len(tail) - 2))
    is_known = facts.tasks > 0 and facts.state is not JobState.PAUSED
    figure = bar(ended / facts.tasks, room) if is_known else pulse(now, room)
    return styled(width, "  ", *figure, tail)


def running_line(task: TaskView, width: int) -> Line:
    where = f" on {task.worker.partition('#')[0]}" if task.worker else ""
    again = f", try {task.attempts}" if task.attempts > 1 else ""
    told = json_text(task.progress)
    return styled(width, "  ▶ ", task.id, (f"  {task.handler}{where}{again}{f'  {told}' if told else ''}", "dim"))


# The end.


def dag_summary(
    facts: DagFacts,
    slowest: Sequence[TaskView],
    failed: Sequence[TaskView],
    tasks: Sequence[TaskView] = (),
    *,
    left_out: int = 0,
    width: int = 100,
    color: bool = False,
) -> str:
    """What came of a job, the verdict first, and what to do about what failed. The last line has no end of line.
    `tasks`: those that are known, for what was tried again and for what the last one gave, if it surely was the last;
    `left_out`: so many follow them, and nothing is known of those. `slowest` are of the known ones too."""
    page = TextPage(width, color=color)
    code = exit_code_of(facts)
    verdict = f"{sign(code == 0)} {facts.state.upper()}"
    tail = f"  (exit code {code})" if code else ""
    page.line((verdict, "red" if code else "green"), "  ", (facts.name, "bold"), f"  job {facts.id}{tail}")
    ran = took_text(facts.started_at or facts.submitted_at, facts.ended_at)
    page.facts([counted_text(facts.tasks, "task"), *([f"ran {ran}"] if ran else [])])
    if facts.reason:
        page.sentence(facts.reason)
    page.row("tasks", counts_text(facts.counts) or "none")
    of_known = f"of the first {counted_text(len(tasks), 'task')}" if left_out else ""
    again = retries_text(tasks)
    if of_known:
        page.row("retries", f"{of_known}: {again or 'none'}")
    elif again:
        page.row("retries", again)
    last = last_of(tasks)
    if last is not None and has_waited_for(last, tasks, left_out) and (output := json_text(last.output)):
        page.row("output", f"of {last.id}: {one_line(output, ERROR_COLUMNS)}")
    if slowest:
        page.section("SLOWEST", f" {of_known}" if of_known else "")
        for task in slowest[:SLOWEST_SHOWN]:
            page.row(took_text(task.started_at, task.ended_at), f"{task.id} ({task.handler})")
    show_failed(page, facts, failed)
    return page.text()


def show_failed(page: TextPage, facts: DagFacts, failed: Sequence[TaskView]) -> None:
    if not failed:
        return
    page.section("GIVEN UP")
    for task in failed[:FAILED_SHOWN]:
        counted = counted_of(task) if task.state is TaskState.DEAD else task.attempts
        tries = tries_text(counted, task.attempts) if task.attempts else "never run"
        cause = "" if task.error.startswith(cause_of(task)) else f", {task.cause}"
        page.line("  ", (f"✗ {task.id}", "red"), f"  {task.state}, {tries}{cause}")
        if task.error:
            page.sentence(one_line(task.error, ERROR_COLUMNS), indent=4)
    count = sum(facts.counts.get(state, 0) for state in GIVEN_UP)
    if count > FAILED_SHOWN:
        page.sentence(f"… and {count - FAILED_SHOWN:,} more")
    first = quote(failed[0].id)  # brackets of an element mean something to a shell
    page.gap()
    page.sentence(f"talka jobs show {facts.id} --why {first}     why it ended so", indent=0)
    page.sentence(
        f"talka jobs show {facts.id} --task {first}    its attempts, with traceback and last output", indent=0
    )
    page.sentence(f"talka jobs show {facts.id} --logs {first}    all that it logged and printed", indent=0)
    if facts.counts.get(TaskState.DEAD):
        page.sentence(
            "talka dead-letters     every attempt; talka dead-letters replay JOB/TASK runs one again", indent=0
        )


def counted_of(task: TaskView) -> int:
    """Attempts that count against it; all of them, where it is not told."""
    return task.attempts if task.failures is msgspec.UNSET else task.failures


def retries_text(tasks: Iterable[TaskView]) -> str:
    """How often tasks were tried again because they had failed, and which most often; then their other attempts."""
    retries: list[tuple[str, int]] = []
    others: list[tuple[str, int]] = []
    for task in tasks:
        again = max(0, task.attempts - 1)
        failed = max(0, min(again, counted_of(task) - (task.state is TaskState.DEAD)))
        retries.append((task.id, failed))
        others.append((task.id, again - failed))
    (count, names), (besides, other_names) = sum_text(retries), sum_text(others)
    text = f"{count:,}: {names}" if count else "none" if besides else ""
    if besides:
        verb = "does" if besides == 1 else "do"
        text += f"; {counted_text(besides, 'attempt')} {verb} not count as such: {other_names}"
    return text


def sum_text(counts: Iterable[tuple[str, int]]) -> tuple[int, str]:
    """Of all together, and who has most of it."""
    some = sorted([one for one in counts if one[1]], key=lambda one: -one[1])
    names = ", ".join(f"{name} ({count})" for name, count in some[:NAMES_SHOWN])
    more = f" and {counted_text(len(some) - NAMES_SHOWN, 'more task')}" if len(some) > NAMES_SHOWN else ""
    return sum(count for _, count in some), f"{names}{more}"


def last_of(tasks: Iterable[TaskView]) -> TaskView | None:
    """The one that completed last, of those with an output of their own. Of two in one millisecond it is the one that
    waited for the other."""
    last: TaskView | None = None
    for task in tasks:
        if task.state is not TaskState.COMPLETED or task.for_each:
            continue
        if last is None or task.ended_at > last.ended_at:
            last = task
        elif task.ended_at == last.ended_at and not {task.id, task.element_of}.intersection(last.depends_on):
            last = task
    return last


def has_waited_for(last: TaskView, tasks: Sequence[TaskView], left_out: int) -> bool:
    """Whether the task began after all of those had ended that are left out of the job's tasks: it depends on each of
    them, directly or not. Else one of them may have completed after it."""
    known = {task.id: task for task in tasks}
    listed = Counter(task.element_of for task in tasks)
    waited_for = 0
    seen, open_ones = {last.id}, [last.id]
    while open_ones and waited_for < left_out:
        name = open_ones.pop()
        task = known.get(name)
        if task is None:
            waited_for += 1
        # One that was skipped has waited for nothing, and one whose key was completed before neither.
        elif task.state is TaskState.COMPLETED and (task.attempts or task.for_each):
            waited_for += max(0, sum(task.elements.values()) - listed[name])
            open_ones += [before for before in dict.fromkeys(task.depends_on) if before not in seen]
            seen.update(task.depends_on)
    return waited_for >= left_out


def slowest_of(tasks: Iterable[TaskView], count: int = SLOWEST_SHOWN) -> list[TaskView]:
    """Those whose last attempt took longest, longest first."""
    timed = [(took_s(task.started_at, task.ended_at), task) for task in tasks]
    known = [(seconds, task) for seconds, task in timed if seconds is not None]
    return [task for _, task in sorted(known, key=lambda pair: (-pair[0], pair[1].id))[:count]]


# The graph.


class TaskGroup(NamedTuple):
    """Tasks that stand alike: same layer, state, handler, and the same before and after them."""

    layer: int
    names: list[str]
    state: str
    after: tuple[str, ...]


def graph_text(facts: DagFacts, graph: GraphView) -> str:
    """Layer by layer, with an arrow to what waits for each."""
    layers = layers_of(graph)
    groups = groups_of(graph, layers)
    depth = 1 + max(layers.values(), default=-1)
    if graph.left_out or len(groups) > LINES_DRAWN:
        return (
            f"job {facts.id} has {counted_text(len(graph.tasks) + graph.left_out, 'task')} in"
            f" {'at least ' if graph.left_out else ''}{counted_text(depth, 'layer')}, too many to draw:"
            f" {counts_text(facts.counts) or 'nothing has begun'};"
            f" talka jobs show {facts.id} --graph --json lists {'some' if graph.left_out else 'them'}"
        )
    rows = []
    seen = -1
    for group in groups:
        number = "" if group.layer == seen else str(group.layer + 1)
        seen = group.layer
        then = f"──▶ {names_text(group.after)}" if group.after else ""
        rows.append((number, names_text(group.names), group.state, then))
    return table(("LAYER", "TASK", "STATE", "THEN"), rows) if rows else f"job {facts.id} has no tasks"


def layers_of(graph: GraphView) -> dict[str, int]:
    """Each task one below the lowest that it waits for."""
    layers = {task.id: 0 for task in graph.tasks}
    after, waits = edges_of(graph, layers)
    ready = deque(name for name in layers if not waits[name])
    while ready:
        name = ready.popleft()
        for dependent in after[name]:
            layers[dependent] = max(layers[dependent], layers[name] + 1)
            waits[dependent] -= 1
            if not waits[dependent]:
                ready.append(dependent)
    return layers


def edges_of(graph: GraphView, known: Mapping[str, int]) -> tuple[dict[str, list[str]], dict[str, int]]:
    """What waits for each task, and for how many each waits; only of tasks that are here."""
    after: dict[str, list[str]] = {name: [] for name in known}
    waits = dict.fromkeys(known, 0)
    for before, dependent in dict.fromkeys((before, dependent) for before, dependent in graph.edges):
        if before in known and dependent in known:
            after[before].append(dependent)
            waits[dependent] += 1
    return after, waits


def groups_of(graph: GraphView, layers: Mapping[str, int]) -> list[TaskGroup]:
    after, _ = edges_of(graph, layers)
    before: dict[str, list[str]] = {name: [] for name in layers}
    for name, dependents in after.items():
        for dependent in dependents:
            before[dependent].append(name)
    found: dict[tuple[object, ...], TaskGroup] = {}
    for task in graph.tasks:
        then = tuple(after[task.id])
        if task.elements:
            name = f"{task.id}[0..{sum(task.elements.values()) - 1}]"
            found[task.id,] = TaskGroup(layers[task.id], [name], counts_text(task.elements), then)
            continue
        same = (layers[task.id], task.state, task.handler, tuple(before[task.id]), then)
        if same in found:
            found[same].names.append(task.id)
        else:
            found[same] = TaskGroup(layers[task.id], [task.id], task.state, then)
    return sorted(found.values(), key=lambda group: group.layer)


def names_text(names: Sequence[str]) -> str:
    if len(names) <= NAMES_SHOWN:
        return ", ".join(names)
    return f"{names[0]} … {names[-1]} ({len(names):,})"
