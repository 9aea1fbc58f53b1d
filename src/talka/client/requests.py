"""What can be asked of a cluster, what the answers are, and which errors there may be instead.

`Control` is the port: a manager's node implements it, `web` turns HTTP into calls of it, and `Client` gives the same
calls to programs elsewhere. An error that a `Control` raises becomes a problem document, and out of that the client
makes the same error again: `PROBLEMS` is the one table for both ways.
"""

import math
from collections.abc import AsyncGenerator
from typing import Final, NamedTuple, Protocol, Self, TypeVar

import msgspec

from talka.errors import Invalid, Superseded, TalkaError, Unavailable, Untrusted
from talka.wire.jobs import BLOB_LIMIT_BYTES
from talka.wire.orders import JobOrder
from talka.wire.security.access import Asker
from talka.wire.views import ClusterView, JobFacts, JobsPage, JobUpdate, WorkerView
from talka.work.dags.dag import BadDag

API_PORT: Final = 8470
BUNDLE_LIMIT_BYTES: Final = BLOB_LIMIT_BYTES
PAGE_LIMIT: Final = 500
"""The most jobs of one page."""
PAGE_DEFAULT: Final = 50
KEY_LIMIT: Final = 200
"""Characters of an idempotency key."""
REASON_LIMIT: Final = 1000
"""Characters of the reason of a cancel."""
PROBLEM_PREFIX: Final = "urn:talka:problem:"

Body = TypeVar("Body")


class CancelRequest(msgspec.Struct, frozen=True):
    """Why a job is to stop."""

    reason: str = ""


class Control(Protocol):
    """A cluster, as whoever asks sees it. Every call may raise the errors below; each may be made again."""

    def on_behalf(self, asker: Asker) -> "Control":
        """The same, for what this person asks: whoever it is passed on to knows who it was."""

    async def put_bundle(self, digest: str, content: bytes) -> None:
        """Keep a bundle on a majority of managers. `digest` is its sha256; the caller has checked it."""

    async def has_bundle(self, digest: str) -> bool: ...

    async def submit(self, order: JobOrder, key: str) -> JobFacts:
        """Accept a job: from the answer on it is finished, failed with a reason, or under way.

        `key` is the submitter's idempotency key, empty for none: the same order with the same key is the same job,
        another order a Conflict. Raises BundleMissing when the bundle is not here. The signature in the order is the
        manager's to make: what a client says there counts for nothing.
        """

    async def jobs(self, state: str, cursor: str, limit: int) -> JobsPage:
        """`state` is a JobState, or empty for all; `cursor` is of the page before, or empty."""

    async def job(self, id: str) -> JobFacts: ...

    async def order(self, id: str) -> JobOrder:
        """What was submitted: a watcher without the file draws its view from this."""

    async def cancel(self, id: str, reason: str) -> JobFacts:
        """Ask a job to stop. Of one that has ended it changes nothing."""

    async def resume(self, id: str) -> JobFacts:
        """Go on with the rest of a job that is paused, once there are cores for it. One that is not paused is a
        Conflict."""

    async def result(self, id: str) -> bytes:
        """The result document as JSON. Raises NotEnded while there is none yet."""

    def watch(self, id: str, steps: bool) -> AsyncGenerator[JobUpdate, None]:
        """How the job stands, at most 20 times a second, until the final update. Closing the iterator ends the watch.

        The first comes at once. Of a job that ended before, the final update comes alone. Whoever reads slowly misses
        updates, but no window.
        An error before the first update is of the question, such as NoSuchJob; a later one breaks the watch off.
        """

    async def workers(self) -> list[WorkerView]: ...

    async def worker(self, name: str) -> WorkerView:
        """This one, with its handlers and its machine."""

    async def drain(self, name: str) -> WorkerView:
        """Give the worker nothing new and let it finish."""

    async def undrain(self, name: str) -> WorkerView:
        """Let the worker take new work again."""

    async def cluster(self) -> ClusterView: ...

    def is_ready(self) -> str:
        """Empty, or why this node should get no requests now."""

    def metrics(self) -> str:
        """Of this node, in Prometheus' text format."""


def decoded_body(content: bytes | bytearray, kind: type[Body]) -> Body:
    """What a request says, or why it cannot be read."""
    try:
        if not content.isascii():
            content.decode()  # inside what is passed on as it is nobody else looks at the bytes
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise Invalid(f"the body does not match the schema: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"the body is not JSON: {error}") from None


# What there may be instead of an answer. Each takes a sentence for people.


class NoSuchJob(Invalid):
    """No manager knows a job of this id."""

    @classmethod
    def named(cls, id: str) -> Self:
        return cls(f"there is no job {id}: talka jobs lists those that are known")


class WrongKind(NoSuchJob):
    """The job is of a kind that does not have what was asked for."""


class NoSuchWorker(Invalid):
    """The cluster knows no worker of this name."""

    @classmethod
    def named(cls, name: str) -> Self:
        return cls(f"there is no worker {name}: talka workers lists those that are known")


class NoSuchTask(Invalid):
    """The job has no task of this id."""

    @classmethod
    def named(cls, job: str, task: str) -> Self:
        return cls(f"job {job} has no task {task}: talka jobs show {job} lists those it has")


class NoSuchAttempt(Invalid):
    """The task had no attempt of this number."""

    @classmethod
    def named(cls, job: str, task: str, attempt: int) -> Self:
        return cls(
            f"task {task} of job {job} had no attempt {attempt}: talka jobs show {job} --task {task} lists those it had"
        )


class NoSuchSchedule(Invalid):
    """The store has no schedule of this name."""

    @classmethod
    def named(cls, name: str) -> Self:
        return cls(f"there is no schedule {name}: talka jobs schedules lists those there are")


class NoDags(Invalid):
    """A dag job is asked for where none can be."""

    @classmethod
    def here(cls) -> Self:
        return cls("this manager keeps no dag jobs: start it with --store")


class NobodyCanRun(BadDag):
    """No worker that is known has what a task of the job wants. It may be submitted to wait for one."""


class NotEnded(Invalid):
    """The result is asked for while the job is under way."""

    @classmethod
    def named(cls, id: str, state: str) -> Self:
        return cls(f"job {id} is {state}: there is no result yet")


class NoResult(Invalid):
    """The job has ended and left no result: it never ran, or its result is no longer kept."""


class Conflict(Invalid):
    """What is asked contradicts what was asked before."""


class BundleMissing(Invalid):
    """The order names a bundle that the managers do not have: put it, then submit again."""


class Malformed(Invalid):
    """The request cannot be read."""


class TooSlow(Invalid):
    """The body of a request took too long to arrive."""


class WrongDigest(Invalid):
    """The bundle is not what its digest says."""


class TooLarge(Invalid):
    """More bytes than the request may have."""


class TooBusy(Unavailable):
    """Asked too often, or under too much load: ask again after `retry_after_s`."""

    def __init__(self, text: str, retry_after_s: float = 1.0) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s

    @property
    def retry_after_header(self) -> str:
        return str(max(1, math.ceil(self.retry_after_s)))


class ClusterUnreachable(Unavailable):
    """Exit code 7: nobody is there, or they do not let us in."""


class NotAuthorised(ClusterUnreachable):
    """There is no token, or it is not valid."""


class Forbidden(NotAuthorised):
    """The token is valid, but its role may not do this."""


# Problem documents.


class Problem(msgspec.Struct, frozen=True):
    """Why a request failed (RFC 9457)."""

    type: str
    """`urn:talka:problem:` and one of the names in `PROBLEMS`, or about:blank."""
    title: str
    status: int
    detail: str = ""
    """A sentence about this very case."""
    instance: str = ""
    """The path that was asked for."""


class ProblemKind(NamedTuple):
    """One kind of problem document, and the error it is made of."""

    name: str
    error: type[TalkaError]
    status: int
    title: str


PROBLEMS: Final = (
    ProblemKind("wrong-kind", WrongKind, 404, "The job is of another kind"),
    ProblemKind("no-such-job", NoSuchJob, 404, "No such job"),
    ProblemKind("no-such-worker", NoSuchWorker, 404, "No such worker"),
    ProblemKind("no-such-task", NoSuchTask, 404, "No such task"),
    ProblemKind("no-such-attempt", NoSuchAttempt, 404, "No such attempt"),
    ProblemKind("no-such-schedule", NoSuchSchedule, 404, "No such schedule"),
    ProblemKind("no-dags", NoDags, 501, "No dag jobs here"),
    ProblemKind("nobody-can-run", NobodyCanRun, 422, "No worker could run a task"),
    ProblemKind("bad-dag", BadDag, 422, "The dag cannot be"),
    ProblemKind("no-result", NoResult, 404, "No result"),
    ProblemKind("not-ended", NotEnded, 409, "The job has not ended"),
    ProblemKind("conflict", Conflict, 409, "Conflict"),
    ProblemKind("bundle-missing", BundleMissing, 409, "The bundle is missing"),
    ProblemKind("wrong-digest", WrongDigest, 422, "The digest does not fit"),
    ProblemKind("malformed", Malformed, 400, "Cannot be read"),
    ProblemKind("too-slow", TooSlow, 408, "Too slow"),
    ProblemKind("too-large", TooLarge, 413, "Too large"),
    ProblemKind("too-busy", TooBusy, 429, "Too many requests"),
    ProblemKind("forbidden", Forbidden, 403, "The role does not allow this"),
    ProblemKind("not-authorised", NotAuthorised, 401, "Not authorised"),
    ProblemKind("unavailable", Unavailable, 503, "Not available now"),
    # Another node acts now: asked again, the request finds it.
    ProblemKind("superseded", Superseded, 503, "Another node acts now"),
    ProblemKind("untrusted", Untrusted, 400, "Not acceptable"),
    ProblemKind("invalid", Invalid, 422, "Not valid"),
)
"""Error to problem document and back. The first that fits counts: branches of errors come after what is in them."""
_BY_NAME: Final = {PROBLEM_PREFIX + kind.name: kind for kind in PROBLEMS}


def problem_of(error: TalkaError, instance: str = "") -> Problem:
    for kind in PROBLEMS:
        if isinstance(error, kind.error):
            return Problem(PROBLEM_PREFIX + kind.name, kind.title, kind.status, str(error), instance)
    return Problem("about:blank", "Internal error", 500, str(error), instance)


def error_of(problem: Problem, retry_after_s: float = 1.0) -> TalkaError:
    """The error that a problem document was made of; by its status when its type is not one of ours."""
    text = problem.detail or problem.title
    kind = _BY_NAME.get(problem.type)
    if kind is None:
        by_status = [kind for kind in PROBLEMS if kind.status == problem.status]
        kind = by_status[0] if len(by_status) == 1 else None
    if kind is None:
        return Unavailable(text) if problem.status >= 500 else Invalid(text)
    if kind.error is TooBusy:
        return TooBusy(text, retry_after_s)
    return kind.error(text)
