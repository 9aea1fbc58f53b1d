"""What the result counts is what the server saw: not one more, not one less."""

import pytest

ENGINES = ("native", "python")


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(["--vus", "50", "--duration", "2s"], id="constant VUs"),
        pytest.param(["--rate", "500/s", "--duration", "2s"], id="constant rate"),
        pytest.param(["--iterations", "10000", "--vus", "20"], id="shared iterations"),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.serial
def test_requests_in_the_result_equal_the_servers_own_count(command, server, load) -> None:
    ended = command.run_file("exact.py", "--cores", "2", *load)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    totals = command.document()["totals"]
    assert totals["requests"] == server.count()
    assert totals["requests"] == totals["ok"] + totals["failed"] + totals["interrupted"]
    assert totals["requests"] >= 1000, "a count of a handful proves nothing"
    assert command.document()["workflows"][0]["cores"] == 2


@pytest.mark.parametrize("engine", ["native"])
@pytest.mark.parametrize("load", [["--vus", "50"], ["--rate", "2000/s"]], ids=["constant VUs", "constant rate"])
@pytest.mark.serial
def test_users_that_are_driven_directly_are_counted_exactly(command, server, load) -> None:
    ended = command.run_file("plain.py", "--cores", "2", "--duration", "1s", *load)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    document = command.document()
    assert document["generator"]["driver"] == "direct"
    assert document["totals"]["requests"] == document["totals"]["ok"] == server.count() >= 1000
    assert sum(row["requests"] for row in document["timeline"]) == document["totals"]["requests"]


@pytest.mark.parametrize("engine", ENGINES)
def test_shared_iterations_and_drops_add_up_exactly(command, server) -> None:
    command.run_file("exact.py", "--cores", "2", "--iterations", "700", "--vus", "10")
    document = command.document()
    steps = {step["name"]: step for step in document["workflows"][0]["steps"]}
    assert document["totals"]["iterations"] == 700
    assert steps["dropped"]["errors"] == {"reset": 100}  # every seventh of 700, and none was tried again
    assert document["totals"]["requests"] == 700 * (3 + 2 + 1) == server.count()
    assert document["totals"]["failed"] == 100


@pytest.mark.parametrize("engine", ENGINES)
def test_timeline_adds_up_to_the_totals(command) -> None:
    command.run_file("exact.py", "--iterations", "300", "--vus", "5")
    document = command.document()
    assert sum(row["requests"] for row in document["timeline"]) == document["totals"]["requests"]
    assert sum(row["failed"] for row in document["timeline"]) == document["totals"]["failed"]
    assert sum(row["iterations_started"] for row in document["timeline"]) == 300
