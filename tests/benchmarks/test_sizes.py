"""`make sizes` finds what it promises to find."""

from pathlib import Path

from benchmarks.sizes import ROOT, Place, doubled_classes, full_folders, identical_runs, report, sources

BODY = [f"value_{n} = {n}" for n in range(9)]


def write(folder: Path, name: str, lines: list[str]) -> None:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


def test_a_run_is_found_once_in_full_length_whatever_its_indentation_and_its_empty_lines(tmp_path: Path) -> None:
    write(tmp_path, "a.py", ["first = 1", *BODY, "last = 1"])
    write(tmp_path, "b.py", ["def f():", *(f"    {line}\n" for line in BODY), "    last = 2"])
    write(tmp_path, "c.py", BODY[:7])

    (run,) = identical_runs(sources(tmp_path))

    assert run.lines == 9
    assert run.places == (Place("a.py", 2), Place("b.py", 2))


def test_a_run_in_three_places_is_one_run(tmp_path: Path) -> None:
    for name in ("a.py", "b.py", "c.py"):
        write(tmp_path, name, BODY)

    (run,) = identical_runs(sources(tmp_path))

    assert [place.file for place in run.places] == ["a.py", "b.py", "c.py"]


def test_imports_are_no_run(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        write(tmp_path, name, [f"import module_{n}" for n in range(12)])

    assert identical_runs(sources(tmp_path)) == []


def test_classes_of_one_name_and_full_folders_are_found(tmp_path: Path) -> None:
    write(tmp_path, "a.py", ["class Thing:", "    pass", "class _Own:", "    pass"])
    write(tmp_path, "room/b.py", ["class Thing:", "    pass", "class _Own:", "    pass"])
    for n in range(26):
        write(tmp_path, f"full/file_{n}.sql", ["SELECT 1"])

    assert doubled_classes(sources(tmp_path)) == {"Thing": ["a.py", "room/b.py"]}
    assert full_folders(tmp_path) == [(26, "full")]


def test_the_report_of_this_package_has_every_part() -> None:
    text = "\n".join(report(ROOT))

    for part in ("largest files", "largest classes", "classes over", "folders over", "defined twice", "identical runs"):
        assert part in text
