"""Runs the plan of one shard: virtual users in a closed loop, or arrivals on a schedule.

Decision: docs/decisions/0005-late-arrivals-queue.md.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from talka.clock import monotonic_ns, sleep_until
from talka.engine.load.alarm import Alarm
from talka.engine.load.recorder import Recorder, described
from talka.engine.load.steps import Iterations, VirtualUser
from talka.engine.waits import within
from talka.units import MICROSECOND, SECOND
from talka.work.load import Shard

MADE_AHEAD = 256
"""Users made before the start; making more takes longer than there is time."""
LOOP_TIMER_NS = SECOND // 500
"""How far a loop's timer may be off."""
LEFT_BEHIND_S = 1
"""A step may catch its cancellation and go on. After this it is left behind, and ends with the process."""


class Executor:
    """One shard's plan. `run` returns when the plan is over or `stop` was called, and nothing is under way any more.

    `pulse` must grow whenever a user's code gave the event loop a chance to run; an iteration that never did would
    otherwise keep it for itself. `think` says for how many nanoseconds a user pauses after an iteration.
    """

    def __init__(
        self,
        shard: Shard,
        iterations: Iterations,
        recorder: Recorder,
        new_user: Callable[[int], VirtualUser],
        pulse: Callable[[], int],
        *,
        grace_ns: int,
        iterations_done: int = 0,
        think: Callable[[], int] | None = None,
        renew: Callable[[VirtualUser], None] = lambda user: None,
        left_behind_s: float = LEFT_BEHIND_S,
        new_alarm: Callable[[Callable[[], None]], Alarm] = Alarm,
    ) -> None:
        self._left_behind_s = left_behind_s
        self._new_alarm = new_alarm
        self._renew = renew
        self._shard = shard
        self._iterations = iterations
        self._recorder = recorder
        self._new_user = new_user
        self._pulse = pulse
        self._grace_ns = grace_ns
        self._think = think
        self._users: list[VirtualUser] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()
        self.failure: str | None = None
        """Why it ended early, when the user's code is the reason."""
        self.note: str | None = None
        """Why it ended early, when that is no failure."""
        self._broken: BaseException | None = None
        self._wanted = 0
        self._iterations_left: int | None = None
        total = shard.iterations_in_all
        if total is not None and (shard.iterations is not None or iterations_done):
            # After a loss nobody knows which user had run how often: what is left is shared among them.
            self._iterations_left = max(0, total - iterations_done)
        self.started_at_ns = 0
        self._origin_ns = 0
        self._idle: list[VirtualUser] = []
        self._arrivals = shard.arrivals(0)
        self._due_ns: int | None = None
        self._alarm: Alarm | None = None
        self._end_timer: asyncio.TimerHandle | None = None
        iterations.on_used_up = self._used_up
        iterations.renew = self._renewed

    async def run(self, origin_ns: int, start_at_ns: int) -> None:
        self._origin_ns = origin_ns
        if self._shard.plan.model == "closed":
            # Made before the instant: a user's own __init__ must not delay the first requests.
            for _ in range(min(self._shard.vus_at(max(0, start_at_ns - origin_ns)), MADE_AHEAD)):
                if self._added_user() is None:
                    break
        await self._until(start_at_ns)
        self.started_at_ns = monotonic_ns()
        try:
            if self._shard.plan.model == "open":
                # First, so that all that is due starts where the end has come already.
                self._open(max(0, start_at_ns - origin_ns))
            if self._shard.plan.length_ns is not None:
                self._end_at(origin_ns + self._shard.plan.length_ns)
            if self._shard.plan.model == "open":
                await self._run_open()
            else:
                await self._run_closed()
        except asyncio.CancelledError:
            self._grace_ns = 0  # nobody wants the results any more
            self.stop()
            raise
        finally:
            if self._end_timer is not None:
                self._end_timer.cancel()
            if self._alarm is not None:
                self._alarm.close()
            await self._finish()
        if self._broken is not None:
            raise self._broken

    def stop(self) -> None:
        """Start nothing new. What is under way gets the grace period."""
        self._iterations.is_stopping = True
        self._stopped.set()

    def end_at_once(self) -> None:
        """What is under way is interrupted, whatever is left of the grace period."""
        self._grace_ns = 0
        self.stop()
        for task in list(self._under_way):
            task.cancel()

    def _used_up(self, text: str) -> None:
        self.note = text
        self.stop()

    def _end_at(self, instant_ns: int) -> None:
        """Stop when the plan's time is over, and not before: some loops round their timers."""
        loop = asyncio.get_running_loop()
        left_ns = instant_ns - monotonic_ns()
        if left_ns > 0:
            self._end_timer = loop.call_at(loop.time() + left_ns / SECOND, self._end_at, instant_ns)
            return
        if self._shard.plan.model == "open":
            self._pump()
        loop.call_soon(self.stop)  # after the first steps of those that were due until now

    async def _until(self, instant_ns: int) -> None:
        """Until shortly before with the loop, whose timers are only good to about a millisecond; then without it.

        Not by turning round and round: where there are more cores than processors, they would keep each other waiting.
        """
        while (left_ns := instant_ns - monotonic_ns()) > 0 and not self._stopped.is_set():
            await asyncio.sleep(max(0, left_ns - LOOP_TIMER_NS) / SECOND)
            if instant_ns - monotonic_ns() <= LOOP_TIMER_NS:
                sleep_until(instant_ns)

    async def _finish(self) -> None:
        ends_ns = monotonic_ns() + self._grace_ns
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=self._grace_ns / SECOND)
        if self._grace_ns and self._shard.plan.model == "open" and not self._iterations.has_fresh_users:
            for user in self._idle:  # they stayed between arrivals, and leave now
                self._start(self._iterations.leave(user))
            if self._under_way:
                await asyncio.wait(self._under_way, timeout=max(0, ends_ns - monotonic_ns()) / SECOND)
        for task in list(self._under_way):
            task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=self._left_behind_s)
        self._recorder.tally.interrupted_iterations += (
            self._iterations.under_way
        )  # those that did not heed their cancellation
        self._recorder.settle()
        self._recorder.vus = 0
        for user in self._users:
            user.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken = self._broken or error
            self.stop()
        if not self._under_way and self._shard.plan.model == "closed" and self._has_run_out():
            self.stop()

    def _added_user(self) -> VirtualUser | None:
        position = len(self._users)
        try:
            user = self._new_user(position)
        except Exception as error:  # noqa: BLE001 - the user's own __init__ may raise anything
            self.failure = f"virtual user {position + 1} cannot be made: {described(error)}"
            self.stop()
            return None
        if self._iterations_left is None and self._shard.plan.iterations_per_vu is not None:
            user.iterations_left = self._shard.plan.iterations_per_vu
        self._users.append(user)
        return user

    def _renewed(self, user: VirtualUser) -> None:
        """The user's place is another user's from now on."""
        try:
            self._renew(user)
        except Exception as error:  # noqa: BLE001 - the user's own __init__ may raise anything
            self.failure = f"a further virtual user cannot be made: {described(error)}"
            self.stop()

    # Closed: as many users as the plan wants, each in a loop.

    async def _run_closed(self) -> None:
        while not self._stopped.is_set():
            elapsed_ns = monotonic_ns() - self._origin_ns
            self._set_users(self._shard.vus_at(elapsed_ns))
            change_ns = self._shard.next_change(elapsed_ns)
            await within(None if change_ns is None else (change_ns - elapsed_ns) / SECOND, self._stopped)

    def _set_users(self, wanted: int) -> None:
        before, self._wanted = self._wanted, wanted
        for position in range(before, wanted):
            if position == len(self._users):
                if self._added_user() is None:
                    return
            self._begin(self._users[position])
        self._recorder.vus = wanted

    def _begin(self, user: VirtualUser) -> None:
        if not user.is_running:  # one that has not noticed it was to leave simply stays
            user.is_running = True
            self._start(self._loop(user))

    async def _loop(self, user: VirtualUser) -> None:
        iterations = self._iterations
        while user.position < self._wanted and not iterations.is_stopping and self._take(user):
            pulse = self._pulse()
            now = monotonic_ns()
            self._recorder.iteration(now)
            await iterations.run(user, now)
            if self._think is not None:
                await within(self._think() / SECOND, self._stopped)
            elif self._pulse() == pulse:
                await asyncio.sleep(0)
        if not iterations.has_fresh_users:
            await iterations.leave(user)
        user.is_running = False

    def _take(self, user: VirtualUser) -> bool:
        """Whether there is another iteration for this user."""
        if self._iterations_left is not None:
            if self._iterations_left == 0:
                return False
            self._iterations_left -= 1
        elif user.iterations_left >= 0:
            if user.iterations_left == 0:
                return False
            user.iterations_left -= 1
        return True

    def _has_run_out(self) -> bool:
        if self._iterations_left is not None:
            return self._iterations_left == 0
        return self._shard.plan.iterations_per_vu is not None

    # Open: an iteration for every arrival, when it is due, whatever became of earlier ones.

    async def _run_open(self) -> None:
        await self._stopped.wait()
        due_ns = self._next_due_ns()
        if due_ns is not None:
            # Due by now, and nobody was free to start them.
            elapsed_ns = monotonic_ns() - self._origin_ns
            self._recorder.tally.dropped += self._shard.arrivals_between(due_ns, elapsed_ns)

    def _open(self, from_ns: int) -> None:
        self._arrivals = self._shard.arrivals(from_ns)
        self._due_ns = next(self._arrivals, None)
        self._alarm = self._new_alarm(self._pump)
        self._pump()

    def _next_due_ns(self) -> int | None:
        return self._due_ns

    def _pump(self) -> None:
        """Start every arrival that is due, as far as users are free; come back for the next."""
        assert self._alarm is not None
        self._alarm.clear()
        elapsed_ns = monotonic_ns() - self._origin_ns
        while self._due_ns is not None and self._due_ns <= elapsed_ns and not self._stopped.is_set():
            user = self._free_user()
            if user is not None:
                self._start(self._arrive(user, self._next_arrival()))
            elif self._shard.plan.policy == "drop":
                self._next_arrival()
                self._recorder.tally.dropped += 1
            else:
                return  # the next user that becomes free takes it
        if self._due_ns is not None and not self._stopped.is_set():
            self._alarm.set(self._origin_ns + self._due_ns)

    def _lets_arrivals_wait(self) -> bool:
        """For a user to become free: who does takes the next one, or sees to it that it is started when it is due."""
        is_set = self._alarm is not None and self._alarm.is_set
        return not is_set and self._due_ns is not None and not self._stopped.is_set()

    def _next_arrival(self) -> int:
        assert self._due_ns is not None
        due_ns, self._due_ns = self._due_ns, next(self._arrivals, None)
        return self._origin_ns + due_ns

    def _free_user(self) -> VirtualUser | None:
        if self._idle:
            return self._idle.pop()
        if len(self._users) < self._shard.max_vus:
            return self._added_user()
        return None

    async def _arrive(self, user: VirtualUser, intended_ns: int) -> None:
        tally, recorder = self._recorder.tally, self._recorder
        recorder.user_came()
        could_start_ns = intended_ns
        while True:
            if self._stopped.is_set():
                tally.dropped += 1
                break
            now = monotonic_ns()
            tally.generator.start_lag.record((now - could_start_ns) // MICROSECOND)
            recorder.iteration(now)
            await self._iterations.run(user, intended_ns)
            if (
                not self._lets_arrivals_wait()
                or self._due_ns is None
                or self._due_ns > monotonic_ns() - self._origin_ns
            ):
                break
            intended_ns = self._next_arrival()
            # Waiting for a user to become free is the target's doing; what comes on top of it is ours.
            could_start_ns = monotonic_ns()
            await asyncio.sleep(0)
        recorder.vus -= 1
        self._idle.append(user)
        if self._lets_arrivals_wait():
            self._pump()
