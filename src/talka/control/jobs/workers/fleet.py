"""The workers of a cluster as its leader sees them: who lives, until when each lease runs, which cores are taken.

A worker stops its tasks when four fifths of its lease are over, counted from when it sent a beat; the leader counts the
whole lease and the drift of clocks from when it answered. Only after that, or on proof, is a life of a worker lost.

Decision: docs/decisions/0033-one-lease.md.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection
from random import Random
from typing import Final, get_args

from talka.cluster.leadership.lease_terms import USUAL_NS
from talka.cluster.leases import margin_ns
from talka.control.jobs.effects import (
    EvictionHeld,
    FleetFull,
    FleetNews,
    NameTaken,
    WorkerLost,
    WorkerRegistered,
    WorkerReturned,
)
from talka.control.jobs.workers.health import SILENT_NS, CorrelatedFailure
from talka.control.jobs.workers.worker_life import HeardLives, WorkerLife, fewest
from talka.control.member.breaker import BreakerState
from talka.control.tasks.quarantine import Denied
from talka.control.tasks.worker_room import CoresForTasks
from talka.errors import Invalid, Unavailable
from talka.units import MILLISECOND, NEVER, SECOND
from talka.wire.jobs import Beat, WorkerFacts
from talka.wire.views import WorkerState

LEASE_NS: Final = USUAL_NS
SILENT_PERCENT: Final = 60
"""Of a lease that is shorter than usual: who was silent for so long gets nothing new."""
DISCONNECT_GRACE_NS: Final = 300 * SECOND
"""How long a worker goes on without its only manager."""
WORKERS_LIMIT: Final = 4096
"""Of lives that are known, and of lives that are known to be over."""
REAP_NS: Final = 900 * SECOND
"""How long a lost worker is still shown."""
LEFT: Final = "it left"
STARTED_ANEW: Final = "it was restarted"


class NotFree(Unavailable):
    """A worker does not have so many cores left."""

    def __init__(self, worker: str, *, asked: int, free: int) -> None:
        super().__init__(f"worker {worker}: {asked} cores are wanted and {free} are free; choose again")
        self.worker, self.asked, self.free = worker, asked, free


class Leaves(Invalid):
    """A worker that ends cannot be told to take work again."""

    def __init__(self, worker: str) -> None:
        super().__init__(f"worker {worker} was told to end: start it again, and it takes work")


class Fleet:
    """Call `beat` for every beat, answer it with a renewal when `holds` says so, and `tick` once `next_tick_at` has
    come.

    A name belongs to one life at a time. A new life from the same state folder proves the earlier one dead. One from
    another folder has to wait until the lease of the earlier one is over, so that two machines of one name do not take
    it from each other. A life that is only expected, and was not heard, keeps nobody out.
    """

    def __init__(
        self,
        lease_ns: int = LEASE_NS,
        *,
        grace_ns: int = DISCONNECT_GRACE_NS,
        limit: int = WORKERS_LIMIT,
        earlier_until: int = 0,
        heard: HeardLives | None = None,
    ) -> None:
        """`earlier_until`: until when leases may run that an earlier leader gave, whose leases may have been longer.
        `heard`: whom this process has heard already, under earlier leases of leadership."""
        if lease_ns < 1 or grace_ns < 0 or limit < 1:
            raise Invalid(
                "a fleet needs lease_ns and limit of at least 1 and grace_ns of at least 0, "
                f"not {lease_ns}, {limit} and {grace_ns}"
            )
        self.set_lease(lease_ns, lease_ns)
        self._earlier_until = earlier_until
        self._grace_ns = grace_ns + margin_ns(grace_ns)
        self._limit = limit
        self._heard = HeardLives() if heard is None else heard
        self._correlated = CorrelatedFailure()
        self._workers: dict[str, WorkerLife] = {}
        self._former: dict[tuple[str, int], WorkerLife] = {}
        """Lives whose name another one has, and whose lease may still run."""
        self._over: OrderedDict[tuple[str, int], None] = OrderedDict()
        """Lives that are proven dead: a beat of theirs that was long on its way means nothing."""
        self.shifted: dict[str, None] = {}
        """Workers of which another number of cores is for tasks, to be taken by whoever tells."""
        self._jobs: dict[str, dict[tuple[str, int], WorkerLife]] = {}
        """Where each job has cores."""
        self._now = 0
        self.next_tick_at = NEVER

    def __len__(self) -> int:
        return len(self._workers)

    def set_lease(self, lease_ns: int, silent_of_ns: int) -> None:
        """From now on silence is counted by `lease_ns`; renewals are of `silent_of_ns`, which may be shorter."""
        self._lease_ns = lease_ns + margin_ns(lease_ns)
        self._silent_ns = min(SILENT_NS, silent_of_ns * SILENT_PERCENT // 100)

    # Who lives.

    def beat(self, now: int, name: str, boot: int, source: str, beat: Beat) -> list[FleetNews]:
        """A worker beats; `source` is where from. Then ask `holds` whether to renew its lease."""
        self._now = now
        news: list[FleetNews] = []
        life = self._workers.get(name)
        if life is None or life.boot != boot:
            life = self._admit(now, name, boot, source, beat.facts, news)
            if life is None:
                return news
        if life.is_lost:
            news.append(WorkerReturned(name, boot))
        elif life.facts is None:
            news.append(WorkerRegistered(name, boot, beat.facts.cores))
        if life.is_silent and self._correlated.until is not None:
            self.next_tick_at = now  # the fault may be over: who is still silent is judged again
        life.heard(now, max(now + self._lease_ns, self._earlier_until), source, beat)
        self._heard.add(name, boot)
        self.next_tick_at = min(self.next_tick_at, now + self._silent_ns, life.until)
        return news

    def left(self, now: int, name: str, boot: int) -> list[FleetNews]:
        """A life of a worker says itself that it is over."""
        self._now = now
        life = self.life(name, boot)
        if life is None or life.is_lost:
            return []
        self._former.pop((name, boot), None)
        lost = self._lose(now, life, LEFT)
        self._bury(life)
        self.next_tick_at = min(self.next_tick_at, now + REAP_NS)
        return [lost]

    def expect(self, now: int, name: str, boot: int, *, folder: int = 0, sole: bool = False) -> bool:
        """A grant names this life, and it may have a lease of an earlier leader; False when it is known to be over.

        Unless it was heard already, its lease counts from now; with `sole`, and where this process never heard it, also
        the time a worker goes on without its only manager. `folder` is its state folder, where that is known. However
        many the entries name are expected.
        """
        self._now = now
        found = self.life(name, boot)
        if found is not None:
            return not found.is_lost
        if (name, boot) in self._over:
            return False
        until = max(now + self._lease_ns, self._earlier_until)
        life = WorkerLife(name, boot, folder, "", now, until, was_heard=self._heard.has(name, boot))
        if sole and not life.was_heard:
            life.until += self._grace_ns
        known = self._workers.get(name)
        if known is None:
            self._workers[name] = life
        else:
            if folder and folder == known.folder and known.facts is not None:
                # The one that was heard is the later life from that folder.
                life.until = now
            self._former[name, boot] = life
        self.next_tick_at = min(self.next_tick_at, life.until, now + self._silent_ns)
        return True

    def holds(self, name: str, boot: int) -> bool:
        """Whether this life has the name, and with it a lease: its beats are to be answered with a renewal."""
        life = self._workers.get(name)
        return life is not None and life.boot == boot and life.facts is not None and not life.is_lost

    def silence(self, now: int, name: str, boot: int) -> str:
        """What is waited for before work of this life is given to others, to go on a sentence; empty: it is heard."""
        life = self.life(name, boot)
        if life is None or life.is_lost:
            return ""
        is_held = now >= life.until and self._correlated.until is not None
        return life.silence(now, self._silent_ns, is_held=is_held)

    def tick(self, now: int) -> list[FleetNews]:
        if now < self.next_tick_at:
            return []
        self._now = now
        news: list[FleetNews] = []
        for key in [key for key, life in self._former.items() if now >= life.until]:
            news.append(self._lose(now, self._former.pop(key), "its lease is over, and another worker has its name"))
        self._judge(now, news)
        for life in self._workers.values():
            life.unblock(now)
        self._reap(now)
        self.next_tick_at = self._next_look(now)
        return news

    def folder(self, name: str) -> int:
        """The state folder of the life that has the name; 0 when it is not known."""
        life = self._workers.get(name)
        return 0 if life is None else life.folder

    def drain(self, name: str, by: str = "") -> bool:
        """Give this life of the worker nothing more; whether there is such a worker."""
        life = self._workers.get(name)
        if life is None or life.is_lost:
            return False
        life.is_drained, life.drained_by, life.is_undrained = True, by, False
        return True

    def undrain(self, name: str) -> bool:
        """Let it take work again, as soon as it has heard of that; whether there is such a worker. `Leaves`: it was not
        an order that drains it."""
        life = self._workers.get(name)
        if life is None or life.is_lost:
            return False
        if life.leaves:
            raise Leaves(name)
        life.is_drained, life.drained_by, life.is_undrained = False, "", True
        return True

    def is_undraining(self, name: str) -> bool:
        life = self._workers.get(name)
        return life is not None and life.is_undraining

    def is_drained(self, name: str) -> bool:
        life = self._workers.get(name)
        return life is not None and life.is_drained

    def failed(self, now: int, name: str) -> None:
        """A task could not be placed there. After three within half a minute the worker is left alone for a while."""
        self._now = now
        life = self._workers.get(name)
        if life is not None:
            life.failed(now)
            self._look_when_unblocked(life)

    # Cores.

    def reserve(self, job: str, worker: str, cores: int, boot: int | None = None) -> None:
        """Take cores for a job; without `boot`, of the life that has the name. Adds to what the job has there.

        Of a worker that is only expected nobody knows the cores: what the entries say is taken as it is.
        """
        life = self.life(worker, boot)
        if cores < 1:
            raise Invalid(f"job {job}: {cores} cores of worker {worker} cannot be reserved; at least 1 is needed")
        if life is None or life.is_lost:
            raise NotFree(worker, asked=cores, free=0)
        if life.facts is not None and cores > life.unreserved:
            raise NotFree(worker, asked=cores, free=life.unreserved)
        life.reserve(self._now, job, cores)
        self.shifted[worker] = None
        self._jobs.setdefault(job, {})[worker, life.boot] = life
        self._look_when_unblocked(life)

    def shrink(self, job: str, worker: str, boot: int, cores: int) -> int:
        """Of this life of a worker the job keeps so many cores; how many fewer than before."""
        life = self._jobs.get(job, {}).get((worker, boot))
        if life is None or life.reserved[job] <= cores:
            return 0
        fewer = life.reserved[job] - cores
        life.shrink(job, cores)
        if not cores:
            self._drop(job, worker, boot)
        self.shifted[worker] = None
        return fewer

    def _drop(self, job: str, worker: str, boot: int) -> None:
        held = self._jobs[job]
        del held[worker, boot]
        if not held:
            del self._jobs[job]

    def reserved(self, *, usable: bool = False) -> dict[str, int]:
        """Cores that each load job has; with `usable`, on workers that may be given work now."""
        found: dict[str, int] = {}
        for life in self._workers.values():
            if life.is_usable or not usable:
                for job, cores in life.reserved.items():
                    found[job] = found.get(job, 0) + cores
        return found

    def release(self, job: str) -> None:
        """The job has ended."""
        for life in self._jobs.pop(job, {}).values():
            life.release(job)
            self.shifted[life.name] = None

    def release_worker(self, job: str, worker: str) -> None:
        """The job needs nothing of this worker any more."""
        held = self._jobs.get(job, {})
        for key in [key for key in held if key[0] == worker]:
            held.pop(key).release(job)
            self.shifted[worker] = None
        if not held:
            self._jobs.pop(job, None)

    def note_tasks(self, name: str, busy_cores: int | None, denied: Denied | None = None) -> None:
        """What whoever keeps tasks knows of this worker: that is newer than its beat. `busy_cores` is None: nobody here
        knows."""
        life = self._workers[name]
        if busy_cores is None:
            busy_cores = life.tasks.cores
        elif busy_cores:
            # It may have spread them over more cores than they fill.
            busy_cores = max(busy_cores, life.tasks.cores)
        life.busy_cores = min(life.cores, busy_cores)
        life.denied = denied

    def hold(self, job: str, cores: int, *, rng: Random) -> None:
        """Let so many cores that no load job has get no new tasks. So many there must be."""
        self.let_go()
        for name, _, count in self.choose(cores, rng=rng, beside_tasks=True) or ():
            life = self._workers[name]
            life.held, life.held_for = count, job
            self.shifted[name] = None

    def let_go(self) -> None:
        for life in self._workers.values():
            if life.held:
                life.held, life.held_for = 0, ""
                self.shifted[life.name] = None

    def take_shifted(self) -> list[CoresForTasks]:
        """Where that has changed."""
        names, self.shifted = self.shifted, {}
        return [self._workers[name].for_tasks for name in names if name in self._workers]

    def held(self) -> int:
        """Cores that are held on workers that may still be given work."""
        return sum(min(life.held, life.unreserved) for life in self._workers.values() if life.is_usable)

    def total(self) -> int:
        """Cores of the pool: of all workers that may be given work."""
        return sum(life.cores for life in self._workers.values() if life.is_usable)

    def total_unreserved(self) -> int:
        """Those of them that no load job has."""
        return sum(life.unreserved for life in self._workers.values() if life.is_usable)

    def total_unreserved_soon(self) -> int:
        """The same, and those of workers that may be given work again at any moment."""
        return sum(life.unreserved for life in self._workers.values() if life.may_be_usable)

    def total_free(self) -> int:
        """Those of them that nobody has: `choose` finds at most so many."""
        return sum(life.free for life in self._workers.values() if life.is_usable)

    def total_present(self) -> int:
        """Cores of all workers that are there, also of those that are given nothing."""
        return sum(life.cores for life in self._workers.values())

    def choose(
        self, cores: int, *, rng: Random, exclude: Collection[str] = (), beside_tasks: bool = False
    ) -> list[tuple[str, int, int]] | None:
        """Workers, their boots and how many cores of each: as few workers as can be. None when there is no room.

        Among workers that serve equally well the less loaded of two drawn at random is taken. Workers whose processors
        are busy are considered only where the others do not suffice, and overloaded ones last. `beside_tasks`: cores
        will do on which tasks run.
        """
        if cores < 1:
            raise Invalid(f"{cores} cores cannot be chosen; at least 1 is needed")
        room = _unreserved if beside_tasks else _free
        usable = {
            life.name: life
            for life in self._workers.values()
            if room(life) and life.is_usable and life.name not in exclude
        }
        calm = {name: life for name, life in usable.items() if life.is_calm}
        able = {name: life for name, life in usable.items() if not life.is_overloaded}
        for candidates in (calm, able, usable):
            if sum(map(room, candidates.values())) >= cores:
                return fewest(cores, candidates, rng, room)
        return None

    # What people are told.

    def review(self, now: int, name: str = "") -> list[FleetNews]:
        """What has changed with the worker of this name, or with any."""
        lives = [self._workers[name]] if name in self._workers else [] if name else self._workers.values()
        news: list[FleetNews] = []
        for life in lives:
            news += life.review(now)
        return news

    def life(self, name: str, boot: int | None = None) -> WorkerLife | None:
        """The life that has the name; with `boot`, this one, also while another has its name."""
        life = self._workers.get(name)
        if boot is None or (life is not None and life.boot == boot):
            return life
        return self._former.get((name, boot))

    def states(self) -> dict[str, int]:
        """How many workers are in each."""
        return {**dict.fromkeys(get_args(WorkerState), 0), **Counter([life.state for life in self._workers.values()])}

    @property
    def silent(self) -> int:
        return sum([life.is_silent and not life.is_lost for life in self._workers.values()])

    def breakers(self) -> dict[str, int]:
        """How many workers' breakers are in each state."""
        states = Counter([life.breaker_state.value for life in self._workers.values()])
        return {**dict.fromkeys((state.value for state in BreakerState), 0), **states}

    def lives(self) -> list[WorkerLife]:
        """All workers by name, also those lost within the last quarter of an hour."""
        return [life for _, life in sorted(self._workers.items())]

    # How it is done.

    def _admit(
        self, now: int, name: str, boot: int, source: str, facts: WorkerFacts, news: list[FleetNews]
    ) -> WorkerLife | None:
        """The life that beats, which has the name from now on; None when it may not have it."""
        known, folder = self._workers.get(name), facts.folder
        if known is not None and known.facts is not None and folder == known.facts.folder != 0:
            if facts.life < known.facts.life:
                return None  # of an earlier life, and long on its way
        if (name, boot) in self._over and known is not None and not known.is_silent and not known.is_lost:
            return None
        if known is None:
            if len(self._workers) >= self._limit and not self._make_room():
                news.append(FleetFull(name, self._limit))
                return None
        elif folder and folder == known.folder:
            if not known.is_lost:
                news.append(self._lose(now, known, STARTED_ANEW))
            self._bury(known)
        elif known.facts is None and not known.is_lost:
            self._former[name, known.boot] = known
        elif not known.is_lost:
            if known.rival != boot:
                known.rival = boot
                news.append(NameTaken(name, boot, source, known.source))
            return None
        life = self._former.pop((name, boot), None) or WorkerLife(name, boot, folder, source, now, now)
        for key in [key for key, other in self._former.items() if key[0] == name and other.folder == folder != 0]:
            other = self._former.pop(key)
            news.append(self._lose(now, other, STARTED_ANEW))
            self._bury(other)
        self._over.pop((name, boot), None)
        self._workers[name] = life
        return life

    def _bury(self, life: WorkerLife) -> None:
        self._over[life.name, life.boot] = None
        if len(self._over) > self._limit:
            self._over.popitem(last=False)

    def _lose(self, now: int, life: WorkerLife, cause: str) -> WorkerLost:
        for job in life.reserved:
            self._drop(job, life.name, life.boot)
        life.lost(now, cause)
        return WorkerLost(life.name, life.boot, cause)

    def _judge(self, now: int, news: list[FleetNews]) -> None:
        """Note who is silent, and give up those whose lease is over."""
        alive = [life for life in self._workers.values() if not life.is_lost]
        due: list[WorkerLife] = []
        silent: list[WorkerLife] = []
        for life in alive:
            is_due = now >= life.until
            was_silent, life.is_silent = life.is_silent, is_due or now - life.heard_at >= self._silent_ns
            if life.is_silent != was_silent:
                self.shifted[life.name] = None
            if life.is_silent:
                silent.append(life)
            if is_due:
                due.append(life)
        was_on = self._correlated.until is not None
        given_up = self._lately_given_up(now)
        since = [life.heard_at for life in (*silent, *given_up)]
        is_held = self._correlated.holds(now, since, len(alive) + len(given_up), is_due=bool(due))
        for life in silent:
            life.is_spared = is_held
        if is_held:
            if not was_on:
                news.append(EvictionHeld(tuple(sorted(life.name for life in silent))))
            return
        is_waited = self._correlated.until is not None
        for life in due:
            cause = "not heard since the leader changed" if life.facts is None else "its lease is over"
            silent_ns = now - life.heard_at
            silence = f"{silent_ns // SECOND} s" if silent_ns >= SECOND else f"{silent_ns // MILLISECOND} ms"
            news.append(self._lose(now, life, f"{cause}: silent for {silence}"))
            # One failure is waited for once: who is given up after the wait is no reason for another one.
            life.is_silent = not is_waited

    def _lately_given_up(self, now: int) -> list[WorkerLife]:
        """Those that still count as silent: for as long as others may share their fault, and while a hold is on."""
        given_up = [life for life in self._workers.values() if life.is_lost and life.is_silent]
        if self._correlated.until is None:
            for life in given_up:
                life.is_silent = now - life.lost_at <= self._correlated.window_ns
        return [life for life in given_up if life.is_silent]

    def _look_when_unblocked(self, life: WorkerLife) -> None:
        if life.is_blocked:
            self.next_tick_at = min(self.next_tick_at, self._now + life.blocked_for_ns(self._now))

    def _reap(self, now: int) -> None:
        gone = [name for name, life in self._workers.items() if life.is_lost and now - life.lost_at >= REAP_NS]
        for name in gone:
            del self._workers[name]

    def _make_room(self) -> bool:
        """Forget the worker that was lost first."""
        lost = [(life.lost_at, name) for name, life in self._workers.items() if life.is_lost]
        if not lost:
            return False
        del self._workers[min(lost)[1]]
        return True

    def _next_look(self, now: int) -> int:
        soonest = min((life.until for life in self._former.values()), default=NEVER)
        for life in self._workers.values():
            if life.is_lost:
                at = life.lost_at + REAP_NS
            elif not life.is_silent:
                at = min(life.heard_at + self._silent_ns, life.until)
            elif now < life.until:
                at = life.until
            else:
                # Due and still here: evictions are held.
                assert self._correlated.until is not None
                at = self._correlated.until
            if life.is_blocked:
                at = min(at, now + life.blocked_for_ns(now))
            soonest = min(soonest, at)
        return soonest


def _free(life: WorkerLife) -> int:
    return life.free


def _unreserved(life: WorkerLife) -> int:
    return life.unreserved
