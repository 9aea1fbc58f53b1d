"""The command `talka doctor`: is this machine fit to make load, and what would make it fitter?

`gather` looks at the machine; the checks are functions of the `MachineFacts` it returns and look at nothing else.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, Literal

import click

from talka.cli.command import command
from talka.cli.output import columns_of, say
from talka.units import MICROSECOND, MILLISECOND

OLDEST_PYTHON: Final = (3, 11)
REQUIRED: Final = ("click", "cryptography", "dns", "httptools", "msgspec", "psutil", "rich")
OPTIONAL: Final = {
    "uvloop": ("talka[fast]", "a faster event loop"),
    "asyncpg": ("talka[postgres]", "the history of runs on PostgreSQL"),
    "yaml": ("pyyaml", "talka init --from-openapi with YAML"),
}
FEW_FILES: Final = 4096
FEW_PORTS: Final = 10_000
TIME_WAIT_S: Final = 60
"""How long Linux keeps the port of a connection that we closed."""
BUSY: Final = 0.5
LATE_US: Final = 2000
COARSE_NS: Final = 1000
SLOW_CLOCKS: Final = {"hpet", "acpi_pm", "jiffies", "refined-jiffies"}
SHORT_BACKLOG: Final = 1024
LITTLE_MEMORY: Final = 512 * 1024**2
NO_MEMORY: Final = 64 * 1024**2
TIMER_SAMPLES: Final = 50
MARKS: Final = {"ok": "✓", "warning": "!", "problem": "✗"}

Verdict = Literal["ok", "warning", "problem"]
Read = Callable[[str], str | None]
"""The text of a file of the system; None where there is none, or where it is not ours to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What was found. None: this system does not say."""

    python: tuple[int, int, int]
    files_soft: int | None
    files_hard: int | None
    """None: no limit."""
    files_spare: int
    """What a core process opens besides its connections."""
    ports: tuple[int, int] | None
    cores_physical: int | None
    cpus_logical: int
    cpus_allowed: int
    load_1m: float | None
    timer_late_us: float
    """How late a timer of a millisecond comes: the median, and the worst."""
    timer_worst_us: float
    clock_is_monotonic: bool
    clock_resolution_ns: float
    clock_source: str | None
    somaxconn: int | None
    tcp_tw_reuse: int | None
    cgroup_cpus: float | None
    """None: no limit."""
    memory_available_bytes: int | None
    native_obstacle: str | None = None
    """Why the native engine cannot run; None: it can."""
    packages: Mapping[str, str | None] = field(default_factory=dict)
    """Module to version, None for those that are not installed."""

    @property
    def cores(self) -> int:
        """As many core processes as a run starts by default."""
        return max(1, min(self.cores_physical or self.cpus_allowed, self.cpus_allowed))


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    verdict: Verdict
    text: str
    fix: str = ""


# The checks.


def python_version(facts: MachineFacts) -> Finding:
    version = ".".join(map(str, facts.python))
    if facts.python[:2] < OLDEST_PYTHON:
        return Finding("python", "problem", f"{version} is too old", "Install Python 3.11 or newer.")
    return Finding("python", "ok", version)


def required_packages(facts: MachineFacts) -> Finding:
    missing = [module for module in REQUIRED if facts.packages.get(module) is None]
    if missing:
        return Finding("packages", "problem", f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    return Finding("packages", "ok", "all that are required are installed")


def open_files(facts: MachineFacts) -> Finding:
    if facts.files_hard is None:
        return Finding("open files", "ok", "no limit")
    each = facts.files_hard - facts.files_spare
    soft = "no limit" if facts.files_soft is None else f"{facts.files_soft:,}"
    limit = f"soft {soft}, hard {facts.files_hard:,} (runs raise the soft one)"
    fix = (
        "Raise the hard limit: ulimit -Hn 1048576 as root, LimitNOFILE= of a service, --ulimit nofile= of a container."
    )
    if each < 1:
        return Finding("open files", "problem", f"{limit}: too few for a single virtual user", fix)
    text = f"{limit}: about {each * facts.cores:,} virtual users on {counted(facts.cores, 'core')}"
    return Finding("open files", "warning" if facts.files_hard < FEW_FILES else "ok", text, fix)


def ephemeral_ports(facts: MachineFacts) -> Finding:
    if facts.ports is None:
        return Finding("ports", "ok", "the range of ports for connections cannot be read on this system")
    low, high = facts.ports
    count = high - low + 1
    fix = 'Widen the range: sysctl -w net.ipv4.ip_local_port_range="1024 65535".'
    if count < 1:
        return Finding("ports", "problem", f"{low} to {high} leaves no port for a connection", fix)
    text = (
        f"{low} to {high}: {count:,} connections to one target at a time, and {max(1, count // TIME_WAIT_S):,} new ones"
        f" per second if we are the ones to close them"
    )
    return Finding("ports", "warning" if count < FEW_PORTS else "ok", text, fix)


def cores(facts: MachineFacts) -> Finding:
    physical = "unknown" if facts.cores_physical is None else str(facts.cores_physical)
    text = f"{facts.cores} to use: {physical} physical, {facts.cpus_logical} logical, {facts.cpus_allowed} allowed"
    if facts.cpus_allowed < min(facts.cores_physical or facts.cpus_logical, facts.cpus_logical):
        fix = "Other CPUs are forbidden to this process (taskset, cpuset): start it with more, if it needs them."
        return Finding("cores", "warning", text, fix)
    if facts.cores == 1:
        fix = "The load and everything else share one core: test with little load, or use a larger machine."
        return Finding("cores", "warning", text, fix)
    return Finding("cores", "ok", text)


def cgroup_limit(facts: MachineFacts) -> Finding:
    if facts.cgroup_cpus is None:
        return Finding("cpu limit", "ok", "none set by a control group")
    text = f"the control group allows {facts.cgroup_cpus:g} CPUs"
    if facts.cgroup_cpus < facts.cores:
        least = max(1, int(facts.cgroup_cpus))
        fix = f"Beyond it, the system makes cores wait: give the container more CPUs, or run with --cores {least}."
        return Finding("cpu limit", "warning", f"{text}, fewer than the {facts.cores} cores a run starts", fix)
    return Finding("cpu limit", "ok", text)


def load_now(facts: MachineFacts) -> Finding:
    if facts.load_1m is None:
        return Finding("load", "ok", "cannot be read on this system")
    text = f"{facts.load_1m:.2f} in the last minute, on {counted(facts.cpus_allowed, 'CPU')}"
    if facts.load_1m > BUSY * facts.cpus_allowed:
        return Finding("load", "warning", text, "Other processes use this machine: numbers are better without them.")
    return Finding("load", "ok", text)


def event_loop(facts: MachineFacts) -> Finding:
    version = facts.packages.get("uvloop")
    if version is None:
        fix = "About twice the load from each core: pip install 'talka[fast]'."
        return Finding("event loop", "warning", "asyncio's own; uvloop is not installed", fix)
    return Finding("event loop", "ok", f"uvloop {version}")


def timers(facts: MachineFacts) -> Finding:
    text = f"{facts.timer_late_us:.0f} µs late in the median, {facts.timer_worst_us:.0f} µs at worst (measured)"
    if facts.timer_late_us > LATE_US:
        fix = "Arrivals will start late: end other work, or use a machine that is not shared."
        return Finding("timers", "warning", text, fix)
    return Finding("timers", "ok", text)


def clock(facts: MachineFacts) -> Finding:
    source = f", source {facts.clock_source}" if facts.clock_source else ""
    text = f"monotonic, {facts.clock_resolution_ns:g} ns{source}"
    if not facts.clock_is_monotonic:
        return Finding("clock", "problem", "time may run backwards here", "Use a system with a monotonic clock.")
    if facts.clock_resolution_ns > COARSE_NS:
        return Finding("clock", "warning", text, "Short times will be coarse: no setting changes that on this system.")
    if facts.clock_source in SLOW_CLOCKS:
        return Finding("clock", "warning", text, "It is slow to read: start the system with clocksource=tsc.")
    return Finding("clock", "ok", text)


def engine(facts: MachineFacts) -> Finding:
    if facts.native_obstacle is None:
        return Finding("engine", "ok", "native")
    fix = (
        "Far more load from each core: on Linux, install a C compiler and Python's headers, then reinstall Talka "
        "from source."
    )
    return Finding("engine", "warning", f"python; there is no native one: {facts.native_obstacle}", fix)


def tcp_settings(facts: MachineFacts) -> Finding:
    if facts.somaxconn is None and facts.tcp_tw_reuse is None:
        return Finding("tcp", "ok", "its settings cannot be read on this system")
    shown = {"somaxconn": facts.somaxconn, "tcp_tw_reuse": facts.tcp_tw_reuse}
    text = ", ".join(f"{name} {value}" for name, value in shown.items() if value is not None)
    fixes = []
    if facts.somaxconn is not None and facts.somaxconn < SHORT_BACKLOG:
        fixes.append("A server on this machine may refuse bursts: sysctl -w net.core.somaxconn=4096.")
    if facts.tcp_tw_reuse == 0:
        fixes.append("Ports of closed connections stay taken: sysctl -w net.ipv4.tcp_tw_reuse=1.")
    return Finding("tcp", "warning" if fixes else "ok", text, " ".join(fixes))


def memory(facts: MachineFacts) -> Finding:
    if facts.memory_available_bytes is None:
        return Finding("memory", "ok", "cannot be read on this system")
    text = f"{facts.memory_available_bytes / 1024**2:,.0f} MiB free"
    fix = "A run takes about 30 MiB, and as much for each core: end other work, or use a larger machine."
    if facts.memory_available_bytes < NO_MEMORY:
        return Finding("memory", "problem", f"{text}: too little for a run on a single core", fix)
    return Finding("memory", "warning" if facts.memory_available_bytes < LITTLE_MEMORY else "ok", text, fix)


def extras(facts: MachineFacts) -> Finding:
    there = [f"{module} {version}" for module in OPTIONAL if (version := facts.packages.get(module)) is not None]
    missing = [
        f"{package} ({purpose})"
        for module, (package, purpose) in OPTIONAL.items()
        if facts.packages.get(module) is None
    ]
    parts = [", ".join(there) or "none installed"]
    parts += [f"can be added with pip: {', '.join(missing)}"] if missing else []
    return Finding("extras", "ok", "; ".join(parts))


CHECKS: Final[Sequence[Callable[[MachineFacts], Finding]]] = (
    *(python_version, required_packages, open_files, ephemeral_ports, cores, cgroup_limit, load_now, memory),
    *(event_loop, timers, clock, engine, tcp_settings, extras),
)


def examine(facts: MachineFacts) -> list[Finding]:
    return [check(facts) for check in CHECKS]


def counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


# Looking at the machine.


def gather() -> MachineFacts:
    import os
    import time

    soft, hard = file_limits()
    reported = time.get_clock_info("monotonic")
    late_us, worst_us = timer_lateness_us()
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    physical, available = from_psutil()
    return MachineFacts(
        python=sys.version_info[:3],
        files_soft=soft,
        files_hard=hard,
        files_spare=spare_descriptors(),
        ports=port_range(read_file),
        cores_physical=physical,
        cpus_logical=os.cpu_count() or 1,
        cpus_allowed=allowed,
        load_1m=load_average(),
        timer_late_us=late_us,
        timer_worst_us=worst_us,
        clock_is_monotonic=reported.monotonic,
        clock_resolution_ns=reported.resolution * 1e9,
        clock_source=(read_file("/sys/devices/system/clocksource/clocksource0/current_clocksource") or "").strip()
        or None,
        somaxconn=number_in(read_file, "/proc/sys/net/core/somaxconn"),
        tcp_tw_reuse=number_in(read_file, "/proc/sys/net/ipv4/tcp_tw_reuse"),
        cgroup_cpus=cgroup_cpus(read_file),
        memory_available_bytes=available,
        native_obstacle=native_obstacle(),
        packages={module: version_of(module) for module in (*REQUIRED, *OPTIONAL)},
    )


def read_file(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def number_in(read: Read, path: str) -> int | None:
    words = (read(path) or "").split()
    return int(words[0]) if words and words[0].isdecimal() else None


def port_range(read: Read) -> tuple[int, int] | None:
    words = (read("/proc/sys/net/ipv4/ip_local_port_range") or "").split()
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return None
    return int(words[0]), int(words[1])


def cgroup_cpus(read: Read) -> float | None:
    """The tightest limit of our control groups, of either version, from our own up to the root."""
    limits = []
    for line in (read("/proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        own = PurePosixPath("/", group.lstrip("/"))
        for place in (own, *own.parents):
            path = str(place).rstrip("/")
            if controllers == "":
                words = (read(f"/sys/fs/cgroup{path}/cpu.max") or "").split()
                quota, period = (words[0], words[1]) if len(words) == 2 else ("", "")
            elif "cpu" in controllers.split(","):
                quota = (read(f"/sys/fs/cgroup/cpu{path}/cpu.cfs_quota_us") or "").strip()
                period = (read(f"/sys/fs/cgroup/cpu{path}/cpu.cfs_period_us") or "").strip()
            else:
                break
            # "max" or -1: no limit here.
            if quota.isdecimal() and period.isdecimal() and int(period) > 0:
                limits.append(int(quota) / int(period))
    return min(limits, default=None)


def file_limits() -> tuple[int | None, int | None]:
    import resource

    soft, hard = (
        None if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    return soft, hard


def spare_descriptors() -> int:
    try:
        from talka.nodes.local import SPARE_DESCRIPTORS
    except ImportError:  # of a package that is missing, which another check tells
        return 0
    return SPARE_DESCRIPTORS


def native_obstacle() -> str | None:
    try:
        from talka.engine.load.native import available
    except ImportError as error:  # of a package that is missing, which another check tells
        return f"it cannot be loaded ({error})"
    return available()


def from_psutil() -> tuple[int | None, int | None]:
    """Physical cores, and free memory in bytes."""
    try:
        import psutil
    except ImportError:
        return None, None
    return psutil.cpu_count(logical=False), psutil.virtual_memory().available


def load_average() -> float | None:
    import os

    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def version_of(module: str) -> str | None:
    """Of the package that brings the module. Looked up, not imported."""
    from importlib import metadata, util

    if util.find_spec(module) is None:
        return None
    try:
        return metadata.version({"yaml": "PyYAML"}.get(module, module))
    except metadata.PackageNotFoundError:
        return "of unknown version"


def timer_lateness_us() -> tuple[float, float]:
    """How late timers of a millisecond come in the loop that cores use: the median and the worst."""
    import asyncio

    from talka.clock import monotonic_ns

    try:
        from talka.engine.process_start import new_event_loop
    except ImportError:  # as above
        new_event_loop = asyncio.new_event_loop

    async def measure() -> list[int]:
        late = []
        for _ in range(TIMER_SAMPLES):
            due = monotonic_ns() + MILLISECOND
            await asyncio.sleep(0.001)
            late.append(max(0, monotonic_ns() - due))
        return sorted(late)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        late = runner.run(measure())
    return late[len(late) // 2] / MICROSECOND, late[-1] / MICROSECOND


# The command.


@command(
    "doctor",
    "Look at this machine: how much load can it make, and what stands in the way? Changes nothing and sends"
    " nothing. The exit code is 2 if something (✗) makes runs impossible, else 0.",
    ("talka doctor", "what is well, what is not, and what to do about it"),
    ("talka doctor --json", "for programs"),
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def doctor(as_json: bool) -> int:
    facts = gather()
    findings = examine(facts)
    say(document(facts, findings) if as_json else page(findings, columns_of(sys.stdout)))
    return exit_code(findings)


def exit_code(findings: Sequence[Finding]) -> int:
    from talka.work.outcome import ExitCode

    return ExitCode.USAGE if any(finding.verdict == "problem" for finding in findings) else ExitCode.HELD


def document(facts: MachineFacts, findings: Sequence[Finding]) -> str:
    checks = [
        {"check": finding.check, "verdict": finding.verdict, "text": finding.text, "fix": fix_of(finding) or None}
        for finding in findings
    ]
    usable = exit_code(findings) == 0
    return json.dumps(
        {"schema": "talka.doctor/1", "usable": usable, "checks": checks, "facts": asdict(facts)}, indent=1
    )


def fix_of(finding: Finding) -> str:
    """What is well needs no advice."""
    return "" if finding.verdict == "ok" else finding.fix


def page(findings: Sequence[Finding], width: int) -> str:
    from talka.report.text import TextPage

    made = TextPage(width)
    widest = max(len(finding.check) for finding in findings)
    for finding in findings:
        made.sentence(finding.text, indent=0, lead=f"{MARKS[finding.verdict]} {finding.check:<{widest}}  ")
        if fix := fix_of(finding):
            made.sentence(fix, indent=widest + 4, lead="→ ")
    made.gap()
    made.sentence(closing(findings), indent=0)
    return made.text()


def closing(findings: Sequence[Finding]) -> str:
    problems = [finding.check for finding in findings if finding.verdict == "problem"]
    warnings = [finding.check for finding in findings if finding.verdict == "warning"]
    if problems:
        return f"Runs are not possible here until this is fixed: {', '.join(problems)} (exit code 2)."
    if warnings:
        return f"Runs are possible. These checks could be better: {', '.join(warnings)}."
    return "Runs are possible, and all is well."
