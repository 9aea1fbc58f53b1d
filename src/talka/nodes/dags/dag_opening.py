"""How a manager comes to have dag jobs: its partitions of the store are had, its life known, and keepers made that
begin there."""

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from talka.control.dags.keeper import DagKeeper
from talka.control.dags.turns import DagTurns
from talka.control.tasks.partition import WHOLE, Partition
from talka.errors import TalkaError
from talka.nodes.dags.dag_service import USUAL_LIMITS, DagService, ServiceLimits
from talka.nodes.dags.kept_partitions import KeptPartition, KeptPartitions
from talka.nodes.dags.notice_sender import NO_NOTICES, NotifyOptions
from talka.nodes.dags.store_hold import OWN_CLOCKS, HoldClocks, StoreLease
from talka.nodes.member_events import Event
from talka.store.dags.memory import StoreMemory
from talka.store.dags.records import Store
from talka.wire.attempts import DRAWN_BITS

if TYPE_CHECKING:
    from talka.nodes.manager import ManagerNode


async def open_dags(
    node: "ManagerNode",
    store: Store,
    folder: Path,
    owner: str,
    tell: Callable[[Event], None],
    on_broken: Callable[[TalkaError], None],
    *,
    limits: ServiceLimits = USUAL_LIMITS,
    clocks: HoldClocks = OWN_CLOCKS,
    partitions: Sequence[Partition] = (WHOLE,),
    notices: NotifyOptions = NO_NOTICES,
    datacenter: str = "",
) -> DagService:
    """`folder` is the manager's and remembers what it served; `owner` names it. `partitions` of the store are had, the
    first among them. When this raises, the store is still the caller's to close."""
    draw = random.SystemRandom().getrandbits
    memory = await asyncio.to_thread(StoreMemory, folder)
    leases = [await StoreLease.had(store, owner, tell, key=one.lease_key, clocks=clocks) for one in partitions]
    opened = await store.open_life(leases[0].epoch, memory, lambda: draw(DRAWN_BITS))
    # Before anything is given out: should the store be put back, this folder knows how far it had come.
    await asyncio.to_thread(memory.remember, opened.store, opened.life, leases[0].epoch)
    turns, next_number = DagTurns(random.Random(draw(128))), await store.next_number()
    keepers = [
        DagKeeper(
            epoch=lease.epoch,
            next_number=next_number,
            rng=random.Random(draw(128)),
            wall_offset_ns=node.clock.offset_ns,
            life=partition.life(opened.store, opened.life, draw(DRAWN_BITS)),
            turns=turns,
            limits=limits.keeper,
            sign=node.word_for,
        )
        for partition, lease in zip(partitions, leases, strict=True)
    ]
    kept = KeptPartitions(
        store,
        turns,
        [KeptPartition(lease, keeper) for lease, keeper in zip(leases, keepers, strict=True)],
        memory,
        opened,
        page=limits.page,
        again_s=limits.again_s,
    )
    return DagService(node, store, kept, tell, on_broken, limits, notices, datacenter)
