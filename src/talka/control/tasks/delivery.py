"""From tasks that were given out to the messages that hand them over: what a handler needs is gathered from memory or
from the store, and cut into batches.

Decision: docs/decisions/0022-who-runs-a-task.md.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Final, TypeAlias

import msgspec

from talka.control.tasks.epoch_floor import EpochFloor
from talka.control.tasks.parts import in_parts
from talka.control.tasks.store_effects import ReadOutputs
from talka.control.tasks.task import DagTask
from talka.control.tasks.worker_link import ToWorker
from talka.units import MILLISECOND
from talka.wire.tasks import (
    BATCH_LIMIT_BYTES,
    INPUTS_LIMIT_BYTES,
    TASKS_LIMIT,
    AssignTasks,
    HandedBundle,
    HandedTask,
    ResultsStored,
    TaskInputs,
    TimeAnswer,
    TimeAnswers,
)
from talka.work.dags.dag import CodeBundle, TaskSpec, bytes_of, seconds_of
from talka.work.dags.elements import ElementSpec, joined
from talka.work.dags.records import TaskKey
from talka.work.lifecycle import TaskState

SPEC_BYTES: Final = 300
"""What a decoded spec takes besides its config."""
TASK_BYTES: Final = 500
"""What a task takes in a frame besides its config, checkpoint and inputs."""


class DeliveryLimits(msgspec.Struct, frozen=True):
    """What is kept in memory for tasks that wait, and goes in one message."""

    outputs_bytes: int = 64 * 1024 * 1024
    """Bytes of outputs that are kept for tasks that depend on them."""
    specs_bytes: int = 256 * 1024 * 1024
    """Bytes of specs of tasks that wait. Those beyond are read again when their turn comes."""
    inputs_bytes: int = INPUTS_LIMIT_BYTES
    """Bytes that may be passed on to one task."""
    outputs_at_once: int = 256
    """Outputs that are read together for one task that needs more of them: so many are in memory before it is seen
    whether they may be passed on."""
    tasks: int = TASKS_LIMIT
    """Tasks that one message assigns, or results that it tells to be stored."""


DELIVERY_LIMITS: Final = DeliveryLimits()


def unsigned(digest: str) -> bytes:
    """Of a keeper that has no key."""
    return b""


class Unfit(msgspec.Struct, frozen=True):
    """A task that cannot be given to anybody: what it depends on gave more than may be passed on, or is lost."""

    task: DagTask
    text: str


class Claimed(msgspec.Struct):
    """What became of tasks that were to be given out."""

    effects: list[ToWorker | ReadOutputs] = []
    fences: list[int] = []
    """Of those that were: the others follow when what they need was read."""
    unfit: list[Unfit] = []


class _Fetching(msgspec.Struct, frozen=True):
    task: DagTask
    worker: str
    fence: int
    inputs: dict[TaskKey, bytes]
    """What memory had of them: it may be gone before the rest was read."""
    unread: list[TaskKey] = []
    """Outputs that are read after those under way."""
    spec: TaskSpec | None = None
    """If it was read for this alone."""


_Sized: TypeAlias = tuple[HandedTask, int]
"""With the bytes it takes in a frame."""
_Ready: TypeAlias = dict[tuple[str, str], tuple[list[_Sized], CodeBundle | None]]
"""Tasks that are complete, by worker and by the digest of the code they need."""
_size: Final[Callable[[_Sized], int]] = itemgetter(1)


class Delivery:
    """`give` tasks that have a fence and a worker; `ToWorker`s hold those that are complete, a `ReadOutputs` asks for
    the rest."""

    def __init__(
        self,
        floor: EpochFloor,
        beat_of: Callable[[str], int],
        tickets: Iterator[int],
        limits: DeliveryLimits = DELIVERY_LIMITS,
        sign: Callable[[str], bytes] = unsigned,
    ) -> None:
        """`beat_of` says which beat of a worker was heard last; `tickets` number all that is read. `sign` gives the
        manager's word for the bundle of a digest."""
        self._limits = limits
        self.specs_bytes = 0
        """Held in memory by tasks that have not ended."""
        self._floor = floor
        self._beat_of = beat_of
        self._sign = sign
        self._outputs: OrderedDict[TaskKey, bytes] = OrderedDict()
        self._outputs_bytes = 0
        self._tickets = tickets
        self._fetching: dict[int, list[_Fetching]] = {}

    # What memory holds.

    def keep_spec(self, task: DagTask, *, is_needed: bool = False) -> None:
        """The task has got its spec, which stays in memory while there is room, or because it `is_needed`."""
        assert task.spec is not None
        size = _size_of(task.spec)
        task.kib = _sent_bytes(task.spec) >> 10
        if self.specs_bytes + size > self._limits.specs_bytes and not is_needed:
            task.spec = None
        else:
            self.specs_bytes += size

    def drop_spec(self, task: DagTask) -> None:
        if task.spec is not None:
            self.specs_bytes -= _size_of(task.spec)
            task.spec = None

    def replaced_spec(self, task: DagTask, former: TaskSpec) -> None:
        assert task.spec is not None
        size = _size_of(task.spec)
        task.kib = _sent_bytes(task.spec) >> 10
        self.specs_bytes += size - _size_of(former)

    def keep_output(self, key: TaskKey, output: bytes) -> None:
        self._outputs_bytes += len(output) - len(self._outputs.pop(key, b""))  # it may have been run again
        self._outputs[key] = output
        while self._outputs_bytes > self._limits.outputs_bytes:
            _, dropped = self._outputs.popitem(last=False)
            self._outputs_bytes -= len(dropped)

    def output(self, key: TaskKey) -> bytes | None:
        """If it is in memory."""
        return self._outputs.get(key)

    # Messages.

    def stored(self, fences: Mapping[str, list[int]], timed: Mapping[str, list[TimeAnswer]]) -> list[ToWorker]:
        """Tell each worker which of its results are durable, and which answers to attempts that asked for more time."""
        epoch, life, most = self._floor.epoch, self._floor.life, self._limits.tasks
        effects = [
            ToWorker(name, ResultsStored(epoch, tuple(own[first : first + most]), life))
            for name, own in fences.items()
            for first in range(0, len(own), most)
        ]
        for name, answers in timed.items():
            for first in range(0, len(answers), most):
                effects.append(ToWorker(name, TimeAnswers(epoch, tuple(answers[first : first + most]), life)))
        return effects

    def give(self, tasks: Iterable[DagTask]) -> Claimed:
        given = Claimed()
        ready: _Ready = {}
        missing: list[_Fetching] = []
        specs: dict[TaskKey, None] = {}
        outputs: dict[TaskKey, None] = {}
        for task in tasks:
            number = task.job.row.number
            found: dict[TaskKey, bytes] = {}
            wanted: list[TaskKey] = []
            for one in _sources(task) if task.after else ():
                content = self._outputs.get((number, one.index))
                if content is None:
                    wanted.append((number, one.index))
                else:
                    found[number, one.index] = content
            if task.spec is not None and not wanted:
                self._hand(task, task.spec, found, found, ready, given)
                continue
            if len(wanted) > self._limits.outputs_at_once:
                spec = () if task.spec is not None else ((number, task.index),)
                given.effects.append(self._read_some(_Fetching(task, task.worker, task.fence, found, wanted), spec))
                continue
            missing.append(_Fetching(task, task.worker, task.fence, found))
            outputs.update(dict.fromkeys(wanted))
            if task.spec is None:
                specs[number, task.index] = None
        given.effects += self._hands(ready)
        if missing:
            ticket = next(self._tickets)
            self._fetching[ticket] = missing
            given.effects.append(ReadOutputs(ticket, tuple(specs), tuple(outputs), self._floor.life.partition))
        return given

    def on_fetched(
        self, ticket: int, specs: Mapping[TaskKey, tuple[TaskSpec, bytes]], outputs: Mapping[TaskKey, bytes]
    ) -> Claimed:
        """Outputs that cannot be read any more are not among `outputs`."""
        given = Claimed()
        ready: _Ready = {}
        for one in self._fetching.pop(ticket):
            task = one.task
            if task.fence != one.fence or task.worker != one.worker:
                continue  # taken back meanwhile
            spec = task.spec or one.spec
            if spec is None:
                spec, task.checkpoint = specs[task.job.row.number, task.index]
            if one.unread:
                one.inputs.update(outputs)
                size = sum([len(content) for content in one.inputs.values()])
                if size > self._limits.inputs_bytes:
                    given.unfit.append(self._too_large(task, f"more than {size}"))
                else:
                    given.effects.append(self._read_some(msgspec.structs.replace(one, spec=spec)))
                continue
            self._hand(task, spec, outputs, one.inputs, ready, given)
        given.effects += self._hands(ready)
        return given

    def _hand(
        self,
        task: DagTask,
        spec: TaskSpec,
        outputs: Mapping[TaskKey, bytes],
        held: Mapping[TaskKey, bytes],
        ready: _Ready,
        given: Claimed,
    ) -> None:
        inputs: dict[str, bytes] = {}
        size = fed = 0
        for one in task.job.inputs_of(task) if task.after else ():
            content = self._content(task, one, outputs, held, given)
            if content is None:
                return
            inputs[one.id] = content
            size += len(content) + len(one.id)
        if size > self._limits.inputs_bytes:
            given.unfit.append(self._too_large(task, str(size)))
            return
        item, in_list = (bytes(spec.item), spec.place) if isinstance(spec, ElementSpec) else (b"", -1)
        own_size = len(memoryview(spec.config)) + len(item) + len(task.checkpoint)
        if inputs and size + own_size > BATCH_LIMIT_BYTES:
            given.effects += self._feeds(task, inputs)
            inputs, size, fed = {}, 0, len(inputs)
        policy, bounds = task.policy, spec.bounds
        assert policy is not None
        handed = HandedTask(
            task.fence,
            task.job.row.id,
            task.id,
            spec.handler,
            task.attempts,
            bytes(spec.config),
            inputs,
            policy.attempt_ns // MILLISECOND,
            spec.key,
            task.checkpoint,
            task.alone or bounds is not None,
            0 if bounds is None else bytes_of(bounds.memory, "bounds.memory"),
            0 if bounds is None else round(seconds_of(bounds.cpu, "bounds.cpu") * 1000),
            0 if bounds is None else bounds.files,
            fed,
            item,
            in_list,
            policy.on_timeout,
        )
        needs = task.needs
        bundle = task.job.bundle if needs is not None and needs.bundle else None
        place = task.worker, "" if bundle is None else bundle.digest
        found = ready.get(place)
        if found is None:
            found = ready[place] = [], bundle
        found[0].append((handed, TASK_BYTES + own_size + size))
        given.fences.append(task.fence)

    def _content(
        self,
        task: DagTask,
        one: DagTask,
        outputs: Mapping[TaskKey, bytes],
        held: Mapping[TaskKey, bytes],
        given: Claimed,
    ) -> bytes | None:
        """What a task gets of one that it depends on; None: it is lost, and the task unfit."""
        number = task.job.row.number
        elements = task.job.elements_of(one)
        found: list[bytes | None] = []
        for part in (one,) if elements is None else elements:
            content = None
            if part.state is TaskState.COMPLETED:
                content = outputs.get((number, part.index), held.get((number, part.index)))
                if content is None:
                    given.unfit.append(Unfit(task, f"the output of task {part.id} is lost: run that one again"))
                    return None
            found.append(content)
        return found[0] if elements is None else joined(found)

    def _too_large(self, task: DagTask, size: str) -> Unfit:
        text = (
            f"its inputs have {size} bytes together, and {self._limits.inputs_bytes} may be passed on: let the tasks "
            "before it return where their data is"
        )
        return Unfit(task, text)

    def _read_some(self, one: _Fetching, specs: tuple[TaskKey, ...] = ()) -> ReadOutputs:
        """Of one task that needs many, the next outputs."""
        ticket, most = next(self._tickets), self._limits.outputs_at_once
        self._fetching[ticket] = [msgspec.structs.replace(one, unread=one.unread[most:])]
        return ReadOutputs(ticket, specs, tuple(one.unread[:most]), self._floor.life.partition)

    def _feeds(self, task: DagTask, inputs: dict[str, bytes]) -> list[ToWorker]:
        floor = self._floor
        name, boot, _ = worker_of(task.worker)
        return [
            ToWorker(
                name,
                TaskInputs(floor.epoch, task.fence, dict(part), boot, floor.life),
                sum([_input_bytes(one) for one in part]),
            )
            for part in in_parts(list(inputs.items()), _input_bytes, BATCH_LIMIT_BYTES)
        ]

    def _hands(self, ready: _Ready) -> list[ToWorker]:
        effects: list[ToWorker] = []
        floor = self._floor
        for (worker, _), (tasks, bundle) in ready.items():
            name, boot, _ = worker_of(worker)
            beat = self._beat_of(name)
            code = None if bundle is None else self._handed(bundle)
            parts = [tasks] if len(tasks) == 1 else in_parts(tasks, _size, BATCH_LIMIT_BYTES, self._limits.tasks)
            for part in parts:
                handed = tuple([handed for handed, _ in part])
                message = AssignTasks(floor.epoch, handed, boot, beat, floor.life, code)
                effects.append(ToWorker(name, message, sum([size for _, size in part])))
        return effects

    def _handed(self, bundle: CodeBundle) -> HandedBundle:
        return HandedBundle(bundle.digest, bundle.size_bytes, bundle.files, self._sign(bundle.digest))


def _input_bytes(named: tuple[str, bytes]) -> int:
    return len(named[0]) + len(named[1])


def _size_of(spec: TaskSpec) -> int:
    if isinstance(spec, ElementSpec) and not spec.has_own_config:
        return SPEC_BYTES + len(memoryview(spec.item))  # the config is that of all elements
    return SPEC_BYTES + len(memoryview(spec.config))


def _sent_bytes(spec: TaskSpec) -> int:
    """What an attempt takes of a frame at least."""
    item = len(memoryview(spec.item)) if isinstance(spec, ElementSpec) else 0
    return SPEC_BYTES + len(memoryview(spec.config)) + item


def _sources(task: DagTask) -> list[DagTask]:
    """Whose outputs are passed on to it: for a task that was fanned out, its elements."""
    sources: list[DagTask] = []
    for one in task.job.inputs_of(task):
        elements = task.job.elements_of(one)
        if elements is None:
            sources.append(one)
        else:
            sources += [part for part in elements if part.state is TaskState.COMPLETED]
    return sources


def worker_key(name: str, boot: int, folder: int) -> str:
    """How claims name a life of a worker: also after a restart it is seen whether a new one comes from its folder."""
    return f"{name}#{boot:x}#{folder:x}"


def worker_of(key: str) -> tuple[str, int, int]:
    name, boot, folder = key.rsplit("#", 2)
    return name, int(boot, 16), int(folder, 16)
