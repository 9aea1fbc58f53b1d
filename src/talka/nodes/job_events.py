"""What happens to jobs and workers, as people and programs read it."""

from typing import Final, TypeAlias, assert_never

from talka.control.jobs.effects import (
    Alarmed,
    AttemptAccepted,
    EvictionHeld,
    FleetFull,
    FleetNews,
    Forwarded,
    HealthDecided,
    JobAcceptedNews,
    JobEndStored,
    JobLate,
    JobOver,
    LeaseChanged,
    ManagerNews,
    ManagersHeld,
    NameTaken,
    OwnerChanged,
    TaskLost,
    WorkerJudged,
    WorkerLost,
    WorkerRegistered,
    WorkerReturned,
)
from talka.control.member.three_signals import MemberDoubted
from talka.control.worker.effects import (
    AttemptsDropped,
    CoreGivenUp,
    CoreQuiet,
    CoreSeen,
    Drained,
    HandlersBroken,
    HandlersLoaded,
    LeaseEnded,
    ManagersLearned,
    NeedBundle,
    ShardsNews,
    Undrained,
    WorkerLeaseGranted,
)
from talka.nodes.dags.dag_events import dropped_text
from talka.nodes.member_events import WORDS, Event
from talka.units import MILLISECOND, SECOND
from talka.wire.views import instant_text
from talka.work.durations import format_duration

JOB_WORDS: Final = {
    "job-accepted": "job {job} is accepted",
    "job-owner": "job {job} is led by {owner}: {reason}",
    "job-ended": "job {job} ended {state}",
    "task-lost": "attempt {attempt} of job {job} {cause}",
    "job-late": "workflow {workflow} of job {job}: {text}",
    "task-accepted": "the result of attempt {attempt} of job {job} is stored",
    "job-left": "job {job} is led by another manager",
    "worker-registered": "worker {name} is here, with {cores} cores",
    "worker-judged": "{text}",
    "worker-returned": "worker {name} is back",
    "worker-lost": "worker {name} is lost: {cause}",
    "eviction-held": "{names} fell silent together: waiting before they are given up",
    "manager-judged": "{text}",
    "managers-held": "managers {names} fell silent together: waiting before their jobs are given to others",
    "name-taken": "a second worker calls itself {name}: give it a name of its own",
    "fleet-full": "worker {name} was turned away: at most {limit} workers are allowed",
    "lease-changing": "the lease of workers changes from {lease} to {next} ({by}) when the longer of the two has "
    "passed",
    "lease-changed": "the lease of workers is {lease} from now on ({by})",
    "lease": "has a lease from {manager}",
    "lease-ended": "lost its lease: {reason}",
    "task-armed": "attempt {attempt} of job {job} is ready",
    "task-started": "attempt {attempt} of job {job} runs",
    "task-ended": "attempt {attempt} of job {job} has ended",
    "task-killed": "attempt {attempt} of job {job} was stopped: {reason}",
    "drained": "nothing is running here now",
    "undrained": "takes new work again",
    "core-quiet": "core {pid} of job {job} ({workflows}) is {state}: its event loop has not turned for {seconds} s",
    "core-turns": "core {pid} of job {job} ({workflows}) turns its event loop again, after {seconds} s",
    "core-given-up": "core {pid} of job {job} ({workflows}) is killed, for its event loop has not turned for "
    "{seconds} s: what is left of its plan goes to another",
    "core-stack": "core {pid} of job {job} is in {where}",
    "handlers": "has the handlers {handlers}",
}
WORDS.update(JOB_WORDS)
CALLS_SHOWN: Final = 3
"""Of a stack, in a line; the event has it all."""

JobNews: TypeAlias = (
    JobAcceptedNews
    | OwnerChanged
    | LeaseChanged
    | JobEndStored
    | TaskLost
    | JobLate
    | AttemptAccepted
    | JobOver
    | FleetNews
    | ManagerNews
    | Alarmed
    | Forwarded
)
"""What a manager tells of and nobody waits for."""
WorkerNews: TypeAlias = (
    ShardsNews
    | HandlersLoaded
    | HandlersBroken
    | AttemptsDropped
    | ManagersLearned
    | WorkerLeaseGranted
    | LeaseEnded
    | Drained
    | Undrained
    | CoreQuiet
    | CoreGivenUp
    | CoreSeen
    | NeedBundle
)
"""What a worker tells of."""


def job_event_of(news: JobNews, wall_offset_ns: int) -> Event | None:
    """The event that news of a manager about jobs are, if they are one. `wall_offset_ns`: from its clock to that of
    people."""
    match news:
        case JobAcceptedNews(job=job):
            return {"event": "job-accepted", "job": job}
        case OwnerChanged(job=job, owner=owner, reason=reason):
            return {"event": "job-owner", "job": job, "owner": owner, "reason": reason}
        case LeaseChanged(lease_ns=lease_ns, next_ns=0, by=by):
            return {"event": "lease-changed", "lease": format_duration(lease_ns), "by": by}
        case LeaseChanged(lease_ns=lease_ns, next_ns=next_ns, by=by):
            facts = {"lease": format_duration(lease_ns), "next": format_duration(next_ns), "by": by}
            return {"event": "lease-changing", **facts}
        case JobEndStored(job=job, state=state):
            return {"event": "job-ended", "job": job, "state": str(state)}
        case TaskLost(job=job, attempt=attempt, worker=worker, cause=cause):
            return {"event": "task-lost", "job": job, "attempt": attempt, "worker": worker, "cause": cause}
        case JobLate(job=job, workflow=workflow, text=text):
            return {"event": "job-late", "job": job, "workflow": workflow, "text": text}
        case AttemptAccepted(job=job, attempt=attempt):
            return {"event": "task-accepted", "job": job, "attempt": attempt}
        case JobOver(job=job, superseded=superseded):
            return {"event": "job-left", "job": job} if superseded else None
        case WorkerRegistered(name=name, boot=boot, cores=cores):
            return {"event": "worker-registered", "name": name, "boot": str(boot), "cores": cores}
        case WorkerJudged(name=name, what=what, reason=reason, since=since, is_over=is_over, decision=decision):
            text = f"no longer {what}" if is_over else f"{what}: {reason}" if reason else what
            instant = instant_text((since + wall_offset_ns) // MILLISECOND)
            judged: Event = {"name": name, "what": what, "reason": reason, "since": instant, "over": is_over}
            judged["decision"] = decision
            return {"event": "worker-judged", **judged, "text": f"worker {name} is {text}"}
        case WorkerReturned(name=name):
            return {"event": "worker-returned", "name": name}
        case WorkerLost(name=name, boot=boot, cause=cause):
            return {"event": "worker-lost", "name": name, "boot": str(boot), "cause": cause}
        case EvictionHeld(names=names):
            return {"event": "eviction-held", "names": ", ".join(names)}
        case HealthDecided(name=name, decision=decision, reason=reason):
            text = f"manager {name}: {decision}" + (f", for {reason}" if reason else "")
            return {"event": "manager-judged", "name": name, "decision": decision, "reason": reason, "text": text}
        case ManagersHeld(names=names):
            return {"event": "managers-held", "names": ", ".join(names)}
        case NameTaken(name=name, source=source):
            return {"event": "name-taken", "name": name, "address": source}
        case FleetFull(name=name, limit=limit):
            return {"event": "fleet-full", "name": name, "limit": limit}
        case Alarmed(text=text):
            return {"event": "alarm", "kind": "jobs", "text": text}
        case Forwarded() | MemberDoubted():
            return None
        case _:
            assert_never(news)


def worker_event_of(news: WorkerNews) -> Event | None:
    """The event that news of a worker are, if they are one."""
    match news:
        case HandlersLoaded(handlers=handlers, bundle=bundle):
            event: Event = {"event": "handlers", "handlers": ", ".join(handlers)}
            return event | {"bundle": bundle[:12]} if bundle else event
        case HandlersBroken(text=text, bundle=bundle):
            whose = f"of the bundle {bundle[:12]} " if bundle else ""
            return {"event": "alarm", "kind": "handlers", "text": f"the handlers {whose}cannot be used: {text}"}
        case AttemptsDropped(dropped=dropped):
            return {"event": "attempts-dropped", "text": f"held {dropped_text(dropped)}"}
        case WorkerLeaseGranted(leader=manager):
            return {"event": "lease", "manager": manager}
        case LeaseEnded(reason=reason):
            return {"event": "lease-ended", "reason": reason}
        case ShardsNews(job=job, attempt=attempt, what="killed", reason=reason):
            return {"event": "task-killed", "job": job, "attempt": attempt, "reason": reason}
        case ShardsNews(job=job, attempt=attempt, what=what):
            return {"event": f"task-{what}", "job": job, "attempt": attempt}
        case Drained():
            return {"event": "drained"}
        case Undrained():
            return {"event": "undrained"}
        case CoreQuiet(job=job, workflows=workflows, pid=pid, state=state, quiet_ns=quiet_ns):
            facts = {"job": job, "workflows": ", ".join(workflows), "pid": pid, "seconds": quiet_ns // SECOND}
            return (
                {"event": "core-turns", **facts}
                if state == "turns"
                else {"event": "core-quiet", **facts, "state": state}
            )
        case CoreGivenUp(job=job, workflows=workflows, pid=pid, quiet_ns=quiet_ns):
            facts = {"job": job, "workflows": ", ".join(workflows), "pid": pid, "seconds": quiet_ns // SECOND}
            return {"event": "core-given-up", **facts}
        case CoreSeen(job=job, pid=pid, stack=stack):
            return {"event": "core-stack", "job": job, "pid": pid, "where": where_text(stack), "stack": stack}
        case ManagersLearned() | NeedBundle():
            return None
        case _:
            assert_never(news)


def where_text(stack: str) -> str:
    """The innermost calls of its first thread in one line, for people who read a log."""
    thread = stack.partition("\n\n")[0]
    calls = [line.strip() for line in thread.splitlines() if line.lstrip().startswith("File ")]
    more = f" and {len(calls) - CALLS_SHOWN} more" if len(calls) > CALLS_SHOWN else ""
    return f"{', called from '.join(calls[:CALLS_SHOWN])}{more}" if calls else "code that its stack does not name"
