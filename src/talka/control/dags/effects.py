"""What the keeper of dag jobs asks for: of the shell that has the store, and of those who carry messages."""

from typing import TypeAlias

from talka.control.member.speech import Speak
from talka.control.tasks.store_effects import StoreEffect

DagEffect: TypeAlias = StoreEffect | Speak
