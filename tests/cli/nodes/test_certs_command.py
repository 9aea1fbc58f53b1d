"""`talka certs`: an authority, certificates, and what is said about them."""

import json
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from talka.cli.main import run_command
from talka.net.certificates import describe, issue, make_authority
from talka.net.tls import find_certs

NOW = datetime(2030, 5, 6, 7, 8, 9, tzinfo=UTC)
HEAVY = {"asyncio", "cryptography", "msgspec", "ssl"}
LIST_MODULES = """
import sys
import talka.cli.nodes.certs
print(*sorted(sys.modules))
"""


class Done(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def certs(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `talka certs` in an empty folder, at a fixed time."""
    monkeypatch.setattr("talka.cli.nodes.certs.utc_now", lambda: NOW)

    def run(*arguments: str) -> Done:
        return Done(run_command(["certs", *arguments]), *capsys.readouterr())

    return run


def test_from_nothing_to_a_certificate_in_two_commands(certs: Run, folder: Path) -> None:
    made = certs("init", "pki", "--cluster", "shop", "--environment", "staging")
    assert made == (
        0,
        "pki/ca.crt: the authority of cluster shop, environment staging, until 2040-05-03\n",
        "Whoever has pki/ca.key can let anybody in: keep it where no node runs.\n"
        "Next: talka certs issue pki --name NAME --role manager\n",
    )
    issued = certs("issue", "pki", "--name", "a", "--role", "manager")
    assert issued == (
        0,
        "pki/a.crt: manager a of cluster shop, environment staging, until 2031-05-06\n",
        "The node needs ca.crt, a.crt and a.key in a folder of its own.\n",
    )
    files = find_certs("pki", "a")
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600


def test_cluster_and_environment_have_a_default(certs: Run, folder: Path) -> None:
    certs("init", ".")
    certs("issue", ".", "--name", "w", "--role", "outside-worker")
    facts = describe("w.crt", now=NOW)
    assert (facts.role, facts.cluster, facts.environment) == ("outside-worker", "default", "default")


def test_options_of_a_certificate_stand_in_it(certs: Run, folder: Path) -> None:
    certs("init", "pki", "--days", "100")
    options = ["--datacenter", "eu", "--host", "a.example", "--host", "10.0.0.1", "--days", "7"]
    assert certs("issue", "pki", "--name", "a", "--role", "gate", *options).code == 0
    facts = describe("pki/a.crt", now=NOW)
    assert (facts.datacenter, facts.hosts) == ("eu", ("a.example", "10.0.0.1"))
    assert facts.not_after == NOW + timedelta(days=7)
    assert describe("pki/ca.crt", now=NOW).not_after == NOW + timedelta(days=100)


def test_certificate_is_replaced_on_demand_only(certs: Run, folder: Path) -> None:
    certs("init", "pki")
    certs("issue", "pki", "--name", "a", "--role", "gate")
    before = describe("pki/a.crt", now=NOW).fingerprint
    refused = certs("issue", "pki", "--name", "a", "--role", "gate")
    assert refused.code == 2 and refused.err.startswith("pki/a.crt is there already: --replace makes a new")
    assert describe("pki/a.crt", now=NOW).fingerprint == before
    assert certs("issue", "pki", "--name", "a", "--role", "gate", "--replace").code == 0
    assert describe("pki/a.crt", now=NOW).fingerprint != before


@pytest.fixture
def fleet(folder: Path) -> Path:
    """An authority, a good certificate, an expired one and a foreign one."""
    make_authority("pki", "shop", "staging", now=NOW)
    issue("pki", name="b", role="manager", datacenter="eu", hosts=["b.example"], now=NOW)
    issue("pki", name="a", role="worker", days=1, now=NOW - timedelta(days=9))
    make_authority("other", "shop", "staging", now=NOW)
    foreign = issue("other", name="c", role="client", now=NOW)
    (folder / "pki" / "c.crt").write_bytes(foreign.certificate.read_bytes())
    return folder / "pki"


def test_certificates_that_end_soon_are_renewed_in_place_and_others_when_they_are_named(
    certs: Run, fleet: Path
) -> None:
    (fleet / "c.crt").unlink()
    (key, former), b = ((fleet / f"a.{kind}").read_bytes() for kind in ("key", "crt")), (fleet / "b.crt").read_bytes()

    assert certs("renew", "pki", "--days", "20") == (
        0,
        "pki/a.crt: valid until 2030-05-26\n",
        "Put each in the place of the node's own: the key is the same, and the node takes it by itself.\n",
    )
    facts = describe(fleet / "a.crt", now=NOW)
    assert (facts.name, facts.role, facts.problem) == ("a", "worker", "")
    assert (fleet / "a.key").read_bytes() == key and (fleet / "a.crt").read_bytes() != former
    assert (fleet / "b.crt").read_bytes() == b
    none = certs("renew", "pki", "--within", "10")
    assert none == (0, "no certificate in pki ends within 10 days: --name NAME renews one all the same\n", "")
    named = certs("renew", "pki", "--name", "b", "--name", "b", "--days", "500")
    assert (named.code, named.out) == (0, "pki/b.crt: valid until 2031-09-18\n")


def test_folder_is_shown_as_a_table_with_what_is_wrong_below(certs: Run, fleet: Path) -> None:
    done = certs("show", "pki")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "NAME       ROLE     CLUSTER  ENVIRONMENT  DATACENTER  UNTIL (UTC)       STATE",
        "authority  -        shop     staging      -           2040-05-03 07:08  ✓ good",
        "a          worker   shop     staging      -           2030-04-28 07:08  ✗ broken",
        "b          manager  shop     staging      eu          2031-05-06 07:08  ✓ good",
        "c          client   shop     staging      -           2031-05-06 07:08  ✗ broken",
        "a: it expired on 2030-04-28 07:08 UTC",
        "c: another authority issued it than the one whose ca.crt is used here",
    ]


def test_one_certificate_is_shown_whole(certs: Run, fleet: Path) -> None:
    done = certs("show", "pki/b.crt")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "name         b",
        "role         manager",
        "cluster      shop",
        "environment  staging",
        "datacenter   eu",
        "hosts        b.example",
        "valid        2030-05-06 06:08 to 2031-05-06 07:08 UTC",
        "issuer       CN=Talka authority,OU=staging,O=shop",
        f"SHA-256      {describe('pki/b.crt', now=NOW).fingerprint}",
        "state        ✓ good",
    ]
    expired = certs("show", "pki/a.crt").out.splitlines()
    assert "hosts        -" in expired
    assert expired[-1] == "state        ✗ it expired on 2030-04-28 07:08 UTC"


@pytest.mark.parametrize("path", ["pki", "pki/a.crt"])
def test_json_has_every_fact(certs: Run, fleet: Path, path: str) -> None:
    shown = json.loads(certs("show", path, "--json").out)["certificates"]
    files = ["pki/ca.crt", "pki/a.crt", "pki/b.crt", "pki/c.crt"] if path == "pki" else ["pki/a.crt"]
    assert [entry["file"] for entry in shown] == files
    facts = describe("pki/a.crt", now=NOW)
    assert shown[files.index("pki/a.crt")] == {
        "file": "pki/a.crt",
        "name": "a",
        "role": "worker",
        "cluster": "shop",
        "environment": "staging",
        "datacenter": "",
        "hosts": [],
        "is_authority": False,
        "not_before": "2030-04-27T06:08:09Z",
        "not_after": "2030-04-28T07:08:09Z",
        "issuer": "CN=Talka authority,OU=staging,O=shop",
        "fingerprint": facts.fingerprint,
        "problem": "it expired on 2030-04-28 07:08 UTC",
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["init", "pki"], "pki/ca.crt is there already"),
        (["init", "new", "--cluster", "a b"], "cluster 'a b' is not an id"),
        (["init", "new", "--environment", ""], "environment '' is not an id"),
        (["init", "new", "--days", "0"], "Invalid value for '--days'"),
        (["init", "pki/b.crt"], "pki/b.crt did not take the certificate and key"),
        (["init"], "Missing argument 'DIR'"),
        (["issue", "new", "--name", "a", "--role", "gate"], "ca.crt is not in new: talka certs init new makes"),
        (["issue", "pki", "--role", "gate"], "Missing option '--name'"),
        (["issue", "pki", "--name", "d"], "Missing option '--role'"),
        (["issue", "pki", "--name", "d", "--role", "boss"], "'boss' is not one of"),
        (["issue", "pki", "--name", "../d", "--role", "gate"], "name '../d' is not an id"),
        (["issue", "pki", "--name", "d", "--role", "gate", "--host", "a b"], "host 'a b' is neither a DNS name"),
        (["issue", "pki", "--name", "d", "--role", "gate", "--datacenter", "/"], "datacenter '/' is not an id"),
        (["renew", "pki", "--name", "d"], "d.crt is not in pki: talka certs issue pki --name d --role … makes it"),
        (["renew", "pki", "--name", "c"], "c.key"),
        (["renew", "pki", "--name", "ca"], "the authority's own certificate cannot be renewed"),
        (["renew", "pki", "--name", "../a"], "name '../a' is not an id"),
        (["renew", "pki", "--days", "0"], "Invalid value for '--days'"),
        (["renew", "empty"], "there is no certificate in empty"),
        (["renew"], "Missing argument 'DIR'"),
        (["show", "new"], "new cannot be read: No such file"),
        (["show", "pki/b.key"], "pki/b.key holds a private key and no certificate"),
        (["show", "empty"], "there is no certificate in empty: talka certs init empty makes"),
        (["shwo"], "There is no command 'shwo'. Did you mean show?"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_sentences_and_change_nothing(
    certs: Run, fleet: Path, folder: Path, arguments: list[str], sentence: str
) -> None:
    (folder / "empty").mkdir()
    before = sorted(folder.rglob("*"))
    done = certs(*arguments)
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err and "internal error" not in done.err
    assert sorted(folder.rglob("*")) == before


def test_folder_that_cannot_be_read_is_named(certs: Run, fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", closed)
    done = certs("show", "pki")
    assert (done.code, done.err) == (2, "pki cannot be read: Permission denied\n")


@pytest.mark.parametrize("command", [[], ["init"], ["issue"], ["renew"], ["show"]], ids=str)
def test_help_starts_with_examples_and_fits(certs: Run, command: list[str]) -> None:
    done = certs(*command, "--help")
    opening, usage, _ = done.out.partition("Usage:")
    assert done.code == 0 and usage
    assert "\nExamples:\n  talka certs " in opening
    assert max(map(len, done.out.splitlines())) <= 100


def test_help_needs_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", LIST_MODULES], capture_output=True, text=True, timeout=60, check=True)
    assert not HEAVY & set(done.stdout.split())
