"""The moves that docs/state-machines.md draws are those that simulated nodes make."""

import sys
from enum import Enum
from pathlib import Path

import pytest

from talka.cluster.leadership.election import Election, Phase, VoterRole
from talka.control.member.breaker import Breaker, BreakerState
from talka.control.worker.handlers_attempt import CoreStage, CoreState
from talka.testing.world import SECOND
from tests.sim import dags, elections

sys.path.append(str(Path(__file__).parents[2] / "docs"))

from state_machines_reference import MACHINES

Pair = tuple[Enum, Enum]


def drawn(states: type[Enum]) -> set[Pair]:
    (machine,) = (machine for machine in MACHINES if isinstance(machine.start, states))
    return {(move.origin, move.to) for move in machine.moves}


@pytest.mark.parametrize("machine", MACHINES, ids=[machine.title for machine in MACHINES])
def test_every_state_of_a_machine_is_drawn_and_can_be_reached(machine) -> None:
    reached, waiting = {machine.start}, [machine.start]
    while waiting:
        origin = waiting.pop()
        found = {move.to for move in machine.moves if move.origin is origin} - reached
        reached |= found
        waiting += found

    assert reached == set(type(machine.start)) == set(machine.states)


def test_voters_move_as_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    roles: set[Pair] = set()
    phases: set[Pair] = set()
    last: dict[Election, tuple[VoterRole, Phase]] = {}
    finish = Election._finish

    def finished(self, *args, **kwargs):
        out = finish(self, *args, **kwargs)
        was, now = last.get(self, (VoterRole.FOLLOWER, Phase.SYNCING)), (self.role, self.phase)
        if was[0] is not now[0]:
            roles.add((was[0], now[0]))
        if was[1] is not now[1]:
            phases.add((was[1], now[1]))
        last[self] = now
        return out

    monkeypatch.setattr(Election, "_finish", finished)
    for seed in range(6):
        elections.run(seed)

    assert (VoterRole.CANDIDATE, VoterRole.LEADER) in roles and roles <= drawn(VoterRole)
    assert (Phase.SYNCING, Phase.ACTIVE) in phases and phases <= drawn(Phase)


def test_handler_cores_move_as_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    moves: set[Pair] = set()

    def set_stage(self, name: str, value: object) -> None:
        was = getattr(self, "stage", None)
        if name == "stage" and was is not None and was is not value:
            moves.add((was, value))
        object.__setattr__(self, name, value)

    monkeypatch.setattr(CoreState, "__setattr__", set_stage)
    for seed in range(4):
        dags.run(seed)

    assert (CoreStage.LOADING, CoreStage.READY) in moves and moves <= drawn(CoreStage)


def test_a_breaker_moves_as_drawn() -> None:
    moves: set[Pair] = set()
    histories: list[tuple[str, ...]] = [()]
    for _ in range(6):
        histories = [(*history, call) for history in histories for call in ("allows", "succeeded", "failed")]
        for history in histories:
            breaker, was = Breaker(failures=2, window_ns=9 * SECOND, probe_after_ns=1), BreakerState.CLOSED
            for now, call in enumerate(history):
                getattr(breaker, call)(now * SECOND)
                if was is not breaker.state:
                    moves.add((was, breaker.state))
                was = breaker.state

    assert moves == drawn(BreakerState)
