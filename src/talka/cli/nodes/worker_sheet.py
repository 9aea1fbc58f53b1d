"""The command `talka workers show`: one worker, the machine it is on, and what it can run."""

from typing import TYPE_CHECKING, Any

import click

from talka.cli.cluster_jobs import GIBIBYTE, note_text, quiet_core_text, tasks_text
from talka.cli.command import command
from talka.cli.connection import api_options, asked, json_option
from talka.cli.output import facts_rows, json_of, place_of, say

if TYPE_CHECKING:
    from talka.wire.machines import GpuView
    from talka.wire.views import WorkerView


@command(
    "show",
    "Show one worker: its machine, its handlers, its tags, its load, and when it was heard last.",
    ("talka workers show w3", "what is it, and what does it do"),
)
@click.argument("name", metavar="NAME")
@json_option
@api_options
def show_worker(name: str, as_json: bool, **where: Any) -> int:
    worker = asked(where, lambda client: client.worker(name))
    say(json_of(worker) if as_json else worker_text(worker))
    return 0


def worker_text(worker: "WorkerView") -> str:
    from talka.client.sheets import instant
    from talka.report.text import counted_text
    from talka.wire.machines import MachineView

    machine = worker.machine or MachineView()
    load = f"{worker.load_percent} % of its processors" if worker.heard_at else ""
    flags = f" ({counted_text(len(machine.cpu_flags), 'flag')}: --json has them)" if machine.cpu_flags else ""
    cpus = f"{counted_text(machine.cpus, 'CPU')}, " if machine.cpus else ""
    disk = f"{gib(machine.disk_free_bytes)} free of {gib(machine.disk_bytes)}" if machine.disk_bytes else ""
    rows = [
        ("worker", worker.name),
        ("state", worker.state),
        ("note", note_text(worker)),
        ("heard", instant(worker.heard_at)),
        ("registered", instant(worker.registered_at)),
        ("cores", f"{worker.cores}, {worker.free} free"),
        ("load", load),
        ("jobs", ", ".join(worker.jobs)),
        ("tasks", tasks_text(worker)),
        ("handlers", ", ".join(worker.handlers)),
        ("can", ", ".join(worker.capabilities)),
        ("tags", ", ".join(f"{key}={value}" if value else key for key, value in machine.tags.items())),
        ("stands", ", ".join(filter(None, place_of(worker)))),
        ("host", machine.hostname),
        ("pid", str(machine.pid or "")),
        ("system", ", ".join(part for part in (machine.system, machine.architecture) if part)),
        ("cpu", f"{cpus}{machine.cpu_model}{flags}"),
        ("memory", gib(worker.memory_bytes) if worker.memory_bytes else ""),
        ("disk", disk),
        ("gpus", ", ".join(map(gpu_text, machine.gpus)) or str(worker.gpus or "")),
        ("python", machine.python),
        ("talka", worker.version),
        ("address", worker.address),
    ]
    quiet = [quiet_core_text(worker.name, core) for core in worker.quiet_cores]
    return "\n\n".join([facts_rows(rows), *quiet])


def gpu_text(gpu: "GpuView") -> str:
    return f"{gpu.name} ({gib(gpu.memory_bytes)})" if gpu.memory_bytes else gpu.name


def gib(size_bytes: int) -> str:
    return f"{size_bytes / GIBIBYTE:.1f} GiB"
