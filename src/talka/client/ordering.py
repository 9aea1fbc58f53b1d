"""From a test on this machine to an order that a cluster can carry out: checked, planned and packed here."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec

from talka.control.load.planning import Overrides, with_overrides, workflow_orders
from talka.engine.bundle import make_bundle
from talka.engine.load.feeds import load_feeds
from talka.engine.load.prepare import prepare
from talka.engine.loader import being_imported, load, select
from talka.errors import Invalid
from talka.wire.orders import BundleFacts, JobOrder
from talka.wire.shards import PLAIN_GET, FileSource, Settings, UrlRequest, UrlSource, digest_of_url
from talka.work.dsl import Workflow
from talka.work.durations import parse_duration
from talka.work.inspection import names_for_thresholds
from talka.work.specs import WorkflowSpec
from talka.work.thresholds import parse_threshold

ORDERED_BODY_LIMIT_BYTES: Final = 64 * 1024
"""Orders are kept in the register, which is for small things."""


class SubmittedByImport(Invalid):
    """A test file submits a job when it is imported, and every core of every worker imports it."""


class NoFile(Invalid):
    """Workflow classes that no file holds cannot travel."""


class BodyTooLarge(Invalid):
    """The body of a request does not fit an order: without a file there is no bundle to carry it."""


class OrderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is given here replaces what the file says."""

    overrides: Overrides = Overrides()
    thresholds: tuple[str, ...] = ()
    cores: int = 0
    """At most so many; 0: as many as priorities allow."""
    grace: str | float = "30s"
    seed: int | None = None
    engine: Literal["auto", "native", "python"] = "auto"
    """Of every worker; one that has not what is asked for refuses the job."""
    allow_partial: bool = False
    env: Mapping[str, str] = {}
    """Variables that travel with the job; no others do."""
    workers_have: tuple[str, ...] = ()
    """Modules or distributions that are installed on every worker."""
    name: str = ""
    submitted_by: str = ""


class Submission(NamedTuple):
    order: JobOrder
    bundle: bytes
    """Empty when there is no code to send."""
    specs: tuple[WorkflowSpec, ...]


def submission_of_file(path: str, names: Sequence[str], options: OrderOptions) -> Submission:
    """The file's workflows, or those of them that are named, with those they depend on."""
    specs = planned(select(load(FileSource(path)), names, path), options)
    bundle = make_bundle(path, specs, options.env, allow_modules=options.workers_have)
    facts = BundleFacts(bundle.digest, len(bundle.content), b"", bundle.file, bundle.env)
    return Submission(order_of(options.name or Path(path).name, facts, specs, options), bundle.content, specs)


def submission_of_url(url: str, options: OrderOptions, request: UrlRequest = PLAIN_GET) -> Submission:
    """One request of one URL, with no file."""
    if request.body is not None and len(request.body) > ORDERED_BODY_LIMIT_BYTES:
        raise BodyTooLarge(
            f"the body has {len(request.body):,} bytes, and {ORDERED_BODY_LIMIT_BYTES:,} are the most that travel with"
            " an order: write a test file that sends it, with File(…)"
        )
    specs = planned(load(UrlSource(url, request)), options)
    facts = BundleFacts(digest_of_url(url, request), 0, b"", "", {}, url, request)
    return Submission(order_of(options.name or url, facts, specs, options), b"", specs)


def submission_of(what: str, names: Sequence[str], options: OrderOptions) -> Submission:
    """Of a file, or of a URL."""
    if being_imported:
        raise SubmittedByImport('a test file submits its own job; do so under if __name__ == "__main__" only')
    if urlsplit(what).scheme in ("http", "https"):
        if names:
            raise Invalid(f"{what} has no workflows to choose from")
        return submission_of_url(what, options)
    return submission_of_file(what, names, options)


def file_of(workflows: Sequence[type[Workflow]]) -> str:
    """The one file that holds all the classes at its top level."""
    files = set()
    for workflow in workflows:
        module = sys.modules.get(workflow.__module__)
        path = getattr(module, "__file__", None)
        if path is None or not os.path.exists(path) or getattr(module, workflow.__name__, None) is not workflow:
            raise NoFile(f"{workflow.__name__} is in no file that could be sent: write it at the top level of a file")
        files.add(path)
    if len(files) != 1:
        raise NoFile("workflows of one job are written in one file" if files else "there are no workflows to submit")
    return str(files.pop())


def planned(specs: Sequence[WorkflowSpec], options: OrderOptions) -> tuple[WorkflowSpec, ...]:
    """With everything a worker would fail at tried here first."""
    found = with_overrides(specs, options.overrides)
    for spec in found:
        prepare(spec)
        load_feeds(spec)
    return found


def order_of(name: str, bundle: BundleFacts, specs: Sequence[WorkflowSpec], options: OrderOptions) -> JobOrder:
    if options.cores < 0:
        raise Invalid(
            f"cores = {options.cores} is not possible: give at least 1, or none for as many as priorities allow"
        )
    names = names_for_thresholds({spec.name: spec.nodes for spec in specs})
    return JobOrder(
        name=name,
        bundle=bundle,
        workflows=workflow_orders(specs),
        settings=Settings(
            grace_ns=parse_duration(options.grace, what="grace"), engine=options.engine, seed=options.seed
        ),
        thresholds=tuple(parse_threshold(rule, **names) for rule in options.thresholds),
        cores=options.cores,
        allow_partial=options.allow_partial,
        submitted_by=options.submitted_by,
    )
