"""A deployment for Kubernetes: a kustomize base for guards, agents and setup, and the values of a chart."""

import hashlib
from collections.abc import Mapping
from pathlib import PurePosixPath

from mesh.fleet.deployment import (
    CA,
    CLIENT,
    FLEET,
    TLS,
    Deployment,
    DeploymentImpossible,
    Tls,
    fill,
    fleet_copy,
    key,
    slug,
    string,
)
from mesh.fleet.nodes import certificate_hosts
from mesh.fleet.scaling import AgentScale, query_of

ROOM = "kubernetes"
"""Folder of the manifests; `kustomization.yaml` is above it, since kustomize reads nothing above itself."""
BUS = "nats"
"""Release of the chart, so also the service's name."""
_MOST_BYTES = 1_000_000
"""Accounts that a ConfigMap holds beside the server's configuration: it takes 1 MiB."""
_TLS_VARIABLES = {"MESH_TLS_CA": "ca.crt", "MESH_TLS_CERT": "tls.crt", "MESH_TLS_KEY": "tls.key"}


def kubernetes_files(deployment: Deployment, accounts: str) -> dict[str, str]:
    """Return the kustomize base and the chart's values, by path. Raises DeploymentImpossible."""
    if len(accounts.encode()) > _MOST_BYTES:
        raise DeploymentImpossible(
            f"accounts.conf has {len(accounts.encode())} bytes, and a ConfigMap takes {_MOST_BYTES}: "
            f"{deployment.source} has too many members for the chart; run the bus beside Kubernetes"
        )
    fleet = {path.removeprefix(f"{FLEET}/"): text for path, text in fleet_copy(deployment).items()}
    project = slug(deployment.file.name)
    modules = deployment.modules
    scales = {name: scale for name, scale in deployment.file.scales.items() if name in modules}
    services = {
        "guard": _workload(deployment, "guard", ["guard", "run"], replicas=2, spread=True),
        **{
            name: _workload(
                deployment,
                name,
                ["agent", "run", module],
                replicas=None if name in scales else 1,
                spread=False,
            )
            for name, module in modules.items()
        },
    }
    made = {
        "guard.yaml": services.pop("guard") + "---\n" + fill("kubernetes-budget.yaml"),
        "agents.yaml": "---\n".join(services.values()),
        "setup.yaml": _setup(deployment, fleet),
        "network.yaml": fill("kubernetes-network.yaml"),
        "scaling.yaml": "---\n".join(_scaled(deployment, name, scale) for name, scale in scales.items()),
    }
    if deployment.tls is Tls.CERT_MANAGER:
        hosts = [name for name in certificate_hosts(deployment)[BUS] if not name[0].isdigit()]
        made["certificates.yaml"] = fill("kubernetes-certificates.yaml", hosts=", ".join(hosts))
    resources = "\n".join(f"- {ROOM}/{name}" for name in made if made[name])
    files = [f"{_flat(path)}={FLEET}/{path}" for path in fleet]
    kustomization = fill(
        "kustomization.yaml",
        project=project,
        resources=resources,
        secrets="\n".join(_secrets(deployment)),
        fleet="\n".join(f"- {string(each)}" for each in files),
    )
    made["nats-values.yaml"] = _values(deployment, accounts)
    return {
        "kustomization.yaml": kustomization,
        **{f"{ROOM}/{name}": text for name, text in made.items() if text},
    }


def _flat(path: str) -> str:
    """Return the key of a file in a ConfigMap, which has no folders."""
    return path if path == PurePosixPath(path).name else f"{_digest({path: ''})}-{PurePosixPath(path).name}"


def _workload(
    deployment: Deployment, name: str, command: list[str], *, replicas: int | None, spread: bool
) -> str:
    """Return the Deployment of a service. None: something else scales it, so it says no number itself."""
    return fill(
        "kubernetes-workload.yaml",
        name=name,
        value=key(name),
        replicas="" if replicas is None else f"replicas: {replicas}",
        command=", ".join(map(string, command)),
        spread=fill("kubernetes-spread.yaml") if spread else "",
        **_pod(deployment, name),
    )


def _scaled(deployment: Deployment, name: str, scale: AgentScale) -> str:
    """Return what scales an agent's Deployment by what waits for it."""
    section = deployment.file.scale
    return fill(
        "kubernetes-scaling.yaml",
        name=name,
        min=str(scale.min),
        max=str(scale.max),
        waiting=str(scale.waiting),
        prometheus=string(section.prometheus),
        query=string(query_of(name, section.labels)),
    )


def _setup(deployment: Deployment, fleet: Mapping[str, str]) -> str:
    """Return the job that sets the bus up. Jobs cannot change, so another fleet file has another job."""
    items = "\n".join(f"- {{key: {string(_flat(path))}, path: {string(path)}}}" for path in fleet)
    return fill("kubernetes-setup.yaml", digest=_digest(fleet), items=items, **_pod(deployment, "admin"))


def _digest(texts: Mapping[str, str]) -> str:
    text = "\0".join(f"{path}\0{text}" for path, text in texts.items())
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _pod(deployment: Deployment, name: str) -> dict[str, str]:
    """Return how a pod reaches the bus as `name`."""
    variables = {"NATS_URL": deployment.url_of([BUS])}
    mounts = volumes = ""
    if deployment.is_secured:
        variables |= {variable: f"/etc/mesh/tls/{file}" for variable, file in _TLS_VARIABLES.items()}
        mounts = "- {name: tls, mountPath: /etc/mesh/tls, readOnly: true}"
        volumes = f"- name: tls\n  secret: {{secretName: mesh-tls-{CLIENT}, defaultMode: 288}}"
    bus = (f"- {{name: {variable}, value: {string(value)}}}" for variable, value in variables.items())
    return {"member": name, "bus": "\n".join(bus), "tls_mounts": mounts, "tls_volumes": volumes}


def _secrets(deployment: Deployment) -> list[str]:
    """Return a secret for each key, and for each certificate that lies in files."""
    lines = list[str]()
    for name in ("admin", "guard", *deployment.modules):
        lines += [f"- name: mesh-key-{name}", f"  files: [{name}.nk=keys/{name}.nk]"]
    for name in (BUS, CLIENT) if deployment.tls in (Tls.DEV, Tls.FILES) else ():
        files = {"ca.crt": CA, "tls.crt": f"{name}.pem", "tls.key": f"{name}-key.pem"}
        listed = ", ".join(f"{key}={TLS}/{file}" for key, file in files.items())
        lines += [
            f"- name: mesh-tls-{name}",
            f"  files: [{listed}]",
        ]
        if name == BUS:
            lines.append("  options: {disableNameSuffixHash: true} # the chart names it")
    return lines


def _values(deployment: Deployment, accounts: str) -> str:
    secured = deployment.is_secured
    tls = fill("nats-values-tls.yaml") if secured else ""
    nodes = deployment.nodes
    cluster = f"enabled: true\nreplicas: {nodes}\n{tls}" if nodes > 1 else "enabled: false"
    return fill(
        "nats-values.yaml",
        cluster=cluster,
        nats=tls or "{}",
        authority="tlsCA: {enabled: true, secretName: mesh-tls-nats}" if secured else "",
        accounts=accounts,
    )
