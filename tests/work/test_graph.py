"""Names are put in an order in which each comes behind what it waits for, or the circle is named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.work.graph import Cycle, ancestors_of, circle_in, layers_of

quickly = settings(deadline=None, derandomize=True, max_examples=200)
NAMES = "abcdefgh"


@st.composite
def any_graphs(draw):
    return {name: draw(st.sets(st.sampled_from(NAMES), max_size=3)) for name in NAMES}


@st.composite
def graphs_without_circles(draw):
    """Each name waits only for earlier ones; they are then given in any order."""
    graph = {}
    for position, name in enumerate(NAMES):
        graph[name] = draw(st.sets(st.sampled_from(NAMES[:position]), max_size=3)) if position else set()
    return {name: graph[name] for name in draw(st.permutations(NAMES))}


def test_no_names_have_no_layers():
    assert layers_of({}) == []


def test_names_that_wait_for_nothing_share_the_first_layer_in_their_order():
    assert layers_of({"b": [], "a": [], "c": []}) == [["b", "a", "c"]]


def test_a_diamond_has_three_layers():
    assert layers_of({"end": ["left", "right"], "left": ["start"], "right": ["start"], "start": []}) == [
        ["start"],
        ["left", "right"],
        ["end"],
    ]


def test_a_name_outside_the_graph_is_not_waited_for():
    assert layers_of({"a": ["elsewhere"]}) == [["a"]]


@quickly
@given(graphs_without_circles())
def test_every_name_comes_once_behind_all_it_waits_for_and_no_later_than_needed(graph):
    layers = layers_of(graph)

    level = {name: number for number, layer in enumerate(layers) for name in layer}
    assert sorted(name for layer in layers for name in layer) == sorted(graph)
    for name, others in graph.items():
        assert level[name] == max((level[other] + 1 for other in others), default=0)


@quickly
@given(any_graphs())
def test_a_circle_is_named_in_the_order_in_which_its_members_wait(graph):
    try:
        layers_of(graph)
    except Cycle as cycle:
        circle = cycle.circle
        assert len(set(circle)) == len(circle)
        for name, following in zip(circle, [*circle[1:], circle[0]], strict=True):
            assert following in graph[name]
    else:
        assert all(name not in ancestors_of(name, graph) for name in graph)


def test_a_circle_reads_as_a_sentence_that_ends_where_it_began():
    with pytest.raises(Cycle) as caught:
        layers_of({"start": [], "a": ["start", "b"], "b": ["c"], "c": ["a"]})

    assert str(caught.value) == "they depend on each other in a circle: a → b → c → a"


def test_a_name_that_waits_for_itself_is_a_circle():
    with pytest.raises(Cycle) as caught:
        layers_of({"a": ["a"]})

    assert caught.value.circle == ["a"]


def test_a_circle_leaves_out_the_names_that_only_lead_to_it():
    assert circle_in({"outside": {"a"}, "a": {"b"}, "b": {"a"}}) == ["a", "b"]


def test_ancestors_are_near_and_far_and_counted_once():
    graph = {"end": ["left", "right"], "left": ["start"], "right": ["start"], "start": [], "other": []}

    assert ancestors_of("end", graph) == {"left", "right", "start"}
    assert ancestors_of("start", graph) == set()


def test_ancestors_in_a_circle_are_found_without_going_round_for_ever():
    assert ancestors_of("a", {"a": ["b"], "b": ["a"]}) == {"a", "b"}
