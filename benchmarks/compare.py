"""Does `talka compare` call noise noise, and a difference a difference?

Runs pairs of equal loads, one after the other, and pairs whose target differs by 10 ms of 50. Of 20 equal pairs at most
2 may be called different; every unequal one must be.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

EQUAL_PAIRS = 20
UNEQUAL_PAIRS = 4
SECONDS = 5


def run(url: str, result: Path, load: list[str]) -> None:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "talka",
            "run",
            url,
            *load,
            "--for",
            f"{SECONDS}s",
            "--ui",
            "none",
            "--json",
            str(result),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def compared(a: Path, b: Path) -> dict:
    out = subprocess.run(
        [sys.executable, "-m", "talka", "compare", str(a), str(b), "--json", "-"], check=True, capture_output=True
    ).stdout
    return json.loads(out)


def main() -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "talka", "demo-server", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    url = server.stdout.readline().split()[-1]
    failures = []
    try:
        with tempfile.TemporaryDirectory() as name:
            a, b = Path(name) / "a.json", Path(name) / "b.json"
            called = 0
            for pair in range(EQUAL_PAIRS):
                load = ["--rate", "200/s"] if pair % 2 else ["--vus", "5"]
                for result in (a, b):
                    run(f"{url}/delay/5", result, load)
                found = compared(a, b)
                called += found["different"]
                print(f"  equal pair {pair + 1:>2} ({' '.join(load)}): {found['headline']}", flush=True)
            print(f"{called} of {EQUAL_PAIRS} equal pairs were called different; at most 2 may be")
            if called > 2:
                failures.append("equal pairs")
            for pair in range(UNEQUAL_PAIRS):
                run(f"{url}/delay/50", a, ["--rate", "100/s"])
                run(f"{url}/delay/60", b, ["--rate", "100/s"])
                headline = compared(a, b)["headline"]
                print(f"  50 ms against 60 ms, {pair + 1}: {headline}", flush=True)
                if "slower" not in headline:
                    failures.append(f"unequal pair {pair + 1}")
    finally:
        server.terminate()
        server.wait()
    if failures:
        sys.exit(f"did not hold: {', '.join(failures)}")
    print("Everything held.")


if __name__ == "__main__":
    main()
