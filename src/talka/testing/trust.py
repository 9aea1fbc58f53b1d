"""Keys of a simulated cluster: what its managers sign bundles with, and what its workers open variables with."""

from random import Random
from typing import Final, NamedTuple

import msgspec

from talka.control.jobs.workers.worker_keys import WorkerKeys
from talka.control.member.signers import Signers
from talka.control.worker.variables import WorkerVariables
from talka.wire.orders import BundleFacts
from talka.wire.security.bundles import BundleSigner
from talka.wire.security.envelopes import KEY_BYTES, Opener, SealingKey

GROUP: Final = "g"
SIGNER: Final = BundleSigner(bytes(range(KEY_BYTES)), GROUP)
"""Of all its managers."""


def signed(bundle: BundleFacts) -> BundleFacts:
    """With the word of a manager."""
    return msgspec.structs.replace(bundle, word=SIGNER.sign(bundle.digest))


def keys_of_workers(number: int) -> WorkerKeys:
    """As a manager hears them. `number` decides what it draws."""
    rng = Random(f"{number}:envelopes")
    return WorkerKeys(GROUP, lambda: rng.randbytes(KEY_BYTES))


class SimulatedTrust(NamedTuple):
    sealing: bytes
    """What the worker tells of its key."""
    signers: Signers
    variables: WorkerVariables


def trust_of_worker(name: str, boot: int) -> SimulatedTrust:
    opener = Opener(Random(f"{name}:{boot}:opener").randbytes(KEY_BYTES))
    variables = WorkerVariables(opener, GROUP, name, boot)
    return SimulatedTrust(SealingKey(opener.public).encode(), Signers(GROUP), variables)
