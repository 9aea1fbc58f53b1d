"""The trial of another user for cores, run as that user: `python -m talka.engine.load.core_trial FILE…`."""

import os
import sys

import talka.engine.load.core_process  # noqa: F401 - what every core needs

if __name__ == "__main__":
    for file in sys.argv[1:]:
        if not os.access(file, os.R_OK):
            sys.stdout.write(file)
            sys.exit(1)
