"""A deployment for systemd: units for servers, guards and agents, on one machine or several."""

import hashlib

from mesh.fleet.deployment import CA, CLIENT, TLS, Deployment, fill
from mesh.fleet.nodes import NodePlace, node_config

ROOM = "systemd"
"""Folder of the files."""
_ETC = "/etc/handoff-mesh-nats"
_UNIT = "mesh-nats@{node}.service"
_LONGEST_USER = 31
_USER = "mesh-agent-"
TLS_FILES = {
    "MESH_TLS_CA": CA,
    "MESH_TLS_CERT": f"{CLIENT}.pem",
    "MESH_TLS_KEY": f"{CLIENT}-key.pem",
}

_MEMBERS = {
    "nkeys": "After new members, copy\n"
    "# accounts.conf and reload it twice: the first time, the server does not yet connect what new "
    "accounts import.",
    "jwt": "`mesh setup --out`\n# hands it new members.",
}
"""How a server learns of new members, by `[bus] auth`."""


def systemd_files(deployment: Deployment) -> dict[str, str]:
    """Return units, drop-ins, configurations and `install.sh`, by path. Raises DeploymentImpossible."""
    nodes, modules = deployment.node_names, deployment.modules
    hosts = ("127.0.0.1",) if deployment.nodes == 1 else nodes
    secured = _secured(deployment.is_secured)
    node_key = "LoadCredential=%i-key.pem:/etc/handoff-mesh/tls/%i-key.pem" if deployment.is_secured else ""
    made = {
        "mesh-nats@.service": fill(
            "mesh-nats@.service", tls=node_key, members=_MEMBERS[deployment.file.bus.auth]
        ),
        "mesh-guard.service": fill("mesh-guard.service", tls=secured),
        "mesh-agent@.service": fill("mesh-agent@.service", tls=secured),
        "mesh.env": fill("mesh.env", url=deployment.url_of(hosts)),
        "install.sh": fill(
            "install.sh",
            names=" ".join((*nodes, "guard", *modules)),
            nodes="|".join(nodes),
            agents="|".join(modules) or "-",
            tls="yes" if deployment.is_secured else "",
        ),
    }
    for name, module in modules.items():
        made[f"mesh-agent@{name}.service.d/agent.conf"] = _drop_in(name, module)
    for node in nodes:
        key = f"/run/credentials/{_UNIT.format(node=node)}/{node}-key.pem"
        place = NodePlace(f"/var/lib/handoff-mesh-nats/{node}", f"{_ETC}/{TLS}", key)
        made[f"{node}.conf"] = node_config(deployment, node, place)
    return {f"{ROOM}/{name}": text for name, text in made.items()}


def agent_files(name: str, module: str, url: str, is_secured: bool) -> dict[str, str]:
    """Return what `install.sh` installs for one agent on a machine of its own, and itself, by path."""
    return {
        "mesh-agent@.service": fill("mesh-agent@.service", tls=_secured(is_secured)),
        f"mesh-agent@{name}.service.d/agent.conf": _drop_in(name, module),
        "mesh.env": fill("mesh.env", url=url),
        "install.sh": fill("install.sh", names=name, nodes="-", agents=name, tls="yes" if is_secured else ""),
    }


def _secured(is_secured: bool) -> str:
    """Return the lines of a unit that name the files of TLS."""
    return "\n".join(
        f"LoadCredential={name}:/etc/handoff-mesh/tls/{name}\nEnvironment={variable}=%d/{name}"
        for variable, name in (TLS_FILES.items() if is_secured else ())
    )


def _drop_in(agent: str, module: str) -> str:
    """Return what is an agent's own; a user's name that would be too long is made shorter."""
    escaped = module.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    lines = ["[Service]", f'Environment="AGENT_MODULE={escaped}"']
    if len(_USER + agent) > _LONGEST_USER:
        lines.append(f"User={_USER}{hashlib.sha256(agent.encode()).hexdigest()[:16]}")
    return "\n".join((*lines, ""))
