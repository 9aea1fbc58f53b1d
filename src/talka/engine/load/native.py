"""The engine in C, where it is built: the only module that imports `talka._native`.

Decision: docs/decisions/0025-native-engine.md.
"""

import importlib
import sys
from typing import Any, Final

from talka.errors import Invalid

NAME: Final = "talka._native"
INTERFACE: Final = 2
"""What this code expects of the extension. A binary that an older build left behind has another number."""


def imported() -> tuple[Any, str | None]:
    """The extension, and why it cannot be used."""
    if sys.platform != "linux":
        return None, "it needs Linux"
    try:
        extension = importlib.import_module(NAME)
    except ModuleNotFoundError as error:
        return None, "it was not built when Talka was installed" if error.name == NAME else f"{error}"
    except ImportError as error:
        return None, f"it cannot be loaded ({error})"
    found = getattr(extension, "INTERFACE", 0)
    if found != INTERFACE:
        return (
            None,
            f"the one that is there was built for another Talka (interface {found}, not {INTERFACE}): rebuild it",
        )
    return extension, None


_extension, _obstacle = imported()


def available() -> str | None:
    """Why the native engine cannot run here; None when it can."""
    return _obstacle


def is_chosen(setting: str) -> bool:
    """Whether a setting of auto, native or python means the native engine here."""
    if setting == "native" and _obstacle is not None:
        raise Invalid(f"there is no native engine here: {_obstacle}")
    return setting != "python" and _obstacle is None


def new_driver(core: Any, **parts: Any) -> Any:
    """The direct driver."""
    return _extension.Driver(core, **parts)
