"""The command `talka certs`: a cluster's authority and its certificates."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from talka.cli.command import CommandEntry, LazyGroup, command
from talka.cli.output import columns_of, json_of, say, tell
from talka.clock import utc_now
from talka.errors import Invalid
from talka.wire.security.roles import Role

if TYPE_CHECKING:
    from talka.net.certificates import Certificate

MOST_DAYS: Final = 36_500
GAP: Final = 2
COMMANDS: Final = {
    "init": CommandEntry("Commands", "nodes.certs:init", "make the authority of a cluster"),
    "issue": CommandEntry("Commands", "nodes.certs:issue_command", "make the certificate and key of a node"),
    "renew": CommandEntry("Commands", "nodes.certs:renew_command", "certificates that end soon, for the same keys"),
    "show": CommandEntry("Commands", "nodes.certs:show", "what certificates say, until when, and what is wrong"),
}
days_option = click.IntRange(1, MOST_DAYS)


class NoCertificates(Invalid):
    """There is nothing to show."""


certs = LazyGroup(
    "certs",
    "Certificates with which the nodes of a cluster know each other: make an authority, issue, renew and show them.",
    COMMANDS,
    ("talka certs init certs --cluster shop", "an authority, once for each cluster"),
    ("talka certs issue certs --name a --role manager", "a certificate for every node"),
    ("talka certs renew certs", "those that end within 30 days"),
    ("talka certs show certs", "all of them, and how long each is valid"),
)


@command(
    "init",
    "Make the authority of a cluster: ca.crt, which every node gets, and ca.key, which no node gets.",
    ("talka certs init certs", "for a cluster without an id of its own"),
    ("talka certs init certs --cluster shop --environment staging", "for one of several"),
)
@click.argument("folder", metavar="DIR")
@click.option("--cluster", default="default", metavar="ID", help="The cluster it is for (default).")
@click.option("--environment", default="default", metavar="ID", help="Its environment, such as staging (default).")
@click.option("--days", type=days_option, default=3650, metavar="N", help="How many days it is valid (3650).")
def init(folder: str, cluster: str, environment: str, days: int) -> int:
    from talka.net.certificates import describe, make_authority

    now = utc_now()
    made = make_authority(folder, cluster, environment, days=days, now=now)
    until = describe(made, now=now).not_after
    say(f"{made}: the authority of cluster {cluster}, environment {environment}, until {until:%Y-%m-%d}")
    tell(
        f"Whoever has {made.with_name('ca.key')} can let anybody in: keep it where no node runs.\n"
        f"Next: talka certs issue {shlex.quote(folder)} --name NAME --role manager"
    )
    return 0


@command(
    "issue",
    "Make the certificate and key of a node. The authority in DIR signs it; its cluster and environment are the "
    "node's.",
    ("talka certs issue certs --name a --role manager", "certs/a.crt and certs/a.key"),
    ("talka certs issue certs --name a --role manager --replace", "anew, before it expires"),
    ("talka certs issue certs --name w1 --role worker --datacenter eu", "of a datacenter"),
)
@click.argument("folder", metavar="DIR")
@click.option("--name", required=True, metavar="NAME", help="The name of the node, as in talka member --name.")
@click.option("--role", required=True, type=click.Choice([role.value for role in Role]), help="The role of the node.")
@click.option("--datacenter", default="", metavar="ID", help="Where it is.")
@click.option("--host", "hosts", multiple=True, metavar="HOST", help="A DNS name or IP address of it; may be repeated.")
@click.option("--days", type=days_option, default=365, metavar="N", help="How many days it is valid (365).")
@click.option("--replace", is_flag=True, help="Replace an existing one.")
def issue_command(
    folder: str, name: str, role: str, datacenter: str, hosts: tuple[str, ...], days: int, replace: bool
) -> int:
    from talka.net.certificates import describe, issue

    now = utc_now()
    files = issue(folder, name=name, role=role, datacenter=datacenter, hosts=hosts, days=days, now=now, replace=replace)
    facts = describe(files.certificate, now=now)
    place = f"cluster {facts.cluster}, environment {facts.environment}"
    say(f"{files.certificate}: {facts.role} {facts.name} of {place}, until {facts.not_after:%Y-%m-%d}")
    tell(f"The node needs {files.ca.name}, {files.certificate.name} and {files.key.name} in a folder of its own.")
    return 0


@command(
    "renew",
    "Renew certificates in place: same key, name, role and hosts, another end. The authority in DIR signs them. A node"
    " that runs takes its NAME.crt by itself once it is replaced, without a restart.",
    ("talka certs renew certs", "all that end within 30 days"),
    ("talka certs renew certs --name a --name w1", "these, whenever they end"),
    ("talka certs renew certs --within 90 --days 180", "all that end within 90 days, for 180 days"),
)
@click.argument("folder", metavar="DIR")
@click.option("--name", "names", multiple=True, metavar="NAME", help="A node, however long its certificate is valid.")
@click.option("--within", type=days_option, default=30, metavar="N", help="Those that end within N days (30).")
@click.option("--days", type=days_option, default=365, metavar="N", help="How many days they are valid (365).")
def renew_command(folder: str, names: tuple[str, ...], within: int, days: int) -> int:
    from datetime import timedelta

    from talka.net.certificates import describe, renew

    now = utc_now()
    if not names:
        found = {file.stem: describe(file, now=now) for file in certificates_in(Path(folder))}
        ending = now + timedelta(days=within)
        names = tuple(name for name, facts in found.items() if not facts.is_authority and facts.not_after <= ending)
        if not names:
            say(f"no certificate in {folder} ends within {within} days: --name NAME renews one all the same")
            return 0
    for name in dict.fromkeys(names):
        file = renew(folder, name, days=days, now=now).certificate
        say(f"{file}: valid until {describe(file, now=now).not_after:%Y-%m-%d}")
    tell("Put each in the place of the node's own: the key is the same, and the node takes it by itself.")
    return 0


@command(
    "show",
    "Show what certificates say. PATH is a certificate, or a folder with some; the ca.crt beside them is the measure.",
    ("talka certs show certs", "all in a folder"),
    ("talka certs show certs/a.crt", "everything about one"),
    ("talka certs show certs --json", "for programs"),
)
@click.argument("path", metavar="PATH")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def show(path: str, as_json: bool) -> int:
    from talka.net.certificates import describe

    now = utc_now()
    is_folder = Path(path).is_dir()
    files = certificates_in(Path(path)) if is_folder else [Path(path)]
    found = [(str(file), describe(file, now=now)) for file in files]
    if as_json:
        import msgspec

        entries = [{"file": file, **msgspec.structs.asdict(facts)} for file, facts in found]
        say(json_of({"certificates": entries}))
    elif is_folder:
        say(table([facts for _, facts in found], width=columns_of(sys.stdout)))
    else:
        say(page(found[0][1], width=columns_of(sys.stdout)))
    return 0


def certificates_in(folder: Path) -> list[Path]:
    """The authority first."""
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix == ".crt" and file.is_file())
    except OSError as error:
        raise NoCertificates(f"{folder} cannot be read: {error.strerror}") from None
    if not files:
        raise NoCertificates(f"there is no certificate in {folder}: talka certs init {folder} makes an authority")
    return sorted(files, key=lambda file: file.name != "ca.crt")


def table(found: "Sequence[Certificate]", *, width: int) -> str:
    from talka.report.text import TextPage, padded, room_for, sign

    cells = {
        "NAME": [shown_name(facts) for facts in found],
        "ROLE": [facts.role or "-" for facts in found],
        "CLUSTER": [facts.cluster or "-" for facts in found],
        "ENVIRONMENT": [facts.environment or "-" for facts in found],
        "DATACENTER": [facts.datacenter or "-" for facts in found],
        "UNTIL (UTC)": [f"{facts.not_after:%Y-%m-%d %H:%M}" for facts in found],
    }
    rooms = {head: room_for([head, *texts], width) for head, texts in cells.items()}
    page = TextPage(width)
    page.line(*(padded(head, rooms[head]) + " " * GAP for head in cells), "STATE")
    for number, facts in enumerate(found):
        state = f"{sign(not facts.problem)} {'broken' if facts.problem else 'good'}"
        page.line(*(padded(texts[number], rooms[head]) + " " * GAP for head, texts in cells.items()), state)
    # Below: in a line of the table there is no room for a sentence.
    for facts in found:
        if facts.problem:
            page.sentence(f"{shown_name(facts)}: {facts.problem}", indent=0)
    return page.text()


def page(facts: "Certificate", *, width: int) -> str:
    from talka.report.text import TextPage, padded, sign

    rows = {
        "name": shown_name(facts),
        "role": facts.role,
        "cluster": facts.cluster,
        "environment": facts.environment,
        "datacenter": facts.datacenter,
        "hosts": ", ".join(facts.hosts),
        "valid": f"{facts.not_before:%Y-%m-%d %H:%M} to {facts.not_after:%Y-%m-%d %H:%M} UTC",
        "issuer": facts.issuer,
        "SHA-256": facts.fingerprint,
        "state": f"{sign(not facts.problem)} {facts.problem or 'good'}",
    }
    page = TextPage(width)
    for label, text in rows.items():
        page.sentence(text or "-", indent=0, lead=padded(label, 13))
    return page.text()


def shown_name(facts: "Certificate") -> str:
    return facts.name or ("authority" if facts.is_authority else "-")
