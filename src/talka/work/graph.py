"""Order in a graph of names: which may run together, which must wait."""

from collections.abc import Collection, Mapping

from talka.errors import Invalid


class Cycle(Invalid):
    """Names that wait for each other in a circle."""

    def __init__(self, circle: list[str]) -> None:
        super().__init__(f"they depend on each other in a circle: {' → '.join([*circle, circle[0]])}")
        self.circle = circle


def layers_of(waits_for: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Names in layers: each waits only for names of earlier layers. Within a layer the given order is kept."""
    left = {name: set(others) for name, others in waits_for.items()}
    layers: list[list[str]] = []
    while left:
        free = [name for name, others in left.items() if not others & left.keys()]
        if not free:
            raise Cycle(circle_in(left))
        layers.append(free)
        for name in free:
            del left[name]
    return layers


def ancestors_of(name: str, waits_for: Mapping[str, Collection[str]]) -> set[str]:
    """Everything `name` waits for, near and far."""
    found: set[str] = set()
    open_names = list(waits_for[name])
    while open_names:
        ancestor = open_names.pop()
        if ancestor not in found:
            found.add(ancestor)
            open_names.extend(waits_for[ancestor])
    return found


def circle_in(left: Mapping[str, Collection[str]]) -> list[str]:
    """One circle among names that all wait for another of them."""
    path = [next(iter(left))]
    while True:
        following = next(name for name in left if name in left[path[-1]])
        if following in path:
            return path[path.index(following) :]
        path.append(following)
