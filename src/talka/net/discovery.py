"""How a node finds its first peer. Where it has found one, membership does the rest.

What the sources say are hints: merged, asked all at once, and believed only after a valid answer.

SRV records: RFC 2782.
Decision: docs/decisions/0012-the-holes-of-leadership.md.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from talka.errors import Invalid, TalkaError, Untrusted
from talka.net.names import NameLookup
from talka.units import MILLISECOND, SECOND
from talka.wire.addresses import format_address, is_ip, parse_address, parse_name
from talka.work.durations import shown
from talka.work.retry import DISCOVERY, RetryPolicy, delay

SOURCES_LIMIT: Final = 256
CANDIDATES_LIMIT: Final = 1024
NAMES_LIMIT: Final = 256
LOOKUPS_AT_ONCE: Final = 32
FILE_LIMIT_BYTES: Final = 1 << 20
FILE_TIMEOUT_S: Final = 2.0
REFUSALS_LIMIT: Final = 256
"""Different sentences of refusal that are told; what comes after so many is not news."""

Answer = TypeVar("Answer")
Wanted = TypeVar("Wanted")
Found = TypeVar("Found")


class SourceRefused(Untrusted):
    """A candidate answered and will not have us, or must not be had. The text says which of the two and why."""


class Candidates:
    """Where first peers may be, by everything that was configured and remembered.

    A source is "HOST:PORT", where HOST is an IP address or a name; "srv:NAME" for a service of the DNS; or "file:PATH"
    for a file of HOST:PORT lines, read anew each time. A source that is written wrongly raises Invalid here; one that
    fails later becomes a sentence in `problems` and the others count.
    """

    def __init__(
        self,
        sources: Sequence[str],
        *,
        names: NameLookup | None = None,
        remembered: Callable[[], Iterable[str]] = tuple,
        own: Iterable[str] = (),
        file_timeout_s: float = FILE_TIMEOUT_S,
    ) -> None:
        self._file_timeout_s = file_timeout_s
        if len(sources) > SOURCES_LIMIT:
            raise Invalid(f"{len(sources)} sources of first peers are too many: give at most {SOURCES_LIMIT}")
        self._names = names or NameLookup()
        self._remembered = remembered
        self._own = dict.fromkeys(own)
        self._hosts: dict[tuple[str, int], None] = {}
        self._services: dict[str, None] = {}
        self._files: dict[Path, None] = {}
        for source in sources:
            if source.startswith("srv:"):
                self._services[parse_name(source.removeprefix("srv:"))] = None
            elif source.startswith("file:"):
                self._files[_path(source)] = None
            else:
                self._hosts[parse_address(source)] = None
        self.problems: list[str] = []
        """What went wrong at the latest `resolve`."""

    async def at_once(self) -> list[str]:
        """Those of `resolve` that need no name looked up; empty when none of them does, so that nobody asks twice.

        Silent name servers then do not keep a node from peers whose addresses it was given.
        """
        known, named = await self._gathered([])
        return self._answer(known) if named or self._services else []

    async def resolve(self, now: int) -> list[str]:
        """Addresses "IP:PORT", each once, the likeliest first: remembered, then configured, then by name."""
        problems: list[str] = []
        known, named = await self._gathered(problems)
        found = await _together(lambda name: _answered(self._names.services(now, name), problems), self._services)
        _tell_apart(chain.from_iterable(found), known, named)
        asked = list(named)[:NAMES_LIMIT]
        if len(named) > len(asked):
            problems.append(f"{len(named)} names of first peers are too many: only {NAMES_LIMIT} were looked up")
        found_ips = await _together(lambda host: _answered(self._names.addresses(now, host), problems), asked)
        for host, ips in zip(asked, found_ips, strict=True):
            known.update((format_address(ip, port), None) for port in named[host] for ip in ips)
        self.problems = list(dict.fromkeys(problems))
        return self._answer(known)

    def _answer(self, known: dict[str, None]) -> list[str]:
        return [address for address in known if address not in self._own][:CANDIDATES_LIMIT]

    async def _gathered(self, problems: list[str]) -> tuple[dict[str, None], dict[str, dict[int, None]]]:
        """Addresses that are complete, and the ports wanted of each name."""
        known: dict[str, None] = {}
        named: dict[str, dict[int, None]] = {}
        hosts = _parsed("the remembered peers", self._remembered(), problems)
        hosts.extend(self._hosts)
        for path in self._files:
            hosts.extend(_parsed(f"the file {path}", await _lines(path, problems, self._file_timeout_s), problems))
        _tell_apart(hosts, known, named)
        return known, named


async def _answered(question: Awaitable[list[Found]], problems: list[str]) -> list[Found]:
    try:
        return await question
    except TalkaError as error:
        problems.append(str(error))
        return []


class PeerSource(Protocol):
    """What `probe` wants of `Candidates`."""

    async def at_once(self) -> list[str]: ...

    async def resolve(self, now: int) -> list[str]: ...


class ProbePolicy(msgspec.Struct, frozen=True, kw_only=True):
    timeout_ns: int = 500 * MILLISECOND
    """For one candidate. A dead one costs this once a round, not more, since all are asked at once."""
    jitter_ns: int = 100 * MILLISECOND
    """Each question waits a random part of this: nodes started together do not ask together."""
    at_once: int = 10
    """Questions under way."""
    eager_rounds: int = 3
    """Rounds before the first pause: one lost packet should not cost more than a timeout."""
    backoff: RetryPolicy = DISCOVERY

    def __post_init__(self) -> None:
        if self.timeout_ns < 1 or self.jitter_ns < 0 or self.at_once < 1 or self.eager_rounds < 1:
            raise Invalid(
                "probing needs timeout_ns, at_once and eager_rounds of at least 1 and jitter_ns of at least 0, "
                f"not {self.timeout_ns}, {self.at_once}, {self.eager_rounds} and {self.jitter_ns}"
            )


DEFAULT_POLICY: Final = ProbePolicy()


async def probe(
    candidates: PeerSource | Sequence[str],
    ask: Callable[[str], Awaitable[Answer]],
    *,
    rng: Random,
    now: Callable[[], int],
    policy: ProbePolicy = DEFAULT_POLICY,
    rounds: int | None = None,
    on_refusal: Callable[[str], None] | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Answer | None:
    """The first valid answer of any candidate; the other questions are then cancelled. None after `rounds` without one.

    `ask` returns a valid answer or raises: SourceRefused, whose sentence goes to `on_refusal` once; another TalkaError
    or OSError, which means no answer. Anything else is a mistake and ends the probing. Without `rounds` it goes on
    until it is cancelled, or until the policy's attempts are used up. A `PeerSource` is asked anew for every round.
    """
    prober = _Prober(ask, rng, policy, on_refusal or (lambda sentence: None), sleep)
    if not isinstance(candidates, Sequence) and (addresses := await candidates.at_once()):
        if answers := await prober.round(addresses):
            return answers[0]
    pause_ns = 0
    number = 0
    while rounds is None or number < rounds:
        late = number - policy.eager_rounds + 1
        if late > 0:
            if policy.backoff.attempts is not None and late >= policy.backoff.attempts:
                return None
            pause_ns = delay(policy.backoff, late, pause_ns, rng)
            await sleep(pause_ns / SECOND)
        number += 1
        addresses = list(candidates) if isinstance(candidates, Sequence) else await candidates.resolve(now())
        if answers := await prober.round(addresses):
            return answers[0]
    return None


class _Prober(Generic[Answer]):
    """One search: it asks round by round and remembers which refusals were told."""

    def __init__(
        self,
        ask: Callable[[str], Awaitable[Answer]],
        rng: Random,
        policy: ProbePolicy,
        on_refusal: Callable[[str], None],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._ask = ask
        self._rng = rng
        self._policy = policy
        self._on_refusal = on_refusal
        self._sleep = sleep
        self._told: dict[str, None] = {}

    async def round(self, addresses: Sequence[str]) -> list[Answer]:
        """The first valid answer, alone in a list; an empty list without one. No question outlives the round."""
        # Drawn here, in the order of the candidates: which task runs first then changes nothing.
        waiting = iter([(address, self._rng.randint(0, self._policy.jitter_ns)) for address in addresses])
        answers: list[Answer] = []
        askers: list[asyncio.Task[None]] = []

        async def ask_in_turn() -> None:
            for address, jitter_ns in waiting:
                await self._sleep(jitter_ns / SECOND)
                found = await self._ask_one(address)
                # Also when cancelled too late: whoever was first has won.
                if answers:
                    return
                if found:
                    answers.extend(found)
                    for asker in askers:
                        if asker is not asyncio.current_task():
                            asker.cancel()
                    return

        async with asyncio.TaskGroup() as group:
            askers.extend(group.create_task(ask_in_turn()) for _ in addresses[: self._policy.at_once])
        return answers

    async def _ask_one(self, address: str) -> list[Answer]:
        try:
            async with asyncio.timeout(self._policy.timeout_ns / SECOND):
                return [await self._ask(address)]
        except SourceRefused as refusal:
            self._tell(str(refusal))
        except (TalkaError, OSError):
            # A timeout is an OSError too. No answer is nothing to report: the next round asks again.
            pass
        return []

    def _tell(self, sentence: str) -> None:
        if sentence not in self._told and len(self._told) < REFUSALS_LIMIT:
            self._told[sentence] = None
            self._on_refusal(sentence)


def _tell_apart(hosts: Iterable[tuple[str, int]], known: dict[str, None], named: dict[str, dict[int, None]]) -> None:
    for host, port in hosts:
        if is_ip(host):
            known[format_address(host, port)] = None
        else:
            named.setdefault(host, {})[port] = None


def _path(source: str) -> Path:
    text = source.removeprefix("file:")
    if not text or "\0" in text:
        raise Invalid(f"the source {shown(source)} names no file: write file:PATH")
    return Path(text)


def _parsed(where: str, texts: Iterable[str], problems: list[str]) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for text in islice(texts, CANDIDATES_LIMIT):
        try:
            found.append(parse_address(text))
        except Invalid as error:
            # The first wrong one of a source says enough; a broken file must not make a thousand sentences.
            if not problems or not problems[-1].startswith(where):
                problems.append(f"{where}: {error}")
    return found


async def _lines(path: Path, problems: list[str], timeout_s: float) -> list[str]:
    """In a thread: the file may lie on a network disk, and a node that stalls is suspected."""
    try:
        async with asyncio.timeout(timeout_s):
            text = await asyncio.to_thread(_read, path)
    except TimeoutError:
        problems.append(f"the file {path} was not read within {timeout_s:g} s")
        return []
    except OSError as error:
        problems.append(f"the file {path} was not read: {error.strerror or error}")
        return []
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def _read(path: Path) -> str:
    # Opening a pipe or a device could wait for ever.
    if path.exists() and not path.is_file():
        raise OSError("it is not a regular file")
    with path.open("rb") as file:
        content = file.read(FILE_LIMIT_BYTES + 1)
    if len(content) > FILE_LIMIT_BYTES:
        raise OSError(f"it is larger than {FILE_LIMIT_BYTES} bytes")
    return content.decode(errors="replace")


async def _together(ask: Callable[[Wanted], Awaitable[Found]], wanted: Iterable[Wanted]) -> list[Found]:
    """The answers in the order of what is wanted, with `LOOKUPS_AT_ONCE` questions under way."""
    gate = asyncio.Semaphore(LOOKUPS_AT_ONCE)

    async def gated(item: Wanted) -> Found:
        async with gate:
            return await ask(item)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(gated(item)) for item in wanted]
    return [task.result() for task in tasks]
