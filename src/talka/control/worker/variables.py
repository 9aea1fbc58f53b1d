"""Variables of jobs on their way into a worker: they come sealed to its present life, and are opened for one
attempt."""

import msgspec

from talka.wire.jobs import Assign
from talka.wire.security.envelopes import BadEnvelope, Opener, Purpose


class WorkerVariables:
    def __init__(self, opener: Opener, group: str, worker: str, boot: int) -> None:
        self._opener = opener
        self._group = group
        self._worker = worker
        self._boot = boot

    def opened(self, assign: Assign) -> Assign:
        """With its variables, if it has any. `BadEnvelope` when they are for another, or came open."""
        if assign.bundle.env:
            raise BadEnvelope("the variables are not sealed: its manager is of an earlier version")
        if not assign.variables:
            return assign
        purpose = Purpose(self._group, assign.job, assign.attempt, self._worker, self._boot)
        env = self._opener.open(assign.variables, purpose)
        return msgspec.structs.replace(assign, bundle=msgspec.structs.replace(assign.bundle, env=env), variables=b"")
