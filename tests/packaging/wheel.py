"""What a wheel of this checkout holds. `python -m tests.packaging.wheel FILE` says what is wrong with one."""

import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHIPPED = ("mesh", "protocol")
FLEETS = (".py", ".toml", ".jsonl", ".md", ".sql")
"""Files of the reference fleets, by their suffix."""
_SHARED = "/data/share/handoff-mesh/"


def names_in(wheel: Path) -> set[str]:
    """Return the names of a wheel's files."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def wrong_in(wheel: Path) -> Iterator[str]:
    """Yield what is wrong with a wheel; nothing if it is as it should be."""
    names = names_in(wheel)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if wheel.name != f"handoff_mesh-{known}-py3-none-any.whl":
        yield f"it is called {wheel.name}, and pyproject.toml says version {known}"
    info = f"handoff_mesh-{known}"
    top = {name.split("/")[0] for name in names}
    yield from (f"it ships {name}" for name in sorted(top - {*SHIPPED, f"{info}.dist-info", f"{info}.data"}))
    yield from (f"it lacks {name}" for name in sorted(_wanted() - names))
    fleets = {name.partition(_SHARED)[2] for name in names if _SHARED in name}
    yield from (f"it lacks the reference fleets' {name}" for name in sorted(_fleets() - fleets))
    yield from (f"it has {name} among the reference fleets" for name in sorted(fleets - _fleets()))
    if not any(re.fullmatch(r".*\.dist-info/licenses/LICENSE", name) for name in names):
        yield "it lacks the licence"


def _wanted() -> set[str]:
    """Return modules, schemas, templates, what the page is made of, and what says that there are types."""
    files = [file for room in SHIPPED for file in (ROOT / room).rglob("*.py")]
    files += (ROOT / "protocol/schema").glob("*.json")
    for room in ("mesh/ui", "mesh/fleet/templates"):
        files += (file for file in (ROOT / room).rglob("*.*") if file.is_file())
    files += (ROOT / room / "py.typed" for room in SHIPPED)
    return {str(file.relative_to(ROOT)) for file in files if "__pycache__" not in file.parts}


def _fleets() -> set[str]:
    found = (ROOT / "agents").rglob("*.*")
    return {str(file.relative_to(ROOT)) for file in found if file.suffix in FLEETS}


if __name__ == "__main__":
    found = [f"{name}: {wrong}" for name in sys.argv[1:] for wrong in wrong_in(Path(name))]
    sys.exit("\n".join(found) or None)
