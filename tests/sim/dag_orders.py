"""Dag jobs that simulated clients submit: drawn graphs, and what is asked of them later."""

from hashlib import sha256
from random import Random
from typing import Final

import msgspec

from talka.testing.handler_cores import FILES, HANDLERS, PLAIN, Script
from talka.units import MILLISECOND
from talka.work.dags.dag import Bounds, CodeBundle, DagSettings, DagSpec, Limit, Retry, TaskSpec, Timeouts

CAPABILITY: Final = "gpu"
PARTS: Final = 9
"""Elements of a drawn list at most."""


class Wish(msgspec.Struct, frozen=True):
    """What is asked of a job at some time."""

    at_ns: int
    what: str
    """pause, resume, cancel, skip or rerun."""
    tasks: tuple[str, ...] = ()


class DagErrand(msgspec.Struct, frozen=True, kw_only=True):
    """One job: what is submitted, by whom and when, and what is asked of it afterwards."""

    key: str
    at_ns: int
    spec: DagSpec
    wishes: tuple[Wish, ...]
    code: bytes = b""
    """What travels with it: the bundle with its handlers, or with some of them."""


def limits_of(rng: Random) -> tuple[Limit, ...]:
    """Of one history: whoever names a key says the same of it."""
    keys = [Limit(f"key {number}", rng.randrange(1, 3)) for number in range(rng.randrange(1, 4))]
    if rng.randrange(3) == 0:
        keys.append(Limit("rate", 0, f"{rng.randrange(2, 20)}/s"))
    return tuple(keys)


def _script(rng: Random, handler: str) -> Script:
    ms = rng.randrange(800, 6000) if handler == "slow" else rng.randrange(5, 500)
    lot = rng.randrange(100)
    if lot < 62:
        return Script(ms, tells=rng.randrange(6) == 0)
    if lot < 84:
        return Script(ms, fails=rng.choice((20, 40, 60)))
    if lot < 88:
        return Script(ms, fails=rng.choice((50, 100)), never=True)
    return Script(ms, dies=8) if lot < 94 else Script(ms, blocks=12)


def _task(rng: Random, number: int, names: list[str], limits: tuple[Limit, ...], breadth: int) -> TaskSpec:
    is_limited = rng.randrange(5) < 2
    # Those that hold a limit are long: it is to be held when somebody dies.
    handler = (
        "slow" if is_limited and rng.randrange(3) == 0 else rng.choice(("quick", "quick", "plain", "plain", "slow"))
    )
    recent = names[-breadth:]
    before = tuple(sorted(rng.sample(recent, min(len(recent), rng.choice((0, 1, 1, 2, 3))))))
    return TaskSpec(
        id=f"t{number}",
        handler=handler,
        config=msgspec.Raw(msgspec.json.encode(_script(rng, handler))),
        depends_on=before,
        priority=rng.choice((1, 5, 5, 5, 10)),
        retry=Retry(rng.randrange(1, 7), 0.2, cap=1.0, never=("Never",)) if rng.randrange(3) else None,
        timeouts=Timeouts(attempt=rng.choice((2.0, 6.0, 20.0))) if rng.randrange(4) == 0 else None,
        capabilities=(CAPABILITY,) if rng.randrange(12) == 0 else (),
        key=f"task key {rng.randrange(6)}" if rng.randrange(15) == 0 else "",
        delay=rng.choice((0.5, 2.0)) if rng.randrange(10) == 0 else 0.0,
        limits=(rng.choice(limits),) if is_limited else (),
        bounds=Bounds(memory="64MB") if rng.randrange(25) == 0 else None,
    )


def _wishes(rng: Random, at_ns: int, names: list[str]) -> tuple[Wish, ...]:
    def later(least_ms: int, most_ms: int) -> int:
        return at_ns + rng.randrange(least_ms, most_ms) * MILLISECOND

    wishes: list[Wish] = []
    lot = rng.randrange(100)
    if lot < 20:
        paused_at = later(200, 15_000)
        wishes = [Wish(paused_at, "pause"), Wish(paused_at + rng.randrange(500, 9000) * MILLISECOND, "resume")]
    elif lot < 35:
        wishes = [Wish(later(200, 12_000), "cancel")]
    elif lot < 45:
        wishes = [Wish(later(100, 3000), "skip", (rng.choice(names),))]
    if rng.randrange(3) == 0:
        named = (rng.choice(names),) if rng.randrange(2) else ()
        wishes.append(Wish(later(10_000, 40_000), "rerun", named))
    return tuple(sorted(wishes, key=lambda wish: wish.at_ns))


def dag_errand(rng: Random, number: int, limits: tuple[Limit, ...], at_ns: int) -> DagErrand:
    size = rng.choice((rng.randrange(5, 15), rng.randrange(10, 35), rng.randrange(20, 61)))
    breadth = rng.randrange(2, 12)
    names: list[str] = []
    tasks = []
    for index in range(size):
        tasks.append(_task(rng, index, names, limits, breadth))
        names.append(tasks[-1].id)
    settings = DagSettings(
        on_failure=rng.choice(("fail_fast", "continue", "skip_dependents", "skip_dependents")),
        retry=Retry(rng.randrange(3, 8), 0.1, cap=2.0, never=("Never",)),
        timeouts=Timeouts(attempt=20.0),
        timeout=rng.choice((None, None, None, None, 30.0)),
    )
    key = f"key {number}"
    return DagErrand(
        key=key,
        at_ns=at_ns,
        spec=DagSpec(name=key, tasks=tuple(tasks), settings=settings),
        wishes=_wishes(rng, at_ns, names),
    )


def with_fans(rng: Random, errand: DagErrand) -> DagErrand:
    """The same with tasks that are fanned out over lists of others, or over what those gave, and tasks after them."""
    tasks = list(errand.spec.tasks)
    sources = rng.sample([task.id for task in tasks], min(len(tasks), rng.randrange(1, 4)))
    for place, task in enumerate(tasks):
        if task.id in sources:
            script = Script(rng.randrange(5, 500), parts=rng.randrange(1, PARTS + 1))
            tasks[place] = msgspec.structs.replace(task, config=_config(script), key="")
    names = [task.id for task in tasks]
    lists = [f"{source}.parts" for source in sources]
    for number in range(len(sources) + rng.randrange(2)):
        over = lists[number] if number < len(sources) else f"f{rng.randrange(number)}"
        handler = rng.choice(("quick", "plain", "slow"))
        fan = TaskSpec(
            id=f"f{number}",
            handler=handler,
            config=_config(_script(rng, handler)),
            depends_on=(rng.choice(names),) if rng.randrange(3) == 0 else (),
            retry=Retry(rng.randrange(1, 7), 0.2, cap=1.0, never=("Never",)),
            delay=0.5 if rng.randrange(6) == 0 else 0.0,
            for_each=over,
            max_parallel=rng.choice((0, 1, 2, 3)),
        )
        after = TaskSpec(id=f"after-f{number}", handler="quick", depends_on=(fan.id,), config=_config(Script(20)))
        tasks += [fan, after]
    wishes = list(errand.wishes)
    for _ in range(rng.randrange(3)):
        number = rng.randrange(len(sources))
        name = rng.choice((sources[number], f"f{number}", f"f{number}[0]", f"f{number}[1]"))
        at_ns = errand.at_ns + rng.randrange(2000, 60_000) * MILLISECOND
        wishes.append(Wish(at_ns, rng.choice(("rerun", "rerun", "skip")), (name,)))
    wishes.sort(key=lambda wish: wish.at_ns)
    spec = msgspec.structs.replace(errand.spec, tasks=tuple(tasks))
    return msgspec.structs.replace(errand, spec=spec, wishes=tuple(wishes))


def with_late(rng: Random, errand: DagErrand) -> DagErrand:
    """The same with tasks that take longer than their timeouts: most of them advance and ask for more time."""
    tasks = list(errand.spec.tasks)
    for place in rng.sample(range(len(tasks)), max(3, len(tasks) // 3)):
        script = Script(
            rng.randrange(2000, 9000),
            advances_ms=rng.choice((0, 200, 500, 900)),
            asks=rng.choice((0, 0, 30)),
            saves=bool(rng.randrange(2)),
        )
        tasks[place] = msgspec.structs.replace(
            tasks[place],
            config=_config(script),
            timeouts=Timeouts(attempt=rng.choice((2.0, 3.0, 5.0))),
            on_timeout=rng.choice(("kill", "kill", "notify", "pause")),
        )
    settings = msgspec.structs.replace(errand.spec.settings, timeout=None)
    spec = msgspec.structs.replace(errand.spec, tasks=tuple(tasks), settings=settings)
    return msgspec.structs.replace(errand, spec=spec)


def with_code(rng: Random, errands: tuple[DagErrand, ...]) -> tuple[DagErrand, ...]:
    """The same with jobs that bring code: some all of their handlers, some the quick ones alone, two at times the same.
    The first always does."""
    codes = [rng.randbytes(rng.randrange(200, 3000)) for _ in range(2)]
    brought = []
    for errand in errands:
        code, handlers = rng.choice(codes), rng.choice((HANDLERS, HANDLERS, ("quick",)))
        if brought and rng.randrange(3) == 0:
            brought.append(errand)
            continue
        plain = tuple(name for name in PLAIN if name in handlers)
        bundle = CodeBundle(sha256(code).hexdigest(), len(code), FILES, handlers, plain)
        spec = msgspec.structs.replace(errand.spec, bundle=bundle)
        brought.append(msgspec.structs.replace(errand, spec=spec, code=code))
    return tuple(brought)


def _config(script: Script) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(script))
