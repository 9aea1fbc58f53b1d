"""Which manager a client asks, and whom where none of those that it was given answers."""

from collections.abc import Callable, Sequence
from random import Random

import pytest

from talka.client.client import Client
from talka.client.http import parse_address
from talka.client.manager_book import ADDRESSES_LIMIT, ManagerBook
from talka.client.requests import ClusterUnreachable
from talka.control.member.peer_pool import Place
from talka.errors import Unavailable
from talka.store.files.known_clusters import KnownCluster, KnownManager
from talka.units import SECOND
from talka.wire.views import ClusterView, ManagerView
from tests.client.asked_first import asking_first
from tests.web.fake_control import Apis, free_port

HERE = Place("z1", "d1", "r1")
A, B, C = (parse_address(f"10.0.0.{number}:8470") for number in (1, 2, 3))


class Memory:
    def __init__(self, known: KnownCluster | None = None) -> None:
        self.known = known
        self.noted: list[KnownCluster] = []

    def cluster_of(self, given: Sequence[str]) -> KnownCluster | None:
        return self.known

    def note(self, given: Sequence[str], cluster: KnownCluster) -> None:
        self.noted.append(cluster)


def manager(number: int, zone: str = "", host: str = "10.0.0") -> ManagerView:
    return ManagerView(f"m{number}", "active", f"{host}.{number}:8470", zone=zone, datacenter="d1", region="r1")


def view(*managers: ManagerView, name: str = "default") -> ClusterView:
    return ClusterView(name, managers=list(managers))


def book(*given: str, place: Place = HERE) -> ManagerBook:
    return ManagerBook([parse_address(one) for one in given], place, Random(1))


def test_a_near_manager_is_asked_once_it_is_known_to_be_one() -> None:
    managers = book("10.0.0.1:8470")
    assert managers.ask(0) == A

    managers.learn(view(manager(1, "z2"), manager(2, "z1"), ManagerView("m9", "joining")))

    assert managers.ask(0) == B
    assert managers.all(0) == [B, A]
    assert managers.counts().candidates == len(managers) == 2


def test_it_sticks_to_the_one_that_answers_and_comes_back_to_a_near_one() -> None:
    managers = book("10.0.0.1:8470")
    managers.learn(view(manager(1, "z1"), manager(2, "z2"), manager(3, "z2")))
    assert managers.ask(0) == A
    managers.failed(0, A, 0)
    other = managers.ask(0)
    assert other in (B, C)
    managers.answered(SECOND // 10, other, 0)
    assert managers.ask(SECOND // 5) == other
    assert managers.counts() == (str(other), 3, 1, 1, SECOND // 10)

    assert managers.ask(SECOND) == A


def test_several_clients_spread_over_managers_that_are_as_near() -> None:
    given = [str(A), str(B), str(C)]
    asked = {ManagerBook([parse_address(one) for one in given], Place(), Random(seed)).ask(0) for seed in range(20)}
    assert asked == {A, B, C}


def test_addresses_learned_are_spoken_to_as_those_given() -> None:
    managers = book("https://10.0.0.1:8470")
    managers.learn(view(manager(2)))
    assert {address.scheme for address in managers.all(0)} == {"https"}


def test_no_more_addresses_are_known_than_the_limit_says() -> None:
    managers = book("10.0.0.1:8470")
    managers.learn(view(*(manager(number, host="10.0.1") for number in range(1, ADDRESSES_LIMIT + 9))))
    assert len(managers) == ADDRESSES_LIMIT


def test_one_that_was_known_before_must_prove_of_which_cluster_it_is() -> None:
    managers = book("10.0.0.1:8470")
    known = KnownCluster("shop", [KnownManager("m1", str(A)), KnownManager("m2", str(B))])
    assert managers.add_remembered(known) == [B]
    assert (managers.must_be(A), managers.must_be(B)) == (None, known)

    managers.learn(view(manager(2)))
    assert managers.must_be(B) is None
    managers.drop(B)
    assert managers.all(0) == [A]


# Asking real servers.


async def test_who_is_known_from_before_is_asked_when_the_given_address_does_not_answer(apis: Apis) -> None:
    api = await apis.start()
    api.control.managers = [ManagerView("m1", "active", str(api.address)), ManagerView("m2", "active", "")]
    api.control.add_job("job1")
    with free_port() as port:
        known = KnownCluster("shop", [KnownManager("m0", f"127.0.0.1:{port}"), KnownManager("m1", str(api.address))])
        memory = Memory(known)
        client = Client([f"127.0.0.1:{port}"], memory=memory)
        told: list[str] = []
        client.on_trouble = told.append

        assert (await client.job("job1")).id == "job1"

    (trouble,) = told
    assert trouble.endswith(f"nothing listens there: asking {api.address}, known from before")
    assert [name for name, *_ in api.control.asked][:1] == ["cluster"], "it proves of which cluster it is first"
    await client.cluster()
    assert memory.noted[-1].managers == [KnownManager("m1", str(api.address))]


@pytest.mark.parametrize(
    "known", [KnownCluster("bank", [KnownManager("m1", "")]), KnownCluster("shop", [KnownManager("m7", "")])]
)
async def test_nothing_is_asked_of_a_manager_of_another_cluster(
    apis: Apis, impatient: Callable[..., Client], known: KnownCluster
) -> None:
    api = await apis.start()
    api.control.managers = [ManagerView("m1", "active", str(api.address))]
    api.control.add_job("job1")
    at = KnownCluster(known.name, [KnownManager(known.managers[0].name, str(api.address))])
    with free_port() as port:
        client = Client([f"127.0.0.1:{port}"], memory=Memory(at), question_s=2.0)
        with pytest.raises(
            ClusterUnreachable, match=f"{api.address} was a manager of cluster {known.name}, and is none"
        ):
            await client.job("job1")
    assert [name for name, *_ in api.control.asked] == ["cluster"]


async def test_a_client_sticks_to_the_manager_that_answers(apis: Apis) -> None:
    sick, well = await apis.start(), await apis.start()
    sick.control.errors["jobs"] = Unavailable("no leader")
    client = asking_first(Client([str(sick.address), str(well.address)]), sick.address)

    for _ in range(5):
        await client.jobs()

    assert len([name for name, *_ in sick.control.asked if name == "jobs"]) == 1
    counts = client.peers()
    assert counts[:4] == (str(well.address), 2, 1, 1) and counts.latency_ns > 0
