"""Members whose network is cut, lossy or slow to come up."""

import pytest

from tests.e2e.cluster import SOON_S, Cluster
from tests.e2e.job_cluster import until
from tests.e2e.networks import part

pytestmark = pytest.mark.patient

LONGEST_SUSPICION_S = 6.0
"""Of up to ten members at the preset `fast`: 4 × 0.25 s, six times that when nobody confirms."""
DEFAULT_LONGEST_SUSPICION_S = 12.0
"""At the preset `default`: 3 × 0.5 s, eight times that."""


def test_two_members_without_datagrams_between_them_stay_alive_for_each_other_over_tcp(cut_members: Cluster) -> None:
    cluster = cut_members
    cluster.start_all("abcde")

    part(cluster.network, "b", "c", datagrams_only=True)
    cluster.wait_for("b", "udp-blocked", name="c")
    cluster.wait_for("c", "udp-blocked", name="b")
    cluster.listen(2 * LONGEST_SUSPICION_S)

    blocked = sorted((who, event["name"]) for who, event in cluster.said("udp-blocked"))
    assert blocked == [("b", "c"), ("c", "b")]
    assert not cluster.said("lost"), cluster.story()
    cluster.wait_for_states("b", dict.fromkeys("abcde", "alive"))
    facts = {member["name"]: member for member in cluster.told("c", "members")}
    assert [name for name, member in facts.items() if not member["datagrams"]] == ["b"]

    cluster.network.mend()
    cluster.wait_for("b", "udp-restored", name="c")
    cluster.wait_for("c", "udp-restored", name="b")
    assert len(cluster.said("udp-restored")) == 2


@pytest.mark.timeout(240)
def test_halves_that_forgot_each_other_are_one_cluster_within_a_minute_of_the_links_return(
    cut_members: Cluster,
) -> None:
    cluster = cut_members
    cluster.start_all("abcd", "--forget-after", "5")

    part(cluster.network, "ab", "cd")
    halves = {"a": "ab", "b": "ab", "c": "cd", "d": "cd"}
    cluster.wait(
        lambda: all(cluster.up[name].view == set(half) - {name} for name, half in halves.items()),
        SOON_S,
        "both halves to lose each other",
    )
    # Who is dropped from the view is dropped in silence: it is asked for, now and then, while members are heard.
    for name, half in halves.items():
        for _ in range(60):
            if set(cluster.states(name)) == set(half):
                break
            cluster.listen(1)
        assert set(cluster.states(name)) == set(half)

    cluster.network.mend()
    cluster.wait_until_all_agree(60)
    for name in "abcd":
        cluster.wait_for_states(name, dict.fromkeys("abcd", "alive"))


@pytest.mark.timeout(240)
def test_a_member_that_hears_nobody_does_not_make_others_lose_a_third_one(cut_members: Cluster) -> None:
    cluster = cut_members
    # Accused by d all the time, a member that stands still for a second would be lost at the preset `fast`, and
    # rightly.
    cluster.start_all("abcdef", preset="default")

    for other in "abcef":
        cluster.network.cut(other, "d")
    cluster.wait(
        lambda: all("d" not in life.view for name, life in cluster.up.items() if name != "d"), SOON_S, "all to lose d"
    )
    cluster.listen(2 * DEFAULT_LONGEST_SUSPICION_S)

    wrong = [(who, event) for who, event in cluster.said("lost") if who != "d" and event["name"] != "d"]
    assert not wrong, wrong

    cluster.network.mend()
    cluster.wait_until_all_agree(60)


def test_nobody_is_lost_while_every_link_loses_a_tenth_of_its_packets(cut_members: Cluster) -> None:
    cluster = cut_members
    cluster.start_all("abcdef")

    cluster.network.lose(10)
    cluster.listen(20)

    until(lambda: cluster.network.lost() > 50, cluster, SOON_S, "more than 50 packets to be lost")
    assert not cluster.said("lost"), cluster.said("lost")


@pytest.mark.serial
def test_eleven_members_started_at_once_agree_on_each_other_within_20_seconds(members: Cluster) -> None:
    members.start_all("abcdefghijk", preset="default", within_s=20)

    for name in "abcdefghijk":
        members.wait_for_states(name, dict.fromkeys("abcdefghijk", "alive"))
    assert not members.said("lost")


@pytest.mark.parametrize("direction", ["both ways", "to the others", "from the others"])
def test_a_leader_cut_off_from_the_majority_steps_down_and_follows_the_next_one(
    cut_members: Cluster, direction: str
) -> None:
    cluster = cut_members
    cluster.start_all("abcde", "--voters", "a,b,c,d,e")
    first = cluster.wait_for_voters()
    others = {name: life for name, life in cluster.up.items() if name != first}

    for other in others:
        if direction != "from the others":
            cluster.network.cut(first, other)
        if direction != "to the others":
            cluster.network.cut(other, first)
    cluster.wait_for(first, "stepped-down")
    cluster.wait(lambda: all(life.leader not in ("", first) for life in others.values()), SOON_S, "another leader")

    cluster.network.mend()
    cluster.wait(lambda: cluster.leader() and cluster.all_agree(), 60, "one leader and one view")
    reigns = [event["term"] for _, event in cluster.said("elected")]
    assert len(set(reigns)) == len(reigns), "two were elected for one term"
