"""Whose requests a manager limits."""

from typing import Any

from talka.control.clients.overload import Level
from talka.control.clients.rate_limits import LIMITS
from talka.nodes.control import ManagerControl
from talka.web.auth import LOCAL, Identity


class IdleNode:
    """As much of a manager's node as is asked about rates."""

    class manager:
        level = Level.HEALTHY


def test_tokens_use_up_none_of_each_others_requests_and_without_tokens_nobody_is_counted() -> None:
    node: Any = IdleNode()
    control = ManagerControl(node)
    often = 2 * LIMITS["cancel"].requests

    def passed(identity: Identity) -> int:
        return sum(control.limiter("cancel", identity.counted_as) == 0 for _ in range(often))

    assert 0 < passed(Identity("ann", "submitter", "t1")) < often
    first = control.refused["rate"]
    assert control.limiter("cancel", Identity("ann", "submitter", "t2").counted_as) == 0
    assert control.limiter("cancel", Identity("ben", "submitter").counted_as) == 0
    assert passed(LOCAL) == often
    assert control.refused == {"rate": first}
