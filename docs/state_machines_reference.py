"""Writes the page of state machines, from the tables and states of the code, to stdout.

Tables of moves in the code are taken as they are. Where the code has states and no table, the moves stand here, and
`tests/sim/test_state_machines.py` holds them against what simulated clusters do.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

from talka.cluster.leadership.election import Phase, VoterRole
from talka.cluster.membership.members import Status, outranks
from talka.control.clients.overload import Level
from talka.control.member.breaker import BreakerState
from talka.control.worker.handlers_attempt import CoreStage
from talka.work.lifecycle import JOB_MOVES, TASK_MOVES, JobState, TaskState

TITLE = """# State machines

Written from the code by `make docs`. Each section has the states, the moves between them, the guard under which a move
is made, and the action that follows. A black dot is the start or an end.
"""


class Move(NamedTuple):
    origin: Enum
    to: Enum
    event: str
    guard: str = ""
    action: str = ""


class Cause(NamedTuple):
    event: str
    guard: str = ""
    action: str = ""


class Machine(NamedTuple):
    title: str
    file: str
    text: str
    start: Enum
    states: Sequence[Enum]
    moves: Sequence[Move]


JOB_CAUSES: Final[dict[JobState | tuple[JobState, JobState], Cause]] = {
    JobState.QUEUED: Cause("accepted", "the order is on disk on a majority of voters", "the submitter is answered"),
    JobState.DISPATCHING: Cause(
        "granted",
        "it is the first of the queue, and its least number of cores is free",
        "one entry has grant, fence and owner",
    ),
    JobState.RUNNING: Cause(
        "started", "shards are armed, or tasks are stored", "cores are told the instant to start at"
    ),
    (JobState.PAUSED, JobState.RUNNING): Cause(
        "resumed", "a load job has its cores again", "tasks that are ready are queued again; workflows go on"
    ),
    JobState.PAUSED: Cause(
        "paused",
        "it is a dag job, or nothing but what was put aside is left",
        "no task starts, tasks that run go on; a load job has no cores",
    ),
    JobState.COMPLETING: Cause("nothing left to start", "", "open attempts end; the result is made and stored"),
    JobState.CANCELLING: Cause(
        "cancelled by a user", "it has not ended", "what runs is stopped, and killed after its grace period"
    ),
    JobState.COMPLETED: Cause("ended well", "all of its work is done", "the result is stored"),
    JobState.PARTIAL: Cause("ended", "parts of the result are missing", "the result names the gaps"),
    JobState.FAILED: Cause("failed", "a rule, an error or a limit ended it", "the reason is stored"),
    JobState.CANCELLED: Cause(
        "stopped", "it was cancelled, and nothing of it runs", "what was counted until then is stored"
    ),
    JobState.TIMEOUT: Cause("time limit", "its time limit was reached", "the reason is stored"),
}
TASK_CAUSES: Final[dict[TaskState | tuple[TaskState, TaskState], Cause]] = {
    TaskState.PENDING: Cause("attempt failed", "attempts are left", "it waits as its retry policy says"),
    (TaskState.READY, TaskState.PENDING): Cause("set back", "its job was paused, or it is run from the start"),
    TaskState.READY: Cause(
        "worker lost or refused it", "attempts are left", "it is queued at once; the loss is not charged"
    ),
    (TaskState.PENDING, TaskState.READY): Cause("dependencies completed", "its time has come", "it is queued"),
    TaskState.ASSIGNED: Cause(
        "dispatched", "needs, room and limits allow it", "the claim is committed, then the worker is told"
    ),
    TaskState.RUNNING: Cause("worker says it runs", "the fence is that of its last attempt"),
    TaskState.COMPLETED: Cause(
        "result", "the fence is that of its last attempt", "stored; then dependents become ready"
    ),
    (TaskState.READY, TaskState.COMPLETED): Cause("key already completed", "another task with its key completed"),
    TaskState.FAILED: Cause(
        "failed", "no attempt is left, and failures are not dead letters", "tasks that depend on it are skipped"
    ),
    TaskState.CANCELLED: Cause(
        "cancelled", "its job was cancelled", "an attempt is recalled, and killed after its grace period"
    ),
    TaskState.TIMEOUT: Cause("time limit", "its time in the queue or in total was used up"),
    TaskState.SKIPPED: Cause("skipped", "a dependency did not complete, or a user skipped it"),
    TaskState.DEAD: Cause("given up", "no attempt is left", "it is a dead letter; a user can replay it"),
}


def tabled(moves: dict, causes: dict) -> list[Move]:
    """The moves of a table, with their causes: of this very move, or of every move to that state."""
    return [
        Move(origin, to, *(causes.get((origin, to)) or causes.get(to) or Cause(f"becomes {to.value}")))
        for origin, targets in moves.items()
        for to in type(origin)
        if to in targets
    ]


STATUS_CAUSES: Final = {
    (Status.ALIVE, Status.SUSPECT): Cause("suspected", "same or higher incarnation", "it gets time to refute"),
    (Status.ALIVE, Status.DEAD): Cause("declared dead elsewhere", "same or higher incarnation", "passed on by gossip"),
    (Status.SUSPECT, Status.DEAD): Cause("not refuted in time", "same or higher incarnation", "passed on by gossip"),
    (Status.SUSPECT, Status.ALIVE): Cause("refuted", "higher incarnation", "passed on by gossip"),
    (Status.DEAD, Status.ALIVE): Cause("refuted", "higher incarnation", "passed on by gossip"),
    (Status.DEAD, Status.SUSPECT): Cause("suspected after it refuted", "higher incarnation", "passed on by gossip"),
}


def status_moves() -> list[Move]:
    """Every change of what is known of a life that `outranks` allows."""
    found = []
    for origin in Status:
        for to in Status:
            if origin is not to and any(outranks(to, incarnation, origin, 1) for incarnation in (0, 1, 2)):
                left = Cause("left", "of its own will", "it is not probed any more")
                found.append(Move(origin, to, *STATUS_CAUSES.get((origin, to), left)))
    return found


ROLE_MOVES: Final = [
    Move(VoterRole.FOLLOWER, VoterRole.PRE_CANDIDATE, "no leader is heard for 1.02 to 1.5 leases",
         "it is active, its disk is not behind, its last answer to a leader binds no more", "asks all voters: PreVote"),
    Move(VoterRole.FOLLOWER, VoterRole.CANDIDATE, "the same, and its own word is a majority", "it is the only voter"),
    Move(VoterRole.PRE_CANDIDATE, VoterRole.CANDIDATE, "a majority would vote for it", "",
         "raises the term, stores its own vote, then asks: Vote"),
    Move(VoterRole.PRE_CANDIDATE, VoterRole.FOLLOWER, "hears a leader or a higher term"),
    Move(VoterRole.CANDIDATE, VoterRole.PRE_CANDIDATE, "too few votes in time", "its disk is not "
                                                                                "behind", "asks again: PreVote"),
    Move(VoterRole.CANDIDATE, VoterRole.LEADER, "a majority has voted for it", "votes are on disk",
         "reads what a majority holds, writes it back under its term, sends heartbeats"),
    Move(VoterRole.CANDIDATE, VoterRole.FOLLOWER, "hears a leader or a higher term"),
    Move(VoterRole.LEADER, VoterRole.FOLLOWER, "a higher term, no majority answers for a lease, handed over, or "
                                               "draining",
         "", "says that it steps down and that its lease is free"),
]  # fmt: skip
PHASE_MOVES: Final = [
    Move(Phase.SYNCING, Phase.ACTIVE, "a majority was heard", "no promise of an earlier life can still "
                                                              "hold", "it may vote and stand"),
    Move(Phase.SYNCING, Phase.DRAINING, "told to drain", "", "it gives no vote"),
    Move(Phase.ACTIVE, Phase.DRAINING, "told to drain", "", "steps down, goes on voting"),
]  # fmt: skip
BREAKER_MOVES: Final = [
    Move(BreakerState.CLOSED, BreakerState.OPEN, "a call failed", "so many failures within the "
                                                                  "window", "calls are not let through"),
    Move(BreakerState.OPEN, BreakerState.HALF_OPEN, "a call is asked for", "the pause is over", "this one call goes "
                                                                                                "through"),
    Move(BreakerState.HALF_OPEN, BreakerState.CLOSED, "the call succeeded", "", "failures are forgotten"),
    Move(BreakerState.HALF_OPEN, BreakerState.OPEN, "the call failed", "", "the pause begins anew"),
]  # fmt: skip
CORE_MOVES: Final = [
    Move(CoreStage.LOADING, CoreStage.READY, "it has imported the handlers", "", "it gets attempts"),
    Move(CoreStage.LOADING, CoreStage.ENDING, "its handlers cannot be loaded, or it is not "
                                              "needed", "", "it is asked to end"),
    Move(CoreStage.LOADING, CoreStage.KILLED, "loading takes too long, its attempt is recalled, or the lease "
                                              "ended", "", "SIGKILL"),
    Move(CoreStage.READY, CoreStage.ENDING, "idle for long, used up, or its files were "
                                            "replaced", "it has no attempt", "it is asked to end"),
    Move(CoreStage.READY, CoreStage.KILLED, "an attempt did not stop within its grace period, or the lease ended", "",
         "SIGKILL; its other attempts are told as died through no fault of theirs"),
    Move(CoreStage.ENDING, CoreStage.KILLED, "it does not end in time, or the lease ended", "", "SIGKILL"),
]  # fmt: skip
LEVEL_MOVES: Final = [
    *(Move(a, b, "a sample is above the bound", "", "takes effect at once") for a in Level for b in Level if a < b),
    *(Move(a, b, "samples are lower", "five in a row", "falls to the highest of "
                                                       "them") for a in Level for b in Level if a > b),
]  # fmt: skip

MACHINES: Final = (
    Machine("A job", "work/lifecycle.py", "Load jobs and dag "
                                          "jobs.", JobState.SUBMITTED, tuple(JobState), tabled(JOB_MOVES, JOB_CAUSES)),
    Machine("A task", "work/lifecycle.py", "A task of a dag job. A workflow of a load job moves by the same table.",
            TaskState.PENDING, tuple(TaskState), tabled(TASK_MOVES, TASK_CAUSES)),
    Machine("A voter's role", "cluster/leadership/election.py", "Raft §5.2 with the pre-vote of Ongaro's thesis "
                                                                "§9.6; decision 12.",
            VoterRole.FOLLOWER, tuple(VoterRole), ROLE_MOVES),
    Machine("A voter's phase", "cluster/leadership/election.py", "Beside its role: whether it may vote and stand.",
            Phase.SYNCING, tuple(Phase), PHASE_MOVES),
    Machine("A member, as others know it", "cluster/membership/members.py",
            "SWIM §4.2. One life of one node; incarnations order the news of it. Another life of the same node is "
            "another member.",
            Status.ALIVE, tuple(Status), status_moves()),
    Machine("A core that runs handlers", "control/worker/handlers_attempt.py", "One process of a worker.",
            CoreStage.LOADING, tuple(CoreStage), CORE_MOVES),
    Machine("A circuit breaker", "control/member/breaker.py", "Around calls to a peer that fail.",
            BreakerState.CLOSED, tuple(BreakerState), BREAKER_MOVES),
    Machine("Overload of a node", "control/clients/overload.py", "What a node leaves undone grows with its level.",
            Level.NORMAL, tuple(Level), LEVEL_MOVES),
)  # fmt: skip


def name_of(state: Enum) -> str:
    return state.value if isinstance(state.value, str) else state.name.lower()


def show(machine: Machine) -> None:
    ids = {state: name_of(state).replace("-", "_") for state in machine.states}
    print(f"## {machine.title}\n\n{machine.text} States: `{machine.file}`.\n\n```mermaid\nstateDiagram-v2")
    for state, id in ids.items():
        if id != name_of(state):
            print(f'    state "{name_of(state)}" as {id}')
    print(f"    [*] --> {ids[machine.start]}")
    for move in machine.moves:
        print(f"    {ids[move.origin]} --> {ids[move.to]}: {move.event.replace(':', ' -')}")
    for state in machine.states:
        if all(move.origin is not state for move in machine.moves):
            print(f"    {ids[state]} --> [*]")
    print("```\n\n| From | To | Event | Guard | Action |\n|---|---|---|---|---|")
    for move in machine.moves:
        print(f"| {name_of(move.origin)} | {name_of(move.to)} | {move.event} | {move.guard} | {move.action} |")
    print()


def main() -> None:
    print(TITLE)
    for machine in MACHINES:
        show(machine)


if __name__ == "__main__":
    main()
