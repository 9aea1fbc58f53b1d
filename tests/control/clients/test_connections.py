"""Who may hold a connection to the API, and who gives way."""

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from talka.control.clients.connections import LEAST_FILES, WANTED_FILES, Limits, Line, Places, limits_for, source_of
from talka.errors import Invalid

quick = settings(deadline=None, derandomize=True, max_examples=100)
FEW = Limits(places=2, heads=4, heads_of_one=3, probes=2, burst=2)


def places(limits: Limits = FEW) -> Places[str]:
    return Places(limits)


# Heads.


def test_the_oldest_head_of_a_source_gives_way_once_it_has_too_many() -> None:
    of = places()
    for key in ("a1", "a2", "a3"):
        assert of.arrive(key, "a") is None
    assert not of.is_crowded

    of.arrive("a4", "a")

    assert of.is_crowded
    assert of.give_way() == ["a1"]
    assert not of.is_crowded and of.give_way() == []


def test_whoever_has_most_heads_gives_way_when_there_are_too_many_of_all() -> None:
    of = places()
    of.arrive("b1", "b")
    for key in ("a1", "a2", "a3"):
        of.arrive(key, "a")

    of.arrive("c1", "c")

    assert of.give_way() == ["a1"]


def test_a_head_that_was_whole_before_it_was_looked_at_has_not_to_give_way() -> None:
    of = places()
    for key in ("a1", "a2", "a3", "a4"):
        of.arrive(key, "a")

    assert of.ask("a1", is_probe=False).is_served

    assert not of.is_crowded and of.give_way() == []


def test_a_burst_beyond_all_bounds_gives_way_at_once() -> None:
    of = places()

    gone = [of.arrive(f"a{number}", "a") for number in range(8)]

    assert gone == [None] * 6 + ["a0", "a1"]


# Requests.


def test_a_request_takes_a_place_and_beyond_those_is_told_so() -> None:
    of = places()
    for key in ("a", "b", "c"):
        of.arrive(key, key)

    assert of.ask("a", is_probe=False) == (True, False, None)
    assert of.ask("b", is_probe=False) == (True, False, None)
    assert of.ask("c", is_probe=False) == (False, True, None)
    of.leave("a")
    assert of.ask("c", is_probe=False) == (True, False, None)


def test_whoever_rests_gives_way_to_whoever_asks_and_first_the_source_that_has_most() -> None:
    of = places(FEW._replace(places=3))
    for key, source in (("b1", "b"), ("a1", "a"), ("a2", "a"), ("c1", "c"), ("d1", "d")):
        of.arrive(key, source)
        if key not in ("c1", "d1"):
            of.ask(key, is_probe=False)
            of.rest(key)

    assert of.ask("c1", is_probe=False) == (True, False, "a1")
    assert of.ask("d1", is_probe=False) == (True, False, "b1")


def test_a_connection_that_rested_has_its_place_for_the_next_request() -> None:
    of = places()
    for key in ("a", "b", "c"):
        of.arrive(key, key)
    for key in ("a", "b"):
        of.ask(key, is_probe=False)
    of.rest("a")

    assert of.ask("a", is_probe=False) == (True, False, None)
    assert of.ask("a", is_probe=False) == (True, False, None)  # one that was sent behind it
    assert not of.ask("c", is_probe=False).is_served


def test_whoever_gave_way_has_nothing_more_to_ask() -> None:
    of = places()

    assert of.ask("a", is_probe=True) == (False, True, None)
    of.rest("a")
    of.leave("a")
    assert len(of) == 0


# Probes.


def test_a_probe_is_served_although_all_places_are_taken_and_its_connection_ends_then() -> None:
    of = places()
    for key in ("a", "b", "p"):
        of.arrive(key, "x")
    of.ask("a", is_probe=False)
    assert of.ask("b", is_probe=True) == (True, False, None)  # there is a place

    assert of.ask("p", is_probe=True) == (True, True, None)

    of.rest("p")
    of.leave("p")
    assert len(of) == 2


def test_the_oldest_probe_of_whoever_has_most_gives_way_in_the_reserve() -> None:
    of = places()
    for key, source in (("a", "a"), ("b", "b"), ("p1", "x"), ("q1", "y")):
        of.arrive(key, source)
        of.ask(key, is_probe=True)
    of.arrive("q2", "y")

    assert of.ask("q2", is_probe=True).is_served

    assert of.is_crowded
    assert of.give_way() == ["q1"]


def test_a_flood_of_probes_beyond_all_bounds_gives_way_at_once() -> None:
    of = places(FEW._replace(places=1))
    of.arrive("a", "a")
    of.ask("a", is_probe=False)

    for number in range(5):
        of.arrive(f"p{number}", "x")
        assert of.ask(f"p{number}", is_probe=True) == (True, True, "p0" if number == 4 else None)


class Crowd(RuleBasedStateMachine):
    """Anybody does anything, from a few sources; one that looks whether the node lives is among them."""

    @initialize(
        limits=st.builds(
            Limits, st.integers(1, 4), st.integers(1, 6), st.integers(1, 4), st.integers(1, 3), st.integers(1, 4)
        )
    )
    def begin(self, limits: Limits) -> None:
        self.limits = limits
        self.places: Places[int] = Places(limits)
        self.numbers = count()
        self.known: dict[int, str] = {}
        self.served: set[int] = set()

    def gone(self, *keys: int | None) -> None:
        for key in keys:
            if key is not None:
                del self.known[key]  # nobody gives way twice, or who is not there

    @rule(source=st.sampled_from("abc"))
    def arrive(self, source: str) -> None:
        key = next(self.numbers)
        self.known[key] = source
        self.gone(self.places.arrive(key, source))

    @rule(data=st.data(), is_probe=st.booleans())
    def ask(self, data: st.DataObject, is_probe: bool) -> None:
        if self.known:
            key = data.draw(st.sampled_from(sorted(self.known)))
            verdict = self.places.ask(key, is_probe=is_probe)
            assert verdict.is_served or not is_probe or key in self.served
            if verdict.gives_way is not None:
                assert verdict.is_served
                self.gone(verdict.gives_way)
            if verdict.is_served and verdict.is_last:
                self.served.add(key)  # a probe, which is asked for nothing more

    @rule(data=st.data())
    def rest_or_leave(self, data: st.DataObject) -> None:
        if self.known:
            key = data.draw(st.sampled_from(sorted(self.known)))
            if data.draw(st.booleans()):
                self.places.rest(key)
            else:
                self.places.leave(key)
                self.gone(key)

    @rule()
    def give_way(self) -> None:
        is_crowded = self.places.is_crowded
        gone = self.places.give_way()
        assert bool(gone) == is_crowded
        self.gone(*gone)
        assert not self.places.is_crowded
        assert len(self.places) <= self.limits.files - 2 * self.limits.burst

    @rule()
    def a_probe_of_somebody_else_is_answered_whatever_the_others_do(self) -> None:
        key = next(self.numbers)
        if self.limits.heads < 4:
            return  # one of the other sources has two heads if somebody has to give way
        for gone in ([self.places.arrive(key, "kubelet")], self.places.give_way()):
            assert key not in gone
            self.gone(*gone)
        verdict = self.places.ask(key, is_probe=True)
        assert verdict.is_served and verdict.gives_way != key
        self.gone(verdict.gives_way)
        self.places.leave(key)

    @invariant()
    def everybody_is_somewhere_and_all_are_bounded(self) -> None:
        if hasattr(self, "places"):
            assert len(self.places) == len(self.known)
            assert len(self.known) <= self.limits.files


Crowd.TestCase.settings = settings(deadline=None, derandomize=True, max_examples=40, stateful_step_count=30)
TestCrowd = Crowd.TestCase


@quick
@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcd")), max_size=60))
def test_a_line_lets_the_oldest_of_the_largest_source_go(moves: list[tuple[bool, str]]) -> None:
    line: Line[int] = Line()
    model: list[tuple[int, str]] = []
    for number, (is_new, source) in enumerate(moves):
        if is_new or not model:
            line.add(number, source)
            model.append((number, source))
        else:
            gone = line.pop()
            of_gone = dict(model)[gone]
            sizes = {name: sum(1 for _, own in model if own == name) for _, name in model}
            assert sizes[of_gone] == max(sizes.values())
            assert gone == next(key for key, own in model if own == of_gone)
            model.remove((gone, of_gone))
        assert len(line) == len(model)
        assert line.largest == max((sum(1 for _, own in model if own == name) for _, name in model), default=0)
    assert line.drop(-1) is None


# Limits.


def test_few_files_make_small_limits_and_never_more_than_there_are() -> None:
    assert limits_for(WANTED_FILES) == Limits() == limits_for(1 << 20)
    with pytest.raises(Invalid, match="127 files are too few for an API: it needs at least 128"):
        limits_for(LEAST_FILES - 1)
    for files in range(LEAST_FILES, WANTED_FILES + 10):
        limits = limits_for(files)
        assert min(limits) >= 1
        assert limits.files <= files - min(files // 2, 512)


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_a_network_of_ipv6_is_one_source(address: str, source: str) -> None:
    assert source_of(address) == source
