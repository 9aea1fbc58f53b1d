"""What the keeper of dag jobs asks for: of the shell that has the store, and of those who carry messages."""

from typing import TypeAlias

from talka.cluster.effects import Send
from talka.control.tasks.store_effects import StoreEffect
from talka.wire.tasks import TaskMessage

DagEffect: TypeAlias = StoreEffect | Send[TaskMessage]
