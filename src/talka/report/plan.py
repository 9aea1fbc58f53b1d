"""The plan of a job that has not run: as text for people, and as a document, schema `talka.plan/1`."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from talka.control.load.allocation import claim_of, sharing
from talka.control.load.allocation import planned as planned_seats
from talka.report.text import TextPage, counted_text, padded, room_for
from talka.units import SECOND
from talka.work.calling import keeps_attributes, makes_several_calls
from talka.work.durations import format_duration
from talka.work.load import Plan
from talka.work.specs import NodeSpec, WorkflowSpec
from talka.work.thresholds import meaning_of

SCHEMA: Final = "talka.plan/1"

RESUMING: Final = "on a cluster `talka jobs resume` goes on with it, and `talka run` ends it, as nobody could there"


class PlanPoint(msgspec.Struct, frozen=True):
    """VUs or arrivals per second at an instant; straight lines in between. Two points at one instant are a jump."""

    t_s: float
    value: float


class PlannedWorkflow(msgspec.Struct, frozen=True):
    name: str
    model: str
    load: str
    vus: int
    shards: int
    """Cores it would have: side by side with others that start at once, otherwise alone. 0: it waits for one that runs
    alone."""
    length_s: float | None
    arrivals: int | None
    iterations: int | None
    course: list[PlanPoint]
    depends_on: list[str]
    layers: list[list[str]]
    engine: str = ""
    """What would run it on this machine, with its driver where it has a choice: `native/direct`."""
    engine_reason: str = ""
    shares_cores_with: list[str] = []
    """Workflows with shards on one of its cores at the same time: there are fewer cores than workflows."""
    changes: list[str] = []
    """What is measured otherwise than in results with `measures: 1`."""


class PlanDocument(msgspec.Struct, frozen=True, kw_only=True):
    schema: str = SCHEMA
    cores: int
    workflows: list[PlannedWorkflow]

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1)


class PlanShare(msgspec.Struct, frozen=True):
    """Cores that a workflow would have, and the workflows it would share them with."""

    cores: int
    """0: it waits for one that runs alone."""
    shared_with: tuple[str, ...] = ()


Engines = Mapping[str, tuple[str, str]]
"""Of each workflow: what would run it, and why."""


def plan_document(specs: Sequence[WorkflowSpec], cores: int, engines: Engines | None = None) -> PlanDocument:
    shares = shares_of(specs, cores)
    return PlanDocument(
        cores=cores,
        workflows=[planned(spec, shares[spec.name], *(engines or {}).get(spec.name, ("", ""))) for spec in specs],
    )


def planned(spec: WorkflowSpec, share: PlanShare, engine: str, engine_reason: str) -> PlannedWorkflow:
    plan = spec.plan
    return PlannedWorkflow(
        name=spec.name,
        model=plan.model,
        load=spec.load,
        vus=plan.vus,
        shards=share.cores,
        length_s=None if plan.length_ns is None else plan.length_ns / SECOND,
        arrivals=plan.arrivals_total if plan.model == "open" else None,
        iterations=plan.split(1)[0].iterations_in_all,
        course=course_of(plan),
        depends_on=sorted(spec.depends_on),
        layers=[[node.name for node in layer] for layer in spec.layers],
        engine=engine,
        engine_reason=engine_reason,
        shares_cores_with=list(share.shared_with),
        changes=changes_of(spec),
    )


def course_of(plan: Plan) -> list[PlanPoint]:
    return [PlanPoint(at_ns / SECOND, value) for line in plan.lines() for at_ns, value in line]


def plan_text(specs: Sequence[WorkflowSpec], cores: int, *, engines: Engines | None = None, width: int = 100) -> str:
    """What would run: every workflow, in the order given."""
    page = TextPage(width)
    shares = shares_of(specs, cores)
    for spec in specs:
        page.section(spec.name, place_text(spec))
        page.row("load", f"{spec.load} ({spec.plan.model} model)")
        page.row("cores", split_text(spec, shares[spec.name], cores))
        if engines and spec.name in engines:
            engine, reason = engines[spec.name]
            page.row("engine", f"{engine}: {reason}" if reason else engine)
        page.row("starts", f"after {', '.join(sorted(spec.depends_on))}" if spec.depends_on else "at once")
        if planned := planned_text(spec):
            page.row("planned", planned)
        show_course(page, spec.plan)
        show_nodes(page, spec)
        if changes := changes_of(spec):
            page.row("changed", f"against results with measures 1: {'; '.join(changes)}")
        if users := users_text(spec):
            page.row("users", users)
        for node in spec.setups:
            page.row("setup", f"{node.name}, once on every core before the clock starts")
        for node in spec.evictions:
            page.row("evicted", f"{node.name}, once on every core when its time is over")
        for node in spec.teardowns:
            page.row("teardown", f"{node.name}, once on every core in the end")
        for name, feed in spec.feeds.items():
            page.row("feed", f"{name} from {feed.path}, {feed.order}")
        if spec.think is not None:
            low, high = format_duration(spec.think.low_ns), format_duration(spec.think.high_ns)
            page.row("think", low if low == high else f"{low} to {high}")
        for rule in spec.thresholds:
            page.row("threshold", f"{rule.text}  ({meaning_of(rule)})")
        for provide in spec.provides:
            page.row("provides", f"{provide.key} to {', '.join(sorted(provide.targets)) or 'nobody'}")
        for use in spec.uses:
            page.row("uses", f"{', '.join(use.types) or 'nothing'} from {', '.join(use.sources) or 'nobody'}")
        if spec.on_timeout == "pause":
            page.sentence(f"{spec.name} is put aside when its time is over: {RESUMING}", lead="! ")
        for announcement in spec.announcements:
            page.sentence(announcement, lead="! ")
    page.section("Nothing was sent.")
    return page.text()


def place_text(spec: WorkflowSpec) -> str:
    if spec.file is None:
        return ""
    return f"  {spec.file}:{spec.line}" if spec.line else f"  {spec.file}"


def shares_of(specs: Sequence[WorkflowSpec], cores: int) -> dict[str, PlanShare]:
    """Side by side for those that start at once, alone for all others."""
    claims = [claim_of(spec, cores) for spec in specs]
    waiting = [spec.name for spec in specs if spec.depends_on]
    seats = planned_seats(claims, waiting, cores)
    shared = sharing(seats, waiting)
    return {name: PlanShare(len(own), tuple(shared[name])) for name, own in seats.items()}


def split_text(spec: WorkflowSpec, share: PlanShare, cores: int) -> str:
    text = own_text(spec, share.cores, cores)
    return f"{text}; shared with {', '.join(share.shared_with)}" if share.shared_with else text


def own_text(spec: WorkflowSpec, share: int, cores: int) -> str:
    if not share:
        return f"waits until the exclusive workflow has left it the {counted_text(cores, 'core')}"
    if not spec.is_test:
        return f"1 of {cores}, as it measures nothing"
    vus = [shard.vus for shard in spec.plan.split(share)]
    dealt = f"{'at most ' if spec.plan.model == 'open' else ''}{counted_text(vus[0], 'VU')}"
    if share > 1:
        dealt += " each" if vus[0] == vus[-1] else f" each, {vus[-1]:,} on the last"
    return f"{share} of {cores} (priority {spec.priority}), {dealt}"


def planned_text(spec: WorkflowSpec) -> str:
    """How much would run, where the plan alone says it."""
    plan = spec.plan
    if plan.model == "open":
        text = counted_text(plan.arrivals_total, "arrival")
    elif plan.shared_iterations is not None:
        text = counted_text(plan.shared_iterations, "iteration")
    elif plan.iterations_per_vu is not None:
        text = counted_text(plan.iterations_per_vu * plan.vus, "iteration")
    else:
        return ""
    at_most = "at most " if plan.model == "closed" and plan.segments else ""
    measured = sum(node.measured for layer in spec.layers for node in layer)
    return f"{at_most}{text}" + (f", with {counted_text(measured, 'measured step')} each" if measured else "")


def show_course(page: TextPage, plan: Plan) -> None:
    points = plan.preview()
    if len(points) == 1:
        return  # no course in time: the load says all
    instants = [format_duration(at_ns) for at_ns, _ in points]
    values = [f"{value:,.6g}/s" if plan.model == "open" else counted_text(round(value), "VU") for _, value in points]
    room, room_of_values = room_for(instants, 20), room_for(values, 20)
    for number, (instant, value) in enumerate(zip(instants, values, strict=True)):
        page.line(f"  {'' if number else 'course':<10} {instant:>{room}}  {value:>{room_of_values}}")


def show_nodes(page: TextPage, spec: WorkflowSpec) -> None:
    room = room_for([node.name for node in spec.nodes], page.width // 3)
    for number, layer in enumerate(spec.layers, 1):
        for position, node in enumerate(layer):
            label = "steps" if number == 1 and position == 0 else ""
            place = str(number) if position == 0 else ""
            page.sentence(node_text(node), lead=f"{label:<10} {place:<2} {padded(node.name, room)}  ")


def changes_of(spec: WorkflowSpec) -> list[str]:
    """What a workflow written before every call was measured comes to now, where that is something else."""
    measured = [node for layer in spec.layers for node in layer if node.measured]
    changes = []
    if several := [node.name for node in measured if makes_several_calls(node.function, spec.clients)]:
        changes.append(f"every call in {', '.join(several)} counts, and is in the response time")
    if len(measured) > 1 and spec.plan.length_ns is not None:
        changes.append("iterations under way when the plan ends are finished")
    has_old_users = spec.users == "auto" and spec.plan.model == "open" and not spec.starts
    if has_old_users and any(keeps_attributes(node.function) for layer in spec.layers for node in layer):
        changes.append('each arrival is a fresh user (users = "kept" keeps them)')
    return changes


def users_text(spec: WorkflowSpec) -> str:
    """What each user does first and last, where that or its life is not what most workflows have."""
    parts = [
        f"{', '.join(node.name for node in nodes)} {when}"
        for nodes, when in ((spec.starts, "first"), (spec.stops, "last"))
        if nodes
    ]
    if parts or spec.users != "auto":
        parts.append("a fresh one in every iteration" if spec.has_fresh_users else "kept for the whole run")
    if spec.connections == "fresh":
        parts.append("new connections in every iteration")
    return ", ".join(parts)


def node_text(node: NodeSpec) -> str:
    others = ", ".join(sorted(node.after))
    match node.kind:
        case "check":
            return f"check of {others}"
        case "metric":
            return f"metric ({node.metric_kind}) of {others}"
        case kind:
            text = "measured" if node.measured else f"{kind}, not measured"
            return f"{text}, after {others}" if others else text
