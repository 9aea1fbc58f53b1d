"""What managers ask the cluster's leader for their clients, and its answers.

They travel in the conversation about jobs. Whoever asks asks again until it is answered: each call can bear that.
Who may ask what: docs/decisions/0028-one-table-of-roles.md and docs/decisions/0018-who-may-act-on-a-job.md.
"""

from typing import Annotated, ClassVar, Final, Literal, TypeAlias, get_args

import msgspec

from talka.errors import Invalid
from talka.wire.channels import Message
from talka.wire.leadership import Count
from talka.wire.orders import JobOrder
from talka.wire.security.access import Asker
from talka.wire.views import ClusterView, JobFacts, JobsPage, LeaseView, WorkerView

KEY_LIMIT: Final = 200
REASON_LIMIT: Final = 1000
PAGE_LIMIT: Final = 500
TEXT_LIMIT: Final = 4096


class SubmitJob(Message, frozen=True, tag=1):
    order: JobOrder
    key: str = ""
    """The submitter's idempotency key."""

    @property
    def needs(self) -> int:
        return 1 if any(one.on_timeout == "pause" for one in self.order.workflows) else self.since

    def __post_init__(self) -> None:
        if len(self.key) > KEY_LIMIT:
            raise Invalid(f"an idempotency key has at most {KEY_LIMIT} characters, this one {len(self.key)}")


class ListJobs(Message, frozen=True, tag=2):
    state: str = ""
    cursor: str = ""
    limit: int = 50


class GetJob(Message, frozen=True, tag=3):
    job: str


class GetOrder(Message, frozen=True, tag=4):
    job: str


class GetResult(Message, frozen=True, tag=5):
    job: str


class CancelJob(Message, frozen=True, tag=6):
    job: str
    reason: str = ""

    def __post_init__(self) -> None:
        if len(self.reason) > REASON_LIMIT:
            raise Invalid(f"a reason has at most {REASON_LIMIT} characters, this one {len(self.reason)}")


class ListWorkers(Message, frozen=True, tag=7):
    worker: str = ""
    """This one alone, with its machine and its handlers. A leader of an earlier version tells of all, without them."""


class DrainWorker(Message, frozen=True, tag=8):
    worker: str


class UndrainWorker(Message, frozen=True, tag=12):
    """Let it take new tasks again."""

    worker: str


class DescribeCluster(Message, frozen=True, tag=9):
    pass


class GetLease(Message, frozen=True, tag=10):
    """What is the lease of workers?"""


class SetLease(Message, frozen=True, tag=11):
    """Make the lease of workers this one."""

    lease_ns: Count
    by: Annotated[str, msgspec.Meta(max_length=KEY_LIMIT)] = ""


class ResumeJob(Message, frozen=True, tag=13):
    """Go on with what was put aside."""

    since: ClassVar[int] = 1

    job: str


LeaderCall: TypeAlias = (
    SubmitJob
    | ListJobs
    | GetJob
    | GetOrder
    | GetResult
    | CancelJob
    | ListWorkers
    | DrainWorker
    | DescribeCluster
    | GetLease
    | SetLease
    | UndrainWorker
    | ResumeJob
)
CALLS: Final[tuple[type[LeaderCall], ...]] = get_args(LeaderCall)
CALLED_BY: Final[dict[type, tuple[str, ...]]] = {
    SubmitJob: ("submit",),
    ListJobs: ("jobs",),
    GetJob: ("job", "view", "watch"),
    GetOrder: ("order",),
    GetResult: ("result",),
    CancelJob: ("cancel",),
    ResumeJob: ("resume",),
    ListWorkers: ("workers",),
    DrainWorker: ("drain",),
    UndrainWorker: ("undrain",),
    DescribeCluster: ("cluster",),
    GetLease: ("lease",),
    SetLease: ("lease",),
}
"""The operations of the API, or of a node, by which each may be asked for. The first is its name for people."""
CHANGES: Final = (SubmitJob, CancelJob, ResumeJob, DrainWorker, UndrainWorker)
"""Those that change something for a user: it is put down who did."""


class ManagerCall(Message, frozen=True, tag=50):
    number: Count
    call: LeaderCall
    asker: Asker | None = None
    """Whoever asked the manager that passes this on. Without one it is refused."""

    @property
    def needs(self) -> int:
        return self.call.needs


class JobTold(Message, frozen=True, tag=1):
    job: JobFacts


class JobsTold(Message, frozen=True, tag=2):
    page: JobsPage


class OrderTold(Message, frozen=True, tag=3):
    order: JobOrder


class ResultTold(Message, frozen=True, tag=4):
    digest: Annotated[str, msgspec.Meta(max_length=64)]
    """Of the result document; empty: the job ended before anything ran."""


class WorkersTold(Message, frozen=True, tag=5):
    workers: tuple[WorkerView, ...]


class WorkerTold(Message, frozen=True, tag=6):
    worker: WorkerView


class ClusterTold(Message, frozen=True, tag=7):
    cluster: ClusterView


class LeaseTold(Message, frozen=True, tag=8):
    lease: LeaseView


LeaderAnswer: TypeAlias = (
    JobTold | JobsTold | OrderTold | ResultTold | WorkersTold | WorkerTold | ClusterTold | LeaseTold
)
CallProblem: TypeAlias = Literal["elsewhere", "invalid", "missing", "conflict", "busy", "unavailable", "forbidden"]


class CallAnswer(Message, frozen=True, tag=51):
    number: Count
    answer: LeaderAnswer | None
    """None: there is a problem."""
    problem: CallProblem | Literal[""] = ""
    text: Annotated[str, msgspec.Meta(max_length=TEXT_LIMIT)] = ""
    """The problem as a sentence; of `elsewhere` the name of whoever leads."""
    retry_after_ms: Count = 0

    @property
    def needs(self) -> int:
        return 0 if self.answer is None else self.answer.needs
