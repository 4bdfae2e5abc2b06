"""The project in this directory: which fleet a command means, and the template of a new one.

A fleet is the file here, a named file, a reference fleet, or just some agents. The starter is a small fleet,
which runs and passes its tests as written; `template/` is that project, with names that are replaced here.
"""

import contextlib
import keyword
import os
import re
import sys
import zlib
from collections.abc import Collection, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import mesh
from mesh.agent.definition import load
from mesh.errors import UsageWrong
from mesh.fleet.file import FleetFile, HumanSection, load_fleet
from mesh.fleet.members import AgentSection, Member, Submitter
from mesh.model.choice import SCRIPTED, VARIABLE, mode
from mesh.model.vendors import secrets
from mesh.settings import FILE_NAME
from protocol.wire.ids import is_name

_CHECKOUT = Path(mesh.__file__).resolve().parents[1]
"""The checkout, if there is one."""
_CLIENT = "app"
"""The client of a fleet that defines none."""
DATA = {"SUPPORT_DB": "support.db", "RECRUITING_DB": "recruiting.db", "CODE_SCRATCH": "code"}
"""Where the reference fleets keep their data, by the variable that names the place."""


def reference_fleet(name: str) -> Path:
    """Return the directory of a fleet under agents/: in the checkout, else as installed by the wheel.

    Raises UsageWrong if there is none of that name.
    """
    for root in (Path.cwd(), _CHECKOUT, *_installed()):
        directory = root / "agents" / name
        if (directory / FILE_NAME).is_file():
            return directory
    raise UsageWrong(f"there is no fleet agents/{name}/ here, nor one that is installed; there is `support`")


def _installed() -> Iterator[Path]:
    """Yield the folder of the wheel's `agents/`. It is in no package: openai-agents owns that import name."""
    with contextlib.suppress(PackageNotFoundError):
        for file in distribution("handoff-mesh").files or ():
            if file.parts[-3:-2] == ("agents",) and file.name == FILE_NAME:
                yield Path(str(file.locate())).resolve().parents[2]


def find_fleet(named: Sequence[str]) -> tuple[FleetFile, tuple[Path, ...]]:
    """Return a fleet and the directories that hold its modules.

    Args:
        named: nothing, for mesh.toml here; a fleet file or its directory; the name of a reference fleet; or
            `MODULE:NAME` once or several times, for a fleet of just these agents.

    Raises UsageWrong, FleetFileError, AgentNotFound.
    """
    here = Path.cwd()
    if not named:
        if not (here / FILE_NAME).is_file():
            raise UsageWrong(
                f"there is no {FILE_NAME} here; name a fleet with --fleet FILE or --fleet MODULE:NAME"
            )
        return load_fleet(here), (here,)
    if len(named) == 1:
        path = Path(named[0])
        if path.exists():
            home = path.resolve() if path.is_dir() else path.resolve().parent
            return load_fleet(path), (here, home, *_package_root(home))
        if ":" not in named[0]:
            return load_fleet(reference_fleet(named[0])), (here, reference_fleet(named[0]).parents[1])
    return _fleet_of(named), (here,)


def _package_root(home: Path) -> tuple[Path, ...]:
    """Return the directory that holds the package of `home`, if it is part of one."""
    if not (home / "__init__.py").is_file():
        return ()
    root = home
    while (root / "__init__.py").is_file():
        root = root.parent
    return (root,)


def _fleet_of(modules: Sequence[str]) -> FleetFile:
    agents = {}
    for module in modules:
        found = load(module)
        agents[found.name] = AgentSection(module=module, description=found.description)
    return FleetFile(
        name="dev",
        entry=next(iter(agents)),
        agents=agents,
        clients={_CLIENT: Submitter()},
        operators={"ops": Submitter()},
        viewers={"audit": Member()},
        human=HumanSection(),
    )


def with_client(file: FleetFile, *, runs: Collection[str] = ()) -> FleetFile:
    """Return a fleet as `mesh dev` runs it: if it has no client it gets the client `app`. Raises UsageWrong.

    Args:
        runs: clients of the mesh that is running; it keeps `app`, because its server always treats
            connections without credentials as that client.
    """
    if _CLIENT in file.clients or (file.clients and _CLIENT not in runs):
        return file
    if _CLIENT in {*file.agents, *file.operators, *file.viewers}:
        raise UsageWrong(f"the fleet has no client, and {_CLIENT!r} is another's name; add [clients.NAME]")
    return file.model_copy(update={"clients": {**file.clients, _CLIENT: Submitter()}})


def port_of(directory: Path) -> int:
    """Return the port of a mesh whose store is in `directory`: the same each time.

    It is below the ports that a system assigns by itself. The next port is the page's.
    """
    return 20_000 + zlib.crc32(str(directory.resolve()).encode()) % 5_000 * 2


def data_environment(directory: Path) -> dict[str, str]:
    """Return the variables that keep the reference fleets' data in `directory`, except those already set."""
    own = {variable: str(directory.absolute() / name) for variable, name in DATA.items()}
    return {name: value for name, value in own.items() if name not in os.environ}


def model_environment(kind: str) -> dict[str, str | None]:
    """Return the variables of agents driven by a kind of model; None removes a variable.

    No money is spent unasked: agents driven by rules do not get the key. Raises ModelUnavailable.
    """
    mode(kind)
    return {VARIABLE: kind, **(dict.fromkeys(secrets()) if kind == SCRIPTED else {})}


# --- a new project ---------------------------------------------------------------------------------

TEMPLATE = Path(__file__).with_name("template")
_PACKAGE, _FLEET = "yours", "your-fleet"
_TAKEN = {"agents", "mesh", "protocol", "tests"}
"""Import names that a starter's package must not hide."""
_PLAIN = {"gitignore": ".gitignore"}
"""Files with another name here, so that they do not take effect in this project."""


def write_starter(directory: Path) -> list[Path]:
    """Write a starter project, named after its directory; return its files.

    Raises UsageWrong if that name is no valid fleet name, a file exists already, or a file cannot be written.
    """
    fleet = re.sub(r"[^a-z0-9]+", "-", directory.resolve().name.lower()).strip("-")
    package = fleet.replace("-", "_")
    is_module = package.isidentifier() and not keyword.iskeyword(package)
    if not is_name(fleet) or not is_module or package in _TAKEN | sys.stdlib_module_names:
        raise UsageWrong(
            f"{directory.resolve().name!r} is the folder's name and would name its Python package; "
            "take another: up to 24 letters and digits, a letter first, and no module's name"
        )
    files = {}
    for source in sorted(each for each in TEMPLATE.rglob("*") if each.is_file()):
        if "__pycache__" not in source.parts:
            parts = source.relative_to(TEMPLATE).parts
            named = (package if part == _PACKAGE else _PLAIN.get(part, part) for part in parts)
            text = source.read_text().replace(_FLEET, fleet)
            files[directory.joinpath(*named)] = re.sub(rf"\b{_PACKAGE}\b", package, text)
    if there := [path for path in files if path.exists()]:
        raise UsageWrong(f"{there[0]} is there already; mesh init overwrites nothing")
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    except OSError as wrong:
        raise UsageWrong(f"{directory} cannot be written: {wrong.strerror}") from wrong
    return list(files)
