"""Jobs that simulated clients submit: drawn shapes, small enough that a history has room for several."""

from hashlib import sha256
from random import Random
from typing import Final

import msgspec

from talka.testing.trust import signed
from talka.units import MILLISECOND, SECOND
from talka.wire.orders import BundleFacts, JobOrder, WorkflowOrder
from talka.wire.shards import Settings
from talka.work.dsl import AtTimeout, Priority
from talka.work.load import RATE_PER_S, Plan, Segment
from talka.work.thresholds import Threshold

GRACE_NS: Final = 2 * SECOND
URL: Final = "http://127.0.0.1:1/"


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """One job: what is submitted, by whom, when, and when it is to be cancelled."""

    key: str
    client: int
    at_ns: int
    order: JobOrder
    bundle: bytes
    """Empty for a job that is one URL."""
    cancel_at_ns: int
    """0: never."""
    shape: str


def _workflow(
    name: str, plan: Plan, *, priority: Priority = "auto", is_test: bool = True, after: tuple[str, ...] = ()
) -> WorkflowOrder:
    return WorkflowOrder(
        name=name,
        plan=plan,
        priority=priority,
        is_test=is_test,
        depends_on=after,
        timeout_ns=120 * SECOND,
        thresholds=(),
        flows=tuple((one, "token") for one in after),
        load="drawn",
        nodes=(),
    )


def _closed(rng: Random) -> Plan:
    vus, length_ns = rng.randrange(1, 20), rng.randrange(3000, 12_000) * MILLISECOND
    half = (Segment(length_ns // 2, 0, vus), Segment(length_ns // 2, vus, vus))
    return Plan.of_vus(half if rng.randrange(2) else (Segment(length_ns, vus, vus),))


def _open(rng: Random) -> Plan:
    rate = rng.randrange(2, 40) * RATE_PER_S
    length_ns = rng.randrange(3000, 12_000) * MILLISECOND
    return Plan.of_rate((Segment(length_ns, rate, rate),), max_vus=rng.randrange(4, 30), policy="drop")


def _each(rng: Random) -> Plan:
    return Plan(model="closed", vus=rng.randrange(2, 10), iterations_per_vu=rng.randrange(5, 50))


def _shared(rng: Random) -> Plan:
    vus = rng.randrange(2, 12)
    return Plan(model="closed", vus=vus, shared_iterations=vus * rng.randrange(8, 50))


def _short(rng: Random) -> Plan:
    return Plan(model="closed", vus=1, iterations_per_vu=rng.randrange(1, 8))


PLANS: Final = {"closed": _closed, "open": _open, "each": _each, "shared": _shared}
SHAPES: Final = (*PLANS, "exclusive", "chain", "fan", "setup")


def _workflows(rng: Random, shape: str) -> tuple[WorkflowOrder, ...]:
    def any_plan() -> Plan:
        return PLANS[rng.choice(list(PLANS))](rng)

    match shape:
        case "exclusive":
            return (_workflow("Alone", any_plan(), priority="exclusive"),)
        case "chain":
            return (_workflow("First", any_plan()), _workflow("Second", any_plan(), after=("First",)))
        case "fan":
            low, high = _workflow("Low", any_plan(), priority="low"), _workflow("High", any_plan(), priority="high")
            return (low, high, _workflow("Last", _short(rng), after=("Low", "High")))
        case "setup":
            setup = _workflow("Setup", _short(rng), is_test=False)
            return (setup, _workflow("Load", any_plan(), after=("Setup",)))
        case _:
            return (_workflow("Load", PLANS[shape](rng), priority=rng.choice(("auto", "low", "normal", "high"))),)


def mix(number: int, *, workflows: int, cores: int, at_ns: int) -> Errand:
    """A job of several kinds of users that all run at the same time, on fewer cores."""
    rate = 20 * RATE_PER_S
    plan = Plan.of_rate((Segment(8 * SECOND, rate, rate),), max_vus=10, policy="drop")
    order = JobOrder(
        name=f"mix {number}",
        bundle=signed(BundleFacts(sha256(URL.encode()).hexdigest(), 0, b"", "test.py", {}, URL)),
        workflows=tuple(_workflow(f"Kind{kind}", plan) for kind in range(workflows)),
        settings=Settings(grace_ns=GRACE_NS),
        cores=cores,
    )
    return Errand(key=f"mix {number}", client=0, at_ns=at_ns, order=order, bundle=b"", cancel_at_ns=0, shape="mix")


def journeys(
    number: int,
    *,
    at_ns: int,
    seed: int,
    cores: int = 3,
    cancel_at_ns: int = 0,
    thresholds: tuple[Threshold, ...] = (),
    names: tuple[str, ...] = ("Journey",),
) -> Errand:
    """A job of arrivals, one workflow after the other. Its seed says how its cores behave: see `Manner`."""
    rate = 30 * RATE_PER_S
    plan = Plan.of_rate((Segment(8 * SECOND, rate, rate),), max_vus=200, policy="drop")
    workflows = [_workflow(name, plan, after=names[max(0, place - 1) : place]) for place, name in enumerate(names)]
    order = JobOrder(
        name=f"journeys {number}",
        bundle=signed(BundleFacts(sha256(URL.encode()).hexdigest(), 0, b"", "test.py", {}, URL)),
        workflows=tuple(workflows),
        settings=Settings(grace_ns=GRACE_NS, seed=seed),
        thresholds=thresholds,
        cores=cores,
    )
    return Errand(
        key=f"journeys {number}",
        client=0,
        at_ns=at_ns,
        order=order,
        bundle=b"",
        cancel_at_ns=cancel_at_ns,
        shape="journeys",
    )


ASKS: Final = 16
"""See `Manner`."""
LATE_TIMEOUT_NS: Final = 6 * SECOND


def late(number: int, *, at_ns: int, on_timeout: AtTimeout = "kill") -> Errand:
    """A job of a workflow that never ends by itself, asks for more time and has something to save."""
    plan = Plan(model="closed", vus=4, iterations_per_vu=100_000)
    workflow = msgspec.structs.replace(
        _workflow("Late", plan), timeout_ns=LATE_TIMEOUT_NS, on_timeout=on_timeout, saves=True
    )
    order = JobOrder(
        name=f"late {number}",
        bundle=signed(BundleFacts(sha256(URL.encode()).hexdigest(), 0, b"", "test.py", {}, URL)),
        workflows=(workflow,),
        settings=Settings(grace_ns=GRACE_NS, seed=ASKS),
        cores=2,
    )
    return Errand(key=f"late {number}", client=0, at_ns=at_ns, order=order, bundle=b"", cancel_at_ns=0, shape="late")


PAUSED_TIMEOUT_NS: Final = 3 * SECOND
PAUSED_ITERATIONS: Final = 70
"""Of each of the users of `paused`: two thirds of them in the time that it has, with all that it is given."""


def paused(number: int, *, at_ns: int) -> Errand:
    """A job of a workflow that takes longer than it may, and is put aside then."""
    plan = Plan(model="closed", vus=4, iterations_per_vu=PAUSED_ITERATIONS)
    workflow = msgspec.structs.replace(_workflow("Late", plan), timeout_ns=PAUSED_TIMEOUT_NS, on_timeout="pause")
    order = JobOrder(
        name=f"paused {number}",
        bundle=signed(BundleFacts(sha256(URL.encode()).hexdigest(), 0, b"", "test.py", {}, URL)),
        workflows=(workflow, _workflow("After", _short(Random(number)), after=("Late",))),
        settings=Settings(grace_ns=GRACE_NS),
        cores=2,
    )
    return Errand(
        key=f"paused {number}", client=0, at_ns=at_ns, order=order, bundle=b"", cancel_at_ns=0, shape="paused"
    )


def queued(
    rng: Random,
    number: int,
    *,
    size: int,
    longest_s: int,
    client: int,
    at_ns: int,
    is_cancelled: bool = False,
) -> Errand:
    """A job that may have to wait: most end in time, and their workflows at different times."""

    def timed(longest_s: int) -> Plan:
        length_ns = rng.randrange(longest_s * 400, longest_s * 1000) * MILLISECOND
        return Plan.of_vus((Segment(length_ns, 24, 24),))

    def counted() -> Plan:
        # Shards of unlike numbers of users, who are not equally fast, end at unlike times.
        return Plan(model="closed", vus=size + rng.randrange(2), iterations_per_vu=rng.randrange(20, 90))

    shape = rng.choice(("one", "one", "one", "two", "chain", "counted")) if number else "one"
    match shape:
        case "two":
            workflows = (_workflow("Short", timed(6)), _workflow("Long", timed(longest_s)))
        case "chain":
            after = _workflow("After", timed(6), after=("Before",), priority="low")
            workflows = (_workflow("Before", timed(longest_s)), after)
        case "counted":
            workflows = (_workflow("Load", counted()),)
        case _:
            workflows = (_workflow("Load", timed(longest_s)),)
    order = JobOrder(
        name=f"queued {number}",
        bundle=signed(BundleFacts(sha256(URL.encode()).hexdigest(), 0, b"", "test.py", {}, URL)),
        workflows=workflows,
        settings=Settings(grace_ns=GRACE_NS),
        cores=size,
        priority=rng.choice((5, 5, 5, 5, 8)),
    )
    return Errand(
        key=f"queued {number}",
        client=client,
        at_ns=at_ns,
        order=order,
        bundle=b"",
        cancel_at_ns=at_ns + rng.randrange(500, 40_000) * MILLISECOND if is_cancelled else 0,
        shape=f"queued {shape}",
    )


def errand(rng: Random, number: int, *, client: int, at_ns: int, is_cancelled: bool) -> Errand:
    shape = rng.choice(SHAPES)
    bundle = rng.randbytes(rng.randrange(200, 3000)) if rng.randrange(2) else b""
    content = bundle or URL.encode()
    # A job of one URL needs no variables.
    env = {"TOKEN": f"swordfish of job {number}"} if bundle else {}
    facts = signed(
        BundleFacts(sha256(content).hexdigest(), len(bundle), b"", "test.py", env, "" if bundle else content.decode())
    )
    order = JobOrder(
        name=f"job {number}",
        bundle=facts,
        workflows=_workflows(rng, shape),
        settings=Settings(grace_ns=GRACE_NS, seed=rng.randrange(4)),
        cores=rng.choice((0, 0, 1, 2, 3)),
        priority=rng.choice((1, 5, 5, 10)),
    )
    cancel_at_ns = at_ns + rng.randrange(500, 12_000) * MILLISECOND if is_cancelled else 0
    return Errand(
        key=f"key {number}",
        client=client,
        at_ns=at_ns,
        order=order,
        bundle=bundle,
        cancel_at_ns=cancel_at_ns,
        shape=shape,
    )
