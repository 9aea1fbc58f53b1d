"""The commands that are a node: `talka up`, `talka manager`, `talka worker`."""

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

import click

from talka.cli.command import command, option, options
from talka.errors import Invalid

if TYPE_CHECKING:
    from pathlib import Path

    from talka.cli.nodes.life import Api
    from talka.cli.nodes.settings import NodeSettings
    from talka.web.auth import Tokens

API_PORT: Final = 8470
NODE_PORT: Final = 8471
STATE_FOLDER: Final = "~/.local/state/talka"
PRESETS: Final = ("default", "fast", "wan", "serf-lan")
WILDCARDS: Final = ("0.0.0.0", "::")
SECRET_BYTES: Final = 32
WHO, REACHED, TRUST, WORK = "Who it is", "Where it is reached", "Whom it trusts", "What it does"

NAME = option(WHO, "--name", "NAME", "Its name, unique in the cluster (the name of this machine).")
WHERE = options(
    option(WHO, "--cluster", "ID", "The cluster's id (default)."),
    option(WHO, "--environment", "ID", "The environment's id, such as production (default)."),
    option(WHO, "--datacenter", "ID", "The datacenter in which it stands."),
    option(WHO, "--zone", "ID", "The zone of its datacenter: peers of the same zone are asked first."),
    option(WHO, "--region", "ID", "The region of its datacenter: peers of the same one come before others."),
    option(WHO, "--data-dir", "FOLDER", f"Where it keeps its files ({STATE_FOLDER}/NAME)."),
)
SEED = option(
    REACHED,
    "--seed seeds",
    "ADDRESS",
    "A manager's node port: HOST:PORT, srv:NAME of the DNS, or file:PATH. Repeatable.",
    multiple=True,
)
TRUSTED = options(
    option(TRUST, "--secret-file", "FILE", "The cluster's secret, a line of at least 32 characters."),
    option(TRUST, "--certs", "FOLDER", "Certificates (talka certs): connections are TLS, roles checked."),
)
CORES = option(WORK, "--cores", "N", "Core processes at the same time (one for each physical core).")
STORE = option(WORK, "--store", "URL", "Keep pipelines in this file: sqlite:///FILE (none are taken).")
LEASE = option(
    WORK,
    "--lease",
    "D",
    "The lease of workers: a worker that is silent for this long is given up, and others get its work (the "
    "cluster's; 5s at first).",
)
NOTIFY = options(
    option(
        WORK,
        "--notify-secret",
        "FILE",
        "Sign what servers are told of the ends of pipelines with this secret, a line of at least 32 characters (none "
        "are told).",
    ),
    option(
        WORK,
        "--allow-private-notify",
        None,
        "Tell servers at private addresses too, such as this machine's own.",
        is_flag=True,
        default=None,
    ),
)
KEPT = "What it keeps"
KEEPS = options(
    option(KEPT, "--keep-jobs", "AGE,N", "Ended jobs: as long, and so many (7d,10000; 512 load tests)."),
    option(KEPT, "--keep-failed-jobs", "AGE,N", "Those that did not complete, if otherwise."),
    option(KEPT, "--keep-logs", "AGE,N", "What tasks of ended pipelines logged and printed (as long as them)."),
    option(KEPT, "--keep-failed-logs", "AGE,N", "Of those that did not complete, if otherwise."),
    option(KEPT, "--keep-blobs", "AGE,N", "Bundles and results that no job names any more (7d,10000)."),
)
HANDLERS = option(WORK, "--handlers", "FILE.py", "A file with handlers of pipelines. Repeatable.", multiple=True)
TAGS = option(
    WORK,
    "--tag tags",
    "KEY[=VALUE]",
    "What this worker is told apart by; no task asks for it. Repeatable.",
    multiple=True,
)
ACCEPT_UP = option(
    TRUST,
    "--accept-code/--no-accept-code",
    None,
    "Run handlers that travel with pipelines (yes, unless it is --private).",
    default=None,
)
ACCEPT = option(
    TRUST,
    "--accept-code/--no-accept-code",
    None,
    "Run handlers that travel with pipelines: whoever submits runs code here (no).",
    default=None,
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object for each line.")


# Everything on one machine.


@command(
    "up",
    "A manager, a worker and their API in one process, for this machine alone: no token is needed, so every user of"
    " the machine can submit, unless it is --private. SIGTERM or Ctrl-C: it finishes what runs and stops; a "
    "second one ends it at once.",
    ("talka up", f"a cluster of one machine, its API at 127.0.0.1:{API_PORT}"),
    ("talka submit shop.py", "in another terminal: runs there, and is shown here"),
    ("talka up --store sqlite:///jobs.sqlite --handlers etl.py", "for pipelines too, which it keeps in that file"),
    ("talka up --private", "for this user alone; your own commands find the token"),
)
@options(
    option(WHO, "--name", "NAME", "Its name (local)."),
    option(WHO, "--data-dir", "FOLDER", f"Where it keeps its files ({STATE_FOLDER}/NAME)."),
    option(REACHED, "--port", "N", f"The port of its API ({API_PORT}); 0: any free one."),
    option(TRUST, "--private", None, "Keep other users of this machine out, with a token of its own.", is_flag=True),
    ACCEPT_UP,
    CORES,
    TAGS,
    STORE,
    HANDLERS,
    LEASE,
    NOTIFY,
    KEEPS,
)
@json_option
def up(as_json: bool, private: bool, store: str | None, handlers: tuple[str, ...], **flags: Any) -> int:
    from talka.cli.nodes.settings import NodeSettings

    settings = NodeSettings("up", flags)
    name = settings.id("name", "local")
    cores, port, folder = settings.cores(), settings.port(API_PORT), data_dir(settings, name)
    tags = settings.tags()
    place, files, own_lease = checked_store(store), checked_handlers(handlers), settings.own_lease()
    keeps = settings.keeps()
    accepts_code = settings.switch("accept_code", default=not private)
    from talka.cli.config import own_environment
    from talka.cli.nodes.life import Api, live_up, run_node
    from talka.cli.nodes.private import announced, drawn_tokens
    from talka.nodes.manager import ManagerOptions
    from talka.nodes.member import MemberOptions
    from talka.nodes.worker import WorkerOptions
    from talka.web.server import granted_limits, listen
    from talka.wire.addresses import format_address

    granted, notices = granted_limits("talka up"), notify_options(settings)
    secrets = (own_secret(folder),)
    tokens, token_file = drawn_tokens(folder) if private else (None, None)
    listener = listen("127.0.0.1", port, has_tokens=private)
    address = format_address(*listener.getsockname()[:2])
    member = MemberOptions(
        name=name, bind=("127.0.0.1", 0), secrets=secrets, data_dir=folder / "manager", voters=(name,)
    )

    def worker_at(manager: str) -> WorkerOptions:
        return WorkerOptions(
            name=f"{name}-worker",
            seeds=(manager,),
            secrets=secrets,
            data_dir=folder / "worker",
            cores=cores,
            tags=tags,
            handlers=files,
            core_env=own_environment(),
            core_user=str(os.geteuid()),  # all is one here
            accepts_code=accepts_code,
        )

    options = ManagerOptions(member=member, api=address, store=place, own_lease=own_lease, keeps=keeps, **notices)
    with listener, contextlib.nullcontext() if token_file is None else announced(address, token_file):
        return run_node(live_up(options, Api(listener, address, tokens, None, granted), worker_at, as_json))


def own_secret(folder: "Path") -> str:
    """Drawn once, and kept in the data folder: nobody but this user reads it there."""
    import secrets

    from talka.cli.nodes.secret import read_secrets
    from talka.store.files.folder import BadFolder, replace_file

    file = folder / "secret"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadFolder(f"the data folder {folder} cannot be made ({reason}): name another --data-dir") from None
    if not file.exists():
        replace_file(file, secrets.token_urlsafe(SECRET_BYTES).encode() + b"\n")
    return read_secrets(str(file))[0]


# One of several.


@command(
    "manager",
    "Be a manager of a cluster: keep its jobs, give them to workers, and answer clients. Settings may also come from "
    "TALKA_* and from [manager] in talka.toml. SIGTERM or Ctrl-C: it hands over and stops; a second one ends it at "
    "once.",
    ("talka manager --name a --secret-file secret", "the only one, on loopback"),
    ("talka manager --name a --voters a,b,c --bind 10.0.0.1:8471 …", "one of three"),
    ("talka manager … --api 10.0.0.1:8470 --token-key-file key", "with an API for others"),
)
@options(
    NAME,
    option(WHO, "--voters", "A,B,C", "All managers, 1, 3 or 5 of them: the same for each (itself alone)."),
    WHERE,
    option(REACHED, "--bind", "HOST:PORT", f"For nodes, UDP and TCP (127.0.0.1:{NODE_PORT})."),
    option(REACHED, "--advertise", "HOST:PORT", "Where nodes reach it (where it listens)."),
    option(REACHED, "--api", "HOST:PORT", f"For clients, HTTP (127.0.0.1:{API_PORT})."),
    option(REACHED, "--api-advertise", "HOST:PORT", "Where clients reach it (where it listens)."),
    SEED,
    TRUSTED,
    option(TRUST, "--token-key-file", "FILE", "The key of clients' tokens (talka token key)."),
    option(WORK, "--preset", f"[{'|'.join(PRESETS)}]", "How fast failures are detected (default)."),
    STORE,
    LEASE,
    NOTIFY,
    KEEPS,
)
@json_option
def manager(as_json: bool, store: str | None, **flags: Any) -> int:
    from talka.cli.nodes.settings import NodeSettings

    settings = NodeSettings("manager", flags)
    name = settings.id("name", own_name())
    seeds, voters = settings.texts("seeds"), voter_names(settings, name)
    preset = settings.text("preset", "default")
    if preset not in PRESETS:
        raise Invalid(f"{settings.label('preset')} {preset!r} is not known: write one of {', '.join(PRESETS)}")
    place, own_lease, keeps = checked_store(store), settings.own_lease(), settings.keeps()
    from talka.cli.nodes.life import live_manager, run_node
    from talka.cli.nodes.secret import read_secrets
    from talka.net.discovery import Candidates
    from talka.nodes.manager import ManagerOptions
    from talka.nodes.member import MemberOptions
    from talka.wire.addresses import parse_address

    Candidates(seeds)  # says what is wrong with them
    advertise = settings.text("advertise")
    if advertise:
        parse_address(advertise)
    certs = settings.path("certs")
    member = MemberOptions(
        name=name,
        bind=parse_address(settings.text("bind", f"127.0.0.1:{NODE_PORT}"), is_port_0_allowed=True),
        advertise=advertise,
        seeds=seeds,
        secrets=read_secrets(settings.path("secret_file")),
        data_dir=data_dir(settings, name),
        cluster=settings.id("cluster", "default"),
        environment=settings.id("environment", "default"),
        zone=settings.id("zone"),
        datacenter=settings.id("datacenter"),
        region=settings.id("region"),
        voters=voters,
        preset=preset,
        certs=as_path(certs),
    )
    api = open_api(settings, name, member.cluster, advertise or settings.text("bind"))
    options = ManagerOptions(
        member=member, api=api.advertised, store=place, own_lease=own_lease, keeps=keeps, **notify_options(settings)
    )
    with api.listener:
        return run_node(live_manager(options, api, as_json))


def voter_names(settings: "NodeSettings", name: str) -> tuple[str, ...]:
    from talka.cli.nodes.secret import checked_id
    from talka.cli.output import tell
    from talka.cluster.leadership.quorum import check_size

    voters = settings.texts("voters")
    label = settings.label("voters")
    for voter in voters:
        checked_id(label, voter)
    if not voters and settings.has("seeds"):
        raise Invalid("--voters is missing: name all managers of the cluster, the same for each of them")
    if voters and name not in voters:
        raise Invalid(f"{label} leaves out {name}: name all managers of the cluster, this one as well")
    if voters and (note := check_size(voters)):
        tell(note)
    return voters or (name,)


def open_api(settings: "NodeSettings", name: str, cluster: str, node_address: str) -> "Api":
    """The API's socket, taken before anything else is: what is wrong with it is said at once."""
    from talka.cli.nodes.life import Api
    from talka.web.server import granted_limits, listen
    from talka.wire.addresses import format_address, parse_address

    host, port = parse_address(settings.text("api", f"127.0.0.1:{API_PORT}"), is_port_0_allowed=True)
    advertised = settings.text("api_advertise")
    if advertised:
        parse_address(advertised)
    tokens, certs = tokens_of(settings, cluster), settings.path("certs")
    tls = None
    if certs is not None:
        import ssl

        from talka.net.tls import find_certs, server_context

        tls = server_context(find_certs(certs, name))
        tls.verify_mode = ssl.CERT_NONE  # clients show tokens, not certificates
    granted = granted_limits("a manager")
    listener = listen(host, port, has_tokens=tokens is not None)
    if not advertised:
        # Of every address of this machine, the one at which nodes reach it.
        reached = parse_address(node_address, is_port_0_allowed=True)[0] if node_address else host
        advertised = format_address(reached if host in WILDCARDS else host, listener.getsockname()[1])
    return Api(listener, advertised, tokens, tls, granted)


def tokens_of(settings: "NodeSettings", cluster: str) -> "Tokens | None":
    file = settings.path("token_key_file")
    if file is None:
        return None
    from talka.cli.nodes.token import tokens_from

    return tokens_from(file, settings.label("token_key_file"), cluster)


@command(
    "worker",
    "Be a worker of a cluster: run what managers give it. Settings may also come from TALKA_* and from [worker] in"
    " talka.toml. SIGTERM or Ctrl-C: it finishes what runs, for as long as --grace, and stops; a second one ends"
    " it at once.",
    ("talka worker --seed 10.0.0.1:8471 --secret-file secret", "all cores of this machine"),
    ("talka worker … --name w1 --cores 4 --capability ssd", "four of them, with a capability"),
)
@options(
    NAME,
    WHERE,
    SEED,
    TRUSTED,
    option(REACHED, "--probes", "HOST:PORT", "HTTP for /livez, /readyz and /metrics (none)."),
    option(TRUST, "--token-key-file", "FILE", "The key of tokens that /metrics wants (talka token key)."),
    CORES,
    option(
        WORK,
        "--capability capabilities",
        "WORD",
        "A capability of this worker that tasks can require. Repeatable.",
        multiple=True,
    ),
    TAGS,
    option(WORK, "--grace", "D", "Time for running work to end after a stop signal (30s)."),
    option(
        TRUST,
        "--core-user",
        "NAME",
        "The user that runs tests and handlers (the worker's user; nobody if that is root).",
    ),
    option(
        TRUST,
        "--core-env core_env",
        "NAME",
        "A variable of the worker that tests and handlers may read. Repeatable.",
        multiple=True,
    ),
    ACCEPT,
    HANDLERS,
)
@json_option
def worker(as_json: bool, handlers: tuple[str, ...], **flags: Any) -> int:
    from talka.cli.nodes.secret import check_descriptors, checked_id, read_secrets
    from talka.cli.nodes.settings import NodeSettings

    check_descriptors("a worker")
    settings = NodeSettings("worker", flags)
    name = settings.id("name", own_name())
    seeds = settings.texts("seeds")
    if not seeds:
        raise Invalid("a worker must know a manager: name one with --seed HOST:PORT")
    for word in settings.texts("capabilities"):
        checked_id(settings.label("capabilities"), word)
    files = checked_handlers(handlers)
    from talka.cli.config import core_environment
    from talka.cli.nodes.life import live_worker, run_node
    from talka.net.discovery import Candidates
    from talka.nodes.worker import WorkerOptions

    Candidates(seeds)  # says what is wrong with them
    options = WorkerOptions(
        name=name,
        seeds=seeds,
        secrets=read_secrets(settings.path("secret_file")),
        data_dir=data_dir(settings, name),
        cluster=settings.id("cluster", "default"),
        environment=settings.id("environment", "default"),
        zone=settings.id("zone"),
        datacenter=settings.id("datacenter"),
        region=settings.id("region"),
        certs=as_path(settings.path("certs")),
        cores=settings.cores(),
        capabilities=settings.texts("capabilities"),
        tags=settings.tags(),
        drain_s=settings.seconds("grace", "30s"),
        handlers=files,
        core_env=core_environment(settings.texts("core_env")),
        core_user=settings.text("core_user"),
        accepts_code=settings.switch("accept_code", default=False),
    )
    api = open_probes(settings, options.cluster)
    with contextlib.nullcontext() if api is None else api.listener:
        return run_node(live_worker(options, api, as_json))


def open_probes(settings: "NodeSettings", cluster: str) -> "Api | None":
    """The socket on which a worker says how it is; None when nobody asked for one."""
    from talka.cli.nodes.life import Api
    from talka.web.server import granted_limits, listen
    from talka.wire.addresses import format_address, parse_address

    wanted = settings.text("probes")
    if not wanted:
        return None
    host, port = parse_address(wanted, is_port_0_allowed=True)
    tokens = tokens_of(settings, cluster)
    granted = granted_limits("a worker with probes")
    listener = listen(host, port, has_tokens=tokens is not None)
    return Api(listener, format_address(host, listener.getsockname()[1]), tokens, None, granted)


# What they have in common.


def data_dir(settings: "NodeSettings", name: str) -> "Path":
    from pathlib import Path

    return Path(settings.path("data_dir") or f"{STATE_FOLDER}/{name}").expanduser()


def notify_options(settings: "NodeSettings") -> dict[str, Any]:
    """Of a manager."""
    from talka.cli.nodes.secret import read_secrets

    file = settings.path("notify_secret")
    return {
        "notify_secret": "" if file is None else read_secrets(file)[0],
        "may_notify_private": settings.yes("allow_private_notify"),
    }


def checked_store(url: str | None) -> str:
    """Empty for none. What is wrong with it is said before anything is started."""
    if url is None:
        return ""
    from talka.store.dags.opening import kind_of

    kind_of(url)
    return url


def checked_handlers(files: tuple[str, ...]) -> "tuple[Path, ...]":
    """Files that are there. What is in them is for the processes that run it to say."""
    from pathlib import Path

    for file in files:
        if not file.endswith(".py"):
            raise Invalid(f"--handlers: {file} is not a Python file: its name must end in .py")
        if not Path(file).is_file():
            raise Invalid(f"--handlers: there is no file {file}")
    # Processes that import them may be started elsewhere.
    return tuple(Path(file).resolve() for file in files)


def as_path(text: str | None) -> "Path | None":
    from pathlib import Path

    return None if text is None else Path(text)


def own_name() -> str:
    """This machine's, without its domain."""
    import socket

    return socket.gethostname().partition(".")[0] or "node"
