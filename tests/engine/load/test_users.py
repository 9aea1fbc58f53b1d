"""What users are given, and what a shard hands on."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from random import Random
from typing import Any, cast

import msgspec
import pytest

from talka.clock import monotonic_ns
from talka.engine.clients.port import ClientParts
from talka.engine.clients.table import CLIENTS
from talka.engine.load.executor import Executor
from talka.engine.load.recorder import Recorder
from talka.engine.load.steps import Iterations, VirtualUser
from talka.engine.load.time_asks import TimeAsks
from talka.engine.load.users import (
    NOTES_LIMIT,
    PAUSES_KEPT,
    VALUES_LIMIT_BYTES,
    ShardEngines,
    ShardHooks,
    handed_on,
    provided_values,
    received_context,
    received_values,
)
from talka.errors import Invalid
from talka.stats.tally import Exchanges
from talka.units import SECOND
from talka.wire.shards import CONTEXT_PREFIX, VALUE_LIMIT_BYTES
from talka.work.clients import TYPED
from talka.work.dsl import Provide, Use, Workflow, depends, state, step
from talka.work.inspection import inspect_workflows
from talka.work.responses import CustomResponse
from talka.work.shapes import ConstantVUs
from talka.work.specs import WorkflowSpec

Answer = CustomResponse[Any]


class Account(msgspec.Struct):
    name: str
    age: int


class First(Workflow):
    @step()
    async def go(self) -> Answer: ...

    @state("Last")
    def account(self) -> Provide[Account]:
        return Account("ada", 36)

    @state("Last")
    def colour(self) -> Provide[str]:
        return "red"


class Second(Workflow):
    @step()
    async def go(self) -> Answer: ...

    @state("Last")
    def colour(self) -> Provide[str]:
        return "blue"


@depends(First, Second)
class Last(Workflow):
    @step()
    async def go(self) -> Answer: ...

    @state(First, Second)
    def known(self, account: Account, colour: str) -> Use[str]:
        return f"{account.name} {colour}"


def spec_of(workflow: type[Workflow], *others: type[Workflow]) -> WorkflowSpec:
    return next(spec for spec in inspect_workflows([workflow, *others]) if spec.name == workflow.__name__)


@pytest.fixture
async def engines() -> AsyncIterator[ShardEngines]:
    made = ShardEngines(ClientParts(exchanges=Exchanges()))
    yield made
    await made.close()


# Received.


def test_values_are_decoded_as_annotated_and_the_first_source_wins() -> None:
    encode = msgspec.msgpack.encode
    values = {"Second": {"colour": encode("blue")}, "First": {"account": encode(Account("ada", 36))}}
    spec = spec_of(Last, First, Second)
    assert received_values(spec, values) == {"known": {"account": Account("ada", 36), "colour": "blue"}}
    values["First"]["colour"] = encode("red")
    assert received_values(spec, values)["known"]["colour"] == "red"


def test_values_nobody_gave_are_simply_missing() -> None:
    assert received_values(spec_of(Last, First, Second), {}) == {"known": {}}


def test_a_value_of_the_wrong_type_is_refused_by_name() -> None:
    values = {"First": {"account": msgspec.msgpack.encode({"name": "ada", "age": "old"})}}
    with pytest.raises(Invalid, match=r"Last\.known: account from First is not what its annotation says: .*age"):
        received_values(spec_of(Last, First, Second), values)


def test_received_values_reach_the_use_method_of_every_user() -> None:
    spec = spec_of(Last, First, Second)
    workflow = spec.workflow()
    workflow.received = {"known": {"account": Account("ada", 36), "colour": "red"}}
    assert workflow.known() == "ada red"  # type: ignore[attr-defined]


# Provided.


async def provided(workflow: type[Workflow], last: dict[str, Any] | None = None) -> tuple[dict[str, Any], str | None]:
    encoded, failure = await provided_values(spec_of(workflow), last or {}, {"limit": 7})
    return {key: msgspec.msgpack.decode(value) for key, value in encoded.items()}, failure


async def test_a_provide_sees_the_last_responses_and_the_context_and_none_is_not_handed_on() -> None:
    class Giving(Workflow):
        @step()
        async def login(self) -> Answer: ...

        @state()
        def token(self) -> Provide[str]:
            return f"{self.login.response.value}/{self.context['limit']}"

        @state()
        async def awaited(self) -> Provide[int]:
            await asyncio.sleep(0)
            return 3

        @state()
        def nothing(self) -> Provide[int | None]:
            return None

    assert await provided(Giving, {"login": CustomResponse("t")}) == ({"token": "t/7", "awaited": 3}, None)


async def test_without_provides_nothing_is_made_and_nothing_handed_on() -> None:
    class Silent(Workflow):
        def __init__(self) -> None:
            raise AssertionError("not asked for")

        @step()
        async def go(self) -> Answer: ...

    assert await provided(Silent) == ({}, None)


async def test_a_provide_that_raises_is_a_failure_with_its_name() -> None:
    class Broken(Workflow):
        @step()
        async def login(self) -> Answer: ...

        @state()
        def token(self) -> Provide[str]:
            return str(self.login.response.value)

    values, failure = await provided(Broken)
    assert values == {}
    assert failure is not None
    assert failure.startswith("Broken.token could not be provided: NoResponse: step login has no response yet (")


async def test_a_value_that_cannot_be_encoded_is_a_failure() -> None:
    class Odd(Workflow):
        @step()
        async def go(self) -> None: ...

        @state()
        def token(self) -> Provide[str]:
            return object()  # type: ignore[return-value]

    _, failure = await provided(Odd)
    assert failure is not None and failure.startswith("Odd.token could not be provided: TypeError")


@pytest.mark.parametrize(("size", "fits"), [(VALUE_LIMIT_BYTES - 5, True), (VALUE_LIMIT_BYTES - 4, False)])
async def test_a_value_above_the_limit_is_a_failure(size: int, fits: bool) -> None:
    class Large(Workflow):
        @step()
        async def go(self) -> None: ...

        @state()
        def token(self) -> Provide[bytes]:
            return bytes(size)

    values, failure = await provided(Large)
    if fits:
        assert (list(values), failure) == (["token"], None)
    else:
        assert values == {}
        text = f"Large.token provides {VALUE_LIMIT_BYTES + 1} bytes: at most {VALUE_LIMIT_BYTES} are handed on"
        assert failure == text


async def test_values_that_do_not_fit_one_report_together_are_a_failure() -> None:
    class Many(Workflow):
        @step()
        async def go(self) -> None: ...

        @state()
        def one(self) -> Provide[bytes]:
            return bytes(200_000)

        @state()
        def two(self) -> Provide[bytes]:
            return bytes(200_000)

        @state()
        def three(self) -> Provide[bytes]:
            return bytes(200_000)

    assert await provided(Many) == (
        {},
        f"Many provides 600015 bytes together: at most {VALUES_LIMIT_BYTES} are handed on",
    )


async def test_a_workflow_that_cannot_be_made_any_more_is_a_failure() -> None:
    class Picky(Workflow):
        def __init__(self) -> None:
            raise LookupError("no account left")

        @step()
        async def go(self) -> None: ...

        @state()
        def token(self) -> Provide[str]:
            return "t"

    _, failure = await provided(Picky)
    assert failure is not None
    assert failure.startswith("Picky cannot be made to provide values: LookupError: no account left")


# Clients.


async def test_every_user_has_a_client_of_its_own_for_each_row_of_the_table(engines: ShardEngines) -> None:
    one, other = engines.new_clients(), engines.new_clients()
    assert set(CLIENTS) >= TYPED
    for name in CLIENTS:
        assert getattr(one, name) is not getattr(other, name)


class Remembering:
    """A client that writes down what it is told."""

    def __init__(self, told: list[Any]) -> None:
        self.told = told

    def forget(self, **what: bool) -> None:
        self.told.append(what)

    def close(self) -> None:
        self.told.append("closed")


class RememberingEngine:
    def __init__(self, told: list[Any], failure: str = "") -> None:
        self.told, self.failure = told, failure

    def new_client(self) -> Remembering:
        return Remembering(self.told)

    async def prepare(self, arguments: Iterable[Any]) -> None:
        self.told.append(list(arguments))

    async def close(self) -> None:
        self.told.append("closed too")
        if self.failure:
            raise OSError(self.failure)


async def test_every_client_is_told_whose_it_is_what_was_prepared_and_when_it_is_over(engines: ShardEngines) -> None:
    told: list[Any] = []
    await engines.close()
    engines.by_name = {name: RememberingEngine(told) for name in CLIENTS}
    clients = engines.new_clients()
    await engines.prepare({"buy": {"url": 1, "body": 2}, "pay": {"url": 3}})
    clients.forget(session=True, connections=False)
    clients.close()
    await engines.close()
    each = ([1, 2, 3], {"session": True, "connections": False}, "closed", "closed too")
    assert told == [part for part in each for _ in CLIENTS]


async def test_an_engine_that_cannot_be_closed_leaves_no_other_open(engines: ShardEngines) -> None:
    told: list[Any] = []
    await engines.close()
    engines.by_name = {name: RememberingEngine(told, "it hangs") for name in CLIENTS}
    with pytest.raises(OSError, match="it hangs"):
        await engines.close()
    assert told == ["closed too"] * len(CLIENTS)
    engines.by_name = {}


async def test_custom_calls_that_are_done_at_once_do_not_keep_the_event_loop_for_themselves(
    engines: ShardEngines,
) -> None:
    calls = 0

    async def at_once() -> None:
        nonlocal calls
        calls += 1
        if calls > 2:
            enough.set()
        if calls > 200_000:
            raise SystemExit("the event loop never ran")

    async def stop() -> None:
        await enough.wait()
        executor.stop()

    enough = asyncio.Event()

    class Busy(Workflow):
        load = ConstantVUs(2, "1h")

        @step()
        async def go(self) -> Answer:
            return await self.client.custom.call(at_once())

    spec = spec_of(Busy)
    recorder = Recorder(spec)
    iterations = Iterations(spec, {}, recorder)

    def new_user(position: int) -> VirtualUser:
        user = Busy()
        user.client = cast(Any, engines.new_clients())
        return VirtualUser(position, user, {"go": cast(Any, user.go)}, lambda: None)

    executor = Executor(
        spec.plan.split(1)[0],
        iterations,
        recorder,
        new_user,
        lambda: 0,
        grace_ns=SECOND,
    )
    origin_ns = monotonic_ns()
    recorder.start(origin_ns, origin_ns)
    stopping = asyncio.create_task(stop())
    await executor.run(origin_ns, origin_ns)
    await stopping
    assert recorder.tally.iterations == calls > 2


# Context that is handed on.


FIRST = spec_of(First, Second, Last)


def test_lengths_of_pauses_that_are_computed_anew_do_not_fill_memory() -> None:
    class Lonely(Workflow):
        @step()
        async def go(self) -> Answer: ...

    (spec,) = inspect_workflows([Lonely])
    hooks = ShardHooks(Recorder(spec), cast(Any, lambda pause_ns: None), Random(1), TimeAsks())
    kept: list[int] = []
    for number in range(PAUSES_KEPT + 1):
        hooks.pause(1 + number)
        kept.append(len(hooks._pauses))
    assert kept == [*range(1, PAUSES_KEPT + 1), 1]


def test_what_is_left_in_the_context_arrives_in_that_of_dependents() -> None:
    content, notes = handed_on(FIRST, {"token": "t", "ids": (1, 2), "who": Account("ada", 36)}, 1000)

    assert notes == []
    assert received_context({"First": content}) == {"token": "t", "ids": [1, 2], "who": {"name": "ada", "age": 36}}


def test_what_is_provided_by_name_is_no_context() -> None:
    assert received_context({"First": {"colour": msgspec.msgpack.encode("red")}}) == {}


def test_what_cannot_be_handed_on_is_left_out_and_told() -> None:
    class Odd:
        pass

    context: dict[Any, Any] = {
        "session": Odd(),
        7: "lucky",
        "huge": "x" * VALUE_LIMIT_BYTES,
        "large": "x" * 900,
        "more": "x" * 200,
        "small": 1,
    }
    content, notes = handed_on(FIRST, context, 1000)

    assert list(content) == [f"{CONTEXT_PREFIX}large", f"{CONTEXT_PREFIX}small"]
    assert [note.partition(" of First is not handed on to those that depend on it: ")[::2] for note in notes] == [
        ("self.context['session']", "it holds a Odd, or something in it is no data"),
        ("self.context[7]", "keys are to be strings"),
        ("self.context['huge']", f"it has {VALUE_LIMIT_BYTES + 5} bytes, and may have {VALUE_LIMIT_BYTES}"),
        ("self.context['more']", f"with all else it has more than {VALUES_LIMIT_BYTES} bytes"),
    ]


def test_only_the_first_few_that_cannot_be_handed_on_are_told() -> None:
    _, notes = handed_on(FIRST, {f"key {number}": object() for number in range(20)}, 1000)

    assert len(notes) == NOTES_LIMIT
