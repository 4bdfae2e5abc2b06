"""A bundle: what one agent needs on another machine, in one file."""

import gzip
import io
import shlex
import tarfile
from pathlib import Path

from mesh.bus.credentials import replace_private, seed_file
from mesh.fleet.deployment import TLS, DeploymentImpossible
from mesh.fleet.file import FleetFile
from mesh.fleet.setup import KEYS
from mesh.fleet.systemd import ROOM, TLS_FILES, agent_files

ENVIRONMENT = "agent.env"

_README = """\
The agent {name} of the mesh {fleet}. Whoever has keys/{name}.nk acts in its name: keep it secret.
1. Install handoff-mesh and the agent's code, {module}. Servers of the bus have to {know}.
2. Start it in this folder: set -a; . ./agent.env; mesh agent run {module}
3. Or as root: sh systemd/install.sh {name}; systemctl daemon-reload; systemctl enable --now mesh-agent@{name}
4. More variables, such as a model's key, go into agent.env, or into /etc/handoff-mesh/{name}.env for systemd.
"""

_KNOW = {"nkeys": "be reloaded with its key", "jwt": "be handed its account: mesh setup --out"}
"""What servers need to let it in, by `[bus] auth`."""


def write_bundle(path: Path, file: FleetFile, directory: Path, name: str, url: str) -> None:
    """Write a bundle, which only its owner can read. The same content makes the same bytes.

    Args:
        directory: the folder of `prepare`, and of certificates, if `mesh setup` made any.
        url: the bus's, as it is reached from the other machine.

    Raises DeploymentImpossible if something that belongs into it is missing.
    """
    module, seed, tls = file.agents[name].module, seed_file(directory / KEYS, name), directory / TLS
    if module is None or not module.isprintable():
        raise DeploymentImpossible(
            f"agents.{name}: the fleet file names no `module`, the code that is to run"
        )
    is_secured = tls.is_dir()
    missing = [
        str(each) for each in (seed, *(tls / each for each in _pems(is_secured))) if not each.is_file()
    ]
    if missing:
        raise DeploymentImpossible(f"{', '.join(missing)}: this belongs into the bundle, and is not there")
    fleet = file.name if file.name.isprintable() else "here"
    variables = {"NATS_URL": url, "MESH_NAME": name, "MESH_CREDENTIALS": f"{KEYS}/{name}.nk"}
    variables |= {variable: f"{TLS}/{each}" for variable, each in TLS_FILES.items() if is_secured}
    know = _KNOW[file.bus.auth]
    texts = {
        "README": _README.format(name=name, fleet=fleet, module=shlex.quote(module), know=know),
        ENVIRONMENT: "".join(f"{key}={shlex.quote(value)}\n" for key, value in variables.items()),
        **{f"{ROOM}/{each}": text for each, text in agent_files(name, module, url, is_secured).items()},
    }
    bodies = {each: text.encode() for each, text in texts.items()}
    bodies[f"{KEYS}/{name}.nk"] = seed.read_bytes()
    bodies |= {f"{TLS}/{each}": (tls / each).read_bytes() for each in _pems(is_secured)}
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_private(path, _packed(name, bodies))


def _pems(is_secured: bool) -> tuple[str, ...]:
    return tuple(TLS_FILES.values()) if is_secured else ()


def _packed(folder: str, bodies: dict[str, bytes]) -> bytes:
    """Return a compressed archive of files in a folder, which only their owner can read."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, body in sorted(bodies.items()):
            entry = tarfile.TarInfo(f"{folder}/{path}")
            entry.size, entry.mode = len(body), 0o600
            archive.addfile(entry, io.BytesIO(body))
    return gzip.compress(packed.getvalue(), mtime=0)
