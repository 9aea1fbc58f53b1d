"""A core, spoken to by hand: the conversation from Arm to the last report, and what breaks it off."""

import asyncio
import gc
import random
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar, cast

import msgspec
import pytest

from talka.clock import monotonic_ns
from talka.engine.clients.http import HTTPEngine
from talka.engine.load import core, native
from talka.engine.load.core import OutOfTurn, OwnerGone
from talka.engine.load.core_process import serve
from talka.engine.load.recorder import Recorder
from talka.engine.loader import in_memory
from talka.engine.process_start import new_event_loop
from talka.stats.windows import Window
from talka.units import MILLISECOND, SECOND
from talka.wire.channels import BadMessage
from talka.wire.framing import FRAME_LIMIT_BYTES, Deframer, FrameTooLong, framed
from talka.wire.shards import (
    THE_PROCESS,
    VALUE_LIMIT_BYTES,
    Ack,
    Arm,
    Armed,
    FileSource,
    FromCore,
    Go,
    Hello,
    MemorySource,
    MetricTotals,
    Refused,
    Settings,
    Source,
    StepTotals,
    Stop,
    ToCore,
    Totals,
    UrlSource,
    decode_from_core,
    encode,
    enveloped,
    opened,
)
from talka.work.dsl import Provide, Workflow, action, metric, on_start, state, step, teardown
from talka.work.load import Plan
from talka.work.responses import CustomResponse, HTTPResponse
from talka.work.shapes import ConstantRate, ConstantVUs, IterationsPerVU
from tests.engine.load.virtual_time import now, virtually

Answer = CustomResponse[Any]
AnyMessage = TypeVar("AnyMessage")
WAIT_S = 60
KEY = "test"
ATTEMPT = 7


class Owner:
    """The other end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, served: "asyncio.Task[None]"):
        self._reader = reader
        self.writer = writer
        self.served = served
        self._deframer = Deframer()
        self._frames: list[bytes] = []

    def send(self, *messages: ToCore) -> None:
        """All of them in one piece, as the kernel may hand them over."""
        self.writer.write(b"".join(framed(enveloped(ATTEMPT, encode(message))) for message in messages))

    async def receive(self) -> FromCore | None:
        """The next message; None once there are no more."""
        while not self._frames:
            async with asyncio.timeout(WAIT_S):
                data = await self._reader.read(65_536)
            if not data:
                return None
            heard = map(opened, self._deframer.feed(data))
            # That its loop turns is a word of the process, and of no shard.
            self._frames = [content for number, content in heard if content and number != THE_PROCESS]
        return decode_from_core(self._frames.pop(0))

    async def expect(self, kind: type[AnyMessage]) -> AnyMessage:
        message = await self.receive()
        if isinstance(message, Hello):
            assert message.engine == ""  # it depends on what it is armed with
            message = await self.receive()
        assert isinstance(message, kind), message
        return message

    async def report(self) -> tuple[dict[str, StepTotals], Totals]:
        steps: dict[str, StepTotals] = {}
        while isinstance(message := await self.receive(), StepTotals):
            steps[message.name] = message
        assert isinstance(message, Totals), message
        assert {part.sequence for part in steps.values()} <= {message.sequence}
        return steps, message

    async def messages(self) -> AsyncIterator[FromCore]:
        """Every message up to the last report, each report acknowledged."""
        while (message := await self.receive()) is not None:
            yield message
            if isinstance(message, Totals):
                self.send(Ack(message.sequence))
                if message.final:
                    break
        await self.ended()

    async def reports_to_the_end(self) -> list[tuple[dict[str, StepTotals], Totals]]:
        """Every report, acknowledged as it comes."""
        found: list[tuple[dict[str, StepTotals], Totals]] = []
        while not found or not found[-1][1].final:
            found.append(await self.report())
            self.send(Ack(found[-1][1].sequence))
        await self.ended()
        return found

    async def ended(self) -> None:
        """Until the core has ended; raises what it raised."""
        async with asyncio.timeout(WAIT_S):
            await self.served


needs_native = pytest.mark.skipif(native.available() is not None, reason="the native engine is not built")


@pytest.fixture
async def owner(request: pytest.FixtureRequest) -> AsyncIterator[Owner]:
    """With a parameter: limits of its core."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    new_core = partial(core.Core, **getattr(request, "param", {}))
    made = Owner(reader, writer, asyncio.create_task(serve(theirs, new_core=new_core)))
    yield made
    writer.close()
    await writer.wait_closed()
    await asyncio.wait({made.served}, timeout=WAIT_S)
    assert made.served.done()
    if not made.served.cancelled():
        made.served.exception()


@pytest.fixture(autouse=True)
def clean_slate() -> Iterator[None]:
    state = random.getstate()
    yield
    in_memory.pop(KEY, None)
    random.setstate(state)


def arm_of(
    workflow: type[Workflow] | str,
    source: Source | None = None,
    *,
    plan: Plan | None = None,
    values: dict[str, dict[str, bytes]] | None = None,
    grace_ns: int = SECOND,
    seed: int | None = None,
    engine: str = "python",
    report_every_ns: int = 3600 * SECOND,
) -> Arm:
    """Unless told otherwise it reports once, in the end, however long that takes."""
    if isinstance(workflow, type):
        in_memory[KEY] = (workflow,)
        plan = plan or (workflow.load or IterationsPerVU(1, 1)).plan()
        workflow, source = workflow.__name__, MemorySource(KEY)
    assert source is not None
    return Arm(
        job="job",
        source=source,
        workflow=workflow,
        shard=(plan or IterationsPerVU(1, 1).plan()).split(1)[0],
        iterations_done=0,
        values=values or {},
        settings=Settings(grace_ns=grace_ns, engine=engine, seed=seed, report_every_ns=report_every_ns),
    )


def go_now() -> Go:
    now = monotonic_ns()
    return Go(now, now, now)


async def run_whole(owner: Owner, arm: Arm) -> list[tuple[dict[str, StepTotals], Totals]]:
    owner.send(arm)
    await owner.expect(Armed)
    owner.send(go_now())
    return await owner.reports_to_the_end()


def file_of(folder: Path, text: str) -> FileSource:
    path = folder / "shop.py"
    path.write_text("from talka import *\n" + text)
    return FileSource(str(path))


class Once(Workflow):
    @step()
    async def go(self) -> Answer:
        return CustomResponse(1)


# Arming.


async def test_nothing_runs_before_go(owner: Owner) -> None:
    ran: list[int] = []

    class Watched(Workflow):
        @step()
        async def go(self) -> Answer:
            ran.append(1)
            return CustomResponse(1)

    owner.send(arm_of(Watched))
    await owner.expect(Armed)
    assert ran == []
    owner.send(go_now())
    [(steps, totals)] = await owner.reports_to_the_end()
    assert ran == [1]
    assert totals.final and totals.sequence == 1
    assert (totals.tally.started, totals.tally.iterations, steps["go"].tally.ok) == (1, 1, 1)
    assert totals.ended_at_ns >= totals.started_at_ns > 0
    assert totals.tally.generator.wall_ns > 0 and totals.tally.generator.max_rss_bytes > 0


@pytest.mark.parametrize(
    ("text", "reason", "said"),
    [
        ("class Shop(Workflow:\n", "file", "shop.py:2: syntax error"),
        ("1 / 0\n", "file", "shop.py:2: raised ZeroDivisionError: division by zero when it was imported"),
        ("class Other(Workflow):\n @step()\n async def go(self) -> None: ...\n", "file", "Shop is not in the file any"),
        ("raise ValueError('half a character: \\ud800')\n", "file", "half a character: ?"),
        (
            "class Shop(Workflow):\n @step()\n async def go(self, url: URL = 'ftp://x') -> HTTPResponse: ...\n",
            "file",
            "Shop.go, url:",
        ),
        (
            "class Shop(Workflow):\n def __init__(self): raise LookupError('no account')\n"
            " @step()\n async def go(self) -> None: ...\n",
            "setup",
            "Shop cannot be made: LookupError: no account (",
        ),
    ],
    ids=["syntax", "import", "missing", "unsendable", "url", "init"],
)
async def test_a_workflow_that_cannot_run_is_refused_with_the_reason(
    owner: Owner, tmp_path: Path, text: str, reason: str, said: str
) -> None:
    owner.send(arm_of("Shop", file_of(tmp_path, text)))
    refused = await owner.expect(Refused)
    assert refused.reason == reason
    assert said in refused.text
    assert await owner.receive() is None
    await owner.ended()


async def test_a_file_that_is_not_there_is_refused(owner: Owner, tmp_path: Path) -> None:
    owner.send(arm_of("Shop", FileSource(str(tmp_path / "none.py"))))
    assert (await owner.expect(Refused)).reason == "file"
    await owner.ended()


async def no_address(*_: Any, **__: Any) -> Any:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


async def test_a_host_nobody_knows_is_refused_as_unreachable(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", no_address)
    owner.send(arm_of("Url", UrlSource("http://nosuch.invalid/")))
    refused = await owner.expect(Refused)
    assert refused.reason == "unreachable"
    assert "the address of 'nosuch.invalid' cannot be found" in refused.text
    await owner.ended()


async def test_values_that_do_not_fit_are_refused(owner: Owner, tmp_path: Path) -> None:
    text = """
class First(Workflow):
    @step()
    async def go(self) -> None: ...
    @state("Shop")
    def age(self) -> Provide[int]: return 1

@depends("First")
class Shop(Workflow):
    @step()
    async def go(self) -> None: ...
    @state("First")
    def known(self, age: int) -> Use[int]: return age
"""
    values = {"First": {"age": msgspec.msgpack.encode("old")}}
    owner.send(arm_of("Shop", file_of(tmp_path, text), values=values))
    assert "Shop.known: age from First is not what its annotation says" in (await owner.expect(Refused)).text


async def test_arrivals_are_fresh_users_also_if_only_the_command_line_asks_for_a_rate(owner: Owner) -> None:
    known: list[bool] = []
    enough = asyncio.Event()

    class Visitor(Workflow):
        @step()
        async def go(self) -> Answer:
            known.append(hasattr(self, "name"))
            self.name = "ada"
            if len(known) == 3:
                enough.set()
            return CustomResponse(1)

    owner.send(arm_of(Visitor, plan=ConstantRate("100/s", "30s", max_vus=1).plan()))
    await owner.expect(Armed)
    owner.send(go_now())
    await enough.wait()
    owner.send(Stop())
    await owner.reports_to_the_end()
    assert known == [False] * len(known)


async def test_the_last_report_tells_what_else_went_on_on_the_machine(owner: Owner) -> None:
    class Short(Workflow):
        @step()
        async def go(self) -> Answer:
            return CustomResponse(1)

    [*_, (_, totals)] = await run_whole(owner, arm_of(Short))
    assert totals.final and totals.tally.generator.machine is not None
    assert totals.tally.generator.machine.cpus >= 1


async def test_the_garbage_collector_is_left_alone_in_somebody_elses_process(owner: Owner) -> None:
    before = gc.get_freeze_count()
    await run_whole(owner, arm_of(Once))
    assert gc.get_freeze_count() == before


async def test_the_same_seed_draws_the_same_numbers(owner: Owner) -> None:
    class Drawing(Workflow):
        @step()
        async def go(self) -> Answer:
            return CustomResponse(random.random())

        @state()
        def drawn(self) -> Provide[float]:
            return float(self.go.response.value)

    [(_, totals)] = await run_whole(owner, arm_of(Drawing, seed=7))
    random.seed("7/Drawing/0")
    assert msgspec.msgpack.decode(totals.provided["drawn"]) == random.random()


# Reporting.


class Busy(Workflow):
    """Two hundred steps a second or so, until it is stopped."""

    load = ConstantVUs(1, "1h")
    begins: asyncio.Event

    @step()
    async def go(self) -> Answer:
        Busy.begins.set()
        return await self.client.custom.call(asyncio.sleep(0.005))


async def one_more_step_is_done() -> None:
    """With one user, whose step that begins next ends before the one after it begins."""
    async with asyncio.timeout(WAIT_S):
        for _ in range(2):
            Busy.begins.clear()
            await Busy.begins.wait()


async def busy(owner: Owner, workflow: type[Workflow] = Busy) -> None:
    """From now on, reports every 100 ms."""
    Busy.begins = asyncio.Event()
    owner.send(arm_of(workflow, report_every_ns=100 * MILLISECOND, grace_ns=WAIT_S * SECOND))
    await owner.expect(Armed)
    owner.send(go_now())


async def four_reports_and_the_last(owner: Owner) -> list[tuple[dict[str, StepTotals], Totals]]:
    """Each acknowledged when there is more to tell, so that however late they come each has its news."""
    found: list[tuple[dict[str, StepTotals], Totals]] = []
    for _ in range(4):
        found.append(await owner.report())
        await one_more_step_is_done()
        owner.send(Ack(found[-1][1].sequence))
    owner.send(Stop())
    return [*found, *await owner.reports_to_the_end()]


@pytest.fixture
def rolled(monkeypatch: pytest.MonkeyPatch) -> "asyncio.Queue[Recorder]":
    """Gets the recorder whenever it may have closed a window."""

    def roll(self: Recorder, now: int) -> None:
        original(self, now)
        seen.put_nowait(self)

    original = Recorder.roll
    monkeypatch.setattr(Recorder, "roll", roll)
    seen: asyncio.Queue[Recorder] = asyncio.Queue()
    return seen


async def test_reports_are_cumulative_and_their_windows_add_up(owner: Owner) -> None:
    await busy(owner)
    reports = await four_reports_and_the_last(owner)
    assert [totals.sequence for _, totals in reports] == list(range(1, len(reports) + 1))
    assert len(reports) >= 2
    counts = [steps["go"].tally.ok for steps, _ in reports]
    assert counts == sorted(counts) and counts[0] < counts[-1]
    started = [totals.tally.started for _, totals in reports]
    assert started == sorted(started)
    assert reports[0][1].vus == 1 and reports[-1][1].vus == 0
    windows = [window for _, totals in reports for window in totals.windows]
    assert len({window.index for window in windows}) == len(windows), "each was acknowledged, so none came twice"
    assert sum(window.started for window in windows) == started[-1]
    assert sum(window.response_time.count for window in windows) == counts[-1]


def test_reports_go_out_as_often_as_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "monotonic_ns", now)
    made: list[int] = []

    class Reporting(core.Core):
        async def _report(self, **more: Any) -> None:
            made.append(round((now() - self._started_at_ns) / MILLISECOND))

    async def main() -> None:
        reporting = Reporting(cast(Any, None))
        reporting._recorder = cast(Any, SimpleNamespace(roll=lambda now: None))
        reporting._started_at_ns = now()
        with suppress(TimeoutError):
            await asyncio.wait_for(reporting._report_regularly(SECOND), 3.5)

    virtually(main())
    assert made == [1000, 2000, 3000]


async def test_the_next_report_waits_for_the_acknowledgement_of_the_last(
    owner: Owner, rolled: "asyncio.Queue[Recorder]"
) -> None:
    await busy(owner)
    _, first = await owner.report()
    owner.send(Ack(first.sequence + 1), Ack(first.sequence - 1))  # neither is an answer to it
    await windows_closed(rolled, 4)
    owner.send(Stop())
    _, final = await owner.report()
    assert final.final and final.sequence == 2, "without an acknowledgement only the last one comes"
    owner.send(Ack(final.sequence))
    await owner.ended()

    def by_index(totals: Totals) -> dict[int, Window]:
        return {window.index: window for window in totals.windows}

    assert by_index(first).items() <= by_index(final).items(), "what was not acknowledged is sent again"
    assert sum(window.started for window in final.windows) == final.tally.started


class Unending(Workflow):
    torn_down: ClassVar[list[str]] = []

    @step()
    async def go(self) -> CustomResponse[int]:
        return await self.client.custom.call(asyncio.Event().wait())

    @teardown()
    def over(self) -> None:
        self.torn_down.append("over")


@pytest.mark.parametrize("words", [[Stop(), Stop(at_once=True)], [Stop(at_once=True)]], ids=["twice", "once"])
async def test_a_core_that_is_to_end_at_once_counts_what_is_under_way_and_waits_for_nothing(
    owner: Owner, words: list[Stop]
) -> None:
    Unending.torn_down.clear()
    owner.send(arm_of(Unending, report_every_ns=50 * MILLISECOND, grace_ns=3600 * SECOND))
    await owner.expect(Armed)
    owner.send(go_now())
    _, first = await owner.report()
    owner.send(Ack(first.sequence), *words)

    steps, final = (await owner.reports_to_the_end())[-1]

    assert final.final and steps["go"].tally.interrupted == 1
    assert Unending.torn_down == []


async def test_a_core_that_is_to_end_before_it_began_starts_nothing(owner: Owner) -> None:
    owner.send(arm_of(Unending, grace_ns=3600 * SECOND))
    await owner.expect(Armed)
    owner.send(Stop(at_once=True), go_now())

    _, final = (await owner.reports_to_the_end())[-1]

    assert final.final and final.tally.iterations == 0


async def windows_closed(rolled: "asyncio.Queue[Recorder]", number: int) -> None:
    """Until so many wait to be acknowledged."""
    async with asyncio.timeout(WAIT_S):
        while len((await rolled.get()).log.open_windows()) < number:
            pass


@pytest.mark.parametrize("owner", [{"windows_per_report": 1}], indirect=True)
async def test_windows_left_at_the_end_come_in_pieces_that_fit_a_frame(
    owner: Owner, rolled: "asyncio.Queue[Recorder]"
) -> None:
    await busy(owner)
    reports = [await owner.report()]
    await windows_closed(rolled, 4)
    owner.send(Ack(reports[0][1].sequence), Stop())
    reports += await owner.reports_to_the_end()
    windows = [window for _, totals in reports for window in totals.windows]
    assert all(len(totals.windows) <= 1 for _, totals in reports)
    assert len(windows) >= 4
    assert sum(window.started for window in windows) == reports[-1][1].tally.started


async def test_each_metric_has_a_frame_of_its_own(owner: Owner) -> None:
    class Sized(Workflow):
        @step()
        async def go(self) -> Answer:
            return await self.client.custom.call(asyncio.sleep(0))

        @metric("distribution")
        def size(self, go: Answer) -> float:
            return 2.5

    owner.send(arm_of(Sized))
    await owner.expect(Armed)
    owner.send(go_now())
    messages = [message async for message in owner.messages()]
    assert [message.tally.total for message in messages if isinstance(message, MetricTotals)] == [2.5]
    assert isinstance(messages[-1], Totals) and messages[-1].tally.metrics == {}


async def test_steps_that_did_not_change_are_not_sent_again(owner: Owner) -> None:
    class Mixed(Workflow):
        load = ConstantVUs(1, "1h")

        @on_start()
        async def rare(self) -> Answer:
            return CustomResponse(1)

        @action()
        def gate(self) -> None: ...

        @step()
        async def frequent(self) -> Answer:
            Busy.begins.set()
            return await self.client.custom.call(asyncio.sleep(0.005))

    await busy(owner, Mixed)
    reports = await four_reports_and_the_last(owner)
    if not reports[0][0]["rare"].tally.count:
        del reports[0]  # it was due before the first iteration was through
    assert len(reports) >= 2
    assert [("rare" in steps, "frequent" in steps) for steps, _ in reports] == [
        (True, True),
        *[(False, True)] * (len(reports) - 1),
    ]
    assert [steps["gate"].measured for steps, _ in reports] == [False] * len(reports)


@pytest.mark.parametrize("owner", [{"last_ack_wait_s": 0.02}], indirect=True)
async def test_a_core_ends_without_the_last_acknowledgement_too(owner: Owner) -> None:
    owner.send(arm_of(Once))
    await owner.expect(Armed)
    owner.send(go_now())
    _, totals = await owner.report()
    assert totals.final
    await owner.ended()


async def test_the_last_report_carries_what_is_provided(owner: Owner) -> None:
    class Giving(Workflow):
        @step()
        async def login(self) -> Answer:
            return CustomResponse("secret")

        @state()
        def token(self) -> Provide[str]:
            return str(self.login.response.value)

    [(_, totals)] = await run_whole(owner, arm_of(Giving))
    assert totals.provided == {"token": msgspec.msgpack.encode("secret")}
    assert totals.failure is None


async def test_a_provide_that_fails_or_is_too_large_is_the_reason_of_failure(owner: Owner) -> None:
    class Large(Workflow):
        @step()
        async def go(self) -> Answer:
            return CustomResponse(1)

        @state()
        def fine(self) -> Provide[int]:
            return 1

        @state()
        def token(self) -> Provide[bytes]:
            return bytes(VALUE_LIMIT_BYTES)

    [(_, totals)] = await run_whole(owner, arm_of(Large))
    assert totals.failure is not None and totals.failure.startswith("Large.token provides 262149 bytes")
    assert list(totals.provided) == ["fine"]


async def test_a_user_that_cannot_be_made_later_is_the_reason_of_failure(owner: Owner) -> None:
    class Picky(Workflow):
        load = ConstantVUs(3, "10s")
        made = 0

        def __init__(self) -> None:
            super().__init__()
            Picky.made += 1
            if Picky.made > 2:
                raise LookupError("no account left")

        @step()
        async def go(self) -> Answer:
            return CustomResponse(1)

    [(_, totals)] = await run_whole(owner, arm_of(Picky))
    assert totals.failure is not None
    assert totals.failure.startswith("virtual user 2 cannot be made: LookupError: no account left (")


@pytest.mark.parametrize(
    ("engine", "driver", "armed"),
    [
        ("python", "auto", "python"),
        pytest.param("native", "task", "native/task", marks=needs_native),
        pytest.param("native", "auto", "native/direct", marks=needs_native),
    ],
)
async def test_exchanges_with_a_server_are_counted_and_connections_closed_in_the_end(
    owner: Owner, engine: str, driver: Any, armed: str
) -> None:
    closed = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline() not in (b"", b"\r\n"):
            pass
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await reader.read()
        writer.close()
        closed.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    class Shop(Workflow):
        @step()
        async def go(self) -> HTTPResponse:
            return await self.client.http.get(f"http://127.0.0.1:{port}/")

    Shop.driver = driver
    owner.send(arm_of(Shop, engine=engine))
    assert (await owner.expect(Armed)).engine == armed
    owner.send(go_now())
    [(steps, totals)] = await owner.reports_to_the_end()
    assert (totals.tally.exchanges.ok, totals.tally.exchanges.connections) == (1, 1)
    assert steps["go"].tally.outcomes == {"200": 1}
    async with asyncio.timeout(WAIT_S):
        await closed.wait()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("is_refused", [False, True])
async def test_the_engine_is_closed_in_the_end_whatever_came_of_it(
    owner: Owner, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[HTTPEngine] = []

    async def close(self: HTTPEngine) -> None:
        closed.append(self)
        await original(self)

    original = HTTPEngine.close
    monkeypatch.setattr(HTTPEngine, "close", close)
    if is_refused:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", no_address)
    owner.send(arm_of("Url", UrlSource("http://127.0.0.1:1/")), go_now())
    await owner.ended()
    assert len(closed) == 1


# Ending early.


class Endless(Workflow):
    load = ConstantVUs(2, "1h")
    is_in: asyncio.Event

    @step()
    async def go(self) -> Answer:
        Endless.is_in.set()
        return await self.client.custom.call(asyncio.Event().wait())


async def started(owner: Owner, *, grace_ns: int = 0) -> None:
    Endless.is_in = asyncio.Event()
    owner.send(arm_of(Endless, grace_ns=grace_ns))
    await owner.expect(Armed)
    owner.send(go_now())
    async with asyncio.timeout(WAIT_S):
        await Endless.is_in.wait()


async def test_stop_ends_the_shard_and_what_does_not_end_is_interrupted(owner: Owner) -> None:
    await started(owner)
    owner.send(Stop())
    [*_, (steps, totals)] = await owner.reports_to_the_end()
    assert steps["go"].tally.interrupted == 2
    assert (totals.tally.started, totals.tally.iterations) == (2, 0)


async def test_a_stop_that_comes_together_with_go_is_not_lost(owner: Owner) -> None:
    owner.send(arm_of(Endless))
    await owner.expect(Armed)
    owner.send(go_now(), Stop())
    [(_, totals)] = await owner.reports_to_the_end()
    assert totals.final and totals.tally.started == 0


async def test_without_an_owner_nothing_goes_on(owner: Owner) -> None:
    await started(owner, grace_ns=3600 * SECOND)
    owner.writer.close()
    with pytest.raises(OwnerGone):
        await owner.ended()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_owner_that_leaves_before_arming_is_gone_too(owner: Owner) -> None:
    owner.writer.close()
    with pytest.raises(OwnerGone):
        await owner.ended()


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (framed(enveloped(ATTEMPT, b"\xc1 no message")), BadMessage),
        (framed(enveloped(ATTEMPT, encode(Hello(1, "3", "python")))), BadMessage),
        (framed(b"short"), BadMessage),
        ((FRAME_LIMIT_BYTES + 1).to_bytes(4, "big"), FrameTooLong),
        (framed(enveloped(ATTEMPT, encode(Go(1, 1, 1)))), OutOfTurn),
    ],
)
async def test_what_is_no_part_of_the_conversation_ends_it(owner: Owner, sent: bytes, error: type[Exception]) -> None:
    owner.writer.write(sent)
    with pytest.raises(error):
        await owner.ended()


async def test_arming_twice_ends_the_conversation(owner: Owner) -> None:
    owner.send(arm_of(Once), arm_of(Once))
    with pytest.raises(OutOfTurn, match="Arm came instead of Go"):
        await owner.ended()


async def test_acknowledgements_and_stops_that_come_too_early_do_no_harm(owner: Owner) -> None:
    owner.send(Ack(0), Stop(), Ack(5))
    owner.send(arm_of(Endless))
    await owner.expect(Armed)
    owner.send(go_now())
    [(_, totals)] = await owner.reports_to_the_end()
    assert totals.final and totals.tally.started == 0


# The process.


def test_without_uvloop_the_standard_loop_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = new_event_loop()
    assert isinstance(loop, asyncio.SelectorEventLoop)
    loop.close()


def test_where_there_is_uvloop_it_is_used() -> None:
    uvloop = pytest.importorskip("uvloop")
    loop = new_event_loop()
    assert isinstance(loop, uvloop.Loop)
    loop.close()
