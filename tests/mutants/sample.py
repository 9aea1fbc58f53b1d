"""Which mutants are run: drawn from a seed, spread over the rooms."""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.mutants.operators import Mutant, mutants_of

ROOMS: Final = ("cluster", "control", "wire", "store", "work", "engine")
LEAST_OF_A_ROOM: Final = 40


def all_mutants(package: Path, rooms: Sequence[str]) -> dict[str, list[Mutant]]:
    """By room: every mutant there is."""
    return {
        room: [
            mutant
            for path in sorted((package / room).rglob("*.py"))
            for mutant in mutants_of(path.read_text(), str(path.relative_to(package)))
        ]
        for room in rooms
    }


def lines_of(package: Path, room: str) -> int:
    return sum(path.read_text().count("\n") for path in (package / room).rglob("*.py"))


def drawn(mutants: Mapping[str, Sequence[Mutant]], lines: Mapping[str, int], size: int, seed: int) -> list[Mutant]:
    """By the lines of each room, and in it by the mutants of each folder, in an order of their own."""
    chosen: list[Mutant] = []
    for room, number in shares(lines, size, LEAST_OF_A_ROOM).items():
        draw = random.Random(f"{seed} {room}")
        folders: dict[str, list[Mutant]] = defaultdict(list)
        for mutant in mutants[room]:
            folders[mutant.file.rpartition("/")[0]].append(mutant)
        counts = {folder: len(found) for folder, found in folders.items()}
        for folder, part in shares(counts, min(number, len(mutants[room])), 0).items():
            chosen += draw.sample(folders[folder], part)
    random.Random(seed).shuffle(chosen)  # a run that ends early has seen some of every room
    return chosen


def shares(weights: Mapping[str, int], total: int, least: int) -> dict[str, int]:
    """`total` in parts by weight, none below `least` while that can be; what rounding leaves goes to the largest."""
    least = min(least, total // max(1, len(weights)))
    whole = sum(weights.values()) or 1
    spread = total - least * len(weights)
    exact = {name: least + spread * weight / whole for name, weight in weights.items()}
    parts = {name: int(share) for name, share in exact.items()}
    for name in sorted(exact, key=lambda name: parts[name] - exact[name])[: total - sum(parts.values())]:
        parts[name] += 1
    return parts
