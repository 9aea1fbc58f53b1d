"""The root of Talka's errors and its four branches, each named for what the catcher should do.

Concrete errors live beside the code that raises them, with their facts as fields.
"""


class TalkaError(Exception):
    """Anything Talka raises on purpose. Its text is a sentence for people."""


class Invalid(TalkaError):
    """The request is wrong: correct it and ask again. Nothing was done."""


class Untrusted(TalkaError):
    """The peer sent what it must not send: drop the peer."""


class Unavailable(TalkaError):
    """It cannot be had just now: try again later."""


class Superseded(TalkaError):
    """Somebody else acts now: stop."""
