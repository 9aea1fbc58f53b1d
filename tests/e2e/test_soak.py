"""What a minute of blows says of how soon tasks ran again: what is judged, what is left out, and that it is told."""

from collections import Counter

from tests.e2e.dag_cluster import Line
from tests.e2e.soak import AFTERMATH_NS, LEAST_TIMES, MACHINE, OTHER_BLOWS, Blow, Restarts, restarts_of

SECOND_NS = 10**9


def line(fence: int, at_s: float, task: str = "t") -> Line:
    return Line("began", "job", task, fence, 1, 100, round(at_s * SECOND_NS), "")


def blow(kind: str, at_s: float, *victims: Line) -> Blow:
    return Blow(kind, round(at_s * SECOND_NS), victims)


def measured(
    blows: list[Blow], *lines: Line, ended: tuple[int, ...] = (), stalls_s: tuple[float, ...] = ()
) -> dict[str, Restarts]:
    began: dict[tuple[str, str], list[Line]] = {}
    for one in lines:
        began.setdefault((one.job, one.task), []).append(one)
    stalls_ns = [round(at_s * SECOND_NS) for at_s in stalls_s]
    return {one.kind: one for one in restarts_of(blows, began, Counter(ended), stalls_ns)}


def test_a_task_that_ran_again_is_judged_by_when_it_began() -> None:
    first = line(1, 90)

    found = measured([blow("core", 100, first)], first, line(2, 100.25))

    assert found["core"].times_s == [0.25] and found["core"].broken() == []
    assert found["worker"].blows == 0 and found["worker"].broken() == [], "there was none to judge"


def test_a_task_that_ran_again_too_late_is_told_and_breaks_the_promise() -> None:
    first = line(1, 90)

    found = measured([blow("core", 100, first)], first, line(2, 101.5))["core"]

    assert found.slow == [f"core killed at {100 * SECOND_NS}: job/t ran again after 1.50 s"]
    assert found.broken() == ["core killed: its tasks ran again after 1.50 s (median), and 1 s are promised"]


def test_what_is_left_out_is_counted_by_its_cause_and_a_blow_goes_before_the_machine() -> None:
    a, b, c, d = [line(fence, 90, task) for fence, task in enumerate("abcd", 1)]
    again = [line(fence, at_s, task) for fence, task, at_s in ((11, "a", 100.1), (12, "b", 200.1), (13, "c", 300.1))]
    blows = [
        blow("core", 100, a),
        blow("manager", 100 - AFTERMATH_NS / SECOND_NS, a),
        blow("core", 200, b),
        blow("core", 300, c, d),
        blow("core", 400),
    ]

    found = measured(blows, a, b, c, d, *again, ended=(d.fence,), stalls_s=(95, 195))["core"]

    assert found.left_out == {OTHER_BLOWS: 1, MACHINE: 1}
    assert (found.blows, found.idle, len(found.times_s)) == (4, 1, 1), "one was done a moment before"
    assert found.text().endswith("; 2 left out: 1 for the machine and 1 for other blows")


def test_a_promise_of_which_no_blow_could_be_judged_is_broken() -> None:
    first = line(1, 90)

    found = measured([blow("worker", 100, first)], first, line(2, 101), stalls_s=(99,))["worker"]

    assert found.broken() == ["worker killed 1 times: none could be judged"]
    assert found.text() == (
        "worker killed 1 times, 0 of them without a task; its tasks running again: 0 judged;"
        " 1 left out: 1 for the machine and 0 for other blows"
    )


def test_of_many_the_p99_is_judged_and_the_word_is_told() -> None:
    few = Restarts("core", blows=1, times_s=[0.1] * (LEAST_TIMES["core"] - 2) + [5.0])
    many = Restarts("core", blows=1, times_s=[0.1] * (LEAST_TIMES["core"] - 1) + [5.0])

    assert few.broken() == [] and "99 judged by the median" in few.text()
    assert many.broken() == ["core killed: its tasks ran again after 5.00 s (p99), and 1 s are promised"]
    assert "100 judged by the p99" in many.text()
