"""`python -m talka`, and the entry point of the console script."""

import sys


def main() -> None:
    try:
        # Inside: Ctrl-C is answered by an exit code, also while modules are still being loaded.
        from talka.cli.main import run_command
        from talka.cli.output import prepare_streams

        prepare_streams()
        code = run_command(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
