"""Change the code in small ways and see whether a test notices: `make mutants`.

python -m tests.mutants [--seed N] [--sample N] [--minutes N] [--room NAME] [--only FILE:LINE:COLUMN:OPERATOR] [--write]
"""

import argparse
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.mutants import report
from tests.mutants.operators import Mutant
from tests.mutants.reach import Chosen, Project, Reach, reach_of
from tests.mutants.report import Verdict
from tests.mutants.runner import NOT_REACHED, SURVIVED, USUAL, Limits, Result, Trial, results, warm_up
from tests.mutants.sample import all_mutants, drawn, lines_of

ROOT: Final = Path(__file__).parents[2]
LANES: Final = 2


class Campaign:
    """One run over many mutants of a project."""

    def __init__(self, project: Project, lanes: int = LANES, limits: Limits = USUAL) -> None:
        self.project = project
        self._limits = limits
        self._lanes = lanes
        self._reaches: dict[str, Reach] = {}
        self.verdicts: list[Verdict] = []
        self.unseen = 0
        """Mutants for which there was no time."""

    def chosen(self, mutant: Mutant) -> Chosen:
        """The room's tests, and after them the simulator's."""
        rooms = [mutant.file.partition("/")[0], *(["sim"] if self.project.simulator else [])]
        found = [self._reach(room).chosen(mutant) for room in rooms]
        tests = {test: seconds for one in found for test, seconds in one.tests.items()}
        return Chosen(tests, sum(one.left_out for one in found))

    def _reach(self, room: str) -> Reach:
        if room not in self._reaches:
            began = time.monotonic()
            reach = self._reaches[room] = reach_of(self.project, room, self._lanes)
            print(f"{room}: {len(reach.times)} tests, looked at in {time.monotonic() - began:.0f} s", flush=True)
            for test in reach.failed:
                print(f"  left out, it did not pass: {test}")
        return self._reaches[room]

    def prepare(self, mutants: Sequence[Mutant]) -> None:
        """Find who reaches them, and see that the same tests pass when nothing is changed."""
        controls: dict[str, Trial] = {}
        for mutant in mutants:
            chosen = self.chosen(mutant)
            if chosen.tests:
                source = (self.project.sources / mutant.file).read_text()
                controls.setdefault(mutant.file.partition("/")[0], Trial(mutant, source, chosen, self._limits))
        warm_up(self.project)
        for trial, result in results(self.project, controls.values(), self._lanes):
            if result.state != SURVIVED:
                raise SystemExit(
                    f"Tests of {trial.mutant.file} fail with nothing changed, by {result.by}: see build/mutants/logs"
                )

    def run(self, mutants: Sequence[Mutant], until: float) -> None:
        """Until this instant of the monotonic clock; then what is under way ends."""
        for number, verdict in enumerate(self._verdicts(mutants, until), 1):
            self.verdicts.append(verdict)
            state, by, seconds, tests = verdict.result
            print(f"{number:4}/{len(mutants)} {state:11} {seconds:5.1f} s {tests:4} tests  {verdict.mutant.name}  {by}")
            sys.stdout.flush()

    def _verdicts(self, mutants: Sequence[Mutant], until: float) -> Iterator[Verdict]:
        sources = {mutant: (self.project.sources / mutant.file).read_text() for mutant in mutants}
        unreached: list[Mutant] = []

        def trials() -> Iterator[Trial]:
            for mutant in mutants:
                chosen = self.chosen(mutant)
                if not chosen.tests:
                    unreached.append(mutant)
                elif time.monotonic() > until:
                    self.unseen += 1
                else:
                    yield Trial(mutant, mutant.applied(sources[mutant]), chosen, self._limits)

        for trial, result in results(self.project, trials(), self._lanes):
            yield Verdict(trial.mutant, sources[trial.mutant], result, trial.chosen.left_out)
        for mutant in unreached:
            yield Verdict(mutant, sources[mutant], Result(NOT_REACHED, "", 0.0, 0), 0)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description="See whether tests notice small changes.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", type=int, default=400)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--room", default="", help="only mutants of this room, or of a folder in it")
    parser.add_argument("--only", default="", help="this mutant alone, by its name")
    parser.add_argument("--write", action="store_true", help="write docs/mutants.md, when every room was looked at")
    return parser.parse_args()


def asked_for(project: Project, options: argparse.Namespace) -> list[Mutant]:
    rooms = [options.room] if options.room else list(project.rooms)
    if options.only:
        rooms = [options.only.partition("/")[0]]
    if any(room.partition("/")[0] not in project.rooms or not (project.sources / room).is_dir() for room in rooms):
        raise SystemExit(f"There is no room {rooms[0]}: the rooms are {', '.join(project.rooms)}.")
    mutants = all_mutants(project.sources, rooms)
    if options.only:
        found = [mutant for mutant in mutants[rooms[0]] if mutant.name == options.only]
        if not found:
            raise SystemExit(f"There is no mutant {options.only}: its line may have moved.")
        print(found[0].diff((project.sources / found[0].file).read_text()))
        return found
    chosen = drawn(mutants, {room: lines_of(project.sources, room) for room in rooms}, options.sample, options.seed)
    print(f"seed {options.seed}: {len(chosen)} of {sum(map(len, mutants.values()))} mutants")
    return chosen


def main() -> int:
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    options, project = parsed(), Project(ROOT, "talka")
    project.build.mkdir(parents=True, exist_ok=True)
    lock = (project.build / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit("Another run is under way here: they share build/mutants.") from None
    began = time.monotonic()
    mutants, campaign, words = asked_for(project, options), Campaign(project), report.read_words()
    campaign.prepare(mutants)
    prepared = time.monotonic()
    campaign.run(mutants, began + 60 * options.minutes)
    verdicts, ended = campaign.verdicts, time.monotonic()
    said = f"Seed {options.seed}, {len(verdicts)} mutants in {(ended - began) / 60:.0f} minutes"
    said += f", of which {(prepared - began) / 60:.0f} went by before the first"
    said += f"; for {campaign.unseen} more there was no time." if campaign.unseen else "."
    facts = {"seed": options.seed, "seconds": round(ended - began), "unseen": campaign.unseen}
    text = "\n".join([*report.survivors(verdicts, words), *report.table(verdicts), "", said])
    print(f"\n{text}")
    (project.build / "report.txt").write_text(text + "\n")
    (project.build / "report.json").write_text(json.dumps(report.document(verdicts, words, facts), indent=1) + "\n")
    if options.write and not (options.room or options.only):
        document = ROOT / "docs" / "mutants.md"
        document.write_text(report.page(document.read_text(), said, verdicts, words))
    wordless = [verdict for verdict in verdicts if verdict.is_alive and not report.word_for(verdict, words)]
    if wordless:
        print(f"{len(wordless)} survive without a word: each gets a test, or a reason in tests/mutants/words.toml.")
    return 1 if wordless else 0


if __name__ == "__main__":
    sys.exit(main())
