"""A deployment for compose: one machine, a container for each server, guard and agent."""

from mesh.fleet.deployment import (
    CA,
    CLIENT,
    PORT,
    TLS,
    Deployment,
    fill,
    key,
    slug,
    string,
)
from mesh.fleet.nodes import NodePlace, node_config

_TLS_FILES = (CA, f"{CLIENT}.pem", f"{CLIENT}-key.pem")
_ETC = "/etc/nats"


def compose_files(deployment: Deployment) -> dict[str, str]:
    """Return `compose.yaml` and a configuration for each server, by path. Raises DeploymentImpossible."""
    place = f"{_ETC}/{TLS}"
    configs = {
        f"{node}.conf": node_config(deployment, node, NodePlace("/data", place, f"{place}/{node}-key.pem"))
        for node in deployment.node_names
    }
    return {"compose.yaml": _compose(deployment), **configs}


def _compose(deployment: Deployment) -> str:
    nodes, modules = deployment.node_names, deployment.modules
    bus = _bus_environment(deployment)
    tls_secrets = "".join(f", {string(name)}" for name in _tls_files(deployment))
    shared = {"bus": bus, "tls_secrets": tls_secrets}
    seeds = [f"{name}.nk" for name in ("admin", "guard", *modules)]
    secrets = {seed: f"./keys/{seed}" for seed in seeds}
    secrets |= {name: f"./{TLS}/{name}" for name in _tls_files(deployment)}
    return fill(
        "compose.yaml",
        name=deployment.file.name if deployment.file.name.isprintable() else "the fleet",
        project=slug(deployment.file.name),
        healthy="\n".join(f"{node}: {{condition: service_healthy}}" for node in nodes),
        nodes="\n\n".join(_node(deployment, n) for n in range(len(nodes))),
        agents="\n".join(
            fill(
                "compose-agent.yaml",
                agent=name,
                key=key(name),
                module=string(module.replace("$", "$$")),
                **shared,
            )
            for name, module in modules.items()
        ).rstrip("\n"),
        secrets="\n".join(f"{name}: {{file: {path}}}" for name, path in secrets.items()),
        volumes="\n".join(f"{node}: {{}}" for node in nodes),
        **shared,
    )


def _node(deployment: Deployment, n: int) -> str:
    node = deployment.node_names[n]
    own = (CA, f"{node}.pem", f"{node}-key.pem") if deployment.is_secured else ()
    mounts = "\n".join(f'- "./{TLS}/{name}:{_ETC}/{TLS}/{name}:ro"' for name in own)
    return fill("compose-node.yaml", node=node, port=str(PORT + n), tls_mounts=mounts).rstrip("\n")


def _tls_files(deployment: Deployment) -> tuple[str, ...]:
    return _TLS_FILES if deployment.is_secured else ()


def _bus_environment(deployment: Deployment) -> str:
    """Return the variables that tell a service where the bus is, and how its connection is secured."""
    variables = {"NATS_URL": deployment.url_of(deployment.node_names)}
    if deployment.is_secured:
        files = zip(("MESH_TLS_CA", "MESH_TLS_CERT", "MESH_TLS_KEY"), _TLS_FILES, strict=True)
        variables |= {variable: f"/run/secrets/{name}" for variable, name in files}
    return "\n".join(f"{name}: {value}" for name, value in variables.items())
