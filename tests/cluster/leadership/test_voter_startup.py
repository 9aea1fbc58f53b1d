"""What a voter that starts remembers of its peers' answers."""

from random import Random

from talka.cluster.leadership.register import NEVER, Acceptor
from talka.cluster.leadership.voter_startup import PEERS_LIMIT, Arrival
from talka.wire.leadership import Welcome


def test_nonces_are_returned_to_who_gave_them_up_to_a_limit() -> None:
    arrival = Arrival(name="a", voters=("a", "b", "c"), acceptor=Acceptor({}, 7), rng=Random(1))

    for number in range(1, PEERS_LIMIT + 2):
        arrival.judge(f"peer {number}", Welcome(0, 0, 0, 0, NEVER, 0, number))
    arrival.judge("peer 1", Welcome(0, 0, 0, 0, NEVER, 0, 1000))

    assert arrival.hello("peer 1").echo == 1000
    assert arrival.hello(f"peer {PEERS_LIMIT}").echo == PEERS_LIMIT
    assert arrival.hello(f"peer {PEERS_LIMIT + 1}").echo == 0
