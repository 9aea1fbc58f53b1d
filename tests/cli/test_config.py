"""Where settings come from, which of them wins, and what is said of wrong ones."""

import ast
import json
import os
from pathlib import Path

import pytest

import talka
from talka.cli.config import (
    CHECKS,
    BadSetting,
    core_environment,
    own_environment,
    pass_variables,
    read_settings,
)
from talka.cli.main import run_command


@pytest.fixture(autouse=True)
def nothing_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CHECKS:
        monkeypatch.delenv(f"TALKA_{name.upper()}", raising=False)


def write(name: str, text: str) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def problem(flags: dict[str, object] | None = None) -> str:
    with pytest.raises(talka.Invalid) as caught:
        read_settings(flags or {})
    return str(caught.value)


def test_each_place_gives_way_to_the_one_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def vus_and_origin(flags: dict[str, object]) -> tuple[int | None, str]:
        settings = read_settings(flags)
        return settings.vus, settings.origins.get("vus", "default")

    assert vus_and_origin({"vus": None}) == (None, "default")
    write("pyproject.toml", "[tool.talka]\nvus = 1")
    assert vus_and_origin({}) == (1, "pyproject.toml [tool.talka]")
    write("talka.toml", "vus = 2")
    assert vus_and_origin({}) == (2, "talka.toml")
    monkeypatch.setenv("TALKA_VUS", "3")
    assert vus_and_origin({"vus": None}) == (3, "TALKA_VUS")
    assert vus_and_origin({"vus": "4"}) == (4, "--vus")


def test_settings_of_several_places_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    write("pyproject.toml", '[tool.talka]\nduration = "30s"\ngrace = 5')
    write("talka.toml", 'rate = "50/s"\ngrace = 1.5')
    monkeypatch.setenv("TALKA_CORES", "2")
    settings = read_settings({"seed": "7"})
    assert (settings.duration, settings.rate, settings.cores, settings.seed) == ("30s", "50/s", 2, 7)
    assert settings.grace == 1.5


def test_every_setting_can_come_from_every_place(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, tuple[str, str, object]] = {
        "vus": ("5", "5", 5),
        "rate": ('"30/m"', "30/m", "30/m"),
        "duration": ('"1m"', "1m", "1m"),
        "cores": ("2", "2", 2),
        "thresholds": ('["failed < 1%", "rate > 5/s"]', "failed < 1%; rate > 5/s", ("failed < 1%", "rate > 5/s")),
        "json": ('"out.json"', "out.json", "out.json"),
        "html": ('"out.html"', "out.html", "out.html"),
        "junit": ('"out.xml"', "out.xml", "out.xml"),
        "summary": ('"p50,p99.9"', "p50, p99.9", "p50,p99.9"),
        "outputs": ('["csv=a/", "jsonl=b"]', "csv=a/; jsonl=b", ("csv=a/", "jsonl=b")),
        "keep": ("true", "yes", True),
        "store": ('"kept.sqlite"', "kept.sqlite", "kept.sqlite"),
        "keep_history": ('"90d,500"', "90d,500", "90d,500"),
        "keep_failed_history": ('"20"', "20", "20"),
        "seed": ("0", "0", 0),
        "ui": ('"none"', "none", "none"),
        "engine": ('"native"', "native", "native"),
        "grace": ('"0s"', "0s", "0s"),
        "allow_partial": ("true", "yes", True),
        "iterations": ("9", "9", 9),
        "to": ('"10.0.0.5:8470"', "10.0.0.5:8470", "10.0.0.5:8470"),
        "token_file": ('"mine.token"', "mine.token", "mine.token"),
        "ca": ('"ca.crt"', "ca.crt", "ca.crt"),
        "priority": ("9", "9", 9),
        "workers_have": ('["numpy", "pandas"]', "numpy, pandas", ("numpy", "pandas")),
        "zone": ('"z1"', "z1", "z1"),
        "datacenter": ('"d1"', "d1", "d1"),
        "region": ('"r1"', "r1", "r1"),
    }
    assert given.keys() == CHECKS.keys()
    for name, (written, text, value) in given.items():
        write("talka.toml", f"{name} = {written}")
        assert getattr(read_settings({}), name) == value
        Path("talka.toml").unlink()
        write("pyproject.toml", f"[tool.talka]\n{name} = {written}")
        assert getattr(read_settings({}), name) == value
        Path("pyproject.toml").unlink()
        with monkeypatch.context() as patch:
            patch.setenv(f"TALKA_{name.upper()}", text)
            assert getattr(read_settings({}), name) == value
        flag = value if name in ("thresholds", "outputs", "allow_partial", "keep") else text
        assert getattr(read_settings({name: flag}), name) == value


def test_empty_variable_and_flags_not_given_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALKA_VUS", "")
    settings = read_settings({"thresholds": (), "allow_partial": None})
    assert settings.vus is None and settings.origins == {}


def test_switch_can_be_turned_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    write("talka.toml", "allow_partial = true")
    assert read_settings({}).allow_partial
    assert not read_settings({"allow_partial": False}).allow_partial
    monkeypatch.setenv("TALKA_ALLOW_PARTIAL", "off")
    assert not read_settings({}).allow_partial


def test_number_of_iterations_sets_aside_the_rate_of_a_lower_place(monkeypatch: pytest.MonkeyPatch) -> None:
    write("talka.toml", "rate = 50")
    assert read_settings({"iterations": "20"}).rate is None
    monkeypatch.setenv("TALKA_ITERATIONS", "20")
    assert (read_settings({}).rate, read_settings({}).iterations) == (None, 20)
    assert (read_settings({"rate": "5"}).rate, read_settings({"rate": "5"}).iterations) == ("5", None)
    # Side by side they are a mistake, which is left to be told.
    assert read_settings({"rate": "5", "iterations": "20"}).rate == "5"


def test_files_are_found_up_to_the_root_of_the_repository(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("talka.toml", 'vus = 2\njson = "results/last.json"')
    write("inner/deep/shop.py", "")
    monkeypatch.chdir(folder / "inner" / "deep")
    settings = read_settings({})
    assert settings.vus == 2 and settings.origins["vus"] == "../../talka.toml"
    # Beside the file that names it.
    assert settings.json is not None
    assert Path(settings.json).resolve() == (folder / "results" / "last.json").resolve()

    (folder / "inner" / ".git").mkdir()
    assert read_settings({}).vus is None


def test_nearest_file_wins_and_others_of_its_name_are_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("talka.toml", "this is not TOML")
    write("inner/talka.toml", "vus = 3")
    monkeypatch.chdir(folder / "inner")
    assert read_settings({}).vus == 3


def test_project_file_without_our_table_is_passed_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("pyproject.toml", "[tool.talka]\nvus = 4")
    write("inner/pyproject.toml", "[project]\nname = 'inner'")
    monkeypatch.chdir(folder / "inner")
    assert read_settings({}).vus == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vuss = 3", ["talka.toml", "'vuss'", "Did you mean vus?"]),
        ("allow-partial = true", ["'allow-partial'", "Did you mean allow_partial?"]),
        ("zzz = 3", ["'zzz'", "There are vus, rate, duration"]),
        ("[load]\nvus = 3", ["'load'"]),
        ('vus = "5"', ["talka.toml: vus", '"5"', "whole number"]),
        ("vus = true", ["talka.toml: vus", "whole number"]),
        ("vus = 0", ["talka.toml: vus", "from 1 to 1,000,000"]),
        ("cores = 0", ["talka.toml: cores"]),
        ('duration = "5 parsecs"', ["talka.toml: duration", "5 parsecs"]),
        ("duration = []", ["talka.toml: duration"]),
        ("duration = 0", ["talka.toml: duration", "nothing would run"]),
        ("rate = -3", ["talka.toml: rate", "negative"]),
        ("rate = 0", ["talka.toml: rate", "nothing would run"]),
        ("thresholds = 3", ["talka.toml: thresholds", "list of rules"]),
        ('thresholds = ["fast"]', ["talka.toml: thresholds", '"fast"']),
        ('ui = "fancy"', ["talka.toml: ui", "auto, full, ci, none"]),
        ("outputs = [1]", ["talka.toml: outputs", "jsonl=windows.jsonl"]),
        ("engine = 1", ["talka.toml: engine", "auto, native, python"]),
        ('allow_partial = "yes"', ["talka.toml: allow_partial", "true or false"]),
        ("json = 3", ["talka.toml: json", "name of a file"]),
        ('json = ""', ["talka.toml: json", "name of a file"]),
        ("seed = -1", ["talka.toml: seed"]),
        ('grace = "soon"', ["talka.toml: grace", "soon"]),
        ("vus = = 3", ["talka.toml cannot be read", "line 1"]),
    ],
)
def test_wrong_file_is_named_with_its_key(text: str, words: list[str]) -> None:
    write("talka.toml", text)
    sentence = problem()
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tool.talka]\nvuss = 3", ["pyproject.toml: [tool.talka] has no setting 'vuss'", "Did you mean vus?"]),
        ("[tool.talka]\nvus = -3", ["pyproject.toml: [tool.talka] vus = -3"]),
        ("[tool]\ntalka = 3", ["pyproject.toml: [tool.talka] is not a table"]),
        ("[tool.talka\n", ["pyproject.toml cannot be read", "line 1"]),
    ],
)
def test_wrong_project_file_is_named_with_its_key(text: str, words: list[str]) -> None:
    write("pyproject.toml", text)
    sentence = problem()
    assert all(word in sentence for word in words), sentence


def test_project_file_whose_tools_are_no_table_has_none_of_ours() -> None:
    write("pyproject.toml", "tool = 3")
    assert read_settings({}).origins == {}


def test_file_that_is_not_text_is_named() -> None:
    Path("talka.toml").write_bytes(b"vus = \xff")
    assert "talka.toml cannot be read" in problem()


@pytest.mark.parametrize(
    ("name", "text"),
    [("vus", "many"), ("vus", "1e3"), ("cores", "-1"), ("allow_partial", "perhaps"), ("rate", "fast"), ("ui", "loud")],
)
def test_wrong_variable_and_wrong_flag_are_named(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = f"--{name.replace('_', '-')}"
    assert problem({name: text}).startswith(f'{flag} = "{text}"' if text != "-1" else f"{flag} = {text}")
    monkeypatch.setenv(f"TALKA_{name.upper()}", text)
    assert problem().startswith(f"TALKA_{name.upper()} = ")


def test_show_tells_value_and_origin_of_every_setting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("talka.toml", 'rate = "50/s"\nthresholds = ["failed < 1%", "rate > 5/s"]\nallow_partial = true')
    monkeypatch.setenv("TALKA_CORES", "2")
    assert run_command(["config", "show"]) == 0
    head, *rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    assert [part for part in head if part] == ["SETTING", "VALUE", "ORIGIN"]
    shown = {row[0].strip(): [part.strip() for part in row[1:] if part] for row in rows}
    assert shown.keys() == CHECKS.keys()
    assert shown["rate"] == ["50/s", "talka.toml"]
    assert shown["thresholds"] == ["failed < 1%; rate > 5/s", "talka.toml"]
    assert shown["allow_partial"] == ["true", "talka.toml"]
    assert shown["cores"] == ["2", "TALKA_CORES"]
    assert shown["vus"] == ["-", "default"]
    assert shown["grace"] == ["30s", "default"]

    assert run_command(["config", "show", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.keys() == CHECKS.keys()
    assert document["cores"] == {"value": 2, "origin": "TALKA_CORES"}
    assert document["vus"] == {"value": None, "origin": "default"}


def test_show_of_a_wrong_file_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    write("talka.toml", "vuss = 3")
    assert run_command(["config", "show"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "talka.toml" in printed.err and "vuss" in printed.err


def test_variables_are_passed_on_all_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIVEN", "EMPTY", "UNSET"):
        monkeypatch.setenv(name, "before")
    monkeypatch.delenv("UNSET")
    with pytest.raises(BadSetting, match="UNSET is not set"):
        pass_variables(["GIVEN=a=b", "UNSET"])
    assert os.environ["GIVEN"] == "before"
    pass_variables(["GIVEN=a=b", "EMPTY="])
    assert (os.environ["GIVEN"], os.environ["EMPTY"]) == ("a=b", "")
    with pytest.raises(BadSetting, match="names no variable"):
        pass_variables(["=value"])


def test_nobody_else_reads_the_environment_or_configuration() -> None:
    root = Path(talka.__file__).parent
    # The bundled test is a user's file. Of the variables a user's test reads, a bundle must know which are set here,
    # and a core sets those that travelled; a user's command inherits those of its core. None is a setting of Talka's
    # own.
    allowed = {
        root / "cli" / "config.py",
        root / "cli" / "demo" / "workflow.py",
        root / "engine" / "bundle.py",
        root / "engine" / "handlers" / "command_run.py",
        root / "engine" / "unpack.py",
    }
    for path in set(root.rglob("*.py")) - allowed:
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")), path
            names = node.names if isinstance(node, ast.Import | ast.ImportFrom) else []
            assert not {alias.name for alias in names} & {"environ", "getenv", "tomllib"}, path


# What cores find in their environment.


def test_cores_find_what_programs_need_and_what_is_named_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        **{"PATH": "/bin", "LC_ALL": "C", "https_proxy": "http://proxy", "PYTHONHASHSEED": "1", "DB_URL": "db://"},
        **{"DB_PASSWORD": "hidden", "TALKA_TOKEN": "hidden", "AWS_SECRET_ACCESS_KEY": "hidden"},
    }
    monkeypatch.setattr(os, "environ", given)

    assert core_environment(["DB_URL"]) == {
        **{"PATH": "/bin", "LC_ALL": "C", "https_proxy": "http://proxy", "PYTHONHASHSEED": "1", "DB_URL": "db://"}
    }
    assert own_environment() == {name: text for name, text in given.items() if name != "TALKA_TOKEN"}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "TALKA_TOKEN",
            "--core-env TALKA_TOKEN is not possible: settings of Talka are not for tests and handlers to read",
        ),
        ("NOT_SET", "--core-env NOT_SET is not possible: there is no such variable here; set it, or leave it out"),
    ],
)
def test_variables_that_cores_cannot_have_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, sentence: str
) -> None:
    monkeypatch.setattr(os, "environ", {"TALKA_TOKEN": "hidden"})

    with pytest.raises(BadSetting) as caught:
        core_environment([name])

    assert str(caught.value) == sentence
