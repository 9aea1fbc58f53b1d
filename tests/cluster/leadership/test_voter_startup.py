"""What a voter that starts remembers of its peers and their answers, and the disk it starts over with."""

from random import Random

from talka.cluster.leadership.register import NEVER, Acceptor
from talka.cluster.leadership.voter_startup import PEERS_LIMIT, VoterStartup
from talka.wire.leadership import Version, VoterHello, VoterWelcome


def test_nonces_are_returned_to_who_gave_them_up_to_a_limit() -> None:
    arrival = VoterStartup(name="a", voters=("a", "b", "c"), acceptor=Acceptor({}, 7), rng=Random(1))

    for number in range(1, PEERS_LIMIT + 2):
        arrival.judge(f"peer {number}", VoterWelcome(0, 0, 0, 0, NEVER, 0, number))
    arrival.judge("peer 1", VoterWelcome(0, 0, 0, 0, NEVER, 0, 1000))

    assert arrival.hello("peer 1").echo == 1000
    assert arrival.hello(f"peer {PEERS_LIMIT}").echo == PEERS_LIMIT
    assert arrival.hello(f"peer {PEERS_LIMIT + 1}").echo == 0


def test_fresh_hellos_are_told_from_old_ones_for_a_limited_number_of_peers() -> None:
    arrival = VoterStartup(name="a", voters=("a", "b", "c"), acceptor=Acceptor({}, 7), rng=Random(1))
    peers = [f"peer {number}" for number in range(1, PEERS_LIMIT + 2)]

    def welcomed(peer: str) -> VoterHello:
        """What the peer says after it was welcomed."""
        return VoterHello(9, 1, True, 0, 0, arrival.welcome(peer, VoterHello(9, 1, True, 0, 0), arrival.founders).nonce)

    hellos = {peer: welcomed(peer) for peer in peers}

    assert [peer for peer in peers if arrival.is_fresh(peer, hellos[peer])] == peers[:PEERS_LIMIT]
    assert arrival.is_fresh("peer 1", welcomed("peer 1")), "one that is known is welcomed again"
    assert not arrival.is_fresh("peer 1", hellos["peer 1"])


def test_a_voter_that_starts_over_draws_the_number_of_its_disk_from_62_bits_and_never_0() -> None:
    drawn = []
    for seed in range(20):
        acceptor = Acceptor({}, 7)
        arrival = VoterStartup(name="a", voters=("a", "b", "c"), acceptor=acceptor, rng=Random(seed))
        assert arrival.judge("b", VoterWelcome(7, acceptor.record.revision + 1, 0, 0, NEVER, 0))
        drawn.append(acceptor.record.disk_id)

    assert len(set(drawn)) == 20
    assert max(drawn).bit_length() == 62
    assert all(number % 2 for number in drawn)


def test_what_was_heard_late_of_a_disk_is_not_taken_for_its_newest_state() -> None:
    arrival = VoterStartup(name="a", voters=("a", "b", "c"), acceptor=Acceptor({}, 7), rng=Random(1))
    arrival.see("b", 9, 5)
    arrival.see("b", 9, 3)

    welcome = arrival.welcome("b", VoterHello(9, 3, True, 0, 0), arrival.founders)

    assert (welcome.disk_id, welcome.revision) == (9, 5), "it would trust a disk that was put back"


def test_a_voter_that_starts_over_is_told_whether_its_disk_was_older_or_replaced() -> None:
    def judged(welcome: VoterWelcome) -> str:
        acceptor = Acceptor({}, 7)
        acceptor.record.admitted = True
        return VoterStartup(name="a", voters=("a", "b", "c"), acceptor=acceptor, rng=Random(1)).judge("b", welcome)

    assert "the disk of 'a' is older than 'b' has seen it" in judged(VoterWelcome(7, 1000, 0, 0, NEVER, 0))
    assert "the disk of 'a' was replaced since, as 'b' has seen it" in judged(
        VoterWelcome(0, 0, 0, 8, Version(1, 1), 0)
    )
