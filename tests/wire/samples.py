"""A message of every kind, with most of its fields in use: what golden bytes hold the conversations to."""

import msgspec

from talka.stats.tally import CheckTally, Exchanges, GeneratorTally, MetricTally, Sample, StepTally, Tally
from talka.stats.windows import Window
from talka.units import SECOND
from talka.wire import asking, greeting, jobs, leadership, leases, manager_calls, membership, shards, tasks
from talka.wire.asking import (
    AddKey,
    Ask,
    AskAnswer,
    AskAudit,
    AskKeys,
    AskLeader,
    AskLease,
    AskMembers,
    AskMetrics,
    ChangeLease,
    RepairKeys,
    RetireKey,
    UseKey,
)
from talka.wire.attempts import Dropped, ObeyedLife, StoreLife
from talka.wire.condition import NodeCondition
from talka.wire.greeting import (
    NONCE_BYTES,
    Challenge,
    GreetingHello,
    GreetingRefusal,
    GreetingWelcome,
    Proof,
    Self,
    ShareRing,
)
from talka.wire.jobs import (
    Acknowledge,
    Assign,
    Beat,
    CheckpointStored,
    CoresBack,
    Elsewhere,
    Finished,
    Goodbye,
    Halt,
    KeepBlob,
    Kept,
    Lead,
    Leaderless,
    LogLines,
    ManagerAt,
    NoTask,
    Piece,
    QuietCore,
    Reconcile,
    Renew,
    Report,
    ResultAccepted,
    Running,
    SpareCores,
    Stale,
    Start,
    StoreCheckpoint,
    Sync,
    Synced,
    TaskDeclined,
    TaskFacts,
    TaskLoad,
    ViewUpdate,
    WantBlob,
    WatchJob,
    WorkerFacts,
    WorkerSnapshot,
)
from talka.wire.leadership import (
    Collect,
    Collected,
    Heartbeat,
    HeartbeatReply,
    PreVote,
    PreVoteReply,
    ProposalAccepted,
    ProposalRefused,
    Propose,
    RegisterEntry,
    RegisterSnapshot,
    Released,
    SnapshotReply,
    Version,
    Vote,
    VoteReply,
    VoterHello,
    VoterWelcome,
)
from talka.wire.leases import AcquireLease, CommandAnswer, LeaseAnswer, LeaseCommand, ReleaseLease
from talka.wire.machines import GpuFacts, GpuView, MachineView, WorkerMachine
from talka.wire.manager_calls import CallAnswer, ListJobs, ManagerCall
from talka.wire.membership import (
    Alive,
    Dead,
    Gossip,
    MemberHasLeft,
    MemberRecord,
    MemberState,
    Nack,
    PeerAddress,
    Ping,
    PingRequest,
    ProbeAck,
    Stated,
    Suspect,
    SyncOffer,
    SyncRecords,
    SyncReply,
    WatchGroup,
    WatchReply,
)
from talka.wire.orders import BundleFacts, JobOrder, WorkflowOrder
from talka.wire.output_tail import StreamTail, Wrote
from talka.wire.security.access import Asker
from talka.wire.shards import (
    Ack,
    Arm,
    Armed,
    BundleSource,
    FileSource,
    Gap,
    Go,
    Hello,
    MemorySource,
    MetricTotals,
    Refused,
    Settings,
    ShardAnswer,
    StepTotals,
    Stop,
    TimeAsked,
    TimeOver,
    Totals,
    UnreadMetric,
    UnreadStep,
    UrlSource,
)
from talka.wire.tasks import (
    AskHeld,
    AssignTasks,
    Done,
    HandedBundle,
    HandedTask,
    HandlerProgress,
    Held,
    Load,
    Loaded,
    MoreTime,
    Ran,
    Recall,
    ResultsStored,
    RunTasks,
    Said,
    Spent,
    StopTasks,
    TaskInputs,
    TaskLine,
    TaskProgress,
    TaskResult,
    TellTime,
    TimeAnswer,
    TimeAnswers,
    TimeTold,
    TimeWanted,
    WarnTasks,
)
from talka.wire.views import (
    CertificateView,
    ClusterView,
    JobFacts,
    JobsPage,
    LeaseView,
    ManagerView,
    QuietCoreView,
    WorkerDecision,
    WorkerView,
)
from talka.work.deadlines import Allowance
from talka.work.lifecycle import JobState
from talka.work.shapes import ConstantRate, IterationsPerVU, RampingVUs, SharedIterations

# -- membership

STATE = MemberState(7, b"\x01busy")
ME = Alive("w-1", 2**61 + 5, 3, "10.0.0.1:7000", "eu-1", b"meta")
RECORD = MemberRecord("w-2", 12, 4, "10.0.0.2:7000", "eu-2", b"", 2, STATE, "w-1", "no answer")
MEMBERSHIP: dict[str, membership.MembershipMessage] = {
    "ping": Ping(300, "w-2", 2**61 + 1, STATE, 6, True),
    "ack": ProbeAck(300, STATE, 6),
    "ping-request": PingRequest(301, "wörker", 12, "10.0.0.2:7000"),
    "nack": Nack(301),
    "gossip": Gossip(),
    "sync-offer": SyncOffer(ME, STATE, bytes(range(16))),
    "sync-reply": SyncReply(ME, [0, 63], [RECORD]),
    "sync-records": SyncRecords([RECORD]),
    "watch": WatchGroup(9, "m-1", True),
    "watch-reply": WatchReply(9, "m-1", 2**61 + 7, 3, STATE, [PeerAddress("m-2", 8, "10.0.0.3:7000", 1)]),
}
UPDATES: dict[str, membership.MemberUpdate] = {
    "alive": ME,
    "suspect": Suspect("w-2", 12, 4, "w-1", "no answer"),
    "dead": Dead("w-2", 12, 4, "w-1", "no answer"),
    "left": MemberHasLeft("w-2", 12, 4),
    "stated": Stated("w-2", 12, STATE),
    "alive-signed": msgspec.structs.replace(ME, certificate=b"certificate", signature=b"signature"),
    "stated-signed": Stated("w-2", 12, MemberState(8, b"", b"signature")),
}


# -- leadership

STORAGE = 2**61 + 17
FOUNDED = 2**60 + 5
ENTRY = RegisterEntry("job/b4k7", Version(7, 3), b"\x91\x01")

LEADERSHIP: dict[str, leadership.LeadershipMessage] = {
    "hello": VoterHello(STORAGE, 12, True, FOUNDED, 2**50, 2**39 + 1),
    "welcome": VoterWelcome(STORAGE, 11, FOUNDED, STORAGE, Version(7, 1), 8, 2**39 + 2),
    "pre-vote": PreVote(8, 3, Version(7, 1), FOUNDED, 7, 1_500_000_000),
    "pre-vote-reply": PreVoteReply(7, 3, True),
    "vote": Vote(8, Version(7, 1), FOUNDED, 7, 1_500_000_000),
    "vote-reply": VoteReply(8, True, STORAGE, 12),
    "heartbeat": Heartbeat(8, 300, FOUNDED, 1_500_000_000, b"\x91\xce"),
    "heartbeat-reply": HeartbeatReply(8, 300, STORAGE, 12, Version(7, 1), 2),
    "collect": Collect(8, "job/b4k7"),
    "collected": Collected(8, "", (ENTRY,), True),
    "propose": Propose(8, 4, (ENTRY, RegisterEntry("leader", Version(8, 1), "Jörg".encode()))),
    "accepted": ProposalAccepted(8, 4, STORAGE, 13),
    "refused": ProposalRefused(9),
    "snapshot": RegisterSnapshot(8, 5, 1, 3, (ENTRY,), FOUNDED),
    "snapshot-reply": SnapshotReply(8, 5, 1, STORAGE),
    "released": Released(8, "manager-2"),
}


# -- leases

LEASES: dict[str, leases.LeaseMessage] = {
    "acquire": AcquireLease("shard/17", 5, 3, 10_000_000_000),
    "answer-granted": LeaseAnswer("shard/17", 5, "granted", 4, 10_000_000_000),
    "answer-elsewhere": LeaseAnswer("shard/17", 5, "elsewhere", wait_ns=250_000_000, leader="manager-2"),
    "release": ReleaseLease("shard/17", 4),
    "command": LeaseCommand((2, 7, 1), 12, b"\x91\x01"),
    "command-answer": CommandAnswer(12, False, (2, 8, 1)),
}


# -- greeting

A, B = bytes(range(NONCE_BYTES)), bytes(range(100, 100 + NONCE_BYTES))
NODE = Self("shop", "staging", "manager", "1.0", ["challenge"], ["keyring"], "east", "eu", "0.1.0")

GREETING: dict[str, greeting.GreetingMessage] = {
    "hello": GreetingHello(NODE, A),
    "hello-of-few-words": GreetingHello(Self("shop", "staging", "worker", "1.0"), A),
    "welcome": GreetingWelcome(NODE, A, B),
    "challenge": Challenge(B),
    "proof": Proof(B, 300, "1.1", ["keyring", "one-life"]),
    "refusal": GreetingRefusal(A, "cluster", "'a' is of cluster 'shop', not of 'bank'"),
    "share-ring": ShareRing(b"\x92\x90\x92\x00\xa0"),
}


# -- asking

ASKING: dict[str, asking.AskingMessage] = {
    "members": Ask(1, AskMembers()),
    "members-after": Ask(2, AskMembers("m-17"), 500),
    "leader": Ask(3, AskLeader()),
    "audit": Ask(4, AskAudit()),
    "keys": Ask(5, AskKeys()),
    "metrics": Ask(6, AskMetrics()),
    "add-key": Ask(7, AddKey("correct horse battery staple 2026")),
    "use-key": Ask(8, UseKey("0a1b2c3d")),
    "retire-key": Ask(9, RetireKey("0a1b2c3d")),
    "retire-key-by-force": Ask(10, RetireKey("0a1b2c3d", True)),
    "repair-keys": Ask(11, RepairKeys(("correct horse battery staple 2026", "another one, as long as the first"))),
    "lease": Ask(11, AskLease()),
    "change-lease": Ask(12, ChangeLease(2_000_000_000)),
    "answer": AskAnswer(300, "", b'{"leader":"a"}'),
    "answer-of-a-problem": AskAnswer(301, "a is no voter"),
}


# -- jobs

DIGEST = "0123456789abcdef" * 4
FENCE = (0, 7, 300)
BUNDLE = BundleFacts(
    DIGEST, 70_000, bytes(range(64)), "tests/shop.py", {"BASE": "http://shop"}, "", word=bytes(range(100))
)
WORKER = WorkerFacts(
    8,
    16 << 30,
    1,
    ("gpu", "chrome"),
    "1.0",
    2**61,
    "degraded",
    "the disk is almost full – räumen",
    "east",
    93,
    handlers=("extract", "load"),
    sealing=bytes(range(34)),
    accepts_code=True,
    is_loading=True,
    machine=WorkerMachine(
        *("host1", 4711, "Debian GNU/Linux 12, Linux 6.1", "x86_64", "Xeon", ("avx", "sse2"), 8, "CPython 3.11.2"),
        *(1 << 40, 1 << 38, (GpuFacts("T4", 16 << 30),), (("rack", "7"), ("spare", ""))),
    ),
    zone="z1",
    region="r1",
    overload=2,
)

ASKER = Asker("submit", "submitter", "ada", "t1", "10.0.0.7")
ORDER = JobOrder(
    "shop",
    BUNDLE,
    (
        WorkflowOrder(
            "Shop",
            IterationsPerVU(3, 100).plan(),
            "high",
            True,
            ("Login",),
            70 * SECOND,
            (),
            (("Login", "token"),),
            "3",
            (),
        ),
    ),
    Settings(grace_ns=30 * SECOND, seed=7),
    cores=6,
)
CALLS: dict[str, manager_calls.LeaderCall] = {
    "submit": manager_calls.SubmitJob(ORDER, "once"),
    "jobs": manager_calls.ListJobs("running", "c3", 20),
    "job": manager_calls.GetJob("b4k7"),
    "order": manager_calls.GetOrder("b4k7"),
    "result": manager_calls.GetResult("b4k7"),
    "cancel": manager_calls.CancelJob("b4k7", "enough"),
    "workers": manager_calls.ListWorkers("w1"),
    "drain": manager_calls.DrainWorker("w1"),
    "cluster": manager_calls.DescribeCluster(),
    "lease": manager_calls.GetLease(),
    "change-lease": manager_calls.SetLease(2 * SECOND, "talka cluster lease"),
    "undrain": manager_calls.UndrainWorker("w1"),
    "resume": manager_calls.ResumeJob("b4k7"),
}
SHOWN = JobFacts(
    "b4k7",
    "shop",
    JobState.QUEUED,
    position=2,
    workers=["w1"],
    expected_start="2026-09-21T14:13:20.007Z",
    stopped=2,
    datacenter="fra1",
)
WORKER_VIEW = WorkerView(
    "w1",
    "draining",
    "it is told to",
    8,
    2,
    16 << 30,
    1,
    ["gpu"],
    "1.0",
    ["b4k7"],
    4_000,
    "10.0.0.1",
    [WorkerDecision("draining", "it is told to", "2026-09-21T14:13:20.007Z")],
    [QuietCoreView("b4k7", ["Shop"], 4711, "stuck", "2026-09-21T14:13:20.007Z", 'File "shop.py", line 9 in go')],
    3,
    1,
    2,
    4,
    93,
    "2026-09-21T14:13:20.007Z",
    "2026-09-21T14:13:21.007Z",
    ["extract", "load"],
    MachineView("host1", 4711, cpu_flags=["avx"], gpus=[GpuView("T4", 16 << 30)], tags={"rack": "7"}),
    "z1",
    "d1",
    "r1",
    "stressed",
)
ANSWERS: dict[str, manager_calls.LeaderAnswer] = {
    "job": manager_calls.JobTold(SHOWN),
    "jobs": manager_calls.JobsTold(JobsPage([SHOWN], "c4")),
    "order": manager_calls.OrderTold(ORDER),
    "result": manager_calls.ResultTold(DIGEST),
    "workers": manager_calls.WorkersTold((WORKER_VIEW,)),
    "worker": manager_calls.WorkerTold(WORKER_VIEW),
    "cluster": manager_calls.ClusterTold(
        ClusterView(
            *("prod", "m1", 7, [ManagerView("m1", "active", "10.0.0.1:7701", True, 3, "z1", "d1", "r1")]),
            *(5, 40, 8, 1, 36),
            [CertificateView("w1", "worker", "2030-05-06T07:08:09Z", 12, "ends soon")],
        )
    ),
    "lease": manager_calls.LeaseTold(LeaseView(5000, 2000, 300, "talka cluster lease")),
}
JOBS: dict[str, jobs.JobMessage] = {
    "beat": Beat(
        70,
        WORKER,
        (Running("b4k7", 3, 2, "running", 700), Running("b4k8", 1, 1, "ended")),
        7,
        StoreLife(0x5706E, 0x11FE, 0x09E4, 0, 16),
        True,
        (ObeyedLife(9, StoreLife(0x5706E, 0x11FE, 0x09E5, 3, 16)),),
        (QuietCore("b4k7", ("Shop",), 4711, "stuck", 31_000, 'File "shop.py", line 9 in go'),),
        TaskLoad(3, 1, 2),
        True,
        True,
        NodeCondition(8, 3, 1, 70, 40, 2, 1),
    ),
    "beat-of-few-words": Beat(0, WorkerFacts(1)),
    "renew": Renew(
        FENCE,
        70,
        5 * SECOND,
        False,
        (ManagerAt("m1", "10.0.0.1:7700", "z1", "d1", "r1"), ManagerAt("m2", "")),
        ("b4k7",),
        ("b4k8",),
        True,
        (bytes(range(32)), bytes(32)),
        True,
    ),
    "renew-of-few-words": Renew((0, 0, 0), 0, 5 * SECOND, True),
    "elsewhere": Elsewhere("m2"),
    "elsewhere-than-sought": Elsewhere("m2", (ManagerAt("m2", "10.0.0.2:7700", "z2", "d1", "r1"),)),
    "goodbye": Goodbye(),
    "assign": Assign(
        job="b4k7",
        fence=FENCE,
        attempt=3,
        workflow="Shop",
        plan=ConstantRate("30/m", "10s", max_vus=5, policy="drop").plan(),
        first=2,
        count=2,
        of=5,
        iterations_done=(4, 5),
        values={"Login": {"token": b"\xa1t"}},
        settings=Settings(grace_ns=30 * SECOND, seed=7),
        bundle=BUNDLE,
        is_test=False,
        variables=bytes(range(70)),
    ),
    "assign-of-a-url": Assign(
        job="b4k7",
        fence=FENCE,
        attempt=1,
        workflow="Get",
        plan=IterationsPerVU(3, 100).plan(),
        first=0,
        count=1,
        of=1,
        iterations_done=(0,),
        values={},
        settings=Settings(grace_ns=0),
        bundle=BundleFacts(DIGEST, 0, b"", "", url="http://127.0.0.1:8080/"),
    ),
    "start": Start("b4k7", FENCE, 3, 1_020 * SECOND, 1_000 * SECOND, -5 * SECOND),
    "halt-stop": Halt("b4k7", FENCE, 3, "stop"),
    "halt-kill": Halt("b4k7", FENCE, 3, "kill"),
    "acknowledge": Acknowledge("b4k7", FENCE, 3, 299, 400),
    "acknowledge-time": Acknowledge(
        "b4k7",
        FENCE,
        3,
        299,
        400,
        ShardAnswer(2, Allowance(15 * SECOND, 4, 20 * SECOND)),
        TimeOver(10 * SECOND),
    ),
    "acknowledge-refusal": Acknowledge("b4k7", FENCE, 3, 0, 1000, is_refusal=True),
    "accepted": ResultAccepted("b4k7", FENCE, 3),
    "reconcile": Reconcile("b4k7", FENCE, 2),
    "snapshot": WorkerSnapshot(
        "b4k7",
        FENCE,
        2,
        (TaskFacts(3, "ended", 9 * SECOND, 10 * SECOND, DIGEST, 5_000, 0xB007), TaskFacts(4, "arming")),
    ),
    "report": Report("b4k7", 3, b"\x91\x0c", life=0xB007),
    "finished": Finished("b4k7", 3, DIGEST, 5_000, 0xB007),
    "stale": Stale("b4k7", 3, (0, 8, 1)),
    "no-task": NoTask("b4k7", 3, FENCE),
    "sync": Sync(12),
    "synced": Synced(12, 1_020 * SECOND),
    "declined": TaskDeclined("b4k7", 3, FENCE, "it has no lease"),
    "log-lines": LogLines("b4k7", 3, 200, ("a line", "ein gr\u00fcner")),
    "want-blob": WantBlob(DIGEST, 524_288),
    "piece": Piece(DIGEST, 524_288, 524_290, b"\x00\xff"),
    "piece-of-nothing": Piece(DIGEST, 0, 0, b""),
    "keep-blob": KeepBlob(DIGEST, 0, 2, b"\x00\xff"),
    "kept": Kept(DIGEST, 2),
    "kept-with-a-problem": Kept(DIGEST, 0, "it is not what its digest says"),
    "lead": Lead(b"\x81\xa3job\xa4b4k7", True),
    "account": StoreCheckpoint(
        "b4k7",
        FENCE,
        9,
        "completed",
        b"\x80",
        "it is done",
        DIGEST,
        3,
        ("w1", "w2"),
        2**61,
        (SpareCores("w1", 2**60, 4, 3),),
        (CoresBack(3, 10**9, 2 * 10**9, 40 * 10**9), CoresBack(1, 0)),
        2**40,
    ),
    "accounted": CheckpointStored("b4k7", FENCE, 9, True, 2**61),
    "leaderless": Leaderless("b4k7", FENCE),
    **{f"call-{name}": ManagerCall(2**40, call, ASKER) for name, call in CALLS.items()},
    "call-of-nobody": ManagerCall(2**40, ListJobs()),
    **{f"answer-{name}": CallAnswer(2**40, answer) for name, answer in ANSWERS.items()},
    "answer-with-a-problem": CallAnswer(2**40, None, "busy", "too much to do", 1500),
    "watch": WatchJob("b4k7", 2**47, 120, True),
    "view": ViewUpdate("b4k7", 2**47, b"\x80"),
}


# -- tasks of dag jobs, and cores that run handlers

TASK_FENCE = 7 << 32 | 300
LIFE = StoreLife(0x5706E, 0x11FE, 0x09E4, 3, 16)
TASK = HandedTask(
    TASK_FENCE,
    "b4k7",
    "resize[3]",
    "resize",
    2,
    b'{"width":80}',
    {"fetch": b'"a.png"'},
    300_000,
    "resize/a.png",
    b'{"row":7}',
    True,
    512 << 20,
    60_000,
    256,
    3,
    b'{"part":3}',
    3,
    "pause",
)
FAILED = TaskResult(
    TASK_FENCE,
    "failed",
    b"",
    "ValueError: no such width – Breite (resize.py:12)",
    "ValueError",
    3,
    "",
    1_500,
    70 << 20,
    False,
    ("ValueError", "Exception", "BaseException"),
    "b4k7",
    "resize[3]",
    (StreamTail("stdout", b"row 7\n", 9_000), StreamTail("traceback", "ValueError: Breite – 0\n".encode(), 25)),
)
WROTE = Wrote(TASK_FENCE, (StreamTail("stderr", b"slow\n", 5),))
DIED = TaskResult(TASK_FENCE + 1, "died", error="it was killed", cause="SIGSEGV", signal="SIGSEGV", alone=True)
LINE = TaskLine(TASK_FENCE, 1_760_000_000_123, "row 7 of 9 – fertig")
PROGRESS = HandlerProgress(TASK_FENCE, b'{"row":7}', 3)
MORE_TIME = MoreTime(TASK_FENCE, 2, 25_000, 3, "the index is large – später", 30_000, True)

TASKS: dict[str, tasks.TaskMessage] = {
    "hand": AssignTasks(7, (TASK,), 0xB007, 41, LIFE, HandedBundle(DIGEST, 70_000, ("etl.py",), bytes(range(100)))),
    "hand-of-few-words": AssignTasks(7, (HandedTask(TASK_FENCE, "b4k7", "a", "noop", 1, b"null"),)),
    "recall": Recall(7, (TASK_FENCE, TASK_FENCE + 1), 5_000, LIFE),
    "took": ResultsStored(7, (TASK_FENCE, TASK_FENCE + 1), LIFE),
    "which": AskHeld(7, LIFE),
    "feed": TaskInputs(7, TASK_FENCE, {"fetch": b'"a.png"'}, 0xB007, LIFE),
    "more-time": TimeAnswers(7, (TimeAnswer(TASK_FENCE, 2, 15_000, 4, "it has not advanced"),), LIFE),
    "done": Done((FAILED, DIED, TaskResult(TASK_FENCE + 2, "completed", b"[1]")), LIFE),
    "underway": TaskProgress((TASK_FENCE,), (PROGRESS,), (LINE,), LIFE, (WROTE,), (MORE_TIME,)),
    "holding": Held(7, (TASK_FENCE, TASK_FENCE + 1), 1, 2, LIFE, (Dropped(0x5706E, 0x11FE, 3, 2),)),
}
TO_HANDLERS: dict[str, tasks.ToHandlers] = {
    "load": Load(("etl.py", "more.py"), 2, "w1", BundleSource("/b", DIGEST, "etl.py", "/f", {})),
    "run": RunTasks((TASK,)),
    "stop": StopTasks((TASK_FENCE,), "timeout"),
    "warn": WarnTasks((TASK_FENCE,)),
    "tell-time": TellTime((TimeTold(TASK_FENCE, 1, 15_000, 4, "it has not advanced"),)),
}
FROM_HANDLERS: dict[str, tasks.FromHandlers] = {
    "loaded": Loaded(4711, ("resize", "fetch"), plain=("resize",)),
    "loaded-with-a-problem": Loaded(4711, problem="etl.py:3: SyntaxError: invalid syntax"),
    "ran": Ran((FAILED, DIED)),
    "said": Said((PROGRESS,), (LINE,), (WROTE,), (TimeWanted(TASK_FENCE, 1, 3, "rows", 30_000),), (TASK_FENCE,)),
    "spent": Spent(3),
}


# -- shards


def step_tally() -> StepTally:
    tally = StepTally(ok=2, interrupted=1)
    for value_us in (1_500, 250_000):
        tally.response_time.record(value_us)
        tally.service_time.record(value_us - 100)
    tally.saw("200")
    tally.fail(Sample(1_234_567_890, "status", "GET http://shop/ answered 503 – später", 503))
    return tally


def tally() -> Tally:
    distribution = MetricTally("distribution")
    distribution.add(12.5)
    generator = GeneratorTally(cpu_ns=5_000_000, wall_ns=9_000_000, max_rss_bytes=40_000_000)
    generator.start_lag.record(70)
    generator.loop_lag.record(900)
    return Tally(
        iterations=7,
        started=8,
        dropped=1,
        exchanges=Exchanges(10, 1, 2, 3, 4_000, 50_000, 5, 1),
        checks={"has_total": CheckTally(6, 1, [Sample(5, "check", "total is missing")])},
        metrics={"page_size": distribution, "orders": MetricTally("count", 3, 3.0, 1.0, 1.0)},
        generator=generator,
    )


def window() -> Window:
    made = Window(42, started=3, requests=4, failed=1, vus=2)
    made.response_time.record(1_500, 4)
    return made


TO_CORE: dict[str, shards.ToCore] = {
    "arm-file": Arm(
        job="b4k7",
        source=FileSource("tests/shop.py"),
        workflow="Shop",
        shard=ConstantRate("30/m", "10s", max_vus=5, policy="drop").plan().split(3)[1],
        iterations_done=4,
        values={"Login": {"token": b"\xa1t"}},
        settings=Settings(grace_ns=30_000_000_000, engine="python", seed=7, report_every_ns=100_000_000),
    ),
    "arm-url": Arm(
        job="b4k7",
        source=UrlSource("http://127.0.0.1:8080/"),
        workflow="Get",
        shard=RampingVUs([(10, "1m"), (0, "30s")], start=2).plan().split(1)[0],
        iterations_done=0,
        values={},
        settings=Settings(grace_ns=0),
    ),
    "arm-memory": Arm(
        job="b4k7",
        source=MemorySource("k3"),
        workflow="Cell",
        shard=SharedIterations(3, 100).plan().split(2)[0],
        iterations_done=0,
        values={},
        settings=Settings(grace_ns=1),
    ),
    "arm-iterations": Arm(
        job="b4k7",
        source=FileSource("shop.py"),
        workflow="Shop",
        shard=IterationsPerVU(3, 100, "1h").plan().split(2)[1],
        iterations_done=12,
        values={},
        settings=Settings(grace_ns=1),
    ),
    "arm-bundle": Arm(
        job="b4k7",
        source=BundleSource("blobs/01", "0" * 64, "tests/shop.py", "run/1", {"BASE": "http://shop"}),
        workflow="Shop",
        shard=SharedIterations(3, 100).plan().split(1)[0],
        iterations_done=0,
        values={},
        settings=Settings(grace_ns=1),
    ),
    "go": Go(start_at_ns=1_020_000_000_000, origin_ns=1_000_020_000_000, job_origin_ns=990_000_000_000),
    "stop": Stop(),
    "ack": Ack(300),
    "answer": ShardAnswer(2, Allowance(0, 4, 20 * SECOND, "it has not advanced")),
    "time-over": TimeOver(10 * SECOND),
}
FROM_CORE: dict[str, shards.FromCore] = {
    "hello": Hello(4711, "3.13.1", "python"),
    "armed": Armed(),
    "refused": Refused("unreachable", "http://shop/: no such host"),
    "step-totals": StepTotals(3, "buy", step_tally(), True),
    "metric-totals": MetricTotals(3, "page_size", tally().metrics["page_size"]),
    "totals": Totals(3, tally(), [window()], 2, 1_020_000_100_000),
    "totals-final": Totals(
        4, Tally(), [], 0, 1_020_000_100_000, True, {"token": b"\xa1t"}, "token raised KeyError", 1_030_000_000_000
    ),
    "totals-of-a-task": Totals(
        5,
        Tally(started=8),
        [],
        2,
        1_020_000_100_000,
        notes=["the seed was 7"],
        shares=(3, 5),
        spread_ns=40_000,
        gaps=(Gap(1, "was killed by SIGKILL", 1_000_000_000, 2_000_000_000, 3, 40),),
        parts=7,
        age_ns=150_000_000,
    ),
    "totals-that-ask": Totals(6, Tally(), [], 2, 0, asked=TimeAsked(2, 30 * SECOND, "the index is built")),
}

UNREAD: dict[str, shards.Unread] = {
    "step": UnreadStep(3, "buy", shards.STEPS.encode(step_tally()), True, "GET /"),
    "metric": UnreadMetric(3, "page_size", shards.METRICS.encode(tally().metrics["page_size"])),
}
