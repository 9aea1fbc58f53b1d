"""How soon do all know of a death, and at what cost? Debian's Serf beside `talka member`, in one run.

All members are processes on the loopback of a network namespace of the bench's own (as root, or where users may make
one), so only their traffic counts. Times run from `kill -9` to the arrival of a line on a pipe; one loop reads them
all. A false verdict is any line that declares a running process lost. The whole takes about 45 minutes; --quick two
or three. Results go to build/bench-members.json as they come.
"""

import argparse
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

from member_machine import Meter, Quotas, datagram_backlog, enter_own_network, have, throttled_share
from member_processes import Broken, Fleet, Kind, Serf, Talka, die_with_parent
from members_report import KINDS, OURS, SERF, Results, Slowness, Spread, print_false_verdicts, print_report, told

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "build" / "bench-members.json"
PARTS = ("detection", "idle", "slow", "leader", "cold", "model")

SETTLE_S = 15.0
PATIENCE_S = 60.0
"""For a verdict of all; longer is never."""
JOIN_PATIENCE_S = 180.0
STAGGER_S = {SERF: 0.05, **dict.fromkeys(OURS, 0.25)}
"""Between starts; an interpreter needs longer to start than a compiled program."""
QUOTAS_PERCENT = (1, 1, 2, 3)
BUSY = "while True: pass"
"""Shares each starved member's quota, so that it is used up in every period, however little the member needs."""
VOTERS = 5
MODEL_SEEDS = 5


class Settings(argparse.Namespace):
    only: list[str]
    kinds: list[str]
    sizes: list[int]
    kills: int
    elections: int
    cold: int
    seed: int
    quick: bool
    idle_s: float
    slow_size: int
    slow_kills: int
    slow_s: float
    quota_period_ms: int
    output: Path
    own_network: bool


def settings_of(arguments: list[str]) -> Settings:
    def words(allowed: tuple[str, ...]) -> Callable[[str], list[str]]:
        def parse(text: str) -> list[str]:
            found = text.split(",")
            if unknown := [word for word in found if word not in allowed]:
                raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: unknown; there are {', '.join(allowed)}")
            return found

        return parse

    def sizes(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", type=words(PARTS), default=list(PARTS), help=f"parts: {','.join(PARTS)}")
    parser.add_argument("--kinds", type=words(KINDS), default=list(KINDS), help=f"members: {','.join(KINDS)}")
    parser.add_argument("--sizes", type=sizes, help="processes, e.g. 30,100")
    parser.add_argument("--kills", type=int, help="kills for each kind and size (30)")
    parser.add_argument("--elections", type=int, help="kills of the leader (30)")
    parser.add_argument("--cold", type=int, help="cold restarts of all voters (20)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of victims and moments")
    parser.add_argument("--quick", action="store_true", help="10 processes, 3 kills, to see that it works")
    parser.add_argument(
        "--quota-period-ms",
        type=int,
        default=1000,  # the kernel's longest: 10 to 30 ms of work, then none for the rest of a second
        help="of the starved members' CPU quota (1000); the kernel's own is 100",
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, help="JSON file")
    settings = parser.parse_args(arguments, namespace=Settings())
    quick = settings.quick
    settings.sizes = settings.sizes or ([10] if quick else [30, 100])
    settings.kills = settings.kills or (3 if quick else 30)
    settings.elections = settings.elections or (3 if quick else 30)
    settings.cold = settings.cold or (2 if quick else 20)
    settings.idle_s = 10.0 if quick else 30.0
    settings.slow_size, settings.slow_kills, settings.slow_s = (10, 2, 20.0) if quick else (30, 5, 60.0)
    return settings


@contextmanager
def fleet_of(kind_name: str, size: int, voters: list[str] | None = None) -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="talka-bench-") as folder:
        kind: Kind = Serf() if kind_name == SERF else Talka(kind_name, Path(folder), voters)
        with Fleet(kind, size) as fleet:
            yield fleet


def say(text: str) -> None:
    print(text, flush=True)


# Detection and idle cost


def watch(settings: Settings, results: Results, kind: str, size: int) -> None:
    rng = Random(f"{settings.seed} {kind} {size}")
    with fleet_of(kind, size) as fleet:
        joined_s = fleet.start_all(STAGGER_S[kind], JOIN_PATIENCE_S)
        results.joined.setdefault(size, {})[kind] = joined_s
        results.false.setdefault(size, {})[kind] = fleet.false_verdicts
        say(f"{kind}, {size} members: all see all {joined_s:.1f} s after the first start")
        fleet.listen(SETTLE_S)
        if "idle" in settings.only:
            fleet.phase = "idle"
            idle(settings, results, fleet)
        if "detection" in settings.only:
            fleet.phase = "kills"
            kills(settings, results, fleet, rng)
        print_false_verdicts(f"{kind}, {size} members", fleet.false_verdicts)
        say(f"{kind}, {size} members: {len(fleet.false_verdicts)} false verdicts")


def idle(settings: Settings, results: Results, fleet: Fleet) -> None:
    meter = Meter([member.pid for member in fleet.up()], own_network=settings.own_network)
    fleet.listen(settings.idle_s)
    cost = meter.read()
    size = len(fleet.members)
    results.idle.setdefault(size, {})[fleet.kind.label] = cost
    say(
        f"{fleet.kind.label}, {size} members, idle {settings.idle_s:.0f} s: {told(cost.bytes_per_s)} B/s sent,"
        f" {cost.cpu_percent:.2f} % of a core (worst {cost.cpu_percent_worst:.2f} %), {cost.resident_mb:.1f} MB"
        f" (worst {cost.resident_mb_worst:.1f} MB, by share {told(cost.proportional_mb)} MB)"
    )


def kills(settings: Settings, results: Results, fleet: Fleet, rng: Random) -> None:
    """Kill one, wait until all know, start it again, wait until all see all; then the next."""
    size, label = len(fleet.members), fleet.kind.label
    first_s = results.first.setdefault(size, {}).setdefault(label, [])
    all_s = results.all.setdefault(size, {}).setdefault(label, [])
    for number in range(1, settings.kills + 1):
        fleet.listen(rng.random())  # not in step with anyone's probes
        fleet.wait_until_all_see_all(PATIENCE_S)  # a false verdict may have to heal first
        death = fleet.kill(rng.choice(list(fleet.members)))
        fleet.holds_within(lambda death=death: not death.unaware(anyone), PATIENCE_S)  # type: ignore[misc]
        first_s.append(or_never(death.first_knew_after()))
        all_s.append(or_never(death.all_knew_after(anyone)))
        say(
            f"{label}, {size} members, kill {number} of {settings.kills}: {death.name} first known after"
            f" {told(first_s[-1])} s, to all after {told(all_s[-1])} s"
        )
        fleet.start(death.name)
        fleet.wait_until_all_see_all(JOIN_PATIENCE_S)
    say(f"{label}, {size} members, until all agree: {Spread.of(all_s)}")


def anyone(name: str) -> bool:
    return True


def or_never(time_s: float | None) -> float:
    return math.inf if time_s is None else time_s


# Starved members


def slow(settings: Settings, results: Results, kind: str) -> None:
    """A few members get next to no processor; some of the others are killed meanwhile, and stay so."""
    rng = Random(f"{settings.seed} slow {kind}")
    with ExitStack() as stack:
        quotas = stack.enter_context(Quotas())
        if quotas.why_not:
            results.leave_out(f"starved members: {quotas.why_not}")
            return
        fleet = stack.enter_context(fleet_of(kind, settings.slow_size))
        fleet.start_all(STAGGER_S[kind], JOIN_PATIENCE_S)
        fleet.listen(SETTLE_S)
        fleet.phase = "starved"
        starved = list(fleet.members)[-len(QUOTAS_PERCENT) :]
        groups = []
        for name, percent in zip(starved, QUOTAS_PERCENT, strict=True):
            neighbour = subprocess.Popen([sys.executable, "-c", BUSY], process_group=0, preexec_fn=die_with_parent)
            stack.callback(neighbour.wait)
            stack.callback(neighbour.kill)
            groups.append(
                quotas.limit([fleet.members[name].pid, neighbour.pid], percent, settings.quota_period_ms * 1000)
            )
        ports = [fleet.members[name].port for name in starved]
        kills_s, queued_bytes, dropped = starved_time(settings, fleet, rng, starved, ports)
        false = fleet.false_verdicts
        found = Slowness(
            about_healthy=sum(one.about not in starved for one in false),
            about_slow=sum(one.about in starved for one in false),
            by_slow=sum(one.by in starved for one in false),
            kills_s=kills_s,
            throttled=min(map(throttled_share, groups)),
            queued_bytes_worst=queued_bytes,
            dropped=dropped,
            false=false,
        )
    results.slow[kind] = found
    print_false_verdicts(f"{kind}, starved {', '.join(starved)}", false)
    say(
        f"{kind}, {len(starved)} of {settings.slow_size} members starved for {settings.slow_s:.0f} s: false verdicts"
        f" about healthy {found.about_healthy}, about starved {found.about_slow} (by starved: {found.by_slow});"
        f" quota used up in {found.throttled:.0%} of the periods or more, up to {queued_bytes / 1024:.0f} KiB waiting,"
        f" {dropped} datagrams dropped; kills of healthy ones known to the healthy after "
        f"{', '.join(map(told, kills_s))} s"
    )
    if found.throttled < 0.5 or not queued_bytes:
        results.broken.append(f"{kind}: the starved members built no backlog, so this says nothing")


def starved_time(
    settings: Settings, fleet: Fleet, rng: Random, starved: list[str], ports: list[int]
) -> tuple[list[float], int, int]:
    """Times of the kills; the longest queue seen at a starved member; datagrams dropped there."""

    def is_healthy(name: str) -> bool:
        return name not in starved

    begun_at = time.monotonic()
    kills_s: list[float] = []
    death = None
    queued_bytes = 0
    while True:
        fleet.listen(0.1)
        backlog = datagram_backlog(ports)
        queued_bytes = max(queued_bytes, *(one.queued_bytes for one in backlog.values()))
        now = time.monotonic()
        if death is not None:
            if death.unaware(is_healthy) and now < death.at + PATIENCE_S:
                continue
            kills_s.append(or_never(death.all_knew_after(is_healthy)))
            death = None
        elif len(kills_s) < settings.slow_kills:
            if now >= begun_at + (len(kills_s) + 1) * settings.slow_s / (settings.slow_kills + 1):
                death = fleet.kill(rng.choice([member.name for member in fleet.up() if is_healthy(member.name)]))
        elif now >= begun_at + settings.slow_s:
            return kills_s, queued_bytes, sum(one.dropped for one in backlog.values())


# Leadership


@contextmanager
def voters() -> Iterator[Fleet]:
    with fleet_of("default", VOTERS, [f"m{index}" for index in range(VOTERS)]) as fleet:
        fleet.start_all(0.1, JOIN_PATIENCE_S)
        fleet.wait(lambda: fleet.agreed_leader() != "", PATIENCE_S, "a leader that all name")
        yield fleet


def leader(settings: Settings, results: Results) -> None:
    rng = Random(f"{settings.seed} leader")
    with voters() as fleet:
        for number in range(1, settings.elections + 1):
            fleet.listen(1 + rng.random())
            fleet.wait(lambda: fleet.agreed_leader() != "", PATIENCE_S, "a leader that all name")
            known = len(fleet.elections)
            death = fleet.kill(fleet.agreed_leader())
            came = fleet.holds_within(lambda known=known: len(fleet.elections) > known, PATIENCE_S)  # type: ignore[misc]
            results.elections_s.append(fleet.elections[known].at - death.at if came else math.inf)
            say(
                f"leader, kill {number} of {settings.elections}: {death.name} followed by"
                f" {fleet.elections[known].name if came else 'nobody'} after {told(results.elections_s[-1])} s"
            )
            fleet.start(death.name)
            fleet.wait_until_all_see_all(JOIN_PATIENCE_S)
        results.divergences += two_of_one_term(fleet)
        say(f"leader killed until another is elected: {Spread.of(results.elections_s)}")
        unasked = len(fleet.elections) - 1 - settings.elections
        say(f"elections beyond the first and one for each kill: {unasked}")


def cold(settings: Settings, results: Results) -> None:
    """All voters are killed at once and started at once. What one of them promised must hold."""
    with voters() as fleet:
        term, token = agreed(fleet)
        for number in range(1, settings.cold + 1):
            before = len(results.divergences)
            fleet.kill_all()
            begun_at = time.monotonic()
            for name in fleet.members:
                fleet.start(name)
            results.cold_rounds += 1
            if fleet.holds_within(lambda: fleet.agreed_leader() != "", PATIENCE_S):
                results.cold_s.append(time.monotonic() - begun_at)
                fleet.wait_until_all_see_all(JOIN_PATIENCE_S)
                results.divergences += asked(fleet, f"cold start {number}")
                term_before, token_before = term, token
                term, token = agreed(fleet)
                if (term, token) <= (term_before, token_before):
                    results.divergences.append(
                        f"cold start {number}: term {term}, token {token} after term {term_before}, token "
                        f"{token_before}"
                    )
            else:
                results.cold_s.append(math.inf)
                named = ", ".join(f"{one.name} names {one.leader or 'nobody'} ({one.term})" for one in fleet.up())
                results.divergences.append(
                    f"cold start {number}: no leader that all name in {PATIENCE_S:.0f} s: {named}"
                )
            say(
                f"cold start {number} of {settings.cold}: {fleet.agreed_leader() or 'nobody'} leads, term {term},"
                f" after {told(results.cold_s[-1])} s, {len(results.divergences) - before} divergences"
            )
        results.divergences += two_of_one_term(fleet)
        say(f"cold start of all voters until all name one leader: {Spread.of(results.cold_s)}")


def agreed(fleet: Fleet) -> tuple[int, tuple[int, ...]]:
    """Term and token of the present leader, by its own word."""
    last = next((one for one in reversed(fleet.elections) if one.name == fleet.agreed_leader()), None)
    return (last.term, last.token) if last else (0, ())


def asked(fleet: Fleet, when: str) -> list[str]:
    """Where the answers of `talka cluster leader` differ from each other or from the events, and stay so."""
    assert isinstance(fleet.kind, Talka)
    for _ in range(3):  # a leader may change between two questions
        fleet.listen(1.0)
        answers = {}
        for member in fleet.up():
            ended = subprocess.run(
                fleet.kind.leader_command(member.port), capture_output=True, text=True, check=False, timeout=60
            )
            try:
                said = json.loads(ended.stdout)
                answers[member.name] = (said["leader"], said["term"])
            except (ValueError, KeyError):
                answers[member.name] = (f"exit {ended.returncode}: {ended.stderr.strip()[-200:]}", 0)
        fleet.poll(0)
        if set(answers.values()) == {(fleet.agreed_leader(), agreed(fleet)[0])}:
            return []
    return [f"{when}: asked, the members answer {answers}; their events name {fleet.agreed_leader() or 'nobody'}"]


def two_of_one_term(fleet: Fleet) -> list[str]:
    leaders: dict[int, str] = {}
    return [
        f"term {one.term} elected {leaders[one.term]} and {one.name}"
        for one in fleet.elections
        if leaders.setdefault(one.term, one.name) != one.name
    ]


# The model


def model(settings: Settings, results: Results) -> None:
    """The simulator's Serf: median over some seeds of the time until every survivor knows."""
    sys.path.insert(0, str(ROOT))
    from tests.sim.membership_figures import detection

    for size in settings.sizes:
        seeds = range(settings.seed, settings.seed + MODEL_SEEDS)
        times_s = [time_s for seed in seeds for time_s in detection(SERF, members=size, seed=seed).times_s]
        results.model[size] = statistics.median(times_s)
        say(f"simulated {SERF}, {size} members, until all agree: {Spread.of(times_s)}")


def serf_version(settings: Settings) -> str:
    if SERF not in settings.kinds:
        return ""
    return f", Serf {subprocess.run(['serf', 'version'], capture_output=True, text=True).stdout.split()[0]}"


def main() -> None:
    settings = settings_of(sys.argv[1:])
    settings.output.parent.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that groups and folders are removed
    results = Results()
    if SERF in settings.kinds and not have("serf", "serf"):
        settings.kinds.remove(SERF)
        results.leave_out("Serf, and so every ratio and the check of the model: serf is missing (Debian package serf)")
    why_not = enter_own_network()
    settings.own_network = not why_not
    if why_not:
        results.leave_out(f"bytes per second: {why_not}, so others' traffic would count")

    results.settings = {key: value for key, value in vars(settings).items() if key != "output"}
    say(f"{os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}{serf_version(settings)}")

    def measure(what: str, scenario: Callable[[], None]) -> None:
        say(f"\n{what}")
        try:
            scenario()
        except Broken as broken:
            results.broken.append(str(broken))
            say(f"not measured: {broken}")
        results.write(settings.output)

    for size in settings.sizes if {"detection", "idle"} & set(settings.only) else ():
        for kind in settings.kinds:
            measure(f"{kind}, {size} members", lambda kind=kind, size=size: watch(settings, results, kind, size))  # type: ignore[misc]
    for kind in settings.kinds if "slow" in settings.only else ():
        measure(f"{kind}, starved members", lambda kind=kind: slow(settings, results, kind))  # type: ignore[misc]
    if "leader" in settings.only and set(OURS) & set(settings.kinds):
        measure("kills of the leader", lambda: leader(settings, results))
    if "cold" in settings.only and set(OURS) & set(settings.kinds):
        measure("cold starts of all voters", lambda: cold(settings, results))
    if "model" in settings.only:
        measure("the simulator against Serf", lambda: model(settings, results))
    is_met = print_report(results)
    results.write(settings.output)
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
