"""A feed whose rows are given once, on two cores."""


def test_every_row_is_used_once_over_all_cores_and_the_workflow_then_ends(command, server) -> None:
    ended = command.run_file("fed.py", "--cores", "2")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    document = command.document()
    [step] = [step for step in document["workflows"][0]["steps"] if step["measured"]]
    assert step["ok"] == 101
    # One request for each row, and one of the setup and one of the teardown on each core.
    assert document["totals"]["requests"] == server.count() == 101 + 2 * 2
    assert any("the feed users (users.csv) was used up" in warning for warning in document["warnings"])
    assert document["status"] == "completed"
