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


def text_of(error: BaseException) -> str:
    """Of any error, also of a user's own."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the user's own __str__ may raise anything
        return ""


def sendable(text: str, limit: int) -> str:
    """So many characters at most, and without the halves of characters that no message can carry."""
    text = text[:limit]
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
