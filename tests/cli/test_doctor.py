"""`talka doctor` tells what it found, what is wrong with it, and what to do."""

import json
from dataclasses import replace
from typing import Any

import pytest

from talka.cli import doctor as doctor_module
from talka.cli import main
from talka.cli.doctor import (
    CHECKS,
    OPTIONAL,
    REQUIRED,
    Finding,
    MachineFacts,
    cgroup_cpus,
    closing,
    document,
    examine,
    exit_code,
    number_in,
    page,
    port_range,
    version_of,
)

GOOD = MachineFacts(
    python=(3, 12, 1),
    files_soft=1024,
    files_hard=1_048_576,
    files_spare=64,
    ports=(32768, 60999),
    cores_physical=4,
    cpus_logical=8,
    cpus_allowed=8,
    load_1m=0.2,
    timer_late_us=90.0,
    timer_worst_us=300.0,
    clock_is_monotonic=True,
    clock_resolution_ns=1.0,
    clock_source="tsc",
    somaxconn=4096,
    tcp_tw_reuse=2,
    cgroup_cpus=None,
    memory_available_bytes=8 * 1024**3,
    packages=dict.fromkeys([*REQUIRED, *OPTIONAL], "1.0"),
)
ELSEWHERE = replace(
    GOOD,
    files_soft=None,
    files_hard=None,
    ports=None,
    cores_physical=None,
    load_1m=None,
    clock_source=None,
    somaxconn=None,
    tcp_tw_reuse=None,
    memory_available_bytes=None,
)


def without(*modules: str) -> dict[str, Any]:
    return {"packages": {**GOOD.packages, **dict.fromkeys(modules)}}


def found(facts: MachineFacts, check: str) -> Finding:
    (finding,) = (finding for finding in examine(facts) if finding.check == check)
    return finding


def test_good_machine_is_well_in_every_check() -> None:
    assert {finding.verdict for finding in examine(GOOD)} == {"ok"}
    assert len({finding.check for finding in examine(GOOD)}) == len(CHECKS)


def test_system_that_tells_little_is_no_worse_for_it() -> None:
    assert {finding.verdict for finding in examine(ELSEWHERE)} == {"ok"}


@pytest.mark.parametrize(
    ("check", "change", "words"),
    [
        ("open files", {"files_hard": 1024}, "3,840 virtual users on 4 cores"),
        ("ports", {"ports": (50000, 50599)}, "600 connections"),
        ("cores", {"cpus_allowed": 2}, "2 allowed"),
        ("cores", {"cores_physical": 1, "cpus_logical": 1, "cpus_allowed": 1}, "1 to use"),
        ("cpu limit", {"cgroup_cpus": 1.5}, "1.5 CPUs"),
        ("load", {"load_1m": 4.1}, "4.10"),
        ("event loop", without("uvloop"), "not installed"),
        ("engine", {"native_obstacle": "it was not built"}, "python; there is no native one: it was not built"),
        ("timers", {"timer_late_us": 2500.0}, "2500 µs"),
        ("clock", {"clock_resolution_ns": 1e6}, "1e+06 ns"),
        ("clock", {"clock_source": "hpet"}, "hpet"),
        ("tcp", {"somaxconn": 128}, "somaxconn 128"),
        ("tcp", {"tcp_tw_reuse": 0}, "tcp_tw_reuse 0"),
        ("memory", {"memory_available_bytes": 100 * 1024**2}, "100 MiB"),
    ],
)
def test_what_could_be_better_is_a_warning_with_a_remedy(check: str, change: dict[str, Any], words: str) -> None:
    findings = examine(replace(GOOD, **change))
    (finding,) = (finding for finding in findings if finding.verdict != "ok")
    assert finding.check == check and finding.verdict == "warning" and words in finding.text and finding.fix
    assert exit_code(findings) == 0 and check in closing(findings)


@pytest.mark.parametrize(
    ("check", "change"),
    [
        ("python", {"python": (3, 10, 9)}),
        ("packages", without("httptools")),
        ("open files", {"files_hard": 60}),
        ("ports", {"ports": (5, 4)}),
        ("clock", {"clock_is_monotonic": False}),
        ("memory", {"memory_available_bytes": 1024}),
    ],
)
def test_what_makes_runs_impossible_is_a_problem_and_exit_code_two(check: str, change: dict[str, Any]) -> None:
    findings = examine(replace(GOOD, **change))
    finding = found(replace(GOOD, **change), check)
    assert finding.verdict == "problem" and finding.fix
    assert exit_code(findings) == 2
    assert f"fixed: {check} (exit code 2)" in closing(findings)


def test_limit_of_a_control_group_that_is_wide_enough_is_well() -> None:
    assert found(replace(GOOD, cgroup_cpus=4.0), "cpu limit").verdict == "ok"


def test_extras_that_are_missing_are_named_with_their_packages() -> None:
    text = found(replace(GOOD, **without("asyncpg", "yaml")), "extras").text
    assert "uvloop 1.0" in text and "talka[postgres]" in text and "pyyaml" in text
    assert "none installed" in found(replace(GOOD, packages={}), "extras").text


def test_page_has_a_mark_for_each_check_and_remedies_only_where_something_is_wrong() -> None:
    text = page(examine(replace(GOOD, load_1m=9.0, python=(3, 9, 0))), 100)
    lines = text.splitlines()
    assert sum(line[:1] == "✓" for line in lines) == len(CHECKS) - 2
    assert sum(line[:1] == "!" for line in lines) == sum(line[:1] == "✗" for line in lines) == 1
    assert text.count("→") == 2 and max(map(len, lines)) <= 100


def test_document_holds_facts_and_verdicts() -> None:
    facts = replace(GOOD, load_1m=9.0)
    read = json.loads(document(facts, examine(facts)))
    assert read["schema"] == "talka.doctor/1" and read["usable"] is True and read["facts"]["load_1m"] == 9.0
    fixes = {check["check"]: check["fix"] for check in read["checks"]}
    assert fixes["load"] and fixes["python"] is None


# Reading the system.


@pytest.mark.parametrize(
    ("content", "cpus"),
    [
        ({}, None),
        ({"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, None),
        ({"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 1.5),
        (
            {
                "/proc/self/cgroup": "0::/a/b\n",
                "/sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
                "/sys/fs/cgroup/a/cpu.max": "200000 100000\n",
            },
            2.0,
        ),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),
        (
            {
                "/proc/self/cgroup": "4:memory:/m\n3:cpu,cpuacct:/c\n",
                "/sys/fs/cgroup/cpu/c/cpu.cfs_quota_us": "300000\n",
                "/sys/fs/cgroup/cpu/c/cpu.cfs_period_us": "100000\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
        ({"/proc/self/cgroup": "0::/\nnonsense\n", "/sys/fs/cgroup/cpu.max": "1 0"}, None),
    ],
)
def test_limit_of_control_groups_of_both_versions(content: dict[str, str], cpus: float | None) -> None:
    assert cgroup_cpus(content.get) == cpus


def test_files_of_the_system_that_are_missing_or_strange_are_no_fact() -> None:
    path = "/proc/sys/net/ipv4/ip_local_port_range"
    assert port_range({path: "1024\t65535\n"}.get) == (1024, 65535)
    assert port_range({path: "x"}.get) is None and port_range({}.get) is None
    assert number_in({"a": "7\n"}.get, "a") == 7
    assert number_in({"a": "seven"}.get, "a") is None and number_in({}.get, "a") is None


def test_version_of_a_module_that_is_not_there_is_none() -> None:
    assert version_of("click") is not None and version_of("no_such_module") is None


# The command.


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]):
    def run(*arguments: str) -> tuple[int, str]:
        code = main.run_command(["doctor", *arguments])
        return code, capsys.readouterr().out

    return run


def test_this_machine_is_looked_at(doctor) -> None:
    code, out = doctor("--json")
    read = json.loads(out)
    assert code == (0 if read["usable"] else 2)
    facts = read["facts"]
    assert facts["cpus_allowed"] >= 1 and facts["timer_worst_us"] >= facts["timer_late_us"] >= 0
    assert facts["packages"]["click"] is not None


def test_exit_code_tells_that_runs_are_impossible(doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "gather", lambda: replace(GOOD, files_hard=10))
    code, out = doctor()
    assert code == 2 and "✗ open files" in out


def test_system_without_the_files_of_linux_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "read_file", lambda path: None)
    facts = doctor_module.gather()
    assert (facts.ports, facts.somaxconn, facts.clock_source, facts.cgroup_cpus) == (None, None, None, None)
