"""What a user orders: a bundle or a URL, and the workflows of a job."""

from typing import Annotated, TypeAlias

import msgspec

from talka.wire.leadership import Count
from talka.wire.security.bundles import WORD_LIMIT_BYTES
from talka.wire.shards import PLAIN_GET, Settings, UrlRequest
from talka.work.dsl import AtTimeout, Priority
from talka.work.load import Plan
from talka.work.specs import NodeOutline, WorkflowSpec
from talka.work.thresholds import Threshold

Digest = Annotated[str, msgspec.Meta(min_length=64, max_length=64, pattern=r"\A[0-9a-f]+\Z")]


class BundleFacts(msgspec.Struct, frozen=True, array_like=True):
    digest: Digest
    size_bytes: Count
    signature: Annotated[bytes, msgspec.Meta(max_length=128)]
    """For workers of protocol 1.0, under the secret of the cluster. Later ones look at `word` alone."""
    file: Annotated[str, msgspec.Meta(max_length=1024)]
    """The test file inside the bundle."""
    env: dict[str, str] = {}
    """Variables that travel with the job. Never in an Assign: there they are sealed."""
    url: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    """Instead of a bundle: one request of this. Then there is no digest to fetch, and `digest` is of URL and
    request."""
    request: UrlRequest = PLAIN_GET
    """What is asked of `url`."""
    word: Annotated[bytes, msgspec.Meta(max_length=WORD_LIMIT_BYTES)] = b""
    """A `BundleWord` of the manager that accepted it; workers run nothing whose word does not hold."""


class WorkflowOrder(msgspec.Struct, frozen=True):
    """A workflow of a submitted job: what the planner and the report need of it. No code."""

    name: str
    plan: Plan
    priority: Priority
    is_test: bool
    depends_on: tuple[str, ...]
    timeout_ns: int
    thresholds: tuple[Threshold, ...]
    flows: tuple[tuple[str, str], ...]
    load: str
    """The load shape in words."""
    nodes: tuple[NodeOutline, ...]
    announcements: tuple[str, ...] = ()
    think_ns: int = 0
    is_teardown: bool = False
    """It cleans up after those it depends on, whatever became of them."""
    on_timeout: AtTimeout = "kill"
    saves: bool = False
    """It has a method that is called when its time is over: only then there is a grace for it."""


Outlined: TypeAlias = WorkflowSpec | WorkflowOrder
"""What a report shows of a workflow: where its code is, and where it is not."""


class JobOrder(msgspec.Struct, frozen=True):
    """What a user submits."""

    name: str
    bundle: BundleFacts
    workflows: tuple[WorkflowOrder, ...]
    settings: Settings
    thresholds: tuple[Threshold, ...] = ()
    cores: int = 0
    """At most so many; 0: as many as priorities allow."""
    allow_partial: bool = False
    submitted_by: str = ""
    priority: int = 5
    """In the queue: 10 is the highest."""


def shown(order: JobOrder) -> JobOrder:
    """The order as it is answered to whoever asks: without values of variables, headers, bodies and signatures."""
    bundle = msgspec.structs.replace(
        order.bundle, signature=b"", env=dict.fromkeys(order.bundle.env, ""), request=PLAIN_GET, word=b""
    )
    return msgspec.structs.replace(order, bundle=bundle)
