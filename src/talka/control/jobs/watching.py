"""Watching jobs: at the manager a client talks to, and at the one that leads the job."""

from collections.abc import Mapping
from typing import Final

import msgspec

from talka.cluster.effects import Lane, Send
from talka.control.jobs.effects import JobsEffect, Updated, WatchFailed
from talka.control.jobs.job_view import fitting, update_of
from talka.control.jobs.led_job import LedJob
from talka.control.jobs.step_merge import MERGED_AT_ONCE, StepMerge
from talka.control.load.load_job import LoadJob
from talka.control.member.leader_calls import CallEnded, LeaderCalls
from talka.stats.tally import Tally
from talka.units import NEVER, SECOND
from talka.wire.jobs import CHANNEL, JobMessage, ViewUpdate, WatchJob
from talka.wire.manager_calls import GetJob, JobTold
from talka.wire.security.access import Asker
from talka.wire.views import JobUpdate, without_windows_up_to
from talka.work.lifecycle import is_final

LOOK_EVERY_NS: Final = SECOND // 2
TOLD_FOR_NS: Final = 5 * SECOND
TELL_EVERY_NS: Final = SECOND // 10
"""As long as a window: with what its worker takes to tell of it, it is seen at most 300 ms after its end."""
TELL_AT_LEAST_EVERY_NS: Final = SECOND
VIEWS_PER_SECOND: Final = 200
"""A view of a job with many steps takes milliseconds: of more watchers, each is told less often."""
OVERTAKEN_NS: Final = 3 * SECOND
"""A view that waits longer is shed: a lower number after that is of a manager that counts anew."""
WATCHES_LIMIT: Final = 1024
AUDIENCE_LIMIT: Final = 4096

_decoder = msgspec.msgpack.Decoder(JobUpdate)
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Watch(msgspec.Struct):
    job: str
    steps: bool
    look_at: int
    asked: int = 0
    windows_after: int = -1
    heard_at: int = 0
    owner: str = ""
    """Who told the latest update, and its number."""
    sequence: int = 0
    asker: Asker | None = None
    """Who watches."""
    led_by: str = ""
    """Who leads the job, as the cluster's leader says."""

    def word(self, number: int) -> WatchJob:
        """What whoever leads the job is told: what has been seen."""
        return WatchJob(self.job, number, self.windows_after, self.steps)


class JobWatches:
    """Jobs that clients of this manager watch. Whoever leads the job tells; the cluster's leader tells who that is."""

    def __init__(self) -> None:
        self._watches: dict[int, _Watch] = {}
        self._asked: dict[int, int] = {}
        self.next_tick_at = NEVER

    def add(self, now: int, job: str, number: int, *, steps: bool, asker: Asker | None = None) -> int:
        self._watches[number] = _Watch(job, steps, now, asker=asker)
        self.next_tick_at = now
        return number

    def remove(self, number: int) -> None:
        self._watches.pop(number, None)

    @property
    def is_full(self) -> bool:
        return len(self._watches) >= WATCHES_LIMIT

    def owns(self, call: int) -> bool:
        return call in self._asked

    def tick(self, now: int, calls: LeaderCalls, leader: str = "") -> list[JobsEffect]:
        effects: list[JobsEffect] = []
        for number, watch in self._watches.items():
            if now < watch.look_at:
                continue
            watch.look_at = now + LOOK_EVERY_NS
            if watch.asked not in self._asked:
                asked, said = calls.ask(now, GetJob(watch.job), leader, watch.asker)
                watch.asked = asked
                self._asked[asked] = number
                effects += said
        self.next_tick_at = min((watch.look_at for watch in self._watches.values()), default=NEVER)
        return effects

    def on_facts(self, now: int, ended: CallEnded) -> list[JobsEffect]:
        number = self._asked.pop(ended.number)
        watch = self._watches.get(number)
        if watch is None:
            return []
        if ended.problem in ("missing", "forbidden"):
            del self._watches[number]
            return [WatchFailed(number, ended.problem, ended.text)]
        if not isinstance(ended.answer, JobTold):
            return []  # asked again
        facts = ended.answer.job
        if is_final(facts.state):
            del self._watches[number]
            return [Updated(number, JobUpdate(facts, final=True))]
        if not facts.owner:
            return [Updated(number, JobUpdate(facts))]
        watch.led_by = facts.owner
        effects: list[JobsEffect] = [Send(CHANNEL, facts.owner, watch.word(number), Lane.STREAM)]
        if now - watch.heard_at > SECOND:
            effects.append(Updated(number, JobUpdate(facts)))
        return effects

    def on_view(self, now: int, view: ViewUpdate) -> list[JobsEffect]:
        watch = self._watches.get(view.number)
        if watch is None or watch.job != view.job:
            return []
        try:
            update = _decoder.decode(view.content)
        except _UNREADABLE:
            return []
        owner = update.job.owner
        if watch.led_by and owner != watch.led_by:
            return []  # one that was cut off and replaced goes on telling what it knew then
        if owner == watch.owner and update.sequence <= watch.sequence and now - watch.heard_at < OVERTAKEN_NS:
            return []
        watch.heard_at, watch.owner, watch.sequence = now, owner, update.sequence
        update = without_windows_up_to(watch.windows_after, update)
        watch.windows_after = max((window.index for window in update.windows), default=watch.windows_after)
        effects: list[JobsEffect] = [Updated(view.number, update)]
        if update.windows and not update.recent and owner == watch.led_by:
            # More wait: they follow the sooner.
            effects.append(Send(CHANNEL, owner, watch.word(view.number), Lane.STREAM))
        return effects


class _Listener(msgspec.Struct):
    job: str
    until: int
    windows_after: int
    steps: bool
    sequence: int = 0
    passes: int = 0
    """Over the steps of all workers, that it was told of."""
    tell_at: int = 0


class Audience:
    """Who is to be told of the jobs that this manager leads."""

    def __init__(self, *, listeners_limit: int = AUDIENCE_LIMIT, merged_at_once: int = MERGED_AT_ONCE) -> None:
        self._listeners_limit = listeners_limit
        self._merged_at_once = merged_at_once
        self._listeners: dict[tuple[str, int], _Listener] = {}
        self.merges: dict[str, StepMerge] = {}
        """Of jobs whose steps somebody wants to know."""
        self.next_tick_at = NEVER

    def on_watch(self, now: int, sender: str, watch: WatchJob) -> list[JobsEffect]:
        key = (sender, watch.number)
        known = self._listeners.get(key)
        if known is None:
            if len(self._listeners) >= self._listeners_limit:
                return []
            known = self._listeners[key] = _Listener(watch.job, 0, watch.windows_after, watch.steps)
            self.next_tick_at = min(self.next_tick_at, now)
        # Windows are told until they are known to have arrived: views may be lost or overtaken.
        known.windows_after = max(known.windows_after, watch.windows_after)
        known.until = now + TOLD_FOR_NS
        return []

    def tick(self, now: int, led: Mapping[str, LedJob], least_ns: int = 0) -> list[JobsEffect]:
        """`least_ns`: between two words to the same listener, as the load of this manager allows now."""
        effects: list[JobsEffect] = []
        every_ns = max(
            TELL_EVERY_NS, least_ns, min(TELL_AT_LEAST_EVERY_NS, len(self._listeners) * SECOND // VIEWS_PER_SECOND)
        )
        for key, listener in list(self._listeners.items()):
            if now < listener.tell_at:
                continue
            listener.tell_at = now + every_ns
            job = led.get(listener.job)
            if now >= listener.until or job is None:
                del self._listeners[key]
            elif job.job is not None and job.is_caught_up():
                effects.append(self._view(now, key, listener, job))
        if self.merges:
            wanted = {listener.job: None for listener in self._listeners.values() if listener.steps}
            self.merges = {job: merge for job, merge in self.merges.items() if job in wanted}
        self.next_tick_at = min((listener.tell_at for listener in self._listeners.values()), default=NEVER)
        return effects

    def _view(self, now: int, key: tuple[str, int], listener: _Listener, led: LedJob) -> Send[JobMessage]:
        assert led.job is not None
        listener.sequence += 1
        update = update_of(
            led.job,
            led.facts(),
            now,
            sequence=listener.sequence,
            windows_after=listener.windows_after,
            steps=self._steps(now, listener, led.job) if listener.steps else None,
            by_step=listener.steps,
            logs=led.lines.all() if listener.sequence == 1 else led.lines.recent(now),
        )
        sender, number = key
        return Send(CHANNEL, sender, ViewUpdate(listener.job, number, fitting(update)), Lane.STATISTICS)

    def _steps(self, now: int, listener: _Listener, job: LoadJob) -> Mapping[str, Tally] | None:
        """Steps of many workers take long to merge: each listener is told once of every pass over them."""
        merge = self.merges.setdefault(listener.job, StepMerge(self._merged_at_once))
        merge.advance(now, job)
        if merge.passes == listener.passes:
            return None
        listener.passes = merge.passes
        return merge.latest

    def over(self, now: int, led: LedJob | None) -> list[JobsEffect]:
        """The job is led no more: those who listen find out from the entry, and are told a last time what was
        printed."""
        effects: list[JobsEffect] = []
        if led is not None:
            for key, listener in [(key, one) for key, one in self._listeners.items() if one.job == led.name]:
                if led.job is not None and led.lines.recent(now):
                    effects.append(self._view(now, key, listener, led))
                del self._listeners[key]
            self.merges.pop(led.name, None)
        return effects
