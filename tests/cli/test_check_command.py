"""`talka check` finds what is wrong, shows the plan, and sends nothing."""

import json
from pathlib import Path

from talka.engine.load import native


def test_plan_is_shown_and_nothing_is_sent(talka, server, shop: Path) -> None:
    done = talka("check", "shop.py", "--cores", "2")
    assert done.returncode == 0, done.stderr
    assert "Browse" in done.stdout and "2 VUs, 1 iteration each" in done.stdout
    assert "after Browse" in done.stdout and "Nothing was sent." in done.stdout
    assert server.requests == 0


def test_plan_has_the_load_of_the_command_line(here, server, shop: Path) -> None:
    done = here("check", "shop.py:Browse", "--rate", "200/s", "--for", "1m", "--cores", "1")
    assert "200/s for 1m" in done.stdout and "12,000 arrivals" in done.stdout
    assert "Buy" not in done.stdout and server.requests == 0


def test_plan_has_the_settings_of_files_and_environment(here, shop: Path, folder: Path) -> None:
    (folder / "talka.toml").write_text('vus = 5\nthresholds = ["failed < 1%"]')
    done = here("check", "shop.py:Browse", TALKA_DURATION="7s", TALKA_CORES="1")
    assert "5 VUs" in done.stdout and "for 7s" in done.stdout and "failed < 1%" in done.stdout


def test_plan_of_a_url(here, server) -> None:
    done = here("check", f"{server.url}/json", "--rate", "5/s")
    assert done.returncode == 0 and "5/s for 10s" in done.stdout
    assert server.requests == 0


def test_what_the_file_prints_is_no_part_of_the_plan(talka, shop: Path) -> None:
    done = talka("check", "shop.py")
    assert "the file was imported" in done.stderr and "the file was imported" not in done.stdout


def test_variables_reach_the_file(here, folder: Path) -> None:
    (folder / "shop.py").write_text("import os\n\nos.environ['GIVEN']\n")
    assert "KeyError" in here("check", "shop.py").stderr
    assert "no workflows" in here("check", "shop.py", "--env", "GIVEN=1").stderr


def test_mistake_of_the_file_has_another_exit_code_than_one_of_the_command(here, shop: Path) -> None:
    done = here("check", "shop.py", "--vus", "-1")
    assert done.returncode == 2 and "--vus" in done.stderr and done.stdout == ""
    shop.write_text(shop.read_text().replace("vus = 2", "vus = -1"))
    done = here("check", "shop.py")
    assert done.returncode == 3 and "shop.py:10: " in done.stderr and done.stdout == ""


def test_threshold_that_names_nothing_is_found(here, shop: Path) -> None:
    done = here("check", "shop.py", "--threshold", "checks.is_fin > 99%")
    assert done.returncode == 2 and "is_fine" in done.stderr


def test_plan_says_what_would_run_each_workflow_and_why(here, folder: Path) -> None:
    (folder / "two.py").write_text(
        "import asyncio\n\nfrom talka import URL, HTTPResponse, Workflow, step\n\n\n"
        "class Plain(Workflow):\n    @step()\n    async def get(self, url: URL = 'http://127.0.0.1:1/') -> "
        "HTTPResponse:\n"
        "        return await self.client.http.get(url)\n\n\n"
        "class Slow(Plain):\n    @step('get')\n    async def rest(self) -> None:\n        await asyncio.sleep(1)\n"
    )
    done = here("check", "two.py", "--json", "-")
    assert done.returncode == 0, done.stderr
    plain, slow = json.loads(done.stdout)["workflows"]
    if native.available() is None:
        assert plain["engine"] == "native, direct driver"
        assert slow["engine"] == "native, tasks"
        assert "rest awaits asyncio.sleep(1)" in slow["engine_reason"] and "(two.py:15)" in slow["engine_reason"]
        assert "direct driver" in here("check", "two.py").stdout
    else:
        assert plain["engine"] == slow["engine"] == "python"
        assert plain["engine_reason"]
    assert "engine     python" in here("check", "two.py", TALKA_ENGINE="python").stdout


MIX = """
from talka import ConstantRate, HTTPResponse, Workflow, step

load = ConstantRate("100/s", "10s")


class Browse(Workflow):
    share = 7

    @step()
    async def look(self) -> HTTPResponse: ...


class Buy(Workflow):
    share = 3

    @step()
    async def order(self) -> HTTPResponse: ...
"""


def test_plan_shows_how_classes_share_a_load(command, folder: Path) -> None:
    (folder / "mix.py").write_text(MIX)

    code, out, err = command("check", "mix.py", "--cores", "2")

    assert code == 0, err
    assert "7 in 10 of 100/s for 10s" in out and "700 arrivals" in out and "70/s" in out
    assert "3 in 10 of 100/s for 10s" in out and "300 arrivals" in out and "30/s" in out


def test_file_with_a_share_in_one_class_only_is_refused(command, folder: Path) -> None:
    (folder / "mix.py").write_text(MIX.replace("    share = 3\n", ""))

    code, out, err = command("check", "mix.py")

    assert (code, out) == (3, "")
    assert "mix.py:14: Buy has no share, but Browse has" in err
