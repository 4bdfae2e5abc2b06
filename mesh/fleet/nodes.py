"""The servers of a deployment's bus: their configuration, and the names that their certificates are for."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mesh.bus.accounts import resolver_config
from mesh.bus.roles import quoted, server_config
from mesh.fleet.deployment import CA, CLIENT, PORT, Deployment, Target, slug
from mesh.fleet.operator import ACCOUNTS_FOLDER
from mesh.fleet.setup import ACCOUNTS

CLUSTER_PORT = 6222
MOST_NODES = 5
MONITOR = "127.0.0.1:8222"


class NodePlace(NamedTuple):
    """Where a server finds its files."""

    store: str
    tls: str
    """Folder of its certificate and of the authority's."""
    key: str
    """Its private key."""


def node_config(deployment: Deployment, node: str, place: NodePlace) -> str:
    """Return the configuration of one server of the bus; it includes `accounts.conf` beside it."""
    extra = list[str]()
    if deployment.file.bus.auth == "jwt":
        extra.append(resolver_config(f"{place.store}/{ACCOUNTS_FOLDER}"))
    secured = _tls_block(node, place) if deployment.is_secured else []
    extra += secured
    if deployment.nodes > 1:
        routes = json.dumps([f"nats://{name}:{CLUSTER_PORT}" for name in deployment.node_names])
        extra += [
            "cluster {",
            f"  name: {quoted(slug(deployment.file.name))}",
            f'  listen: "0.0.0.0:{CLUSTER_PORT}"',
            f"  routes: {routes}",
            "  no_advertise: true # members reach servers by the names in their URL, which certificates hold",
            *(f"  {line}" for line in secured),
            "}",
        ]
    head = (
        f"# A server of the bus, written by `mesh setup --for {deployment.target}`. Monitoring listens on",
        "# the loopback interface alone: it asks for no credentials.",
    )
    body = server_config(
        f"include ./{ACCOUNTS}",
        store=Path(place.store),
        listen=f"0.0.0.0:{PORT}",
        http=MONITOR,
        server_name=node,
        extra="\n".join(extra),
    )
    return "\n".join((*head, body.rstrip("\n"), ""))


def _tls_block(node: str, place: NodePlace) -> list[str]:
    return [
        "tls {",
        f"  cert_file: {quoted(f'{place.tls}/{node}.pem')}",
        f"  key_file: {quoted(place.key)}",
        f"  ca_file: {quoted(f'{place.tls}/{CA}')}",
        "  verify: true",
        "}",
    ]


def certificate_hosts(deployment: Deployment) -> dict[str, Sequence[str]]:
    """Return the certificates that a deployment needs: of each, the names that it is for."""
    here = ("localhost", "127.0.0.1")
    nodes: dict[str, Sequence[str]] = {name: (name, *here) for name in deployment.node_names}
    if deployment.target is Target.KUBERNETES or deployment.nodes == 1:
        pods = (f"nats-{n}.nats-headless" for n in range(MOST_NODES))
        nodes = {"nats": ("nats", *pods, *here)}
    return nodes | {CLIENT: ()}
