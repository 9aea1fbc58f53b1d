"""Settings of a node: where they come from, which of them wins, and what is said of wrong ones."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talka.cli.config import read_settings
from talka.cli.main import run_command
from talka.cli.nodes.settings import KNOWN, NodeSettings
from talka.cluster.leadership.lease_terms import OwnLease
from talka.errors import Invalid
from talka.nodes.worker import WorkerOptions
from talka.work.retention import MANAGER_KEEPS


@pytest.fixture(autouse=True)
def nothing_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("TALKA_"):
            monkeypatch.delenv(name)


def test_each_place_gives_way_to_the_one_above_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def name(flag: str | None = None) -> tuple[str, str]:
        settings = NodeSettings("worker", {"name": flag})
        return settings.id("name", "own"), settings.label("name")

    assert name() == ("own", "--name")
    (folder / "pyproject.toml").write_text('[tool.talka.worker]\nname = "a"')
    assert name() == ("a", "pyproject.toml: [tool.talka.worker] name")
    (folder / "talka.toml").write_text('[worker]\nname = "b"')
    assert name() == ("b", "talka.toml: [worker] name")
    monkeypatch.setenv("TALKA_NAME", "c")
    assert name() == ("c", "TALKA_NAME")
    assert name("d") == ("d", "--name")


def test_several_values_are_a_list_or_have_commas_between(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert NodeSettings("worker", {"seeds": ()}).texts("seeds") == ()
    (folder / "talka.toml").write_text('[worker]\nseeds = ["a:1", "b:1"]\ncapabilities = "ssd, gpu"')
    settings = NodeSettings("worker", {})
    assert settings.texts("seeds") == ("a:1", "b:1") and settings.texts("capabilities") == ("ssd", "gpu")
    monkeypatch.setenv("TALKA_SEEDS", "c:1,d:1")
    assert NodeSettings("worker", {}).texts("seeds") == ("c:1", "d:1")
    assert NodeSettings("worker", {"seeds": ("e:1",)}).texts("seeds") == ("e:1",)


def test_tags_are_given_by_flags_or_in_a_table_and_checked_with_the_name_of_the_place(folder: Path) -> None:
    assert NodeSettings("up", {"tags": ("rack=7", "spare")}).tags() == (("rack", "7"), ("spare", ""))
    assert NodeSettings("worker", {"tags": ()}).tags() == ()
    (folder / "talka.toml").write_text('[worker]\ntags = ["rack=7"]')
    assert NodeSettings("worker", {}).tags() == (("rack", "7"),)
    (folder / "talka.toml").write_text('[worker]\ntags = ["a b"]')
    with pytest.raises(Invalid, match=r"talka.toml: \[worker\] tags 'a b' is not an id"):
        NodeSettings("worker", {}).tags()
    with pytest.raises(Invalid, match="^--tag 'a b' is not an id"):
        NodeSettings("worker", {"tags": ("a b=1",)}).tags()


def test_numbers_are_read_from_texts_and_from_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = NodeSettings("up", {})
    assert (settings.cores(), settings.port(8470)) == (None, 8470)
    (folder / "talka.toml").write_text("[up]\ncores = 3\nport = 0")
    settings = NodeSettings("up", {})
    assert (settings.cores(), settings.port(8470)) == (3, 0)
    monkeypatch.setenv("TALKA_CORES", "5")
    assert NodeSettings("up", {}).cores() == 5
    assert NodeSettings("up", {"cores": "7", "port": "9000"}).port(1) == 9000


def test_durations_become_seconds(folder: Path) -> None:
    assert NodeSettings("worker", {}).seconds("grace", "30s") == 30
    assert NodeSettings("worker", {"grace": "1m30s"}).seconds("grace", "30s") == 90
    (folder / "talka.toml").write_text("[worker]\ngrace = 1.5")
    assert NodeSettings("worker", {}).seconds("grace", "30s") == 1.5


@pytest.mark.parametrize("kind", ["up", "manager"])
def test_what_is_kept_of_what_has_ended_is_a_setting(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert NodeSettings(kind, {}).keeps() == MANAGER_KEEPS
    (folder / "talka.toml").write_text(f'[{kind}]\nkeep_jobs = "30d"\nkeep_logs = 100')
    keeps = NodeSettings(kind, {"keep_failed_jobs": "90d,20"}).keeps()
    assert (str(keeps.jobs.completed), str(keeps.jobs.failed)) == ("30d,10000", "90d,20")
    assert (str(keeps.output.completed), str(keeps.output.failed)) == ("7d,100", "7d,100")
    monkeypatch.setenv("TALKA_KEEP_BLOBS", "2h,5")
    monkeypatch.setenv("TALKA_KEEP_FAILED_LOGS", "1d")
    keeps = NodeSettings(kind, {}).keeps()
    assert (str(keeps.blobs), str(keeps.output.failed)) == ("2h,5", "1d,100")
    with pytest.raises(Invalid, match=r"--keep-jobs = \"soon\" is not a duration"):
        NodeSettings(kind, {"keep_jobs": "soon"}).keeps()
    with pytest.raises(Invalid, match="TALKA_KEEP_BLOBS = 30m,5 is not possible: .* write at least 1h"):
        monkeypatch.setenv("TALKA_KEEP_BLOBS", "30m,5")
        NodeSettings(kind, {}).keeps()


@pytest.mark.parametrize("kind", ["up", "manager"])
def test_the_lease_of_workers_has_bounds(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert NodeSettings(kind, {}).own_lease() == OwnLease(5_000_000_000), "the cluster's, whatever it is"
    (folder / "talka.toml").write_text(f"[{kind}]\nlease = 60")
    own = NodeSettings(kind, {}).own_lease()
    assert own.ns == 60_000_000_000 and "talka.toml" in own.label
    monkeypatch.setenv("TALKA_LEASE", "750ms")
    assert NodeSettings(kind, {}).own_lease() == OwnLease(750_000_000, "TALKA_LEASE")
    assert NodeSettings(kind, {"lease": "0.5s"}).own_lease() == OwnLease(500_000_000, "--lease")
    for wrong in ("499ms", "60.001s", "0", "2m"):
        with pytest.raises(Invalid, match=rf"--lease = '?\"?{wrong}.* is not possible: write 500ms to 1m"):
            NodeSettings(kind, {"lease": wrong}).own_lease()
    with pytest.raises(Invalid, match="TALKA_LEASE = .*soon.* is not a duration"):
        monkeypatch.setenv("TALKA_LEASE", "soon")
        NodeSettings(kind, {}).own_lease()


def test_paths_in_a_file_are_beside_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "talka.toml").write_text('[manager]\nsecret_file = "secret"\ncerts = "~/certs"')
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    monkeypatch.setenv("HOME", "/home/somebody")
    settings = NodeSettings("manager", {"data_dir": "~/data"})
    assert settings.path("secret_file") == "../secret" and settings.path("data_dir") == "/home/somebody/data"
    assert os.path.abspath(str(settings.path("certs"))) == "/home/somebody/certs"
    assert settings.path("token_key_file") is None


def test_tables_of_nodes_are_no_business_of_a_job(folder: Path) -> None:
    (folder / "talka.toml").write_text('vus = 3\n[manager]\nname = "a"\n[worker]\n[up]\nport = 1')
    assert read_settings({}).vus == 3


@pytest.mark.parametrize("kind", KNOWN)
def test_unknown_setting_of_a_node_is_named(kind: str, folder: Path) -> None:
    (folder / "talka.toml").write_text(f'[{kind}]\nnaem = "a"')
    with pytest.raises(Invalid, match=rf"talka.toml: \[{kind}\] has no setting 'naem'. Did you mean name\?"):
        NodeSettings(kind, {})


@pytest.mark.parametrize(
    ("kind", "text", "ask"),
    [
        ("worker", "name = 3", lambda settings: settings.text("name")),
        ("worker", 'name = " "', lambda settings: settings.text("name")),
        ("worker", 'name = "a b"', lambda settings: settings.id("name")),
        ("worker", "seeds = 3", lambda settings: settings.texts("seeds")),
        ("worker", "seeds = [3]", lambda settings: settings.texts("seeds")),
        ("worker", "cores = 0", lambda settings: settings.cores()),
        ("worker", 'cores = "many"', lambda settings: settings.cores()),
        ("worker", "cores = true", lambda settings: settings.cores()),
        ("worker", "grace = true", lambda settings: settings.seconds("grace", "30s")),
        ("worker", 'grace = "soon"', lambda settings: settings.seconds("grace", "30s")),
        ("up", "port = 65536", lambda settings: settings.port(1)),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_wrong_value_is_a_sentence_that_names_its_place(kind: str, text: str, ask: Any, folder: Path) -> None:
    (folder / "talka.toml").write_text(f"[{kind}]\n{text}")
    with pytest.raises(Invalid, match=rf"talka.toml: \[{kind}\] {text.split()[0]}"):
        ask(NodeSettings(kind, {}))


def test_table_that_is_none_is_a_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "talka.toml").write_text("worker = 3")
    assert run_command(["worker"]) == 2
    assert "talka.toml: [worker] is not a table" in capsys.readouterr().err


NOTIFY = "what notices of these tests are signed with"


def test_whom_a_manager_tells_is_set_by_flags_and_files(folder: Path) -> None:
    from talka.cli.nodes.node import notify_options

    secret = folder / "notify.secret"
    secret.write_text(NOTIFY + "\n")
    secret.chmod(0o600)
    assert notify_options(NodeSettings("up", {})) == {"notify_secret": "", "may_notify_private": False}
    flags = {"notify_secret": str(secret), "allow_private_notify": True}
    assert notify_options(NodeSettings("manager", flags)) == {"notify_secret": NOTIFY, "may_notify_private": True}
    (folder / "talka.toml").write_text('[up]\nnotify_secret = "notify.secret"\nallow_private_notify = true\n')
    assert notify_options(NodeSettings("up", {})) == {"notify_secret": NOTIFY, "may_notify_private": True}
    (folder / "talka.toml").write_text('[up]\nallow_private_notify = "perhaps"\n')
    with pytest.raises(Invalid, match='allow_private_notify = "perhaps" is not possible: write true or false'):
        notify_options(NodeSettings("up", {}))
    (folder / "talka.toml").write_text('[up]\nallow_private_notify = "true"\n')
    assert notify_options(NodeSettings("up", {}))["may_notify_private"] is True


@pytest.mark.parametrize(("text", "may"), [("1", True), ("yes", True), ("true", True), ("off", False), ("0", False)])
def test_private_addresses_are_allowed_by_a_variable_as_other_switches_are(
    text: str, may: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from talka.cli.nodes.node import notify_options

    monkeypatch.setenv("TALKA_ALLOW_PRIVATE_NOTIFY", text)
    assert notify_options(NodeSettings("up", {}))["may_notify_private"] is may


# Whether code that travels is run.


@pytest.fixture
def takes_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """What the worker of a node that is started with these words would be told; nothing is started."""
    from talka.cli.nodes import life

    (folder / "secret").write_text(NOTIFY + "\n")
    (folder / "secret").chmod(0o600)
    monkeypatch.setenv("HOME", str(folder))
    told: list[WorkerOptions] = []

    def up(options: object, api: object, worker_at: Callable[[str], WorkerOptions], as_json: bool) -> int:
        told.append(worker_at("127.0.0.1:1"))
        return 0

    def worker(options: WorkerOptions, api: object, as_json: bool) -> int:
        told.append(options)
        return 0

    monkeypatch.setattr(life, "live_up", up)
    monkeypatch.setattr(life, "live_worker", worker)
    monkeypatch.setattr(life, "run_node", lambda code: code)

    def ask(*words: str) -> bool:
        where = ("--port", "0") if words[0] == "up" else ("--seed", "127.0.0.1:1", "--secret-file", "secret")
        assert run_command([*words, *where, "--data-dir", "data"]) == 0
        return told.pop().accepts_code

    return ask


Takes = Callable[..., bool]


def test_up_takes_code_unless_it_is_private_and_a_worker_takes_none(takes_code: Takes) -> None:
    assert takes_code("up") and not takes_code("up", "--private") and not takes_code("worker")
    assert takes_code("up", "--private", "--accept-code") and takes_code("worker", "--accept-code")
    assert not takes_code("up", "--no-accept-code")


@pytest.mark.parametrize("kind", ["up", "worker"])
def test_taking_code_is_set_by_files_and_variables_and_a_flag_wins(
    kind: str, takes_code: Takes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("up", "--private") if kind == "up" else ("worker",)
    (folder / "talka.toml").write_text(f"[{kind}]\naccept_code = true\n")
    assert takes_code(*words) and not takes_code(*words, "--no-accept-code")
    monkeypatch.setenv("TALKA_ACCEPT_CODE", "0")
    assert not takes_code(*words) and takes_code(*words, "--accept-code")
    (folder / "talka.toml").write_text(f"[{kind}]\naccept_code = false\n")
    assert not takes_code(kind)
    monkeypatch.setenv("TALKA_ACCEPT_CODE", "1")
    assert takes_code(*words) and not takes_code(*words, "--no-accept-code")


def test_taking_code_perhaps_is_no_setting(
    takes_code: Takes, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TALKA_ACCEPT_CODE", "perhaps")
    assert run_command(["up", "--port", "0", "--data-dir", "data"]) == 2
    assert "TALKA_ACCEPT_CODE" in capsys.readouterr().err
