"""What `talka check` says will happen is what happens, for every load shape."""

import json
from bisect import bisect_right
from pathlib import Path

import pytest

FILE = Path(__file__).parent / "workflows" / "shapes.py"
SHAPES = "ConstantUsers RampingUsers SteadyRate RampedRate PerUser Shared CustomUsers CustomArrivals".split()
# Both engines ask the same plan; on the second it is enough to see that it is followed in both models.
ON_PYTHON = "RampingUsers SteadyRate PerUser".split()


class Course:
    """The planned course as `check --json` prints it: values at instants, linear in between."""

    def __init__(self, points) -> None:
        self.points = [(point["t_s"], point["value"]) for point in points]

    def between(self, start_s: float, end_s: float) -> list[float]:
        inside = [value for t_s, value in self.points if start_s <= t_s <= end_s]
        return [self.at(start_s), *inside, self.at(end_s)]

    def at(self, t_s: float) -> float:
        # The last of several points at one instant is what holds from there on.
        index = bisect_right([at for at, _ in self.points], t_s)
        if index == 0 or t_s > self.points[-1][0]:
            return 0.0
        if index == len(self.points):
            return self.points[-1][1]
        (before, low), (after, high) = self.points[index - 1], self.points[index]
        return low + (high - low) * (t_s - before) / (after - before)

    def area(self, t_s: float) -> float:
        """Arrivals planned before an instant."""
        total = 0.0
        for (before, low), (after, high) in zip(self.points, self.points[1:], strict=False):
            if t_s <= before or after == before:
                continue
            end = min(t_s, after)
            total += (low + low + (high - low) * (end - before) / (after - before)) / 2 * (end - before)
        return total


def every_shape():
    """Arrivals are counted, and by the result's own account of how late they were: only those need no core for
    themselves. Of users it is asked how many there are at each instant."""
    for name, engine in [*((name, "native") for name in SHAPES), *((name, "python") for name in ON_PYTHON)]:
        yield pytest.param(name, engine, marks=() if name == "SteadyRate" else pytest.mark.serial)


@pytest.mark.parametrize(("name", "engine"), [*every_shape()])
def test_run_follows_the_plan_that_check_prints(command, name) -> None:
    checked = command.run("check", f"{FILE}:{name}", "--json", "-", "--cores", "2")
    assert checked.returncode == 0, checked.stderr
    plan = json.loads(checked.stdout)["workflows"][0]
    ended = command.run("run", f"{FILE}:{name}", "--json", str(command.result), "--ui", "none", "--cores", "2")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    document = command.document()
    timeline = document["timeline"]
    course = Course(plan["course"])
    generator = document["generator"]
    # How late this machine was, by the result's own account; a window and a turn of the loop on top.
    lag = max((generator[name] or {"max": 0})["max"] for name in ("start_lag_ms", "loop_lag_ms"))
    slack_s = lag / 1000 + 0.25
    if plan["model"] == "open":
        assert sum(row["iterations_started"] for row in timeline) == plan["arrivals"]
        started = 0
        for row in timeline:
            end_s = row["t_s"] + row["width_s"]
            started += row["iterations_started"]
            assert started <= course.area(end_s) + 1, f"too early at {row}"
            assert started >= course.area(end_s - slack_s) - 1, f"too late at {row}"
    elif plan["iterations"] is not None:
        assert document["totals"]["iterations"] == plan["iterations"]
        assert max(row["vus"] for row in timeline) == plan["vus"]
    else:
        for row in timeline:
            near = course.between(max(0.0, row["t_s"] - slack_s), row["t_s"] + row["width_s"])
            if row["t_s"] + row["width_s"] <= plan["length_s"]:
                # Users are whole: the number nearest to the line.
                assert min(near) - 0.5 <= row["vus"] <= max(near) + 0.5, row
        assert max(row["vus"] for row in timeline) == plan["vus"]
