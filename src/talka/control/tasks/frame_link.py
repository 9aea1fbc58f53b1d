"""The link between a keeper and its workers that nodes have: frames of the conversation about jobs.

Decision: docs/decisions/0041-a-keeper-does-not-know-what-carries-its-words.md.
"""

from typing import Final

from talka.cluster.effects import Lane, Send
from talka.control.tasks.worker_link import ToKeeper, ToWorker, WorkerBeat, WorkerLink
from talka.control.tasks.worker_room import CoresForTasks
from talka.wire.jobs import CHANNEL, Beat
from talka.wire.tasks import TaskMessage, TaskProgress


class FrameLink(WorkerLink[Send[TaskMessage]]):
    """Names are those of nodes. Nothing is shed but what tells of progress, of which the latest is told again."""

    def to_worker(self, said: ToWorker) -> Send[TaskMessage]:
        return Send(CHANNEL, said.worker, said.message, Lane.RESULTS)

    def to_keeper(self, said: ToKeeper) -> Send[TaskMessage]:
        message = said.message
        lane = Lane.STATISTICS if type(message) is TaskProgress else Lane.RESULTS
        return Send(CHANNEL, said.keeper, message, lane)

    def beat(self, boot: int, beat: Beat, cores: CoresForTasks, state: str) -> WorkerBeat:
        """What a keeper is told of a beat, and of what the fleet knows of the worker."""
        name, free, why_none = cores
        return WorkerBeat(
            name, boot, beat.number, beat.facts, free, state, beat.epoch, beat.of, beat.names, beat.others, why_none
        )


FRAMES: Final = FrameLink()
