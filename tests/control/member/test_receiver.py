from typing import TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.effects import Lane, Persist, Send
from talka.cluster.fencing import ZERO, BrokenFence, Token
from talka.cluster.safeguards import Safeguards
from talka.control.member.receiver import WAITING_LIMIT, Applied, Receiver
from talka.wire.leases import CHANNEL, CommandAnswer, LeaseCommand

EARLIER, LATER, LATEST = (0, 3, 1), (0, 4, 1), (0, 5, 1)
News = TypeVar("News")


def command(token: tuple[int, int, int], number: int = 1) -> LeaseCommand:
    return LeaseCommand(token, number, b"%d" % number)


def applied(token: tuple[int, int, int], number: int = 1, sender: str = "a") -> list[object]:
    answer = CommandAnswer(number, True, token)
    return [Applied(sender, Token(*token), number, b"%d" % number), Send(CHANNEL, sender, answer, Lane.CONTROL)]


def refused(highest: tuple[int, int, int], number: int = 1, sender: str = "a") -> list[object]:
    return [Send(CHANNEL, sender, CommandAnswer(number, False, highest), Lane.CONTROL)]


def only(effects: list[object], kind: type[News]) -> News:
    (effect,) = effects
    assert isinstance(effect, kind)
    return effect


class Machine:
    """A receiver and its disk, which writes when it is told to."""

    def __init__(self) -> None:
        self.disk: dict[str, bytes] = {}
        self.receiver = Receiver(self.disk)

    def write(self, persist: Persist) -> list[object]:
        for key, content in persist.puts:
            assert content is not None
            self.disk[key] = content
        return self.receiver.on_persisted(persist.ticket)

    def command(self, token: tuple[int, int, int], number: int = 1) -> list[object]:
        """What became of a command, once the disk has done what it was asked for."""
        effects = self.receiver.on_command("a", command(token, number))
        return self.write(effects[0]) if effects and isinstance(effects[0], Persist) else effects

    def restart(self) -> None:
        self.receiver = Receiver(dict(self.disk))


def test_the_first_command_of_a_leader_takes_effect_after_its_token_is_on_disk() -> None:
    machine = Machine()

    persist = only(machine.receiver.on_command("a", command(EARLIER)), Persist)

    assert machine.write(persist) == applied(EARLIER)
    assert machine.receiver.highest == Token(*EARLIER)


def test_further_commands_of_the_same_leader_take_effect_at_once() -> None:
    machine = Machine()
    machine.command(EARLIER)

    assert machine.receiver.on_command("a", command(EARLIER, 2)) == applied(EARLIER, 2)


def test_commands_that_wait_for_the_same_write_take_effect_in_order_after_it() -> None:
    machine = Machine()
    persist = only(machine.receiver.on_command("a", command(EARLIER, 1)), Persist)
    assert machine.receiver.on_command("a", command(EARLIER, 2)) == [], "one write is enough for both"

    assert machine.write(persist) == applied(EARLIER, 1) + applied(EARLIER, 2)


def test_a_command_of_a_deposed_leader_is_refused_with_the_token_that_deposed_it() -> None:
    machine = Machine()
    machine.command(LATER)

    assert machine.command(EARLIER, 2) == refused(LATER, 2)


def test_a_command_of_a_deposed_leader_is_refused_also_after_a_restart() -> None:
    machine = Machine()
    machine.command(LATER)

    machine.restart()

    assert machine.receiver.highest == Token(*LATER)
    assert machine.command(EARLIER, 2) == refused(LATER, 2)
    assert machine.receiver.on_command("a", command(LATER, 3)) == applied(LATER, 3), "its token is on disk already"


def test_a_later_parent_outranks_every_term_below_the_earlier_one() -> None:
    machine = Machine()
    machine.command((2, 1, 1))

    assert machine.command((1, 9, 9), 2) == refused((2, 1, 1), 2)


def test_a_command_that_waited_for_the_disk_while_a_later_leader_commanded_is_refused() -> None:
    machine = Machine()
    first = only(machine.receiver.on_command("a", command(EARLIER, 1)), Persist)
    second = only(machine.receiver.on_command("a", command(LATER, 2)), Persist)

    assert machine.write(first) == refused(LATER, 1)
    assert machine.write(second) == applied(LATER, 2)


def test_a_deposed_leader_is_refused_while_the_later_token_is_still_being_written() -> None:
    machine = Machine()
    machine.command(EARLIER)
    only(machine.receiver.on_command("a", command(LATER, 2)), Persist)

    assert machine.receiver.on_command("a", command(EARLIER, 3)) == refused(LATER, 3)


def test_one_write_confirms_those_before_it() -> None:
    machine = Machine()
    only(machine.receiver.on_command("a", command(EARLIER, 1)), Persist)
    second = only(machine.receiver.on_command("a", command(LATER, 2)), Persist)

    assert machine.write(second) == refused(LATER, 1) + applied(LATER, 2)


def test_a_command_beyond_those_that_may_wait_is_dropped_as_if_it_had_been_lost() -> None:
    machine = Machine()
    persist = only(machine.receiver.on_command("a", command(EARLIER)), Persist)
    for number in range(2, WAITING_LIMIT + 1):
        assert machine.receiver.on_command("a", command(EARLIER, number)) == []

    assert machine.receiver.on_command("a", command(EARLIER, WAITING_LIMIT + 1)) == []

    effects = machine.write(persist)
    assert [effect.number for effect in effects if isinstance(effect, Applied)] == list(range(1, WAITING_LIMIT + 1))
    assert machine.receiver.on_command("a", command(EARLIER, 5000)) == applied(EARLIER, 5000)


def test_a_deposed_leader_is_refused_also_while_no_other_command_may_wait() -> None:
    machine = Machine()
    for number in range(1, WAITING_LIMIT + 1):
        machine.receiver.on_command("a", command(LATER, number))

    assert machine.receiver.on_command("b", command(LATER, 5000)) == []
    assert machine.receiver.on_command("b", command(EARLIER, 1)) == refused(LATER, 1, sender="b")


def test_without_fencing_a_deposed_leader_still_commands() -> None:
    receiver = Receiver({}, Safeguards(fencing=False))
    receiver.on_command("a", command(LATER))
    receiver.on_persisted(1)

    assert receiver.on_command("b", command(EARLIER, 2)) == applied(EARLIER, 2, sender="b")


def test_a_receiver_that_starts_empty_has_seen_nobody() -> None:
    assert Receiver({}).highest == ZERO


def test_a_receiver_whose_fence_cannot_be_read_does_not_start() -> None:
    with pytest.raises(BrokenFence, match="restore it"):
        Receiver({"fence": msgspec.msgpack.encode("no token")})


@settings(deadline=None, derandomize=True)
@given(st.data())
def test_no_effect_follows_one_of_a_later_leader_whatever_the_disk_and_restarts_do(data: st.DataObject) -> None:
    machine = Machine()
    writes: list[Persist] = []
    order: list[Token] = []

    def note(effects: list[object]) -> None:
        order.extend(effect.token for effect in effects if isinstance(effect, Applied))
        writes.extend(effect for effect in effects if isinstance(effect, Persist))

    for number in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["command", "command", "write", "restart"])):
            case "command":
                token = data.draw(st.sampled_from([EARLIER, LATER, LATEST]))
                note(machine.receiver.on_command("a", command(token, number)))
            case "write" if writes:
                note(machine.write(writes.pop(0)))
            case "restart":
                writes.clear()
                machine.restart()
            case _:
                pass  # nothing waits to be written

    assert order == sorted(order)


def test_a_command_that_found_no_room_to_wait_leaves_no_trace() -> None:
    machine = Machine()
    first = only(machine.receiver.on_command("a", command(EARLIER)), Persist)
    second = only(machine.receiver.on_command("a", command(LATER)), Persist)
    for number in range(WAITING_LIMIT - 2):
        machine.receiver.on_command("a", command(LATER, number))
    assert machine.receiver.on_command("a", command(LATEST)) == []

    machine.write(first)
    third = only(machine.receiver.on_command("a", command(LATEST, 7)), Persist)

    assert not any(isinstance(effect, Applied) and effect.number == 7 for effect in machine.write(second))
    assert machine.write(third) == applied(LATEST, 7)
