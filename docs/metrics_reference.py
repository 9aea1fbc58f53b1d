"""Writes the page of metrics, from their table, to stdout."""

from talka.control.member.metrics import PREFIX
from talka.control.member.metrics_table import GROUPS, MetricLine

TITLE = """# Metrics

Written from the code by `make docs`. Every name that a node shows at `/metrics`, with its kind and what it says. A node
shows those that it has something of. A counter begins at 0 with its process. Times are in seconds and sizes in bytes
where the name ends so; a histogram has `_bucket`, `_sum` and `_count`.
"""


def name_of(line: MetricLine) -> str:
    return f"`{PREFIX}{line.name}{{{line.label}}}`" if line.label else f"`{PREFIX}{line.name}`"


def main() -> None:
    print(TITLE)
    for group in GROUPS:
        print(f"## {group.title}\n\n| metric | kind | |\n|---|---|---|")
        for line in group.lines:
            print(f"| {name_of(line)} | {line.kind} | {line.text} |")
        print()


if __name__ == "__main__":
    main()
