"""The ten largest files and classes, so that growth is seen early by people."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent / "src" / "talka"


def main() -> None:
    files: list[tuple[int, str]] = []
    classes: list[tuple[int, str]] = []
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        name = str(path.relative_to(ROOT))
        files.append((text.count("\n"), name))
        classes += [
            (node.end_lineno - node.lineno + 1, f"{name}: {node.name}")
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ClassDef) and node.end_lineno
        ]
    for title, found in (("files", files), ("classes", classes)):
        print(f"largest {title}")
        for lines, name in sorted(found, reverse=True)[:10]:
            print(f"  {lines:>5}  {name}")


if __name__ == "__main__":
    main()
