"""What a store keeps of an element of a task that is fanned out, and the whole spec that is made of it."""

import msgspec

from talka.work.dags.dag import Bounds, Limit, Retry, TaskSpec, encode_task
from talka.work.dags.elements import (
    ElementMaker,
    ElementSpec,
    encode_spec,
    fans_of,
    kept_element,
    whole_specs,
    with_config,
)

RAW = msgspec.Raw
SPEC = TaskSpec(
    id="clean",
    handler="h",
    config=RAW(b'{"x":"large"}'),
    depends_on=("other",),
    priority=7,
    retry=Retry(max=9),
    capabilities=("gpu",),
    delay=5.0,
    limits=(Limit("db", concurrency=1),),
    bounds=Bounds(files=3),
    for_each="extract.parts",
    max_parallel=4,
)


def element() -> ElementSpec:
    return ElementMaker(SPEC, 1).spec(3, RAW(b'"item"'))


def same(one: TaskSpec, other: TaskSpec) -> bool:
    """Equal, whatever is the same JSON."""
    return type(one) is type(other) and msgspec.to_builtins(plain(one)) == msgspec.to_builtins(plain(other))


def plain(spec: TaskSpec) -> dict[str, object]:
    fields = msgspec.structs.asdict(spec)
    return {name: bytes(value) if isinstance(value, RAW) else value for name, value in fields.items()}


def test_an_element_has_what_its_task_says_but_when_it_begins() -> None:
    spec = element()
    assert (spec.id, bytes(spec.item), spec.place, spec.fan) == ("clean[3]", b'"item"', 3, 1)
    assert (spec.handler, bytes(spec.config), spec.priority, spec.retry) == ("h", b'{"x":"large"}', 7, Retry(max=9))
    assert (spec.capabilities, spec.limits, spec.bounds) == (SPEC.capabilities, SPEC.limits, SPEC.bounds)
    assert (spec.depends_on, spec.delay, spec.for_each, spec.max_parallel) == ((), 0.0, "", 4)


def test_a_store_keeps_of_an_element_what_is_its_own_and_it_is_made_whole_again() -> None:
    kept = encode_spec(element())
    assert kept == b'{"fan":1,"place":3,"id":"clean[3]","handler":"h","item":"item","priority":7}'
    found = {(5, 9): (kept, b"1"), (5, 0): (encode_task(TaskSpec(id="a", handler="h")), b"")}
    assert fans_of(found) == [(5, 1)]
    whole = whole_specs(found, {(5, 1): (encode_spec(SPEC), b"")})
    assert same(whole[5, 9][0], element()) and whole[5, 9][1] == b"1"
    assert whole[5, 0] == (TaskSpec(id="a", handler="h"), b"")
    assert list(whole_specs(found, {})) == [(5, 0)], "its task is gone"


def test_a_config_of_its_own_is_kept_with_an_element_also_null() -> None:
    for config in (b'{"y":1}', b"null"):
        spec = with_config(element(), RAW(config))
        own = kept_element(encode_spec(spec))
        assert own is not None and isinstance(own.config, RAW) and bytes(own.config) == config
        (whole, _) = whole_specs({(5, 9): (encode_spec(spec), b"")}, {(5, 1): (encode_spec(SPEC), b"")})[5, 9]
        assert same(whole, spec) and bytes(whole.config) == config
    assert bytes(with_config(SPEC, RAW(b"2")).config) == b"2" and kept_element(encode_spec(SPEC)) is None


def test_a_task_whose_config_looks_like_an_element_is_none() -> None:
    spec = TaskSpec(id="a", handler="h", config=RAW(b'{"fan":1}'))
    assert kept_element(encode_spec(spec)) is None
