"""A deployment as files: what `mesh setup --out DIR --for …` writes, and where its nodes and keys are.

The files come from templates (`mesh/fleet/templates/`) and from the table of roles. They hold no secret:
seeds and private keys lie beside them, in files of their own. `mesh.fleet.generated` writes them.
"""

import json
import re
import tomllib
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from mesh.errors import MeshError
from mesh.fleet.file import FleetFile
from mesh.service.printable import counted
from mesh.settings import FILE_NAME

TLS = "tls"
"""Folder of certificates and their keys."""
CA, CA_KEY = "ca.pem", "ca-key.pem"
CLIENT = "client"
"""Name of the certificate that guards, agents and people show to the bus; their nkeys tell them apart."""
FLEET = "fleet"
"""Folder with a copy of the fleet file, for the setup that runs beside the bus."""

PORT = 4222
_TEMPLATES = Path(__file__).with_name("templates")
_ALONE = re.compile(r"( *)~\{(\w+)\}")
_FIELD = re.compile(r"~\{(\w+)\}")


class Target(StrEnum):
    """What runs the deployment."""

    COMPOSE = "compose"
    SYSTEMD = "systemd"
    KUBERNETES = "kubernetes"


class Tls(StrEnum):
    """Where certificates come from."""

    NONE = "none"
    DEV = "dev"
    """From an authority of the deployment's own, which setup makes."""
    FILES = "files"
    """From you."""
    CERT_MANAGER = "cert-manager"


class DeploymentImpossible(MeshError, code="setup.deployment"):
    """These files cannot be written; the text names the place and what to do."""


class Deployment(NamedTuple):
    """What is deployed, and how."""

    file: FleetFile
    source: Path
    """The fleet file's path."""
    target: Target
    nodes: int
    """Servers of the bus."""
    tls: Tls

    @property
    def node_names(self) -> tuple[str, ...]:
        """The servers' names, which are also the hosts where they are reached."""
        return ("nats",) if self.nodes == 1 else tuple(f"nats-{n}" for n in range(1, self.nodes + 1))

    @property
    def is_secured(self) -> bool:
        return self.tls is not Tls.NONE

    def url_of(self, hosts: Iterable[str]) -> str:
        """Return the bus's URL for clients that reach its servers at these hosts."""
        scheme = "tls" if self.is_secured else "nats"
        return ",".join(f"{scheme}://{host}:{PORT}" for host in hosts)

    @property
    def modules(self) -> dict[str, str]:
        """`MODULE:NAME` of each agent's code. An agent whose key is elsewhere (`nkey`) runs elsewhere.

        Raises DeploymentImpossible if the fleet file does not name the code of one.
        """
        here = {name: each for name, each in self.file.agents.items() if each.nkey is None}
        missing = [f"agents.{name}" for name, each in here.items() if each.module is None]
        if missing:
            raise DeploymentImpossible(
                f"{self.source}: {', '.join(missing)}: add `module`, the code that is to run"
            )
        for name, each in here.items():
            if not str(each.module).isprintable():
                raise DeploymentImpossible(f"{self.source}: agents.{name}.module: it has control characters")
        return {name: str(each.module) for name, each in here.items()}

    def check(self) -> None:
        """Raise DeploymentImpossible for settings that do not go together."""
        for name in self.modules:
            if name in (*self.node_names, "setup", "mesh"):
                raise DeploymentImpossible(
                    f"{self.source}: agents.{name}: a service or a file here has that name; rename it"
                )
        replicas = self.file.log.replicas
        if replicas > self.nodes:
            raise DeploymentImpossible(
                f"{self.source}: log.replicas: {counted(self.nodes, 'node')} cannot keep {replicas} "
                f"replicas; say --nodes {replicas}"
            )
        if self.tls is Tls.CERT_MANAGER and self.target is not Target.KUBERNETES:
            raise DeploymentImpossible("--tls cert-manager: cert-manager runs on Kubernetes only")
        if self.target is Target.KUBERNETES and self.file.bus.auth == "jwt":
            raise DeploymentImpossible(
                f'{self.source}: bus.auth: "jwt" is not written for Kubernetes yet; use "nkeys"'
            )
        if self.target is Target.SYSTEMD and self.nodes > 1 and not self.is_secured:
            raise DeploymentImpossible(
                "--tls none: servers on several machines trust whoever connects as a server; use dev or files"
            )


def fill(template: str, **values: str) -> str:
    """Return a template with `~{name}` replaced by values.

    Where a line has nothing else, each line of the value is indented as it is; an empty value drops the line.
    """
    lines = list[str]()
    for line in (_TEMPLATES / template).read_text().splitlines():
        if alone := _ALONE.fullmatch(line):
            lines += [f"{alone[1]}{each}" if each else "" for each in values[alone[2]].splitlines()]
        else:
            lines.append(_FIELD.sub(lambda found: values[found[1]], line))
    return "\n".join((*lines, ""))


def string(text: str) -> str:
    """Return a string as JSON, which YAML reads alike."""
    return json.dumps(text)


_BARE = re.compile(r"[a-z][a-z0-9-]*")
_WORDS_OF_YAML = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def key(name: str) -> str:
    """Return a member's name as a key or a value of YAML: quoted where it could be read as something else."""
    return name if _BARE.fullmatch(name) and name not in _WORDS_OF_YAML else string(name)


def slug(text: str) -> str:
    """Return a name of lower-case letters, digits and hyphens that resembles the text."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "mesh"


def fleet_copy(deployment: Deployment) -> dict[str, str]:
    """Return the fleet file, and the files of forms that it names, by their paths below `fleet/`.

    Raises DeploymentImpossible for a form outside the fleet file's folder: the copy has no place for it.
    """
    folder = deployment.source.parent
    copied = {FILE_NAME: deployment.source.read_text()}
    for path in _forms(copied[FILE_NAME]):
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise DeploymentImpossible(
                f"{deployment.source}: the form {path} is outside the fleet file's folder; move it there"
            )
        copied[path] = (folder / path).read_text()
    return {f"{FLEET}/{path}": text for path, text in copied.items()}


def _forms(text: str) -> list[str]:
    """Return the paths of the forms that a fleet file names."""
    agents = tomllib.loads(text).get("agents", {}).values()
    return list(
        dict.fromkeys(
            path for each in agents for path in each.get("carries", {}).values() if isinstance(path, str)
        )
    )
