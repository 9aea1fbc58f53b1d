"""All that a worker has of load jobs: shards that get ready, run or have ended, the cores and bundles they use.

See docs/decisions/0017-a-worker-is-a-core-to-its-manager.md, 0031-whose-attempt-it-is.md.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from talka.cluster.effects import Lane, Send
from talka.control.load.core_effects import CoreEffect, KillCore
from talka.control.member.signers import Signers
from talka.control.worker.bundles import WorkerBundles
from talka.control.worker.core_pool import AttemptKey, CorePool, seats_of
from talka.control.worker.core_turns import TURN_LIMITS, CoreTurns, QuietNews, TurnLimits
from talka.control.worker.effects import (
    CoreGivenUp,
    CoreQuiet,
    CoreSeen,
    LookAtCore,
    NeedBundle,
    ShardsEffect,
    ShardsNews,
)
from talka.control.worker.fences import JobFences
from talka.control.worker.reporter import ShardReporter
from talka.control.worker.shards import WorkerShards, encoded_within
from talka.control.worker.variables import WorkerVariables
from talka.control.worker.writes import WorkerWrites
from talka.units import MILLISECOND, NEVER, SECOND
from talka.wire.jobs import (
    BLOB_LIMIT_BYTES,
    CHANNEL,
    PIECE_LIMIT_BYTES,
    QUIET_LIMIT,
    STACKS_TOLD,
    Assign,
    Fence,
    JobMessage,
    Piece,
    QuietCore,
    Start,
    TaskDeclined,
    TaskFacts,
    WantBlob,
)
from talka.wire.security.envelopes import BadEnvelope
from talka.wire.shards import (
    Arm,
    BundleSource,
    FromCore,
    Hello,
    Refused,
    ShardAnswer,
    Source,
    TimeOver,
    Totals,
    UrlSource,
    digest_of_url,
)

RESULT_PREFIX: Final = "result/"
HELD_LIMIT: Final = 512
"""Attempts that run, and refusals and results that nobody has answered."""
STORED_LIMIT: Final = 256
STORED_OFFERED_NS: Final = 900 * SECOND
"""Results of an earlier life are offered for so long."""
RESULTS_LIMIT_BYTES: Final = 512 * 1024 * 1024
"""With more than this of results that nobody fetched, no new attempt is taken."""
WORKFLOWS_TOLD: Final = 16
"""Of those that share a core."""
CLOSED_LIMIT: Final = 1024
"""Attempts that are over and remembered: an order that comes late must not begin them again."""


class HeldShards:
    """Who may command is settled before it comes here. Persist effects of results and bundles are answered with
    `on_persisted`."""

    def __init__(
        self,
        name: str,
        cores: int,
        bundles: WorkerBundles,
        *,
        signers: Signers,
        variables: WorkerVariables,
        writes: WorkerWrites,
        fences: JobFences,
        closed_limit: int = CLOSED_LIMIT,
        turn_limits: TurnLimits = TURN_LIMITS,
    ) -> None:
        self.pool = CorePool(cores)
        self.turns = CoreTurns(turn_limits)
        self.bundles = bundles
        self.declined = 0
        self.others_want: Callable[[], list[str]] = list
        """Digests of bundles that are used by what else is on this worker."""
        self.unmet: dict[str, str] = {}
        """Bundles that could not be had, and why, since this was last emptied: others may wait for them."""
        self._name = name
        self._signers = signers
        self._variables = variables
        self._writes = writes
        self._fences = fences
        self._closed_limit = closed_limit
        self._held: dict[AttemptKey, ShardReporter] = {}
        self._closed: dict[AttemptKey, None] = {}
        self._pids: dict[int, int] = {}
        """Of core processes, by number."""
        self._reset_under: dict[str, Fence] = {}
        """By job: the fence under which everything was last told from the start. Of jobs that have an attempt here."""
        self._on_way: dict[int, AttemptKey] = {}
        """Whose result is being written, by ticket."""

    def __iter__(self) -> Iterator[ShardReporter]:
        return iter(list(self._held.values()))

    def get(self, job: str, attempt: int) -> ShardReporter | None:
        return self._held.get((job, attempt))

    @property
    def jobs(self) -> list[str]:
        return [job for job, _ in self._held]

    @property
    def is_idle(self) -> bool:
        """Nothing is here that anybody wants."""
        return all(held.is_refused for held in self._held.values())

    @property
    def next_tick_at(self) -> int:
        at = min(self.pool.next_tick_at, self.bundles.next_tick_at, self.turns.next_tick_at)
        for held in self._held.values():
            at = min(at, held.expires_at, NEVER if held.shards is None else held.shards.next_tick_at)
        return at

    def arm_for(self, attempt: int) -> Arm | None:
        """What the attempt of a `StartCore` is to run. None: it is over, and `on_core_exit` is to be told."""
        held = self._holder(attempt)
        return None if held is None or held.shards is None else held.shards.arm_for(attempt)

    # What happens.

    def take_up(self, now: int, stored: Mapping[str, bytes]) -> list[str]:
        """Results of an earlier life are offered again. Answers with the keys of those that are not."""
        forgotten: list[str] = []
        for key in sorted(stored):
            if not key.startswith(RESULT_PREFIX):
                continue
            job, _, name = key.removeprefix(RESULT_PREFIX).rpartition("/")
            attempt, _, life = name.partition("-")
            if len(self._held) >= STORED_LIMIT or not job or not stored[key] or not f"{attempt}{life}".isdecimal():
                forgotten.append(key)
                continue
            held = self._held[job, int(attempt)] = ShardReporter(job, int(attempt), int(life or "0"))
            held.keep(stored[key])
            held.kept(now)
            held.expires_at = now + STORED_OFFERED_NS
        return forgotten

    def tick(self, now: int) -> list[ShardsEffect]:
        effects: list[ShardsEffect] = [KillCore(attempt) for attempt in self.pool.tick(now)]
        if now >= self.turns.next_tick_at:
            effects += self._look_after_cores(now)
        effects += self.bundles.tick(now, self._wanted())
        for held in self:
            if held.shards is not None and now >= held.shards.next_tick_at:
                effects += self._settle(now, held, held.shards.tick(now))
            if now >= held.expires_at:
                effects += self.forget(held)
        return effects + self._start_waiting(now)

    def on_piece(self, now: int, sender: str, piece: Piece) -> list[ShardsEffect]:
        effects = self.bundles.on_piece(now, sender, piece, self._wanted())
        return effects + self._start_waiting(now)

    def on_core_message(self, now: int, attempt: int, message: FromCore) -> list[ShardsEffect]:
        held = self._holder(attempt)
        if held is None or held.shards is None:
            return []
        process = self.pool.process_of(attempt)
        if isinstance(message, Hello):
            self._pids[process] = message.pid
        # While what it said was not read yet it did not say besides that it turns.
        heard: list[ShardsEffect] = [self._quiet_news(news) for news in self.turns.heard(now, process)]
        if isinstance(message, Totals):
            held.has_news(now)
            if message.final:
                self.pool.leaves(now, attempt)
        return heard + self._settle(now, held, held.shards.on_message(now, attempt, message))

    def on_core_lines(self, now: int, attempt: int, lines: Sequence[str]) -> None:
        """What the core printed; of an attempt that is over nobody wants to know."""
        held = self._holder(attempt)
        if held is not None:
            held.printed(now, lines)

    def on_core_exit(self, now: int, attempt: int, cause: str) -> list[ShardsEffect]:
        held, process = self._holder(attempt), self.pool.process_of(attempt)
        self.pool.exited(attempt)
        if not self.pool.attempts_in(process):
            self.turns.gone(process)
            self._pids.pop(process, None)
        effects: list[ShardsEffect] = []
        if held is not None and held.shards is not None:
            effects += self._settle(now, held, held.shards.on_exit(now, attempt, cause))
        return effects + self._start_waiting(now)

    def on_core_turned(self, now: int, process: int) -> list[ShardsEffect]:
        """Its event loop turns."""
        if not self.pool.attempts_in(process):
            return []  # its last words
        return [self._quiet_news(news) for news in self.turns.turned(now, process)]

    def on_core_look(self, process: int, cpu_ns: int, stack: str) -> list[ShardsEffect]:
        """What a `LookAtCore` showed."""
        if not self.turns.saw(process, cpu_ns, stack):
            return []
        return [CoreSeen(self._job_in(process), self._pids.get(process, 0), stack)]

    def quiet(self, now: int) -> tuple[QuietCore, ...]:
        """Cores whose event loop does not turn, the quietest first."""
        found = sorted(self.turns, key=lambda item: item[1].since_ns)[:QUIET_LIMIT]
        return tuple(
            QuietCore(
                self._job_in(process),
                self._workflows_in(process),
                self._pids.get(process, 0),
                "stuck" if one.condition == "stuck" else "stalled",
                self.turns.silence_ns(now, one) // MILLISECOND,
                one.stack if number < STACKS_TOLD else "",
            )
            for number, (process, one) in enumerate(found)
            if self._job_in(process)
        )

    def on_persisted(self, now: int, ticket: int) -> list[ShardsEffect]:
        held = self._held.get(self._on_way.pop(ticket, ("", 0)))
        if held is not None:
            held.kept(now)
        return self._start_waiting(now) if self.bundles.on_persisted(ticket) else []

    def on_not_persisted(self, now: int, ticket: int, text: str) -> list[ShardsEffect]:
        self.bundles.on_not_persisted(ticket, text)
        return self._start_waiting(now)

    # What it is told to do.

    def assign(self, now: int, assign: Assign, *, unable: str) -> list[ShardsEffect]:
        """Get an attempt ready. `unable` says why the worker as a whole can take none; empty when it can."""
        held = self.get(assign.job, assign.attempt)
        if held is not None and held.life != assign.life:
            killed = self.kill(now, held, "a restored register gave its number to another attempt")
            reason = f"attempt {assign.attempt} of another life was on worker {self._name}"
            return [*killed, self._decline(assign, reason)]
        if held is not None:
            held.tell_again(now)
            return []
        problem = unable or self._no_room(assign)
        if problem:
            return [self._decline(assign, problem)]
        bundle = assign.bundle
        verdict = self._signers.judge(now, bundle.digest, bundle.word)
        if verdict == "unknown":
            return []  # it is said again, and the leader may have named the signer by then
        refused = self._unfit(assign, is_signed=verdict == "holds")
        if refused is not None:
            held = self._held[assign.job, assign.attempt] = ShardReporter(
                assign.job, assign.attempt, assign.life, assign
            )
            return self._refuse(now, held, refused)
        try:
            assign = self._variables.opened(assign)
        except BadEnvelope as error:
            return [self._decline(assign, f"worker {self._name} cannot take it: {error}")]
        self._held[assign.job, assign.attempt] = ShardReporter(assign.job, assign.attempt, assign.life, assign)
        effects: list[ShardsEffect] = []
        if not bundle.url and not self.bundles.has(bundle.digest) and not self.bundles.is_fetching(bundle.digest):
            effects.append(NeedBundle(bundle.digest, bundle.size_bytes))
            effects += self.bundles.need(now, bundle.digest, bundle.size_bytes)
        return effects + self._start_waiting(now)

    def go(self, now: int, held: ShardReporter, start: Start) -> list[ShardsEffect]:
        return [] if held.shards is None else self._settle(now, held, held.shards.go(now, start))

    def on_time_told(
        self, now: int, held: ShardReporter, answer: ShardAnswer | None, over: TimeOver | None
    ) -> list[ShardsEffect]:
        """What its manager says of its time, and says again with each acknowledgement."""
        if held.shards is None:
            return []
        answered = [] if answer is None else held.shards.on_answer(answer)
        warned = [] if over is None else held.shards.warn(over)
        return self._settle(now, held, [*answered, *warned])

    def stop(self, now: int, held: ShardReporter, *, is_cancelled: bool = False) -> list[ShardsEffect]:
        """`is_cancelled`: not by order of the manager that leads its job."""
        if held.shards is not None:
            return self._settle(now, held, held.shards.stop(now, is_cancelled=is_cancelled))
        if held.stage == "ended":
            held.tell_again(now)
            return []
        return self.kill(now, held, "its job was stopped before it started")

    def kill(self, now: int, held: ShardReporter, reason: str) -> list[ShardsEffect]:
        """End it, if it has not ended, and forget it and its result."""
        effects: list[ShardsEffect] = []
        if held.stage != "ended":
            if held.shards is not None:
                effects += self._killed(now, held.shards.kill(now))
            effects.append(ShardsNews(held.job, held.attempt, "killed", reason))
        self._closed[held.job, held.attempt] = None
        if len(self._closed) > self._closed_limit:
            del self._closed[next(iter(self._closed))]
        return effects + self.forget(held)

    def forget(self, held: ShardReporter) -> list[ShardsEffect]:
        del self._held[held.job, held.attempt]
        if held.job not in self.jobs:
            self._reset_under.pop(held.job, None)
        return [self._writes.persist(((_result_key(held), None),))] if held.content else []

    def reconcile(self, now: int, job: str, fence: Fence) -> tuple[TaskFacts, ...]:
        """What there is of a job; all of it is told again to whoever leads it now."""
        mine = [held for held in self._held.values() if held.job == job]
        if mine and self._reset_under.get(job) != fence:  # asked again: only the answer was lost
            self._reset_under[job] = fence
            for held in mine:
                held.reset(now)
        return tuple(held.facts(now) for held in mine if not held.is_refused)

    def piece(self, want: WantBlob) -> Piece:
        for held in self._held.values():
            if held.digest == want.digest:
                data = held.content[want.offset : want.offset + PIECE_LIMIT_BYTES]
                return Piece(want.digest, want.offset, len(held.content), data)
        return Piece(want.digest, want.offset, 0, b"")

    # Getting ready.

    def _no_room(self, assign: Assign) -> str:
        promised = {seat for held in self._held.values() for seat in held.seats}
        wanted = {*seats_of(assign), *promised}
        if (assign.job, assign.attempt) in self._closed:
            return f"attempt {assign.attempt} is over on worker {self._name}"
        if len(wanted) > self.pool.cores:
            free, more = max(0, self.pool.cores - len(promised)), len(wanted) - len(promised)
            return f"worker {self._name} has {free} cores free, and {more} are asked for"
        if len(self._held) >= HELD_LIMIT or sum(len(held.content) for held in self) > RESULTS_LIMIT_BYTES:
            return f"worker {self._name} holds too many results that nobody fetched"
        return ""

    def _unfit(self, assign: Assign, *, is_signed: bool) -> Refused | None:
        """Why no worker should run it."""
        bundle = assign.bundle
        if assign.first + assign.count > assign.of or len(assign.iterations_done) != assign.count:
            return Refused("setup", f"shards {assign.first} and {assign.count - 1} more of {assign.of} do not exist")
        if assign.seats and len(set(assign.seats)) != assign.count:
            return Refused("setup", f"{len(set(assign.seats))} cores are named for {assign.count} shards")
        if bundle.url and digest_of_url(bundle.url, bundle.request) != bundle.digest:
            return Refused("setup", "the digest of the job is not that of its URL: one of them was changed")
        if not is_signed:
            return Refused("setup", f"worker {self._name} runs nothing unsigned: {self._signers.problem}")
        return None

    def _decline(self, assign: Assign, reason: str) -> Send[JobMessage]:
        self.declined += 1
        declined = TaskDeclined(assign.job, assign.attempt, assign.fence, reason)
        return Send(CHANNEL, self._fences.manager(assign.job), declined, Lane.RESULTS)

    def _start_waiting(self, now: int) -> list[ShardsEffect]:
        """Start what has its bundle and finds as many cores whose processes have ended."""
        effects: list[ShardsEffect] = []
        problems = self.bundles.take_problems()
        self.unmet |= problems
        for held in self:
            assign = held.assign
            if assign is None or held.shards is not None or held.stage != "arming":
                continue
            bundle = assign.bundle
            if bundle.digest in problems:
                problem = f"worker {self._name} could not get the bundle: {problems[bundle.digest]}"
                effects += [*self.forget(held), self._decline(assign, problem)]
            elif (bundle.url or self.bundles.has(bundle.digest)) and self.pool.has_room(seats_of(assign)):
                held.shards = WorkerShards(assign, self._source(assign), self.pool, worker=self._name)
                effects += self._settle(now, held, held.shards.start(now))
        return effects

    def _source(self, assign: Assign) -> Source:
        bundle = assign.bundle
        if bundle.url:
            return UrlSource(bundle.url, bundle.request)
        self.bundles.use(bundle.digest)
        return BundleSource(f"blob:{bundle.digest}", bundle.digest, bundle.file, "", bundle.env)

    def _wanted(self) -> list[str]:
        """Digests of bundles that something on this worker runs from or waits for."""
        found = [held.assign.bundle.digest for held in self if held.assign is not None and held.stage != "ended"]
        return list(dict.fromkeys([*found, *self.others_want()]))

    # Cores that do not turn.

    def _look_after_cores(self, now: int) -> list[ShardsEffect]:
        effects: list[ShardsEffect] = [self._quiet_news(news) for news in self.turns.tick(now)]
        effects += [LookAtCore(process) for process in self.turns.to_look_at(now)]
        for process, quiet_ns in self.turns.overdue(self._may_end):
            cause = f"did not turn its event loop for {quiet_ns // SECOND} s and was killed"
            attempts = self.pool.attempts_in(process)
            pid = self._pids.get(process, 0)
            effects.append(CoreGivenUp(self._job_in(process), self._workflows_in(process), pid, quiet_ns))
            holders = {attempt: self._holder(attempt) for attempt in attempts}
            for attempt in attempts:
                self.pool.killed(now, attempt)  # first: what takes its place needs another process
            for attempt, held in holders.items():
                if held is not None and held.shards is not None:
                    effects += self._settle(now, held, held.shards.give_up(now, attempt, cause))
        return effects

    def _may_end(self, process: int) -> bool:
        """Whether its deadline is that of silence. Of shards that measure nothing it is that of their workflow: code
        that blocks the loop may be what they are for, and doing it twice may do harm."""
        holders = [self._holder(attempt) for attempt in self.pool.attempts_in(process)]
        running = [held for held in holders if held is not None and held.stage == "running"]
        return bool(running) and all(held.assign is not None and held.assign.is_test for held in running)

    def _quiet_news(self, news: QuietNews) -> CoreQuiet:
        process, pid = news.process, self._pids.get(news.process, 0)
        return CoreQuiet(self._job_in(process), self._workflows_in(process), pid, news.state, news.quiet_ns)

    def _job_in(self, process: int) -> str:
        """All in one process are of one job. Empty: nothing in it is wanted any more."""
        owners = [self.pool.owner_of(attempt) for attempt in self.pool.attempts_in(process)]
        return next((owner[0] for owner in owners if owner is not None), "")

    def _workflows_in(self, process: int) -> tuple[str, ...]:
        holders = [self._holder(attempt) for attempt in self.pool.attempts_in(process)]
        names = [held.assign.workflow for held in holders if held is not None and held.assign is not None]
        return tuple(dict.fromkeys(names))[:WORKFLOWS_TOLD]

    # Following shards.

    def _settle(self, now: int, held: ShardReporter, effects: Sequence[CoreEffect]) -> list[ShardsEffect]:
        """What the shards want done, and what follows from where they are now."""
        out = self._killed(now, effects)
        shards = held.shards
        if shards is None or shards.stage == held.stage:
            return out
        if shards.group.refused is not None:
            return out + self._refuse(now, held, shards.group.refused)
        if shards.stage == "armed":
            held.armed(now)
            return [*out, ShardsNews(held.job, held.attempt, "armed")]
        if shards.stage == "running":
            held.started(shards)
            return [*out, ShardsNews(held.job, held.attempt, "started")]
        result = shards.result()
        held.keep(encoded_within(result, BLOB_LIMIT_BYTES))
        persist = self._writes.persist(((_result_key(held), held.content),))
        self._on_way[persist.ticket] = (held.job, held.attempt)
        return [*out, persist, ShardsNews(held.job, held.attempt, "ended", result.failure or "")]

    def _killed(self, now: int, effects: Sequence[CoreEffect]) -> list[ShardsEffect]:
        for effect in effects:
            if isinstance(effect, KillCore):
                self.pool.killed(now, effect.attempt)
        return list(effects)

    def _refuse(self, now: int, held: ShardReporter, refused: Refused) -> list[ShardsEffect]:
        held.refuse(now, refused)
        return [ShardsNews(held.job, held.attempt, "ended", refused.text)]

    def _holder(self, attempt: int) -> ShardReporter | None:
        key = self.pool.owner_of(attempt)
        return None if key is None else self._held.get(key)


def _result_key(held: ShardReporter) -> str:
    """With the whole name of the attempt: it is told with the result also when this worker was started anew."""
    return f"{RESULT_PREFIX}{held.job}/{held.attempt}" + (f"-{held.life}" if held.life else "")
