"""Whatever is wrong is told in a sentence, with file and line where there is one, before anything is sent."""

import os
import socket
from pathlib import Path

import pytest

from talka.engine.load import native

HEAD = "from talka import URL, ConstantVUs, HTTPResponse, Workflow, depends, step\n\n\n"

FIVE = ["--iterations", "5", "--ui", "none", "--cores", "1"]


@pytest.fixture
def write(folder: Path, server):
    """Writes a test; URL stands for the server. Its first line after the import is line 4."""

    def write_file(body: str, name: str = "shop.py") -> str:
        (folder / name).write_text(HEAD + body.replace("URL_HERE", server.url))
        return name

    return write_file


@pytest.fixture
def good(write) -> str:
    return write(
        """class Browse(Workflow):
    @step()
    async def home(self, url: URL = "URL_HERE/") -> HTTPResponse:
        return await self.client.http.get(url)
"""
    )


@pytest.fixture
def refused(here, server):
    """Runs the command and sees that it was refused as it should be. Nothing is started for it, so it runs here."""
    return refusing(here, server)


@pytest.fixture
def refused_process(talka, server):
    """The same of a process, whose exit code and stderr are what a shell sees."""
    return refusing(talka, server)


def refusing(command, server):
    def run(code: int, *words: str, args: list[str], **variables: str) -> str:
        done = command("run", *args, **variables)
        assert done.returncode == code, done.stderr
        assert done.stdout == ""
        assert all(word in done.stderr for word in words), done.stderr
        assert "Traceback" not in done.stderr and "internal error" not in done.stderr
        assert server.requests == 0
        return str(done.stderr)

    return run


# The command line.


def test_missing_file(refused_process) -> None:
    refused_process(2, "there is no file nosuch.py", args=["nosuch.py"])


def test_missing_file_with_a_class(refused) -> None:
    refused(2, "there is no file nosuch.py", args=["nosuch.py:Browse"])


def test_folder_in_place_of_a_file(refused, folder: Path) -> None:
    refused(2, "is a folder", args=[str(folder)])


def test_address_without_a_scheme(refused) -> None:
    refused(2, "localhost:8400", "http://", args=["localhost:8400"])


def test_unknown_class(refused, good: str) -> None:
    refused(2, "shop.py", "Brose", "Browse", args=[f"{good}:Brose"])


def test_names_that_are_none(refused, good: str) -> None:
    refused(2, "shop.py", "names no class", args=[f"{good}:"])


def test_bad_scheme_on_the_command_line(refused) -> None:
    refused(2, "ftp://example.com/", "http and https", args=["ftp://example.com/"])


def test_bad_url_on_the_command_line(refused) -> None:
    refused(2, "http://exa mple.com/", args=["http://exa mple.com/"])


def test_unknown_flag(refused, good: str) -> None:
    refused(2, "--user", "talka run --help", args=[good, "--user", "5"])


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--vus", "-3"),
        ("--vus", "0"),
        ("--vus", "many"),
        ("--cores", "0"),
        ("--iterations", "-1"),
        ("--seed", "x"),
        ("--duration", "5 parsecs"),
        ("--for", "0s"),
        ("--rate", "fast"),
        ("--rate", "-5/s"),
        ("--grace", "soon"),
        ("--ui", "loud"),
        ("--engine", "steam"),
    ],
)
def test_flag_with_a_value_that_cannot_be(refused, good: str, flag: str, value: str) -> None:
    named = {"--for": "--duration"}.get(flag, flag)
    refused(2, f"{named} = ", value, args=[good, flag, value])


@pytest.fixture
def stale(folder: Path) -> dict[str, str]:
    """Variables under which the native engine that is found is one of another version."""
    (folder / "before").mkdir()
    (folder / "before" / "sitecustomize.py").write_text(
        "import sys, types\nsys.modules['talka._native'] = types.SimpleNamespace(INTERFACE=0)\n"
    )
    return {"PYTHONPATH": str(folder / "before")}


def test_native_engine_of_another_version_is_refused_when_asked_for(
    refused_process, good: str, stale: dict[str, str]
) -> None:
    words = ("there is no native engine here: ", "was built for another Talka")
    refused_process(2, "--engine = native: ", *words, args=[good, "--engine", "native"], **stale)
    refused_process(2, "TALKA_ENGINE = native: ", *words, args=[good], TALKA_ENGINE="native", **stale)


def test_native_engine_of_another_version_is_left_alone_by_default(talka, good: str, stale: dict[str, str]) -> None:
    done = talka("run", good, "--iterations", "3", "--vus", "1", "--cores", "1", **stale)
    assert done.returncode == 0, done.stderr
    assert "engine python" in done.stdout


@pytest.mark.parametrize("engine", ["auto", "native", "python"])
def test_engine_that_was_chosen_is_the_one_that_runs(talka, good: str, engine: str) -> None:
    built = native.available() is None
    if engine == "native" and not built:
        pytest.skip("there is no native engine")
    done = talka("run", good, "--iterations", "3", "--vus", "1", "--cores", "1", "--engine", engine)
    assert done.returncode == 0, done.stderr
    assert ("engine native (direct)" if built and engine != "python" else "engine python") in done.stdout


def test_flags_that_exclude_each_other(refused, good: str) -> None:
    refused(2, "--rate", "--iterations", args=[good, "--rate", "5", "--iterations", "5"])


def test_setting_that_does_not_fit_the_file_is_told_with_its_origin(refused, good: str) -> None:
    refused(2, "--rate needs --duration", "TALKA_RATE", args=[good], TALKA_RATE="5")


def test_threshold_on_the_command_line_that_cannot_be_read(refused, good: str) -> None:
    refused(2, "--threshold", '"fast enough"', args=[good, "--threshold", "fast enough"])


def test_threshold_on_the_command_line_about_an_unknown_step(refused, good: str) -> None:
    refused(2, "--threshold", '"hom"', '"home"', args=[good, "--threshold", "hom.failed < 1%"])


def test_variable_that_is_not_set(refused, good: str) -> None:
    refused(2, "--env", "NOBODY_SET_THIS", args=[good, "--env", "NOBODY_SET_THIS"])


def test_variable_without_a_name(refused, good: str) -> None:
    refused(2, "--env", "NAME=VALUE", args=[good, "--env", "=5"])


@pytest.mark.parametrize(
    ("path", "reason"),
    [("nosuch/out.json", "does not exist"), (".", "folder"), ("new/", "folder"), ("/dev/null/x", "Not a directory")],
)
def test_output_that_cannot_be_written(refused, good: str, path: str, reason: str) -> None:
    refused(2, "--json", path, reason, args=[good, "--json", path])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_output_in_a_folder_of_others(refused, good: str, folder: Path) -> None:
    (folder / "locked").mkdir(mode=0o500)
    refused(2, "--json", args=[good, "--json", "locked/out.json"])


def test_output_named_by_a_file_of_settings(refused, good: str, folder: Path) -> None:
    (folder / "talka.toml").write_text('json = "nosuch/out.json"')
    refused(2, "talka.toml", "nosuch/out.json", args=[good])


@pytest.mark.parametrize("text", ["vuss = 3", "vus = 'three'", "vus = "])
def test_wrong_configuration(refused, good: str, folder: Path, text: str) -> None:
    (folder / "talka.toml").write_text(text)
    refused(2, "talka.toml", args=[good])


def test_wrong_variable_of_ours(refused, good: str) -> None:
    refused(2, "TALKA_VUS", "-3", args=[good], TALKA_VUS="-3")


# The file.


def test_file_without_workflows(refused, write) -> None:
    refused(3, "shop.py: ", "no workflows", args=[write("answer = 42\n")])


def test_syntax_error(refused_process, write) -> None:
    refused_process(3, "shop.py:5: ", "syntax error", args=[write("answer = 42\nanswer = = 42\n")])


def test_exception_at_import(refused, write) -> None:
    refused(3, "shop.py:5: ", "KeyError: 'price'", args=[write("prices = {}\nprices['price']\n")])


def test_import_that_leaves_the_process(refused, write) -> None:
    refused(3, "shop.py:4: ", "SystemExit", args=[write("raise SystemExit(0)\n")])


def test_missing_module(refused, write) -> None:
    refused(3, "shop.py:4: ", "nosuchmodule", args=[write("import nosuchmodule\n")])


def test_cycle_of_steps(refused, write) -> None:
    body = """class Browse(Workflow):
    @step("second")
    async def first(self) -> HTTPResponse:
        return await self.client.http.get("URL_HERE/")

    @step("first")
    async def second(self) -> HTTPResponse:
        return await self.client.http.get("URL_HERE/")
"""
    refused(3, "shop.py:5: ", "circle", "first → second", args=[write(body)])


def test_unknown_step(refused, write) -> None:
    body = """class Browse(Workflow):
    @step("log_in")
    async def first(self) -> HTTPResponse:
        return await self.client.http.get("URL_HERE/")
"""
    refused(3, "shop.py:5: ", "log_in", args=[write(body)])


def test_cycle_of_workflows(refused, write) -> None:
    body = """@depends("Buy")
class Browse(Workflow):
    @step()
    async def first(self) -> HTTPResponse:
        return await self.client.http.get("URL_HERE/")


@depends("Browse")
class Buy(Workflow):
    @step()
    async def second(self) -> HTTPResponse:
        return await self.client.http.get("URL_HERE/")
"""
    refused(3, "shop.py", "circle", "Browse", "Buy", args=[write(body)])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("vus = -3", ["-3"]),
        ('duration = "5 parsecs"', ["5 parsecs"]),
        ('load = ConstantVUs(-3, "5s")', ["-3"]),
        ('thresholds = ["fast enough"]', ["fast enough"]),
        ('thresholds = ["hom.failed < 1%"]', ['"hom"', '"home"']),
    ],
)
def test_wrong_value_in_the_file(refused, write, line: str, words: list[str]) -> None:
    body = f"""class Browse(Workflow):
    {line}

    @step()
    async def home(self, url: URL = "URL_HERE/") -> HTTPResponse:
        return await self.client.http.get(url)
"""
    refused(3, "shop.py:5: ", *words, args=[write(body)])


@pytest.mark.parametrize("url", ["ftp://example.com/", "http://exa mple.com/", "example.com"])
def test_bad_url_in_the_file(refused, write, url: str) -> None:
    body = f"""class Browse(Workflow):
    @step()
    async def home(self, url: URL = "{url}") -> HTTPResponse:
        return await self.client.http.get(url)
"""
    refused(3, "shop.py:5: ", url, args=[write(body)])


def test_every_problem_of_the_file_is_told_at_once(refused, write) -> None:
    body = """class Browse(Workflow):
    vus = -3
    thresholds = ["fast enough"]

    @step()
    async def home(self, url: URL = "URL_HERE/") -> HTTPResponse:
        return await self.client.http.get(url)
"""
    refused(3, "shop.py:5: ", "shop.py:6: ", args=[write(body)])


def test_file_that_prints_control_codes_cannot_steer_the_terminal(refused_process, write) -> None:
    told = refused_process(3, "shop.py:4: ", args=[write('raise ValueError("\\x1b[2Jgone")\n')])
    assert "\x1b" not in told


# The target.


def test_unresolvable_host(talka, server, write) -> None:
    body = """class Browse(Workflow):
    @step()
    async def home(self, url: URL = "http://nosuch.invalid/") -> HTTPResponse:
        return await self.client.http.get(url)
"""
    done = talka("run", write(body), "--ui", "none", "--cores", "1")
    assert done.returncode == 6, done.stderr
    assert "'nosuch.invalid' cannot be found" in done.stdout and "Traceback" not in done.stderr


def test_all_requests_refused(talka) -> None:
    # Bound and not listened on: nobody else can take the port, and it refuses.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        done = talka("run", f"http://127.0.0.1:{taken.getsockname()[1]}/", *FIVE)
    assert done.returncode == 6, done.stderr
    assert "none succeeded" in done.stdout and "refused" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
