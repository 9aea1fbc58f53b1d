"""What grows: the largest files and classes, and what is written twice. People see it early, by `make sizes`.

`python benchmarks/sizes.py [FOLDER]` looks at another tree, so that two revisions can be held against each other.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent / "src" / "talka"
LEAST_RUN: Final = 8
"""Lines that must be the same, one after the other, to be called a run."""
MOST_LINES_OF_A_CLASS: Final = 500
MOST_FILES_OF_A_FOLDER: Final = 25
SHOWN: Final = 10


class Line(NamedTuple):
    number: int
    text: str


class Place(NamedTuple):
    file: str
    line: int


class Run(NamedTuple):
    """Lines that stand in several places."""

    lines: int
    places: tuple[Place, ...]


class Source(NamedTuple):
    name: str
    text: str
    tree: ast.Module


def sources(root: Path) -> list[Source]:
    found = []
    for path in sorted(root.rglob("*.py")):
        text = path.read_text()
        found.append(Source(str(path.relative_to(root)), text, ast.parse(text)))
    return found


def code_lines(source: Source) -> list[Line]:
    """Its lines without blanks around them; without empty ones and imports, which are alike everywhere."""
    imports = {
        number
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate((line.strip() for line in source.text.splitlines()), 1)
    return [Line(number, text) for number, text in lines if text and number not in imports]


def identical_runs(found: Iterable[Source], least: int = LEAST_RUN) -> list[Run]:
    """Every stretch of at least so many lines that stands in two places or more, as long as it can be; longest
    first."""
    files = {source.name: code_lines(source) for source in found}
    starts: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for name, lines in files.items():
        for at in range(len(lines) - least + 1):
            starts[tuple(line.text for line in lines[at : at + least])].append((name, at))
    places: dict[tuple[str, ...], set[Place]] = defaultdict(set)
    for same in starts.values():
        for n, (one, a) in enumerate(same):
            for other, b in same[n + 1 :]:
                ours, theirs = files[one], files[other]
                if a and b and ours[a - 1].text == theirs[b - 1].text:
                    continue  # begins earlier, and was or will be met there
                length = least
                while (
                    a + length < len(ours)
                    and b + length < len(theirs)
                    and ours[a + length].text == theirs[b + length].text
                ):
                    length += 1
                text = tuple(line.text for line in ours[a : a + length])
                places[text] |= {Place(one, ours[a].number), Place(other, theirs[b].number)}
    return sorted(
        (Run(len(text), tuple(sorted(where))) for text, where in places.items()), key=lambda run: (-run.lines, run)
    )


def classes(found: Iterable[Source]) -> Iterator[tuple[int, str, str]]:
    """(lines, file, name) of every class."""
    for source in found:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and node.end_lineno is not None:
                yield node.end_lineno - node.lineno + 1, source.name, node.name


def doubled_classes(found: Iterable[Source]) -> dict[str, list[str]]:
    """Public names of classes that more than one module has, and the modules."""
    modules: dict[str, list[str]] = defaultdict(list)
    for source in found:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(source.name)
    return {name: files for name, files in sorted(modules.items()) if len(files) > 1}


def full_folders(root: Path, most: int = MOST_FILES_OF_A_FOLDER) -> list[tuple[int, str]]:
    """Folders with more files than that, whatever is in them; compiled ones do not count."""
    counts = [
        (
            sum(
                file.is_file() and file.suffix not in (".so", ".pyc") and file.name != "__init__.py"
                for file in folder.iterdir()
            ),
            folder,
        )
        for folder in [root, *root.rglob("*")]
        if folder.is_dir()
    ]
    return sorted(((count, str(folder.relative_to(root))) for count, folder in counts if count > most), reverse=True)


def report(root: Path) -> Iterator[str]:
    found = sources(root)
    files = [(source.text.count("\n"), source.name) for source in found]
    large = sorted(((lines, f"{file}: {name}") for lines, file, name in classes(found)), reverse=True)
    yield f"{sum(lines for lines, _ in files)} lines in {len(files)} files"
    for title, sized in (("largest files", sorted(files, reverse=True)), ("largest classes", large)):
        yield title
        yield from (f"  {lines:>5}  {name}" for lines, name in sized[:SHOWN])
    over = [(lines, name) for lines, name in large if lines > MOST_LINES_OF_A_CLASS]
    yield f"classes over {MOST_LINES_OF_A_CLASS} lines: {len(over)}"
    yield from (f"  {lines:>5}  {name}" for lines, name in over)
    full = full_folders(root)
    yield f"folders over {MOST_FILES_OF_A_FOLDER} files: {len(full)}"
    yield from (f"  {count:>5}  {name}" for count, name in full)
    doubled = doubled_classes(found)
    yield f"class names defined twice: {len(doubled)}"
    yield from (f"  {name}: {', '.join(modules)}" for name, modules in doubled.items())
    runs = identical_runs(found)
    yield f"identical runs of {LEAST_RUN} lines or more: {len(runs)}, {sum(run.lines for run in runs)} lines"
    for run in runs:
        yield f"  {run.lines:>5}  {', '.join(f'{file}:{line}' for file, line in run.places)}"


if __name__ == "__main__":
    for line in report(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT):
        print(line)
