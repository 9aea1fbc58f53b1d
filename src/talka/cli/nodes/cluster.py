"""The command `talka cluster …`: asks one member."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from talka.cli.command import CommandEntry, LazyGroup, command, options
from talka.cli.connection import api_options, asked, json_option
from talka.cli.nodes.secret import Seconds, checked_id, cluster_option, environment_option, read_secrets
from talka.cli.output import PLACE, facts_rows, json_of, place_of, say, table, tell
from talka.errors import Invalid
from talka.units import MILLISECOND

if TYPE_CHECKING:
    from talka.client.client import Client
    from talka.client.manager_book import BookCounts
    from talka.net.asker import NodeAsker
    from talka.wire.asking import Question
    from talka.wire.views import ClusterView, ManagerView

COMMANDS = {
    "status": CommandEntry("Commands", "nodes.cluster:status", "managers, workers, cores and the queue, over the API"),
    "members": CommandEntry("Commands", "nodes.cluster:members", "who is there, as this member sees it"),
    "leader": CommandEntry("Commands", "nodes.cluster:leader", "who leads, since which term"),
    "audit": CommandEntry("Commands", "nodes.cluster:audit", "who accused whom, and why"),
    "keys": CommandEntry("Commands", "nodes.cluster:keys", "which keys are in use; rotate, retire and repair them"),
    "lease": CommandEntry("Commands", "nodes.cluster_lease:lease", "the lease of workers: show it, change it"),
    "metrics": CommandEntry("Commands", "nodes.cluster:metrics", "everything it counted, as Prometheus reads it"),
}
CONFIRM_S = 30.0
SETTLE_S = 3.0
AGAIN_S = 0.5


cluster = LazyGroup(
    "cluster",
    "Ask a cluster: its managers over the API, or any member of it; and change its keys and its lease.",
    COMMANDS,
    ("talka cluster status --to 10.0.0.5:8470", "managers, workers and the queue"),
    ("talka cluster members --to 10.0.0.5:8472 --secret-file s", "who is there"),
    ("talka cluster leader --to 10.0.0.5:8472 --json", "who leads, for programs"),
    ("talka cluster keys --to 10.0.0.5:8472 --rotate new-secret", "seal with another secret everywhere"),
    ("talka cluster lease 2s --to 10.0.0.5:8472", "give up silent workers after 2 s, everywhere"),
)


more_asking_options = options(
    click.option("--secret-file", metavar="FILE", help="The cluster's secret (or set TALKA_SECRET_FILE)."),
    cluster_option,
    environment_option,
    click.option("--certs", metavar="FOLDER", help="Certificates, when the cluster has them."),
    click.option("--name", "own_name", metavar="NAME", help="The certificate to show (client)."),
    click.option("--timeout", type=Seconds(0.1, 600), default=10.0, metavar="SECONDS", help="How long (10)."),
)
to_option = partial(click.option, "--to", "address", metavar="HOST:PORT", help="The member to ask.")
asking_options = options(to_option(required=True), more_asking_options)


@command("status", "Who leads, which managers are there, how many cores are free, who waits.")
@json_option
@api_options
def status(as_json: bool, **where: Any) -> int:
    view, peers = asked(where, _cluster_and_who_answered)
    if as_json:
        say(json_of(view))
        return 0
    rows = [
        ("cluster", view.name),
        ("leader", f"{view.leader}, term {view.term}" if view.leader else "none: no job can be taken or changed now"),
        ("workers", str(view.workers)),
        ("cores", f"{view.cores_free} of {view.cores} are free"),
        ("queue", f"{view.queue} waiting" if view.queue else "empty"),
        ("answered", answered_text(peers)),
    ]
    say(facts_rows(rows))
    if view.managers:
        managers = [
            (one.name, one.state, *place_of(one), one.api, str(one.jobs), manager_note(one))
            for one in sorted(view.managers, key=lambda one: one.name)
        ]
        say("\n" + table(("MANAGER", "STATE", *PLACE, "API", "JOBS", "NOTE"), managers))
    if view.certificates:
        ends = [(one.name, one.role, one.until, str(one.days), one.note) for one in view.certificates]
        say("\n" + table(("CERTIFICATE", "ROLE", "UNTIL", "DAYS", "NOTE"), ends))
    return 0


def manager_note(manager: "ManagerView") -> str:
    judged = "" if manager.decision == "route" else f"{manager.decision}: {manager.reason}"
    return ", ".join(filter(None, ("leads" if manager.leads else "", judged)))


async def _cluster_and_who_answered(client: "Client") -> "tuple[ClusterView, BookCounts]":
    return await client.cluster(), client.peers()


def answered_text(peers: "BookCounts") -> str:
    """By whom, how quickly, and how many that were asked before did not."""
    in_vain = f"; {peers.failures} asked in vain" if peers.failures else ""
    return f"by {peers.address} after {peers.latency_ns / MILLISECOND:.0f} ms{in_vain}"


@command("members", "Who is there, as this member sees it.")
@asking_options
@json_option
def members(as_json: bool, **where: Any) -> int:
    import msgspec

    from talka.control.member.admin_queries import MembersPage
    from talka.wire.asking import AskMembers

    async def collect(asker: "NodeAsker") -> list[Any]:
        found: list[Any] = []
        after = ""
        while True:
            page = msgspec.json.decode(await asker.ask(AskMembers(after)), type=MembersPage)
            found += page.members
            after = page.next
            if not after:
                return found

    found = ask(where, collect)
    rows = [
        (each.name, each.state, each.address, each.role, *place_of(each), each.protocol, cores_of(each), note_of(each))
        for each in sorted(found, key=lambda each: each.name)
    ]
    headings = ("NAME", "STATE", "ADDRESS", "ROLE", *PLACE, "PROTOCOL", "CORES", "NOTE")
    say(json_of(found) if as_json else table(headings, rows))
    return 0


def cores_of(member: Any) -> str:
    """A worker's; beside the manager that leads, those of all workers."""
    return f"{member.free} of {member.cores} free" if member.cores else ""


def note_of(member: Any) -> str:
    notes = []
    if member.decision != "route":
        notes.append(f"{member.decision}: {member.why}" if member.why else member.decision)
    if member.cpu_percent is not None:
        notes.append(f"CPU {member.cpu_percent} %")
    if member.memory_percent is not None:
        notes.append(f"memory {member.memory_percent} %")
    if member.overload not in ("", "normal"):
        notes.append(member.overload)
    if member.health not in ("", "normal"):
        notes.append(f"health {member.health}")
    if member.self:
        notes.append("answers here")
    if member.accuser or member.reason:
        notes.append(f"{member.accuser or 'somebody'}: {member.reason}")
    if not member.datagrams:
        notes.append("over TCP only")
    return ", ".join(notes)


@command("leader", "Who leads, since which term, and which voters answer.")
@asking_options
@json_option
def leader(as_json: bool, **where: Any) -> int:
    import msgspec

    from talka.control.member.admin_queries import LeaderFacts
    from talka.wire.asking import AskLeader

    facts = msgspec.json.decode(ask_one(where, AskLeader()), type=LeaderFacts)
    rows = [
        ("leader", facts.leader or "none known"),
        ("term", str(facts.term)),
        ("token", ".".join(map(str, facts.token)) or "known to the leader"),
        ("voters", ", ".join(facts.voters)),
        ("answering", ", ".join(facts.answering)),
        ("asked", f"{facts.role}, {facts.phase}" if facts.phase else f"{facts.role}: it was told so by others"),
    ]
    say(json_of(facts) if as_json else facts_rows(rows))
    return 0


@command("audit", "The last verdicts this member gave or heard, newest last.")
@asking_options
@json_option
def audit(as_json: bool, **where: Any) -> int:
    import msgspec

    from talka.control.member.admin_queries import VerdictFacts
    from talka.wire.asking import AskAudit

    verdicts = msgspec.json.decode(ask_one(where, AskAudit()), type=list[VerdictFacts])
    rows = [
        (
            f"{verdict.seconds_ago:.1f} s",
            verdict.subject,
            verdict.verdict,
            f"{verdict.accuser}{' (own timer)' if verdict.own else ''}",
            verdict.reason,
        )
        for verdict in verdicts
    ]
    if as_json or rows:
        say(json_of(verdicts) if as_json else table(("AGO", "MEMBER", "VERDICT", "BY", "REASON"), rows))
    else:
        tell("no member was accused yet")
    return 0


@command("metrics", "Everything this member counted, in Prometheus' text format.")
@asking_options
def metrics(**where: Any) -> int:
    from talka.wire.asking import AskMetrics

    say(ask_one(where, AskMetrics()).decode().rstrip("\n"))
    return 0


@command(
    "keys",
    "The keys in use. Every member learns of a change, also one that is away, once it is back."
    " Put the new secret into the secret files before a member starts with an empty data folder.",
    ("talka cluster keys --to HOST:PORT", "which are in use, and who lacks them"),
    ("talka cluster keys --to HOST:PORT --rotate new-secret", "add a secret, then seal with it everywhere"),
    ("talka cluster keys --to HOST:PORT --retire 3f9a01c2", "stop accepting an old one"),
    ("talka cluster keys --to HOST:PORT --repair good-secret", "replace all keys by this one"),
    ("talka cluster keys --data-dir FOLDER --repair good-secret", "of a node that does not run"),
)
@to_option()
@more_asking_options
@click.option("--rotate", metavar="FILE", help="Accept the secret in this file everywhere, then seal with it.")
@click.option("--add", metavar="FILE", help="Accept the secret in this file everywhere.")
@click.option("--use", metavar="ID", help="Seal with this key everywhere.")
@click.option("--retire", metavar="ID", help="Stop accepting this key.")
@click.option("--force", is_flag=True, help="Retire it even if members are away that may need it.")
@click.option("--repair", metavar="FILE", help="Replace all keys by the secrets in this file.")
@click.option("--data-dir", metavar="FOLDER", help="Repair the keys in the folder of a node that does not run.")
@json_option
def keys(
    rotate: str | None,
    add: str | None,
    use: str | None,
    retire: str | None,
    force: bool,
    repair: str | None,
    data_dir: str | None,
    as_json: bool,
    **where: Any,
) -> int:
    import msgspec

    from talka.control.member.admin_queries import KeysFacts
    from talka.wire.asking import AddKey, AskKeys, RepairKeys, RetireKey, UseKey
    from talka.wire.security.keys import key_id

    if sum(option is not None for option in (rotate, add, use, retire, repair)) > 1:
        raise Invalid("give one of --rotate, --add, --use, --retire and --repair")
    if force and retire is None:
        raise Invalid("--force goes with --retire")
    if data_dir is not None:
        if repair is None or where["address"] is not None:
            raise Invalid(
                "--data-dir goes with --repair, for a node that does not run; one that runs is asked with --to"
            )
        from talka.cli.nodes.key_repair import repair_folder

        return repair_folder(data_dir, read_secrets(repair))
    if where["address"] is None:
        raise Invalid("give --to HOST:PORT, the member to ask")
    question: Question
    if repair is not None:
        good = read_secrets(repair)
        content = ask(where, lambda asker: asker.ask(RepairKeys(good)), good)
    elif rotate is not None:
        secret = only_secret(rotate)
        content = ask(where, lambda asker: rotated(asker, secret, key_id(secret)))
    else:
        if add is not None:
            question = AddKey(only_secret(add))
        elif use is not None:
            question = UseKey(use)
        else:
            question = AskKeys() if retire is None else RetireKey(retire, force)
        content = ask_one(where, question)
    facts = msgspec.json.decode(content, type=KeysFacts)
    if as_json:
        say(json_of(facts))
        return 0
    say(table(("KEY", "USE"), [(key.id, "seals and opens" if key.is_primary else "opens") for key in facts.keys]))
    if repair is not None:
        tell(
            "the keys of this member are repaired, and it tells the others: ask each of them, and repair those that "
            "differ"
        )
    if facts.unconfirmed:
        tell(f"not confirmed yet by {', '.join(facts.unconfirmed[:10])}: keep the older keys until they are back")
    elif rotate is not None:
        tell("every member confirmed; retire the older keys with --retire ID")
    return 0


async def rotated(asker: "NodeAsker", secret: str, id: str) -> bytes:
    """Add the secret, and use it as soon as all that are there have confirmed it."""
    import asyncio

    import msgspec

    from talka.net.asker import AnswerRefused
    from talka.wire.asking import AddKey, AskKeys, UseKey

    known = msgspec.json.decode(await asker.ask(AskKeys()))
    if id not in [key["id"] for key in known["keys"]]:
        await asker.ask(AddKey(secret))
    for _ in range(round(CONFIRM_S / AGAIN_S)):
        try:
            content = await asker.ask(UseKey(id))
            break
        except AnswerRefused as refusal:
            last = refusal
            await asyncio.sleep(AGAIN_S)
    else:
        raise last
    # Whoever is there confirms in a moment; only those who are away shall be named.
    for _ in range(round(SETTLE_S / AGAIN_S)):
        if not msgspec.json.decode(content)["unconfirmed"]:
            break
        await asyncio.sleep(AGAIN_S)
        content = await asker.ask(AskKeys())
    return content


def only_secret(file: str) -> str:
    secrets = read_secrets(file)
    if len(secrets) > 1:
        raise Invalid(f"{file} has {len(secrets)} secrets: put the new one alone into a file")
    return secrets[0]


# Asking.


def ask_one(where: dict[str, Any], question: "Question") -> bytes:
    content: bytes = ask(where, lambda asker: asker.ask(question))
    return content


def ask(where: dict[str, Any], work: Callable[["NodeAsker"], Any], more_secrets: tuple[str, ...] = ()) -> Any:
    """`more_secrets`: under which it may be answered as well; the first of them asks where no --secret-file is
    given."""
    import asyncio
    from pathlib import Path

    from talka.client.requests import ClusterUnreachable
    from talka.errors import Unavailable
    from talka.net.asker import AnswerRefused, NobodyThere, NodeAsker
    from talka.wire.addresses import parse_address

    address = where["address"]
    host, _ = parse_address(address)
    checked_id("cluster", where["cluster_id"])
    checked_id("environment", where["environment"])
    if where["own_name"]:
        checked_id("name", where["own_name"])
    secrets = secrets_of(where, more_secrets)
    certs = where["certs"]

    async def run() -> Any:
        *others, last = await resolved(address, host)
        for target in others:
            try:
                return await run_at(target)
            except NobodyThere:  # a name may have addresses at which the member does not listen
                continue
        return await run_at(last)

    async def run_at(target: str) -> Any:
        async with NodeAsker(
            address,
            target,
            secrets=secrets,
            cluster=where["cluster_id"],
            environment=where["environment"],
            certs=None if certs is None else Path(certs),
            name=where["own_name"] or ("client" if certs is not None else ""),
            timeout_s=where["timeout"],
        ) as asker:
            return await work(asker)

    try:
        return asyncio.run(run())
    except AnswerRefused as error:
        raise Invalid(str(error)) from None
    except Unavailable as error:
        raise ClusterUnreachable(str(error)) from None


def secrets_of(where: dict[str, Any], more: tuple[str, ...]) -> tuple[str, ...]:
    from talka.cli.config import own_secret_file

    given = where["secret_file"]
    own = read_secrets(given) if given or own_secret_file() or not more else ()
    return tuple(dict.fromkeys((*own, *more)))


async def resolved(address: str, host: str) -> list[str]:
    from talka.client.requests import ClusterUnreachable
    from talka.net.discovery import Candidates

    candidates = Candidates([address])
    found = await candidates.resolve(0)
    if not found:
        raise ClusterUnreachable("; ".join(candidates.problems) or f"{host} has no address")
    return found
