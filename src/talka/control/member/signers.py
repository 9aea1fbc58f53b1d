"""Whose word a worker takes for a bundle, and whom a leader names for that.

With certificates: a key that the certificate of a manager vouches for. Without: a key that the leader has named when it
renewed the lease. What was checked once is not checked again, but for the voucher, whose certificate may end.

docs/decisions/0029-signed-by-managers-sealed-to-workers.md.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, Literal, TypeAlias

from talka.cluster.safeguards import ALL, Safeguards
from talka.wire.jobs import SIGNERS_LIMIT as NAMED_LIMIT
from talka.wire.security.bundles import read_word

SIGNERS_LIMIT: Final = 256
CHECKED_LIMIT: Final = 1024
UNKNOWN_NS: Final = 5_000_000_000
"""How long a key may be unknown that the leader has not named yet: it does so once a second."""

Verdict: TypeAlias = Literal["holds", "unknown", "refused"]


class Signers:
    """`group` is cluster and environment. `doubt` says why a voucher does not make a key that of a manager; None where
    there are no certificates."""

    def __init__(
        self, group: str, doubt: Callable[[bytes, bytes], str] | None = None, safeguards: Safeguards = ALL
    ) -> None:
        self.problem = ""
        """Why the last word was refused."""
        self._group = group
        self._doubt = doubt
        self._is_needed = safeguards.signed_bundles
        self._named: OrderedDict[bytes, None] = OrderedDict()
        self._asked: OrderedDict[bytes, int] = OrderedDict()
        """Keys that nobody named, and when each was first met."""
        self._checked: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def name(self, keys: Iterable[bytes]) -> None:
        """The leader has named these."""
        if self._doubt is not None:
            return
        for key in keys:
            self._asked.pop(key, None)
            self._named[key] = None
            self._named.move_to_end(key)
            if len(self._named) > SIGNERS_LIMIT:
                self._named.popitem(last=False)

    def judge(self, now: int, digest: str, content: bytes) -> Verdict:
        """`unknown`: ask again when the leader has spoken."""
        if not self._is_needed:
            return "holds"
        word = read_word(content)
        if word is None:
            return self._refuse("no manager has signed this bundle")
        if self._doubt is not None:
            problem = self._doubt(word.signer, word.voucher)
            if problem:
                return self._refuse(f"no manager has signed this bundle: {problem}")
        elif word.signer not in self._named:
            return self._wait(now, word.signer)
        if (digest, word.signer) not in self._checked:
            if not word.holds(self._group, digest):
                return self._refuse("the signature of this bundle is of another bundle, or was changed")
            self._checked[digest, word.signer] = None
            if len(self._checked) > CHECKED_LIMIT:
                self._checked.popitem(last=False)
        return "holds"

    def _wait(self, now: int, signer: bytes) -> Verdict:
        since = self._asked.setdefault(signer, now)
        if len(self._asked) > SIGNERS_LIMIT:
            self._asked.popitem(last=False)
        if now - since < UNKNOWN_NS:
            return "unknown"
        return self._refuse("no manager that the cluster's leader names has signed this bundle")

    def _refuse(self, problem: str) -> Verdict:
        self.problem = problem
        return "refused"


class SignersNamed:
    """Keys that a leader names: its own, and those that signed jobs of the register. Also of managers that are gone."""

    def __init__(self, own: bytes) -> None:
        """`own` is empty where certificates vouch for keys; then none is named."""
        self.keys: tuple[bytes, ...] = (own,) if own else ()

    def add(self, content: bytes) -> None:
        """The word of a job. Of too many keys the one goes that came first, but for the leader's own."""
        word = read_word(content) if content and self.keys else None
        if word is None or word.signer in self.keys:
            return
        own, *others = (*self.keys, word.signer)
        self.keys = (own, *others[-(NAMED_LIMIT - 1) :])
