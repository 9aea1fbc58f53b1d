"""What is told of a machine, and which of several has the most going on."""

from talka.stats.machine import Machine


def test_only_what_is_known_of_the_machine_is_quoted() -> None:
    assert Machine(2).text == ""
    assert Machine(2, load=3.25).text == "run queue 3.2 on 2 CPUs"
    assert Machine(2, 0.5, 1.0).text == "steal 50.0%, something waited for a CPU in 100% of the time"


def test_what_its_host_took_presses_more_than_what_waited_and_unknown_is_least() -> None:
    rising = [Machine(8), Machine(2, load=9.0), Machine(2, waiting=0.1), Machine(2, 0.0), Machine(2, 0.1, 0.0)]
    assert sorted(reversed(rising), key=lambda machine: machine.pressed) == rising
