"""The command `talka submit`: a test or a pipeline on a cluster."""

import contextlib
import sys
from typing import TYPE_CHECKING, Any, Final

from talka.cli.command import command, option
from talka.cli.connection import CLUSTER, api_options
from talka.cli.output import say, tell
from talka.cli.run import (
    PIPELINE,
    RESULT,
    RUNNING,
    env,
    load_options,
    more_result_options,
    param,
    request_options,
    running_options,
    target,
    threshold,
    travelling,
)

if TYPE_CHECKING:
    from talka.cli.config import CliSettings
    from talka.client.ordering import Submission
    from talka.wire.shards import UrlRequest
    from talka.work.dags.dag import DagSpec

WATCHED: Final = ("json", "html", "junit", "summary", "outputs", "keep", "store")
"""Settings that are about a result, which whoever detaches does not wait for."""


@command(
    "submit",
    "Run a load test or a pipeline on a cluster. TARGET is FILE, FILE:Class,Class or a URL; of a pipeline, a file"
    " of YAML or JSON, or FILE.py:NAME. Ctrl-C cancels a load test; a pipeline goes on without you.",
    ("talka submit shop.py --to 10.0.0.5:8470", "on that cluster, shown here like talka run"),
    ("talka submit shop.py --env SHOP_TOKEN --cores 32", "with a variable, on at most 32 cores"),
    ("talka submit shop.py --detach", "prints the job's id and leaves"),
    ("talka submit etl.yaml", "a pipeline: its tasks run where their handlers are"),
    ("talka submit etl.yaml --param day=2026-11-16", "with a value of one of its params"),
    ("talka submit etl.yaml --with handlers.py", "with handlers that travel with it"),
)
@target
@load_options
@request_options
@threshold
@option(
    RESULT,
    "--json",
    "[FILE]",
    "Write the result; without FILE, print it without a summary.",
    is_flag=False,
    flag_value="-",
)
@more_result_options
@api_options
@option(CLUSTER, "--key", "KEY", "Submitted twice with the same key, it is still one job.")
@param
@travelling
@option(
    PIPELINE, "--wait-for-workers", None, "Submit it also if no worker could run some of its tasks now.", is_flag=True
)
@option(CLUSTER, "--priority", "N", "In the queue, from 1 to 10, the highest (5).")
@option(CLUSTER, "--detach", None, "Print the job's id and leave it to the cluster.", is_flag=True)
@option(CLUSTER, "--logs", None, "Show what the test prints on the workers, on stderr.", is_flag=True)
@option(RUNNING, "--cores", "N", "At most this many cores (as many as priorities allow).")
@option(RUNNING, "--workers-have", "MODULE", "The test imports it, and every worker has it. Repeatable.", multiple=True)
@running_options
@env
def submit(
    target: str,
    env: tuple[str, ...],
    key: str | None,
    detach: bool,
    logs: bool,
    param: tuple[str, ...],
    wait_for_workers: bool,
    with_files: tuple[str, ...],
    **flags: Any,
) -> int:
    from talka.cli.config import BadSetting, pass_variables, read_settings
    from talka.cli.url_request import take_request

    request = take_request(flags, target)
    settings = read_settings(flags)
    variables = pass_variables(env)
    pipeline = pipeline_in(target, settings, env, param, with_files)
    if pipeline is not None:
        from talka.cli.pipelines import submit_pipeline

        return submit_pipeline(
            pipeline, settings, key or "", with_files=with_files, detach=detach, waits=wait_for_workers
        )
    if with_files:
        raise BadSetting(f"--with is for pipelines, and {target} is a load test, which travels anyway: leave it out")
    if wait_for_workers:
        raise BadSetting(f"--wait-for-workers is for pipelines, and {target} is a load test: leave it out")
    if detach:
        check_detached(settings, logs=logs)
    from talka.cli.connection import client_of, submitted
    from talka.cli.jobs import Reporting
    from talka.cli.remote import RemoteJob, followed

    client = client_of(settings)
    # What the user's file prints when it is imported must not mix with the result.
    with contextlib.redirect_stdout(sys.stderr):
        submission = ordered(target, settings, variables, request)
    job = RemoteJob(client, submission.order, submission.specs, cancels=True, logs=logs)
    # Before anything is sent: it finds what cannot be written.
    reporting = None if detach else Reporting(job, settings, job.waiting)
    facts = submitted(settings, client.submit(submission.order, key or "", bundle=submission.bundle))
    job.submitted(facts)
    if reporting is None:
        say(facts.id)
        return 0
    if settings.ui != "none":
        tell(f"submitted {job.name} as job {facts.id}")
    return followed(job, reporting, "Ctrl-C cancels it and still reports, a second one leaves it at once")


def pipeline_in(
    target: str,
    settings: "CliSettings",
    env: tuple[str, ...],
    param: tuple[str, ...],
    with_files: tuple[str, ...] = (),
    *,
    may_lack: bool = False,
) -> "DagSpec | None":
    """The pipeline that the target is, or None: then it is a load test. `may_lack` values of its params."""
    if target.startswith(("http://", "https://")) and not param:
        return None
    from talka.cli.config import BadSetting
    from talka.cli.pipelines import check_settings, pipeline_of, values_in

    values = values_in(param)
    # What the user's file prints when it is imported must not mix with the result.
    with contextlib.redirect_stdout(sys.stderr):
        found = pipeline_of(target, None if may_lack else values)
    if found is not None:
        check_settings(target, settings, env, with_files)
    elif param:
        raise BadSetting(f"--param is for pipelines, and {target} is a load test: leave it out")
    return found


def check_detached(settings: "CliSettings", *, logs: bool) -> None:
    from talka.cli.config import BadSetting

    if logs:
        raise BadSetting("--logs follows the job, which --detach does not: leave one of them out; talka jobs logs ID")
    for name in WATCHED:
        if settings.origins.get(name, "").startswith("--"):
            raise BadSetting(
                f"{settings.named(name)} needs the result, for which --detach does not wait: leave one of them out; "
                "talka jobs result ID gets it later"
            )


def ordered(target: str, settings: "CliSettings", variables: dict[str, str], request: "UrlRequest") -> "Submission":
    """The target, imported and checked as `talka run` does it, packed and made an order of."""
    import msgspec

    from talka.cli.jobs import file_and_names, is_url, mistakes_of, overrides_of
    from talka.client.ordering import OrderOptions, submission_of_file, submission_of_url

    options = OrderOptions(
        overrides=overrides_of(settings),
        thresholds=settings.thresholds,
        cores=settings.cores or 0,
        grace=settings.grace,
        seed=settings.seed,
        engine=settings.engine,
        allow_partial=settings.allow_partial,
        env=variables,
        workers_have=settings.workers_have,
    )
    with mistakes_of(settings):
        if is_url(target):
            submission = submission_of_url(target, options, request)
        else:
            submission = submission_of_file(*file_and_names(target), options)
    return submission._replace(order=msgspec.structs.replace(submission.order, priority=settings.priority))
