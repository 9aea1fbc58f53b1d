"""Settings of a node, checked: from flags, TALKA_* and the table of its kind in talka.toml."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from talka.cli.config import MOST_CORES, BadSetting, Layer, from_text, layer_of_node, switch, whole
from talka.cli.nodes.secret import checked_id
from talka.units import HOUR, SECOND
from talka.work.durations import format_duration, parse_duration, shown
from talka.work.retention import MANAGER_KEEPS, Keep, ManagerKeeps, Retention, parse_keep

if TYPE_CHECKING:
    from talka.cluster.leadership.lease_terms import OwnLease
    from talka.wire.machines import Tag

WHERE: Final = ("cluster", "environment", "zone", "datacenter", "region", "secret_file", "certs", "data_dir")
NOTIFY: Final = ("notify_secret", "allow_private_notify")
KEEPS: Final = ("keep_jobs", "keep_failed_jobs", "keep_logs", "keep_failed_logs", "keep_blobs")
KNOWN: Final = {
    "up": ("name", "port", "cores", "tags", "data_dir", "lease", "accept_code", *NOTIFY, *KEEPS),
    "manager": (
        *("name", "bind", "advertise", "api", "api_advertise", "seeds", "voters", *WHERE),
        *("preset", "token_key_file", "lease", *NOTIFY, *KEEPS),
    ),
    "worker": ("name", "seeds", *WHERE, "probes", "token_key_file", "cores", "capabilities", "tags", "grace")
    + ("core_user", "core_env", "accept_code"),
}
"""What can be set for each kind of node."""
PATHS: Final = ("secret_file", "certs", "data_dir", "token_key_file", "notify_secret")
HIGHEST_PORT: Final = 65_535


class NodeSettings:
    """What was given for a node of this kind. Each value is checked when it is asked for."""

    def __init__(self, kind: str, flags: Mapping[str, object]) -> None:
        self._given: Layer = layer_of_node(kind, flags, KNOWN[kind], PATHS)

    def has(self, name: str) -> bool:
        return name in self._given

    def label(self, name: str) -> str:
        """The setting as whoever set it knows it."""
        return self._given[name].label if name in self._given else "--" + name.replace("_", "-")

    def text(self, name: str, default: str = "") -> str:
        given = self._given.get(name)
        if given is None:
            return default
        if isinstance(given.value, str) and given.value.strip():
            return given.value.strip()
        raise BadSetting(f"{given.label} = {shown(given.value)} is not possible: write a text")

    def id(self, name: str, default: str = "") -> str:
        text = self.text(name, default)
        return checked_id(self.label(name), text) if text else ""

    def path(self, name: str) -> str | None:
        text = self.text(name)
        return os.path.expanduser(text) if text else None

    def texts(self, name: str) -> tuple[str, ...]:
        """Several, as a list or with commas between."""
        given = self._given.get(name)
        if given is None:
            return ()
        values = given.value.split(",") if isinstance(given.value, str) else given.value
        if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
            raise BadSetting(f'{given.label} = {shown(given.value)} is not a list of texts such as ["a", "b"]')
        return tuple(value.strip() for value in values if value.strip())

    def tags(self) -> "tuple[Tag, ...]":
        from talka.wire.machines import tags_of

        return tags_of(self.texts("tags"), self.label("tags"))

    def yes(self, name: str) -> bool:
        given = self._given.get(name)
        if given is None or isinstance(given.value, bool):
            return given is not None and given.value is True
        if given.value in ("true", "false"):
            return given.value == "true"
        raise BadSetting(f"{given.label} = {shown(given.value)} is not possible: write true or false")

    def cores(self) -> int | None:
        given = self._given.get("cores")
        return None if given is None else whole(1, MOST_CORES)(given.label, from_text("cores", given.value))

    def switch(self, name: str, *, default: bool) -> bool:
        given = self._given.get(name)
        return default if given is None else switch(given.label, given.value)

    def port(self, default: int) -> int:
        given = self._given.get("port")
        return default if given is None else whole(0, HIGHEST_PORT)(given.label, from_text("port", given.value))

    def keeps(self) -> ManagerKeeps:
        """What a manager keeps of what has ended. A rule for those that completed holds for others that have none."""
        default = MANAGER_KEEPS
        blobs = self._keep("keep_blobs", default.blobs)
        if blobs.age_ns < HOUR:
            raise BadSetting(
                f"{self.label('keep_blobs')} = {blobs} is not possible: bundles are put before their jobs are, so "
                "write at least 1h"
            )
        return ManagerKeeps(
            self._retention("keep_jobs", "keep_failed_jobs", default.jobs),
            self._retention("keep_logs", "keep_failed_logs", default.output),
            blobs,
        )

    def _retention(self, of_completed: str, of_failed: str, default: Retention) -> Retention:
        completed = self._keep(of_completed, default.completed)
        return Retention(completed, self._keep(of_failed, completed if self.has(of_completed) else default.failed))

    def _keep(self, name: str, default: Keep) -> Keep:
        given = self._given.get(name)
        return default if given is None else parse_keep(given.value, default, what=given.label)

    def own_lease(self) -> "OwnLease":
        """Of workers. What nobody set is the register's to say."""
        from talka.cluster.leadership.lease_terms import OwnLease

        if not self.has("lease"):
            return OwnLease()
        label = self.label("lease")
        said = f"{label} = {shown(self._given['lease'].value)}"
        return OwnLease(checked_lease(said, round(self.seconds("lease", "") * SECOND)), label)

    def seconds(self, name: str, default: str) -> float:
        given = self._given.get(name)
        if given is None:
            return parse_duration(default) / SECOND
        if not isinstance(given.value, str | int | float) or isinstance(given.value, bool):
            raise BadSetting(f"{given.label} = {shown(given.value)} is not a duration such as 30s")
        return parse_duration(given.value, what=given.label) / SECOND


def checked_lease(said: str, lease_ns: int) -> int:
    from talka.control.jobs.workers.lease_rule import LONGEST_LEASE_NS, SHORTEST_LEASE_NS

    if not SHORTEST_LEASE_NS <= lease_ns <= LONGEST_LEASE_NS:
        shortest, longest = format_duration(SHORTEST_LEASE_NS), format_duration(LONGEST_LEASE_NS)
        raise BadSetting(f"{said} is not possible: write {shortest} to {longest}")
    return lease_ns
