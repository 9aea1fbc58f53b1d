"""What is shipped for operators fits the commands, the systems it is for, and itself."""

import ast
import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from talka.cli.main import talka as command
from talka.control.member.metrics_table import METRICS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = [*sorted((DEPLOY / "kubernetes").glob("*.yaml")), DEPLOY / "kubernetes" / "secret.yaml.example"]
KUBERNETES_VERSIONS = ("1.29", "1.37")
SYSTEMD_ANALYZE = shutil.which("systemd-analyze")
GRACE_S = 30
"""That tasks have to finish after they were told to stop."""
BINARY = "/usr/local/bin/talka"


def check_command_line(words: list[str], where: str) -> dict[str, Any]:
    """Parse it as the command would, without running it; the options it gives, by their flags."""
    context = click.Context(command, info_name="talka")
    found = command.get_command(context, words[0])
    assert found is not None, f"{where}: talka has no command {words[0]}"
    own = click.Context(found, parent=context, info_name=words[0])
    try:
        options, rest, _ = found.make_parser(own).parse_args(list(words[1:]))
    except click.UsageError as error:
        raise AssertionError(f"{where}: {error.format_message()}") from None
    assert not rest, f"{where}: {rest}"
    flags = {str(parameter.name): parameter.opts[0].removeprefix("--") for parameter in found.params}
    return {flags[str(name)]: value for name, value in options.items()}


# systemd


def settings(unit: Path) -> dict[str, str]:
    """The service section; of a setting that is given several times, the last."""
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit.read_text())
    return dict(parser["Service"])


def variables(unit: Path) -> dict[str, str]:
    """What the unit's own comment gives as an example of its environment file."""
    return dict(re.findall(r"^#   ([A-Z]+)=(.*)$", unit.read_text(), re.MULTILINE))


def test_there_is_a_unit_for_each_way_to_start() -> None:
    assert [unit.name for unit in UNITS] == ["talka-manager.service", "talka-up.service", "talka-worker.service"]


@pytest.mark.skipif(SYSTEMD_ANALYZE is None, reason="systemd-analyze is not on this machine")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_unit_is_verified_by_systemd(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name
    text = unit.read_text()
    assert f"ExecStart={BINARY} " in text
    copy.write_text(text.replace(BINARY, sys.executable))
    assert SYSTEMD_ANALYZE is not None
    ended = subprocess.run(
        [SYSTEMD_ANALYZE, "verify", "--man=no", "--recursive-errors=no", str(copy)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    complaints = [line for line in ended.stderr.splitlines() if unit.name in line]
    assert ended.returncode == 0 and not complaints, ended.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_command_of_a_unit_exists_with_its_flags(unit: Path) -> None:
    line = settings(unit)["ExecStart"].removeprefix(f"{BINARY} ")
    for name, value in variables(unit).items():
        line = line.replace(f"${{{name}}}", value).replace(f"${name}", value)
    assert "$" not in line
    check_command_line(shlex.split(line), unit.name)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_unit_is_hardened_and_gives_work_time_to_finish(unit: Path) -> None:
    given = settings(unit)
    wanted = {
        "Type": "exec",
        "KillMode": "mixed",
        "Restart": "on-failure",
        "DynamicUser": "yes",
        "StateDirectory": unit.stem,
        "NoNewPrivileges": "yes",
        "PrivateTmp": "yes",
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "CapabilityBoundingSet": "",
    }
    assert {name: given.get(name) for name in wanted} == wanted
    assert int(given["TimeoutStopSec"]) > GRACE_S
    assert int(given["LimitNOFILE"]) >= 65536


def test_units_have_users_of_their_own_so_that_submitted_code_cannot_read_a_managers_files() -> None:
    assert len({settings(unit)["User"] for unit in UNITS}) == len(UNITS)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_secrets_of_a_unit_are_credentials_and_never_in_its_command_line(unit: Path) -> None:
    text = unit.read_text()
    loaded = set(re.findall(r"^LoadCredential=([^:]+):/etc/talka/", text, re.MULTILINE))
    used = set(re.findall(r"%d/(\S+)", settings(unit)["ExecStart"]))
    assert loaded == used
    assert not re.search(r"^Environment=", text, re.MULTILINE)


# compose


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())


def options_of(service: dict[str, Any], name: str) -> dict[str, Any]:
    return check_command_line(service["command"], name)


def nodes(compose: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    return {name: service for name, service in compose["services"].items() if service["command"][0] == kind}


def test_compose_has_three_managers_and_two_workers_whose_flags_exist(compose: dict[str, Any]) -> None:
    managers, workers = nodes(compose, "manager"), nodes(compose, "worker")
    assert (len(managers), len(workers), len(compose["services"])) == (3, 2, 5)
    for name, service in compose["services"].items():
        assert options_of(service, name)["name"] == name


def test_managers_of_compose_vote_for_each_other_and_are_found_by_everybody(compose: dict[str, Any]) -> None:
    managers = nodes(compose, "manager")
    addresses = {name: service["networks"]["talka"]["ipv4_address"] for name, service in managers.items()}
    assert len(set(addresses.values())) == len(addresses)
    for name, service in managers.items():
        options = options_of(service, name)
        assert options["voters"].split(",") == list(managers)
        assert options["bind"] == f"{addresses[name]}:8471"
        assert options["api"] == f"{addresses[name]}:8470"
        assert sorted(options["seed"]) == sorted(f"{ip}:8471" for other, ip in addresses.items() if other != name)
    for name, service in nodes(compose, "worker").items():
        assert sorted(options_of(service, name)["seed"]) == sorted(f"{ip}:8471" for ip in addresses.values())


def test_managers_of_compose_are_healthy_when_their_own_api_says_ready(compose: dict[str, Any]) -> None:
    for name, service in nodes(compose, "manager").items():
        kind, program, flag, code = service["healthcheck"]["test"]
        assert (kind, program, flag) == ("CMD", "python", "-c")
        compile(code, name, "exec")
        assert f"http://{options_of(service, name)['api']}/readyz" in code


def test_services_of_compose_are_confined_and_keep_their_data(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["volumes"] == [f"{name}:/var/lib/talka"] and name in compose["volumes"]
        assert options_of(service, name)["data-dir"] == "/var/lib/talka"
        assert int(service["stop_grace_period"].removesuffix("s")) > GRACE_S
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_secrets_of_compose_are_files(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        used = re.findall(r"/run/secrets/(\S+)", "\n".join(service["command"]))
        assert sorted(used) == sorted(service["secrets"]), name
    assert {key: list(given) for key, given in compose["secrets"].items()} == {
        "secret": ["file"],
        "token.key": ["file"],
    }


def test_image_runs_as_nobody_special_and_its_build_finds_what_it_copies(compose: dict[str, Any]) -> None:
    lines = (DEPLOY / "compose" / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER ")] == ["USER 10001:10001"]
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    assert copied and all((ROOT / name).exists() for names in copied for name in names)
    build = compose["services"]["manager-1"]["build"]
    context = (DEPLOY / "compose" / build["context"]).resolve()
    assert context == ROOT and (context / build["dockerfile"]).is_file()


# Kubernetes


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def every(kind: str) -> list[dict[str, Any]]:
    return [one for path in MANIFESTS for one in documents(path) if one["kind"] == kind]


def only(kind: str) -> dict[str, Any]:
    [found] = every(kind)
    return found


def workloads() -> list[dict[str, Any]]:
    return [only("StatefulSet"), only("Deployment")]


def container(workload: dict[str, Any]) -> dict[str, Any]:
    [found] = workload["spec"]["template"]["spec"]["containers"]
    return dict(found)


def arguments(workload: dict[str, Any]) -> dict[str, Any]:
    return check_command_line(container(workload)["args"], workload["metadata"]["name"])


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifest_is_valid(path: Path, version: str) -> None:
    for document in documents(path):
        kubernetes_validate.validate(document, version, strict=True)


def test_everything_is_in_one_namespace_that_holds_pods_to_the_restricted_standard() -> None:
    namespace = only("Namespace")["metadata"]
    assert namespace["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    others = [one for path in MANIFESTS for one in documents(path) if one["kind"] != "Namespace"]
    assert {one["metadata"]["namespace"] for one in others} == {namespace["name"]}


def test_an_unchanged_example_of_a_secret_is_not_applied_with_the_rest_and_is_refused() -> None:
    from talka.errors import Invalid
    from talka.wire.security.keys import parse_secrets

    [path] = [path for path in MANIFESTS if any(one["kind"] == "Secret" for one in documents(path))]
    assert path.suffix not in (".yaml", ".yml", ".json")  # those kubectl takes from a folder
    with pytest.raises(Invalid):
        parse_secrets(only("Secret")["stringData"]["secret"], "secret")


def test_selectors_match_the_labels_of_one_workload() -> None:
    labels = {one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"] for one in workloads()}
    selectors = [one["spec"]["selector"] for one in every("Service")]
    selectors += [one["spec"]["selector"]["matchLabels"] for one in every("PodDisruptionBudget")]
    for selector in selectors:
        assert len([name for name, given in labels.items() if selector.items() <= given.items()]) == 1
    for one in workloads():
        assert one["spec"]["selector"]["matchLabels"] == labels[one["metadata"]["name"]]
        [spread] = one["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert spread["labelSelector"]["matchLabels"] == labels[one["metadata"]["name"]]
    assert sorted(one["metadata"]["name"] for one in every("PodDisruptionBudget")) == sorted(labels)


def test_services_lead_to_ports_where_managers_listen() -> None:
    ports = {
        (port["name"], port["protocol"]): port["containerPort"] for port in container(only("StatefulSet"))["ports"]
    }
    for service in every("Service"):
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"], port["protocol"]] == port["port"]
    options = arguments(only("StatefulSet"))
    assert options["bind"].endswith(f":{ports['node-tcp', 'TCP']}") and ports["node-tcp", "TCP"] == 8471
    assert options["advertise"].endswith(":8471") and ports["node-udp", "UDP"] == 8471
    assert options["api"].endswith(f":{ports['api', 'TCP']}")
    assert options["api-advertise"] == f"$(POD_IP):{ports['api', 'TCP']}"


def test_managers_find_each_other_before_any_is_ready_and_start_together() -> None:
    managers = only("StatefulSet")
    [headless] = [one for one in every("Service") if one["spec"].get("clusterIP") == "None"]
    assert headless["spec"]["publishNotReadyAddresses"] is True
    assert managers["spec"]["serviceName"] == headless["metadata"]["name"]
    assert managers["spec"]["podManagementPolicy"] == "Parallel"
    name = f"{headless['metadata']['name']}.{headless['metadata']['namespace']}.svc:8471"
    assert all(arguments(one)["seed"] == [name] for one in workloads())


def test_voters_are_the_pods_and_a_majority_of_them_is_never_evicted() -> None:
    managers = only("StatefulSet")
    pods = [f"{managers['metadata']['name']}-{number}" for number in range(managers["spec"]["replicas"])]
    assert arguments(managers)["voters"].split(",") == pods and len(pods) == 3
    assert arguments(managers)["name"] == "$(POD_NAME)"
    assert all(one["spec"]["maxUnavailable"] == 1 for one in every("PodDisruptionBudget"))
    assert [claim["metadata"]["name"] for claim in managers["spec"]["volumeClaimTemplates"]] == ["data"]


def test_managers_are_probed_where_everybody_may_ask() -> None:
    found = container(only("StatefulSet"))
    assert found["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "api"}
    assert found["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "api"}


@pytest.mark.parametrize("workload", workloads(), ids=lambda one: one["kind"])
def test_pods_are_confined_and_have_time_to_stop(workload: dict[str, Any]) -> None:
    pod, found = workload["spec"]["template"]["spec"], container(workload)
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False  # else a service named talka would set TALKA_ variables
    assert pod["terminationGracePeriodSeconds"] > GRACE_S
    assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] == 10001
    assert found["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert found["resources"]["requests"]["memory"] and found["resources"]["limits"]["memory"]
    mounted = {mount["name"] for mount in found["volumeMounts"]}
    claims = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
    assert mounted == {volume["name"] for volume in pod["volumes"]} | claims


@pytest.mark.parametrize("workload", workloads(), ids=lambda one: one["kind"])
def test_pods_get_the_secrets_they_use_and_no_others(workload: dict[str, Any]) -> None:
    keys = set(only("Secret")["stringData"])
    [secret] = [one["secret"] for one in workload["spec"]["template"]["spec"]["volumes"] if "secret" in one]
    given = {item["path"] for item in secret["items"]} if "items" in secret else keys
    used = re.findall(r"/etc/talka/(\S+)", "\n".join(container(workload)["args"]))
    assert secret["secretName"] == only("Secret")["metadata"]["name"]
    assert sorted(used) == sorted(given) and given <= keys


def test_workers_are_given_the_cores_they_offer() -> None:
    resources = container(only("Deployment"))["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"]["cpu"] == arguments(only("Deployment"))["cores"]


# All of it


def test_no_image_names_a_registry() -> None:
    found = []
    for path in sorted(path for path in DEPLOY.rglob("*") if path.is_file()):
        text = path.read_text()
        found += re.findall(r"^\s*(?:- )?image:\s*(\S+)", text, re.MULTILINE)
        found += re.findall(r"^FROM\s+(\S+)", text, re.MULTILINE)
    assert len(found) >= 5
    assert not [image for image in found if "/" in image]


def constants() -> list[str]:
    """Every text in the source, with the parts of formatted ones apart."""
    return [
        node.value
        for path in sorted((ROOT / "src").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def test_sentences_and_metrics_of_the_operators_guide_are_those_of_the_program() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    said = constants()
    whole = "\n".join(said)
    sentences = re.findall(r"^\| `([^`]+)` \|", page.partition("\n## Troubleshooting")[2], re.MULTILINE)
    assert len(sentences) >= 10
    for sentence in sentences:
        parts = [part.strip() for part in sentence.split("…") if part.strip()]
        assert parts and all(part in whole for part in parts), sentence
    metrics = sorted(set(re.findall(r"`talka_(\w+)", page)))
    unknown = [name for name in metrics if name not in METRICS and not name.endswith("_")]
    unknown += [name for name in metrics if name.endswith("_") and not any(one.startswith(name) for one in METRICS)]
    assert metrics and unknown == []
