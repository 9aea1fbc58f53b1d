"""What the documents show works: every Python snippet runs, every command line is one that exists."""

import ast
import asyncio
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest

import talka
from talka.cli.demo.command import running_demo_server
from talka.cli.main import talka as command
from talka.control.dags.keeper_limits import KEEPER_LIMITS
from talka.control.tasks.known_workers import KNOWN_LIMITS
from talka.control.worker.handlers_outbox import HANDLER_LIMITS, WROTE_BYTES
from talka.engine.handlers.inline import run_dag_inline
from talka.nodes.dags.runnable import SETTLE_NS
from talka.units import SECOND
from talka.wire.output_tail import STREAM_LIMIT_BYTES
from talka.work.dags.dag import OUTPUT_LIMIT_BYTES
from talka.work.dags.endings import ENDINGS
from talka.work.dags.pipeline import Dag
from talka.work.retention import MANAGER_KEEPS
from tests import processes
from tests.processes import TALKA

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MADE = {
    "cli.md": "cli_reference.py",
    "python.md": "python_reference.py",
    "errors.md": "errors_reference.py",
    "metrics.md": "metrics_reference.py",
    "state-machines.md": "state_machines_reference.py",
}
TIMES = {
    "end after a minute without work": HANDLER_LIMITS.idle_ns,
    "those that were here in the last ten minutes": KNOWN_LIMITS.remembered_ns,
    "says so for five seconds": SETTLE_NS,
    "and a week after it was submitted last": MANAGER_KEEPS.blobs.age_ns,
}
"""What the page of pipelines says in words."""
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (path.name, text)
        for path in PAGES
        if path.name not in MADE
        for kind, text in BLOCK.findall(path.read_text())
        if kind == language
    ]


@pytest.fixture(scope="module")
def target():
    with running_demo_server() as url:
        yield url


def patient(text: str) -> str:
    """Its rules about times in seconds: what a document shows is not about the machine that tests it."""
    return re.sub(r"(response_time\.\w+ < \d+)ms", r"\1s", text)


PYTHON = blocks("python")
WORKFLOWS = [(page, text) for page, text in PYTHON if "class " in text and "Workflow)" in text]


@pytest.mark.parametrize(("page", "text"), WORKFLOWS, ids=[f"{page}-{n}" for n, (page, _) in enumerate(WORKFLOWS)])
def test_workflow_in_a_document_runs(page: str, text: str, target: str, tmp_path: Path) -> None:
    file = tmp_path / "shown.py"
    prelude = "" if "from talka import" in text else "from talka import *\n"
    file.write_text(prelude + patient(text).replace("http://127.0.0.1:8400", target))
    (tmp_path / "users.csv").write_text("name\nada\nbob\n")
    few = ["--iterations", "10", "--vus", "10"] if "share = " in text else ["--iterations", "2", "--vus", "1"]
    ended = processes.run(
        [*TALKA, "run", str(file), *few, "--ui", "none"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_python_calls_in_a_document_run(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [call] = [text for page, text in PYTHON if page == "language.md" and "await talka.run(" in text]
    visitor = next(text for page, text in WORKFLOWS if page == "language.md" and "class Visitor" in text)
    names: dict[str, object] = {"talka": talka}
    shown = patient(visitor).replace("http://127.0.0.1:8400", target).replace('duration = "30s"', 'duration = "3s"')
    exec(compile(shown, "shown.py", "exec"), names)
    names["__name__"] = "shown"
    program = "async def main():\n" + "".join(f"    {line}\n" for line in call.splitlines())
    exec(compile(program, "call.py", "exec"), names)
    asyncio.run(names["main"]())  # type: ignore[operator]


def test_output_of_a_users_own_in_a_document_runs(target: str, tmp_path: Path) -> None:
    [text] = [text for page, text in PYTHON if page == "outputs.md"]
    (tmp_path / "mine.py").write_text(text)
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "talka",
            "run",
            target,
            "--iterations",
            "2",
            "--ui",
            "none",
            "--output",
            "custom=mine.py:MyOutput",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert ended.returncode == 0 and "WARNINGS" not in ended.stdout, ended.stdout + ended.stderr


def test_handler_in_a_document_is_given_more_time_and_goes_on_from_what_it_saved() -> None:
    [text] = [text for page, text in PYTHON if page == "pipelines.md" and "on_evict" in text]
    module = ModuleType("shown")
    exec(compile(text, "shown.py", "exec"), vars(module))
    dag = Dag("shown", timeouts={"attempt": "30s"}, retry={"max": 1, "backoff": 0})
    dag.task("index", "index", {"rows": 80})
    run = run_dag_inline(dag, module)

    assert run.outputs == {"index": 80}
    # 30 s, 15 s more, and 10 s to save what the next one goes on from.
    assert (run.took_s, run.tasks["index"].log) == (45 + 10 + 80 - 44, ("15 s more, 4 times left; ",))


def test_every_python_snippet_is_one_that_is_run_here() -> None:
    run = ("await talka.run(", "on_evict")
    left = [page for page, text in PYTHON if (page, text) not in WORKFLOWS and not any(word in text for word in run)]
    assert left == ["outputs.md"]


def command_lines() -> list[tuple[str, str]]:
    found = []
    for page, text in blocks(""):
        for line in text.splitlines():
            line = re.split(r"\s{2,}", line.strip())[0]  # what follows is a remark
            if line.startswith("talka "):
                found.append((page, line))
    for path in PAGES:
        if path.name not in MADE:
            found += [(path.name, line) for line in re.findall(r"`(talka [a-z][^`]*)`", path.read_text())]
    return found


@pytest.mark.parametrize(("page", "line"), command_lines())
def test_command_in_a_document_exists_with_its_flags(page: str, line: str) -> None:
    words = shlex.split(line.replace("…", " ").replace("[", " ").replace("]", " "))[1:]
    found: click.Command = command
    context = click.Context(command, info_name="talka")
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        child = found.get_command(context, words[0])
        if child is None:
            assert found is not command or words[0].isupper(), f"{page}: talka has no command {words[0]}"
            break
        found, words = child, words[1:]
    known = {name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    assert not unknown, f"{page}: {line}"


def test_tests_and_files_that_decisions_name_are_there() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    known = {
        name for file in files for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    names = {file.name for file in files}
    missing = []
    for page in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        for word in re.findall(r"`([^`\s]+)`", page.read_text()):
            if word.startswith(("tests/", "benchmarks/")):
                is_there = (ROOT / word).exists()
            elif word.startswith("test_"):
                is_there = word in (names if word.endswith(".py") else known)
            else:
                continue
            if not is_there:
                missing.append(f"{page.name}: {word}")
    assert known and not missing


MADE_HERE = {"build"}
"""What lies there depends on what was run before."""
FOLDERS = {path.name for home in (ROOT, ROOT / "src" / "talka") for path in home.iterdir() if path.is_dir()} - MADE_HERE
PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)*(?:/|\.(?:py|md|c|h|sql|json|yaml)))(?::[^`]*)?`")


def missing_paths(page: Path) -> list[str]:
    """Files that a page names and that are not there: from the root, from `src/talka`, or beside the one before it."""
    missing = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        beside: list[Path] = []
        for word in PATH.findall(line):
            if "/" in word and word.split("/")[0] not in FOLDERS and not beside:
                continue  # a path of the user's, or a route
            found = next(
                (home / word for home in (ROOT, ROOT / "src" / "talka", *beside) if (home / word).exists()), None
            )
            if found:
                beside = [found.parent]
            elif "/" in word or beside:
                missing.append(f"{page.name}:{number}: {word}")
    return missing


MAPS = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]


@pytest.mark.parametrize("page", MAPS, ids=[page.name for page in MAPS])
def test_paths_that_a_page_names_exist(page: Path) -> None:
    assert missing_paths(page) == []


def test_a_path_that_is_gone_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`work/dsl.py`, `nothing.py` and `control/nobody.py` and GET `/livez`\n`shop.py`\n")

    assert missing_paths(page) == ["page.md:1: nothing.py", "page.md:1: control/nobody.py"]


def test_every_recipe_names_the_files_to_edit() -> None:
    recipes = (ROOT / "CONTRIBUTING.md").read_text().partition("## How to add")[2].split("\n### ")[1:]
    titles = [recipe.partition("\n")[0] for recipe in recipes]

    assert [
        title
        for title in ("a protocol client", "an output", "a kind of job", "a store", "a safeguard")
        if title not in " ".join(titles)
    ] == []
    assert [title for title, recipe in zip(titles, recipes, strict=True) if len(PATH.findall(recipe)) < 5] == []


PROTOCOLS = {
    "cluster": "fencing leases",
    "cluster/leadership": "ballot election election_timeouts followed_leader leader_term lease_terms "
    "peer_checks quorum "
    "register snapshot_transfer voter_startup voter_sync voters",
    "cluster/membership": "anti_entropy gossip local_health members membership prober suspicion updates "
    "verdicts vouched",
    "control": "manager",
    "control/blobs": "fetching replicated_blobs",
    "control/clients": "connections",
    "control/dags": "book commits handler_counts job keeper keepers rows shelf spec_reading turns",
    "control/jobs": "attempt_results bundle_rights checkpoints commands entries forwarding "
    "led_job losses orders queue registry remote_load take_over",
    "control/jobs/workers": "fleet granted_workers lease_rule sharing standing worker_life",
    "control/load": "allocation core_effects load_job shard_group shard_run",
    "control/member": "admission agreements composite key_distribution metrics_table owner replay_guard ring_guard "
    "role_check send_queue signers token_bucket voter",
    "control/tasks": "attempts clock_watch delivery dispatch dispatch_workers epoch_floor limits partition quarantine "
    "ready_queues "
    "retries schedules "
    "store_effects store_hold task worker_room",
    "control/worker": "bundles composite core_pool core_turns fences handlers_attempt handlers_cores handlers_outbox "
    "handlers_partition handlers_pool "
    "handlers_room held_shards lease machine_told obeyed_epoch reporter shards",
    "engine": "bundle containment core_stack exit_facts guard own_end",
    "engine/clients": "connection cookies",
    "engine/handlers": "handler_core",
    "engine/load": "core direct executor native native_executor",
    "nodes/dags": "dag_service kept_partitions schedule_keeper store_hold",
    "net": "certificates datagrams discovery endorsing notary streams tls vouching",
    "report/outputs": "output",
    "stats": "comparison",
    "store/dags": "memory opening records sqlite sqlite_life sqlite_store sqlite_thread",
    "store/files": "blobs keyring shelf signing_key voter_file",
    "web": "crowd tls_listener",
    "wire": "asking attempts core_end entries framing greeting jobs leadership leases manager_calls machines "
    "membership packets shards tasks versions",
    "wire/security": "access bundles envelopes keys permissions replay roles sealing",
}
"""Files that are part of a protocol, or that a decision explains, by folder."""


@pytest.mark.parametrize("folder", PROTOCOLS)
def test_the_head_of_a_protocol_file_names_its_decision(folder: str) -> None:
    missing = []
    for name in PROTOCOLS[folder].split():
        file = ROOT / "src" / "talka" / folder / f"{name}.py"
        head = ast.get_docstring(ast.parse(file.read_text())) or ""
        pages = re.findall(r"docs/decisions/[\w-]+\.md", head)
        if not pages or not all((ROOT / page).exists() for page in pages):
            missing.append(str(file.relative_to(ROOT)))
    assert missing == []


def test_the_index_lists_every_page() -> None:
    links = set(re.findall(r"\]\(([^)]+)\)", (ROOT / "docs" / "index.md").read_text()))
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}

    assert sorted(pages - links) == []
    assert [link for link in sorted(links) if not (ROOT / "docs" / link).exists()] == []


def test_the_glossary_has_twelve_words() -> None:
    rows = re.findall(r"^\| \*\*\w+\*\* \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert len(rows) == 12


def test_the_map_fits_on_200_lines() -> None:
    assert (ROOT / "ARCHITECTURE.md").read_text().count("\n") <= 200


def test_the_page_shows_the_table_of_endings() -> None:
    table = (ROOT / "docs" / "pipelines.md").read_text().partition("| the last attempt |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([^:|]+): ([^|]*) \| (\w+)", table, re.MULTILINE)
    shown = {name: (re.findall(r"SIG[A-Z]+", ends), tries) for name, ends, tries in rows}
    assert shown == {row.name: (list(row.signals), str(row.tries or "never")) for row in ENDINGS}


def test_numbers_that_the_page_of_pipelines_says_are_those_of_the_code() -> None:
    page = " ".join((ROOT / "docs" / "pipelines.md").read_text().split())
    kept, seconds = KEEPER_LIMITS, {name: value / SECOND for name, value in TIMES.items()}
    said = [
        f"Of each stream of an attempt the last {STREAM_LIMIT_BYTES >> 10} KiB are kept, of all attempts of a job"
        f" {kept.job_output_bytes >> 20} MiB",
        f"the last {WROTE_BYTES >> 10} KiB of each stream are told once a second",
        f"and on, up to {kept.elements:,}, of which",
        f"which has at most {OUTPUT_LIMIT_BYTES >> 10} KiB: {kept.elements:,} numbers of five digits fit",
        f"All inputs of a task together may have {kept.delivery.inputs_bytes >> 20} MiB",
    ]
    assert [one for one in said if one not in page] == []
    assert seconds == {
        "end after a minute without work": 60,
        "those that were here in the last ten minutes": 600,
        "says so for five seconds": 5,
        "and a week after it was submitted last": 7 * 86_400,
    }
    assert [one for one in seconds if one not in page] == []


def test_classes_that_decisions_name_are_in_the_code() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "src" / "talka").rglob("*.py"))
    missing = [
        f"{page.name}: {word}"
        for page in sorted((ROOT / "docs" / "decisions").glob("*.md"))
        for word in re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]*)*)`", page.read_text())
        if not re.search(rf"\b{word}\b", code)
    ]
    assert missing == []


@pytest.mark.parametrize(("page", "program"), MADE.items(), ids=list(MADE))
def test_page_that_is_made_from_code_is_up_to_date(page: str, program: str) -> None:
    made = subprocess.run([sys.executable, str(ROOT / "docs" / program)], capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stderr
    assert made.stdout == (ROOT / "docs" / page).read_text(), "run `make docs`"


def test_help_says_something_about_every_public_name() -> None:
    sys.path.append(str(ROOT / "docs"))
    from python_reference import GROUPS, undocumented

    assert undocumented() == []
    assert sorted(" ".join(GROUPS.values()).split()) == talka.__all__


def test_table_of_roles_is_the_one_that_is_asked() -> None:
    """`python -m talka.wire.security.permissions` writes it anew."""
    from talka.wire.security.permissions import markdown

    page = (ROOT / "docs" / "security.md").read_text()
    shown = page.partition("<!-- table: roles -->\n")[2].partition("<!-- end -->")[0]
    assert shown == markdown() + "\n"


def test_every_line_of_the_threat_model_names_tests_that_there_are() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    model = page.partition("## Threat model")[2].partition("\n## ")[0]
    files = re.findall(r"`(tests/[a-z0-9_/]+\.py)`", model)
    names = re.findall(r"`(test_[a-z0-9_]+)`", model)
    assert len(files) >= 25 and len(names) >= 10

    defined = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [file for file in files if not (ROOT / file).is_file()] == []
    assert [name for name in names if f"def {name}(" not in defined] == []
    rows = [line for line in model.splitlines() if line.startswith("| ") and not line.startswith("| |")]
    assert [row for row in rows if "`tests/" not in row and "`test_" not in row and not row.endswith("| – |")] == []
