"""What nodes say to each other about jobs."""

import msgspec

from talka.cluster.effects import Lane
from talka.wire.jobs import JobMessage


class Speak(msgspec.Struct, frozen=True):
    """Say this to the node of that name. Whether it arrives is not known."""

    to: str
    message: JobMessage
    lane: Lane = Lane.STREAM
