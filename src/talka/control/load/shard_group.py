"""One workflow's shards on cores, from the first that is armed to the last that has ended.

A load job has one for each workflow, a worker has one for each attempt it was assigned. It arms, starts, counts,
replaces what dies, stops, and says when all is over. Where a shard runs and what its end means is decided by whoever
owns the group. See docs/decisions/0017-a-worker-is-a-core-to-its-manager.md and 0003-shards-and-lost-cores.md.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import msgspec

from talka.control.load.core_effects import CoreEffect, KillCore, StartCore, TellCore
from talka.control.load.shard_run import ATTEMPTS_LIMIT, LostShard, Seats, ShardAttempt, ShardRun
from talka.control.load.times import WorkflowTimes
from talka.stats.tally import Tally, fold_calls, merged
from talka.stats.windows import Timeline, Window
from talka.units import NEVER, SECOND
from talka.wire.orders import WorkflowOrder
from talka.wire.shards import (
    Ack,
    Armed,
    FromCore,
    Go,
    Hello,
    MetricTotals,
    Refused,
    ShardAnswer,
    StepTotals,
    Stop,
    TimeAsked,
    TimeOver,
    Totals,
    Unread,
    UnreadMetric,
    UnreadStep,
    engines_of,
)
from talka.work.deadlines import Deadline, told
from talka.work.lifecycle import TaskState, move
from talka.work.load import Shard

ARM_LIMIT_NS: Final = 60 * SECOND
STOP_SLACK_NS: Final = 5 * SECOND
"""Beyond the grace period: a core that has not reported its end by then is stuck in the user's code."""
NOTES_LIMIT: Final = 64
"""Notes of one workflow: each is for a person to read."""
NO_ROOM: Final = "the worker it was given was lost before it could start, and there was no room on others"


class GroupOwner(Protocol):
    """What a group needs of the load job or the `WorkerShards` that owns it."""

    attempts: "dict[int, tuple[ShardGroup, ShardRun, ShardAttempt]]"
    """Attempts under way by number, of all its groups."""
    own_lost: list[LostShard]
    """Gaps, in the order in which they opened. Groups add to it."""
    arriving: dict[int, None]
    """Attempts whose whole result is on its way: they are not killed for being late."""
    taken_up_ns: int
    """When another manager went on with it: nothing that stopped before can have been told in time."""

    @property
    def job_origin_ns(self) -> int:
        """When the load of the job began. 0: not yet."""

    def draw(self, seats: Seats) -> tuple[int, int]:
        """The numbers of a new attempt there and of its process."""

    def on_started(self, attempt: ShardAttempt) -> None: ...

    def seats_for(self, group: "ShardGroup", shard: ShardRun) -> list[Seats]:
        """Where the rest of a lost shard may run, worker by worker; fewer seats than shards: there is no room for
        all."""

    def on_windows(self, attempt: int, windows: Sequence[Window]) -> None: ...

    def on_asked(self, now: int, group: "ShardGroup", attempt: int, asked: TimeAsked) -> list[CoreEffect]:
        """An attempt asks for more time, and was not answered yet. What it is told goes by `answer`."""

    def on_armed(self, now: int, group: "ShardGroup") -> list[CoreEffect]:
        """Every shard is ready to start."""

    def on_failed(self, now: int, group: "ShardGroup") -> list[CoreEffect]:
        """It cannot start: `refused` or `failure` say why."""

    def on_done(self, now: int, group: "ShardGroup") -> list[CoreEffect]:
        """Nothing of it runs any more."""


class ShardGroup(WorkflowTimes):
    """Call `start` once, then the others as things happen, and carry out what they return."""

    def __init__(
        self,
        owner: GroupOwner,
        spec: WorkflowOrder,
        *,
        grace_ns: int,
        ordered_slack_ns: int = STOP_SLACK_NS,
    ) -> None:
        """`ordered_slack_ns`: beyond the grace period of a group that was told to stop."""
        super().__init__(spec)
        self.shards: list[ShardRun] = []
        self.is_told_to_stop = False
        self.has_timed_out = False
        self.refused: Refused | None = None
        self.provided: dict[str, bytes] = {}
        self.engine = ""
        self.deadline: Deadline | None = None
        """Once it has asked for more time, or has run longer than its timeout."""
        self.reports = 0
        """Heard of its attempts so far. A core reports while its event loop turns, also where its users only wait."""
        self.warning: TimeOver | None = None
        """What its attempts were told when its time was over."""
        self.put_aside_for = ""
        """Why it is being put aside, or is; empty: it is not."""
        self.aside_ns = 0
        """Since when nothing of it runs, as it was put aside; 0: it is not."""
        self.behind_ns = 0
        """How far its plan was when it was put aside last; 0: it never was."""
        self.timeline = Timeline()
        self.shares_with: dict[str, None] = {}
        """Workflows that had shards on one of its cores at the same time."""
        self._owner = owner
        self._grace_ns = grace_ns
        self._ordered_slack_ns = ordered_slack_ns
        self._causes: dict[int, str] = {}
        """By shard: how the last core went that died before the start."""

    # What is known of it.

    @property
    def late_text(self) -> str:
        """What more time it was given, whether it has none left, or why it is put aside, in words; empty while it is
        not late."""
        deadline = self.deadline
        if self.aside_ns:
            return f"put aside: {self.put_aside_for}"
        return "" if deadline is None else told(deadline.extensions, is_warned=deadline.is_warned)

    def elapsed_ns(self, now: int) -> int:
        """Without the time in which it was put aside."""
        return super().elapsed_ns(now) if self.is_on_its_way else self.behind_ns

    @property
    def is_on_its_way(self) -> bool:
        """Its plan goes on with time, or did up to its end: it is not put aside, and does not get ready to go on."""
        return not self.behind_ns or self.state not in (TaskState.PENDING, TaskState.READY, TaskState.ASSIGNED)

    @property
    def is_armed(self) -> bool:
        """Every shard of it is ready to start, and none was told to."""
        return self.state is TaskState.ASSIGNED and all(
            shard.current.armed for shard in self.shards if not shard.is_done
        )

    @property
    def runs_alone(self) -> bool:
        """It has the whole pool, however many of the cores it can use."""
        return self.spec.is_test and self.spec.priority == "exclusive"

    @property
    def cores(self) -> int:
        return sum(shard.shard.count for shard in self.shards if not shard.is_replaced)

    def attempts(self) -> list[tuple[int, ShardRun, ShardAttempt]]:
        """Those under way, with their numbers."""
        return [
            (number, shard, attempt)
            for number, (group, shard, attempt) in self._owner.attempts.items()
            if group is self
        ]

    def collect_provided(self) -> None:
        # The lowest shard with a value wins. Parts of one that was lost come after all others here.
        for shard in sorted(self.shards, key=lambda shard: shard.shard.index, reverse=True):
            self.provided |= shard.provided

    def tally(self) -> Tally:
        whole = merged([attempt.tally for shard in self.shards for attempt in shard.attempts])
        fold_calls(whole.calls)
        return whole

    def counts(self) -> Tally:
        """Numbers alone, without anything that takes long to merge."""
        whole = Tally()
        for tally in (attempt.counts for shard in self.shards for attempt in shard.attempts):
            whole.iterations += tally.iterations
            whole.started += tally.started
            whole.dropped += tally.dropped
            whole.interrupted_iterations += tally.interrupted_iterations
            whole.exchanges.merge(tally.exchanges)
        return whole

    @property
    def counted_at_ns(self) -> int:
        """The instant for which the counts hold: cores count at different times, and on the average at this one."""
        latest = [
            # Of a replaced attempt's successor nothing may have come yet.
            shard.current.reported_ns or max(attempt.reported_ns for attempt in shard.attempts)
            for shard in self.shards
            if not shard.is_done
        ]
        return sum(latest) // len(latest) if latest else 0

    @property
    def next_tick_at(self) -> int:
        """When it is to be looked at again, if nothing happens before."""
        at = NEVER
        for _, _, attempt in self.attempts():
            if not attempt.armed:
                at = min(at, attempt.spawned_ns + ARM_LIMIT_NS)
        if self.state is TaskState.RUNNING:
            length_ns = self.spec.plan.length_ns
            if self.stopped_ns:
                at = min(at, self._stop_limit_ns + 1)
            elif length_ns is not None:
                at = min(at, self.origin_ns + length_ns + 1)
        return at

    @property
    def _stop_limit_ns(self) -> int:
        slack_ns = self._ordered_slack_ns if self.is_told_to_stop else STOP_SLACK_NS
        return max(self.stopped_ns, self._owner.taken_up_ns) + self._grace_ns + slack_ns

    # Starting.

    def start(self, now: int, shards: Iterable[tuple[ShardRun, Seats]]) -> list[CoreEffect]:
        """Arm each of these shards on its seats."""
        self.state = move(self.state, TaskState.ASSIGNED)
        effects: list[CoreEffect] = []
        for shard, seats in shards:
            self.shards.append(shard)
            effects.append(self._start(now, shard, seats))
        return effects

    def go_on(self, now: int, seats: Sequence[tuple[str, int]]) -> list[CoreEffect]:
        """Arm what is left of each shard, as it was put aside, on one of these seats."""
        self.state = move(self.state, TaskState.ASSIGNED)
        effects: list[CoreEffect] = []
        free = list(seats)
        for shard in [shard for shard in self.shards if shard.rest and not shard.is_replaced]:
            places = shard.rest
            taken, free = free[: len(places)], free[len(places) :]
            if len(places) == shard.shard.count and len({worker for worker, _ in taken}) == 1:
                shard.aside, shard.is_done = len(shard.attempts), False
                effects.append(self._start(now, shard, Seats(taken[0][0], tuple(number for _, number in taken))))
                continue
            shard.is_replaced = True
            while places:
                worker = taken[0][0]
                here = next((place for place, (other, _) in enumerate(taken) if other != worker), len(taken))
                count = _in_a_row(places[:here])
                part = self._part_of(shard, places[0], count)
                part.tries_before = 1  # tries at what was put aside are not counted; and it is a part
                effects.append(self._start(now, part, Seats(worker, tuple(number for _, number in taken[:count]))))
                del places[:count], taken[:count]
        return effects

    def _start(self, now: int, shard: ShardRun, seats: Seats) -> CoreEffect:
        number, process = self._owner.draw(seats)
        attempt = ShardAttempt(number, now, seats.place, seats.numbers, process)
        shard.attempts.append(attempt)
        self._owner.attempts[number] = (self, shard, attempt)
        self._owner.on_started(attempt)
        return StartCore(number, seats.place, process)

    def go(self, now: int, start_at_ns: int, origin_ns: int) -> list[CoreEffect]:
        """Start together. A core that died since it was armed joins as soon as its replacement is ready."""
        self.state, self.origin_ns = move(self.state, TaskState.RUNNING), origin_ns
        effects: list[CoreEffect] = []
        for shard in self.shards:
            if shard.is_done:
                continue
            if shard.current.armed:
                effects.append(self._send_off(shard, start_at_ns))
            else:
                self._open_gap(now, shard, self._causes[shard.shard.index], start_at_ns)
        return effects

    def _send_off(self, shard: ShardRun, start_ns: int) -> CoreEffect:
        shard.current.go_at_ns = start_ns
        return TellCore(shard.current.number, Go(start_ns, self.origin_ns, self._owner.job_origin_ns))

    def warn(self, warning: TimeOver) -> list[CoreEffect]:
        """Its time is over: those that have begun are told once."""
        if self.warning is not None:
            return []
        self.warning = warning
        return [TellCore(number, warning) for number, _, attempt in self.attempts() if attempt.go_at_ns]

    def answer(self, number: int, answer: ShardAnswer) -> list[CoreEffect]:
        """An attempt that asked for more time is told what it has."""
        if number not in self._owner.attempts:
            return []
        self._owner.attempts[number][2].answered = answer.number
        return [TellCore(number, answer)]

    def _on_armed(self, now: int, shard: ShardRun) -> list[CoreEffect]:
        if self.state is TaskState.RUNNING:
            if shard.current.go_at_ns:
                return []  # said twice
            # A replacement: it joins the plan where the plan is now.
            start_ns = max(now, self.origin_ns)
            if shard.gap is None and start_ns > self.origin_ns:
                self._open_gap(now, shard, "was told to start late: its manager was lost")
            self._close_gap(shard, start_ns)
            warnings = [] if self.warning is None else [TellCore(shard.current.number, self.warning)]
            return [self._send_off(shard, start_ns), *warnings]
        return self._owner.on_armed(now, self) if self.is_armed else []

    # What happens to it.

    def on_message(self, now: int, number: int, message: FromCore | Unread) -> list[CoreEffect]:
        """Of an attempt that is under way."""
        _, shard, attempt = self._owner.attempts[number]
        match message:
            case Hello(engine=engine):
                self.engine = self.engine or engine
                return []
            case Armed(engine=engine):
                self.engine = engines_of(self.engine, engine)
                attempt.armed = True
                return self._on_armed(now, shard)
            case Refused():
                return self._refuse(now, message)
            case StepTotals() | UnreadStep() | MetricTotals() | UnreadMetric():
                attempt.on_part(message)
                return []
            case Totals():  # pragma: no branch - the type checker sees that no message is left
                return self._on_totals(now, number, message)

    def _on_totals(self, now: int, number: int, message: Totals) -> list[CoreEffect]:
        _, shard, attempt = self._owner.attempts[number]
        if message.sequence > attempt.sequence:
            if not attempt.is_whole(message):
                return []  # a part of it was shed on the way: the next report has everything
            self.reports += 1
            self._owner.on_windows(number, attempt.on_totals(now, message))
            shard.provided = message.provided or shard.provided
        effects: list[CoreEffect] = [TellCore(number, Ack(message.sequence))]
        if message.final:
            effects += self.on_final(now, number, message.provided, message.notes, message.failure)
        elif message.asked is not None and message.asked.number > attempt.answered:
            effects += self._owner.on_asked(now, self, number, message.asked)
        return effects

    def on_final(
        self, now: int, number: int, provided: dict[str, bytes], notes: Sequence[str], failure: str | None
    ) -> list[CoreEffect]:
        """An attempt has said its last word."""
        _, shard, _ = self._owner.attempts.pop(number)
        shard.provided = provided
        self.note(*notes)
        self.failure = self.failure or failure
        return self._shard_done(now, shard)

    def note(self, *notes: str) -> None:
        new = [note for note in dict.fromkeys(notes) if note not in self.notes]
        self.notes += new[: max(0, NOTES_LIMIT - len(self.notes))]

    def on_exit(self, now: int, number: int, cause: str) -> list[CoreEffect]:
        """An attempt that was under way is gone: its core's process ended, or it was killed. That is a loss."""
        _, shard, attempt = self._owner.attempts.pop(number)
        if self.state is not TaskState.RUNNING:
            return self._lost_before_start(now, shard, cause)
        if attempt.go_at_ns or shard.gap is None:
            # Else it is a replacement that never began, and the gap of the one before it stays open.
            self._open_gap(now, shard, cause)
        until_ns, length_ns = now, shard.shard.plan.length_ns
        is_over = length_ns is not None and now >= self.origin_ns + length_ns
        if not self.stopped_ns and not is_over and shard.has_more_to_run:
            if shard.tries < ATTEMPTS_LIMIT and (replacements := self._replace(now, shard)):
                return replacements
            until_ns = now if length_ns is None else self.origin_ns + length_ns
        if not self.spec.is_test and not self.is_told_to_stop:
            # Others depend on what it does, and nobody knows whether it was done.
            self.failure = self.failure or f"its core {cause}"
        self._close_gap(shard, until_ns)
        return self._shard_done(now, shard)

    def _lost_before_start(self, now: int, shard: ShardRun, cause: str) -> list[CoreEffect]:
        if shard.tries >= ATTEMPTS_LIMIT:
            text = f"the core process of {self.spec.name} {cause} while it loaded the test"
            return self._refuse(now, Refused("setup", text))
        found = self._owner.seats_for(self, shard)
        if sum(len(seats.numbers) for seats in found) < shard.shard.count:
            # With a part of it the load would be another than was asked for.
            self.failure = NO_ROOM
            return self._owner.on_failed(now, self)
        self._causes[shard.shard.index] = cause
        return self._replace(now, shard)

    def _refuse(self, now: int, refused: Refused) -> list[CoreEffect]:
        self.refused, self.failure = refused, refused.text
        return self._owner.on_failed(now, self)

    def _replace(self, now: int, shard: ShardRun) -> list[CoreEffect]:
        """Run the rest of a lost shard elsewhere; on several workers, if no one has room for all of it."""
        part, found, left = shard.shard, self._owner.seats_for(self, shard), shard.left
        if [len(seats.numbers) for seats in found] == [part.count]:
            return [self._start(now, shard, found[0])]
        assert not isinstance(part, Shard) or not found  # there is no part of one shard
        effects: list[CoreEffect] = []
        lost = self._owner.own_lost
        for seats in found:
            numbers = list(seats.numbers)
            while numbers:
                count = _in_a_row(left[: len(numbers)])
                replacement = self._part_of(shard, left[0], count)
                if shard.gap is not None:
                    replacement.gap = msgspec.structs.replace(
                        shard.gap, shard=replacement.shard.index, vus_missing=replacement.shard.vus
                    )
                    lost.append(replacement.gap)
                effects.append(self._start(now, replacement, Seats(seats.place, tuple(numbers[:count]))))
                del numbers[:count], left[:count]
        if found:
            shard.is_done = shard.is_replaced = True
            gap, shard.gap = shard.gap, None
            lost[:] = [one for one in lost if one is not gap]
            while left:
                rest = self._part_of(shard, left[0], _in_a_row(left))
                rest.is_done = True
                assert gap is not None  # before the start it is all or nothing
                rest.gap = msgspec.structs.replace(gap, shard=rest.shard.index, vus_missing=rest.shard.vus)
                lost.append(rest.gap)
                del left[: rest.shard.count]
        return effects

    def _part_of(self, shard: ShardRun, offset: int, count: int) -> ShardRun:
        assert not isinstance(shard.shard, Shard)
        part = ShardRun(
            shard.shard.part(offset, count), shard.done_by_shard[offset : offset + count], shard.tries, shard.sharing
        )
        self.shards.append(part)
        return part

    # Time.

    def tick(self, now: int) -> list[CoreEffect]:
        if self.state is TaskState.ASSIGNED:
            return self._check_arming(now)
        return self._check_running(now) if self.state is TaskState.RUNNING else []

    def _check_arming(self, now: int) -> list[CoreEffect]:
        if not any(self._is_late(now, attempt) for _, _, attempt in self.attempts()):
            return []
        return self._refuse(now, Refused("setup", f"{self.spec.name} {_NOT_READY}"))

    def _check_running(self, now: int) -> list[CoreEffect]:
        effects: list[CoreEffect] = []
        length_ns = self.spec.plan.length_ns
        if not self.stopped_ns:
            if length_ns is not None and now - self.origin_ns > length_ns:
                self.stopped_ns = self.origin_ns + length_ns
                effects += self._give_up_waiting(now, self.stopped_ns)
        elif now > self._stop_limit_ns:
            for number, _, _ in self.attempts():
                if number not in self._owner.arriving:
                    effects += self._kill(now, number, "did not stop in time and was killed")
        for number, _, attempt in self.attempts():
            if self._is_late(now, attempt):
                effects += self._kill(now, number, _NOT_READY)
        return effects

    def _is_late(self, now: int, attempt: ShardAttempt) -> bool:
        return not attempt.armed and now - attempt.spawned_ns >= ARM_LIMIT_NS

    def give_up(self, now: int, number: int, cause: str) -> list[CoreEffect]:
        """Kill an attempt that is under way: that is a loss."""
        return self._kill(now, number, cause)

    def _kill(self, now: int, number: int, cause: str) -> list[CoreEffect]:
        return [KillCore(number), *self.on_exit(now, number, cause)]

    # Ending.

    def stop(self, now: int) -> list[CoreEffect]:
        """Start nothing new, finish what is under way."""
        self.is_told_to_stop = True
        self.stopped_ns = self.stopped_ns or now
        effects: list[CoreEffect] = [
            TellCore(number, Stop()) for number, _, attempt in self.attempts() if attempt.go_at_ns
        ]
        return effects + self._give_up_waiting(now, now)

    def _give_up_waiting(self, now: int, end_ns: int) -> list[CoreEffect]:
        """What has not begun has nothing to finish."""
        effects: list[CoreEffect] = []
        for number, shard, attempt in self.attempts():
            if not attempt.go_at_ns:
                del self._owner.attempts[number]
                if shard.gap is None and self.state is TaskState.RUNNING:  # no replacement
                    self._open_gap(now, shard, "was never told to start: its manager was lost")
                self._close_gap(shard, end_ns)
                effects += [KillCore(number), *self._shard_done(now, shard)]
        return effects

    def _shard_done(self, now: int, shard: ShardRun) -> list[CoreEffect]:
        shard.is_done = True
        return self._owner.on_done(now, self) if all(other.is_done for other in self.shards) else []

    def end(self, now: int, state: TaskState) -> list[CoreEffect]:
        """It is over: what still runs is killed."""
        self.state, self.aside_ns = move(self.state, state), 0
        # Of a core that was lost only its last report is known.
        ends = [attempt.ended_at_ns or attempt.reported_ns for shard in self.shards for attempt in shard.attempts]
        self.ended_ns = max(ends, default=0) or now
        for shard in self.shards:
            self._close_gap(shard, now)
        numbers = [number for number, _, _ in self.attempts()]
        for number in numbers:
            del self._owner.attempts[number]
        return [KillCore(number) for number in numbers]

    # Gaps.

    def _open_gap(self, now: int, shard: ShardRun, cause: str, from_ns: int = 0) -> None:
        origin_ns = self._owner.job_origin_ns
        last_known_ns = from_ns or max(shard.current.reported_ns, shard.current.go_at_ns, self.origin_ns)
        shard.gap = LostShard(
            workflow=self.spec.name,
            shard=shard.shard.index,
            cause=cause,
            from_ns=last_known_ns - origin_ns,
            to_ns=max(last_known_ns, now) - origin_ns,
            vus_missing=shard.vus_left,
            arrivals_missing=0,
        )
        self._owner.own_lost.append(shard.gap)

    def _close_gap(self, shard: ShardRun, until_ns: int) -> None:
        origin_ns = self._owner.job_origin_ns
        due_until_ns = min(until_ns, self.stopped_ns or until_ns)
        shard.close_gap(
            until_ns - origin_ns,
            plan_ns=self.origin_ns - origin_ns,
            due_until_ns=due_until_ns - origin_ns,
        )


def _in_a_row(places: Sequence[int]) -> int:
    """How many of these, from the first on, follow each other."""
    return next((count for count, place in enumerate(places) if place != places[0] + count), len(places))


_NOT_READY: Final = f"was not ready to start within {ARM_LIMIT_NS // SECOND} s"
