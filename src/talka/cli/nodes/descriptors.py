"""Whether this process may open as many files as a node needs, asked before anything else is."""

from typing import Final

LEAST_FILES: Final = 64
"""Its files, its store, its sockets and pipes to a few cores."""
WANTED_FILES: Final = 4096


def check_descriptors(who: str) -> None:
    """Raises the limit as far as it goes. One that is too low is named as the cause: what fails later would not say
    so."""
    from talka.net.descriptors import ask_for

    ask_for(who, least=LEAST_FILES, wanted=WANTED_FILES)
