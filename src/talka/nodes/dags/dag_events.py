"""What a manager tells of dag jobs and their store, as events with a sentence each."""

from typing import Final

from talka.control.tasks.epoch_floor import TOO_OLD
from talka.control.tasks.store_effects import RaiseEpoch
from talka.nodes.member_events import WORDS, Event
from talka.report.text import counted_text
from talka.wire.attempts import Dropped, StoreLife
from talka.work.lifecycle import JobState

DAG_WORDS: Final = {
    "dag-ended": "{text}",
    "store-back": "the store can be written again: dag jobs go on",
    "store-life": "{text}",
    "epoch-raised": "{text}",
    "attempts-dropped": "{text}",
}
WORDS.update(DAG_WORDS)


def dag_ended_event(job: str, state: JobState, reason: str) -> Event:
    why = " ".join(reason.split())  # one line, whatever its author wrote
    text = f"job {job} ended {state}" + (f": {why}" if why else "")
    return {"event": "dag-ended", "job": job, "state": state, "reason": reason, "text": text}


def new_life_event(place: str, life: StoreLife, reason: str) -> Event:
    text = (
        f"the store {place} begins a new life, because {reason}: jobs go on as they are in it, and what workers still"
        " hold of the life before does not count"
    )
    return {"event": "store-life", "store": f"{life.store:x}", "life": f"{life.life:x}", "text": text}


def raised_event(place: str, wanted: RaiseEpoch) -> Event:
    whose = "of this very store, which is an older copy then" if wanted.is_own else "of another store or life"
    text = (
        f"worker {wanted.worker} remembers epoch {wanted.remembered} {whose}: the store {place} takes epoch"
        f" {wanted.epoch} before it gives that worker anything"
    )
    kind = "alarm" if wanted.is_own else "epoch-raised"
    return {"event": kind, "kind": "store", "worker": wanted.worker, "text": text}


def too_old_event(worker: str) -> Event:
    return {"event": "alarm", "kind": "workers", "worker": worker, "text": f"worker {worker}: {TOO_OLD}"}


def dropped_event(worker: str, dropped: Dropped) -> Event:
    return {
        "event": "attempts-dropped",
        "worker": worker,
        "attempts": dropped.attempts,
        "results": dropped.results,
        "text": f"worker {worker} held {dropped_text(dropped)}",
    }


def dropped_text(dropped: Dropped) -> str:
    life = StoreLife(dropped.store, dropped.life)
    attempts, results = counted_text(dropped.attempts, "attempt"), counted_text(dropped.results, "result")
    return f"{attempts} and {results} of {life}: dropped"
