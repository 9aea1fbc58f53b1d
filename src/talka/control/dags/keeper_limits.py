"""What a keeper of dag jobs holds in memory, and does in one step."""

from typing import Final

import msgspec

from talka.control.dags.book import OUTPUT_BYTES
from talka.control.dags.flow import AT_ONCE
from talka.control.tasks.attempts import TAKEN_LIMIT
from talka.control.tasks.delivery import DELIVERY_LIMITS, DeliveryLimits
from talka.wire.tasks import TASKS_LIMIT
from talka.work.dags.dag import ELEMENTS_LIMIT


class KeeperLimits(msgspec.Struct, frozen=True):
    jobs: int = 10_000
    """Jobs under way, drafts included."""
    tasks: int = 2_000_000
    """Tasks of all of them."""
    tasks_at_once: int = AT_ONCE
    """Tasks of a job that become ready or are cancelled in one step."""
    rows: int = 5_000
    """Rows of new tasks in one change of the store."""
    elements: int = ELEMENTS_LIMIT
    """Of one list that a task is fanned out over."""
    elements_at_once: int = 2_000
    """Elements that are made in one step; what they become is one change of the store for all."""
    specs_at_once: int = 5_000
    """Specs that are read together after a restart."""
    specs_ahead: int = 20_000
    """With so many tasks ready, no more specs are read."""
    spare_instants: int = 1_000
    """Instants at which nothing is due any more are left where they are until there are as many as jobs, and so many
    more."""
    taken: int = TAKEN_LIMIT
    """Results that are remembered at least, so that one that comes again is not refused."""
    recalls: int = TASKS_LIMIT
    """Attempts that one message calls back."""
    job_output_bytes: int = OUTPUT_BYTES
    """What is kept of all that the attempts of one job write."""
    delivery: DeliveryLimits = DELIVERY_LIMITS


KEEPER_LIMITS: Final = KeeperLimits()
