"""The keys of a node besides those of its cluster: what a manager signs bundles with, what a worker opens variables
with.

Where certificates are in use they vouch for these keys, and nothing else is believed.
"""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from talka.control.jobs.workers.worker_keys import WorkerKeys
from talka.control.member.signers import Signers
from talka.control.worker.variables import WorkerVariables
from talka.nodes.runtime import NodeOptions
from talka.store.files.signing_key import signing_key
from talka.wire.security.bundles import SIGNER_PURPOSE, BundleSigner
from talka.wire.security.envelopes import KEY_BYTES, SEALING_PURPOSE, Opener, SealingKey, vouched_for
from talka.wire.security.roles import Role

if TYPE_CHECKING:
    from talka.net.endorsing import Endorser
    from talka.net.vouching import Authority, Voucher

MANAGERS: Final = (Role.MANAGER,)
WORKERS: Final = (Role.WORKER, Role.OUTSIDE_WORKER)


class ManagerTrust:
    """`signer` signs what this manager accepts, `keys` are those of workers."""

    def __init__(self, options: NodeOptions, folder: Path) -> None:
        self._endorser = _endorser(options)
        self.signer = BundleSigner(signing_key(folder), options.group)
        self.named = self.signer.public
        """What the leader names to workers; empty where the certificate vouches for it."""
        if self._endorser is not None:
            self.signer.voucher = self._endorser.vouch(SIGNER_PURPOSE, self.signer.public)
            self.named = b""
        doubt = None if self._endorser is None else self._doubt
        self.keys = WorkerKeys(options.group, lambda: os.urandom(KEY_BYTES), doubt)

    def use(self, voucher: "Voucher", authority: "Authority") -> None:
        """The certificate was replaced: what is signed from now on is vouched for by the new one."""
        assert self._endorser is not None
        self._endorser.use(voucher, authority)
        self.signer.voucher = self._endorser.vouch(SIGNER_PURPOSE, self.signer.public)

    def _doubt(self, worker: str, statement: bytes, voucher: bytes) -> str:
        assert self._endorser is not None
        return self._endorser.doubt(SEALING_PURPOSE, statement, voucher, roles=WORKERS, name=worker)


class WorkerTrust:
    """The key pair that `variables` opens with is of this life alone, and nowhere on disk."""

    def __init__(self, options: NodeOptions, boot: int) -> None:
        self._endorser = endorser = _endorser(options)
        opener = Opener(os.urandom(KEY_BYTES))
        self._public, self._boot = opener.public, boot
        self.variables = WorkerVariables(opener, options.group, options.name, boot)
        doubt = None
        if endorser is not None:
            # Jobs and schedules outlive certificates. Who gives out work shows one that holds, whatever a word is of.
            doubt = partial(endorser.doubt, SIGNER_PURPOSE, roles=MANAGERS, even_ended=True)
        self.signers = Signers(options.group, doubt)

    @property
    def sealing(self) -> bytes:
        """What variables are sealed to, vouched for by the certificate of today."""
        voucher = b""
        if self._endorser is not None:
            voucher = self._endorser.vouch(SEALING_PURPOSE, vouched_for(self._public, self._boot))
        return SealingKey(self._public, voucher).encode()

    def use(self, voucher: "Voucher", authority: "Authority") -> None:
        """The certificate was replaced. Tell managers `sealing` anew."""
        assert self._endorser is not None
        self._endorser.use(voucher, authority)


def _endorser(options: NodeOptions) -> "Endorser | None":
    if options.certs is None:
        return None
    from talka.net.endorsing import Endorser

    return Endorser(options.certs, name=options.name, cluster=options.cluster, environment=options.environment)
