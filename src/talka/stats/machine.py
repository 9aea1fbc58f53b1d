"""What goes on on a machine beside the load it makes."""

import msgspec


class Machine(msgspec.Struct, frozen=True):
    """What else went on while a shard ran, as far as the machine of its core tells."""

    cpus: int
    steal: float | None = None
    """The share of its CPUs' time that its host gave to others."""
    waiting: float | None = None
    """The share of time in which something waited for a CPU."""
    load: float | None = None
    """How many ran or waited to, over the last minute."""

    @property
    def text(self) -> str:
        """What is known, to be quoted; empty where nothing is."""
        parts = [] if self.steal is None else [f"steal {self.steal:.1%}"]
        parts += [] if self.waiting is None else [f"something waited for a CPU in {self.waiting:.0%} of the time"]
        parts += [] if self.load is None else [f"run queue {self.load:.1f} on {self.cpus} CPUs"]
        return ", ".join(parts)

    @property
    def pressed(self) -> tuple[float, ...]:
        """Of several machines, the one for which this is most had the most going on."""
        return tuple(-1.0 if part is None else part for part in (self.steal, self.waiting, self.load, self.cpus))
