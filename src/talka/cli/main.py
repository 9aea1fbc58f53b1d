"""The command `talka`: its list of commands, and what becomes of an error.

Nothing heavy is imported here: `talka --help` must be there at once.
"""

from collections.abc import Sequence

import click

from talka.cli.command import CommandEntry, LazyGroup
from talka.cli.output import silence_stdout, tell
from talka.errors import Invalid, TalkaError
from talka.version import VERSION

COMMANDS = {
    "run": CommandEntry("Run", "run:run", "run a load test: a file, some of its workflows, or a URL"),
    "debug": CommandEntry("Run", "run:debug", "run each workflow once in one process and show every request"),
    "demo": CommandEntry("Run", "demo.command:demo", "run a bundled test against a bundled server"),
    "check": CommandEntry("Look", "run:check", "find mistakes in a test or pipeline; show its plan"),
    "report": CommandEntry("Look", "report:report", "make an HTML page of a saved result"),
    "compare": CommandEntry("Look", "compare:compare", "compare two results, and tell differences from noise"),
    "history": CommandEntry("Look", "history:history", "results that were kept: list, show and forget them"),
    "config": CommandEntry("Look", "config:config", "show every setting and where its value comes from"),
    "doctor": CommandEntry("Look", "doctor:doctor", "is this machine fit to make load, and what would help?"),
    "help": CommandEntry("Look", "shell:help_command", "explain a command, or the exit codes"),
    "up": CommandEntry("Cluster", "nodes.node:up", "a cluster of this machine alone: manager, worker and API"),
    "submit": CommandEntry("Cluster", "submit:submit", "run a load test on a cluster"),
    "jobs": CommandEntry("Cluster", "cluster_jobs:jobs", "list, watch and cancel jobs; get their results"),
    "workers": CommandEntry("Cluster", "cluster_jobs:workers", "list workers and their free cores; drain one"),
    "dead-letters": CommandEntry(
        "Cluster", "dead_letters:dead_letters", "tasks that were given up: show and replay them"
    ),
    "manager": CommandEntry("Cluster", "nodes.node:manager", "be a manager: keep jobs, lead them, answer clients"),
    "worker": CommandEntry("Cluster", "nodes.node:worker", "be a worker: run what managers give it"),
    "member": CommandEntry(
        "Cluster", "nodes.member:member", "be a member of a cluster, and print who joins and leaves"
    ),
    "cluster": CommandEntry("Cluster", "nodes.cluster:cluster", "the state of a cluster: members, leader, keys"),
    "secret": CommandEntry("Cluster", "nodes.secret:secret", "make the secret that a cluster's nodes share"),
    "certs": CommandEntry("Cluster", "nodes.certs:certs", "make the certificates of a cluster: init, issue, show"),
    "token": CommandEntry("Cluster", "nodes.token:token", "make tokens that open a cluster's API: key, issue"),
    "store": CommandEntry("Cluster", "nodes.store:store", "the store of dag jobs: migrate, check and back it up"),
    "init": CommandEntry("Set up", "importers.init:init", "write a load test that runs, with settings and a CI job"),
    "demo-server": CommandEntry("Set up", "demo.command:demo_server", "a small HTTP server to aim a test at"),
    "completion": CommandEntry("Set up", "shell:completion", "print the completion script of a shell"),
}


talka = LazyGroup(
    "talka",
    "Load tests in Python that tell the truth, on every core you give them.",
    COMMANDS,
    ("talka demo", "a first load test in ten seconds"),
    ("talka run https://staging.example.com/", "50/s for 10 s"),
    ("talka run shop.py --vus 50 --duration 1m", "your own test, with 50 users"),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(VERSION, message="talka %(version)s")(talka)


def run_command(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code. Errors are sentences on stderr."""
    try:
        code = talka.main(list(arguments), prog_name="talka", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        tell_usage(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except TalkaError as error:
        tell(str(error))
        return exit_code_of(error)
    except OSError as error:
        # Standard output may be at fault; the rest of what it holds must not fail once more at the end.
        silence_stdout()
        return internal_error(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, people get a sentence
        return internal_error(error)


def tell_usage(error: click.ClickException) -> None:
    message = error.format_message()
    context = getattr(error, "ctx", None)
    # Without arguments the message is the help itself.
    if context is None or message == context.get_help():
        tell(message)
    else:
        tell(f"{message}\nTry '{context.command_path} --help'.")


def exit_code_of(error: TalkaError) -> int:
    from talka.client.requests import ClusterUnreachable, NobodyCanRun, TooBusy
    from talka.work.outcome import ExitCode
    from talka.work.specs import BadWorkflows

    if isinstance(error, BadWorkflows | NobodyCanRun):
        return ExitCode.BAD_FILE
    if isinstance(error, ClusterUnreachable | TooBusy):
        return ExitCode.UNREACHABLE
    return ExitCode.USAGE if isinstance(error, Invalid) else ExitCode.INTERNAL_ERROR


def internal_error(error: Exception) -> int:
    from talka.cli.config import wants_traceback

    if wants_traceback():
        import traceback

        tell("".join(traceback.format_exception(error)).rstrip())
    line = " ".join(f"{type(error).__name__}: {error}".split())
    tell(f"internal error: {line}\nSet TALKA_TRACEBACK=1 to see where it happened.")
    return 1
