"""What a method calls and keeps, as far as reading its code tells.

A step that calls a client is measured without an annotation that says so. Functions and classes of the test's own that
it names are read too: a helper, a page object. What reading does not find, the annotation tells.
"""

import dis
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from types import CodeType, FunctionType
from typing import Any, Final

from talka.work.dsl import Declaration, code_of

READS: Final = ("LOAD_ATTR", "LOAD_METHOD")
BACKWARDS: Final = ("JUMP_BACKWARD", *(f"JUMP_BACKWARD_IF_{what}" for what in ("TRUE", "FALSE", "NONE", "NOT_NONE")))
"""What ends a loop. Waiting for something jumps back too, without interruption."""
READ_LIMIT: Final = 500
"""Functions that are read for one method."""


def calls_client(function: Any, workflow: type, clients: Set[str]) -> bool:
    """Whether it uses `….client.NAME` with one of these names, itself or through what it names."""
    reached = codes_reached(function, lambda _: [workflow])
    return any("client" in names and names & clients for names in map(names_in, reached))


def makes_metrics(function: Any) -> bool:
    """Whether it may count by `self.metric`, itself or through what it names."""

    def own_classes(known: Mapping[str, Any]) -> list[type]:
        return [value for value in known.values() if isinstance(value, type) and is_own(value.__module__)]

    return any("metric" in attributes_in(code) for code in codes_reached(function, own_classes))


def codes_reached(function: Any, classes: Callable[[Mapping[str, Any]], Sequence[type]]) -> Iterator[CodeType]:
    """Its code, and that of the functions it names: globals, and attributes of `classes` of a function's globals."""
    waiting: list[Any] = [function]
    seen: set[CodeType] = set()
    while waiting and len(seen) < READ_LIMIT:
        code = code_of(found := waiting.pop())
        if code is None or code in seen:
            continue
        seen.add(code)
        yield code
        known = getattr(found, "__globals__", {})
        homes = classes(known)
        for name in names_in(code):
            waiting += functions_of(known.get(name))
            waiting += [method for home in homes for method in functions_of(getattr(home, name, None))]


def makes_several_calls(function: Any, clients: Set[str]) -> bool:
    """Whether it calls these clients in several places or in a loop, without a name for any of the calls."""
    code = code_of(function)
    if code is None or any(isinstance(constant, tuple) and "name" in constant for constant in code.co_consts):
        return False
    instructions = list(dis.get_instructions(code))
    calls = [one.offset for one in instructions if one.opname in READS and one.argval in clients]
    loops = [(one.argval, one.offset) for one in instructions if one.opname.endswith(BACKWARDS)]
    return len(calls) > 1 or any(first <= call <= last for call in calls for first, last in loops)


def keeps_attributes(function: Any) -> bool:
    """Whether it writes to `self`, whatever it calls it."""
    code = code_of(function)
    if code is None or not code.co_argcount:
        return False
    instructions = list(dis.get_instructions(code))
    pairs = list(zip(instructions, instructions[1:], strict=False))
    # `self.x += 1` takes `self` twice first, and has it on the stack when it writes.
    adds = any(_loads(one, code.co_varnames[0]) and after.opname == "COPY" for one, after in pairs)
    return any(
        after.opname == "STORE_ATTR" and (_loads(one, code.co_varnames[0]) or (adds and one.opname == "SWAP"))
        for one, after in pairs
    )


def _loads(one: dis.Instruction, variable: str) -> bool:
    """Whether it puts this variable on the stack. Newer Pythons load two at once."""
    loaded = one.argval[-1] if isinstance(one.argval, tuple) and one.argval else one.argval
    return one.opname.startswith("LOAD_FAST") and bool(loaded == variable)


def attributes_in(code: CodeType) -> Iterator[str]:
    """Attributes it reads, also in functions inside it. A global of the name, such as a decorator, is another thing."""
    reads = (one for part in codes_in(code) for one in dis.get_instructions(part) if one.opname in READS)
    return (one.argval for one in reads)


def names_in(code: CodeType) -> set[str]:
    """Attributes and globals it names, also in functions inside it."""
    return {name for part in codes_in(code) for name in part.co_names}


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """It, and that of functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)


def functions_of(value: Any) -> list[Any]:
    """The functions behind a name: of a method, a function, or a class of the test's own."""
    if isinstance(value, Declaration):
        value = value.function
    if isinstance(value, FunctionType):
        return [value] if is_own(value.__module__) else []
    if isinstance(value, type) and is_own(value.__module__):
        return [found for found in vars(value).values() if isinstance(found, FunctionType)]
    return []


def is_own(module: str | None) -> bool:
    """Whether it may be the test's: neither Python's nor ours."""
    top = (module or "").partition(".")[0]
    return top not in sys.stdlib_module_names and top != "talka"
