"""A manager as one pure thing: jobs it leads, blobs it keeps, and, while it leads the cluster, everybody's jobs.

It routes: messages to the part they are for, news of one part to another. What a node runs and what the simulator runs
is this.

Decision: docs/decisions/0015-one-member-one-loop.md.
"""

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Final, TypeAlias, cast

import msgspec

from talka.cluster.effects import Lane, Send
from talka.cluster.leadership.news import Elected, SteppedDown, WriteEnded
from talka.control.blobs.replicated_blobs import (
    BlobEffect,
    BlobFailed,
    BlobKept,
    BlobReady,
    BlobsFull,
    ReplicatedBlobs,
    piece_of,
)
from talka.control.clients.shedding import REPORT_MS, Shedding, report_interval_ms
from talka.control.dags.keeper import DagKeeper
from talka.control.dags.keepers import DagKeepers
from talka.control.jobs.bundle_rights import BundleRights
from talka.control.jobs.effects import (
    Alarmed,
    BlobWanted,
    JobOver,
    JobsEffect,
    JobsNews,
    KeepWanted,
    LeadWanted,
    WorkerLost,
)
from talka.control.jobs.led_job import LedJob
from talka.control.jobs.registry import Registry
from talka.control.jobs.watching import Audience, JobWatches
from talka.control.jobs.workers.worker_keys import WorkerKeys
from talka.control.jobs.workers.worker_life import HeardLives
from talka.control.member.clock_offsets import ClockOffsets
from talka.control.member.leader_calls import CallEnded, LeaderCalls
from talka.control.member.voter import Voter, VoterEffect
from talka.control.tasks.frame_link import FRAMES
from talka.control.tasks.paced_frames import PACE_LIMITS, PacedFrames, PaceLimits, RoomWanted
from talka.control.tasks.store_effects import DagEffect, StoreEffect
from talka.control.tasks.worker_link import ToWorker, WorkerBeat
from talka.errors import Untrusted
from talka.units import MILLISECOND, NEVER, SECOND
from talka.wire.entries import JobEntry, decode_checkpoint, decode_entry
from talka.wire.jobs import (
    CHANNEL,
    Beat,
    CheckpointStored,
    Elsewhere,
    Goodbye,
    JobMessage,
    KeepBlob,
    Kept,
    Lead,
    Leaderless,
    ManagerAt,
    Piece,
    Report,
    StoreCheckpoint,
    Synced,
    ViewUpdate,
    WantBlob,
    WatchJob,
)
from talka.wire.manager_calls import CallAnswer, LeaderCall, ManagerCall
from talka.wire.security.access import Asker
from talka.wire.security.permissions import OWN_ROLES
from talka.wire.security.roles import Role
from talka.wire.tasks import Done, Held, TaskProgress
from talka.work.lifecycle import JobState
from talka.work.retention import Retention

LED_LIMIT: Final = 1024
KEEP_AGAIN_NS: Final = SECOND
RETRY_MS: Final = 1000
"""When whoever asked through another manager may ask again, where this one has too much to do."""


ManagerEffect: TypeAlias = JobsEffect | BlobEffect | DagEffect | WorkerBeat | RoomWanted
PassedOn: TypeAlias = JobsNews | JobOver | CallEnded | VoterEffect | BlobEffect | StoreEffect | RoomWanted
"""What the member around a manager or its shell carries out."""


class Manager:
    """Call `on_message`, `on_news`, `on_persisted` and the rest as things happen, and `tick` once `next_tick_at` has
    come."""

    def __init__(
        self,
        *,
        name: str,
        boot: int,
        voter: Voter,
        rng: Random,
        wall_offset_ns: int,
        keys: WorkerKeys,
        signer: bytes = b"",
        datacenter: str = "",
        managers: Callable[[], tuple[ManagerAt, ...]] = tuple,
        blobs: Iterable[str] = (),
        led_limit: int = LED_LIMIT,
        pace: PaceLimits = PACE_LIMITS,
    ) -> None:
        """`signer`: the public key with which this manager signs bundles, where no certificate vouches for it."""
        self.name = name
        self.registry: Registry | None = None
        """While this manager leads the cluster."""
        self.led: dict[str, LedJob] = {}
        self._led_limit = led_limit
        self.blobs = ReplicatedBlobs(name, voter.election.config.names, blobs, rng)
        self.bundle_rights = BundleRights(self._known_entries, voter.election.held)
        self.calls = LeaderCalls(rng)
        self.clocks = ClockOffsets()
        self.watches = JobWatches()
        self.audience = Audience()
        self.dags = DagKeepers()
        """Dag jobs, by partition, once they were read from a store."""
        self.to_workers = PacedFrames(pace)
        self.shedding = Shedding()
        self.is_draining = False
        self._keys = keys
        self._signer = signer
        self._datacenter = datacenter
        self._boot = boot
        self._voter = voter
        self._rng = rng
        self._wall_offset_ns = wall_offset_ns
        self._managers = managers
        self._heard = HeardLives()
        self._wanted: dict[str, dict[str, None]] = {}
        """Blobs on their way, and the jobs that wait for them."""
        self._keeps: dict[str, KeepWanted] = {}
        """By digest, what jobs want to be kept and a majority does not have yet."""
        self._keep_at = NEVER
        """When those are tried again for which there was no room."""

    @property
    def leader(self) -> str:
        return self.name if self.registry is not None else self._voter.election.leader

    @property
    def next_tick_at(self) -> int:
        at = min(
            self._keep_at,
            self.blobs.next_tick_at,
            self.calls.next_tick_at,
            self.watches.next_tick_at,
            self.audience.next_tick_at,
            self.dags.next_tick_at,
            self.to_workers.next_tick_at,
        )
        if self.registry is not None:
            at = min(at, self.registry.next_tick_at)
        return min([at, *(led.next_tick_at for led in self.led.values())])

    def _known_entries(self) -> list[JobEntry]:
        decided = [] if self.registry is None else list(self.registry.entries.values())
        return [*decided, *(led.entry for led in self.led.values())]

    # -- inputs

    def on_message(
        self, now: int, sender: str, message: JobMessage, boot: int = 0, source: str = "", role: Role | None = None
    ) -> list[PassedOn]:
        if isinstance(message, WantBlob) and role in OWN_ROLES:
            may_fetch = self.bundle_rights.may_fetch(now, sender, message.digest)
            if not may_fetch and not self.dags.may_fetch(sender, message.digest):
                return self._out(
                    now, [Send(CHANNEL, sender, piece_of(message.digest, None, message.offset), Lane.STREAM)]
                )
        return self._out(now, self._hear(now, sender, boot, source, message))

    def _hear(self, now: int, sender: str, boot: int, source: str, message: JobMessage) -> Sequence[ManagerEffect]:
        if self.shedding.refuses(message):
            return self._refuse(now, sender, message)
        match message:
            case Beat(facts=facts, seeks=seeks):
                self._keys.heard(sender, boot, facts.sealing)
                if self.registry is None:
                    return [Send(CHANNEL, sender, Elsewhere(self.leader, self._named_to(seeks)), Lane.CONTROL)]
                return self._on_beat(now, sender, boot, source, message)
            case Done() | TaskProgress() | Held():
                # Also of a worker that this manager has not met again since it started.
                return self.dags.on_message(now, sender, message)
            case Goodbye():
                return [] if self.registry is None else self.registry.on_goodbye(now, sender, boot)
            case Lead():
                return self._on_lead(now, sender, message)
            case StoreCheckpoint():
                # Where none leads, it is said again to whoever does then.
                return [] if self.registry is None else self.registry.on_checkpoint(now, sender, message)
            case CheckpointStored(job=job):
                return self.led[job].on_checkpoint_stored(now, message) if job in self.led else []
            case Leaderless():
                return [] if self.registry is None else self.registry.on_leaderless(now, sender, message)
            case ManagerCall():
                return self._on_call(now, sender, message)
            case CallAnswer():
                return [*self.calls.on_answer(now, message)]
            case WatchJob():
                return self.audience.on_watch(now, sender, message)
            case ViewUpdate():
                return self.watches.on_view(now, message)
            case WantBlob():
                return self.blobs.on_want(sender, message)
            case Piece():
                return self.blobs.on_piece(now, sender, message)
            case KeepBlob():
                return self.blobs.on_keep(now, sender, message)
            case Kept():
                return self.blobs.on_kept(now, sender, message)
            case Synced(number=number, clock_ns=clock_ns):
                self.clocks.heard(now, sender, number, clock_ns)
                return [effect for led in self.led.values() for effect in led.on_clock(now, sender)]
            case _:
                job = getattr(message, "job", "")
                return self.led[job].on_message(now, sender, message) if job in self.led else []

    def _named_to(self, seeks: bool) -> tuple[ManagerAt, ...]:
        """A worker that has no lease may know nobody but this manager."""
        return self._managers() if seeks else ()

    def on_news(self, now: int, news: Elected | SteppedDown | WriteEnded) -> list[PassedOn]:
        """What the voter beside it tells."""
        if isinstance(news, WriteEnded):
            return [] if self.registry is None else self._out(now, self.registry.on_write_ended(now, news))
        if isinstance(news, Elected):
            self.registry = Registry(
                now,
                me=self.name,
                voter=self._voter,
                rng=self._rng,
                wall_offset_ns=self._wall_offset_ns,
                managers=self._managers,
                signer=self._signer,
                datacenter=self._datacenter,
                heard=self._heard,
                tasks=self.dags,
            )
            alarms = [*self.registry.book.alarms, *self.registry.lease.alarms]
            return self._out(now, [*alarms, *self._expect(now)])
        self.registry = None
        self.dags.on_stepped_down(now)
        return self._out(now, [])

    def set_keeper(self, now: int, keeper: DagKeeper) -> list[PassedOn]:
        """Dag jobs of a partition were read from the store: go on with them."""
        self.dags.set(keeper)
        keeper.silence_of = self._silence_of
        return self._out(now, self._expect(now))

    def drop_keeper(self, now: int, partition: int) -> None:
        """A partition is lost: nothing of its jobs is decided here any more, and no result of a task is taken."""
        self.dags.drop(now, partition)

    def sweep_jobs(self, now: int, kept: Retention) -> list[PassedOn]:
        """While it leads: drop what is remembered of load jobs that ended long ago. Not while the clock is doubtful."""
        registry = self.registry
        if registry is None:
            return []
        return self._out(now, registry.book.sweep(now, (now + registry.wall_offset_ns) // MILLISECOND, kept))

    def set_wall_offset(self, wall_offset_ns: int) -> None:
        """The clock of the day was set: what is put down from now on tells the new one."""
        self._wall_offset_ns = wall_offset_ns
        if self.registry is not None:
            self.registry.wall_offset_ns = wall_offset_ns
        self.dags.set_wall_offset(wall_offset_ns)

    def act(self, now: int, effects: Sequence[ManagerEffect]) -> list[PassedOn]:
        """Carry out what a keeper of dag jobs answered to the shell."""
        return self._out(now, effects)

    def on_room(self, now: int, worker: str) -> list[PassedOn]:
        """As `RoomWanted` asked for."""
        return self._out(now, self.to_workers.on_room(worker))

    def _silence_of(self, now: int, name: str, boot: int) -> str:
        if self.registry is None:
            return "; this manager does not lead, and gives nothing out until it does"
        return self.registry.fleet.silence(now, name, boot)

    def _expect(self, now: int) -> list[ManagerEffect]:
        """Workers that had tasks when the last life of this manager ended may have them still."""
        effects: list[ManagerEffect] = []
        if self.registry is None:
            return effects
        for name, boot, folder in self.dags.expected():
            if not self.registry.fleet.expect(now, name, boot, folder=folder, sole=True):
                effects.append(WorkerLost(name, boot, "it was gone before its tasks were known"))
        return effects

    def on_persisted(self, now: int, ticket: int) -> list[PassedOn]:
        return self._out(now, self.blobs.on_persisted(now, ticket))

    def on_not_persisted(self, now: int, ticket: int, text: str) -> list[PassedOn]:
        return self._out(now, self.blobs.on_not_persisted(now, ticket, text))

    def say(self, to: str, message: JobMessage) -> list[PassedOn]:
        return [Send(CHANNEL, to, message, Lane.STREAM)]

    def on_loaded(self, now: int, digest: str, content: bytes | None) -> list[PassedOn]:
        return self._out(now, self.blobs.on_loaded(now, digest, content))

    def on_document(
        self, now: int, job: str, content: bytes, state: JobState, exit_code: int, reason: str
    ) -> list[PassedOn]:
        led = self.led.get(job)
        return [] if led is None else self._out(now, led.on_document(now, content, state, exit_code, reason))

    def tick(self, now: int) -> list[PassedOn]:
        effects: list[ManagerEffect] = []
        if now >= self._keep_at:
            self._keep_at = NEVER
            effects += self._keeps.values()  # nothing happens to those that are under way
        if self.registry is not None and now >= self.registry.next_tick_at:
            effects += self.registry.tick(now)
        for led in list(self.led.values()):
            if now >= led.next_tick_at:
                effects += led.tick(now)
        if now >= self.blobs.next_tick_at:
            effects += self.blobs.tick(now)
        if now >= self.calls.next_tick_at:
            effects += self.calls.tick(now, self.leader)
        if now >= self.watches.next_tick_at:
            effects += self.watches.tick(now, self.calls, self.leader)
        if now >= self.audience.next_tick_at:
            least_ns = REPORT_MS[self.shedding.level] * MILLISECOND
            effects += self.audience.tick(now, self.led, least_ns)
        if now >= self.dags.next_tick_at:
            effects += self.dags.tick(now)
        if now >= self.to_workers.next_tick_at:
            effects += self.to_workers.tick(now)
        return self._out(now, effects)

    # -- what this node's own API asks

    def call(self, now: int, call: LeaderCall, asker: Asker | None = None) -> tuple[int, list[PassedOn]]:
        """Ask the leader, for whoever asked; `CallEnded` with this number tells what it said."""
        number, effects = self.calls.ask(now, call, self.leader, asker)
        return number, self._out(now, [*effects])

    def watch(self, now: int, job: str, *, steps: bool, asker: Asker | None = None) -> tuple[int, list[PassedOn]]:
        """`Updated` and `WatchFailed` with this number tell of the job, until `unwatch`."""
        number = self.watches.add(now, job, self._rng.getrandbits(48), steps=steps, asker=asker)
        return number, self._out(now, [])

    def unwatch(self, number: int) -> None:
        self.watches.remove(number)

    def keep(self, now: int, digest: str, content: bytes) -> list[PassedOn]:
        """`BlobKept` tells when a majority has it."""
        return self._out(now, self.blobs.keep(now, digest, content))

    def fetch(self, now: int, digest: str) -> list[PassedOn]:
        """`BlobReady` tells what it is."""
        return self._out(now, self.blobs.fetch(now, digest))

    def drain(self, now: int) -> list[PassedOn]:
        """Hand every job that this manager leads to others, and lead no more."""
        self.is_draining = True
        return self._out(now, [self._leaderless(led) for led in self.led.values()])

    # -- routing

    def _leaderless(self, led: LedJob) -> Send[JobMessage]:
        return Send(CHANNEL, self.leader, Leaderless(led.name, led.fence), Lane.CONTROL)

    def _on_lead(self, now: int, sender: str, lead: Lead) -> Sequence[ManagerEffect]:
        try:
            entry = decode_entry(lead.entry)
        except Untrusted:
            return []
        led = self.led.get(entry.job)
        if led is not None and entry.fence == led.fence:
            return led.on_entry(now, entry, asks=lead.asks)
        if entry.owner != self.name or (led is not None and entry.fence < led.fence):
            return []
        if self.is_draining or (led is None and entry.revision > 0):
            # An earlier life of this manager led it under this fence: what it did since is not known here.
            return [Send(CHANNEL, sender, Leaderless(entry.job, entry.fence), Lane.CONTROL)]
        if led is None and len(self.led) >= self._led_limit:
            return []
        if entry.checkpoint:
            try:
                decode_checkpoint(entry.checkpoint)
            except Untrusted as problem:
                text = f"job {entry.job} cannot be led on by {self.name}: {problem}; another manager is asked to"
                return [Alarmed(text), Send(CHANNEL, sender, Leaderless(entry.job, entry.fence), Lane.CONTROL)]
        led = LedJob(
            entry,
            life=self._boot,
            clocks=self.clocks,
            keys=self._keys,
            wall_offset_ns=self._wall_offset_ns,
            every_ms=self._report_every_ms,
        )
        self.led[entry.job] = led
        return led.start(now)

    def _report_every_ms(self) -> int:
        workers = sum(len(led.job.workers or ()) for led in self.led.values() if led.job is not None)
        return report_interval_ms(self.shedding.level, workers)

    def _on_beat(self, now: int, sender: str, boot: int, source: str, beat: Beat) -> Sequence[ManagerEffect]:
        assert self.registry is not None
        effects = self.registry.on_beat(now, sender, boot, source, beat)
        life = self.registry.fleet.life(sender)
        if not self.dags or life is None or life.boot != boot or life.is_lost:
            return effects
        # What became of its earlier lives comes first.
        return [*effects, FRAMES.beat(boot, beat, life.for_tasks, life.state)]

    def _refuse(self, now: int, sender: str, message: JobMessage) -> Sequence[ManagerEffect]:
        """Statistics, under too much load. Whoever reports is told, and reports all of it later."""
        if isinstance(message, Report) and message.job in self.led:
            return self.led[message.job].refuse(now, sender, message)
        return []

    def _on_call(self, now: int, sender: str, call: ManagerCall) -> Sequence[ManagerEffect]:
        if self.registry is None:
            return [Send(CHANNEL, sender, CallAnswer(call.number, None, "elsewhere", self.leader), Lane.RESULTS)]
        if sender != self.name and self.shedding.sheds_call(call.asker):
            text = f"{self.name}, which leads the cluster, has too much to do: try again later"
            answer = CallAnswer(call.number, None, "busy", text, RETRY_MS)
            return [Send(CHANNEL, sender, answer, Lane.RESULTS)]
        return self.registry.on_call(now, sender, call)

    def _out(self, now: int, effects: Iterable[ManagerEffect]) -> list[PassedOn]:
        """Let news reach the parts they concern; what is left is for the member around this manager, and for the
        shell."""
        out: list[PassedOn] = []
        open_effects = list(effects)
        self._share_cores(now, open_effects)
        for effect in open_effects:  # it grows
            match effect:
                case Send():
                    to = effect.to or self.leader
                    if effect.channel is CHANNEL and to == self.name:
                        message = cast("JobMessage", effect.message)
                        open_effects += self._hear(now, self.name, self._boot, "", message)
                    elif to:
                        out.append(effect if effect.to else msgspec.structs.replace(effect, to=to))
                case ToWorker():
                    out += self.to_workers.to_worker(now, effect)
                case WorkerLost(name=name, boot=boot, cause=cause):
                    out.append(effect)
                    self.to_workers.forget(name)
                    open_effects += self.dags.on_worker_lost(now, name, boot, cause)
                case WorkerBeat():
                    open_effects += self.dags.on_beat(now, effect)
                case LeadWanted(job=job):
                    assert self.registry is not None, "nobody else says so"
                    open_effects += self.registry.lead_message(job)
                case KeepWanted(digest=digest, content=content):
                    self._keeps[digest] = effect
                    try:
                        open_effects += self.blobs.keep(now, digest, content)
                    except BlobsFull:
                        self._keep_at = now + KEEP_AGAIN_NS
                case BlobWanted(job=job, digest=digest, size_bytes=size_bytes, holders=holders):
                    self._wanted.setdefault(digest, {})[job] = None
                    open_effects += self.blobs.fetch(now, digest, size_bytes, holders)
                case BlobKept(digest=digest):
                    out.append(effect)
                    wanted = self._keeps.pop(digest, None)
                    if wanted is not None:
                        open_effects += self.led[wanted.job].on_kept(now, digest)
                case BlobFailed(digest=digest):
                    out.append(effect)
                    if digest in self._keeps:
                        self._keep_at = now + KEEP_AGAIN_NS
                case BlobReady(digest=digest):
                    out.append(effect)
                    for job in self._wanted.pop(digest, {}):
                        if job in self.led:
                            open_effects += self.led[job].on_blob(now, digest, effect.content)
                case JobOver(job=job):
                    out.append(effect)
                    self._keeps = {digest: keep for digest, keep in self._keeps.items() if keep.job != job}
                    open_effects += self.audience.over(now, self.led.pop(job, None))
                case CallEnded() if self.watches.owns(effect.number):
                    open_effects += self.watches.on_facts(now, effect)
                case _:
                    # The type checker finds an effect that is in no case and not passed on.
                    passed_on: PassedOn = effect
                    out.append(passed_on)
            self._share_cores(now, open_effects)
        return out

    def _share_cores(self, now: int, effects: list[ManagerEffect]) -> None:
        """Load jobs were granted cores, or gave some back, or a worker fell silent: tasks have others from now on."""
        if self.registry is not None and self.registry.fleet.shifted:
            effects += self.dags.set_cores(now, self.registry.fleet.take_shifted())
