"""Optimized arguments: parameters of a step that are prepared once, before the clock starts.

Each is an alias of a plain type, so that `url: URL = "http://…"` satisfies a type checker; the mark inside tells the
engine how to prepare the default. The step then receives a value that still behaves as the plain type.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

ArgumentKind = Literal["url", "headers", "data", "params", "cookies", "auth", "file", "directory", "glob"]


class Optimized(msgspec.Struct, frozen=True):
    """The mark on an alias below."""

    kind: ArgumentKind


Scalar: TypeAlias = str | int | float | bool

URL: TypeAlias = Annotated[str, Optimized("url")]
URL.__doc__ = """A URL, checked and taken apart once."""
Headers: TypeAlias = Annotated[Mapping[str, str], Optimized("headers")]
Headers.__doc__ = """Headers of a request, by name."""
Data: TypeAlias = Annotated[Any, Optimized("data")]
Data.__doc__ = """A body: a dict or list (sent as JSON), bytes, a string, a msgspec or pydantic object."""
Params: TypeAlias = Annotated[Mapping[str, Scalar | Sequence[Scalar]], Optimized("params")]
Params.__doc__ = """Parameters of a URL; a list gives one parameter several values."""
Cookies: TypeAlias = Annotated[Mapping[str, str], Optimized("cookies")]
Cookies.__doc__ = """Cookies of a request, by name."""
Auth: TypeAlias = Annotated[str | tuple[str, str], Optimized("auth")]
Auth.__doc__ = """A pair (user, password) for Basic, a string for a Bearer token."""
File: TypeAlias = Annotated[str, Optimized("file")]
File.__doc__ = """A path, relative to the test file; read once. `.content` holds its bytes."""
Directory: TypeAlias = Annotated[Sequence[str], Optimized("directory")]
Directory.__doc__ = (
    """A folder, given by its path; the step receives its files, read once, in the order of their names."""
)
FileGlob: TypeAlias = Annotated[Sequence[str], Optimized("glob")]
FileGlob.__doc__ = """A pattern such as `"bodies/*.json"`; the step receives the files that match, read once."""
